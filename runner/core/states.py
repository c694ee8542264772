"""Decide the state of a run from its documents and its Batch task, and explain why it failed."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptEnd, RunResult


def describe_exit(code: int) -> str:
    """`exit code 3`, or `exit code 137, SIGKILL`; negative codes are signals too."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}, {name}" if name else f"exit code {code}"


# What a task ends with where the agent cannot write into blob, or cannot start at all. A script
# that ends with one of them has a result, which decides.
NO_ACCESS = 122  # storage refuses the task's access
NO_PYTHON = 121  # the image has no python3
OLD_PYTHON = 120  # the agent cannot run on it
AGENT_PYTHON = (3, 10)

_RETRY = "submit it again: what was uploaded is reused"
_IMAGE = "check its name and tag with docker pull; a private registry must be one of the pool's"

_ADVICE_FOR_RESULTS = {
    "CodeInvalid": _RETRY,
    "RunSpecInvalid": "submit it with a runner of the same version as the agent's",
    "EnvironmentFailed": "correct the requirements; runner logs RUN has all that was said",
    "DataMissing": "submit it again: what is missing is uploaded",
    "InputMissing": "correct the input, or submit again: it is looked for anew",
    "SecretUnavailable": "see `secrets` in docs/guides/recipes.md",
    "CommandNotFound": "correct `command`; a shell is not used",
    "Timeout": "raise `timeout` in train.yaml, or do less",
    "OutputMissing": "write what `outputs` promises into $RUNNER_OUTPUT_DIR, or drop the promise",
    "OutputUnreadable": "write files with plain names that the task may read",
    "DiskFull": "write less, or choose a VM size with a larger disk",
    "StorageFailed": _RETRY,
    "NodesMissing": "let the pool's nodes reach one another on ports 21000 to 28999",
    "NodesLate": "have that node do less, as fetch less data; packages are kept on a node",
    "NodeLost": "look at the node: its memory may have run out; or allow retries",
}
_EXIT_REASONS = {
    NO_ACCESS: (
        "storage refused the task: its access has expired, was withdrawn, or lacks a role",
        (
            f"{_RETRY}; the task's stdout.txt ends with why. A signature lasts for seven days of "
            "waiting and each attempt's time limit; an identity needs the role Storage Blob Data "
            "Contributor"
        ),
    ),
    NO_PYTHON: (
        "the image has no python3, which the node agent needs",
        "add python3 to the image, or choose one that has it",
    ),
    OLD_PYTHON: (
        "the image's python3 is too old: the node agent needs 3.10",
        "choose an image with python3 3.10 or newer",
    ),
}
# Codes of task failures: Batch REST docs, and reports of the service (Azure/Batch#4 and others,
# read 2026-11-21).
_TASK_FAILURES = {
    "ContainerInvalidImage": ("the image cannot be pulled", _IMAGE),
    "ContainerInvalidRegistry": (
        "the registry refused the pool",
        "correct the registry of the pool, and deploy the stack again",
    ),
    "ContainerInvalidSettings": (
        "the container engine refused the container",
        "choose an image for this machine's architecture; see why",
    ),
    "ContainerPoolNotSupported": (
        "the pool runs no containers",
        "choose a pool with `containers: true` in the stack's file, with --pool",
    ),
    "ContainerTaskSettingsNotFound": (
        "the pool runs containers only",
        "give the recipe an `image`, or choose another pool with --pool",
    ),
    "BlobAccessDenied": (
        "storage refused the node the run's code: its access has expired, or is wrong",
        f"{_RETRY}; access lasts for seven days of waiting",
    ),
    "BlobNotFound": ("the run's code is gone from storage", _RETRY),
    "DiskFull": ("the node's disk is full", _ADVICE_FOR_RESULTS["DiskFull"]),
}


def advice_for_result(code: str | None) -> str:
    """The next thing to do about a result's code; empty where the script alone knows."""
    return _ADVICE_FOR_RESULTS.get(code or "", "")


def explain_task(task: TaskView) -> tuple[str, str]:
    """What ended a task that left no result, in words, and the next thing to do."""
    if task.failure_code in _TASK_FAILURES:
        said, fix = _TASK_FAILURES[task.failure_code]
        return _with_message(f"{task.failure_code}: {said}", task.failure_message), fix
    if task.exit_code in _EXIT_REASONS:
        return _EXIT_REASONS[task.exit_code]
    if task.exit_code:  # Batch adds FailureExitCode, which says no more
        return f"the task ended with {describe_exit(task.exit_code)}", ""
    if task.failure_code:
        return _with_message(task.failure_code, task.failure_message), ""
    return "the task ended", ""


def _with_message(said: str, message: str | None) -> str:
    return f"{said}: {message}" if message else said


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
