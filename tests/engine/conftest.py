"""The real Pulumi engine, built once from Go modules. Without Go its tests are skipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine.stage import ROOT, Stage

_CANNOT = 75  # the exit code of tools/build_pulumi.sh where the CLI cannot be built


@pytest.fixture(scope="session")
def built() -> Path:
    """Return the folder of Pulumi's programs. The first call on a machine builds it in minutes."""
    found = subprocess.run(
        [ROOT / "tools/build_pulumi.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode == _CANNOT:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    assert found.returncode == 0, found.stderr
    return Path(found.stdout.strip())


@pytest.fixture
def stage(built: Path, tmp_path: Path) -> Stage:
    """Return an empty project with an empty stand-in of Azure."""
    return Stage(built, tmp_path)
