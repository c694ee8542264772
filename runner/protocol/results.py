"""The records of a run: result.json, the records and events of its attempts, and its index entry.

Each run has its own folder, so one listing cannot return the documents of all runs. Therefore each
run also has two empty blobs, `index/<run_id>` and `by-time/<time>-<run_id>`, whose metadata contain
the values of its row in lists of runs. A listing of the second folder begins with the newest run.
These are copies. If the result in an entry is missing, readers use the documents of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from runner.protocol.checkpoints import ResumeFailure
from runner.protocol.codec import (
    DAMAGED,
    FORMAT,
    NOT_STORED,
    JsonDocument,
    JsonObject,
    or_none,
    read,
    wire,
    write,
)
from runner.protocol.host import format_size
from runner.protocol.metrics import MetricValue, json_value
from runner.protocol.paths import is_run_id
from runner.protocol.run_spec import broken_document, parse_document

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

ResultStatus = Literal["succeeded", "failed", "cancelled"]

NO_UV = "uv is not installed on this node"  # how the `message` of EnvironmentFailed begins then
STOPPED_EARLY = "StoppedEarly"  # `code` of a trial that its sweep stopped, which succeeded


@dataclass(frozen=True, slots=True)
class OutputFile(JsonDocument):
    """One exported file; `path` is relative to the output folder and never leaves it.

    Attributes:
        path: The stored path, see `names`.
        source: The place that the script wrote it to; None for `$RUNNER_OUTPUT_DIR`. `code` is the
            folder of the script, `home` its home folder, and `temp` its `$TMPDIR`. Any other value
            is the path of the file.
        attempt: The earlier attempt that wrote it; None for the last attempt.
        partial: True if the attempt ended while the script may have been writing the file.
    """

    path: str
    size_bytes: int
    sha256: str
    source: str | None = field(default=None, metadata=wire(omit="default"))
    attempt: int | None = field(default=None, metadata=wire(omit="default"))
    partial: bool = field(default=False, metadata=wire(omit="default"))


# Why a file was not kept, and how to keep it.
_LEFT_OUT = {
    "size": "above the size limit",
    "count": "too many files",
    "data": "looks like downloaded data",
    "temporary": "looks like a temporary file",
    "cache": "in a cache or a hidden folder; write it to $RUNNER_OUTPUT_DIR to keep it",
    "search": "not searched completely: too many files, or no time left",
    "unreadable": "not readable",
    "private": "may be a key or a password; write it to $RUNNER_OUTPUT_DIR to keep it",
    "transfer": "upload failed",
    "time": "no time was left",
    "disk": "the disk is full",
    "path": "its path leaves the output folder",
}


@dataclass(frozen=True, slots=True)
class LeftOut(JsonDocument):
    """A file, or a folder with `files` files, that the script wrote and runner did not keep."""

    path: str
    size_bytes: int = field(metadata=wire(missing=0))
    why: str = field(metadata=wire(missing=""))
    files: int = 1

    def __str__(self) -> str:
        """Return a phrase for people."""
        count = f"{self.files} files, " if self.files > 1 else ""
        why = _LEFT_OUT.get(self.why, self.why)
        if self.why == "search":
            return f"{self.path}: {why}"
        return f"{self.path} ({count}{format_size(self.size_bytes)}): {why}"


def check_output_path(path: str) -> str:
    """Return the path. Raise ValueError if it leaves the output folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or path[0] == "/" or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} leaves the output folder")
    return path


def _read_output(path: object) -> str:
    return check_output_path(str(path or "output/"))


def _read_status(status: Any) -> ResultStatus:
    if status not in get_args(ResultStatus):
        raise ValueError(f"status {status!r}")
    return status


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="microseconds")


def _metrics_json(metrics: Mapping[str, float]) -> dict[str, MetricValue]:
    return {name: json_value(value) for name, value in metrics.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(JsonDocument):
    """`result.json`: the outcome, which never changes.

    Attributes:
        attempt: The number of the last attempt, 0 if none started.
        evicted: Earlier attempts that were lost with their node; None if unknown.
        error: The last exception of a script that failed, in one line, or its complaint.
        rank: Rank of the node that failed.
        output: Folder of the outputs, relative to the run's folder, with a slash at the end.
        partial: True if the outputs are those of a script that did not succeed.
        left_out: Files that the script wrote and runner did not keep.
        kept_until: Latest time until which the node is kept after a failure; None if it is not.
        checkpoint: Summary of the checkpoints of the attempt.
        devices: What the attempt used of the first node, a `DeviceSummary`.
        raw: The document that was read.
    """

    status: ResultStatus = field(metadata=wire(read=_read_status))
    attempt: int = field(metadata=wire(missing=0))
    evicted: int | None = field(default=None, metadata=wire(read=or_none(int)))
    exit_code: int | None = None
    step: str | None = None
    code: str | None = None
    message: str | None = None
    error: str | None = field(default=None, metadata=wire(omit="default"))
    rank: int = field(default=0, metadata=wire(omit="default"))
    started: datetime | None = field(default=None, metadata=wire(write=_time_text))
    ended: datetime | None = field(default=None, metadata=wire(write=_time_text))
    stages_s: Mapping[str, float] = field(default_factory=dict[str, float])
    metrics: Mapping[str, float] = field(
        default_factory=dict[str, float], metadata=wire(write=_metrics_json)
    )
    output: str = field(default="output/", metadata=wire(read=_read_output))
    outputs: tuple[OutputFile, ...] = ()
    partial: bool = field(default=False, metadata=wire(omit="default"))
    left_out: tuple[LeftOut, ...] = field(default=(), metadata=wire(omit="default"))
    checkpoint: Mapping[str, Any] | None = None
    devices: Mapping[str, Any] | None = field(default=None, metadata=wire(omit="default"))
    kept_until: datetime | None = field(
        default=None, metadata=wire(write=_time_text, omit="default")
    )
    raw: Mapping[str, Any] = field(
        default_factory=dict[str, Any], compare=False, repr=False, metadata=NOT_STORED
    )

    def to_json(self, run_id: str = "") -> dict[str, Any]:
        """Return result.json, without `output` and `checkpoint` if the run never started."""
        found = {"format": FORMAT, "run_id": run_id, **write(self)}
        if self.attempt <= 0 or self.status == "cancelled":
            del found["output"], found["checkpoint"]
        return found

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read result.json. Outputs that leave the output folder are in `left_out` instead."""
        refused: list[LeftOut] = []
        given |= {"outputs": parse_outputs(raw.get("outputs") or (), refused.append), "raw": raw}
        found = read(cls, {**raw, "outputs": ()}, **given)
        return replace(found, left_out=(*found.left_out, *refused)) if refused else found


@dataclass(frozen=True, slots=True)
class NodeTimes(JsonDocument):
    """Times of a node, which Batch knows only while the node exists; "" is unknown.

    Attributes:
        booted: When its kernel started. Nodes of the emulator share the kernel of their machine.
        created: When its folders were created.
        ready: When its start task last wrote output.
    """

    booted: str = field(default="", metadata=wire(omit="default"))
    created: str = field(default="", metadata=wire(omit="default"))
    ready: str = field(default="", metadata=wire(omit="default"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart(JsonDocument):
    """`attempts/<n>/start.json`: the node of an attempt.

    Attributes:
        stdout_offset: Bytes in the log before this attempt.
        work_dir: The task's folder on the node, for people; empty in older documents.
        dedicated: None in older documents.
        host: Host name.
        evictions: Evictions of a rehearsal before this attempt; None without a rehearsal.
        signs: True if the agent writes signs of life to the events of the attempt.
        host_keys: The public SSH host keys of the node, such as `ssh-ed25519 AAAA…`.
    """

    attempt: int
    node: str = ""
    pool: str = ""
    dedicated: bool | None = None
    started: str = ""
    host: str = ""
    work_dir: str = ""
    stdout_offset: int = field(default=0, metadata=wire("log_offsets.stdout"))
    stderr_offset: int = field(default=0, metadata=wire("log_offsets.stderr"))
    rank: int = field(default=0, metadata=wire(omit="default"))
    evictions: int | None = field(default=None, metadata=wire(read=or_none(int), omit="default"))
    node_times: NodeTimes = field(default=NodeTimes(), metadata=wire(omit="default"))
    signs: bool = field(
        default=False, metadata=wire(read=lambda value: value is True, omit="default")
    )
    host_keys: tuple[str, ...] = field(default=(), metadata=wire(omit="default"))


@dataclass(frozen=True, slots=True)
class AttemptEnd(JsonDocument):
    """`attempts/<n>/end.json`: why an attempt ended. An attempt on a lost node has none.

    `node_ends` is the time for which Azure announced the eviction of the node, if it did.
    `resume_failed` is set if its script failed while it loaded a checkpoint.
    """

    attempt: int
    ended: str = ""
    why: str = ""
    exit_code: int | None = None
    step: str | None = None
    checkpoint: Mapping[str, Any] | None = None
    message: str | None = field(default=None, metadata=wire(omit="default"))
    node_ends: str = field(default="", metadata=wire(omit="default"))
    resume_failed: ResumeFailure | None = field(default=None, metadata=wire(omit="default"))

    @property
    def was_requeued(self) -> bool:
        """True if Batch requeued the task on request, for example for a pause, not by an eviction.

        Only valid for runs on one node, because notices of other nodes are not recorded here.
        """
        return self.why == "terminated" and not self.node_ends

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read end.json; a damaged `resume_failed` counts as none."""
        failed = None
        with suppress(*DAMAGED):
            failed = ResumeFailure.from_json(raw["resume_failed"], attempt=int(raw["attempt"]))
        return read(cls, {**raw, "resume_failed": None}, resume_failed=failed, **given)


@dataclass(frozen=True, slots=True)
class HoldEnd(JsonDocument):
    """`attempts/<n>/hold.json`: when the node that was kept after a failure was released.

    `why` is `time`, `stopped` (Batch ended the task) or `evicted`. It is missing if the agent was
    killed.
    """

    attempt: int
    ended: str = ""
    why: str = ""


def parse_result(data: bytes, run_id: str) -> RunResult:
    """Read result.json. Raise RunnerError if it is damaged."""
    raw = parse_document(data, run_id, "result.json")
    try:
        return RunResult.from_json(raw)
    except DAMAGED as err:
        raise broken_document(run_id, "result.json", err) from err


def parse_outputs(
    listed: Iterable[Mapping[str, Any]],
    refuse: Callable[[LeftOut], object],
    *,
    folder: str = "",
) -> tuple[OutputFile, ...]:
    """Read a list of exported files; skip paths that leave the output folder.

    Args:
        listed: The documents of the files.
        refuse: Called with each file whose path leaves the output folder.
        folder: Prefix of the paths of a rank, unless an entry names another folder.
    """
    outputs: list[OutputFile] = []
    for entry in listed:
        path = f"{(entry.get('folder') or folder) if folder else ''}{entry['path']}"
        try:
            check_output_path(path)
        except ValueError:
            refuse(LeftOut(path.replace("\0", "?"), int(entry["size_bytes"]), "path"))
        else:
            outputs.append(OutputFile.from_json({**entry, "path": path}))
    return tuple(outputs)


StageState = Literal["start", "progress", "end", "failed"]
# Events that do not change the current stage.
SIDE_STAGES = frozenset({"checkpoint", "metrics", "notice"})
# The stage of lines that only show that the agent was alive at their time. They are no events.
ALIVE_STAGE = "alive"
_MIN_SIGN_S, _MAX_SIGN_S = 5.0, 300.0
_SIGN_SHARE = 0.1  # of the time since the start of the attempt


def sign_interval_s(age_s: float) -> float:
    """Return the seconds from one sign of life of an agent to the next.

    Args:
        age_s: Seconds since the start of the attempt.
    """
    return min(max(_SIGN_SHARE * age_s, _MIN_SIGN_S), _MAX_SIGN_S)


def _read_state(state: Any) -> StageState:
    if state not in get_args(StageState):
        raise ValueError(f"state {state!r}")
    return state


@dataclass(frozen=True, slots=True)
class StageEvent(JsonDocument):
    """One line of `events.jsonl`, without `attempt`, which is in the name of the blob."""

    attempt: int = field(metadata=NOT_STORED)
    time: str = field(metadata=wire(read=str, missing=""))
    stage: str
    state: StageState = field(metadata=wire(read=_read_state))
    message: str = field(metadata=wire(missing=""))
    done: float | None = field(default=None, metadata=wire(omit="default"))
    total: float | None = field(default=None, metadata=wire(omit="default"))
    unit: str | None = field(default=None, metadata=wire(omit="default"))


def parse_event_line(line: str, attempt: int) -> StageEvent | None:
    """Read a line of events.jsonl. Return None if it is damaged, or only a sign of life."""
    event = StageEvent.load(line, attempt=attempt)
    return None if event is None or event.stage == ALIVE_STAGE else event


INDEX_FOLDER = "index/"
# The metadata of a blob has at most 8 KB (REST docs, "Setting and retrieving properties").
LIMIT_BYTES = 7000
MESSAGE_CHARACTERS = 300
COMMAND_CHARACTERS = 1000  # a longer command is left out

_RUN = (
    "format", "run_id", "experiment", "created", "params", "origin", "group", "after",
    "max_cost_micros",
)  # fmt: skip
_TRIAL = ("name", "number", "params", "metric", "goal")
_BATCH = ("pool", "vm_size", "spot", "job_id", "task_id")
_RESULT = (
    "format", "run_id", "status", "attempt", "evicted", "exit_code", "step", "code", "error",
    "started", "ended", "metrics", "kept_until",
)  # fmt: skip


def index_blob(run_id: str) -> str:
    """Return the blob of a run's index entry."""
    return f"{INDEX_FOLDER}{run_id}"


BY_TIME_FOLDER = "by-time/"
# The first blob of that folder: the index by time has an entry for every run. Written by clients.
BY_TIME_MARK = f"{BY_TIME_FOLDER}.complete"
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_STAMP_DIGITS = 14
_STAMP_IN_ID = re.compile(r"-([0-9*]{8})-([0-9*]{6})-[^-]{4}\Z")


def by_time_blob(run_id: str) -> str:
    """Return the blob of a run's entry in the index by time.

    Its name has the nine's complement of each digit of the submission's time, so that a listing
    begins with the newest run. A run ID of another form sorts last. Placeholders (`*`) remain.
    """
    found = _STAMP_IN_ID.search(run_id)
    stamp = (found[1] + found[2]).translate(_COMPLEMENT) if found else "9" * _STAMP_DIGITS
    return f"{BY_TIME_FOLDER}{stamp}-{run_id}"


def parse_by_time(blob: str) -> tuple[str, str] | None:
    """Return the complement of the time and the run ID of an entry, or None for another blob."""
    stamp, _, run_id = blob.removeprefix(BY_TIME_FOLDER).partition("-")
    return (stamp, run_id) if is_run_id(run_id) and by_time_blob(run_id) == blob else None


def complement_of(moment: datetime) -> str:
    """Return the text with which the entries of a second begin in the index by time."""
    return f"{moment:%Y%m%d%H%M%S}".translate(_COMPLEMENT)


def index_blobs(run_id: str) -> tuple[str, str]:
    """Return the blobs of a run's entries in both indexes, which have the same metadata.

    Lists read the second one. The first one is for older versions, and lists names by prefix.
    """
    return index_blob(run_id), by_time_blob(run_id)


def index_metadata(
    run: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    attempts: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the metadata of an index entry: `run`, `result` and `attempts`.

    Each is a part of the document. Values that exceed the limit are omitted. Readers then read the
    documents.
    """
    metadata = {"run": _text(_run_part(run))}
    if result is not None:
        metadata["result"] = _text(_result_part(result))
    if attempts is not None:
        metadata["attempts"] = _text(attempts)
    for name in ("attempts", "result", "run"):
        if sum(map(len, metadata.values())) <= LIMIT_BYTES:
            break
        metadata.pop(name, None)
    return metadata


def _run_part(run: Mapping[str, Any]) -> dict[str, Any]:
    recipe: Mapping[str, Any] = run.get("recipe") or {}
    metrics: Mapping[str, Any] = run.get("metrics") or {}
    data: Mapping[str, Any] = run.get("data") or {}
    batch: Mapping[str, Any] = run.get("batch") or {}
    command: Sequence[str] = run.get("command") or ()
    code: Mapping[str, Any] = run.get("code") or {}
    agent: Mapping[str, Any] = run.get("agent") or {}
    trial: Mapping[str, Any] = run.get("trial") or {}
    optional = ("task_trials", "moved_from", "fallback")
    moved = {name: batch[name] for name in optional if batch.get(name)}
    return {
        **{name: run[name] for name in _RUN if run.get(name) is not None},
        **({"trial": {name: trial[name] for name in _TRIAL if name in trial}} if trial else {}),
        **({"command": command} if sum(map(len, command)) <= COMMAND_CHARACTERS else {}),
        "code": {"sha256": code.get("sha256")},
        "agent": {"sha256": agent.get("sha256")},
        "recipe": {"name": recipe.get("name")},
        "metrics": {"primary": metrics.get("primary"), "goal": metrics.get("goal")},
        "data": {"notice": data.get("notice")},
        "batch": {**{name: batch.get(name) for name in _BATCH}, **moved},
    }


def _result_part(result: Mapping[str, Any]) -> dict[str, Any]:
    message = result.get("message")
    return {
        **{name: result[name] for name in _RESULT if result.get(name) is not None},
        "message": message[:MESSAGE_CHARACTERS] if message else None,
    }


def _text(part: Mapping[str, Any]) -> str:
    """Return JSON for a header, without spaces, because the signature of a request merges them."""
    text = json.dumps(part, separators=(",", ":"))
    return text.replace(" ", "\\u0020").replace("\x7f", "\\u007f")
