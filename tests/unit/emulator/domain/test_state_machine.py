"""Properties that hold after any sequence of requests, ends of processes, losses and waits.

hypothesis draws the sequence and makes a failing one short.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_emulator.domain.model import (
    AllocationState,
    ExecutionKind,
    JobState,
    NodeState,
    Stop,
    TaskState,
)
from tests.unit.emulator.domain.test_invariants import Chaos, check_jobs, check_slots

STEPS = 60

# azure_batch_semantics.md 3.1 to 3.3: states that may follow each other. A deletion may follow any.
TASK_STEPS: dict[str, set[str]] = {
    "": {"active"},
    "active": {"preparing", "running", "completed"},
    "preparing": {"running", "active", "completed"},
    "running": {"active", "completed"},
    "completed": {"active"},
}
JOB_STEPS: dict[str, set[str]] = {
    "": {"active"},
    "active": {"disabling", "terminating", "deleting"},
    "disabling": {"disabled", "enabling", "terminating", "deleting"},
    "disabled": {"enabling", "terminating", "deleting", "disabling"},
    "enabling": {"active", "terminating", "deleting", "disabling"},
    "terminating": {"completed", "deleting"},
    "completed": {"deleting"},
    "deleting": set(),
}
_ANY_NODE = {"unusable", "unknown", "leavingpool", "preempted"}
NODE_STEPS: dict[str, set[str]] = {
    "": {"creating"},
    "creating": {"starting"},
    "starting": {"waitingforstarttask", "idle", "offline"},
    "waitingforstarttask": {"idle", "offline", "starttaskfailed", "running"},
    "starttaskfailed": {"rebooting", "reimaging"},
    "idle": {"running", "rebooting", "reimaging", "offline", "deallocating"},
    "running": {"idle", "rebooting", "reimaging", "offline", "deallocating"},
    "rebooting": {"starting"},
    "reimaging": {"starting"},
    "offline": {"idle", "rebooting", "reimaging", "deallocating"},
    "unusable": {"rebooting", "reimaging", "idle", "starting", "deallocating"},
    "preempted": {"creating"},
    "deallocating": {"deallocated"},
    "deallocated": {"starting"},
    "leavingpool": set(),
}
STEPS_OF = {"task.state": TASK_STEPS, "job.state": JOB_STEPS, "node.state": NODE_STEPS}


def check_events(chaos: Chaos) -> None:
    """Check that every change of state was a valid transition."""
    last: dict[tuple[str, str], str] = {}
    for event in chaos.world.account.events.after(0):
        allowed = STEPS_OF.get(event.kind)
        if allowed is None:
            continue
        key = (event.kind, event.entity)
        before = last.get(key, "")
        if event.kind == "node.state" and event.value in _ANY_NODE:
            assert before != "leavingpool"
        else:
            assert event.value in allowed[before], f"{key}: {before} -> {event.value}"
        last[key] = event.value
    check_counts(chaos, last)


def check_counts(chaos: Chaos, last: dict[tuple[str, str], str]) -> None:
    """Check that the counters of a job agree with the last event of each task."""
    for job in chaos.world.account.jobs.values():
        gone = chaos.deleted.get(job.key, set())
        states = Counter(
            value
            for (kind, entity), value in last.items()
            if kind == "task.state"
            and entity.startswith(f"{job.id}/")
            and entity.partition("/")[2] not in gone
        )
        counts = job.tasks
        assert counts.active == states[TaskState.ACTIVE]
        assert counts.running == states[TaskState.RUNNING] + states[TaskState.PREPARING]
        assert counts.succeeded + counts.failed == states[TaskState.COMPLETED]


def check_processes(chaos: Chaos) -> None:
    """Check that no task runs twice at the same time, or on a node that must not run it."""
    there = [*chaos.world.processes.values(), *chaos.world.dying.values()]
    running = Counter(
        (e.task.job.key, e.task.key)
        for e in there
        if e.task is not None and e.kind is ExecutionKind.TASK and e.stop is not Stop.DISCARD
    )
    assert not running or max(running.values()) == 1
    for execution in chaos.world.processes.values():
        assert execution.node.state not in (NodeState.PREEMPTED, NodeState.CREATING)
        job = execution.job
        assert job is None or job.state is not JobState.COMPLETED


def check_rest(chaos: Chaos) -> None:
    """Check that, without requests, nodes reach a stable state and resizes end."""
    chaos.come_to_rest()
    resting = (NodeState.IDLE, NodeState.OFFLINE, NodeState.DEALLOCATED)
    for node in chaos.pool.nodes.values():
        assert node.state in resting, node
        assert (node.notice, node.next_state, node.executions) == (None, None, {})
    assert chaos.pool.allocation is AllocationState.STEADY


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False))
def test_states_counters_and_processes_stay_consistent(randomness: random.Random) -> None:
    chaos = Chaos(randomness, slow_ends=randomness.random() < 0.5)
    for _ in range(STEPS):
        chaos.step()
        check_slots(chaos)
        check_jobs(chaos.world.account)
        check_processes(chaos)
    check_rest(chaos)
    check_events(chaos)
    assert "node.state" in {event.kind for event in chaos.world.account.events.after(0)}


def test_same_decisions_give_the_same_events() -> None:
    logs: list[list[dict[str, object]]] = []
    for _ in range(2):
        chaos = Chaos(random.Random(7), seed=7)
        for _ in range(400):
            chaos.step()
        logs.append([event.document() for event in chaos.world.account.events.after(0)])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 200
