"""One run in blob: found by reference, its documents read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from runner.azure.blobs import BlobContainer, in_parallel
from runner.azure.credentials import Connection
from runner.core.errors import RunnerError
from runner.core.group import FOLDER as GROUPS
from runner.core.metrics import MetricPoint, MetricSummary, parse_metric_line, summarise
from runner.core.run_ids import check_reference, is_run_id, near_run, newest_first, submitted
from runner.core.run_paths import RunPaths
from runner.core.run_record import (
    ASIDES,
    AttemptEnd,
    AttemptStart,
    RunRecord,
    RunResult,
    parse_attempt_end,
    parse_attempt_start,
    parse_event_line,
    parse_result,
    parse_run,
)

_ONE_SECOND = 64  # made in it; of more any may be called the last


def runs_container(connection: Connection) -> BlobContainer:
    """Where runs lie."""
    return BlobContainer(connection.blob_service(), connection.outputs.container_runs)


def find_run(connection: Connection, reference: str) -> RunRecord:
    """The run of an id, a unique prefix, or `@last`. Raises RunnerError for none or several."""
    text = check_reference(reference)
    container = runs_container(connection)
    if is_run_id(text):
        content = container.read(RunPaths(text).run)
        if content is not None:
            return parse_run(content, text)
    run_id = _resolve(container, text)
    content = container.read(RunPaths(run_id).run)
    if content is None:
        raise _not_found(container, reference)
    return parse_run(content, run_id)


def list_run_ids(container: BlobContainer, prefix: str = "") -> list[str]:
    """Ids of all runs that begin with a prefix, newest first."""
    return newest_first([name for name in container.folders(prefix) if is_run_id(name)])


def _resolve(container: BlobContainer, text: str) -> str:
    if text == "@last":
        ids = list_run_ids(container)
        if not ids:
            raise RunnerError("R-RUN-NONE", "there are no runs yet", fix="runner train mnist")
        blobs = {run_id: RunPaths(run_id).run for run_id in ids}
        return newest(container, blobs, lambda content, each: parse_run(content, each).created)
    ids = list_run_ids(container, text)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise _not_found(container, text)
    shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
    raise RunnerError(
        "R-RUN-AMBIGUOUS",
        f"{text!r} begins {len(ids)} run ids",
        why=shown,
        fix=f"type more of it, for example {ids[0]}",
    )


def newest(
    container: BlobContainer, blobs: Mapping[str, str], created: Callable[[bytes, str], datetime]
) -> str:
    """The last made of some ids; within a second their documents, in `blobs`, tell by `created`."""
    ids = newest_first(list(blobs))
    latest = [each for each in ids if submitted(each) == submitted(ids[0])][:_ONE_SECOND]
    if len(latest) == 1:
        return latest[0]
    times: dict[str, datetime] = {}
    contents = in_parallel(container.read, [blobs[each] for each in latest])
    for each, content in zip(latest, contents, strict=True):
        if content is not None:
            with suppress(RunnerError):  # told where that one itself is asked for
                times[each] = created(content, each)
    return max(times, key=times.__getitem__, default=latest[0])


def _not_found(container: BlobContainer, text: str) -> RunnerError:
    if (group := next(iter(container.list(f"{GROUPS}{text}")), None)) is not None:
        named = "is" if is_run_id(text) else "begins"
        group_id = group.name.removeprefix(GROUPS).removesuffix(".json")
        return RunnerError(
            "R-RUN-UNKNOWN",
            f"{text!r} {named} a group of runs, and no run",
            why="this is done to one run at a time",
            fix=f"runner ps --group {group_id} lists its runs",
        )
    near = near_run(text, list_run_ids(container))
    return RunnerError(
        "R-RUN-UNKNOWN",
        f"there is no run {text!r}",
        why="no run id begins with it",
        fix=f"did you mean {near}?" if near else "runner ps -a",
    )


def load_result(container: BlobContainer, run_id: str) -> RunResult | None:
    """The committed outcome, or None while there is none."""
    content = container.read(RunPaths(run_id).result)
    return None if content is None else parse_result(content, run_id)


def load_attempts(container: BlobContainer, run_id: str, node: int = 0) -> tuple[AttemptStart, ...]:
    """All attempts that started, in order; those of another `node` than the primary have it too."""
    prefix = RunPaths(run_id).attempts_on(node)
    names = [blob.name for blob in container.list(prefix) if blob.name.endswith("/start.json")]
    contents = in_parallel(container.read, names)
    starts = [parse_attempt_start(content) for content in contents if content is not None]
    return tuple(sorted((s for s in starts if s is not None), key=lambda s: s.attempt))


def count_attempts(container: BlobContainer, run_id: str) -> int:
    """How many attempts began."""
    names = (blob.name for blob in container.list(RunPaths(run_id).attempts))
    return sum(1 for name in names if name.endswith("/start.json"))


def load_attempt_ends(container: BlobContainer, run_id: str) -> tuple[AttemptEnd, ...]:
    """How attempts ended, in order; those that were lost are missing."""
    prefix = RunPaths(run_id).attempts
    names = [blob.name for blob in container.list(prefix) if blob.name.endswith("/end.json")]
    contents = in_parallel(container.read, names)
    ends = [parse_attempt_end(content) for content in contents if content is not None]
    return tuple(sorted((e for e in ends if e is not None), key=lambda e: e.attempt))


def last_stage(container: BlobContainer, run_id: str, attempt: int) -> str | None:
    """The stage an attempt is in, or None before its first."""
    if attempt == 0:
        return None
    content = container.read(RunPaths(run_id).attempt_events(attempt)) or b""
    lines = content.decode("utf-8", "replace").splitlines()
    events = [event for line in lines if (event := parse_event_line(line, attempt))]
    stages = [event.stage for event in events if event.stage not in ASIDES]
    return stages[-1] if stages else None


def load_points(connection: Connection, record: RunRecord) -> list[MetricPoint]:
    """Every value of every metric of a run, as they were written."""
    content = runs_container(connection).read(RunPaths(record.run_id).metrics) or b""
    lines = content.decode("utf-8", "replace").splitlines()
    return [point for line in lines if (point := parse_metric_line(line))]


def load_metrics(connection: Connection, record: RunRecord) -> list[MetricSummary]:
    """Last and best of every metric of a run."""
    points = load_points(connection, record)
    return summarise(points, {record.primary_metric: record.goal} if record.primary_metric else {})
