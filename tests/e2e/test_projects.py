"""Projects as people have them: which packages and which Python a run gets, or what refuses it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli
from tests.pythons import SUPPORTED, find_task_python

PRINT = "import sys\nprint('python', '%d.%d' % sys.version_info[:2])\n"


def write(cli: Cli, name: str, files: Mapping[str, str | bytes]) -> Path:
    """Write a project in a folder below that of the commands."""
    for path, content in {"train.py": PRINT, **files}.items():
        target = cli.cwd / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return cli.cwd / name


def make_wheel(path: Path, version: str) -> None:
    """Write a wheel with a module `one` that knows its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = f"one-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("one.py", f"VERSION = {version!r}\n")
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: one\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "one.py,,\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"requirements.txt": "six==1.16.0\r\n".encode("utf-16")}, "is not UTF-8 text"),
        ({"requirements.txt": "../shared_pkg\n"}, "../shared_pkg is outside"),
        ({"requirements.txt": "six\nnumpy=1.26\n"}, "line 2, column 6"),
        ({"requirements.txt": "-r base.txt\n"}, "no file or folder base.txt"),
        ({"requirements.txt": "./one-1-py3-none-any.whl\n"}, "no file or folder"),
        ({"pyproject.toml": '[project]\nname = "x"\nrequires-python = "<3"\n'}, "no Python"),
        ({"poetry.lock": "<<<<<<< HEAD\n"}, "cannot read poetry.lock"),
        ({"environment.yml": "dependencies: [{pip: [-e ../lib]}]\n"}, "../lib is outside"),
        ({"setup.py": "setup(install_requires=read())\n"}, "not known before it is built"),
    ],
)  # fmt: skip
def test_text_is_refused_alike_by_check_dry_run_and_train(
    own_cli: Cli, files: dict[str, str | bytes], words: str
) -> None:
    folder = write(own_cli, "project", files)
    said: set[str] = set()
    for command in (("recipe", "check", folder), ("train", folder, "--dry-run"), ("train", folder)):
        done = own_cli.run(*command)
        assert done.returncode == 2, done.stdout + done.stderr
        said.add(done.stderr)
    assert len(said) == 1, "one function finds it"
    assert words in said.pop()
    status = own_cli.run("local", "status", "-o", "json")
    assert '"running": true' not in status.stdout, "no service was started"


@pytest.mark.parametrize("form", ["pep723", "pyproject", "version_file", "pipfile"])
def test_run_gets_the_python_that_the_project_asks_for(cli: Cli, form: str) -> None:
    own = sys.version_info[1]
    other = next((n for n in reversed(SUPPORTED) if n > own and find_task_python(n)), None)
    if other is None:
        pytest.skip("there is no newer Python here that tasks can run")
    forms: dict[str, dict[str, str]] = {
        "pep723": {"train.py": f'# /// script\n# requires-python = ">=3.{other}"\n# ///\n{PRINT}'},
        "pyproject": {
            "pyproject.toml": f'[project]\nname = "x"\nrequires-python = ">=3.{other}"\n'
        },
        "version_file": {".python-version": f"3.{other}\n"},
        "pipfile": {"Pipfile": f'[requires]\npython_version = "3.{other}"\n'},
    }
    run = cli.json("train", write(cli, form, forms[form]))
    assert run["status"] == "succeeded"
    assert f"python 3.{other}" in cli.ok("logs", run["run_id"])


def test_python_that_nobody_has_fails_the_run_instead_of_another(cli: Cli) -> None:
    files = {"pyproject.toml": '[project]\nname = "x"\nrequires-python = ">=3.39"\n'}
    done = cli.run("train", write(cli, "future", files), env={"UV_OFFLINE": "1"})
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "Python >=3.39 is not on the node" in said
    assert "python 3." not in said.replace("python 3.39", "")


@pytest.mark.parametrize("kind", ["uv.lock", "Pipfile.lock", "pylock.toml"])
def test_locked_version_is_installed(cli: Cli, kind: str) -> None:
    wheel = "wheels/one-1.5-py3-none-any.whl"
    locks = {
        "uv.lock": f"""\
version = 1
requires-python = ">=3.8"
[[package]]
name = "one"
version = "1.5"
source = {{ path = "{wheel}" }}
[[package]]
name = "x"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "one" }}]
""",
        "Pipfile.lock": f'{{"_meta": {{}}, "default": {{"one": {{"file": "./{wheel}"}}}}}}',
        "pylock.toml": f"""\
lock-version = "1.0"
[[packages]]
name = "one"
archive = {{ path = "{wheel}", hashes = {{}} }}
""",
    }
    files = {kind: locks[kind], "train.py": "import one\nprint('one', one.VERSION)\n"}
    folder = write(cli, kind.partition(".")[0], files)
    make_wheel(folder / wheel, "1.5")
    assert f"packages  {kind}" in cli.ok("train", folder, "--dry-run")
    run = cli.json("train", folder)
    assert "one 1.5" in cli.ok("logs", run["run_id"])


def test_requirements_beside_the_entry_are_installed(cli: Cli) -> None:
    files = {
        "requirements.txt": "--no-index\nmissing-package-of-the-root\n",
        "examples/cats/main.py": "import one\nprint('one', one.VERSION)\n",
        "examples/cats/requirements.txt": "./wheels/one-2.0-py3-none-any.whl\n",
    }
    folder = write(cli, "examples", files)
    make_wheel(folder / "wheels/one-2.0-py3-none-any.whl", "2.0")
    run = cli.json("train", folder, "--entry", "examples/cats/main.py")
    assert "one 2.0" in cli.ok("logs", run["run_id"])
