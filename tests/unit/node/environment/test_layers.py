"""The environment of one task, over the packages that the tasks of a node share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.node.environment.building import add_pip
from runner.node.environment.virtual_env import (
    installed_packages,
    private_layer,
    shared_environment,
)

_SCRIPT = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
import sys, tool
print(sys.prefix, tool.__file__)
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return an environment with a package as frameworks are: a path file, programs and data."""
    folder = tmp_path / "shared"
    options = ["--without-pip", "--symlinks"]
    subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in ("tool", "spread/first", "behind", "tool-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / "tool" / "__init__.py").touch()
    metadata = "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n"
    (packages / "tool-1.0.dist-info" / "METADATA").write_text(metadata)
    (packages / "behind" / "found.py").touch()
    (packages / "tool.pth").write_text("behind\nimport sys; sys.of_path_file = True\n")
    (folder / "bin" / "tool").write_text(_SCRIPT)
    (folder / "bin" / "tool").chmod(0o755)
    (folder / "bin" / "binary").write_bytes(b"\x7fELF\0")
    (folder / "share" / "tool").mkdir(parents=True)
    (folder / "share" / "tool" / "data").write_text("data")
    add_pip(folder)
    return folder


def test_layer_has_the_packages_programs_and_data_below_it(shared: Path, tmp_path: Path) -> None:
    layer = private_layer(shared, tmp_path / "layer")
    done = subprocess.run([str(layer / "bin" / "tool")], capture_output=True, text=True, check=True)
    prefix, file = done.stdout.split()
    assert prefix == str(layer)
    assert file.startswith(str(shared))
    assert (layer / "bin" / "binary").is_symlink()
    assert (layer / "share" / "tool" / "data").read_text() == "data"
    assert shared_environment(layer) == shared
    assert installed_packages(layer) == {"tool": "1.0"}


def test_packages_of_a_layer_come_first_and_share_namespaces(shared: Path, tmp_path: Path) -> None:
    layer = private_layer(shared, tmp_path / "layer")
    [packages] = layer.glob("lib/python*/site-packages")
    (packages / "spread" / "second").mkdir(parents=True)
    (packages / "tool.py").touch()
    code = (
        "import found, json, spread.first, spread.second, sys, sysconfig, tool\n"
        "print(json.dumps([tool.__file__, sys.of_path_file, sysconfig.get_path('purelib')]))"
    )
    done = subprocess.run(
        [str(layer / "bin" / "python"), "-c", code], capture_output=True, check=True
    )
    file, of_path_file, installs = json.loads(done.stdout)
    assert (file, of_path_file, installs) == (str(packages / "tool.py"), True, str(packages))


def test_pip_of_a_layer_installs_itself_there(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("ensurepip")
    before = sorted(shared.rglob("*"))
    layer = private_layer(shared, tmp_path / "layer")
    listed = subprocess.run(
        [str(layer / "bin" / "pip"), "list", "--format", "json"], capture_output=True, check=True
    )
    assert {"tool", "pip"} <= {each["name"] for each in json.loads(listed.stdout)}
    left = [path for path in sorted(shared.rglob("*")) if "__pycache__" not in path.parts]
    assert left == [path for path in before if "__pycache__" not in path.parts]


@pytest.mark.attack
def test_link_at_the_place_of_a_layer_is_not_followed(shared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (tmp_path / "layer").symlink_to(other)
    private_layer(shared, tmp_path / "layer")
    assert [each.name for each in other.iterdir()] == ["kept"]


def test_program_that_imports_pip_gets_the_real_one(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("ensurepip")
    layer = private_layer(shared, tmp_path / "layer")
    code = (
        "import pip\nfrom pip._internal.cli.main import main\n"
        "print(pip.__version__, pip.__file__)\nassert main(['list']) == 0\n"
    )
    done = subprocess.run(
        [str(layer / "bin" / "python"), "-c", code], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert str(layer) in done.stdout.decode()
    assert not list(shared.glob("lib/python*/site-packages/pip/_internal"))


def test_pip_of_each_name_is_that_of_the_layer(shared: Path, tmp_path: Path) -> None:
    layer = private_layer(shared, tmp_path / "layer")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("pip", "pip3", f"pip{version}"):
        words = [str(layer / "bin" / name), "--version"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert str(layer) in done.stdout
    # The environment is that of one run, so `--user` has no other place.
    words = [str(layer / "bin" / "pip"), "install", "--user", "--no-index", "nothing-at-all"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "No matching distribution" in done.stderr
