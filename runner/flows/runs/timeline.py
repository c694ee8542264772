"""The events of a run in order of time: job, task, attempts, nodes, pool and evictions.

Batch and storage share a clock. The clock of a node may differ. The difference is the time at which
storage received `start.json` of an attempt, minus the time in it, which the agent read just before.
The clock of the client is corrected only if it is ahead, because uploads take time between
`created` and `run.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import find_job_view, get_task_times
from runner.azure.batch.pools import find_pool, list_pool_nodes
from runner.azure.storage.blobs import BlobContainer, BlobInfo, in_parallel
from runner.core.planning.fallback import describe_stay
from runner.core.states import describe_exit
from runner.core.units import parse_moment
from runner.flows.runs.documents import load_result, runs_container
from runner.protocol.codec import JsonDocument, wire
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptEnd, AttemptStart, StageEvent, parse_event_line
from runner.protocol.run_spec import RunSpec

# Smaller differences are ignored: times of storage are in whole seconds, and writing takes time.
_SAME_CLOCK = timedelta(seconds=3)
_START, _END, _EVENTS = "start.json", "end.json", "events.jsonl"


@dataclass(frozen=True, slots=True)
class TimelineEvent(JsonDocument):
    """One event.

    Attributes:
        at: Its time by the clock of Azure; None if its document has no readable time.
        offset_s: Seconds that were added to the time of the source, to get `at`.
    """

    at: datetime | None
    source: str
    event: str
    attempt: int | None = None
    offset_s: float = field(default=0.0, metadata=wire("clock_offset_s"))


def load_timeline(connection: Connection, spec: RunSpec) -> tuple[TimelineEvent, ...]:
    """Return the events of a run, oldest first; events without a time come last."""
    container = runs_container(connection)
    found = [*_submission(container, spec), *_batch(connection, spec)]
    nodes: set[str] = set()
    for rank in range(spec.nodes):
        for event, node in _attempts(container, spec, rank):
            found.append(event)
            nodes.add(node)
    found += _result(container, spec)
    found += _pool(connection, spec, nodes - {""})
    return in_order(found)


def in_order(events: Iterable[TimelineEvent]) -> tuple[TimelineEvent, ...]:
    """Return events sorted by time, stable; events without a time come last."""
    latest = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(events, key=lambda each: each.at or latest))


def clock_offset(written: datetime | None, stored: datetime | None) -> timedelta:
    """Return the correction for the times of a clock; zero if it agrees with that of storage.

    Args:
        written: The time inside a document, by the clock in question.
        stored: The time of the blob with the document.
    """
    if written is None or stored is None:
        return timedelta(0)
    offset = stored - written
    return offset if abs(offset) > _SAME_CLOCK else timedelta(0)


def _submission(container: BlobContainer, spec: RunSpec) -> Iterator[TimelineEvent]:
    path = RunPaths(spec.run_id).run
    stored = next((blob.modified for blob in container.list(path) if blob.name == path), None)
    offset = min(clock_offset(spec.created, stored), timedelta(0))
    at = spec.created + offset
    yield TimelineEvent(at, "client", "submitted", offset_s=offset.total_seconds())
    pools = [*(stay.pool for stay in spec.moved_from[1:]), spec.pool]
    for stay, to in zip(spec.moved_from, pools, strict=False):
        why = describe_stay(stay, spec.fallback)
        text = f"moved from pool {stay.pool} to {to}{f': {why}' if why else ''}"
        yield TimelineEvent(parse_moment(stay.until), "client", text)


def _batch(connection: Connection, spec: RunSpec) -> Iterator[TimelineEvent]:
    job = find_job_view(connection, spec.job_id)
    source = f"job {spec.job_id}"
    if job is None:
        yield TimelineEvent(None, source, "does not exist any more")
    else:
        # Batch knows only the pool that a moved job has now.
        first = spec.moved_from[0].pool if spec.moved_from else job.pool_id
        yield TimelineEvent(job.created, source, f"created on pool {first}")
        if job.since != job.created:
            yield TimelineEvent(job.since, source, f"is {job.state}")
    task = get_task_times(connection, spec.job_id, spec.task_id)
    if task is None:
        return
    yield TimelineEvent(task.created, "task", "added to the queue")
    if task.started:
        where = f" on node {task.node}" if task.node else ""
        yield TimelineEvent(task.started, "task", f"started{where}")
    if task.requeued:
        times = f", {task.requeues} times in all" if task.requeues > 1 else ""
        yield TimelineEvent(task.requeued, "task", f"requeued on request{times}")
    if task.retried:
        times = f", {task.retries} times in all" if task.retries > 1 else ""
        yield TimelineEvent(task.retried, "task", f"retried after a failure{times}")
    if task.state == "active" and task.since not in (task.created, task.requeued, task.retried):
        yield TimelineEvent(task.since, "eviction", "the task waits again: its node was lost")
    if task.ended:
        how = "" if task.exit_code is None else f" with {describe_exit(task.exit_code)}"
        yield TimelineEvent(task.ended, "task", f"ended{how}")


def _attempts(
    container: BlobContainer, spec: RunSpec, rank: int
) -> Iterator[tuple[TimelineEvent, str]]:
    """Yield the events of the attempts of a rank, each with the ID of its node."""
    prefix = RunPaths(spec.run_id, rank).attempts
    blobs = [b for b in container.list(prefix) if b.name.endswith((_START, _END, _EVENTS))]
    contents = dict(
        zip(
            (blob.name for blob in blobs),
            in_parallel(lambda blob: container.read(blob.name), blobs),
            strict=True,
        )
    )
    by_number: dict[int, dict[str, BlobInfo]] = {}
    for blob in blobs:
        number, _, name = blob.name.removeprefix(prefix).partition("/")
        if number.isdecimal() and "/" not in name:
            by_number.setdefault(int(number), {})[name] = blob
    last = max(by_number, default=0)
    for number in sorted(by_number):
        here = by_number[number]
        yield from _attempt(here, contents, number, rank, lost=number < last and _END not in here)


def _attempt(
    blobs: Mapping[str, BlobInfo],
    contents: Mapping[str, bytes | None],
    number: int,
    rank: int,
    *,
    lost: bool,
) -> Iterator[tuple[TimelineEvent, str]]:
    source = f"attempt {number}" + (f", rank {rank}" if rank else "")
    blob = blobs.get(_START)
    start = AttemptStart.load(contents.get(blob.name) or b"") if blob else None
    node = start.node if start else ""
    began = parse_moment(start.started) if start else None
    offset = clock_offset(began, blob.modified if blob else None)
    shift = offset.total_seconds()

    def event(at: datetime | None, text: str) -> tuple[TimelineEvent, str]:
        moved = at + offset if at else None
        return TimelineEvent(moved, source, text, number, shift if at else 0.0), node

    if start is None:
        stored = blob.modified if blob else None
        missing = "start.json is damaged" if blob else "start.json is missing"
        yield TimelineEvent(stored, source, f"gap: {missing}", number), node
    else:
        kind = "" if start.dedicated is None else ", dedicated" if start.dedicated else ", spot"
        yield event(began, f"started on node {node}{kind}")
    newest = began
    for each in _stages(blobs, contents, number):
        at = parse_moment(each.time)
        newest = max(filter(None, (newest, at)), default=None)
        if (text := _stage_text(each)) is not None:
            yield event(at, text)
    if (blob := blobs.get(_END)) is not None:
        end = AttemptEnd.load(contents.get(blob.name) or b"")
        if end is None:
            yield TimelineEvent(blob.modified, source, "gap: end.json is damaged", number), node
        else:
            yield event(parse_moment(end.ended), end.why + (f" in {end.step}" if end.step else ""))
    elif lost:
        # An attempt without an end lost its node between its last event and the next attempt.
        yield event(newest, "last event; the node was lost afterwards")


def _stages(
    blobs: Mapping[str, BlobInfo], contents: Mapping[str, bytes | None], number: int
) -> Iterator[StageEvent]:
    blob = blobs.get(_EVENTS)
    text = (contents.get(blob.name) or b"").decode("utf-8", "replace") if blob else ""
    for line in text.splitlines():
        if (found := parse_event_line(line, number)) is not None:
            yield found


def _stage_text(event: StageEvent) -> str | None:
    """Return the text of an event; None for the progress and the end of stages."""
    said = f": {event.message}" if event.message else ""
    if event.stage == "checkpoint":
        return f"checkpoint{said}" if event.state in ("end", "failed") else None
    if event.stage in ("notice", "metrics"):
        return f"notice{said}"
    if event.state == "start":
        return f"stage {event.stage}"
    return f"stage {event.stage} failed{said}" if event.state == "failed" else None


def _result(container: BlobContainer, spec: RunSpec) -> Iterator[TimelineEvent]:
    path = RunPaths(spec.run_id).result
    blob = next((each for each in container.list(path) if each.name == path), None)
    if blob is None:
        return
    try:
        result = load_result(container, spec.run_id)
    except RunnerError:  # damaged, or from a newer version
        result = None
    if result is None:
        yield TimelineEvent(blob.modified, "run", "gap: result.json cannot be read")
        return
    said = f": {result.message}" if result.message else ""
    offset = clock_offset(result.ended, blob.modified)
    at = result.ended + offset if result.ended else blob.modified
    yield TimelineEvent(at, "run", f"{result.status}{said}", None, offset.total_seconds())


def _pool(connection: Connection, spec: RunSpec, used: set[str]) -> Iterator[TimelineEvent]:
    """Yield the last states of the pool and its nodes that began after the submission."""
    pool = find_pool(connection, spec.pool)
    source = f"pool {spec.pool}"
    if pool is None:
        yield TimelineEvent(None, source, "does not exist any more")
        return
    since = spec.created - _SAME_CLOCK
    if pool.since and pool.since >= since:
        errors = "".join(f"; {each.code}: {each.message}" for each in pool.resize_errors)
        yield TimelineEvent(pool.since, source, f"allocation is {pool.allocation}{errors}")
    scale = pool.autoscale
    if scale and scale.evaluated and scale.evaluated >= since:
        text = f"formula failed: {scale.error.code}" if scale.error else "formula evaluated"
        yield TimelineEvent(scale.evaluated, source, text)
    for node in list_pool_nodes(connection, spec.pool):
        if node.id not in used and node.running_tasks == 0 and node.state == "idle":
            continue
        named = f"node {node.id}"
        times = ((node.allocated, "allocated"), (node.booted, "booted"))
        for at, text in times:
            if at and at >= since:
                yield TimelineEvent(at, named, text)
        if node.since and node.since >= since:
            evicted = node.state == "preempted"
            problem = f": {node.problem}" if node.problem else ""
            yield TimelineEvent(
                node.since,
                "eviction" if evicted else named,
                f"{named} was evicted" if evicted else f"is {node.state}{problem}",
            )
