"""The records of a run: result.json, the records and events of its attempts, and its index entry.

Each run has its own folder, so one listing cannot return the documents of all runs. Therefore each
run also has an empty blob `index/<run_id>`, whose metadata contains the values of its row in lists
of runs. These are copies. If the entry or the result in it is missing, readers use the documents of
the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from runner.protocol.encoding import format_size, parse_json
from runner.protocol.metrics import json_value
from runner.protocol.resuming import ResumeFailure, parse_resume_failure
from runner.protocol.run_spec import DAMAGED, FORMAT, broken_document, parse_document

ResultStatus = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class OutputFile:
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
    source: str | None = None
    attempt: int | None = None
    partial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the file as result.json lists it."""
        listed = asdict(self).items()
        return {name: v for name, v in listed if v is not None and v is not False}


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
    "path": "its path leaves the output folder",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a folder with `files` files, that the script wrote and runner did not keep."""

    path: str
    size_bytes: int
    why: str
    files: int = 1

    def __str__(self) -> str:
        """Return a phrase for people."""
        count = f"{self.files} files, " if self.files > 1 else ""
        why = _LEFT_OUT.get(self.why, self.why)
        if self.why == "search":
            return f"{self.path}: {why}"
        return f"{self.path} ({count}{format_size(self.size_bytes)}): {why}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as result.json lists it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LeftOut:
        """Read an entry of `left_out`."""
        size, files = int(raw.get("size_bytes") or 0), int(raw.get("files") or 1)
        return cls(str(raw["path"]), size, str(raw.get("why") or ""), files)


@dataclass(frozen=True, slots=True)
class RunResult:
    """`result.json`: the outcome, which never changes.

    Attributes:
        attempt: The number of the last attempt, 0 if none started.
        output: Folder of the outputs, relative to the run's folder, with a slash at the end.
        rank: Rank of the node that failed.
        evicted: Earlier attempts that were lost with their node; None if unknown.
        checkpoint: Summary of the checkpoints of the attempt.
        partial: True if the outputs are those of a script that did not succeed.
        left_out: Files that the script wrote and runner did not keep.
        raw: The document that was read.
    """

    status: ResultStatus
    attempt: int
    exit_code: int | None
    step: str | None
    code: str | None
    message: str | None
    started: datetime | None
    ended: datetime | None
    stages_s: Mapping[str, float]
    metrics: Mapping[str, float]
    outputs: tuple[OutputFile, ...]
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    output: str = "output/"
    rank: int = 0
    evicted: int | None = None
    checkpoint: Mapping[str, Any] | None = None
    partial: bool = False
    left_out: tuple[LeftOut, ...] = ()

    def to_json(self, run_id: str) -> dict[str, Any]:
        """Return result.json, without `output` and `checkpoint` if the run never started."""
        ran = self.attempt > 0 and self.status != "cancelled"
        return {
            "format": FORMAT,
            "run_id": run_id,
            "status": self.status,
            "attempt": self.attempt,
            "evicted": self.evicted,
            "exit_code": self.exit_code,
            "step": self.step,
            "code": self.code,
            "message": self.message,
            **({"rank": self.rank} if self.rank else {}),
            "started": _time_text(self.started),
            "ended": _time_text(self.ended),
            "stages_s": dict(self.stages_s),
            "metrics": {name: json_value(value) for name, value in self.metrics.items()},
            **({"output": self.output} if ran else {}),
            "outputs": [file.to_json() for file in self.outputs],
            **({"partial": True} if self.partial else {}),
            **({"left_out": [each.to_json() for each in self.left_out]} if self.left_out else {}),
            **({"checkpoint": self.checkpoint} if ran else {}),
        }


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Times of a node, which Batch knows only while the node exists; "" is unknown.

    Attributes:
        booted: When its kernel started. Nodes of the emulator share the kernel of their machine.
        created: When its folders were created.
        ready: When its start task last wrote output.
    """

    booted: str = ""
    created: str = ""
    ready: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the times that are known."""
        return {name: time for name, time in asdict(self).items() if time}


@dataclass(frozen=True, slots=True)
class AttemptStart:
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
    node: str
    started: str
    stdout_offset: int
    stderr_offset: int
    pool: str = ""
    work_dir: str = ""
    dedicated: bool | None = None
    host: str = ""
    rank: int = 0
    evictions: int | None = None
    node_times: NodeTimes = NodeTimes()
    signs: bool = False
    host_keys: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return start.json."""
        return {
            "attempt": self.attempt,
            "node": self.node,
            "pool": self.pool,
            "dedicated": self.dedicated,
            "started": self.started,
            "host": self.host,
            "work_dir": self.work_dir,
            "log_offsets": {"stdout": self.stdout_offset, "stderr": self.stderr_offset},
            **({"rank": self.rank} if self.rank else {}),
            **({} if self.evictions is None else {"evictions": self.evictions}),
            **({"node_times": times} if (times := self.node_times.to_json()) else {}),
            **({"signs": True} if self.signs else {}),
            **({"host_keys": list(self.host_keys)} if self.host_keys else {}),
        }


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """`attempts/<n>/end.json`: why an attempt ended. An attempt on a lost node has none.

    `node_ends` is the time for which Azure announced the eviction of the node, if it did.
    `resume_failed` is set if its script failed while it loaded a checkpoint.
    """

    attempt: int
    ended: str
    why: str
    exit_code: int | None
    step: str | None
    message: str | None = None
    checkpoint: Mapping[str, Any] | None = None
    node_ends: str = ""
    resume_failed: ResumeFailure | None = None

    @property
    def was_requeued(self) -> bool:
        """True if Batch requeued the task on request, for example for a pause, not by an eviction.

        Only valid for runs on one node, because notices of other nodes are not recorded here.
        """
        return self.why == "terminated" and not self.node_ends

    def to_json(self) -> dict[str, Any]:
        """Return end.json."""
        return {
            "attempt": self.attempt,
            "ended": self.ended,
            "why": self.why,
            "exit_code": self.exit_code,
            "step": self.step,
            "checkpoint": self.checkpoint,
            **({"message": self.message} if self.message is not None else {}),
            **({"node_ends": self.node_ends} if self.node_ends else {}),
            **({"resume_failed": failed.to_json()} if (failed := self.resume_failed) else {}),
        }


def parse_result(data: bytes, run_id: str) -> RunResult:
    """Read result.json. Raise RunnerError if it is damaged.

    Outputs whose path leaves the output folder are in `left_out` instead.
    """
    raw = parse_document(data, run_id, "result.json")
    try:
        refused: list[LeftOut] = []
        if raw["status"] not in ("succeeded", "failed", "cancelled"):
            raise ValueError(f"status {raw['status']!r}")
        return RunResult(
            status=raw["status"],
            attempt=int(raw.get("attempt") or 0),
            exit_code=raw.get("exit_code"),
            step=raw.get("step"),
            code=raw.get("code"),
            message=raw.get("message"),
            started=_time(raw.get("started")),
            ended=_time(raw.get("ended")),
            stages_s={name: float(s) for name, s in _part(raw, "stages_s").items()},
            metrics={name: float(v) for name, v in _part(raw, "metrics").items()},
            outputs=parse_outputs(raw.get("outputs") or (), refused.append),
            raw=raw,
            output=check_output_path(str(raw.get("output") or "output/")),
            rank=int(raw.get("rank") or 0),
            evicted=None if raw.get("evicted") is None else int(raw["evicted"]),
            checkpoint=raw.get("checkpoint"),
            partial=bool(raw.get("partial")),
            left_out=(*map(LeftOut.from_json, raw.get("left_out") or ()), *refused),
        )
    except DAMAGED as err:
        raise broken_document(run_id, "result.json", err) from err


def parse_attempt_start(data: bytes) -> AttemptStart | None:
    """Read start.json. Return None if it is damaged."""
    try:
        raw: Any = parse_json(data)
        offsets = _part(raw, "log_offsets")
        return AttemptStart(
            attempt=int(raw["attempt"]),
            node=str(raw.get("node") or ""),
            started=str(raw.get("started") or ""),
            stdout_offset=int(offsets.get("stdout") or 0),
            stderr_offset=int(offsets.get("stderr") or 0),
            pool=str(raw.get("pool") or ""),
            work_dir=str(raw.get("work_dir") or ""),
            dedicated=raw.get("dedicated"),
            host=str(raw.get("host") or ""),
            rank=int(raw.get("rank") or 0),
            evictions=None if raw.get("evictions") is None else int(raw["evictions"]),
            node_times=NodeTimes(
                **{
                    name: str(_part(raw, "node_times").get(name) or "")
                    for name in ("booted", "created", "ready")
                }
            ),
            signs=raw.get("signs") is True,
            host_keys=tuple(str(each) for each in raw.get("host_keys") or ()),
        )
    except DAMAGED:
        return None


def parse_attempt_end(data: bytes) -> AttemptEnd | None:
    """Read end.json. Return None if it is damaged."""
    try:
        raw: Any = parse_json(data)
        return AttemptEnd(
            attempt=int(raw["attempt"]),
            ended=str(raw.get("ended") or ""),
            why=str(raw.get("why") or ""),
            exit_code=raw.get("exit_code"),
            step=raw.get("step"),
            message=raw.get("message"),
            checkpoint=raw.get("checkpoint"),
            node_ends=str(raw.get("node_ends") or ""),
            resume_failed=parse_resume_failure(data, int(raw["attempt"]))
            if raw.get("resume_failed")
            else None,
        )
    except DAMAGED:
        return None


def check_output_path(path: str) -> str:
    """Return the path. Raise ValueError if it leaves the output folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or path[0] == "/" or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} leaves the output folder")
    return path


def _part(raw: dict[str, Any], name: str) -> dict[str, Any]:
    return raw.get(name) or {}


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
        path, size_bytes = str(entry["path"]), int(entry["size_bytes"])
        path = f"{entry.get('folder') or folder}{path}" if folder else path
        try:
            check_output_path(path)
        except ValueError:
            refuse(LeftOut(path.replace("\0", "?"), size_bytes, "path"))
            continue
        outputs.append(
            OutputFile(
                path=path,
                size_bytes=size_bytes,
                sha256=str(entry["sha256"]),
                source=entry.get("source"),
                attempt=entry.get("attempt"),
                partial=bool(entry.get("partial")),
            )
        )
    return tuple(outputs)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="microseconds")


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


@dataclass(frozen=True, slots=True)
class StageEvent:
    """One line of `events.jsonl`."""

    attempt: int
    time: str
    stage: str
    state: StageState
    message: str
    done: float | None = None
    total: float | None = None
    unit: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line, without `attempt`, which is in the name of the blob."""
        numbers = {"done": self.done, "total": self.total, "unit": self.unit}
        return {
            "time": self.time,
            "stage": self.stage,
            "state": self.state,
            "message": self.message,
            **{name: value for name, value in numbers.items() if value is not None},
        }


def parse_event_line(line: str, attempt: int) -> StageEvent | None:
    """Read a line of events.jsonl. Return None if it is damaged, or only a sign of life."""
    try:
        raw: Any = parse_json(line)
        state = raw["state"]
        if state not in ("start", "progress", "end", "failed") or raw["stage"] == ALIVE_STAGE:
            return None
        return StageEvent(
            attempt=attempt,
            time=str(raw.get("time", "")),
            stage=str(raw["stage"]),
            state=state,
            message=str(raw.get("message") or ""),
            done=raw.get("done"),
            total=raw.get("total"),
            unit=raw.get("unit"),
        )
    except DAMAGED:
        return None


INDEX_FOLDER = "index/"
# The metadata of a blob has at most 8 KB (REST docs, "Setting and retrieving properties").
LIMIT_BYTES = 7000
MESSAGE_CHARACTERS = 300
COMMAND_CHARACTERS = 1000  # a longer command is left out

_RUN = ("format", "run_id", "experiment", "created", "params", "origin", "group", "after")
_TRIAL = ("name", "number", "params", "metric", "goal")
_BATCH = ("pool", "vm_size", "spot", "job_id", "task_id")
_RESULT = (
    "format", "run_id", "status", "attempt", "evicted", "exit_code", "step", "code", "started",
    "ended", "metrics",
)  # fmt: skip


def index_blob(run_id: str) -> str:
    """Return the blob of a run's index entry."""
    return f"{INDEX_FOLDER}{run_id}"


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
    moved = {"moved_from": batch["moved_from"]} if batch.get("moved_from") else {}
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
