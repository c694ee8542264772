"""Find runs in blob storage by reference; read their documents, growing logs, and the index."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.point_summary import MetricPass
from runner.core.points import PlacedPoint, find_history
from runner.flows.runs.time_index import TimeIndex
from runner.flows.runs.waiting import WaitingTrialsCache, cancelled_result, list_waiting, read_run
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import GROUPS_FOLDER as GROUPS
from runner.protocol.metrics import MetricPoint, MetricSummary, PointHistory, ResumeMark
from runner.protocol.paths import (
    DELETING,
    DELETING_FOLDER,
    RunPaths,
    check_reference,
    find_similar_run,
    is_run_id,
    newest_first,
    parse_sweep_id,
    submission_time,
)
from runner.protocol.results import (
    INDEX_FOLDER,
    SIDE_STAGES,
    AttemptEnd,
    AttemptStart,
    LeftOut,
    OutputFile,
    RunResult,
    by_time_blob,
    index_blobs,
    index_metadata,
    parse_event_line,
    parse_outputs,
    parse_result,
)
from runner.protocol.run_spec import RunSpec, parse_run
from runner.protocol.waiting_trials import WAITING_FOLDER

_MOST_RANKS = 1000  # whose outputs are read, as a damaged run.json may have any number
_MAX_COMPARED = 64  # runs of the same second whose exact times are compared
_NEWEST_ENTRIES = 10  # of the index by time, for the last run
_NEWEST_LISTED = 1000  # for completions and similar names


def runs_container(connection: Connection) -> BlobContainer:
    """Return the container of runs."""
    return BlobContainer(connection.blob_service(), connection.outputs.container_runs)


def code_container(connection: Connection) -> BlobContainer:
    """Return the container of agents and code. Raise RunnerError if an old stack has none."""
    return BlobContainer(connection.blob_service(), connection.code_container)


def find_run(connection: Connection, reference: str) -> RunSpec:
    """Return the run of an ID, a unique prefix, or `@last`. Raise RunnerError."""
    run_id, content = find_document(connection, reference)
    return parse_run(content, run_id)


def find_document(connection: Connection, reference: str) -> tuple[str, bytes]:
    """Return the run's ID and its `run.json`, which may be damaged. Raise RunnerError."""
    text = check_reference(reference)
    container = runs_container(connection)
    if is_run_id(text):
        content = read_run(container, text)
        if content is not None:
            return text, content
    run_id = resolve_run(container, text)
    content = read_run(container, run_id)
    if content is None:
        raise _not_found(container, reference)
    return run_id, content


def list_run_ids(container: BlobContainer, prefix: str = "") -> list[str]:
    """Return the IDs of all runs with a prefix, newest first, without those being deleted."""
    return list_run_folders(container, prefix)[0]


def list_run_folders(
    container: BlobContainer, prefix: str = ""
) -> tuple[list[str], frozenset[str]]:
    """Return the IDs of runs with a prefix, newest first, and the IDs of those being deleted.

    Trials that have not started are included, although they have no folder.
    """
    names = list(container.children(prefix))
    deleting = frozenset(n.removesuffix(DELETING) for n in names if n.endswith(DELETING))
    folders = frozenset(name.rstrip("/") for name in names if name.endswith("/"))
    found = [n for n in folders if is_run_id(n)]
    if prefix or WAITING_FOLDER in names:
        found += list_waiting(container, prefix, folders)
    return newest_first([n for n in found if n not in deleting]), deleting


def resolve_run(container: BlobContainer, text: str) -> str:
    """Return the ID of the only run with a prefix, or of the newest for `@last`."""
    if text == "@last":
        return _last_run(container)
    ids = list_run_ids(container, text)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise _not_found(container, text)
    shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
    raise RunnerError(
        "R-RUN-AMBIGUOUS",
        f"prefix {text!r} matches {len(ids)} runs",
        why=shown,
        fix=f"use more characters of the ID, for example {ids[0]}",
    )


def _last_run(container: BlobContainer) -> str:
    index = TimeIndex.open(container, _NEWEST_ENTRIES)
    seconds = iter([list_run_ids(container)]) if index is None else _seconds_of(container, index)
    ids = next(filter(None, seconds), None)
    if not ids:
        raise RunnerError("R-RUN-NONE", "there are no runs yet", fix="runner train mnist")
    waiting = WaitingTrialsCache(container)
    return newest(
        ids,
        lambda run_id: read_run(container, run_id, waiting),
        lambda content, run_id: parse_run(content, run_id).created,
    )


def _seconds_of(container: BlobContainer, index: TimeIndex) -> Iterator[list[str]]:
    """Yield the IDs of the existing runs of each second, newest first."""
    for second in index.seconds():
        # An older client that deletes a run keeps its entry.
        ids = [each.run_id for each in second]
        started = [each.run_id for each in second if each.metadata is not None][:_MAX_COMPARED]
        sizes = in_parallel(lambda run_id: container.size(RunPaths(run_id).run), started)
        gone = {run_id for run_id, size in zip(started, sizes, strict=True) if size is None}
        yield [run_id for run_id in ids if run_id not in gone]


def list_newest_ids(container: BlobContainer, prefix: str = "") -> list[str]:
    """Return the IDs of runs with a prefix, newest first: the newest ones, if there are many."""
    index = TimeIndex.open(container, _NEWEST_LISTED)
    if index is None:
        return list_run_ids(container, prefix)
    entries = islice(chain.from_iterable(index.seconds()), _NEWEST_LISTED)
    found = [each.run_id for each in entries if each.run_id.startswith(prefix)]
    return found if found or not prefix else list_run_ids(container, prefix)


def newest(
    known: Sequence[str],
    read: Callable[[str], bytes | None],
    created: Callable[[bytes, str], datetime],
) -> str:
    """Return the newest ID; of IDs of the same second, the one with the newest document.

    Args:
        known: The IDs, at least one.
        read: Returns the document of an ID, or None.
        created: Returns the time in a document; the second argument is the ID.
    """
    ids = newest_first(list(known))
    latest = [each for each in ids if submission_time(each) == submission_time(ids[0])][
        :_MAX_COMPARED
    ]
    if len(latest) == 1:
        return latest[0]
    times: dict[str, datetime] = {}
    contents = in_parallel(read, latest)
    for each, content in zip(latest, contents, strict=True):
        if content is not None:
            with suppress(RunnerError):  # reported when that run is read
                times[each] = created(content, each)
    return max(times, key=times.__getitem__, default=latest[0])


def _not_found(container: BlobContainer, text: str) -> RunnerError:
    notes = (note.removeprefix(DELETING_FOLDER) for note in container.names(DELETING_FOLDER + text))
    if half := min((*list_run_folders(container, text)[1], *notes), default=""):
        return RunnerError(
            "R-RUN-UNKNOWN",
            f"run {half} is being deleted",
            why="`runner rm` is still deleting it, or was interrupted",
            fix=f"runner rm {half}",
        )
    if (group := next(iter(container.list(f"{GROUPS}{text}")), None)) is not None:
        named = "is" if is_run_id(text) else "is a prefix of"
        group_id = group.name.removeprefix(GROUPS).removesuffix(".json")
        return RunnerError(
            "R-RUN-UNKNOWN",
            f"{text!r} {named} a group of runs, not a run",
            why="this command requires a single run",
            fix=f"run `runner ps --group {group_id}` to list its runs",
        )
    near = find_similar_run(text, list_newest_ids(container))
    return RunnerError(
        "R-RUN-UNKNOWN",
        f"run {text!r} not found",
        why="no run ID starts with this text",
        fix=f"did you mean {near}?" if near else "runner ps -a",
    )


def load_result(
    container: BlobContainer, run_id: str, *, started: bool = False
) -> RunResult | None:
    """Return the committed outcome, or None.

    The outputs of a cancelled run include those that its last attempt kept afterwards.

    Args:
        container: the container of runs.
        run_id: the run.
        started: True if a node has started it, so it was not cancelled before its start.
    """
    paths = RunPaths(run_id)
    content = container.read(paths.result)
    if content is None:
        may_be_cancelled = not started and parse_sweep_id(run_id) is not None
        return cancelled_result(container, run_id) if may_be_cancelled else None
    result = parse_result(content, run_id)
    if result.status != "cancelled" or not result.attempt:
        return result
    with suppress(*DAMAGED):
        refused: list[LeftOut] = []
        outputs = _kept_outputs(container, run_id, result.attempt, refused.append)
        folder = paths.output(result.attempt).removeprefix(paths.root)
        files = [file.to_json() for file in outputs]
        raw = {**result.raw, "output": folder, "outputs": files, "partial": bool(files)}
        return replace(
            result,
            output=folder,
            outputs=outputs,
            partial=bool(files),
            left_out=(*result.left_out, *refused),
            raw=raw,
        )
    return result


def _kept_outputs(
    container: BlobContainer, run_id: str, attempt: int, refuse: Callable[[LeftOut], object]
) -> tuple[OutputFile, ...]:
    """Return the outputs that the nodes of a run stored for a terminated attempt.

    Raises:
        One of DAMAGED: the list of the primary node cannot be read.
    """
    found = [*_listed(container, RunPaths(run_id).attempt_outputs(attempt), refuse)]
    nodes = 1
    with suppress(*DAMAGED):
        nodes = int(parse_json(container.read(RunPaths(run_id).run) or b"{}")["resources"]["nodes"])
    for rank in range(1, min(nodes, _MOST_RANKS)):
        with suppress(*DAMAGED):
            name = RunPaths(run_id, rank).attempt_outputs(attempt)
            found += _listed(container, name, refuse, f"rank-{rank}/")
    return tuple(found)


def _listed(
    container: BlobContainer, name: str, refuse: Callable[[LeftOut], object], folder: str = ""
) -> tuple[OutputFile, ...]:
    return parse_outputs(parse_json(container.read(name) or b"[]"), refuse, folder=folder)


def load_attempts(container: BlobContainer, run_id: str, node: int = 0) -> tuple[AttemptStart, ...]:
    """Return the attempts that started on a node (0 is the primary), in order."""
    prefix = RunPaths(run_id, node).attempts
    starts = map(AttemptStart.load, _read_all(container, prefix, "/start.json"))
    return tuple(sorted(filter(None, starts), key=lambda start: start.attempt))


def count_attempts(container: BlobContainer, run_id: str) -> int:
    """Return the number of started attempts."""
    names = container.names(RunPaths(run_id).attempts)
    return sum(1 for name in names if name.endswith("/start.json"))


def load_attempt_ends(container: BlobContainer, run_id: str) -> tuple[AttemptEnd, ...]:
    """Return the ends of attempts in order, without lost ones."""
    ends = map(AttemptEnd.load, _read_all(container, RunPaths(run_id).attempts, "/end.json"))
    return tuple(sorted(filter(None, ends), key=lambda end: end.attempt))


def _read_all(container: BlobContainer, prefix: str, ending: str) -> list[bytes]:
    names = [name for name in container.names(prefix) if name.endswith(ending)]
    return [content for content in in_parallel(container.read, names) if content is not None]


def last_stage(container: BlobContainer, run_id: str, attempt: int) -> str | None:
    """Return the stage of an attempt, or None before its first."""
    if attempt == 0:
        return None
    content = container.read(RunPaths(run_id).attempt_events(attempt)) or b""
    lines = content.decode("utf-8", "replace").splitlines()
    events = [event for line in lines if (event := parse_event_line(line, attempt))]
    stages = [event.stage for event in events if event.stage not in SIDE_STAGES]
    return stages[-1] if stages else None


def load_points(connection: Connection, spec: RunSpec) -> list[MetricPoint]:
    """Return every value of every metric of a run, in the order written."""
    return load_history(connection, spec)[0]


def load_history(connection: Connection, spec: RunSpec) -> tuple[list[MetricPoint], PointHistory]:
    """Return every value of a run in the order written, and which of them are of lost work."""
    content = runs_container(connection).read(RunPaths(spec.run_id).metrics) or b""
    points: list[MetricPoint] = []
    marks: list[ResumeMark] = []
    for line in content.decode("utf-8", "replace").splitlines():
        if (point := MetricPoint.load(line)) is not None:
            points.append(point)
        elif (mark := ResumeMark.load(line)) is not None:
            marks.append(mark)
    return points, find_history(points, marks)


def iterate_points(
    container: BlobContainer, run_id: str, history: PointHistory | None = None
) -> Iterator[PlacedPoint]:
    """Yield the values of a run in the order written, without holding them in memory.

    Each value and each mark is added to the history, if there is one.
    """
    blob, rest, position = RunPaths(run_id).metrics, b"", 0
    while True:
        data = container.read_range(blob, position + len(rest), _POINT_BYTES)
        is_end = not data
        text = rest + (data or b"\n" * bool(rest))
        data, line_start = b"", 0
        while (line_end := text.find(b"\n", line_start)) >= 0:  # one line at a time in memory
            line = text[line_start:line_end]
            if (point := _parse_point(line, position)) is not None:
                if history is not None:
                    history.add(point)
                yield point
            elif history is not None and (mark := ResumeMark.load(line)) is not None:
                history.add_mark(mark)
            position += line_end + 1 - line_start
            line_start = line_end + 1
        if is_end:
            return
        rest = text[line_start:]


def _parse_point(line: bytes, position: int) -> PlacedPoint | None:
    """Return the value of a line, or None if it is damaged; faster than `MetricPoint.load`."""
    try:
        raw: Any = json.loads(line)
        name, step, value = raw["name"], raw.get("step"), raw["value"]
        attempt, time, source = raw.get("attempt"), raw.get("time"), raw.get("source", "")
        is_plain = type(name) is str and type(value) in (float, int) and type(attempt) is int
        is_plain = is_plain and type(time) is str and type(source) is str
        if is_plain and (step is None or type(step) is int):
            return PlacedPoint(position, name, step, float(value), attempt, time, source)
    except DAMAGED:
        pass
    point = MetricPoint.load(line.decode("utf-8", "replace"))
    if point is None:
        return None
    return PlacedPoint(
        position, point.name, point.step, point.value, point.attempt, point.time, point.source
    )


def summarise_points(
    container: BlobContainer,
    spec: RunSpec,
    last: int | None,
    on_point: Callable[[PlacedPoint], None] = lambda _: None,
    on_restart: Callable[[], None] = lambda: None,
) -> tuple[dict[str, MetricPass], PointHistory]:
    """Return what is known about each metric of a run, and which values are of lost work.

    The values are read once, or twice if several attempts reported some: which of them are of lost
    work is known at the end only.

    Args:
        container: the container of runs.
        spec: the run.
        last: the number of newest steps to keep of each metric; None keeps a sketch of all.
        on_point: gets each value that is not of lost work.
        on_restart: called before the values are read for the second time.
    """
    history = PointHistory()
    found = _pass_points(iterate_points(container, spec.run_id, history), spec, last, on_point)
    if history.may_have_lost:
        on_restart()
        again = iterate_points(container, spec.run_id)
        found = _pass_points(again, spec, last, on_point, history)
    return {name: each for name, each in found.items() if not each.is_empty}, history


def _pass_points(
    points: Iterable[PlacedPoint],
    spec: RunSpec,
    last: int | None,
    on_point: Callable[[PlacedPoint], None],
    history: PointHistory | None = None,
) -> dict[str, MetricPass]:
    found: dict[str, MetricPass] = {}
    for point in points:
        known = found.get(point.name)
        if known is None:
            known = found[point.name] = MetricPass(point.name, spec.goals.get(point.name), last)
        if history is not None and history.is_lost(point):
            known.add_lost(point.step, point.value)
            continue
        known.add(point.step, point.value, point.position, point.source)
        on_point(point)
    return found


def load_metrics(connection: Connection, spec: RunSpec) -> list[MetricSummary]:
    """Return the last and best value of every metric of a run."""
    found, _ = summarise_points(runs_container(connection), spec, last=1)
    return [each.summary() for each in found.values()]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The entry of a run in the index. `raw` of both documents has only the entry's fields.

    `usage` is the text for `parse_usage`, empty if the entry has none.
    """

    spec: RunSpec
    result: RunResult | None
    usage: str = ""


def add_to_lists(container: BlobContainer, run: Mapping[str, Any]) -> None:
    """Write the entry of a new run by which lists find it. Raise RunnerError if that fails.

    An existing entry is kept, because the run may have ended.
    """
    container.put_metadata(by_time_blob(run["run_id"]), index_metadata(run, None), overwrite=False)


def forget_new(container: BlobContainer, run_id: str) -> None:
    """Delete what the failed submission of a run has written."""
    container.delete(by_time_blob(run_id))
    container.delete(RunPaths(run_id).run)


def index_run(
    container: BlobContainer, run: Mapping[str, Any], result: Mapping[str, Any] | None = None
) -> None:
    """Write the entries of a run, with or without its outcome. Ignore errors: they are copies.

    Without a result, keep existing entries, because the run may have ended. Only `add_to_lists`
    then writes the one of the index by time.
    """
    by_name, by_time = index_blobs(run["run_id"])
    metadata = index_metadata(run, result)
    for blob in (by_name,) if result is None else (by_time, by_name):
        with suppress(RunnerError):
            container.put_metadata(blob, metadata, overwrite=result is not None)


def load_index(container: BlobContainer, prefix: str = "") -> dict[str, IndexEntry]:
    """Return all readable entries of runs with a prefix, by run ID."""
    entries: dict[str, IndexEntry] = {}
    for name, metadata in container.list_metadata(INDEX_FOLDER + prefix):
        run_id = name.removeprefix(INDEX_FOLDER)
        entry = parse_entry(run_id, metadata)
        if entry is not None:
            entries[run_id] = entry
    return entries


def parse_entry(run_id: str, metadata: Mapping[str, str]) -> IndexEntry | None:
    """Return the entry, or None if it is unreadable: the run's documents then show the error."""
    if "run" not in metadata:
        return None
    try:
        spec = parse_run(metadata["run"].encode(), run_id)
        result = metadata.get("result")
        outcome = None if result is None else parse_result(result.encode(), run_id)
    except RunnerError:
        return None
    if spec.run_id != run_id:
        return None
    return IndexEntry(spec, outcome, metadata.get("attempts", ""))


_READ_BYTES = 4 * 1024**2  # bytes of one request
_POINT_BYTES = 2 * 1024**2


class TextCursor:
    """Reads new text of an append blob, up to the byte `end` if it is given.

    Each call reads at most `most` bytes.
    """

    def __init__(
        self,
        container: BlobContainer,
        blob: str,
        offset: int = 0,
        end: int | None = None,
        *,
        most: int = _READ_BYTES,
    ) -> None:
        self._container = container
        self._blob = blob
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = end
        self._most = most
        self.offset = offset

    def read(self) -> str:
        """Return new text, "" if there is none."""
        length = self._most if self._end is None else min(self._most, self._end - self.offset)
        if length <= 0:
            return ""
        data = self._container.read_range(self._blob, self.offset, length)
        if not data:
            return ""
        self.offset += len(data)
        return self._decoder.decode(data)

    def lost_from(self) -> int | None:
        """Return the size of the blob if storage has lost bytes that were read, else None."""
        size = self._container.size(self._blob) or 0
        return size if size < self.offset else None

    def go_back(self, offset: int) -> None:
        """Continue at `offset`."""
        self.offset = offset
        self._decoder.reset()


class LineCursor:
    """Reads new complete lines of an append blob."""

    def __init__(self, container: BlobContainer, blob: str) -> None:
        self._text = TextCursor(container, blob)
        self._rest = ""

    def read(self) -> list[str]:
        """Return new complete lines without line ends."""
        *lines, self._rest = (self._rest + self._text.read()).split("\n")
        return [line for line in lines if line.strip()]
