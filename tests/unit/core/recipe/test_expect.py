"""`expect` and `variants` of train.yaml."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from runner.core.planning.plan import RunContent, with_content
from runner.core.recipe.file import load_recipe
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import ExpectedRange, range_problems
from runner.protocol.run_spec import CodeRef, DataRef
from tests.unit.core.recipe_maker import load_text, param, plan, recipe

VARIANTS = """
name: digits
requirements: req.txt
env: {BACKEND: jax, LEVEL: "1"}
params: {epochs: {type: int, default: 8, max: 9}, width: 4}
expect: {accuracy: [0.9, 1]}
variants:
  torch:
    env: {BACKEND: torch}
    timeout: 2h
  small:
    params: {epochs: 2, width: 3}
    expect: {accuracy: [0.5, 1]}
  wrong:
    timeout: soon
  other:
    name: x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "req.txt").write_text("numpy==2.0.0\n")
    load_text(tmp_path / "demo", VARIANTS)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [0.97, 1]", ExpectedRange("a", 0.97, 1)),
        ("a: {min: 0.97}", ExpectedRange("a", 0.97)),
        ("a/b: {max: 3, outside: fail}", ExpectedRange("a/b", None, 3, fails=True)),
    ],
)
def test_range_is_read(tmp_path: Path, text: str, expected: ExpectedRange) -> None:
    assert load_text(tmp_path, f"expect: {{{text}}}").expect == (expected,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1]", "is not a range"),
        ("a: {}", "the range is empty"),
        ("a: [2, 1]", "min 2 is above max 1"),
        ("a: {min: 1, outside: stop}", "got 'stop'"),
        ("a: {min: .inf}", "must be finite numbers"),
        ("a: 0.97", "expected `key: value` lines"),
    ],
)
def test_invalid_range_is_an_error_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RunnerError, match=r"train\.yaml:2: expect\.a") as caught:
        load_text(tmp_path, f"name: x\nexpect: {{{text}}}")
    assert problem in caught.value.what


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (0.97, ""),
        (1.0, ""),
        (0.9, "a is 0.9000, expected 0.97 to 1"),
        (math.nan, "a is nan, expected 0.97 to 1"),
        (None, "metric a was not reported, expected 0.97 to 1"),
    ],
)
def test_value_outside_of_its_range_is_a_problem(value: float | None, problem: str) -> None:
    last = {} if value is None else {"a": value}
    assert ExpectedRange("a", 0.97, 1).problem(last) == problem


def test_problems_are_filtered_by_whether_they_fail_the_run() -> None:
    ranges = (ExpectedRange("a", 1), ExpectedRange("b", None, 2, fails=True))
    assert range_problems(ranges, {}, fails=True) == [
        "metric b was not reported, expected at most 2"
    ]
    assert len(range_problems(ranges, {})) == 2


@pytest.mark.parametrize(
    ("epochs", "args", "notice", "kept"),
    [
        (8, (), None, ("a", "b")),
        (7, (), None, ("b",)),
        (8, ("--fast",), None, ("b",)),
        (8, (), "not the complete data", ("b",)),
    ],
)
def test_warning_ranges_apply_to_unchanged_recipes_only(
    epochs: int, args: tuple[str, ...], notice: str | None, kept: tuple[str, ...]
) -> None:
    ranges = (ExpectedRange("a", 1), ExpectedRange("b", 1, fails=True))
    of = recipe(params=(param("epochs", "int", 8),), expect=ranges)
    data = DataRef("d", "path", notice, "d/")
    content = RunContent(CodeRef("c" * 64, 4096, 2), "a" * 64, None, data)
    made = plan(of, params={"epochs": epochs}, script_args=args, content=content)
    downloaded = plan(of, params={"epochs": epochs}, script_args=args)
    for draft in (made, with_content(downloaded, content)):
        assert tuple(each.metric for each in draft.to_spec().expect) == kept


def test_variants_change_keys_in_turn(folder: Path) -> None:
    loaded = load_recipe("demo:torch:small", cwd=folder)
    assert (loaded.name, loaded.timeout_s) == ("digits", 7200)
    assert loaded.env == {"BACKEND": "torch", "LEVEL": "1"}
    assert [(each.default, each.max) for each in loaded.params] == [(2, 9), (3, None)]
    assert loaded.expect == (ExpectedRange("accuracy", 0.5, 1),)
    assert loaded.variants == ("torch", "small", "wrong", "other")


@pytest.mark.parametrize(
    ("ref", "what", "fix"),
    [
        ("demo:torhc", "demo has no variant 'torhc'", "did you mean 'torch'?"),
        ("demo:wrong", "train.yaml:15: timeout: 'soon'", "use a duration"),
        ("demo:other", "train.yaml:17: variants.other.name: a variant cannot", "remove the key"),
        ("demo/train.py:torch", "demo/train.py has no variant 'torch'", "remove the ':'"),
        ("mnist:x", "mnist has no variant 'x'", "use 'tensorflow', or no variant"),
        ("nothing:torch", "unknown recipe 'nothing'", "use one of these"),
    ],
)
def test_invalid_variant_is_explained(folder: Path, ref: str, what: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load_recipe(ref, cwd=folder)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    load_text(tmp_path / "a:b", "name: colon")
    assert load_recipe("a:b", cwd=tmp_path).name == "colon"
