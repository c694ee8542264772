"""Find the cause of a failure from the code of its result and the output of the run.

Other causes come from pools and nodes, see `runner.flows.runs.stuck`. `runner why` prints both as a
`Diagnosis`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

from runner.core.recipe.imports import package_of
from runner.core.recipe.inputs import advise_variable
from runner.core.states import (
    NO_ACCESS,
    OTHER_AGENT,
    TaskView,
    advice_for_result,
    describe_exit,
    explain_task,
)
from runner.core.units import format_duration
from runner.protocol.codec import JsonDocument
from runner.protocol.devices import DeviceSummary
from runner.protocol.paths import stored_path
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec
from runner.protocol.sweeps import SWEEP_FAILED


@dataclass(frozen=True, slots=True)
class Evidence(JsonDocument):
    """One fact with its source, such as `pool t4`; `at` is None if the source has no date."""

    source: str
    text: str
    at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fact as `-o json` prints it, time first."""
        return {"at": self.at and self.at.isoformat(), "source": self.source, "text": self.text}


@dataclass(frozen=True, slots=True)
class Diagnosis(JsonDocument):
    """The answer of `runner why`.

    Attributes:
        subject: ID of the run, pool, node or job.
        kind: `run`, `pool`, `node` or `job`.
        state: Its state in words.
        cause: Name of the cause, such as `StartTaskFailed`; None if nothing is wrong.
        message: One sentence: the cause, or what it does or waits for.
        evidence: Facts that show the cause, oldest first.
        fix: What to do, in words; empty if there is nothing to do.
        command: The next command, which runs as it is; empty if there is none.
    """

    subject: str
    kind: str
    state: str
    cause: str | None = None
    message: str = ""
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a failed run. `lines` are the lines of its output that show it."""

    cause: str
    message: str
    fix: str = ""
    lines: tuple[str, ...] = ()


_SHOWN_LINES = 12
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Failure)(?::.*)?$")
_CELL_ERROR = re.compile(r"CellExecutionError|PapermillExecutionError|DeadKernelError")
_CELL_NUMBER = re.compile(r'Exception encountered at "In \[(\d+)\]"')
# Messages of PyTorch, TensorFlow, JAX, CuPy and the driver if a GPU has no memory left.
_GPU_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|OOM when allocating tensor.*\bGPU|RESOURCE_EXHAUSTED.*(?:Out of memory|\bGPU)"
    r"|cupy\S*OutOfMemoryError",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"^(?:\w+\.)*_?\w*MemoryError\b|std::bad_alloc|can't allocate memory|Cannot allocate memory"
    r"|OOM when allocating tensor|is killed by signal: Killed|java\.lang\.OutOfMemoryError"
)
# Messages of PyTorch, TensorFlow, JAX, CuPy, CatBoost, XGBoost and LightGBM if there is no GPU.
_NO_GPU = re.compile(
    r"Found no NVIDIA driver|No (?:CUDA|HIP) GPUs are available|not compiled with CUDA enabled"
    r"|torch\.cuda\.is_available\(\) is False|no CUDA-capable device|cudaErrorNoDevice"
    r"|CUDA_ERROR_NO_DEVICE|CUDA driver version is insufficient|[Nn]o supported gpu backend"
    r"|Unknown backend:? '?(?:gpu|cuda)|device specification '/[^']*device:GPU"
    r"|Environment for task type \[GPU\] not found|visible GPU is found|No OpenCL device found"
)
# Messages of Python, Requests, httpx, aiohttp, curl, wget, git, Hugging Face and Keras if a server
# cannot be reached. A refused connection alone may be one between the nodes of a run.
_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|[Cc]ould not resolve host"
    r"|unable to resolve host|No address associated with hostname|getaddrinfo failed"
    r"|NameResolutionError|<urlopen error (?!unknown)|Max retries exceeded with url"
    r"|Network is unreachable|No route to host|Cannot connect to host|URL fetch failure on"
    r"|[Cc]ouldn't (?:connect to|reach) |(?:Connect|Read)Timeout\b"
    r"|doesn't exist on the Hugging Face Hub either"
)
_HOST = re.compile(
    r"https?://(?:[^/@\s'\"]+@)?(?P<url>[\w.-]+\.\w+)|host='(?P<requests>[\w.-]+)'"
    r"|[Cc]annot connect to host (?P<aiohttp>[\w.-]+)"
    r"|resolve host:? (?:address )?['\u2018]?(?P<curl>[\w.-]+)"
)
_NO_KERNEL = re.compile(r"needs the kernel '([\w.-]+)'")  # of `runner.hooks.notebook`
_NO_TERMINAL = re.compile(r"Inappropriate ioctl for device")  # `stty`, and the calls of Python
_NO_ANSWER = re.compile(r"EOFError: EOF when reading a line")  # `input()`
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_DISK = re.compile(r"No space left on device|Disk quota exceeded")

# `fit` of Keras 3 under MultiWorkerMirroredStrategy: its data is a PerReplica, not a tensor
# (https://github.com/keras-team/keras/issues/20585; seen with Keras 3.15 and TensorFlow 2.21).
_PER_REPLICA = re.compile(r"ValueError: Attempt to convert a value \(PerReplica:")
_FIT_OF_KERAS_3 = re.compile(r"\.fit\((?s:.)*[/\\]keras[/\\]src[/\\]utils[/\\]traceback_utils\.py")
_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'$")
# `python -m`, with which launchers such as torchrun start, prints no traceback.
_MODULE_TO_RUN = re.compile(
    r"Error while finding module specification for '[\w.]+' "
    r"\(ModuleNotFoundError: No module named '([\w.]+)'\)$"
)
# Messages about arguments that the script does not have: argparse, jsonargparse and tyro; click and
# typer; absl; Fire; HfArgumentParser; Hydra; OmegaConf. The group has the arguments.
_REFUSED = re.compile(
    r"[Uu]nrecognized (?:arguments|options): (?P<argparse>.*)"
    r"|No such option:? '?(?P<click>--[\w.-]+)|unexpected extra argument\S* \((?P<extra>.*)\)"
    r"|Unknown command line flag '(?P<absl>.*?)'|Could not consume arg: (?P<fire>.*)"
    r"|not used by the HfArgumentParser: (?P<transformers>.*)"
    r"|Could not override '(?P<hydra>.*?)'|Key '(?P<omegaconf>--.*?)' is not in struct"
)
# The same about arguments that are missing: argparse; click and tyro; Fire.
_REQUIRED = re.compile(
    r"arguments are required: (?P<argparse>.*)|Missing (?:value for )?argument '(?P<click>.*?)'"
    r"|no value for the required argument: (?P<fire>.*)"
)
# A file that does not exist: Python; programs such as `cat`; HDF5.
_NO_FILE = re.compile(
    r"No such file or directory: b?'(?P<python>[^'\n]+)'"
    r"|(?P<tool>[^\s'\":]+)['\"]?: No such file or directory"
    r"|unable to open file: name = '(?P<hdf>[^'\n]+)', errno = 2\b"
)
_IN_CODE = re.compile(r".*/wd/code/")  # the folder of the code on a node
_ABOVE_CODE = re.compile(r".*/tasks/workitems/.*/wd/")  # the folder above it
_VARIABLE = re.compile(r"KeyError: '(\w+)'$")
_IN_ENVIRON = re.compile(r'File ".*\bos(?:\.py|>)", line \d+, in __getitem__')
_TRACEBACK = "Traceback (most recent call last):"

_FIX_KERAS = (
    'use Keras 2: add `tf-keras` to the requirements and `env: {TF_USE_LEGACY_KERAS: "1"}` to '
    "train.yaml"
)
_FIX_GPU = "use a smaller batch or model, mixed precision, or a VM size with more GPU memory"
_FIX_MEMORY = "load less data at once, use fewer data loader processes, or choose a larger VM size"
_FIX_DISK = advice_for_result("DiskFull")
_FIX_NO_GPU = (
    "use a pool with GPUs (`--gpus 1`), or the option of the script that selects the CPU, if any"
)
# Checkpoints of programs for an older PyTorch have objects other than tensors.
_WEIGHTS_ONLY = re.compile(r"UnpicklingError: Weights only load failed")
_FIX_WEIGHTS_ONLY = (
    "PyTorch 2.6 and newer load only tensors by default. If you trust the file, set "
    "`--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`, or require `torch<2.6`"
)
_FIX_NO_ANSWER = "pass the answer as an argument of the script: nobody can answer its questions"
_FIX_PORT = "use the port in $MASTER_PORT, which is free in each attempt, and set `retries`"
_CAUSES_IN_OUTPUT = (
    (_GPU_MEMORY, "GpuOutOfMemory", "the GPU ran out of memory", _FIX_GPU),
    (_MEMORY, "OutOfMemory", "the script ran out of memory", _FIX_MEMORY),
    (_NO_GPU, "GpuMissing", "the script needs a GPU, and the node has none", _FIX_NO_GPU),
    (_WEIGHTS_ONLY, "ScriptError", "torch.load refused the file", _FIX_WEIGHTS_ONLY),
    (_NO_ANSWER, "TerminalMissing", "the script asks for input", _FIX_NO_ANSWER),
    (_PORT, "PortInUse", "a port that the script opens is in use on the node", _FIX_PORT),
    (_DISK, "DiskFull", "the disk of the node is full", _FIX_DISK),
)
_SIGKILL_CODES = frozenset({137, -9})


def explain_output(
    what: str,
    exit_code: int | None,
    stderr: str,
    stdout: str = "",
    spec: RunSpec | None = None,
) -> Failure:
    """Return why a script failed, from the end of its output.

    The last exception decides: a script may have caught and printed others before.

    Args:
        what: Message of the agent, such as `python train.py exited with code 1`.
        exit_code: The exit code of the script, 128 + N if signal N ended it.
        stderr: The end of its standard error.
        stdout: The end of its standard output, used if standard error is empty.
        spec: The run, whose parameters the script may have refused.
    """
    text = stderr if stderr.strip() else stdout
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    shown = tuple(lines[-_SHOWN_LINES:])
    last = next((n for n in reversed(range(len(lines))) if _ERROR_LINE.match(lines[n])), None)
    # Without an exception (a program in another language), the last lines of stderr decide.
    ends = lines[-_SHOWN_LINES:] if stderr.strip() else []
    final = "\n".join(ends if last is None else lines[last:][:_SHOWN_LINES])
    cell = _find_cell(lines)
    if cell is not None and last is not None:
        number, source = cell
        where = f"cell {number} of the notebook" if number else "a cell of the notebook"
        return Failure(
            "NotebookCellFailed", f"{where} failed: {lines[last]}",
            _fix_cell(lines[last]) or "correct the cell", (*source, lines[last]),
        )  # fmt: skip
    shown_error = f"{what}: {lines[last]}" if last is not None else what
    known = None if last is None else _explain_exception(lines[: last + 1], shown_error)
    if known or (known := spec and _explain_arguments(final, spec, what, shown)):
        return known
    if last is None and ends and (missing := _MODULE_TO_RUN.search(ends[-1])):
        return Failure("ModuleMissing", what, _fix_module(missing[1]), shown)
    starts = [n for n, line in enumerate(lines) if line.strip() == _TRACEBACK]
    before = lines[starts[-1] - 1] if starts and starts[-1] else ""  # of a program such as `stty`
    if _NO_TERMINAL.search(final if _ERROR_LINE.match(before) else f"{before}\n{final}"):
        message = f"the script needs a terminal, which a run does not have: {shown_error}"
        return Failure("TerminalMissing", message, _fix_terminal(spec), shown)
    return _explain_text(final, shown_error, spec, shown) or _explain_exit(
        what, exit_code, shown_error, shown
    )


def _explain_text(
    final: str, message: str, spec: RunSpec | None, shown: tuple[str, ...]
) -> Failure | None:
    """Return the cause that a known message of a library or the system shows, or None."""
    for pattern, cause, text, fix in _CAUSES_IN_OUTPUT:
        if pattern.search(final):
            return Failure(cause, text, fix, shown)
    if _NO_NETWORK.search(final):
        return Failure("NetworkMissing", message, _fix_network(final), shown)
    if found := _NO_FILE.search(final):
        return _explain_missing_file(found[found.lastgroup or 0], message, spec, shown)
    return None


def _explain_exit(
    what: str, exit_code: int | None, shown_error: str, shown: tuple[str, ...]
) -> Failure:
    if exit_code in _SIGKILL_CODES:
        message = (
            f"{what}; the kernel kills a process with SIGKILL when the node runs out of memory"
        )
        return Failure("Killed", message, _FIX_MEMORY, shown)
    return Failure("ScriptError", shown_error, "correct the script", shown)


def _explain_arguments(
    text: str, spec: RunSpec, what: str, shown: tuple[str, ...]
) -> Failure | None:
    """Return the cause if the script refused the argument that passes a parameter, else None."""
    found = _REFUSED.search(text) or _REQUIRED.search(text)
    if found is None:
        return None
    words = found[found.lastgroup or 0]
    params = {**(spec.trial or {}).get("params", {}), **spec.params}
    name = next((each for each in params if _mentions(words, each)), None)
    if name is None:
        return None
    start = f"runner train RECIPE --set {name}=VALUE"
    if spec.trial:
        start = f"runner sweep start RECIPE --param {name}=VALUES"
    usage = "\n".join(shown)
    before = _words_before_options(spec.template or spec.command)
    rest = f" -- {shlex.join(before)}" if before else ""
    in_place = f"{start} -- {shlex.join((*before, f'{{{name}}}'))}"
    is_positional = (
        found.re is _REQUIRED
        or (found.lastgroup == "argparse" and words.strip() == f"--{name}")
        or re.search(rf"^Usage: .* {re.escape(name.upper())}\b", usage, re.MULTILINE)  # click
    )
    if found.lastgroup == "hydra":
        added = start.replace(f" {name}=", f" +{name}=")
        fix = f"use a key of the configuration, or add {name} to it: `{added}{rest}`"
    elif "--hydra-help" in usage or found.lastgroup == "omegaconf":
        if spec.params_as != "flags":
            return None
        fix = f"the script reads NAME=VALUE: `{start} --params-as hydra{rest}`"
    elif spec.params_as != "flags":
        fix = f"the script reads no NAME=VALUE: `{start} --params-as flags{rest}`"
    elif found.re is _REQUIRED and f"--{name}" in re.split(r"[\s,/]+", words):
        place = f"{{{name}}}"
        option = (f"--{name}", place, *(word for word in before if word != place))
        fix = f"the script expects the option first: `{start} -- {shlex.join(option)}`"
    elif is_positional:
        fix = f"{name} is a positional argument of the script: `{in_place}`"
    else:
        fix = (
            f"use the name of an option of the script instead of {name}. If it reads NAME=VALUE: "
            f"`{start} --params-as key=value{rest}`. For a positional argument: `{in_place}`"
        )
    line = next(each for each in text.splitlines() if found[0] in each).strip(" │")
    return Failure("ArgumentRefused", f"{what}: {line}", fix, shown)


def _words_before_options(command: Sequence[str | None]) -> tuple[str, ...]:
    """Return the words between the Python script of a command and the first option, if any."""
    # None in a template stands for options.
    words = ["--" if word is None else word for word in command]
    script = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
    rest = words[script + 1 :]
    return tuple(takewhile(lambda word: not word.startswith("-") and "=" not in word, rest))


def _mentions(words: str, name: str) -> bool:
    """Return True if a parameter is one of the arguments in a message."""
    return bool(re.search(rf"(?<![\w.=-])(?:--)?{re.escape(name)}(?![\w.-])", words, re.IGNORECASE))


def _explain_missing_file(
    path: str, message: str, spec: RunSpec | None, shown: tuple[str, ...]
) -> Failure:
    """Return the failure of a script that reads a file which is not on the node."""
    relative = _ABOVE_CODE.sub("../", _IN_CODE.sub("", path))
    relative = posixpath.normpath(relative)
    name = stored_path(relative)
    for each in spec.code.left_out if spec else ():
        if name == each.path.rstrip("/") or (
            each.path.endswith("/") and name.startswith(each.path)
        ):
            return Failure(
                "FileMissing",
                f"{message}: {each.path} was not sent ({each.rule})",
                f"add the line !{each.path} to .runnerignore to send it, or pass it with "
                f"--input NAME={shlex.quote(each.path)}, and read $RUNNER_INPUT_NAME",
                shown,
            )
    if relative.startswith("../"):
        fix = (
            f"{relative} is outside of the folder that was sent: train a folder that has both, "
            f"with --entry, or pass it with --input NAME={shlex.quote(relative)}, and read "
            "$RUNNER_INPUT_NAME"
        )
        return Failure("FileMissing", message, fix, shown)
    if relative.startswith(("/", "~")):
        fix = f"pass it with --input NAME={shlex.quote(path)}, and read $RUNNER_INPUT_NAME"
        return Failure("FileMissing", message, fix, shown)
    fix = (
        "send the file with the code (`runner train . --dry-run` names what is left out), pass it "
    )
    fix += "with --input NAME=PATH, or create the folder that the script writes to"
    return Failure("FileMissing", message, fix, shown)


def _fix_module(name: str) -> str:
    package = package_of(name.partition(".")[0])
    return (
        f"add the package of module {name} to the requirements or with `--package {package}`, or "
        "the file to the code"
    )


def _fix_network(text: str) -> str:
    """Return what to do about a download that failed; the text may name the server."""
    found = _HOST.search(text)
    host = found[found.lastgroup or 0] if found else "the server"
    return (
        f"the node cannot reach {host}: allow it in the network of the pool, or download the files "
        "here, pass them with --data PATH or --input NAME=PATH, and let the script read "
        "$RUNNER_DATA_DIR or $RUNNER_INPUT_NAME"
    )


def _fix_terminal(spec: RunSpec | None) -> str:
    command = shlex.join(spec.command) if spec else "python train.py"
    started = shlex.join(("script", "-qec", command, "/dev/null"))
    return f"start the script in a terminal of its own, with `command: {started}` in train.yaml"


def _fix_cell(error: str) -> str:
    """Return what to do about the exception of a notebook's cell; empty if it is unknown."""
    if missing := _MODULE.search(error):
        return _fix_module(missing[1])
    if kernel := _NO_KERNEL.search(error):
        return f"install the kernel {kernel[1]}: --package with its package, or use an `image`"
    known = _explain_text(error, error, None, ())
    return known.fix if known and known.cause != "FileMissing" else ""


def _explain_exception(lines: Sequence[str], message: str) -> Failure | None:
    """Return the cause of the exception in the last line, or None if it is unknown."""
    starts = [n for n, line in enumerate(lines) if line.strip() == _TRACEBACK]
    trace = lines[starts[-1] :] if starts else lines[-1:]
    shown = tuple(trace[-_SHOWN_LINES:])
    if _PER_REPLICA.match(lines[-1]) and _FIT_OF_KERAS_3.search("\n".join(trace)):
        what = "`fit` of Keras 3 does not work with MultiWorkerMirroredStrategy"
        return Failure("KerasMultiWorker", what, _FIX_KERAS, shown)
    if missing := _MODULE.match(lines[-1]):
        return Failure("ModuleMissing", message, _fix_module(missing[1]), shown)
    if (missing := _VARIABLE.match(lines[-1])) and _IN_ENVIRON.search("\n".join(trace[-4:])):
        fix = advise_variable(missing[1])
        if not fix and not missing[1].startswith(("RUNNER_", "AZ_BATCH_")):
            fix = f"set {missing[1]} with --env or under `env`"
        return Failure("VariableMissing", message, fix or "correct the script", shown)
    return None


def _find_cell(lines: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the number and the source of the failed cell of a notebook, or None.

    The number is empty if the output, of papermill or nbclient, does not contain it.
    """
    if not any(_CELL_ERROR.search(line) for line in lines):
        return None
    number = next((m[1] for line in reversed(lines) if (m := _CELL_NUMBER.search(line))), "")
    rules = [n for n, line in enumerate(lines) if re.fullmatch(r"-{10,}", line.strip())]
    # nbclient prints the source of the cell between the first two rules.
    source = tuple(lines[rules[0] + 1 : rules[1]][:_SHOWN_LINES]) if len(rules) > 1 else ()
    return number, source if not number else ()


# Codes of results that `runner why` names differently.
_CAUSES = {
    "Timeout": "TimeLimit",
    "Blocked": "BlockedDependency",
}


def explain_result(
    result: RunResult, stderr: str = "", stdout: str = "", spec: RunSpec | None = None
) -> Failure | None:
    """Return the cause of a failure, or None for a run that succeeded or that a user cancelled."""
    message = result.message or ""
    if result.status == "succeeded":
        return None
    if result.status == "cancelled":
        if result.code == SWEEP_FAILED:
            fix = "find the cause of the first failures, correct it, and start another sweep"
            return Failure(SWEEP_FAILED, message, fix)
        if result.code != "Blocked":
            return None
        return Failure(
            "BlockedDependency", message, "correct the run that it depends on, then retry both"
        )
    if result.code in (None, "CommandFailed"):
        what = message or f"the script ended with {describe_exit(result.exit_code or 1)}"
        return explain_output(what, result.exit_code, stderr, stdout, spec)
    cause = _CAUSES.get(result.code, result.code)
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()][-_SHOWN_LINES:]
    shows_output = result.code in (
        "EnvironmentFailed",
        "PackagesUnreachable",
        "PythonMissing",
        "PreparationFailed",
        "Timeout",
        "OutOfMemory",
        "Hung",
        "Idle",
        "NotebookCellFailed",
    )
    fix = advice_for_result(result.code, result.message)
    if result.code == "NotebookCellFailed":
        fix = _fix_cell(message) or fix
    return Failure(cause, message, fix, tuple(lines) if shows_output else ())


_HINT_SHARE = 0.5  # of the time in which all GPUs were idle
_HINT_S = 120.0  # shorter runs mostly start and end
_BUSY_CORES = 0.7


def explain_idle_gpus(used: DeviceSummary) -> Failure | None:
    """Return a hint if the GPUs of a run were idle most of the time, or None.

    The name of its cause is empty, because the run may be right.
    """
    share = used.gpu_idle_share
    if share is None or share < _HINT_SHARE or used.measured_s < _HINT_S:
        return None
    what = "the GPU was" if used.gpus < 2 else f"all {used.gpus} GPUs were"
    message = f"{what} idle for {share * 100:.0f} % of {format_duration(used.measured_s)}"
    cores = used.script_cores or 0.0
    if cores >= _BUSY_CORES:
        return Failure(
            "",
            f"{message}, and {cores:.2g} cores were busy: it may wait for its data loading",
            "load and convert data in several processes, such as with `num_workers` of a "
            "DataLoader, or in advance in a run without a GPU",
        )
    return Failure(
        "",
        f"{message}, and so was the CPU: it may wait for storage, the network or an end",
        "read data from the disk of the node, as `data` and `inputs` of train.yaml provide it, and "
        "let the script exit when it has finished",
    )


_TASK_CAUSES = {
    "BlobNotFound": "CodeMissing",
    "ContainerInvalidImage": "ImageNotPulled",
    "ContainerInvalidRegistry": "RegistryDenied",
    "DiskFull": "DiskFull",
    "TaskEnded": "TimeLimit",
}
# Error of an identity without a role, and of a SAS without the permission.
_NO_PERMISSION = "AuthorizationPermissionMismatch"


def explain_task_end(task: TaskView, output: str = "", *, identity: bool = False) -> Failure:
    """Return why a task ended without a result, from its codes and the end of its output.

    With `identity`, the node signs in to storage as a managed identity instead of with a SAS.
    """
    message, fix = explain_task(task)
    lines = tuple(line for line in output.splitlines() if line.strip())[-_SHOWN_LINES:]
    cause = _TASK_CAUSES.get(task.failure_code or "", "TaskFailed")
    if task.exit_code == OTHER_AGENT:
        cause = "AgentReplaced"
    if task.failure_code == "BlobAccessDenied" or task.exit_code == NO_ACCESS:
        no_role = identity or _NO_PERMISSION in output
        cause = "IdentityWithoutRole" if no_role else "SasExpired"
    return Failure(cause, message, fix, lines)


_MIN_SILENCE = timedelta(minutes=15)
_MIN_METRICS = 5  # fewer do not show how often the script reports a metric
_PAUSE_FACTOR = 5


def explain_silence(
    metrics: Sequence[datetime], written: Sequence[datetime | None], now: datetime
) -> Failure | None:
    """Return a failure if a running script makes no progress, else None.

    The limit is 15 minutes, and five times the longest pause between two metrics. A script without
    metrics is never reported.

    Args:
        metrics: The times of the metrics of this attempt, by the clock of the node.
        written: When the output or metrics of each rank last grew, by the clock of storage.
        now: The current time.
    """
    times = sorted(set(metrics))
    newest = max(filter(None, written), default=None)
    if len(times) < _MIN_METRICS or newest is None:
        return None
    pause = max(later - earlier for earlier, later in pairwise(times))
    if now - newest < max(_MIN_SILENCE, _PAUSE_FACTOR * pause):
        return None
    silent = format_duration((now - newest).total_seconds())
    usual = format_duration(pause.total_seconds())
    oldest = datetime.min.replace(tzinfo=UTC)
    rank = min(range(len(written)), key=lambda each: written[each] or oldest)
    who = "the script has"
    if len(written) > 1:
        who = f"rank {rank} was the first to stop, and all ranks have"
    return Failure(
        "HungRank" if len(written) > 1 else "NoProgress",
        f"{who} written nothing for {silent}; before, the longest pause was {usual}",
        "inspect its processes, for example with `py-spy dump`, then cancel the run",
    )
