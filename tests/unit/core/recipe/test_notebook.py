"""A notebook is a script whose parameters are those of its cell tagged `parameters`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe import notebook as notebooks
from runner.core.recipe.file import load_recipe
from runner.core.recipe.imports import package_warnings
from runner.core.recipe.notebook import parse_text, read_params
from runner.core.recipe.options import RunOptions, with_options
from runner.core.recipe.sweep import change_sweep, parse_param
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.sweep import check_sweep
from runner.protocol.commands import find_notebook
from runner.protocol.errors import RunnerError

CELL = """\
%matplotlib inline
import os
EPOCHS = 3
LR: float = 1
NAME = "adam"
VERBOSE = False
LAYERS = [64, 32]
SEED: int | None = None
DATA = os.environ.get("DATA", "data")
"""


def write_notebook(path: Path, *cells: tuple[str, str], language: str = "python") -> Path:
    """Write a notebook of (source, tag) cells."""
    document = {
        "nbformat": 4,
        "nbformat_minor": 4,
        "metadata": {"kernelspec": {"name": "any", "display_name": "any", "language": language}},
        "cells": [
            {
                "cell_type": "code", "source": source.splitlines(keepends=True), "outputs": [],
                "metadata": {"tags": [tag] if tag else []}, "execution_count": None,
            }
            for source, tag in cells
        ],
    }  # fmt: skip
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return write_notebook(tmp_path / "nb.ipynb", (CELL, "parameters"), ("print(EPOCHS)", ""))


def params_of(notebook: Path, *overrides: str) -> dict[str, Any]:
    recipe = load_recipe(str(notebook), cwd=notebook.parent)
    return dict(check_run(recipe, RunOptions(set=overrides)).params)


def refusal(notebook: Path, *overrides: str, **options: Any) -> RunnerError:
    recipe = load_recipe(str(notebook), cwd=notebook.parent)
    with pytest.raises(RunnerError) as caught:
        check_run(recipe, RunOptions(set=overrides, **options))
    return caught.value


def test_tagged_cell_declares_names_types_and_defaults(notebook: Path) -> None:
    assert {p.name: (p.type, p.default) for p in read_params(notebook)} == {
        "EPOCHS": ("int", 3),
        "LR": ("float", 1.0),
        "NAME": ("str", "adam"),
        "VERBOSE": ("bool", False),
        "LAYERS": ("list", [64, 32]),
        "SEED": ("any", None),
        "DATA": ("any", None),
    }


def test_values_keep_their_types(notebook: Path) -> None:
    assert params_of(notebook) == {
        "EPOCHS": 3, "LR": 1.0, "NAME": "adam", "VERBOSE": False, "LAYERS": [64, 32],
    }  # fmt: skip
    given = ("EPOCHS=5", "LR=1e-3", "NAME=3", "VERBOSE=yes", "LAYERS=[1]", "SEED=None", "DATA=a b")
    assert params_of(notebook, *given) == {
        "EPOCHS": 5, "LR": 1e-3, "NAME": "3", "VERBOSE": True, "LAYERS": [1], "SEED": None,
        "DATA": "a b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("0.5", 0.5), ("true", True), ("True", True), ("None", None), ("null", None),
        ("(1, 2)", [1, 2]), ("['a']", ["a"]), ("NaN", "NaN"), ("adam", "adam"), ("", ""),
    ],
)  # fmt: skip
def test_text_is_parsed_as_a_literal_or_kept(text: str, value: object) -> None:
    assert parse_text(text) == value
    assert type(parse_text(text)) is type(value)


def test_unknown_and_mistyped_parameters_name_the_declared_ones(notebook: Path) -> None:
    unknown = refusal(notebook, "EPOCH=3")
    assert unknown.why.endswith("sets: EPOCHS, LR, NAME, VERBOSE, LAYERS, SEED, DATA")
    assert unknown.fix == "did you mean EPOCHS?"
    assert refusal(notebook, "EPOCHS=2.5").why == "must be a whole number"
    assert refusal(notebook, "LAYERS=3").why == "must be a list, like [1, 2]"


def test_parameters_without_a_tagged_cell_are_refused_with_a_fix(tmp_path: Path) -> None:
    bare = write_notebook(tmp_path / "bare.ipynb", ("x = 1", ""))
    assert params_of(bare) == {}
    error = refusal(bare, "x=2")
    assert error.why == "bare.ipynb has no cell with the tag `parameters` that sets parameters"
    assert "add the tag `parameters` to the cell" in error.fix
    sweep = change_sweep(None, dict([parse_param("x=1,2")]), {})
    with pytest.raises(RunnerError, match="trial 1: parameter 'x'"):
        check_sweep(load_recipe(str(bare), cwd=tmp_path), sweep, RunOptions())


def test_arguments_of_a_script_are_refused(notebook: Path) -> None:
    assert refusal(notebook, args=("--lr", "1")).fix == "use --set NAME=VALUE"


@pytest.mark.parametrize("name", ["nb.ipynb", "."])
def test_notebook_is_recognised_as_a_file_and_in_a_folder(notebook: Path, name: str) -> None:
    recipe = load_recipe(name, cwd=notebook.parent)
    assert find_notebook(recipe.command) == "nb.ipynb"
    assert recipe.live_outputs == ("nb.ipynb",)
    assert recipe.packages == ("papermill", "ipykernel")
    assert recipe.files == (("nb.ipynb",) if name != "." else None)


def test_notebook_below_a_folder_is_an_entry(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "books").mkdir()
    write_notebook(tmp_path / "books/nb.ipynb", ("x = 1", "parameters"))
    recipe = load_recipe(".", cwd=tmp_path, entry="books/nb.ipynb")
    assert (find_notebook(recipe.command), recipe.live_outputs) == ("books/nb.ipynb", ("nb.ipynb",))


def test_notebook_that_imports_a_sibling_module_is_refused_alone(notebook: Path) -> None:
    (notebook.parent / "helpers.py").touch()
    write_notebook(notebook, ("!pip install x\n%load_ext y\nimport helpers", ""), ("x = !ls", ""))
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(notebook), cwd=notebook.parent)
    assert (caught.value.code, caught.value.fix) == (
        "R-RECIPE-ALONE",
        f"runner train {notebook.parent} --entry nb.ipynb",
    )


def test_train_yaml_can_limit_but_not_add_a_parameter(notebook: Path) -> None:
    recipe = notebook.parent / "train.yaml"
    recipe.write_text("entry: nb.ipynb\nparams: {EPOCHS: {type: int, default: 2, max: 10}}\n")
    assert params_of(recipe)["EPOCHS"] == 2
    assert refusal(recipe, "EPOCHS=11").why == "must be at most 10"
    recipe.write_text("entry: nb.ipynb\nparams: {BATCH: 2}\n")
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(recipe), cwd=recipe.parent)
    assert caught.value.code == "R-NOTEBOOK-PARAM"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a notebook"),
        ('{"worksheets": []}', "not a notebook"),
        ("[]", "not a notebook"),
        ('{"a": 1}', "not a notebook"),
        ('{"cells": 5}', "not a notebook"),
        ('"text"', "not a notebook"),
    ],
)
def test_invalid_notebook_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "nb.ipynb").write_text(text)
    with pytest.raises(RunnerError, match=problem):
        load_recipe("nb.ipynb", cwd=tmp_path)


def check(folder: Path, *packages: str) -> tuple[str, ...]:
    """Return the warnings about the packages of a notebook with these `--package` options."""
    recipe = load_recipe("nb.ipynb", cwd=folder)
    return package_warnings(with_options(recipe, RunOptions(packages=packages)))


@pytest.mark.parametrize(
    ("language", "fix"),
    [("lang", "add the package of one with --package"), ("bash", "add --package bash-kernel,")],
)
def test_notebook_of_another_language_is_refused(tmp_path: Path, language: str, fix: str) -> None:
    write_notebook(tmp_path / "nb.ipynb", ("x <- 1", ""), language=language)
    with pytest.raises(RunnerError, match=f"is a notebook of {language}") as caught:
        check(tmp_path)
    assert caught.value.fix.startswith(fix)
    (tmp_path / "requirements.txt").write_text("numpy\nipykernel\n")
    with pytest.raises(RunnerError, match=f"is a notebook of {language}"):
        check(tmp_path, "numpy")
    assert check(tmp_path, f"{language}-kernel") == ()


def test_kernel_of_the_system_is_accepted_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notebook(tmp_path / "nb.ipynb", ("x <- 1", ""), language="R")
    monkeypatch.setattr(notebooks, "_KERNELS", (tmp_path / "kernels",))
    with pytest.raises(RunnerError, match="is a notebook of R"):
        check(tmp_path)
    (tmp_path / "kernels/any").mkdir(parents=True)
    [said] = check(tmp_path)
    assert said.endswith("uses the kernel any of this machine: it has to be on the nodes, too")


def test_notebook_of_a_kernel_that_is_installed_is_accepted(tmp_path: Path) -> None:
    write_notebook(tmp_path / "nb.ipynb", ("echo hi", ""), language="bash")
    (tmp_path / "requirements.txt").write_text("bash_kernel\n")
    assert check(tmp_path) == ()
    (tmp_path / "requirements.txt").unlink()
    (tmp_path / "train.yaml").write_text("entry: nb.ipynb\nimage: a/b:1\n")
    assert load_recipe(".", cwd=tmp_path).image == "a/b:1"
    (tmp_path / "train.yaml").write_text("entry: nb.ipynb\nprepare: sh install-kernel.sh\n")
    assert load_recipe(".", cwd=tmp_path).prepare


def test_parameters_of_a_notebook_in_format_3_are_read(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "language": "python", "metadata": {"tags": ["parameters"]}}
    sheets = [{"cells": [{**cell, "input": ["N = 3\n"], "outputs": []}]}]
    document = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": sheets}
    (tmp_path / "nb.ipynb").write_text("\ufeff" + json.dumps(document), encoding="utf-8")
    [found] = load_recipe("nb.ipynb", cwd=tmp_path).params
    assert (found.name, found.default) == ("N", 3)


def test_sweep_gives_each_trial_its_parameters(notebook: Path) -> None:
    sweep = change_sweep(None, dict([parse_param("LR=0.1,0.01"), parse_param("EPOCHS=1,2")]), {})
    recipe = load_recipe(str(notebook), cwd=notebook.parent)
    checked = check_sweep(recipe, sweep, RunOptions())
    found = [(run.params["LR"], run.params["EPOCHS"]) for run in checked.runs.values()]
    assert found == [(0.1, 1), (0.1, 2), (0.01, 1), (0.01, 2)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "it has no list of cells"),
        ("3", "it has no list of cells"),
        ('{"cells": [3], "nbformat": 4}', "it has no list of cells"),
        ('{"cells": {}, "nbformat": 4}', "it has no list of cells"),
        ('{"worksheets": [3], "nbformat": 3}', "it has no list of cells"),
        ("", "it is no JSON"),
        ('{\n<<<<<<< HEAD\n "cells": []\n=======\n', "it has conflict markers of git"),
        ('{"cells": [], "nbformat": 5}', "formats 3 and 4"),
        ('{"worksheets": [], "nbformat": 2}', ""),
    ],
)
def test_notebook_that_nbclient_cannot_read_is_refused_in_plain_words(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(RunnerError) as caught:
        load_recipe("./a.ipynb", cwd=tmp_path)
    assert caught.value.code == "R-NOTEBOOK"
    assert why in (caught.value.why or "")
    assert "Error" not in (caught.value.why or "")


def test_notebook_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes('{"cells": []}'.encode("utf-16"))
    with pytest.raises(RunnerError) as caught:
        load_recipe("./a.ipynb", cwd=tmp_path)
    assert caught.value.why == "it is not UTF-8 text"


def test_magic_that_imports_matplotlib_needs_it(tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", ("%matplotlib inline\nx = 1", ""))
    with pytest.raises(RunnerError) as caught:
        package_warnings(load_recipe("./a.ipynb", cwd=tmp_path))
    assert "matplotlib" in caught.value.what
