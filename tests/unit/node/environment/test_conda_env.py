"""Environments that micromamba builds, with a program that stands for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.node.environment.conda_env import CondaEnvironment
from runner.node.environment.virtual_env import private_layer
from runner.node.failures import StageFailedError

# Creates a prefix with a Python, a module and a program, as `micromamba create` does.
MICROMAMBA = f"""\
#!{sys.executable}
import os, pathlib, shutil, sys, time
words = sys.argv[1:]
print("micromamba", *words)
given = dict(zip(words, words[1:]))
prefix, text = pathlib.Path(given["--prefix"]), pathlib.Path(given["--file"]).read_text()
if "broken" in text:
    sys.exit("nothing provides broken")
if "no-python" in text:
    sys.exit()
name = "python%d.%d" % sys.version_info[:2]
(prefix / "bin").mkdir()
shutil.copy2(os.path.realpath(sys.executable), prefix / "bin" / name)
(prefix / "bin/python").symlink_to(name)
(prefix / "lib" / name / "site-packages").mkdir(parents=True)
for entry in pathlib.Path(sys.base_prefix, "lib", name).iterdir():
    if entry.name != "site-packages":
        (prefix / "lib" / name / entry.name).symlink_to(entry)
(prefix / "lib" / name / "from_conda.py").write_text("NAME = 'conda'")
if "-e ." in text:  # as pip installs it; `pip uninstall` removes it
    packages = prefix / "lib" / name / "site-packages"
    (packages / "own-1.0.dist-info").mkdir()
    url = '{{"url": "file://%s", "dir_info": {{"editable": true}}}}' % os.getcwd()
    (packages / "own-1.0.dist-info/direct_url.json").write_text(url)
    pip = prefix / "lib" / name / "pip"  # a Python of Debian does not search site-packages
    pip.mkdir()
    (pip / "__main__.py").write_text(
        "import pathlib, shutil, sys\\n"
        "assert sys.argv[1:3] == ['uninstall', '--yes'], sys.argv\\n"
        "folder = pathlib.Path(__file__).parents[1] / 'site-packages'\\n"
        "shutil.rmtree(folder / (sys.argv[-1] + '-1.0.dist-info'))\\n"
    )
(prefix / "bin/tool").write_text("#!/bin/sh\\necho tool")
(prefix / "bin/tool").chmod(0o755)
(prefix / "built").write_text(str(time.time_ns()))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program, which is on PATH."""
    path = tmp_path / "programs/micromamba"
    path.parent.mkdir()
    path.write_text(MICROMAMBA)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder with an environment.yml."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "environment.yml").write_text("dependencies: [python, numpy]\n")
    return folder


def build(shared: Path, code: Path) -> Path:
    """Return the environment of the file in `code`."""
    builder = CondaEnvironment(shared, lambda *_: None, lambda: None)
    return builder.ensure(code, "environment.yml", "c0de")


def test_environment_has_packages_and_programs_of_conda(
    tmp_path: Path, program: Path, code: Path
) -> None:
    shared = tmp_path / "shared"
    environment = build(shared, code)
    [built] = shared.glob("runner/envs/*.conda/built")
    when = built.read_text()
    assert build(shared, code) == environment
    assert built.read_text() == when
    # A task uses it through a layer of its own.
    layer = private_layer(environment, tmp_path / "layer")
    asked = [layer / "bin/python", "-c", "import from_conda, sys; print(sys.prefix)"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(layer)
    assert subprocess.check_output([layer / "bin/tool"], text=True) == "tool\n"
    assert sorted(path.name for path in (shared / "runner/envs").iterdir() if path.is_dir()) == [
        environment.name,
        f"{environment.name}.conda",
    ]


def test_each_task_has_the_editable_package_of_its_own_code(
    tmp_path: Path, program: Path, code: Path
) -> None:
    """The folder of the task that built the environment is deleted with the task."""
    (code / "environment.yml").write_text("dependencies: [python, pip, {pip: [-e .]}]\n")
    shared = tmp_path / "shared"
    uv = shared / "runner/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'#!/bin/sh\necho "$@" >> {shared}/uv.log\n')
    uv.chmod(0o755)
    for name in ("first", "second"):
        own = tmp_path / name
        shutil.copytree(code, own)
        builder = CondaEnvironment(shared, lambda *_: None, lambda: None)
        layer = builder.layer_of(build(shared, own), tmp_path / f"layer-{name}", own)
        last = (shared / "uv.log").read_text().splitlines()[-1]
        python = layer / "bin/python"
        assert last == f"pip install --python {python} --offline --no-deps -e {own}"
    assert not list(shared.glob("runner/envs/*.conda/lib/python*/site-packages/own*"))
    assert len((shared / "uv.log").read_text().splitlines()) == 2


def test_changed_file_is_another_environment(tmp_path: Path, program: Path, code: Path) -> None:
    first = build(tmp_path / "shared", code)
    (code / "environment.yml").write_text("dependencies: [python, numpy=2]\n")
    assert build(tmp_path / "shared", code) != first


@pytest.mark.parametrize(
    ("text", "message"),
    [("broken", "nothing provides broken"), ("no-python", r"environment\.yml installs no Python")],
)
def test_failed_build_leaves_nothing(
    tmp_path: Path, program: Path, code: Path, text: str, message: str
) -> None:
    (code / "environment.yml").write_text(f"dependencies: [{text}]\n")
    with pytest.raises(StageFailedError, match=message) as caught:
        build(tmp_path / "shared", code)
    assert caught.value.code == "EnvironmentFailed"
    assert list((tmp_path / "shared/runner/envs").iterdir()) == []


def test_rest_of_a_killed_build_is_replaced(tmp_path: Path, program: Path, code: Path) -> None:
    environment = build(tmp_path / "shared", code)
    (environment / "bin/python").unlink()
    (environment.with_name(f"{environment.name}.mamba")).mkdir()
    assert build(tmp_path / "shared", code) == environment
    assert (environment / "bin/python").exists()


def test_node_without_micromamba_says_what_to_do(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageFailedError, match=r"micromamba is on the PATH.*requirements\.txt"):
        build(tmp_path / "shared", code)


def test_micromamba_that_the_runner_linked_on_the_node_is_used(
    tmp_path: Path, program: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = tmp_path / "shared/runner/bin/micromamba"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(program)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert (build(tmp_path / "shared", code) / "bin/tool").exists()
