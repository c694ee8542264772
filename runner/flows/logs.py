"""The log of a run, whole or its tail, of one attempt or all."""

from __future__ import annotations

from collections.abc import Iterator

from runner.azure.batch import read_task_file
from runner.azure.blobs import BlobContainer
from runner.azure.credentials import Connection
from runner.core.errors import RunnerError
from runner.core.run_paths import RunPaths
from runner.core.run_record import AttemptStart, RunRecord
from runner.flows.cursors import TextCursor, tail_offset
from runner.flows.run_documents import load_attempts, runs_container
from runner.flows.watch_events import LogStream


def log_blob(run_id: str, stream: LogStream) -> str:
    """The blob of a log stream."""
    paths = RunPaths(run_id)
    return paths.stdout if stream == "stdout" else paths.stderr


def read_log(
    connection: Connection,
    record: RunRecord,
    stream: LogStream,
    *,
    tail: int | None = None,
    attempt: int | None = None,
) -> Iterator[str]:
    """The log so far, in pieces. Where the agent wrote none, what Batch kept of the task."""
    container = runs_container(connection)
    blob = log_blob(record.run_id, stream)
    size = container.size(blob)
    if size is None:
        yield _task_log(connection, record, stream)
        return
    start, end = 0, size
    if attempt is not None:
        attempts = load_attempts(container, record.run_id)
        start, end = _attempt_range(attempts, attempt, stream, size)
    yield from _pieces(container, blob, start, end, tail)


def last_lines(connection: Connection, run_id: str, stream: LogStream, lines: int) -> list[str]:
    """The last lines of a log stream, at most."""
    container = runs_container(connection)
    blob = log_blob(run_id, stream)
    text = TextCursor(container, blob, tail_offset(container, blob, lines)).read()
    return text.splitlines()[-lines:]


def _pieces(
    container: BlobContainer, blob: str, start: int, end: int, tail: int | None
) -> Iterator[str]:
    if tail is not None:
        start = tail_offset(container, blob, tail, start, end)
    cursor = TextCursor(container, blob, start, end)
    while text := cursor.read():
        yield text


def _attempt_range(
    attempts: tuple[AttemptStart, ...], number: int, stream: LogStream, size: int
) -> tuple[int, int]:
    offsets = {
        a.attempt: a.stdout_offset if stream == "stdout" else a.stderr_offset for a in attempts
    }
    if number not in offsets:
        known = ", ".join(str(n) for n in offsets) or "none"
        raise RunnerError(
            "R-ATTEMPT-UNKNOWN",
            f"there is no attempt {number}",
            why=f"attempts so far: {known}",
            fix="leave --attempt out to see all of them",
        )
    return offsets[number], offsets.get(number + 1, size)


def _task_log(connection: Connection, record: RunRecord, stream: LogStream) -> str:
    found = read_task_file(connection, record.job_id, record.task_id, f"{stream}.txt")
    return (found or b"").decode("utf-8", "replace")
