"""Fixtures with the real Pulumi engine, built once from Go modules; skipped without Go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.engine.azure_native.__main__ import FOR_STAGES
from tests.engine.deployed import DeployedOnce
from tests.engine.stage import ROOT, ClosingServer, Stage

_CANNOT = 75  # exit code of tools/build_pulumi.sh if the CLI cannot be built


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


@pytest.fixture(scope="session")
def provider() -> Generator[Callable[[Path], int]]:
    """Return a function that starts the stand-in of Azure in a folder and returns its port."""
    command = [sys.executable, "-m", "tests.engine.azure_native", FOR_STAGES]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C of an engine must not end it
    ) as process:

        def start(folder: Path) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield start
        process.terminate()


@pytest.fixture
def stage(
    built: Path, tmp_path: Path, provider: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> Stage:
    """Return an empty project with an empty stand-in of Azure.

    Its engines attach to a running provider, unless the test sets `port` to None.
    """
    monkeypatch.setattr("pulumi.automation._stack.LanguageServer", ClosingServer)
    return Stage(built, tmp_path, provider(tmp_path / "azure"))


@pytest.fixture(scope="session")
def deployed_once(
    built: Path, provider: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory
) -> DeployedOnce:
    """Return the deployed stages, which many tests start from."""
    return DeployedOnce(
        lambda folder: Stage(built, folder, provider(folder / "azure")), tmp_path_factory
    )
