"""The state of a run, from its documents in blob and its Batch task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from runner.core.errors import RunnerError
from runner.core.failure_advice import advice_for_result, explain_task
from runner.core.run_record import AttemptEnd, RunResult

TaskPhase = Literal["active", "preparing", "running", "completed"]


class RunState(StrEnum):
    """What a run is doing, as people read it."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether the state never changes again."""
        return self in _FINAL


def parse_states(words: Iterable[str]) -> frozenset[RunState]:
    """States as typed: repeated, or with commas. Raises RunnerError for what is none."""
    names = [name.strip().lower() for word in words for name in word.split(",")]
    known = [state.value for state in RunState]
    for name in names:
        if name not in known:
            raise RunnerError(
                "R-STATE",
                f"{name!r} is no state of a run",
                why=f"states are {', '.join(known)}",
                fix="--status failed",
            )
    return frozenset(RunState(name) for name in names)


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_PREPARING_STAGES = frozenset(
    {"secrets", "code", "environment", "data", "inputs", "restore", "nodes"}
)


@dataclass(frozen=True, slots=True)
class TaskView:
    """What Batch says of the run's task; codes as on the wire."""

    phase: TaskPhase
    node: str | None = None
    exit_code: int | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    requeues: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State with the reason for it, one sentence or empty."""

    state: RunState
    reason: str = ""
    node: str | None = None
    fix: str = ""  # the next thing to do about a failure, where it is known


def decide_status(
    result: RunResult | None, task: TaskView | None, attempts: int, stage: str | None
) -> RunStatus:
    """The one rule: a committed result decides; without one, the task does.

    `attempts` counts attempts that started, `stage` is the last stage the agent reported.
    Read the task before the result: a task completes after its result is written.
    """
    if result is not None:
        node = task.node if task else None
        return RunStatus(
            RunState(result.status), result.message or "", node, advice_for_result(result.code)
        )
    if task is None:
        return RunStatus(RunState.LOST, "its task is gone and it left no result")
    if task.phase == "active":
        return RunStatus(RunState.QUEUED, _why_waiting(task, attempts))
    if task.phase == "completed":
        return _ended_without_result(task, attempts)
    if task.phase == "preparing" or attempts == 0 or stage is None or stage in _PREPARING_STAGES:
        return RunStatus(RunState.PREPARING, stage or "the node fetches its files", task.node)
    return RunStatus(RunState.RUNNING, "" if stage == "command" else stage, task.node)


def count_evicted(began: int, ends: Iterable[AttemptEnd], *, waiting: bool) -> int:
    """How many of the attempts that are over were lost or terminated, and did not fail.

    All that began are over while the run waits for a node; else the last one goes on.
    """
    over = began if waiting else began - 1
    failed = {end.attempt for end in ends if end.why == "failed" and end.attempt <= over}
    return max(over - len(failed), 0)


def _why_waiting(task: TaskView, attempts: int) -> str:
    if attempts == 0:
        return "waiting for a node"
    why = "it will be tried again" if task.retries else "its node went away"
    return f"attempt {attempts} ended, {why}; waiting for a node"


def _ended_without_result(task: TaskView, attempts: int) -> RunStatus:
    said, fix = explain_task(task)
    when = "before the node agent started" if attempts == 0 else "before it could write a result"
    return RunStatus(RunState.FAILED, said if fix else f"{said} {when}", task.node, fix)
