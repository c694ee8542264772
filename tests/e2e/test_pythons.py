"""The commands of a clone with each supported Python that is on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ROOT, new_home
from tests.pythons import SUPPORTED, find_python
from tests.unit.source_tree import checkout


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("minor", SUPPORTED)
def test_clone_trains_and_is_clean_again_with_each_python(minor: int, tmp_path: Path) -> None:
    python = find_python(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} here, so it is not tried")
    clone = tmp_path / "clone"
    for path in checkout():
        target = clone / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target, follow_symlinks=False)
    before = files_of(clone)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNNER_", "AZURE_"))}
    environment = {**kept, "RUNNER_HOME": str(new_home(tmp_path / "home"))}

    def make(*words: str) -> str:
        done = subprocess.run(
            ["make", "-C", str(clone), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        said = make("setup", f"PYTHON={python}")
        assert f"creating .venv with Python 3.{minor}." in said
        said = make("train", "ARGS=--set subset=2000 --set epochs=1", f"PYTHON={python}")
        assert "creating .venv" not in said
        assert "succeeded" in said
        version = "import sys; print(sys.version_info.minor)"
        command = [clone / ".venv/bin/python", "-c", version]
        assert int(subprocess.run(command, capture_output=True, check=True).stdout) == minor
    finally:
        make("clean")
    assert files_of(clone) == before
    home = str(tmp_path / "home")
    running = [
        words for each in psutil.process_iter(["cmdline"]) if (words := each.info["cmdline"])
    ]
    assert not [words for words in running if home in " ".join(words)], "processes still run"


def test_newest_and_oldest_python_are_those_of_the_project() -> None:
    said = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    assert f"(3, {SUPPORTED[0]}) <= sys.version_info[:2] <= (3, {SUPPORTED[-1]})" in said
    assert sys.version_info.minor in SUPPORTED
