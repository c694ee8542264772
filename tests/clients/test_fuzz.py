"""Schemathesis drives every route of the service's description: no 5xx but 501."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clients.environments import python_of
from tests.contract.description import FOLDER, needed
from tests.contract.server import ACCOUNT, KEY, Running, Things, serving

pytestmark = needed

HERE = Path(__file__).parent
_NEVER_S = 1e6


@pytest.fixture
def stage(tmp_path: Path) -> Generator[tuple[Running, str]]:
    """An emulator with a pool, a node, a job and a finished task, in which no further node boots.

    So nothing that is made up here is ever run.
    """
    with serving(tmp_path / "data", dedicated_cores=64, spot_cores=64) as running:
        things = Things(running.client)
        things.pool(id="pool", target_dedicated_nodes=1)
        [node] = things.wait_nodes("pool", 1)
        things.job("pool", id="job")
        things.wait_task("job", things.task("job", id="task"))
        object.__setattr__(running.emulator.account.limits, "boot_s", _NEVER_S)
        existing = f"poolId=pool nodeId={node.id} jobId=job taskId=task filePath=stdout.txt"
        yield running, existing


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "limit_s"), [("fuzzing", 60), ("coverage", 60)])
def test_no_request_causes_a_server_error(
    stage: tuple[Running, str], tmp_path: Path, phase: str, limit_s: int
) -> None:
    running, existing = stage
    python = python_of("schemathesis", "schemathesis==4.32.5", "requests>=2.32")
    [description] = FOLDER.glob("*-stable/BatchService.json")
    counts = tmp_path / "counts.json"
    options = ["--url", running.url, "--checks", "no_server_error", "--phases", phase]
    options += ["--max-time", str(limit_s), "--seed", str(limit_s), "--max-examples", "20"]
    options += ["--suppress-health-check", "all", "--no-color", "--warnings", "off"]
    done = subprocess.run(
        [python.with_name("schemathesis"), "run", description, *options],
        cwd=tmp_path,
        env={
            **os.environ,
            "AZURE_BATCH_ACCOUNT": ACCOUNT,
            "AZURE_BATCH_ACCESS_KEY": KEY,
            "EXISTING": existing,
            "FUZZ_COUNTS": str(counts),
            "NO_PROXY": "*",
            "PYTHONPATH": str(HERE),
            "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        },
        capture_output=True,
        text=True,
        timeout=limit_s + 120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    statuses = {int(status): count for status, count in json.loads(counts.read_text()).items()}
    assert statuses, "requests were sent"
    assert statuses.get(403, 0) == 0, "every request gets past the signature"
    assert {200, 400} <= set(statuses), statuses
    assert running.emulator.healthy
