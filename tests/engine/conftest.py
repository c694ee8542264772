"""The real engine, built once from Go modules; without Go its tests skip and say so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine.stage import ROOT, Stage

_CANNOT = 75  # the exit code of tools/build_pulumi.sh where the CLI cannot be built


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of Pulumi's own programs; the first call on a machine builds it, some minutes."""
    found = subprocess.run(
        [ROOT / "tools/build_pulumi.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode == _CANNOT:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    assert found.returncode == 0, found.stderr
    return Path(found.stdout.strip())


@pytest.fixture
def stage(built: Path, tmp_path: Path) -> Stage:
    """An empty project with an empty Azure."""
    return Stage(built, tmp_path)
