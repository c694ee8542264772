from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.progress import ignore_progress
from runner.core.recipe.code_archive import pack_code
from runner.core.recipe.file import load_recipe
from runner.core.recipe.inputs import InputSpec, override_inputs
from runner.flows.submit.check_and_read import FilesToUpload, input_entries, local_paths
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import outputs, plan, recipe

HASH = "0" * 64


def written(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "cats"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "train.yaml").write_text(f"command: python train.py\ninputs:\n{text}")
    return folder


def loaded(tmp_path: Path, text: str) -> dict[str, InputSpec]:
    found = load_recipe(str(written(tmp_path, text)), cwd=tmp_path)
    return {spec.name: spec for spec in found.inputs}


def test_every_kind_is_read_in_both_forms(tmp_path: Path) -> None:
    text = """
  a: ./local
  b: {path: ./local}
  c: https://example.org/x.bin
  d: {url: "https://example.org/x.bin", sha256: "%s"}
  e: blob:images/cats/
  f: {blob: images/cats}
  g: share:sets/cats
  h: dataset:mnist
  i: run:@last/model.keras
  j: {run: cats-20261121-143005-k3f9, path: model.keras}
  word-list: {run: "@last"}
"""
    found = loaded(tmp_path, text % HASH)
    assert {name: (spec.kind, spec.source) for name, spec in found.items()} == {
        "a": ("path", "./local"), "b": ("path", "./local"),
        "c": ("url", "https://example.org/x.bin"), "d": ("url", "https://example.org/x.bin"),
        "e": ("blob", "images/cats"), "f": ("blob", "images/cats"), "g": ("share", "sets/cats"),
        "h": ("dataset", "mnist"), "i": ("run", "@last"), "j": ("run", "cats-20261121-143005-k3f9"),
        "word-list": ("run", "@last"),
    }  # fmt: skip
    assert (found["d"].sha256, found["i"].part) == (HASH, "model.keras")
    assert found["word-list"].variable == "RUNNER_INPUT_WORD_LIST"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  a: {blob: x/y, path: z}\n", r"inputs\.a: expected one source, got blob and path"),
        ("  a: {}\n", r"inputs\.a: expected one source, got none"),
        ("  a: 3\n", r"inputs\.a: expected `key: value` lines, got 3"),
        ("  a: {blob: x, tape: y}\n", r"inputs\.a\.tape: unknown key"),
        ("  a: http://example.org/x\n", r"inputs\.a: a URL must begin with https://"),
        ("  a: https://me:pw@example.org/x\n", "the URL contains a user or password"),
        ("  a: https://example.org/x?sv=1&sig=abc\n", "the URL contains a signature"),
        ("  a: {url: 'https://example.org/x', sha256: abc}\n", "expected 64 hexadecimal digits"),
        ("  a: {path: x, sha256: abc}\n", "`sha256` requires `url`"),
        ("  a: blob:X_y/z\n", "invalid container name 'X_y'"),
        ("  a: blob:images/../x\n", "is not a path inside the container"),
        ("  a: share:../x\n", "is not a path inside the share"),
        ("  a: ''\n", "path is empty"),
        ("  a-b: ./x\n  a_b: ./y\n", "have the same variable RUNNER_INPUT_A_B"),
        ("  A: ./x\n  a: ./y\n", "have the same variable RUNNER_INPUT_A"),
        ("  'a b': ./x\n", r"inputs\.a b"),
    ],
)
def test_invalid_input_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunnerError, match=said) as caught:
        loaded(tmp_path, text)
    assert caught.value.code == "R-RECIPE-FIELD"
    assert "train.yaml:" in caught.value.what


def test_options_replace_and_add_inputs(tmp_path: Path) -> None:
    given = (InputSpec("a", "path", "x"), InputSpec("b", "path", "y"))
    found = override_inputs(given, ["b=https://example.org/z", "c=./w"], tmp_path)
    assert [(spec.name, spec.kind) for spec in found] == [
        ("a", "path"),
        ("b", "url"),
        ("c", "path"),
    ]
    assert found[2].base == tmp_path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a", "R-INPUT-FORM"), ("=x", "R-INPUT-FORM"), ("a b=x", "R-INPUT-FORM"),
        ("a=http://example.org/", "R-INPUT-FORM"), ("A-B=x", "R-INPUT-CLASH"),
    ],
)  # fmt: skip
def test_invalid_option_is_refused(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(RunnerError) as caught:
        override_inputs((InputSpec("a_b", "path", "x"),), [text], tmp_path)
    assert caught.value.code == code


def test_local_input_is_named_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words/a.txt").write_text("one")
    spec = InputSpec("words", "path", "words", base=tmp_path)

    def prefix() -> str:
        (named,) = input_entries(
            [spec], outputs(), tmp_path, ignore_progress, FilesToUpload()
        ).values()
        assert named["files"][0]["name"] == "a.txt"
        assert named["single"] is None
        return named["prefix"]

    before = prefix()
    assert prefix() == before
    (tmp_path / "words/a.txt").write_text("two")
    assert prefix() != before


def test_single_local_file_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    spec = InputSpec("a", "path", str(tmp_path / "a.txt"))
    (named,) = input_entries([spec], outputs(), tmp_path, ignore_progress, FilesToUpload()).values()
    assert named["single"] == "a.txt"


def test_missing_local_input_is_named(tmp_path: Path) -> None:
    spec = InputSpec("words", "path", "words", base=tmp_path)
    with pytest.raises(RunnerError, match=r"input words: .*words does not exist"):
        input_entries([spec], outputs(), tmp_path, ignore_progress, FilesToUpload())


def test_share_input_needs_a_stack_with_a_share(tmp_path: Path) -> None:
    spec = InputSpec("words", "share", "sets/words")
    with pytest.raises(RunnerError, match="this stack has no file share"):
        input_entries([spec], outputs(), tmp_path, ignore_progress, FilesToUpload())
    stack = replace(outputs(), file_share="files")
    (named,) = input_entries([spec], stack, tmp_path, ignore_progress, FilesToUpload()).values()
    assert named == {"kind": "share", "path": "sets/words"}


def test_input_below_the_recipe_is_not_packed_as_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "words").mkdir()
    (tmp_path / "words/a.txt").write_text("one")
    specs = [InputSpec("words", "path", "words", base=tmp_path), InputSpec("u", "url", "https://x")]
    apart = local_paths(specs, tmp_path)
    assert pack_code(recipe(folder=tmp_path), apart).files == 1
    assert local_paths([InputSpec("all", "path", ".", base=tmp_path)], tmp_path) == ()


def test_run_json_contains_the_inputs() -> None:
    found = plan()
    named = {"a": {"kind": "url", "url": "https://example.org/x", "sha256": None}}
    changed = replace(found, content=replace(found.content, inputs=named))
    assert changed.to_spec().to_json()["inputs"] == named
