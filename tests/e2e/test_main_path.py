"""One warm `runner train mnist` executes the files of docs/architecture.md, and few others."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import new_home
from tests.unit.architecture_page import main_path
from tools.executed_files import measure

MOST_CLIENT, MOST_AGENT = 45, 36  # docs/decisions/0014-size-of-the-product.md
# Where a poll meets the run before a node has taken it.
WHILE_QUEUED = {
    "runner/azure/batch/job_control.py",
    "runner/azure/batch/pools.py",
    "runner/core/job_moves.py",
    "runner/flows/runs/stuck.py",
}


# Where the command takes more than a second, as on a busy machine.
AFTER_A_SECOND = {
    *(
        f"runner/node/devices/{name}.py"
        for name in ("gpus", "idle", "machine", "processes", "sampler", "watch")
    ),
    "runner/protocol/devices.py",
}


def test_warm_run_executes_the_files_of_the_architecture_page(tmp_path: Path, mnist: Path) -> None:
    found = measure(new_home(tmp_path / "home"), mnist)
    client = set(found.client) - WHILE_QUEUED - AFTER_A_SECOND  # the summary of the run
    agent = set(found.agent) - AFTER_A_SECOND
    assert not found.client_of_node
    named = set(main_path())
    assert sorted((client | agent) - named) == [], "files that the page does not name"
    assert sorted(named - client - agent) == [], "files that the run does not need"
    assert (len(client) <= MOST_CLIENT, len(agent) <= MOST_AGENT) == (True, True)
