"""Sizes and durations: one grammar for every key and option, one format for every text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from runner.core.recipe.file import RecipeFile
from runner.core.recipe.options import RunOptions, with_options
from runner.core.recipe.submit_file import SubmitFile
from runner.core.units import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    UnitError,
    format_age,
    format_count,
    format_duration,
    format_names,
    format_size,
    parse_duration,
    parse_duration_flag,
    parse_since,
    parse_size,
)
from runner.core.yaml_files import check_document, read_document
from runner.features.schedules import create
from runner.features.schedules.create import ScheduleFlags
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd
from tests.unit.core.recipe_maker import recipe
from tools.recipe_schema import submit_schema, train_schema

NOW = datetime(2026, 11, 21, 14, tzinfo=UTC)
SIZES = {
    "28G": 28 * 10**9, "28g": 28 * 10**9, "28GB": 28 * 10**9, "28gb": 28 * 10**9,
    "28 GB": 28 * 10**9, "28Gi": 28 << 30, "28GiB": 28 << 30, "28gib": 28 << 30,
    "28 gib": 28 << 30, "500 MB": 500 * 10**6, "512M": 512 * 10**6, "4k": 4000, "4KiB": 4096,
    "1T": 10**12, "1.5GiB": 3 << 29, "1073741824": 1 << 30, "7 B": 7, " 2 MiB ": 2 << 20,
    "28.7GB": 28_700_000_000, "0.3 KiB": 307,
}  # fmt: skip
# All of them are at most a day, which every key takes.
DURATIONS = {
    "90s": 90, "15m": 900, "1h30m": 5400, "2h": 7200, "1d": 86400, "PT2H": 7200, "PT1H30M": 5400,
    "P1D": 86400, "1h 30m": 5400, "2 h 05 min": 7500, "90 s": 90, "1H": 3600, "1.5h": 5400,
    "60m": 3600, "0d2h": 7200, "pt15m": 900,
}  # fmt: skip
LONG = {"1w": 604800, "P1DT2H": 93600, "P1W": 604800, "1w2d": 777600, "100h": 360000}
NO_SIZES = (
    "", "big", "28 X", "28Gibi", "3i", "-1G", "1,5G", "1e9", "٣G", "9" * 40, f"{1 << 63}", "G",
)  # fmt: skip
NO_DURATIONS = (
    "", "soon", "P", "PT", "P1DT", "P1M", "P1Y", "1m1h", "-3d", "1e3d", "5 m i n", "1h30", "٣h",
    "T1H", "9" * 30 + "w",
)  # fmt: skip


LARGEST = {f"{(1 << 63) - 1}": (1 << 63) - 1}


@pytest.mark.parametrize(("text", "size_bytes"), (SIZES | LARGEST).items())
def test_size_is_parsed(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(("text", "seconds"), (DURATIONS | LONG | {"90": 90, "0.5s": 0.5}).items())
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", NO_SIZES)
def test_invalid_size_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(UnitError, match="is not a size") as caught:
        parse_size(text)
    assert "28GiB" in caught.value.fix
    assert len(caught.value.what) < 100


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_invalid_duration_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(UnitError, match="is not a duration") as caught:
        parse_duration(text)
    assert "1h30m" in caught.value.fix


def field(model: type[Any], text: str, path: Path, *place: str) -> object:
    """Return the value that the model parses for a text in place of VALUE."""
    path.write_text(text, encoding="utf-8")
    found: Any = check_document(read_document(path, code="R-X"), model, code="R-X")
    for part in place:
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found


TASKS = "tasks: {a: {recipe: x, %s}}"
# Every key that takes a size or a duration: its model, and a file with it.
SIZE_KEYS: dict[str, tuple[type[Any], str]] = {
    "resources.memory": (RecipeFile, "resources: {memory: VALUE}"),
    "resources.gpu_memory": (RecipeFile, "resources: {gpu_memory: VALUE}"),
    "checkpoints.max_size": (RecipeFile, "checkpoints: {max_size: VALUE}"),
    "tasks.a.resources.memory": (SubmitFile, TASKS % "resources: {memory: VALUE}"),
    "defaults.resources.memory": (
        SubmitFile, "tasks: {a: {recipe: x}}\ndefaults: {resources: {memory: VALUE}}",
    ),
}  # fmt: skip
DURATION_KEYS: dict[str, tuple[type[Any], str]] = {
    "timeout": (RecipeFile, "timeout: VALUE"),
    "hang_timeout": (RecipeFile, "hang_timeout: VALUE"),
    "idle_timeout": (RecipeFile, "idle_timeout: VALUE"),
    "keep_node": (RecipeFile, "keep_node: VALUE"),
    "defaults.keep_node": (SubmitFile, "tasks: {a: {recipe: x}}\ndefaults: {keep_node: VALUE}"),
    "fallback_after": (RecipeFile, "pools: [a, b]\nfallback_after: VALUE"),
    "checkpoints.interval": (RecipeFile, "checkpoints: {interval: VALUE}"),
    "tasks.a.timeout": (SubmitFile, TASKS % "timeout: VALUE"),
    "defaults.timeout": (SubmitFile, "tasks: {a: {recipe: x}}\ndefaults: {timeout: VALUE}"),
    "schedule.every": (SubmitFile, "tasks: {a: {recipe: x}}\nschedule: {every: VALUE}"),
}  # fmt: skip


@pytest.mark.parametrize("key", SIZE_KEYS)
def test_all_size_keys_accept_all_spellings(key: str, tmp_path: Path) -> None:
    model, text = SIZE_KEYS[key]

    def read(value: str) -> object:
        return field(model, text.replace("VALUE", value), tmp_path / "x.yaml", *key.split("."))

    for written, size_bytes in SIZES.items():
        assert read(json.dumps(written)) == size_bytes, written
    assert read("4096") == 4096
    for written in NO_SIZES:
        with pytest.raises(RunnerError, match="is not a size") as caught:
            read(json.dumps(written))
        assert f"x.yaml:{text[: text.index('VALUE')].count(chr(10)) + 1}: {key}:" in str(caught)
    with pytest.raises(RunnerError, match="less than 1B"):
        read("0")


@pytest.mark.parametrize("key", DURATION_KEYS)
def test_all_duration_keys_accept_all_spellings(key: str, tmp_path: Path) -> None:
    model, text = DURATION_KEYS[key]

    def read(value: str) -> object:
        return field(model, text.replace("VALUE", value), tmp_path / "x.yaml", *key.split("."))

    for written, seconds in DURATIONS.items():
        assert read(json.dumps(written)) == seconds, written
    assert read("90") == read('"90"') == 90
    for written in NO_DURATIONS:
        with pytest.raises(RunnerError, match="is not a duration"):
            read(json.dumps(written))
    with pytest.raises(RunnerError, match="it is less than"):
        read("0s")
    with pytest.raises(RunnerError, match="it is more than"):
        read("P1000D")


def amounts(schema: Any, pattern: str) -> Iterator[str]:
    """Yield the names of the keys of a schema that have this pattern."""
    if isinstance(schema, list):
        for each in schema:
            yield from amounts(each, pattern)
    elif isinstance(schema, dict):
        for name, each in schema.get("properties", {}).items():
            if json.dumps(pattern) in json.dumps({k: v for k, v in each.items() if k != "$defs"}):
                yield name
        for each in schema.values():
            yield from amounts(each, pattern)


def test_tables_of_keys_are_complete() -> None:
    schemas = [json.loads(train_schema()), json.loads(submit_schema())]
    assert set(amounts(schemas, SIZE_PATTERN)) == {key.split(".")[-1] for key in SIZE_KEYS}
    assert set(amounts(schemas, DURATION_PATTERN)) == {key.split(".")[-1] for key in DURATION_KEYS}


def timeout(text: str) -> timedelta:
    return timedelta(seconds=with_options(recipe(), RunOptions(timeout=text)).timeout_s or 0)


def every(text: str) -> timedelta:
    spec = create._spec(None, ScheduleFlags(every=text))
    assert spec.every is not None
    return spec.every


FLAGS: dict[str, Callable[[str], timedelta]] = {
    "--timeout": timeout,
    "--every": every,
    "--since": lambda text: NOW - parse_since(text, NOW),
    "--notice, --away": lambda text: parse_duration_flag("notice", text, "0s", "366d"),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_all_options_accept_all_spellings(flag: str) -> None:
    for written, seconds in DURATIONS.items():
        assert FLAGS[flag](written) == timedelta(seconds=seconds), written
    for written in NO_DURATIONS:
        with pytest.raises(RunnerError, match=f"invalid --{flag[2:6]}|invalid --notice"):
            FLAGS[flag](written)


@pytest.mark.parametrize("option", ["--notice", "--away"])
def test_evict_reads_its_durations(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.cli.commands.environment.local import app
    from runner.flows.local import evict

    asked: dict[str, Any] = {}
    monkeypatch.setattr(evict, "evict", lambda _, **options: asked.update(options) or ())
    assert CliRunner().invoke(app, ["evict", option, "1m30s"]).exit_code == 0
    assert asked[f"{option[2:]}_s"] == 90
    assert CliRunner().invoke(app, ["evict", option, "0.5"]).exit_code == 0
    assert asked[f"{option[2:]}_s"] == 0.5


def test_option_out_of_bounds_names_the_bound() -> None:
    with pytest.raises(RunnerError) as caught:
        parse_duration_flag("every", "59s", "1m", "366d")
    assert caught.value.code == "R-FLAG-VALUE"
    assert "1m to 366d" in caught.value.why
    assert caught.value.fix == "--every 1m"


@pytest.mark.parametrize(
    ("text", "ago"),
    [("7d", timedelta(days=7)), ("12h", timedelta(hours=12)), (" 2W ", timedelta(weeks=2)),
     ("P1DT2H", timedelta(hours=26))],
)  # fmt: skip
def test_since_is_a_duration_ago(text: str, ago: timedelta) -> None:
    assert parse_since(text, NOW) == NOW - ago


def test_since_is_a_date_or_time() -> None:
    assert parse_since("2026-11-20T14:00:00+00:00", NOW) == NOW - timedelta(days=1)
    assert parse_since("2026-11-20", NOW).tzinfo is UTC
    assert parse_since("20261120", NOW) == parse_since("2026-11-20", NOW)


@pytest.mark.parametrize("text", ["", "yesterday", "7", "999999w", "-3d", "2026-13-01", "1e3d"])
def test_invalid_since_is_rejected(text: str) -> None:
    with pytest.raises(RunnerError) as caught:
        parse_since(text, NOW)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (812, "812 B"), (999.7, "1.0 kB"), (4100, "4.1 kB"), (9_960_000, "10 MB"),
     (11_000_000, "11 MB"), (3.2e12, "3.2 TB"), (2.5e15, "2500 TB")],
)  # fmt: skip
def test_sizes_are_formatted(size_bytes: float, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (4_970_000, "4.97 USD"), (1_234_567_890, "1,234.57 USD"), (100_000, "0.10 USD"),
        (50_000, "0.05 USD"), (32_000, "0.032 USD"), (11_700, "0.0117 USD"),
        (1_234, "0.0012 USD"), (0, "0.00 USD"), (3, "<0.0001 USD"), (-3, ">-0.0001 USD"),
        (-206_300, "-0.21 USD"), (None, "unknown"),
    ],
)  # fmt: skip
def test_small_amounts_keep_their_digits(micros: int | None, text: str) -> None:
    assert format_usd(micros) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.44, "0.4 s"), (9.97, "10 s"), (12, "12 s"), (59.7, "1 min"), (61, "1 min 01 s"),
     (723, "12 min 03 s"), (3599.6, "1 h"), (7500, "2 h 05 min"), (172_799, "47 h 59 min"),
     (604_800, "7 d"), (timedelta(days=3, hours=4), "3 d 04 h")],
)  # fmt: skip
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (12, "12 s"), (60, "1 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ages_are_formatted(seconds: float, text: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == text


@given(st.integers(0, 10**15 - 1))
def test_formatted_size_is_read_again(size_bytes: int) -> None:
    assert abs(parse_size(format_size(size_bytes)) - size_bytes) <= max(size_bytes * 0.051, 0.5)


@given(st.integers(0, 400 * 86400))
def test_formatted_duration_is_read_again(seconds: int) -> None:
    lost = seconds - parse_duration(format_duration(seconds)).total_seconds()
    assert 0 <= lost < (1 if seconds < 3600 else 60 if seconds < 172_800 else 3600)


UNITS = st.tuples(*[st.none() | st.integers(0, 9999) for _ in range(5)]).filter(any)


@given(UNITS, st.sampled_from(["", " "]), st.booleans())
def test_duration_is_the_sum_of_its_parts(
    numbers: tuple[int | None, ...], space: str, upper: bool
) -> None:
    parts = [f"{n}{space}{u}" for n, u in zip(numbers, "wdhms", strict=True) if n is not None]
    text = space.join(parts).upper() if upper else space.join(parts)
    w, d, h, m, s = (n or 0 for n in numbers)
    wanted = timedelta(weeks=w, days=d, hours=h, minutes=m, seconds=s)
    assert parse_duration(text) == wanted
    iso = {u: n for n, u in zip(numbers, "WDHMS", strict=True) if n is not None}
    date = "".join(f"{n}{u}" for u, n in iso.items() if u in "WD")
    time = "".join(f"{n}{u}" for u, n in iso.items() if u in "HMS")
    assert parse_duration(f"P{date}" + (f"T{time}" if time else "")) == wanted


@given(st.text(alphabet="0123456789.kKmMgGtTiIbBwdhspPTDHS \n", max_size=20))
def test_schema_patterns_match_the_grammar(text: str) -> None:
    for parse, pattern in ((parse_size, SIZE_PATTERN), (parse_duration, DURATION_PATTERN)):
        try:
            parse(text)
        except UnitError:
            assert not re.search(pattern, text) or sum(map(str.isdigit, text)) > 9
        else:
            assert re.search(pattern, text)


def test_counts_have_the_noun_in_singular_or_plural() -> None:
    assert [format_count(number, "file") for number in (0, 1, 2)] == [
        "0 files",
        "1 file",
        "2 files",
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["1", "2"], "1, 2"),
        (["1", "2", "3", "5", "merge"], "1-3, 5, merge"),
        (["008", "009", "010"], "008-010"),
        (["9", "010"], "9, 010"),
        (["a", "b", "c", "1"], "a, b, and 2 more"),
    ],
)
def test_numbers_in_a_row_are_shown_as_a_range(names: list[str], text: str) -> None:
    assert format_names(names, most=3 if "merge" in names else 2) == text
    assert format_names([f"{n:04d}" for n in range(1, 1401)]) == "0001-1400"
