"""Processes of ours find our modules and those of the standard library, whatever the user has."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.flows.child_python import command_of
from tests.unit.source_tree import ROOT, assert_none, nodes, shown, sources

# Files of a user beside a script: of our names, and of modules that most programs import.
THEIRS = (
    *("json.py", "logging.py", "types.py", "queue.py", "batch_emulator.py", "tensorboard.py"),
    *("infra/__init__.py", "custom_image/__init__.py", "runner_infra/__init__.py"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose modules end the process that imports them."""
    for name in THEIRS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise SystemExit('imported {name}')")
    return tmp_path


def run(folder: Path, *command: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.defpath, "HOME": str(folder), "RUNNER_HOME": str(folder / "home")}
    env |= {"PYTHONPATH": path} if path is not None else {}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", [None, "", ".", "FOLDER"])
def test_child_imports_no_module_of_the_user(folder: Path, path: str | None) -> None:
    given = str(folder) if path == "FOLDER" else path
    done = run(folder, *command_of("batch_emulator", "--help"), path=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage:")


@pytest.fixture
def packages(folder: Path) -> Path:
    """Return a folder that contains `runner`, as one of `pip install --target` does."""
    copy = folder / "packages/runner/flows/child_python.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((ROOT / "runner/flows/child_python.py").read_bytes())
    return folder / "packages"


def run_copy(packages: Path, text: str, *words: str, path: str | None = None) -> str:
    """Write a module beside `runner`, run it as a child, and return what it prints."""
    (packages / "found_here.py").write_text(text)
    copy = str(packages / "runner/flows/child_python.py")
    done = run(packages.parent, sys.executable, "-I", copy, "found_here", *words, path=path)
    assert done.stderr == ""
    return done.stdout


def test_child_finds_packages_beside_runner(packages: Path) -> None:
    assert run_copy(packages, "import sys; print(sys.argv[1:])", "a", "--b") == "['a', '--b']\n"


def test_child_passes_the_variables_of_python_on(packages: Path) -> None:
    (packages.parent / "more").mkdir()
    (packages.parent / "more/theirs.py").write_text("print('theirs')")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', 'import theirs'])"
    assert run_copy(packages, code, path=str(packages.parent / "more")) == "theirs\n"


@pytest.mark.parametrize("verb", ["version", "--help", "recipe ls"])
def test_module_runner_imports_no_module_of_the_current_folder(folder: Path, verb: str) -> None:
    (folder / "types.py").unlink()  # Python itself imports it before `runner`
    done = run(folder, sys.executable, "-m", "runner", *verb.split())
    assert done.returncode == 0, done.stderr
    assert "imported" not in done.stdout + done.stderr


def test_modules_of_ours_are_started_in_one_way_only() -> None:
    """`sys.executable -m` searches the current folder and PYTHONPATH first."""
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in sources("runner", "infra")
        if "recipes" not in path.parts
        for node in nodes(path)
        if isinstance(node, ast.List | ast.Tuple)
        and any(ast.unparse(each) == "sys.executable" for each in node.elts)
        and any(isinstance(each, ast.Constant) and each.value == "-m" for each in node.elts)
    ]
    assert_none(found, "use child_python.command_of")
