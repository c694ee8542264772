"""Decide the state of a run from its documents and its Batch task, and explain why it failed."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from runner.protocol.codec import JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.results import NO_UV, STOPPED_EARLY, AttemptEnd, RunResult

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
        """True if the state is final."""
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
                why=f"states: {', '.join(known)}",
                fix="use a state such as --status failed",
            )
    return frozenset(RunState(name) for name in names)


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_PREPARING_STAGES = frozenset(
    {"secrets", "code", "environment", "data", "inputs", "restore", "nodes", "prepare"}
)


@dataclass(frozen=True, slots=True)
class TaskView:
    """The Batch task of a run, with codes of the service; `since` is the start of its phase."""

    phase: TaskPhase
    node: str | None = None
    exit_code: int | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    requeues: int = 0
    retries: int = 0
    slots: int = 1
    since: datetime | None = None


JOB_DISABLED = "JobDisabled"  # code of the cause: the job of the run is paused or being moved
PAUSED_LABEL = "paused"  # of runs with this cause


@dataclass(frozen=True, slots=True)
class WaitCause(JsonDocument):
    """Why a queued run has no node.

    Attributes:
        code: Name of the cause, such as `StartTaskFailed`.
        message: One sentence.
        fix: The next step; empty if there is none.
        evidence: Lines that the service reports: errors, the end of a log.
        since: When the service first reported it.
        stuck: True if the run waits until a user acts, False if it will start by itself.
    """

    code: str
    message: str
    fix: str = ""
    evidence: tuple[str, ...] = ()
    since: datetime | None = None
    stuck: bool = True

    @property
    def label(self) -> str:
        """The state of the runs that wait for a user: `paused` or `stuck`."""
        return PAUSED_LABEL if self.code == JOB_DISABLED else "stuck"


STOPPED_LABEL = "stopped early"  # of a trial that counts as succeeded
SHOWN_STATES = (PAUSED_LABEL, *(state.value for state in RunState), STOPPED_LABEL, "unreadable")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run; `reason` is one sentence or empty."""

    state: RunState
    reason: str = ""
    node: str | None = None
    fix: str = ""  # next step after a failure or for a stuck run, if known
    cause: WaitCause | None = None  # cause of the wait of a queued run, if its pool explains it
    stopped_early: bool = False  # the sweep stopped it, which is a success
    error: str = ""  # the exception of a script that failed

    @classmethod
    def of_result(cls, result: RunResult, node: str | None = None) -> RunStatus:
        """Return the state of a run that has ended."""
        return cls(
            RunState(result.status),
            result.message or "",
            node,
            advice_for_result(result.code, result.message),
            stopped_early=result.code == STOPPED_EARLY,
            error=result.error or "",
        )

    @property
    def stuck(self) -> bool:
        """True if the run waits until a user acts."""
        return self.cause is not None and self.cause.stuck

    @property
    def label(self) -> str:
        """The state for users, which also distinguishes `queued, stuck`."""
        shown = self.shown_state
        return f"{shown}, stuck" if self.stuck and shown == self.state else shown

    @property
    def shown_state(self) -> str:
        """The state for counts, which also distinguishes `paused` and `stopped early`."""
        if self.cause is not None and self.cause.label == PAUSED_LABEL:
            return PAUSED_LABEL
        return STOPPED_LABEL if self.stopped_early else self.state.value

    @property
    def text(self) -> str:
        """The label with the reason and the exception of the script, if there are any."""
        parts = [self.label, self.reason, "" if self.error in self.reason else self.error]
        if self.reason.startswith(f"{self.label}: "):
            del parts[0]
        return ": ".join(filter(None, parts))

    @property
    def failure(self) -> str:
        """Why the run failed, in one line: the exception of its script, or else the reason."""
        return self.error or self.reason.partition("\n")[0]


WAITING = "waiting for a node"


IN_ITS_TASK = "waiting for the trials before it in its task"


def decide_status(
    result: RunResult | None,
    task: TaskView | None,
    attempts: int,
    stage: str | None,
    *,
    in_turn: bool = False,
) -> RunStatus:
    """Return the state of a run: that of its result or, without one, of its task.

    Read the task before the result, because a task completes after its result is written.

    Args:
        task: the task, or None if it does not exist.
        result: the result, or None.
        attempts: number of started attempts.
        stage: the last stage that the agent reported, or None.
        in_turn: the task runs other trials before this one.
    """
    if result is not None:
        return RunStatus.of_result(result, task.node if task else None)
    if task is None:
        return RunStatus(RunState.LOST, "its task does not exist, and it has no result")
    waits_in_task = in_turn and attempts == 0 and task.phase == "running"
    if waits_in_task or task.phase == "active":
        why = IN_ITS_TASK if waits_in_task else _explain_wait(task, attempts)
        return RunStatus(RunState.QUEUED, why, task.node if waits_in_task else None)
    if task.phase == "completed":
        return _ended_without_result(task, attempts)
    if task.phase == "preparing" or attempts == 0 or stage is None or stage in _PREPARING_STAGES:
        return RunStatus(
            RunState.PREPARING, stage or "the node is downloading its files", task.node
        )
    return RunStatus(RunState.RUNNING, "" if stage == "command" else stage, task.node)


def _explain_wait(task: TaskView, attempts: int) -> str:
    if attempts == 0:
        return WAITING
    why = "it was requeued" if task.requeues else "its node was lost"
    why = "it is retried" if task.retries else why
    return f"attempt {attempts} ended because {why}; {WAITING}"


def _ended_without_result(task: TaskView, attempts: int) -> RunStatus:
    why, fix = explain_task(task)
    when = "before the node agent started" if attempts == 0 else "before it could write a result"
    return RunStatus(RunState.FAILED, why if fix else f"{why} {when}", task.node, fix)


def count_evicted(
    began: int, ends: Iterable[AttemptEnd], *, waiting: bool, nodes: int = 1, requeues: int = 0
) -> int:
    """Return the number of ended attempts that were lost with their node and did not fail.

    Args:
        began: number of started attempts.
        ends: the ends of attempts on record.
        waiting: the run waits for a node, so all attempts have ended; else the last one runs.
        nodes: number of nodes of the run.
        requeues: attempts that Batch requeued on request, as for a pause. They were not evicted;
            the records show them only for runs on one node.
    """
    over = began if waiting else began - 1
    ended = [end for end in ends if end.attempt <= over]
    failed = sum(end.why == "failed" for end in ended)
    requeued = sum(end.was_requeued for end in ended) if nodes == 1 else 0
    return max(over - failed - max(requeued, requeues), 0)


# Exit codes of an agent that cannot write to blob storage or cannot start. If a script ends with
# the same code, its run has a result, which takes precedence.
NO_ACCESS = 122  # storage denies access
NO_PYTHON = 121  # the image has no python3
OLD_PYTHON = 120  # python3 is too old for the agent
OTHER_AGENT = 119  # the agent's file has another hash than the task
AGENT_PYTHON = (3, 10)
FALLBACK_PYTHON = "3.12"  # Python that the agent installs in an image with an older one

_RETRY = "submit the run again: uploaded files are reused"
_RESUME = "use `runner retry RUN`, or `runner resume RUN` to continue from its newest checkpoint"
_IMAGE = "check name and tag with `docker pull`; add a private registry to the pool"

_ADVICE_FOR_RESULTS = {
    "CodeInvalid": _RETRY,
    "RunSpecInvalid": "submit the run again with the current version of runner",
    "EnvironmentFailed": "correct the requirements; `runner logs RUN --build` has the output of uv",
    "PackagesUnreachable": "check the network and the proxy of the node, then submit the run again",
    "PythonMissing": "ask for a version that the node has, in `python` of train.yaml, "
    "requires-python or .python-version, or use an image with that Python",
    "PreparationFailed": "correct `prepare`; `runner logs RUN --stderr` shows its output",
    "DataMissing": "submit the run again: missing files are uploaded",
    "InputMissing": "correct the input, or submit the run again: inputs are resolved again",
    "SecretUnavailable": "check the secret and who may read it: docs/guides/recipes.md, Secrets",
    "CommandNotFound": "install the program with the requirements or `prepare`, or correct "
    "`command`, which does not run in a shell",
    "NotebookCellFailed": "correct the cell; the outputs contain the notebook as executed so far",
    "VariableMissing": "set it with --env or under `env`, or write $$NAME for the text $NAME",
    "Timeout": "raise --timeout or `timeout` in train.yaml, or reduce the work",
    "OutputMissing": "write the missing files to $RUNNER_OUTPUT_DIR, or remove them from `outputs` "
    "or `named_outputs`",
    "MetricMissing": "print it like `loss: 0.1` or write it to $RUNNER_METRICS_FILE, or choose "
    "another metric with --metric; then start another sweep",
    "MetricOutOfRange": "check `runner metrics RUN`, or change `expect` in train.yaml",
    "OutputUnreadable": "write outputs that the task may read",
    "DiskFull": "write less data. For a local node, free disk space with `runner local prune`; on "
    "Azure, use a VM size with a larger disk",
    "StorageFailed": _RETRY,
    "ResumeFailed": "start from the beginning with `runner resume RUN --fresh`, which has its own "
    "cost cap, or resume an earlier checkpoint with `--checkpoint N`",
    "NodesMissing": "allow connections between the nodes of the pool on ports 21000 to 28999",
    "NodeUnhealthy": "set `retries`; if the node fails again, run `runner why NODE` and reboot it",
    "Hung": "read the stacks with `runner logs RUN --stderr`; raise `hang_timeout` if it was busy",
    "GpuIdle": "see `runner metrics RUN --system`; if it had work, raise --idle-timeout, or "
    "`idle_timeout` in train.yaml",
    "Idle": "read the end of `runner logs RUN`; if it had work, raise --idle-timeout, or "
    "`idle_timeout` in train.yaml",
    "AgentKilled": "check the memory use of the script, and that it kills only its own processes",
    "NodesLate": "reduce the preparation of that node, for example with less data",
    "NodeLost": "check the memory use of the script, or set `retries`",
}
_EXIT_REASONS = {
    NO_ACCESS: (
        "storage denied access: the SAS expired or was revoked, or the identity lacks a role",
        (
            f"{_RETRY}; the end of stdout.txt of the task has the reason. A SAS is valid for seven "
            "days in the queue and the time limit of each attempt; an identity needs the role "
            "Storage Blob Data Contributor"
        ),
    ),
    OTHER_AGENT: (
        "the file of the node agent differs from the submitted one, so it was not executed",
        (
            "submit the run again, which stores the agent again; then find out who changed "
            "its blob, or its file on the node"
        ),
    ),
    NO_PYTHON: (
        "the image has no python3 for the node agent, and uv could not install one",
        "add python3 to the image; stderr.txt of the task has the output of uv",
    ),
    OLD_PYTHON: (
        "python3 of the image is older than 3.10, and uv could not install another one",
        "use an image with Python 3.10 or newer; stderr.txt of the task has the output of uv",
    ),
}
# Codes of task failures: Batch REST docs, and reports of the service (Azure/Batch#4 and others,
# read 2026-11-21).
_TASK_FAILURES = {
    "ContainerInvalidImage": ("the image cannot be pulled", _IMAGE),
    "ContainerInvalidRegistry": (
        "the container registry denied access to the pool",
        "correct the container registry of the pool, and run `runner up`",
    ),
    "ContainerInvalidSettings": (
        "the container engine rejected the container",
        "use an image for the architecture of the node, or correct the reported setting",
    ),
    "ContainerPoolNotSupported": (
        "the pool does not run containers",
        "use --pool with a pool that has `containers: true` in the stack's file",
    ),
    "ContainerTaskSettingsNotFound": (
        "the pool runs only containers",
        "add `image` to the recipe, or use another pool with --pool",
    ),
    "BlobAccessDenied": (
        "storage denied the node access to the code: the SAS expired or is invalid",
        f"{_RETRY}; access is valid for seven days in the queue",
    ),
    "BlobDownloadMiscError": ("storage failed before the script was started", _RESUME),
    "BlobDownloadTimedOut": ("storage did not answer before the script was started", _RESUME),
    "BlobNotFound": ("the code of the run is missing in storage", _RETRY),
    "DiskFull": ("the node's disk is full", _ADVICE_FOR_RESULTS["DiskFull"]),
}


_ADVICE_WITHOUT_UV = (
    "use a pool that runner created, whose start task installs uv, or put uv on PATH for all "
    "users, in the image or the start task of the pool"
)


def advice_for_result(code: str | None, message: str | None = None) -> str:
    """Return the next step for the code of a result; empty if it depends on the script.

    `message` is that of the result, which names packages that could not be installed.
    """
    if code == "EnvironmentFailed":
        if (message or "").startswith(NO_UV):
            return _ADVICE_WITHOUT_UV
        from runner.core.packages.failures import advise_on_packages  # noqa: PLC0415  rare

        if known := advise_on_packages(message or ""):
            return f"{known}; `runner logs RUN --build` has the whole output"
    return _ADVICE_FOR_RESULTS.get(code or "", "")


def explain_task(task: TaskView) -> tuple[str, str]:
    """Return why a task ended without a result, and the next step."""
    if task.failure_code in _TASK_FAILURES:
        said, fix = _TASK_FAILURES[task.failure_code]
        return _append_message(f"{task.failure_code}: {said}", task.failure_message), fix
    if task.exit_code in _EXIT_REASONS:
        return _EXIT_REASONS[task.exit_code]
    if task.exit_code:  # the failure code is only FailureExitCode
        return f"the task ended with {describe_exit(task.exit_code)}", ""
    if task.failure_code:
        return _append_message(task.failure_code, task.failure_message), ""
    return "the task ended", ""


def _append_message(said: str, message: str | None) -> str:
    return f"{said}: {message}" if message else said


def describe_exit(code: int) -> str:
    """Return `exit code 3`, or `exit code 137, SIGKILL`; negative codes are signals too."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}, {name}" if name else f"exit code {code}"
