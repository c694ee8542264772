"""One rule for the state of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.states import (
    IN_ITS_TASK,
    RunState,
    TaskView,
    count_evicted,
    decide_status,
    parse_states,
)
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptEnd, RunResult, parse_result


def committed(status: str, message: str | None = None) -> RunResult:
    document = {"format": 1, "status": status, "message": message}
    return parse_result(json.dumps(document).encode(), "r")


def task(phase: Any, **changes: Any) -> TaskView:
    return TaskView(phase=phase, **changes)


def test_states_are_repeated_or_separated_by_commas() -> None:
    found = parse_states(["failed, Lost", "queued"])
    assert found == {RunState.FAILED, RunState.LOST, RunState.QUEUED}
    with pytest.raises(RunnerError, match="unknown state 'done'") as caught:
        parse_states(["failed,done"])
    assert "succeeded" in caught.value.why


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("phase", ["active", "running", "completed", None])
def test_committed_result_decides_over_the_task(status: str, phase: Any) -> None:
    view = task(phase) if phase else None
    decided = decide_status(committed(status, "why"), view, 1, "command")
    assert decided.state.value == status
    assert decided.reason == "why"
    assert decided.state.final


@pytest.mark.parametrize(
    ("view", "attempts", "stage", "state"),
    [
        (task("active"), 0, None, RunState.QUEUED),
        (task("preparing"), 0, None, RunState.PREPARING),
        (task("running"), 0, None, RunState.PREPARING),
        (task("running"), 1, None, RunState.PREPARING),
        (task("running"), 1, "environment", RunState.PREPARING),
        (task("running"), 1, "command", RunState.RUNNING),
        (task("running"), 1, "export", RunState.RUNNING),
        (task("active"), 1, "command", RunState.QUEUED),
        (None, 0, None, RunState.LOST),
        (task("completed", exit_code=0), 1, "command", RunState.FAILED),
        (task("completed", exit_code=-9), 1, "command", RunState.FAILED),
    ],
)
def test_without_a_result_the_task_decides(
    view: TaskView | None, attempts: int, stage: str | None, state: RunState
) -> None:
    assert decide_status(None, view, attempts, stage).state is state


@pytest.mark.parametrize(
    ("phase", "attempts", "state"),
    [
        ("running", 0, RunState.QUEUED),
        ("running", 1, RunState.RUNNING),
        ("active", 0, RunState.QUEUED),
        ("completed", 0, RunState.FAILED),
    ],
)
def test_trial_waits_for_those_before_it_in_its_task(
    phase: Any, attempts: int, state: RunState
) -> None:
    found = decide_status(None, TaskView(phase), attempts, "command", in_turn=True)
    assert found.state is state
    assert (found.reason == IN_ITS_TASK) == (phase == "running" and not attempts)


def test_queued_run_explains_why_its_attempt_ended() -> None:
    assert "node was lost" in decide_status(None, task("active"), 1, None).reason
    assert "is retried" in decide_status(None, task("active", retries=1), 1, None).reason


def test_end_without_a_result_has_the_reason_of_the_service() -> None:
    early = task(
        "completed", failure_code="ResourceFileWriteFailed", failure_message="The disk failed"
    )
    reason = decide_status(None, early, 0, None).reason
    assert "ResourceFileWriteFailed: The disk failed" in reason
    assert "before the node agent started" in reason
    late = decide_status(None, task("completed", exit_code=-9), 1, "command").reason
    assert "-9" in late
    assert "before it could write a result" in late


@pytest.mark.parametrize("code", ["BlobDownloadMiscError", "BlobDownloadTimedOut"])
def test_failed_download_of_the_files_of_a_task_is_blamed_on_storage(code: str) -> None:
    ended = task("completed", failure_code=code, failure_message="ConnectError")
    status = decide_status(None, ended, 2, "command")
    assert status.reason.startswith(f"{code}: storage ")
    assert status.reason.endswith("before the script was started: ConnectError")
    assert "runner resume RUN" in status.fix


@pytest.mark.parametrize(
    ("began", "failed", "waiting", "evicted"),
    [
        (0, [], True, 0),
        (1, [], False, 0),
        (1, [], True, 1),
        (1, [1], True, 0),
        (3, [1], False, 1),
        (3, [3], False, 2),
        (3, [3], True, 2),
    ],
)
def test_ended_attempts_that_did_not_fail_count_as_evicted(
    began: int, failed: list[int], waiting: bool, evicted: int
) -> None:
    ends = [AttemptEnd(n, "", "failed", 1, "command") for n in failed]
    ends.append(AttemptEnd(2, "", "terminated", None, "command", node_ends="2026-11-24T12:00:00Z"))
    assert count_evicted(began, ends, waiting=waiting) == evicted


@pytest.mark.parametrize(("nodes", "requeues", "evicted"), [(1, 0, 1), (1, 2, 0), (2, 1, 1)])
def test_attempts_that_a_pause_ended_were_not_evicted(
    nodes: int, requeues: int, evicted: int
) -> None:
    ends = [AttemptEnd(2, "", "terminated", None, "command")]  # the first one has no record
    counted = count_evicted(2, ends, waiting=True, nodes=nodes, requeues=requeues)
    assert counted == evicted
