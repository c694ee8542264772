"""List runs, newest first.

Finished runs come from the index (one listing for all runs) or from their own documents; for
unfinished runs Batch is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from posixpath import commonprefix
from threading import Lock
from typing import TYPE_CHECKING, get_args

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.states import STOPPED_LABEL, RunState
from runner.flows.runs.documents import (
    IndexEntry,
    list_run_ids,
    load_index,
    load_result,
    parse_entry,
    runs_container,
)
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.rows import RunRow, ended_row, lacks_start, unreadable_row, with_first_start
from runner.flows.runs.time_index import LARGE_PAGE, TimedEntry, TimeIndex
from runner.flows.runs.waiting import WaitingTrialsCache, list_started, read_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import GROUPS_FOLDER
from runner.protocol.paths import (
    RunPaths,
    is_run_id,
    newest_first,
    parse_sweep_id,
    slug,
    submission_time,
    task_trial_ids,
)
from runner.protocol.results import ResultStatus
from runner.protocol.run_spec import RunSpec, parse_run
from runner.protocol.sweeps import TrialReport, reports_folder

if TYPE_CHECKING:
    from runner.flows.runs.stuck import PoolReader

# The index has an entry for every run, and all of them are read at once: 0.5 ms per entry. The two
# documents of a run take 7 ms.
_INDEX_FROM = 40  # number of rows from which the index is read, for any number of runs
_ENTRIES_PER_ROW = 12  # the index is also read if it has at most so many entries per row
_PAGE = 20
_MAX_INDEXED = 2000  # with more runs, the trials of a large sweep are counted and not read
_MAX_READ = _INDEX_FROM - 1  # trials of such a sweep that are read
_PAGES = 5  # entries of the first request to the index by time, per row
_LARGEST_PAGE = 5000
_CHUNK = 500  # rows that are read at once
_MOST_TASKS = 100_000  # that have not ended
_FIRED_WITHIN = timedelta(days=60)  # the longest time that a run of a schedule is searched for
_NOT_STARTED, _STARTED = "not started", "started"  # of trials that are not read one by one


# The states of trials by their reports.
_ENDED = {
    "succeeded": RunState.SUCCEEDED.value,
    "stopped": STOPPED_LABEL,
    "failed": RunState.FAILED.value,
}
_ENDED_STATUSES = frozenset(get_args(ResultStatus))


@dataclass(frozen=True, slots=True)
class RunHistory:
    """Rows, and the number of older runs that are not listed.

    With `has_more`, there may be more older runs, which were not counted.
    """

    rows: tuple[RunRow, ...]
    older: int
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs to list; the defaults list all."""

    experiment: str | None = None
    states: frozenset[RunState] = frozenset()
    since: datetime | None = None
    before: datetime | None = None

    def accepts(self, row: RunRow) -> bool:
        """Return True if the filter matches; unreadable runs match only times."""
        if self.before is not None:
            submitted = submission_time(row.run_id)
            if submitted is None or submitted > self.before:
                return False
        if self.experiment:  # compare the typed name, and the name that `train -e` stores for it
            names = (self.experiment, slug(self.experiment))
            if row.spec is None or row.spec.experiment not in names:
                return False
        return not self.states or (row.status is not None and row.status.state in self.states)

    @property
    def is_unfinished(self) -> bool:
        """True if only runs in states that are not final match."""
        return bool(self.states) and not any(state.final for state in self.states)

    def may_accept(self, entry: TimedEntry) -> bool:
        """Return False if the run of an entry cannot match; fast for many entries."""
        if self.before is not None and entry.is_after(self.before):
            return False
        if self.experiment and not any(
            entry.may_be_of(name) for name in (self.experiment, slug(self.experiment))
        ):
            return False
        if not self.states or entry.metadata is None or "result" not in entry.metadata:
            return True
        return (status := entry.status) is None or status in self.states


EVERY_RUN = RunFilter()


@dataclass(slots=True)
class SweepLine:
    """A sweep as one entry of the list; `rows` has only the runs that were read.

    `counted` has the number of other runs by label. With `was_resumed`, the IDs of some runs do not
    contain the ID of the sweep.
    """

    group_id: str
    run_ids: list[str]
    rows: list[RunRow] = field(default_factory=list[RunRow])
    was_resumed: bool = False
    counted: Counter[str] = field(default_factory=Counter[str])

    @property
    def states(self) -> dict[str, int]:
        """The number of its runs by label, in the order of a run's life."""
        counts = Counter(row.status.label if row.status else "unreadable" for row in self.rows)
        counts += self.counted
        order = [*(state.value for state in RunState), *sorted(counts)]
        return dict(sorted(counts.items(), key=lambda item: order.index(item[0])))


@dataclass(frozen=True, slots=True)
class GroupedHistory:
    """Runs, and sweeps as one entry each; `older` and `has_more` are those of `RunHistory`."""

    lines: tuple[RunRow | SweepLine, ...]
    older: int
    has_more: bool = False


def with_commands(connection: Connection, found: RunHistory) -> RunHistory:
    """Return the rows with their commands. The index has no command that is long."""
    cut = [row for row in found.rows if row.spec and row.spec.raw and not row.spec.command]
    if not cut:
        return found
    container = runs_container(connection)

    def read_whole(row: RunRow) -> RunRow:
        with suppress(RunnerError):  # it was damaged or deleted in the meantime
            return replace(row, spec=parse_run(read_run(container, row.run_id) or b"", row.run_id))
        return row

    whole = {row.run_id: row for row in in_parallel(read_whole, cut)}
    return replace(found, rows=tuple(whole.get(row.run_id, row) for row in found.rows))


def list_runs(
    connection: Connection,
    *,
    limit: int | None,
    only: RunFilter = EVERY_RUN,
    ids: Sequence[str] | None = None,
) -> RunHistory:
    """Return the newest runs that match, at most `limit`; `ids` limits the choice to these runs."""
    are_few = False  # the index of names would have more entries than these runs
    if ids is None:
        index = TimeIndex.open(runs_container(connection), _first_page(limit))
        if index is not None and only.is_unfinished:
            ids = find_unfinished(connection, datetime.now(UTC), timedelta(0))
            are_few = True
        elif index is not None:
            found = tuple(islice(_matching_rows(connection, index, only, limit), limit))
            left, has_more = index.left(only.since)
            return RunHistory(found, len(left), has_more)
    among = list_run_ids(runs_container(connection)) if ids is None else newest_first(list(ids))
    is_small = limit is not None and len(among) <= _ENTRIES_PER_ROW * limit
    prefix = "" if ids is None else commonprefix(among)
    index_from = len(among) + 1 if are_few else 1 if is_small else _INDEX_FROM
    listing = _Listing(connection, prefix, index_from=index_from)
    ids = among
    if only.since is not None:
        ids = [run_id for run_id in ids if _not_before(run_id, only.since)]
    rows: list[RunRow] = []
    position, page = 0, limit or len(ids) or 1
    while position < len(ids) and (limit is None or len(rows) < limit):
        for row in listing.rows(ids[position : position + page]):
            position += 1
            if row is not None and only.accepts(row):
                rows.append(row)
            if len(rows) == limit:
                break
        page = max(2 * page, _PAGE)  # few runs match, so read more at once
    return RunHistory(tuple(rows), len(ids) - position)


def list_grouped(
    connection: Connection, *, limit: int | None, only: RunFilter = EVERY_RUN
) -> GroupedHistory:
    """Return the newest runs that match, at most `limit`; a sweep is one entry.

    With many runs in storage, the trials of a large sweep are read only if there is a filter.
    Otherwise, they are counted by their reports.
    """
    container = runs_container(connection)
    index = TimeIndex.open(container, _first_page(limit))
    if index is not None:
        newest = tuple(islice(_matching_lines(connection, index, only, limit), limit))
        left, has_more = index.left(only.since)
        return GroupedHistory(newest, len({e.sweep_id or e.run_id for e in left}), has_more)
    ids = list_run_ids(container)
    if only.since is not None:
        ids = [run_id for run_id in ids if _not_before(run_id, only.since)]
    is_small = limit is not None and len(ids) <= _ENTRIES_PER_ROW * limit
    listing = _Listing(connection, "", index_from=1 if is_small else _INDEX_FROM)
    most_read = _MAX_READ if only == EVERY_RUN and len(ids) > _MAX_INDEXED else len(ids)
    entries = _collapse(container, ids)
    lines: dict[str, RunRow | SweepLine] = {}
    position, page = 0, limit or len(entries) or 1
    while position < len(entries) and (limit is None or len(lines) < limit):
        names = [*islice(entries, position, position + page)]
        read = [each for name in names if len(entries[name]) <= most_read for each in entries[name]]
        rows = dict(zip(read, listing.rows(read), strict=True))
        for name in names:
            position += 1
            _add_entry(lines, name, entries[name], rows, only)
            if len(lines) == limit:
                break
        page = max(2 * page, _PAGE)
    for line in lines.values():
        if isinstance(line, SweepLine) and line.was_resumed:
            _take_newest(connection, line, listing, only)
        elif isinstance(line, SweepLine) and not line.rows:
            listing.count(line)
    return GroupedHistory(tuple(lines.values()), len(entries) - position)


def iterate_runs(
    connection: Connection, only: RunFilter = EVERY_RUN, *, page: int = LARGE_PAGE
) -> Iterator[RunRow]:
    """Yield all runs that match, newest first. Few of them are in memory at a time.

    Args:
        connection: The services.
        only: The runs to list.
        page: Number of entries of the index that are in memory at a time.
    """
    container = runs_container(connection)
    index = None if only.is_unfinished else TimeIndex.open(container, page=page)
    if index is None:
        yield from list_runs(connection, limit=None, only=only).rows
    else:
        yield from _matching_rows(connection, index, only, None, min(page, _CHUNK))


def iterate_grouped(
    connection: Connection, only: RunFilter = EVERY_RUN
) -> Iterator[RunRow | SweepLine]:
    """Yield all runs that match, newest first, and sweeps as one entry each."""
    index = TimeIndex.open(runs_container(connection))
    if index is None:
        yield from list_grouped(connection, limit=None, only=only).lines
    else:
        yield from _matching_lines(connection, index, only, None)


def _first_page(limit: int | None) -> int:
    return 0 if limit is None else min(_PAGES * max(limit, _PAGE), _LARGEST_PAGE)


def _chunks(
    index: TimeIndex, since: datetime | None, limit: int | None, most: int = _CHUNK
) -> Iterator[list[TimedEntry]]:
    """Yield the runs of whole seconds, first about `limit` of them, then more at once."""
    chunk, size = list[TimedEntry](), limit or most
    for second in index.seconds(since):
        chunk += second
        if len(chunk) >= size:
            yield chunk
            chunk, size = [], min(max(2 * size, _PAGE), most)
    if chunk:
        yield chunk


def _matching_rows(
    connection: Connection,
    index: TimeIndex,
    only: RunFilter,
    limit: int | None,
    most: int = _CHUNK,
) -> Iterator[RunRow]:
    listing = _Listing(connection, "", index_from=_INDEX_FROM)
    for chunk in _chunks(index, only.since, limit, most):
        possible = [each for each in chunk if only.may_accept(each)]
        rows = dict(zip((e.run_id for e in possible), listing.timed_rows(possible), strict=True))
        for each in chunk:
            if limit is not None:
                index.see(each.run_id)
            if (row := rows.get(each.run_id)) is not None and only.accepts(row):
                yield row


def _matching_lines(
    connection: Connection, index: TimeIndex, only: RunFilter, limit: int | None
) -> Iterator[RunRow | SweepLine]:
    """Yield runs and sweeps. A sweep stands where its newest run does.

    The trials of a large sweep are counted unless there is a filter.
    """
    listing = _Listing(connection, "", index_from=_INDEX_FROM)
    begun: set[str] = set()  # sweeps with a resumed trial, whose line has all their trials
    for chunk in _chunks(index, only.since, limit):
        sweeps = {each.run_id: each.sweep_id for each in chunk}
        trials: dict[str, list[TimedEntry]] = {}
        for each in chunk:
            if group_id := sweeps[each.run_id]:
                trials.setdefault(group_id, []).append(each)
        counted = {
            name
            for name, entries in trials.items()
            if only == EVERY_RUN and len(entries) > _MAX_INDEXED
        }
        shown = [e for e in chunk if sweeps[e.run_id] not in counted and only.may_accept(e)]
        rows = dict(zip((e.run_id for e in shown), listing.timed_rows(shown), strict=True))
        lines: dict[str, RunRow | SweepLine] = {}
        for each in chunk:
            name = sweeps[each.run_id] or each.run_id
            found = {} if name in counted else {each.run_id: rows.get(each.run_id)}
            _add_entry(lines, name, [each.run_id], found, only)
            if limit is not None and name not in lines:
                index.see(each.run_id)
        for name, line in lines.items():
            for run_id in line.run_ids if isinstance(line, SweepLine) else (name,):
                index.see(run_id)
            if name in begun:
                continue
            if isinstance(line, SweepLine):
                if line.was_resumed:
                    begun.add(name)
                    _take_newest(connection, line, listing, only)
                elif name in counted:
                    listing.count(line, trials[name])
            yield line


def find_unfinished(
    connection: Connection, now: datetime, submitted_within: timedelta
) -> list[str]:
    """Return the IDs of the runs that have not ended, and of those that may not have a task yet.

    They are those whose tasks Batch has not completed, the newest ones without a result, and trials
    that have not started. Without an index by time, all runs are read.

    Args:
        connection: The services.
        now: The current time.
        submitted_within: Maximum time until a submission has added the task of a run.
    """
    container = runs_container(connection)
    index = TimeIndex.open(container, _PAGE)
    if index is None:
        rows = list_runs(connection, limit=None).rows
        return [row.run_id for row in rows if _may_change(row, now - submitted_within)]
    from runner.azure.batch.jobs import unfinished_tasks  # noqa: PLC0415  the Batch SDK

    tasks = unfinished_tasks(connection, _MOST_TASKS)
    found = dict.fromkeys(index.unstarted)
    found |= dict.fromkeys(runs_of_tasks(container, [id_ for _, id_ in tasks if is_run_id(id_)]))
    # The tasks of a schedule have other names than their runs, whose entries name the job.
    fired = {job_id for job_id, task_id in tasks if ":" in job_id and not is_run_id(task_id)}
    since = now - (_FIRED_WITHIN if fired else submitted_within)
    for each in chain.from_iterable(index.seconds(since)):
        if each.metadata is not None and "result" not in each.metadata:
            entry = parse_entry(each.run_id, each.metadata) if fired else None
            if each.is_after(now - submitted_within) or (entry and entry.spec.job_id in fired):
                found[each.run_id] = None
    return [*found]


def runs_of_tasks(container: BlobContainer, task_ids: Sequence[str]) -> list[str]:
    """Return the runs of unfinished tasks. Of a task with several trials, those with a folder.

    Args:
        container: The container of runs.
        task_ids: The tasks, each with the ID of a run: its only one, or its first trial.
    """
    sweeps: dict[str, list[str]] = {}
    for task_id in task_ids:
        if group_id := parse_sweep_id(task_id):
            sweeps.setdefault(group_id, []).append(task_id)
    waiting, left = WaitingTrialsCache(container), dict.fromkeys(task_ids)
    trials: list[str] = []
    for group_id, tasks in sweeps.items():
        with suppress(RunnerError):  # the first trial was deleted, or is damaged
            most = parse_run(read_run(container, tasks[0], waiting) or b"", tasks[0]).task_trials
            if most > 1:
                started = list_started(container, group_id)
                each = (run_id for task in tasks for run_id in task_trial_ids(task, most))
                trials += (run_id for run_id in dict.fromkeys(each) if run_id in started)
                left = {task: None for task in left if task not in tasks}
    sizes = in_parallel(lambda run_id: container.size(RunPaths(run_id).result), trials)
    return [*left, *(run for run, size in zip(trials, sizes, strict=True) if size is None)]


def _may_change(row: RunRow, since: datetime) -> bool:
    is_new = row.spec is not None and row.result is None and row.spec.created > since
    return is_new or (row.status is not None and not row.status.state.final)


def _take_newest(
    connection: Connection, line: SweepLine, listing: _Listing, only: RunFilter
) -> None:
    """Replace the rows of a sweep by those of the newest run of each trial."""
    with suppress(RunnerError):  # the document of the sweep was deleted
        line.run_ids = list(find_group(connection, line.group_id).trial_runs.values())
        rows = listing.rows(line.run_ids)
        line.rows = [row for row in rows if row and only.accepts(row)]


def _collapse(container: BlobContainer, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the run IDs of each entry, by the ID of its run or sweep."""
    sweeps = {run_id: group_id for run_id in ids if (group_id := parse_sweep_id(run_id))}
    blobs = container.list(GROUPS_FOLDER) if sweeps else ()
    groups = {blob.name.removeprefix(GROUPS_FOLDER).removesuffix(".json") for blob in blobs}
    found: dict[str, list[str]] = {}
    for run_id in ids:
        group_id = sweeps.get(run_id, "")
        found.setdefault(group_id if group_id in groups else run_id, []).append(run_id)
    return found


def _add_entry(
    lines: dict[str, RunRow | SweepLine],
    name: str,
    run_ids: Sequence[str],
    rows: Mapping[str, RunRow | None],
    only: RunFilter,
) -> None:
    """Add an entry of the list. The run of a resumed trial is added to the entry of its sweep."""
    for run_id in run_ids:
        row = rows.get(run_id)
        group_id = None if name == run_id else name
        if run_id in rows:
            if row is None or not only.accepts(row):
                continue
            if row.spec is not None and row.spec.trial:
                group_id = group_id or row.spec.group
            if group_id is None:
                lines[run_id] = row
                continue
        line = lines.setdefault(group_id or name, SweepLine(group_id or name, []))
        if isinstance(line, SweepLine):
            line.run_ids.append(run_id)
            line.rows += [row] if row else []
            line.was_resumed |= name == run_id


def _not_before(run_id: str, since: datetime) -> bool:
    moment = submission_time(run_id)
    return moment is None or moment >= since


class _Listing:
    """Loads rows of runs whose IDs have a prefix. The index is read at most once.

    `index_from` is the number of rows from which the index is faster than the documents.
    """

    def __init__(self, connection: Connection, prefix: str, *, index_from: int) -> None:
        self._connection = connection
        self._prefix = prefix
        self._index_from = index_from
        self._lock = Lock()
        self._pools: PoolReader | None = None
        self._index: dict[str, IndexEntry] | None = None
        self._waiting = WaitingTrialsCache(runs_container(connection))

    def rows(self, ids: Sequence[str]) -> list[RunRow | None]:
        """Return one row per ID, in order."""
        found = self._indexed(ids) if len(ids) >= self._index_from else self._live(ids, ())
        return self._complete(ids, found)

    def _complete(self, ids: Sequence[str], found: dict[str, RunRow | None]) -> list[RunRow | None]:
        """Return one row per ID; those that are missing are read from their documents."""
        missing = [run_id for run_id in ids if run_id not in found]
        rows = in_parallel(self._row, missing)
        found |= dict(zip(missing, rows, strict=True))
        now = datetime.now(UTC)
        return [self._with_kept_node(found[run_id], now) for run_id in ids]

    def _with_kept_node(self, row: RunRow | None, now: datetime) -> RunRow | None:
        """Return the row with the node that the run keeps after its failure, which few do."""
        if row is None or row.spec is None or not row.may_keep_node(now):
            return row
        from runner.flows.runs.cancel import find_kept_node  # noqa: PLC0415  loads the Batch SDK

        return replace(row, kept=find_kept_node(self._connection, row.spec, row.result, now))

    def timed_rows(self, entries: Sequence[TimedEntry]) -> list[RunRow | None]:
        """Return one row per entry, in order."""
        ids = [each.run_id for each in entries]
        parsed = (parse_entry(each.run_id, each.metadata or {}) for each in entries)
        known = {entry.spec.run_id: entry for entry in parsed if entry is not None}
        return self._complete(ids, self._from_index(ids, known))

    def count(self, line: SweepLine, entries: Iterable[TimedEntry] = ()) -> None:
        """Count the runs of a sweep by their entries and reports. Read the others if they are few.

        A report that a trial ended is the last thing that its agent writes before the outcome, and
        `runner sweep resume` resets it.
        """
        container = runs_container(self._connection)
        left = dict.fromkeys(line.run_ids)
        for each in entries:
            if (status := each.status) in _ENDED_STATUSES and each.run_id in left:
                line.counted[STOPPED_LABEL if each.stopped_early else str(status)] += 1
                del left[each.run_id]
        reports = container.list_metadata(reports_folder(line.group_id)) if left else ()
        for blob, metadata in reports:
            report = TrialReport.parse(blob, metadata)
            state = _ENDED.get(report.state) if report else None
            if report is not None and state is not None and report.run_id in left:
                line.counted[state] += 1
                del left[report.run_id]
        if len(left) > _MAX_READ:
            for run_id in tuple(left):
                if (trials := self._waiting.unstarted(run_id)) is not None:
                    result = trials.result(run_id)
                    line.counted[result.status if result else _NOT_STARTED] += 1
                    del left[run_id]
        if len(left) > _MAX_READ:
            line.counted[_STARTED] += len(left)
        else:
            line.rows = [row for row in self.rows([*left]) if row is not None]

    def _row(self, run_id: str) -> RunRow | None:
        """Return one run, or None if it was deleted or its submission was not completed."""
        container = runs_container(self._connection)
        content = read_run(container, run_id, self._waiting)
        if content is None:
            lost = container.size(RunPaths(run_id).result) is not None
            problem = "run.json is missing in storage, but the outputs exist"
            return RunRow(run_id, None, None, None, problem=problem) if lost else None
        try:
            spec = parse_run(content, run_id)
            result = load_result(container, run_id)
            if result is not None:
                return with_first_start(container, ended_row(spec, result))
        except RunnerError as err:
            return unreadable_row(run_id, err)
        from runner.flows.runs.live import live_row  # noqa: PLC0415  loads the Batch SDK

        return live_row(self._connection, spec, self._reader())

    def _indexed(self, ids: Iterable[str]) -> dict[str, RunRow | None]:
        if self._index is None:
            self._index = load_index(runs_container(self._connection), self._prefix)
        return self._from_index(ids, self._index)

    def _from_index(
        self, ids: Iterable[str], index: Mapping[str, IndexEntry]
    ) -> dict[str, RunRow | None]:
        ids = [*ids]
        entries = [index[run_id] for run_id in ids if run_id in index]
        finished = [ended_row(e.spec, e.result, e.usage) for e in entries if e.result]
        container = runs_container(self._connection)
        rows: dict[str, RunRow | None] = {row.run_id: row for row in finished}
        incomplete = [row for row in finished if lacks_start(row)]  # entries without usage
        rows |= {
            row.run_id: row
            for row in in_parallel(lambda row: with_first_start(container, row), incomplete)
        }
        unfinished = [entry.spec for entry in entries if entry.result is None]
        missing = [run_id for run_id in ids if run_id not in index]
        return rows | self._live(missing, unfinished)

    def _live(self, ids: Iterable[str], unfinished: Iterable[RunSpec]) -> dict[str, RunRow | None]:
        """Return the rows of unfinished runs, and of those in `ids` that have not started."""
        rows: dict[str, RunRow | None] = {}
        records, unstarted = [*unfinished], set[str]()
        for run_id in ids:
            if trials := self._waiting.unstarted(run_id):
                spec = RunSpec.from_json(trials.document(run_id) or {})
                result = trials.result(run_id)
                if result is not None:
                    rows[run_id] = ended_row(spec, result)
                else:
                    records.append(spec)
                    unstarted.add(run_id)
        if not records:
            return rows
        from runner.flows.runs.live import live_rows  # noqa: PLC0415  loads the Batch SDK

        return rows | live_rows(self._connection, records, self._reader(), unstarted)

    def _reader(self) -> PoolReader:
        """Return the reader that all rows share, created when it is first needed."""
        from runner.flows.runs.stuck import PoolReader  # noqa: PLC0415  loads the Batch SDK

        with self._lock:
            self._pools = self._pools or PoolReader(self._connection)
            return self._pools
