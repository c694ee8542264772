"""Options of the command line: numbers, URLs, evictions and quotas."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from batch_emulator.domain.eviction_trace import TraceEntry
from batch_emulator.options import OptionError, parser, settings_of


def options(*words: str) -> list[str]:
    return ["--account", "a", "--key", "YQ==", "--data-dir", "d", *words]


def reads_a_number(action: argparse.Action) -> bool:
    try:
        return callable(action.type) and isinstance(action.type("1"), int | float)
    except argparse.ArgumentTypeError:
        return False


NUMBERS = [each.option_strings[0] for each in parser()._actions if reads_a_number(each)]
PORTS = [option for option in NUMBERS if option.endswith("port")]


def test_options_set_evictions_and_quotas(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,evict\n3,1\n")
    words = options(
        "--eviction-rate", "2.5", "--eviction-notice", "0", "--capacity-away", "60",
        "--eviction-trace", str(trace), "--pool-quota", "0", "--active-job-quota", "3",
    )  # fmt: skip
    limits = settings_of(parser().parse_args(words), "http://127.0.0.1:1").limits
    assert (limits.eviction_rate, limits.notice_s, limits.capacity_away_s) == (2.5, 0, 60)
    assert (limits.shortest_notice_s, limits.unusable_s) == (0, 0)
    assert (limits.pools, limits.active_jobs) == (0, 3)
    assert limits.trace == (TraceEntry(3.0, evict=1),)


@pytest.mark.parametrize(
    ("given", "shortest", "longest"),
    [((), 0, 30), (("--eviction-notice", "2-10"), 2, 10), (("--eviction-notice", "1.5"), 1.5, 1.5)],
)
def test_notice_is_a_number_or_a_range(
    given: tuple[str, ...], shortest: float, longest: float
) -> None:
    limits = settings_of(parser().parse_args(options(*given)), "http://127.0.0.1:1").limits
    assert (limits.shortest_notice_s, limits.notice_s) == (shortest, longest)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--eviction-rate", "nan", "expected a number from 0"),
        ("--eviction-rate", "-1", "expected a number from 0"),
        ("--eviction-notice", "inf", "expected a number from 0"),
        ("--eviction-notice", "-1", "expected a number from 0"),
        ("--eviction-notice", "10-2", "expected the shorter notice first"),
        ("--eviction-notice", "2-", "or a range such as 2-10"),
        ("--eviction-notice", "1e999", "expected a number from 0"),
        ("--eviction-unusable", "-1", "expected a number from 0"),
        ("--eviction-trace", "/nowhere/at/all", "cannot be read"),
        ("--pool-quota", "-1", "expected a whole number from 0"),
        *((port, "65536", "expected a port from 0 to 65535") for port in PORTS),
    ],
)
def test_invalid_values_are_refused_at_start(
    option: str, value: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(options(f"{option}={value}"))
    assert caught.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("value", ["x", "-1", "nan", "inf", ""])
@pytest.mark.parametrize("option", [each for each in NUMBERS if each != "--seed"])
def test_what_is_no_number_of_an_option_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(options(f"{option}={value}"))
    assert caught.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: invalid value '{value}': expected a " in said


def test_numbers_are_those_of_the_help() -> None:
    assert {"--port", "--boot-seconds", "--kill-grace-seconds", "--pool-quota"} < set(NUMBERS)
    assert PORTS == ["--port", "--ui-port", "--files-port"]
    assert parser().parse_args(options("--seed=-7")).seed == -7
    with pytest.raises(SystemExit):
        parser().parse_args(options("--seed=x"))


@pytest.mark.parametrize(
    "url",
    [
        "store", "store/a", "//host/a", "ftp://host/a", "http:///a", "http://host", "http://host/",
        "http://host:x/a", "http://host:65536/a", "http://host:0/a", "http://[::1/a",
        "http://host/a?sig=b", "",
    ],
)  # fmt: skip
def test_blob_endpoint_is_a_url_with_an_account(url: str) -> None:
    with pytest.raises(OptionError, match="with the account in its path"):
        settings_of(parser().parse_args(options("--blob-endpoint", url)), "http://127.0.0.1:1")
    for valid in ("http://127.0.0.1:10000/store", "https://[::1]:1/store/", "http://host/a"):
        given = parser().parse_args(options("--blob-endpoint", valid))
        assert settings_of(given, "http://127.0.0.1:1").blob_endpoint == valid.rstrip("/")


@pytest.mark.parametrize("name", ["a b", "a/b", "a\nb", "a:b", "a?b", 'a"b', "ünï", " ", "x" * 65])
def test_account_name_that_no_client_can_sign_is_refused(name: str, tmp_path: Path) -> None:
    words = ["--account", name, "--key", "YQ==", "--data-dir", str(tmp_path)]
    with pytest.raises(OptionError, match="invalid account '") as refused:
        settings_of(parser().parse_args(words), "")
    assert len(refused.value.what) < 130
    words[1] = "My-account_2.x"
    assert settings_of(parser().parse_args(words), "").account == words[1]
