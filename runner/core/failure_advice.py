"""What to do about a run that failed: by the code of its result, or of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.core.exit_codes import describe_exit

if TYPE_CHECKING:
    from runner.core.states import TaskView

# What a task ends with where the agent cannot write into blob, or cannot start at all. A script
# that ends with one of them has a result, which decides.
NO_ACCESS = 122  # storage refuses the task's access
NO_PYTHON = 121  # the image has no python3
OLD_PYTHON = 120  # the agent cannot run on it
AGENT_PYTHON = (3, 10)

_RETRY = "submit it again: what was uploaded is reused"
_IMAGE = "check its name and tag with docker pull; a private registry must be one of the pool's"

_OF_RESULTS = {
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
_ENDS = {
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
_OF_TASKS = {
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
    "DiskFull": ("the node's disk is full", _OF_RESULTS["DiskFull"]),
}


def advice_for_result(code: str | None) -> str:
    """The next thing to do about a result's code; empty where the script alone knows."""
    return _OF_RESULTS.get(code or "", "")


def explain_task(task: TaskView) -> tuple[str, str]:
    """What ended a task that left no result, in words, and the next thing to do."""
    if task.failure_code in _OF_TASKS:
        said, fix = _OF_TASKS[task.failure_code]
        return _with(f"{task.failure_code}: {said}", task.failure_message), fix
    if task.exit_code in _ENDS:
        return _ENDS[task.exit_code]
    if task.exit_code:  # Batch adds FailureExitCode, which says no more
        return f"the task ended with {describe_exit(task.exit_code)}", ""
    if task.failure_code:
        return _with(task.failure_code, task.failure_message), ""
    return "the task ended", ""


def _with(said: str, message: str | None) -> str:
    return f"{said}: {message}" if message else said
