"""Schemathesis drives every route of the service's description: no 5xx but 501.

The number of requests is fixed: a time limit leaves out routes on a slow machine. Fuzzing sends 5
examples per route: `PROOF_FUZZ_EXAMPLES=N`, 20 in `make proof`. The coverage phase generates 24,000
requests, and sends the first 5 of each route and one in 12 of the others: `PROOF_FUZZ_SHARE=N`, all
in `make proof`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clients.environments import python_of
from tests.contract.description import FOLDER, STABLE, description, needed
from tests.contract.server import ACCOUNT, KEY, Running, Things, serving

pytestmark = needed

HERE = Path(__file__).parent
SHARE = int(os.environ.get("PROOF_FUZZ_SHARE", "12"))
EXAMPLES = int(os.environ.get("PROOF_FUZZ_EXAMPLES", "5"))
SEED = 60
_NEVER_S = 1e6


@pytest.fixture
def stage(tmp_path: Path) -> Generator[tuple[Running, str]]:
    """Yield an emulator with a pool, a node, a job and a finished task. No further node boots.

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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", ["fuzzing", "coverage"])
def test_no_request_causes_a_server_error(
    stage: tuple[Running, str], tmp_path: Path, phase: str
) -> None:
    running, existing = stage
    python = python_of("schemathesis", "schemathesis==4.32.5", "requests>=2.32")
    [document] = FOLDER.glob("*-stable/BatchService.json")
    counts = tmp_path / "counts.json"
    options = ["--url", running.url, "--checks", "no_server_error", "--phases", phase]
    options += ["--seed", str(SEED), "--max-examples", str(EXAMPLES)]
    options += ["--suppress-health-check", "all", "--no-color", "--warnings", "off"]
    done = subprocess.run(
        [python.with_name("schemathesis"), "run", document, *options],
        cwd=tmp_path,
        env={
            **os.environ,
            "AZURE_BATCH_ACCOUNT": ACCOUNT,
            "AZURE_BATCH_ACCESS_KEY": KEY,
            "EXISTING": existing,
            "FUZZ_COUNTS": str(counts),
            "FUZZ_SHARE": str(SHARE if phase == "coverage" else 1),
            "NO_PROXY": "*",
            "PYTHONPATH": str(HERE),
            "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        },
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    sent = json.loads(counts.read_text())
    assert len(sent["routes"]) == len(description(STABLE).operations), "every route was driven"
    statuses = {int(status) for status in sent["statuses"]}
    assert 403 not in statuses, "every request gets past the signature"
    assert {200, 400} <= statuses
    assert running.emulator.healthy
