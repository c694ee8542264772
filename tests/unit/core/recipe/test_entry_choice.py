"""Which file of a folder is its program, and what the plan says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.code_archive import pack_code
from runner.core.recipe.file import load_recipe
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import plan

DEFINES = "import math\nRATE = 0.1\nlog = print\ndef train(): ...\nclass Net: ...\n"
CALLS = "from train import train\ntrain()\n"
GUARDED = DEFINES + "if __name__ == '__main__':\n    train()\n"
TYPER = "import typer\napp = typer.Typer()\n@app.command()\ndef main(): ...\n"


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({"train.py": DEFINES, "main.py": CALLS}, "main.py"),
        ({"train.py": GUARDED, "main.py": CALLS}, "train.py"),
        ({"train.py": CALLS, "main.py": DEFINES}, "train.py"),
        ({"train.py": DEFINES, "main.py": DEFINES}, "train.py"),
        ({"train.py": DEFINES, "run.py": CALLS}, "run.py"),
        ({"train.py": DEFINES, "run.py": GUARDED, "net.py": DEFINES}, "run.py"),
        ({"train.py": DEFINES, "a.py": CALLS, "b.py": CALLS}, "train.py"),  # which is unclear
        ({"train.py": "x = 1\nfor i in range(3): print(i)", "main.py": CALLS}, "train.py"),
        ({"train.py": TYPER, "main.py": "import train\ntrain.app()"}, "main.py"),
        ({"train.py": "import logging\nlogging.basicConfig()\n" + DEFINES, "main.py": CALLS},
         "main.py"),
        ({"train.py": "import k\nh = k.fit()", "util.py": DEFINES}, "train.py"),
        ({"train.py": "def f(:", "main.py": CALLS}, "train.py"),  # the run reports the error
        ({"go.py": GUARDED, "net.py": DEFINES}, "go.py"),
    ],
)  # fmt: skip
def test_program_of_a_folder_does_something(
    tmp_path: Path, files: dict[str, str], chosen: str
) -> None:
    fill(tmp_path, files)
    assert load_recipe(".", cwd=tmp_path).command == ("python", chosen)


def test_plan_says_which_script_was_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, {"train.py": DEFINES, "main.py": CALLS})
    [said] = plan(load_recipe(".", cwd=tmp_path)).warnings
    assert said.startswith("main.py runs, not train.py, which only defines things")
    assert said.endswith("--entry train.py")
    for entry in ("train.py", None):
        (tmp_path / "main.py").write_text(DEFINES)
        warnings = plan(load_recipe(".", cwd=tmp_path, entry=entry)).warnings
        assert warnings[0].startswith("train.py only defines functions and classes")
    (tmp_path / "train.py").write_text(GUARDED)
    assert plan(load_recipe(".", cwd=tmp_path)).warnings == ()


PROJECT = '[project]\nname = "churn"\nscripts = {churn-train = "churn.cli:main"}\n'


@pytest.mark.parametrize(
    ("entry", "command"),
    [
        ("churn.train", ("python", "-m", "churn.train")),
        ("churn", ("python", "-m", "churn")),
        ("src/churn/tool.py", ("python", "src/churn/tool.py")),
    ],
)
def test_modules_of_the_src_layout_run(
    tmp_path: Path, entry: str, command: tuple[str, ...]
) -> None:
    names = ("__init__", "__main__", "train", "tool")
    fill(tmp_path, {f"src/churn/{name}.py": "print(1)" for name in names})
    recipe = load_recipe(".", cwd=tmp_path, entry=entry)
    assert recipe.command == command
    assert recipe.env == ({"PYTHONPATH": "src"} if "-m" in command else {})


def test_script_of_the_project_is_an_entry_and_the_default(tmp_path: Path) -> None:
    fill(tmp_path, {"pyproject.toml": PROJECT, "src/churn/cli.py": "def main(): ...\n"})
    for entry in ("churn-train", None):
        recipe = load_recipe(".", cwd=tmp_path, entry=entry)
        assert recipe.command[:2] == ("python", "-c")
        assert "from churn.cli import main; sys.argv[0] = 'churn-train'" in recipe.command[2]
        assert recipe.env == {"PYTHONPATH": "src"}
    fill(tmp_path, {"pyproject.toml": PROJECT.replace("churn.cli", "other")})
    with pytest.raises(RunnerError, match="invalid entry 'churn-train'"):
        load_recipe(".", cwd=tmp_path, entry="churn-train")


def test_script_that_imports_from_src_finds_it(tmp_path: Path) -> None:
    fill(tmp_path, {"src/churn/__init__.py": "", "train.py": "import churn\nprint(churn)\n"})
    assert load_recipe(".", cwd=tmp_path).env == {"PYTHONPATH": "src"}
    (tmp_path / "train.yaml").write_text("env: {PYTHONPATH: lib}")
    assert load_recipe(".", cwd=tmp_path).env == {"PYTHONPATH": "lib"}
    fill(tmp_path, {"churn.py": "", "train.yaml": ""})
    assert load_recipe(".", cwd=tmp_path).env == {}


NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


@pytest.mark.parametrize("beside", ["net.py", "train.py", "src/net.py"])
def test_notebook_runs_beside_scripts_that_only_define_things(tmp_path: Path, beside: str) -> None:
    fill(tmp_path, {"work.ipynb": NOTEBOOK, beside: DEFINES})
    recipe = load_recipe(".", cwd=tmp_path)
    assert recipe.command[-1] == "work.ipynb"
    said = [each for each in plan(recipe).warnings if "runs, not" in each]
    assert bool(said) == ("/" not in beside)


def test_script_that_does_something_is_chosen_before_a_notebook(tmp_path: Path) -> None:
    fill(tmp_path, {"work.ipynb": NOTEBOOK, "fit.py": CALLS.replace("train", "net")})
    assert load_recipe(".", cwd=tmp_path).command == ("python", "fit.py")


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"src/train.py": GUARDED, "src/net.py": DEFINES}, "src/train.py"),
        ({"code/a/fit.py": CALLS, ".tox/x.py": GUARDED}, "code/a/fit.py"),
        ({"scripts/run.sh": "echo", "tests/test_a.py": GUARDED}, "scripts/run.sh"),
        ({"lib/net.py": DEFINES, "jobs/fit it.py": GUARDED}, "'jobs/fit it.py'"),
    ],
)
def test_fix_names_a_program_below_the_folder(
    tmp_path: Path, files: dict[str, str], entry: str
) -> None:
    fill(tmp_path, files)
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path)
    assert caught.value.fix == f"runner train {tmp_path} --entry {entry}"
    load_recipe(".", cwd=tmp_path, entry=entry.strip("'"))


@pytest.mark.parametrize(
    ("entry", "fix"),
    [
        ("train.py --lr 3 --x 'a b'", "--entry train.py -- --lr 3 --x 'a b'"),
        ("python train.py", "--entry train.py"),
        ("pkg.fit:main", "--entry pkg.fit"),
        ("pkg", "use one of its scripts: train.py, pkg/fit.py"),
        ("pkg.fti", "did you mean 'pkg/fit.py'?"),
        ("fit.R", "write a train.yaml with `command: Rscript fit.R`"),
    ],
)
def test_fix_of_an_invalid_entry_is_the_entry_that_works(
    tmp_path: Path, entry: str, fix: str
) -> None:
    fill(tmp_path, {"train.py": CALLS, "pkg/__init__.py": "", "pkg/fit.py": GUARDED, "fit.R": ""})
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path, entry=entry)
    assert caught.value.fix == fix


@pytest.mark.parametrize("entry", ["a" * 300, f"{'a' * 300}/b.py", f"../{'a' * 300}"])
def test_entry_that_is_too_long_for_a_file_is_refused(tmp_path: Path, entry: str) -> None:
    fill(tmp_path, {"run.py": CALLS})
    with pytest.raises(RunnerError, match="invalid entry"):
        load_recipe(".", cwd=tmp_path, entry=entry)
    (tmp_path / "train.yaml").write_text(f"command: python {entry}.py\n")
    with pytest.raises(RunnerError, match="no file"):
        load_recipe(".", cwd=tmp_path)
    (tmp_path / "train.yaml").write_text(f"command: python -m {'a' * 300}\n")
    assert load_recipe(".", cwd=tmp_path).command[:2] == ("python", "-m")


def test_absolute_entry_in_the_folder_is_corrected(tmp_path: Path) -> None:
    fill(tmp_path, {"pkg/fit.py": GUARDED})
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path, entry=str(tmp_path / "pkg" / "fit.py"))
    assert caught.value.fix == "--entry pkg/fit.py"


def test_script_that_cannot_be_read_is_refused_when_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {"train.py": CALLS})
    whole = Path.open

    def refuse(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "train.py":
            raise PermissionError(13, "Permission denied")
        return whole(path, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    recipe = load_recipe(".", cwd=tmp_path)
    assert recipe.notes == ()
    with pytest.raises(RunnerError, match="cannot read") as caught:
        pack_code(recipe)
    assert caught.value.code == "R-CODE-UNREADABLE"


def test_empty_script_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"train.py": "\n"})
    assert plan(load_recipe(".", cwd=tmp_path)).warnings[0].startswith("train.py is empty")


@pytest.mark.parametrize("name", ["train.yml", "Train.yaml", "train.yaml.txt"])
def test_recipe_under_another_name_is_named(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {"train.py": CALLS.replace("train", "net"), name: "command: python x.py\n"})
    [said] = load_recipe(".", cwd=tmp_path).notes
    assert said.startswith(f"{name} is not read")
    assert said.endswith(f"mv {tmp_path / name} {tmp_path / 'train.yaml'}")
    fill(tmp_path, {"train.yaml": "command: python train.py\n"})
    assert load_recipe(".", cwd=tmp_path).notes == ()


@pytest.mark.parametrize(
    ("command", "text", "mode", "fix"),
    [
        ("./fit.py --lr 3", "x = 1", 0o755, "command: python fit.py --lr 3"),
        ("./fit.py", "#!/usr/bin/env python3\nx = 1", 0o644, "command: python fit.py"),
        ("fit.py", "#!/usr/bin/env python3\nx = 1", 0o755, "command: python fit.py"),
        ("fit.sh", "echo", 0o755, "command: bash fit.sh"),
        ("./fit.sh", "#!/bin/sh\necho", 0o644, "command: sh fit.sh"),
        ("[./fit.sh, 'a b']", "echo", 0o644, "command: bash fit.sh 'a b'"),
    ],
)
def test_file_that_cannot_be_started_is_refused_with_its_interpreter(
    tmp_path: Path, command: str, text: str, mode: int, fix: str
) -> None:
    name = "fit.py" if "fit.py" in command else "fit.sh"
    fill(tmp_path, {name: text, "train.yaml": f"command: {command}\n"})
    (tmp_path / name).chmod(mode)
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path)
    assert caught.value.fix == fix
    fill(tmp_path, {"train.yaml": f"{fix}\n"})
    assert load_recipe(".", cwd=tmp_path).command


@pytest.mark.parametrize("command", ["./fit.sh", "sh fit.sh", "make fit", "./absent.sh"])
def test_program_that_can_be_started_is_accepted(tmp_path: Path, command: str) -> None:
    fill(tmp_path, {"fit.sh": "#!/bin/sh\necho", "train.yaml": f"command: {command}\n"})
    (tmp_path / "fit.sh").chmod(0o755)
    assert load_recipe(".", cwd=tmp_path).command == tuple(command.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"print 'x'\n", "line 1: Missing parentheses"),
        (b"x = 1\n<<<<<<< HEAD\n", "line 2: invalid syntax"),
        (b"# \xe9\nprint(1)\n", "encoding"),
        (b"\n\n\nx = '\xe9'\n", "line 4 has the byte 0xe9"),
        ("print(1)".encode("utf-16"), "probably UTF-16"),
        ("print(1)".encode("utf-16-le"), "probably UTF-16"),
        (b"# -*- coding: latin-1 -*-\n# \xe9\nprint(1)\n", None),
        (b"print(1)\n", None),
    ],
)
def test_script_that_cannot_be_parsed_is_named(
    tmp_path: Path, content: bytes, said: str | None
) -> None:
    (tmp_path / "fit.py").write_bytes(content)
    found = load_recipe(".", cwd=tmp_path).notes
    assert len(found) == bool(said)
    assert all(each.startswith("fit.py is not ") and said in each for each in found if said)


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"setup.py": CALLS, "net/__init__.py": "", "net/bpe.py": GUARDED,
          "projects/adder/adder.py": GUARDED}, "projects/adder/adder.py"),
        ({"setup.py": CALLS, "src/__init__.py": "", "src/train.py": GUARDED}, "src.train"),
        ({"noxfile.py": CALLS, "tests/test_a.py": GUARDED, "net/__init__.py": "",
          "net/auto.py": GUARDED}, "net/auto.py"),
        ({"conftest.py": CALLS, "a/net.py": DEFINES, "b/fit.py": CALLS, "c/main.py": CALLS},
         "c/main.py"),
        ({"setup.py": CALLS, "version.py": "V = 1", "net/__init__.py": "", "net/main.py": GUARDED},
         "net.main"),
        ({"submit_all.py": "import main_pretrain\n" + CALLS, "main_pretrain.py": GUARDED,
          "engine.py": DEFINES, "plot.py": CALLS}, "main_pretrain.py"),
    ],
)  # fmt: skip
def test_folder_without_a_program_names_one_below_and_no_tool(
    tmp_path: Path, files: dict[str, str], entry: str
) -> None:
    fill(tmp_path, files)
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path)
    assert caught.value.code == "R-RECIPE-COMMAND"
    assert caught.value.fix == f"runner train {tmp_path} --entry {entry}"
    load_recipe(".", cwd=tmp_path, entry=entry)
