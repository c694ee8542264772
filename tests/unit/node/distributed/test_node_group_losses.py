"""Runs whose agent on one node is killed, frozen or disconnected."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.unit.node.node_group_task import NodeGroupTask

# Writes a checkpoint and sleeps in its first attempt only.
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


def begin(node_group: NodeGroupTask, until: Until, nodes: int = 2) -> dict[int, int]:
    """Start scripts, wait for a checkpoint, and return the process ids by rank."""
    node_group.submit(SCRIPT, resources={"nodes": nodes}, checkpoints={"interval_s": 0.2})
    node_group.start_node_group(nodes)
    until(lambda: node_group.has("checkpoints/1/manifest.json") and node_group.pids(nodes))
    return node_group.pids(nodes) or {}


def resumes(node_group: NodeGroupTask) -> str:
    """Wait for the success of the same task, and return why its first attempt ended."""
    assert node_group.processes[0].wait(120) == 0
    assert node_group.json("result.json")["attempt"] > 1
    for log in ("logs/stdout.txt", "nodes/1/stdout.txt"):
        assert node_group.text(log).splitlines()[-1].endswith("from a checkpoint")
    end = node_group.json("attempts/1/end.json")
    return f"{end['why']}: {end['message']}"


@pytest.mark.slow
@pytest.mark.feature(24)
def test_run_resumes_after_worker_agent_is_killed(node_group: NodeGroupTask, until: Until) -> None:
    pids = begin(node_group, until, 3)
    os.kill(node_group.worker_of(pids[1]), signal.SIGKILL)
    until(lambda: node_group.all_gone(pids))
    why = "lost: rank 1 on node tvm-1 was lost: the connection to its agent ended"
    assert resumes(node_group) == why
    assert "starting another one" in node_group.worker_log(1)


@pytest.mark.slow
def test_run_resumes_after_worker_agent_freezes(node_group: NodeGroupTask, until: Until) -> None:
    node_group.settings["RUNNER_NODES_SILENCE"] = "4"
    pids = begin(node_group, until)
    os.kill(node_group.worker_of(pids[1]), signal.SIGSTOP)
    until(lambda: node_group.all_gone(pids))
    why = "lost: rank 1 on node tvm-1 was lost: no message from its agent for 4 s"
    assert resumes(node_group) == why


@pytest.mark.slow
def test_run_resumes_after_frozen_primary_wakes_up(node_group: NodeGroupTask, until: Until) -> None:
    node_group.settings["RUNNER_NODES_SILENCE"] = "4"
    pids = begin(node_group, until)
    primary = node_group.processes[0]
    primary.send_signal(signal.SIGSTOP)
    until(lambda: node_group.all_gone({1: pids[1]}))
    until(lambda: "the primary was lost: no message for 4 s" in node_group.worker_log(1))
    primary.send_signal(signal.SIGCONT)
    assert resumes(node_group).startswith("lost: rank 1 on node tvm-1 was lost: ")


@pytest.mark.slow
def test_run_with_a_frozen_node_can_be_cancelled(node_group: NodeGroupTask, until: Until) -> None:
    pids = begin(node_group, until)
    os.kill(node_group.worker_of(pids[1]), signal.SIGSTOP)
    node_group.processes[0].send_signal(signal.SIGTERM)
    assert node_group.processes[0].wait(120) == 143
    assert node_group.json("attempts/1/end.json")["why"] == "terminated"
