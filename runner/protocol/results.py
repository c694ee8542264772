"""The record of a run: `run.json` as the client reads it, `result.json`, and the start and end
of attempts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Literal

from runner.protocol.encoding import parse_json
from runner.protocol.run_spec import broken_document, parse_document

ResultStatus = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One exported file; `path` is relative to the output folder and never leaves it."""

    path: str
    size_bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the file as result.json lists it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunResult:
    """`result.json`: the outcome, which never changes."""

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
    raw: Mapping[str, Any]
    output: str = "output/"  # the folder of the outputs, below the run's; ends with a slash
    rank: int = 0  # of the node that failed
    evicted: int | None = None  # earlier attempts that were lost or terminated, where it is known


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """`attempts/<n>/start.json`; offsets are bytes into the two logs.

    `work_dir` is the task's folder as the node names it; an older agent left it empty.
    """

    attempt: int
    node: str
    started: str
    stdout_offset: int
    stderr_offset: int
    pool: str = ""
    work_dir: str = ""
    dedicated: bool | None = None  # None where it was not recorded


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """`attempts/<n>/end.json`: why an attempt ended; one whose node was lost has none."""

    attempt: int
    ended: str
    why: str
    exit_code: int | None
    step: str | None
    message: str | None = None


def parse_result(data: bytes, run_id: str) -> RunResult:
    """Read `result.json`. Raises RunnerError for a path that leaves the output folder."""
    raw = parse_document(data, run_id, "result.json")
    try:
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
            outputs=tuple(_output(entry) for entry in raw.get("outputs") or ()),
            raw=raw,
            output=check_output_path(str(raw.get("output") or "output/")),
            rank=int(raw.get("rank") or 0),
            evicted=None if raw.get("evicted") is None else int(raw["evicted"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as err:
        raise broken_document(run_id, "result.json", err) from err


def parse_attempt_start(data: bytes) -> AttemptStart | None:
    """Read `start.json`; None where it is no such document."""
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
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def parse_attempt_end(data: bytes) -> AttemptEnd | None:
    """Read `end.json`; None where it is no such document."""
    try:
        raw: Any = parse_json(data)
        return AttemptEnd(
            attempt=int(raw["attempt"]),
            ended=str(raw.get("ended") or ""),
            why=str(raw.get("why") or ""),
            exit_code=raw.get("exit_code"),
            step=raw.get("step"),
            message=raw.get("message"),
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def check_output_path(path: str) -> str:
    """A path relative to an output folder. Raises ValueError when it could leave that folder."""
    pure = PurePosixPath(path)
    parts = pure.parts
    if not parts or pure.is_absolute() or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} leaves the output folder")
    if ":" in parts[0]:  # a drive, on Windows
        raise ValueError(f"{path!r} leaves the output folder")
    return path


def _part(raw: dict[str, Any], name: str) -> dict[str, Any]:
    return raw.get(name) or {}


def _output(entry: dict[str, Any]) -> OutputFile:
    return OutputFile(
        path=check_output_path(str(entry["path"])),
        size_bytes=int(entry["size_bytes"]),
        sha256=str(entry["sha256"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def is_selected_output(name: str, path: str) -> bool:
    """Whether an output is meant by a path: a file, a folder, a glob, or empty for all."""
    below = name == path or name.startswith(f"{path}/")
    return not path or below or fnmatch.fnmatchcase(name, path)
