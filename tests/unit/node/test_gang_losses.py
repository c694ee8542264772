"""What becomes of a run when an agent on one of its nodes dies, freezes, or is cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.unit.node.gang_task import GangTask

# Waits in its first attempt only, and counts in a checkpoint before.
SCRIPT = """
import os, pathlib, time
rank, attempt = os.environ["RUNNER_NODE_RANK"], os.environ["RUNNER_ATTEMPT"]
shared = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"])
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "state"
print("attempt", attempt, "from", state.read_text() if state.exists() else "nothing", flush=True)
(shared / f"pid-{rank}").write_text(str(os.getpid()))
if not state.exists():
    if rank == "0":
        state.with_suffix(".new").write_text("a checkpoint")
        os.rename(state.with_suffix(".new"), state)
    time.sleep(600)
"""
Until = Callable[[Callable[[], object]], None]


def begin(gang: GangTask, until: Until, nodes: int = 2) -> dict[int, int]:
    """Scripts that run and have a checkpoint; their pids."""
    gang.submit(SCRIPT, resources={"nodes": nodes}, checkpoints={"interval_s": 0.2})
    gang.start_gang(nodes)
    until(lambda: gang.has("checkpoints/1/manifest.json") and gang.pids(nodes))
    return gang.pids(nodes) or {}


def goes_on(gang: GangTask) -> str:
    """It has succeeded in the same task, from the checkpoint; why the first attempt ended."""
    assert gang.processes[0].wait(120) == 0
    assert gang.json("result.json")["attempt"] > 1
    for log in ("logs/stdout.txt", "nodes/1/stdout.txt"):
        assert gang.text(log).splitlines()[-1].endswith("from a checkpoint")
    end = gang.json("attempts/1/end.json")
    return f"{end['why']}: {end['message']}"


@pytest.mark.feature(24)
def test_run_goes_on_when_the_agent_of_a_node_is_killed(gang: GangTask, until: Until) -> None:
    pids = begin(gang, until, 3)
    os.kill(gang.worker_of(pids[1]), signal.SIGKILL)
    until(lambda: gang.all_gone(pids))
    why = "lost: rank 1 on node tvm-1 was lost: the connection to its agent ended"
    assert goes_on(gang) == why
    assert "another one takes its place" in gang.worker_log(1)


@pytest.mark.slow
def test_run_goes_on_when_the_agent_of_a_node_freezes(gang: GangTask, until: Until) -> None:
    gang.settings["RUNNER_NODES_SILENCE"] = "4"
    pids = begin(gang, until)
    os.kill(gang.worker_of(pids[1]), signal.SIGSTOP)
    until(lambda: gang.all_gone(pids))
    why = "lost: rank 1 on node tvm-1 was lost: nothing was heard of its agent for 4 s"
    assert goes_on(gang) == why


@pytest.mark.slow
def test_run_goes_on_when_a_frozen_primary_wakes_up(gang: GangTask, until: Until) -> None:
    gang.settings["RUNNER_NODES_SILENCE"] = "4"
    pids = begin(gang, until)
    primary = gang.processes[0]
    primary.send_signal(signal.SIGSTOP)
    until(lambda: gang.all_gone({1: pids[1]}))
    until(lambda: "the primary is gone: no word from it for 4 s" in gang.worker_log(1))
    primary.send_signal(signal.SIGCONT)
    assert goes_on(gang).startswith("lost: rank 1 on node tvm-1 was lost: ")


@pytest.mark.slow
def test_run_with_a_frozen_node_can_be_cancelled(gang: GangTask, until: Until) -> None:
    pids = begin(gang, until)
    os.kill(gang.worker_of(pids[1]), signal.SIGSTOP)
    gang.processes[0].send_signal(signal.SIGTERM)
    assert gang.processes[0].wait(120) == 143
    assert gang.json("attempts/1/end.json")["why"] == "terminated"
