"""Every generation of clients runs a long scenario, unmodified, each in an environment of its own.

What the emulator answers 501 to must be a route without a handler or a property that the coverage
page names as refused, so the check tightens by itself as operations are written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import python_of
from tests.contract.coverage_page import is_named_as_missing
from tests.contract.server import ACCOUNT, KEY, Running, serving

HERE = Path(__file__).parent
_LIMIT_S = 200


def run(python: Path, script: str, running: Running) -> list[dict[str, Any]]:
    """The lines that a scenario printed; fails when it failed."""
    account = {
        "AZURE_BATCH_ENDPOINT": running.url,
        "AZURE_BATCH_ACCOUNT": ACCOUNT,
        "AZURE_BATCH_ACCESS_KEY": KEY,
    }
    done = subprocess.run(
        [str(python), str(HERE / script)],
        env={**os.environ, **account, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(lines: list[dict[str, Any]], least: int) -> None:
    """The scenario went to its end, and what it missed is known to be missing."""
    missed = {line["missing"] for line in lines if "missing" in line}
    assert [name for name in missed if not is_named_as_missing(name)] == []
    assert lines[-1]["checks"] >= least


@pytest.mark.parametrize(
    ("version", "api_version"),
    [
        pytest.param("9.0.0", "2020-03-01.11.0", marks=pytest.mark.slow),
        ("10.0.0", "2020-09-01.12.0"),
        ("14.2.0", "2024-02-01.19.0"),
    ],
)
def test_azure_batch_of_the_msrest_days(tmp_path: Path, version: str, api_version: str) -> None:
    python = python_of(f"azure-batch-{version}", f"azure-batch=={version}")
    with serving(tmp_path) as running:
        lines = run(python, "track1.py", running)
    assert {"version": version, "api_version": api_version} in lines
    judge(lines, least=60)


@pytest.mark.slow
def test_az_batch(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        lines = run(python_of("azure-cli", "azure-cli==2.91.0"), "az.py", running)
    judge(lines, least=30)


def test_azure_batch_of_today(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        lines = run(Path(sys.executable), "track2.py", running)
    judge(lines, least=25)
