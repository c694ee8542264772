"""`make setup` and `make clean`: which interpreter is used, and what is said if one cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runner.flows.child_python import command_of

ROOT = Path(__file__).parents[3]
NOBODY = 65534
# Runs the code of `python -c CODE` in this interpreter, which then says that it is another one.
PRETENDER = """\
#!{python}
import collections, platform, sys
Version = collections.namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version({version}, "final", 0)
sys.version = "{text}"
platform.python_version = lambda: "{text}"
platform.python_implementation = lambda: "{name}"
if {broken!r} in sys.argv[2]:
    raise ImportError("No module named {broken}")
exec(sys.argv[2])
"""


@pytest.fixture
def clone() -> Iterator[Path]:
    """Yield a folder with the files that the set-up reads first, which every user can reach."""
    with tempfile.TemporaryDirectory(prefix="clone-") as name:
        Path(name).chmod(0o755)
        yield write_clone(Path(name))


def write_clone(folder: Path) -> Path:
    for name in ("tools", "batch_emulator", "requirements"):
        (folder / name).mkdir()
    projects = ("pyproject.toml", "batch_emulator/pyproject.toml")
    for name in (*projects, "Makefile", "tools/setup.sh", "tools/clean.sh"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "requirements/dev.lock").touch()
    return folder


@pytest.fixture
def pretend(tmp_path: Path) -> Callable[..., Path]:
    def write(
        path: str, version: str = "3.9.2", name: str = "CPython", broken: str = "no module"
    ) -> Path:
        script = tmp_path / path
        script.parent.mkdir(exist_ok=True)
        numbers = ", ".join(version.split("."))
        script.write_text(
            PRETENDER.format(
                python=sys.executable, version=numbers, text=version, name=name, broken=broken
            )
        )
        script.chmod(0o755)
        return script

    return write


def make(
    clone: Path,
    *words: str,
    path: Path | None = None,
    variables: Mapping[str, str] | None = None,
    user: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `make` in the folder, with the programs of `path` and of the system."""
    tools = "/usr/bin:/bin"
    environment = {"PATH": f"{path}:{tools}" if path else tools, "HOME": str(clone)}
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(clone), *words],
        env={**environment, "LC_ALL": "C", **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
        user=user,
        group=user,
    )


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        ("3.9.2", "CPython", "it is Python 3.9.2"),
        ("2.7.18", "CPython", "it is Python 2.7.18"),
        ("3.15.0", "CPython", "it is Python 3.15.0"),
        ("3.11.15", "PyPy", "it is PyPy 3.11.15, and the packages are built for CPython only"),
    ],
)
def test_asked_python_is_refused_and_never_replaced(
    clone: Path, pretend: Callable[..., Path], version: str, name: str, why: str
) -> None:
    asked = pretend("other/python", version, name)
    pretend("bin/python3.13", "3.13.0")
    done = make(clone, "setup", f"PYTHON={asked}", path=asked.parents[1] / "bin")
    assert done.stderr.startswith(f"error[R-SETUP-PYTHON]: {asked} cannot be used; ")
    assert f"\n  why: {why}\n  fix: " in done.stderr
    assert not (clone / ".venv").exists()


def test_missing_asked_python_is_named(clone: Path) -> None:
    done = make(clone, "setup", "PYTHON=python3.99")
    assert "error[R-SETUP-PYTHON]: python3.99 cannot be used" in done.stderr
    assert "why: there is no such program" in done.stderr


def test_unsuitable_default_python_is_replaced_with_a_word(
    clone: Path, pretend: Callable[..., Path]
) -> None:
    default = pretend("bin/python3", "3.9.2")
    pretend("bin/python3.13", "3.13.0", broken="ensurepip")
    done = make(clone, "setup", path=default.parent)
    assert "python3 cannot be used: it is Python 3.9.2" in done.stderr
    assert "error[R-SETUP-VENV]: python3.13 cannot create virtual environments" in done.stderr
    if shutil.which("apt-get"):
        assert "fix: sudo apt-get install python3.13-venv, or name another Python" in done.stderr


def make_environment(clone: Path, python: str = sys.executable) -> None:
    """Pretend that `make setup` has finished with this interpreter."""
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to(python)
    (clone / ".venv/.ready").touch()


def test_environment_is_kept_for_its_own_python(clone: Path) -> None:
    make_environment(clone)
    # The interpreter of these tests is that of a virtual environment, too.
    for words in ([], [f"PYTHON={sys.executable}"], ["PYTHON=" + os.path.realpath(sys.executable)]):
        assert make(clone, "-n", "setup", *words).stdout.count("tools/setup.sh") == 0


def test_environment_is_renewed_for_an_asked_python(
    clone: Path, pretend: Callable[..., Path]
) -> None:
    make_environment(clone)
    asked = pretend("other/python", "3.9.2")
    assert "R-SETUP-PYTHON" in make(clone, "setup", f"PYTHON={asked}").stderr
    by_variable = make(clone, "-n", "setup", variables={"PYTHON": str(asked)})
    assert f'tools/setup.sh "{asked}" .venv asked' in by_variable.stdout


def test_environment_of_a_removed_python_is_renewed(clone: Path, tmp_path: Path) -> None:
    make_environment(clone, str(tmp_path / "removed/python3"))
    assert 'tools/setup.sh "python3" .venv' in make(clone, "-n", "setup").stdout


@pytest.mark.parametrize("closed", [".", ".venv"])
def test_closed_folder_is_named_with_its_owner(clone: Path, closed: str) -> None:
    (clone / ".venv").mkdir()
    clone.chmod(0o777)
    (clone / closed).chmod(0o555)
    root = os.geteuid() == 0
    # Root can write everywhere, so the command runs as another user, who owns nothing here.
    done = make(clone, "setup", user=NOBODY if root else None)
    where = clone if closed == "." else clone / ".venv"
    assert f"error[R-SETUP-FOLDER]: cannot write to {where}\n" in done.stderr
    assert ("why: it belongs to root" if root else "why: its permissions") in done.stderr
    fix = "copy the clone" if closed == "." else "sudo chown -R"
    assert f"fix: {fix}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_sudo_is_refused_in_the_clone_of_a_user(clone: Path) -> None:
    os.chown(clone, NOBODY, NOBODY)
    refused = make(clone, "setup", variables={"SUDO_USER": "mary"})
    assert "error[R-SETUP-SUDO]: make was started with sudo" in refused.stderr
    assert "which belongs to mary" in refused.stderr
    assert "fix: make setup\n" in refused.stderr
    os.chown(clone, 0, 0)  # as in a container of CI
    done = make(clone, "setup", "PYTHON=python3.99", variables={"SUDO_USER": "mary"})
    assert "R-SETUP-PYTHON" in done.stderr


MADE = ("dist", ".cache", "outputs", "runner/core/__pycache__", "runner.egg-info", ".hypothesis")
KEPT = ("runner/core/home.py", ".git/__pycache__/object", "notes.txt")


def test_clean_removes_what_make_made_and_nothing_else(clone: Path) -> None:
    for name in MADE:
        (clone / name).mkdir(parents=True)
        (clone / name / "file").touch()
    for name in KEPT:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    make_environment(clone)
    done = make(clone, "clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert not [name for name in (*MADE, ".venv") if (clone / name).exists()]
    assert [name for name in KEPT if (clone / name).exists()] == list(KEPT)


def test_clean_stops_the_services_of_its_environment(clone: Path) -> None:
    make_environment(clone)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), clone / ".venv")
    (clone / ".venv/lib").symlink_to(Path(sys.prefix, "lib"))
    runner = clone / ".venv/bin/runner"
    runner.write_text(f'#!/bin/sh\necho "$RUNNER_HOME $*" >> {clone}/called\n', encoding="utf-8")
    runner.chmod(0o755)
    _, *words = command_of("batch_emulator", "--account", "a", "--port", "0", "--data-dir")
    home = clone / "home"
    with subprocess.Popen(
        [clone / ".venv/bin/python", *words, home / "local/batch"],
        env={**os.environ, "BATCH_EMULATOR_KEY": "a2V5"},
        stdout=subprocess.PIPE,
    ) as emulator:
        assert emulator.stdout
        assert b"listening" in emulator.stdout.readline()
        make(clone, "clean")
        emulator.kill()
    assert (clone / "called").read_text(encoding="utf-8") == f"{home} local down\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files that a user cannot remove")
def test_clean_names_files_that_sudo_left(clone: Path) -> None:
    (clone / "outputs/run").mkdir(parents=True)
    (clone / "outputs/run/model.bin").touch()
    clone.chmod(0o777)
    done = make(clone, "clean", user=NOBODY)
    assert "error[R-CLEAN]: cannot remove everything that make made" in done.stderr
    assert "sudo chown -R " in done.stderr
    assert (clone / "outputs/run/model.bin").exists()
