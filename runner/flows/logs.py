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


def read_log(
    connection: Connection,
    record: RunRecord,
    stream: LogStream,
    *,
    tail: int | None = None,
    attempt: int | None = None,
    node: int = 0,
) -> Iterator[str]:
    """The log so far, in pieces. Where the agent wrote none, what Batch kept of the task.

    `node` counts from 0. Raises RunnerError for one that the run does not have.
    """
    check_node(record, node)
    container = runs_container(connection)
    blob = RunPaths(record.run_id).log(stream, node)
    size = container.size(blob)
    if size is None:
        yield "" if node else _task_log(connection, record, stream)
        return
    start, end = 0, size
    if attempt is not None:
        attempts = load_attempts(container, record.run_id, node)
        start, end = _attempt_range(attempts, attempt, stream, size)
    yield from _pieces(container, blob, start, end, tail)


def last_lines(
    connection: Connection, run_id: str, stream: LogStream, lines: int, node: int = 0
) -> list[str]:
    """The last lines of a log stream, at most."""
    container = runs_container(connection)
    blob = RunPaths(run_id).log(stream, node)
    text = TextCursor(container, blob, tail_offset(container, blob, lines)).read()
    return text.splitlines()[-lines:]


def check_node(record: RunRecord, node: int) -> None:
    """Raise RunnerError for a node that the run does not have."""
    if node < record.nodes:
        return
    has = f"0 to {record.nodes - 1}" if record.nodes > 1 else "0 only"
    raise RunnerError(
        "R-NODE-UNKNOWN",
        f"{record.run_id} has no node {node}",
        why=f"its nodes are numbered {has}",
        fix=f"runner logs {record.run_id} --node {record.nodes - 1}",
    )


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
