"""The quick reading of YAML: the same as the careful one, or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.plain_yaml import plain_mapping, read_mapping
from runner.core.builtin_recipes import BUILTIN_FOLDER
from runner.core.document import read_document
from runner.core.errors import RunnerError

# What the versions of YAML, and their readers, see differently.
_AWKWARD = [
    *("yes", "No", "on", "OFF", "y", "True", "FALSE", "NULL", "~", "=", "<<", ".inf", "-.INF"),
    *("1:30", "12:30:45", "0o17", "017", "0x1F", "0b11", "1_000", "1e3", "1.5e3", "+1", "-0", "0"),
    *(".5", "5.", "-7", "1.25", "2026-11-21", "2026-11-21 10:00:00Z", "2h", "10m", "1d", "true"),
    *("null", "''", '"a: b"', "'it''s'", "!!str 5", "&a x", "{a: 1}", "[1, 'x', {b: no}]", "[]"),
    *("a:b", "http://a.b/c#d", "a #b", "|\n  two\n  lines", ">\n  two\n  lines", "text, more"),
    *("two\n  lines", "größe", '"\\x41"', "{}", "- 1", "@x", "`x`", "%x", "99999999999999999999"),
]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "3", "yes"]), st.sampled_from(_AWKWARD))))
def test_quick_reading_is_the_careful_one_or_none(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]
) -> None:
    file = tmp_path_factory.mktemp("yaml") / "file.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in lines), encoding="utf-8")
    if (quick := plain_mapping(file)) is not None:
        careful = read_document(file, code="X").data
        assert repr(quick) == repr(careful)


@given(st.text("ab1.:-#'\"[]{},&*!|>%@ \n\tyno~<=", max_size=40))
def test_quick_reading_of_any_text_is_the_careful_one_or_none(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("yaml") / "file.yaml"
    file.write_text(f"key: {text}", encoding="utf-8")
    if (quick := plain_mapping(file)) is not None:
        assert repr(quick) == repr(read_document(file, code="X").data)


@pytest.mark.parametrize("value", ["no", "1:30", "2026-11-21", "&a x", "0x1F", "~", "größe", "1e3"])
def test_what_versions_of_yaml_see_differently_is_left_to_the_careful_reader(
    tmp_path: Path, value: str
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(f"key: {value}\n", encoding="utf-8")
    assert plain_mapping(file) is None
    assert read_mapping(file, code="X") == read_document(file, code="X").data


def test_a_key_twice_is_the_careful_readers_error(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("key: 1\nkey: 2\n", encoding="utf-8")
    with pytest.raises(RunnerError, match=r"file\.yaml:2"):
        read_mapping(file, code="X")


@pytest.mark.parametrize(
    "file", [Path("Pulumi.dev.yaml"), *BUILTIN_FOLDER.glob("*/train.yaml")], ids=str
)
def test_our_own_files_are_read_quickly(file: Path) -> None:
    assert plain_mapping(file) == read_document(file, code="X").data


def test_a_stack_without_a_mistake_does_not_load_the_careful_reader() -> None:
    program = (
        "import sys; from pathlib import Path; from infra.stack_config import load_stack_config\n"
        "load_stack_config(Path('Pulumi.dev.yaml'), environment={'ARM_LOCATION': 'eastus',"
        f" 'ARM_SUBSCRIPTION_ID': '{'0' * 8}-0000-0000-0000-{'0' * 12}'}})\n"
        "print([name for name in sys.modules if name.startswith('ruamel.yaml')])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    assert done.stdout.strip() == b"[]"
