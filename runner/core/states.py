"""Decide the state of a run from its documents and its Batch task, and explain why it failed."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptEnd, RunResult


def describe_exit(code: int) -> str:
    """Return `exit code 3`, or `exit code 137, SIGKILL`; negative codes are signals too."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}, {name}" if name else f"exit code {code}"


# Exit codes of the agent if it cannot write to blob, or cannot start. If a script ends with one of
# them, its run has a result, which decides.
NO_ACCESS = 122  # storage denies access to the task
NO_PYTHON = 121  # the image has no python3
OLD_PYTHON = 120  # the agent cannot run on it
AGENT_PYTHON = (3, 10)
BROUGHT_PYTHON = "3.12"  # for the agent, into an image whose own is older

_RETRY = "submit it again: uploaded files are reused"
_RESUME = "use `runner retry RUN`, or `runner resume RUN` to go on from its newest checkpoint"
_IMAGE = "check its name and tag with docker pull; a private registry must be one of the pool's"

_ADVICE_FOR_RESULTS = {
    "CodeInvalid": _RETRY,
    "RunSpecInvalid": "submit it with the version of runner that the agent has",
    "EnvironmentFailed": "correct the requirements; `runner logs RUN` has the output of the tool",
    "PreparationFailed": "correct `prepare`; `runner logs RUN --stderr` has its output",
    "DataMissing": "submit it again: missing files are uploaded",
    "InputMissing": "correct the input, or submit again: inputs are resolved again",
    "SecretUnavailable": "see `secrets` in docs/guides/recipes.md",
    "CommandNotFound": "correct `command`; it does not run in a shell",
    "NotebookCellFailed": "correct the cell; the notebook executed up to it is an output",
    "VariableMissing": "set it under `env`, or write $$NAME for the text $NAME",
    "Timeout": "raise `timeout` in train.yaml, or shorten the work",
    "OutputMissing": "write the files of `outputs` to $RUNNER_OUTPUT_DIR, or remove their names",
    "MetricOutOfRange": "see `runner metrics RUN`; `expect` in train.yaml has the range",
    "OutputUnreadable": "write files with plain names that the task may read",
    "DiskFull": "write less, or choose a VM size with a larger disk",
    "StorageFailed": _RETRY,
    "NodesMissing": "let the pool's nodes reach one another on ports 21000 to 28999",
    "NodeUnhealthy": "set `retries`; reboot the node if it fails again: `runner why NODE`",
    "Hung": "read the stacks: runner logs RUN --stderr; raise hang_timeout if it was busy",
    "NodesLate": "shorten the preparation of that node, for example with less data",
    "NodeLost": "check the memory of the node, or set `retries`",
}
_EXIT_REASONS = {
    NO_ACCESS: (
        "storage denied access to the task: it has expired, was revoked, or lacks a role",
        (
            f"{_RETRY}; the reason is at the end of the task's stdout.txt. A SAS is valid for "
            "seven days in the queue and the time limit of each attempt; an identity needs the "
            "role Storage Blob Data Contributor"
        ),
    ),
    NO_PYTHON: (
        "the image has no python3 for the node agent, and uv could not bring one",
        "add python3 to the image; the task's stderr.txt has the output of uv",
    ),
    OLD_PYTHON: (
        "the image's python3 is older than the 3.10 of the node agent, and uv could not bring one",
        "use an image with python3 3.10 or newer; the task's stderr.txt has the output of uv",
    ),
}
# Codes of task failures: Batch REST docs, and reports of the service (Azure/Batch#4 and others,
# read 2026-11-21).
_TASK_FAILURES = {
    "ContainerInvalidImage": ("the image cannot be pulled", _IMAGE),
    "ContainerInvalidRegistry": (
        "the container registry denied access to the pool",
        "correct the container registry of the pool, and deploy the stack again",
    ),
    "ContainerInvalidSettings": (
        "the container engine rejected the container",
        "use an image for the architecture of the node; see why",
    ),
    "ContainerPoolNotSupported": (
        "the pool does not run containers",
        "use --pool to choose a pool with `containers: true` in the stack's file",
    ),
    "ContainerTaskSettingsNotFound": (
        "the pool runs containers only",
        "give the recipe an `image`, or choose another pool with --pool",
    ),
    "BlobAccessDenied": (
        "storage denied the node access to the code: it has expired or is wrong",
        f"{_RETRY}; access is valid for seven days in the queue",
    ),
    "BlobDownloadMiscError": ("storage failed before the script was started", _RESUME),
    "BlobDownloadTimedOut": ("storage did not answer before the script was started", _RESUME),
    "BlobNotFound": ("the code of the run is missing in storage", _RETRY),
    "DiskFull": ("the node's disk is full", _ADVICE_FOR_RESULTS["DiskFull"]),
}


def advice_for_result(code: str | None) -> str:
    """Return the next step for the code of a result; empty if it depends on the script."""
    return _ADVICE_FOR_RESULTS.get(code or "", "")


def explain_task(task: TaskView) -> tuple[str, str]:
    """Return why a task ended without a result, and the next step."""
    if task.failure_code in _TASK_FAILURES:
        said, fix = _TASK_FAILURES[task.failure_code]
        return _with_message(f"{task.failure_code}: {said}", task.failure_message), fix
    if task.exit_code in _EXIT_REASONS:
        return _EXIT_REASONS[task.exit_code]
    if task.exit_code:  # the failure code is FailureExitCode, which adds nothing
        return f"the task ended with {describe_exit(task.exit_code)}", ""
    if task.failure_code:
        return _with_message(task.failure_code, task.failure_message), ""
    return "the task ended", ""


def _with_message(said: str, message: str | None) -> str:
    return f"{said}: {message}" if message else said


TaskPhase = Literal["active", "preparing", "running", "completed"]


class RunState(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """True if the state does not change any more."""
        return self in _FINAL


def parse_states(words: Iterable[str]) -> frozenset[RunState]:
    """Parse states that are repeated or separated by commas. Raise RunnerError for unknown ones."""
    names = [name.strip().lower() for word in words for name in word.split(",")]
    known = [state.value for state in RunState]
    for name in names:
        if name not in known:
            raise RunnerError(
                "R-STATE",
                f"unknown state {name!r}",
                why=f"states are {', '.join(known)}",
                fix="use a state such as --status failed",
            )
    return frozenset(RunState(name) for name in names)


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_PREPARING_STAGES = frozenset(
    {"secrets", "code", "environment", "data", "inputs", "restore", "nodes", "prepare"}
)


@dataclass(frozen=True, slots=True)
class TaskView:
    """The Batch task of a run, with the codes of the service; `since` is when its phase began."""

    phase: TaskPhase
    node: str | None = None
    exit_code: int | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    requeues: int = 0
    retries: int = 0
    slots: int = 1
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitCause:
    """Why a queued run has no node.

    Attributes:
        code: Name of the cause, such as `StartTaskFailed`.
        message: One sentence.
        fix: The next step; empty if there is none.
        evidence: What the service reports, in lines: errors, the end of a log.
        since: When the service reported it.
        stuck: True if the run waits until somebody acts, False if it only has to wait.
    """

    code: str
    message: str
    fix: str = ""
    evidence: tuple[str, ...] = ()
    since: datetime | None = None
    stuck: bool = True

    def to_json(self) -> dict[str, object]:
        """Return the cause as `-o json` prints it."""
        since = self.since.isoformat() if self.since else None
        return {**asdict(self), "evidence": list(self.evidence), "since": since}


JOB_DISABLED = "JobDisabled"  # code of the cause: the job of the run is paused, or is being moved


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run; `reason` is one sentence or empty."""

    state: RunState
    reason: str = ""
    node: str | None = None
    fix: str = ""  # the next step after a failure, or of a run that is stuck, if it is known
    cause: WaitCause | None = None  # of a queued run, if the state of its pool explains it

    @property
    def stuck(self) -> bool:
        """True if the run waits until somebody acts."""
        return self.cause is not None and self.cause.stuck

    @property
    def label(self) -> str:
        """The state for people: `paused` and `queued, stuck` are not states of their own."""
        if self.cause is not None and self.cause.code == JOB_DISABLED:
            return "paused"
        return f"{self.state.value}, stuck" if self.stuck else self.state.value


WAITING = "waiting for a node"


def decide_status(
    result: RunResult | None, task: TaskView | None, attempts: int, stage: str | None
) -> RunStatus:
    """Return the state of a run: a committed result decides, without one the task does.

    Read the task before the result: a task completes after its result is written. `attempts` have
    started, and `stage` is the last one that the agent reported.
    """
    if result is not None:
        node = task.node if task else None
        return RunStatus(
            RunState(result.status), result.message or "", node, advice_for_result(result.code)
        )
    if task is None:
        return RunStatus(RunState.LOST, "its task does not exist and it has no result")
    if task.phase == "active":
        return RunStatus(RunState.QUEUED, _why_waiting(task, attempts))
    if task.phase == "completed":
        return _ended_without_result(task, attempts)
    if task.phase == "preparing" or attempts == 0 or stage is None or stage in _PREPARING_STAGES:
        return RunStatus(RunState.PREPARING, stage or "the node downloads its files", task.node)
    return RunStatus(RunState.RUNNING, "" if stage == "command" else stage, task.node)


def count_evicted(
    began: int, ends: Iterable[AttemptEnd], *, waiting: bool, nodes: int = 1, requeues: int = 0
) -> int:
    """Return how many of the ended attempts were lost with their node instead of failing.

    All started attempts have ended while the run waits for a node; else the last one still runs.
    An attempt that somebody had requeued, as by a pause, was not evicted. Of a run on several
    nodes, only Batch knows how often that was: `requeues`.
    """
    over = began if waiting else began - 1
    ended = [end for end in ends if end.attempt <= over]
    failed = sum(end.why == "failed" for end in ended)
    requeued = sum(end.was_requeued for end in ended) if nodes == 1 else 0
    return max(over - failed - max(requeued, requeues), 0)


def _why_waiting(task: TaskView, attempts: int) -> str:
    if attempts == 0:
        return WAITING
    why = "it was requeued" if task.requeues else "its node was lost"
    why = "it is retried" if task.retries else why
    return f"attempt {attempts} ended, {why}; {WAITING}"


def _ended_without_result(task: TaskView, attempts: int) -> RunStatus:
    why, fix = explain_task(task)
    when = "before the node agent started" if attempts == 0 else "before it could write a result"
    return RunStatus(RunState.FAILED, why if fix else f"{why} {when}", task.node, fix)
