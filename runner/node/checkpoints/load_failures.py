"""Decide whether a script failed while it loaded its checkpoint.

The agent does not know what a script does, so it compares what it can see, and returns False in
doubt: then the attempt fails as any other. docs/decisions/0023-checkpoints-that-cannot-be-loaded.md
has the reasons for each condition.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from runner.node.checkpoints.restore import RESTORE_STAGE
from runner.node.checkpoints.snapshot import (
    FileState,
    FolderListing,
    TooManyFilesError,
    has_same_state,
    list_folder,
)
from runner.node.failures import StageFailedError
from runner.protocol.checkpoints import ResumeHistory
from runner.protocol.host import format_usd
from runner.protocol.run_spec import RunSpec
from runner.protocol.usage import Read, load_work_ms

RESUME_FAILED = "ResumeFailed"  # code of a run that may not start from the beginning
# Without a known time until the first checkpoint, a script that fails later was training.
SHORTEST_S = 60.0
LONGEST_S = 600.0
_CODES = frozenset({"CommandFailed", "NotebookCellFailed"})
# Signals that end a script from outside, and codes of a shell that cannot run a command.
_STOPPED = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_NOT_RUN = frozenset({126, 127})
_TAIL_BYTES = 65_536
_MAX_MESSAGE = 200
# The last line of a traceback; torchrun prefixes the lines of its processes.
_ERROR = re.compile(
    r"(?m)^(?:\[[\w.]+\]:\s?)?((?:\w+\.)*(\w*(?:Error|Exception|Failure|Exit|Warning)))(?::.*)?$"
)
# Colours and other escape sequences of terminals, which PyTorch and Rich also write to files.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
# What programs write that raise no exception: argparse, click, compilers, shells, `sys.exit(text)`.
_COMPLAINT = re.compile(
    r"\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL|[Ff]ailed|[Ii]nvalid|[Nn]o such|[Nn]ot found|[Cc]annot"
    r"|[Cc]ould not|[Dd]enied|[Uu]nknown|[Uu]nrecognized|[Mm]issing)\b"
)
_LAST_LINES = 12
# Launchers raise it when a process of theirs failed.
_OF_LAUNCHER = frozenset({"ChildFailedError", "CalledProcessError", "ProcessRaisedException"})
# Errors that have other causes than the content of a checkpoint, so that another one cannot help.
_OTHER_CAUSE = re.compile(
    r"ModuleNotFoundError|KeyboardInterrupt|MemoryError|[Oo]ut ?[Oo]f ?[Mm]emory|bad_alloc"
    r"|Connection\w*Error|Timeout\w*|\bgaierror|HTTPError|URLError|SSLError"
    r"|[Aa]ddress already in use|No space left|quota exceeded|Read-only file system"
    r"|NCCL|no CUDA-capable device|CUDA driver"
)


class LoadWatch:
    """Records what a restore left in the checkpoint folder, to see what the script did with it.

    Create an instance after the restore, before the script starts.
    """

    def __init__(self, folder: Path, restored: FolderListing) -> None:
        self._folder = folder
        self._restored = restored
        self._read_at = _access_times(folder, restored.files)

    def has_new_state(self) -> bool:
        """Return True if the script changed, added or removed a file, or if this is unknown."""
        try:
            return not has_same_state(list_folder(self._folder), self._restored)
        except (OSError, TooManyFilesError):
            return True

    def was_read(self) -> bool:
        """Return True if the script read a file, or if the file system does not record this."""
        now = _access_times(self._folder, self._restored.files)
        if any(now.get(path, time) != time for path, time in self._read_at.items()):
            return True
        return bool(self._read_at) and not _records_access(self._folder.parent)


def _access_times(folder: Path, paths: Mapping[str, FileState]) -> dict[str, int]:
    times: dict[str, int] = {}
    for path in paths:
        with suppress(OSError):
            times[path] = (folder / path).stat(follow_symlinks=False).st_atime_ns
    return times


def _records_access(folder: Path) -> bool:
    """Return True if the file system records when files are read (mount option `relatime`)."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".read-") as file:
            file.write(b"x")
            file.flush()
            path = Path(file.name)
            os.utime(path, ns=(1, 1))
            path.read_bytes()
            return path.stat().st_atime_ns != 1
    except OSError:
        return False


def limit_s(first_commit_ms: int | None) -> float:
    """Return the time within which a script that loads a checkpoint fails.

    Args:
        first_commit_ms: how long the attempt that saved the checkpoint took until its first one.
    """
    known_s = 0.0 if first_commit_ms is None else first_commit_ms / 1000
    return min(max(known_s, SHORTEST_S), LONGEST_S)


def may_be_load_failure(failure: StageFailedError) -> bool:
    """Return True if the script ended by itself with an error."""
    code = failure.exit_code or 0
    is_stopped = code > 128 and code - 128 in _STOPPED
    return failure.code in _CODES and not is_stopped and code not in _NOT_RUN


def read_error(stderr: Path, code: Path) -> tuple[str, str]:
    """Return the name and the line of the last exception in a script's stderr.

    Paths in its folder `code` are shown as relative ones. Without an exception, the name is empty,
    and the line is the last one that complains, such as that of argparse; or empty, too.
    """
    try:
        with stderr.open("rb") as source:
            source.seek(max(stderr.stat().st_size - _TAIL_BYTES, 0))
            text = _ESCAPES.sub("", source.read().decode("utf-8", errors="replace"))
    except OSError:
        return "", ""
    text = text.replace(f"{code}/", "")
    for found in reversed(list(_ERROR.finditer(text))):
        if found[2] not in _OF_LAUNCHER:
            line = found[0][found.start(1) - found.start() :]
            return found[1], _one_line(line)
    ends = (line.strip(" │") for line in reversed(text.splitlines()[-_LAST_LINES:]))
    return "", _one_line(next(filter(_COMPLAINT.search, ends), ""))


def _one_line(text: str) -> str:
    return textwrap.shorten(text, _MAX_MESSAGE, placeholder=" …").rstrip(".")


def has_other_cause(line: str) -> bool:
    """Return True if an error has another cause than the content of a checkpoint."""
    return bool(_OTHER_CAUSE.search(line))


def check_cap(get: Read, spec: RunSpec, history: ResumeHistory) -> None:
    """Raise StageFailedError if the cap of the costs does not allow to repeat the lost work."""
    if spec.max_cost_micros is None or spec.job_limit_s is None:
        return
    passed = datetime.now(timezone.utc) - spec.created  # noqa: UP017  the agent runs on 3.10
    left_s = max(spec.job_limit_s - passed.total_seconds(), 0.0)
    own = [each.of_attempt for each in history.failures if each.run_id == spec.run_id]
    # How long scripts ran for the checkpoints that cannot be loaded.
    repeated_ms = load_work_ms(get, spec.run_id, max(own, default=0))
    if spec.resume_from is not None:
        repeated_ms += load_work_ms(get, spec.resume_from.run_id, None)
    repeated_s = repeated_ms / 1000
    if repeated_s <= left_s:
        return
    costs = spec.max_cost_micros * repeated_s / spec.job_limit_s
    raise StageFailedError(
        RESTORE_STAGE,
        RESUME_FAILED,
        f"{history.describe()}. A start from the beginning repeats "
        f"{_duration(repeated_s)} of work, and the cost cap of {format_usd(spec.max_cost_micros)} "
        f"leaves {_duration(left_s)}: `runner resume {spec.run_id} --fresh` would cost up to "
        f"{format_usd(costs)} for this work",
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
