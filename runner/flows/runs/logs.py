"""Read the log of a run, all of it or its tail, from blobs that grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import read_task_file
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.flows.runs.documents import TextCursor, load_attempts, load_result, runs_container
from runner.flows.runs.events import LogStream
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptStart
from runner.protocol.run_spec import RunSpec

_TAIL_BYTES = 64 * 1024
_MOST_LAST_BYTES = 1 << 20  # of a log whose last lines are very long


def tail_offset(
    container: BlobContainer, blob: str, lines: int, start: int = 0, end: int | None = None
) -> int:
    """Return the offset of the last `lines` lines between bytes `start` and `end`."""
    end = position = (container.size(blob) or 0) if end is None else end
    if lines <= 0:
        return end
    while position > start:
        begin = max(start, position - _TAIL_BYTES)
        block = container.read_range(blob, begin, position - begin) or b""
        search_end = len(block)
        if position == end and block.endswith(b"\n"):
            search_end -= 1  # skip the end of the last line
        while (newline := block.rfind(b"\n", 0, search_end)) >= 0:
            lines -= 1
            if lines == 0:
                return begin + newline + 1
            search_end = newline
        position = begin
    return start


def read_log(
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    *,
    tail: int | None = None,
    attempt: int | None = None,
    node: int = 0,
    most_bytes: int | None = None,
) -> Iterator[str]:
    """Yield the log written so far, or the output of the task if the agent wrote none.

    With `most_bytes`, the beginning of a longer log is left out. The log `build` names its attempts
    itself, so `attempt` does not apply to it.

    Raises:
        RunnerError: the run has no such `node` (from 0) or `attempt` (from 1).
    """
    check_node(spec, node)
    attempt = None if stream == "build" else attempt
    container = runs_container(connection)
    blob = RunPaths(spec.run_id, node).log(stream)
    size = container.size(blob)
    attempts = () if size and attempt is None else load_attempts(container, spec.run_id, node)
    if size is None and not attempts:
        yield "" if node else _task_log(connection, spec, stream)
        return
    start, end = 0, size or 0  # the agent creates the log with its first text
    if attempt is not None:
        start, end = _attempt_range(attempts, attempt, stream, end)
    if most_bytes is not None:
        start = max(start, end - most_bytes)
    yield from _pieces(container, blob, start, end, tail)


def rank_prefix(rank: int) -> str:
    """Return the prefix of a line in the merged log of all ranks."""
    return f"[rank {rank}] "


def read_merged_log(
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    *,
    tail: int | None = None,
    attempt: int | None = None,
    most_bytes: int | None = None,
) -> Iterator[str]:
    """Yield the present lines of all ranks, each with the prefix of its rank.

    Lines have no times, so they are in the order of attempts, then of ranks. The rank that failed
    first comes first. `tail` is the number of lines per rank, `most_bytes` of bytes.

    Raises:
        RunnerError: the run has no such `attempt`.
    """
    container = runs_container(connection)
    result = load_result(container, spec.run_id)
    failed = result.rank if result is not None and result.status == "failed" else 0
    ranks = sorted(range(spec.nodes), key=lambda rank: (rank != failed, rank))
    started = {rank: load_attempts(container, spec.run_id, rank) for rank in ranks}
    known = [each.attempt for each in started[0]]
    if attempt is not None and attempt not in known:
        _attempt_range(started[0], attempt, stream, 0)
    for number in known if attempt is None and tail is None else [attempt]:
        for rank in ranks:
            blob = RunPaths(spec.run_id, rank).log(stream)
            end = container.size(blob) or 0
            start = 0
            if number is not None:
                if number not in [each.attempt for each in started[rank]]:
                    continue  # this node has no log of the attempt
                start, end = _attempt_range(started[rank], number, stream, end)
            if most_bytes is not None:
                start = max(start, end - most_bytes)
            text = "".join(_pieces(container, blob, start, end, tail))
            yield from (rank_prefix(rank) + line for line in text.splitlines())


_RUNS_AT_ONCE = 50


def read_group_log(
    connection: Connection,
    specs: Mapping[str, RunSpec],
    stream: LogStream,
    *,
    tail: int | None = None,
) -> Iterator[str]:
    """Yield the present lines of several runs, run by run, each with the name of its run.

    Args:
        connection: the services.
        specs: the runs by the names to print.
        stream: which log.
        tail: number of last lines per run or rank; None is all.
    """

    def read(name: str) -> list[str]:
        spec = specs[name]
        if spec.nodes > 1:
            lines = list(read_merged_log(connection, spec, stream, tail=tail))
        else:
            lines = "".join(read_log(connection, spec, stream, tail=tail)).splitlines()
        return [f"[{name}] {line}" for line in lines]

    names = list(specs)
    for first in range(0, len(names), _RUNS_AT_ONCE):
        for lines in in_parallel(read, names[first : first + _RUNS_AT_ONCE]):
            yield from lines


def last_lines(
    connection: Connection, run_id: str, stream: LogStream, lines: int, node: int = 0
) -> list[str]:
    """Return at most the last `lines` lines of a log stream."""
    container = runs_container(connection)
    blob = RunPaths(run_id, node).log(stream)
    size = container.size(blob) or 0
    start = tail_offset(container, blob, lines, max(0, size - _MOST_LAST_BYTES), size)
    text = TextCursor(container, blob, start).read()
    return text.splitlines()[-lines:]


def check_node(spec: RunSpec, node: int) -> None:
    """Raise RunnerError if the run has no such node."""
    if node < spec.nodes:
        return
    has = f"0 to {spec.nodes - 1}" if spec.nodes > 1 else "0 only"
    raise RunnerError(
        "R-NODE-UNKNOWN",
        f"{spec.run_id} has no node {node}",
        why=f"node numbers are {has}",
        fix=f"runner logs {spec.run_id} --node {spec.nodes - 1}",
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
            f"attempt {number} not found",
            why=f"attempts so far: {known}",
            fix="omit --attempt to read all of them",
        )
    later = [offset for other, offset in offsets.items() if other > number]
    return offsets[number], min(later, default=size)


def task_output(connection: Connection, spec: RunSpec, chars: int) -> str:
    """Return the end of the output of the task, which shows problems of the agent or of Batch."""
    for stream in ("stderr", "stdout"):
        found = _task_log(connection, spec, stream)
        if found.strip():
            return found[-chars:]
    return ""


def _task_log(connection: Connection, spec: RunSpec, stream: LogStream) -> str:
    found = read_task_file(connection, spec.job_id, spec.task_id, f"{stream}.txt")
    return (found or b"").decode("utf-8", "replace")
