"""List runs, newest first.

Finished runs come from the index (one listing for all runs) or from their own documents; for
unfinished runs Batch is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from posixpath import commonprefix
from threading import Lock
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.states import RunState
from runner.flows.runs.documents import (
    IndexEntry,
    list_run_ids,
    load_index,
    load_result,
    runs_container,
)
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.rows import RunRow, ended_row, lacks_start, unreadable_row, with_first_start
from runner.flows.runs.waiting import WaitingTrialsCache, read_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import GROUPS_FOLDER
from runner.protocol.paths import RunPaths, newest_first, parse_sweep_id, slug, submission_time
from runner.protocol.run_spec import RunSpec, parse_run
from runner.protocol.sweeps import TrialReport, reports_folder

if TYPE_CHECKING:
    from runner.flows.runs.stuck import PoolReader

# The index has an entry for every run, and all of them are read at once: 0.5 ms per entry. The two
# documents of a run take 7 ms.
_INDEX_FROM = 40  # number of rows from which the index is read, for any number of runs
_ENTRIES_PER_ROW = 12  # the index is also read if it has at most so many entries per row
_PAGE = 20
_MAX_INDEXED = 2000  # with more runs, a list of sweeps does not read the index for their trials
_MAX_READ = _INDEX_FROM - 1  # trials of such a sweep that are read
_MAX_REPORTS = 2000  # reports of such sweeps that are listed instead, those of the newest first
_NOT_STARTED, _STARTED = "not started", "started"  # of trials that are not read one by one


# The states of trials by their reports.
_ENDED = {
    "succeeded": RunState.SUCCEEDED,
    "stopped": RunState.SUCCEEDED,
    "failed": RunState.FAILED,
}


@dataclass(frozen=True, slots=True)
class RunHistory:
    """Rows, and the number of older runs that are not listed."""

    rows: tuple[RunRow, ...]
    older: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs to list; the defaults list all."""

    experiment: str | None = None
    states: frozenset[RunState] = frozenset()
    since: datetime | None = None

    def accepts(self, row: RunRow) -> bool:
        """Return True if the filter matches; unreadable runs match only an empty filter."""
        if self.experiment:  # compare the typed name, and the name that `train -e` stores for it
            names = (self.experiment, slug(self.experiment))
            if row.spec is None or row.spec.experiment not in names:
                return False
        return not self.states or (row.status is not None and row.status.state in self.states)


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
    """Runs, and sweeps as one entry each; `older` entries are not listed."""

    lines: tuple[RunRow | SweepLine, ...]
    older: int


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
    among = list_run_ids(runs_container(connection)) if ids is None else newest_first(list(ids))
    is_small = limit is not None and len(among) <= _ENTRIES_PER_ROW * limit
    prefix = "" if ids is None else commonprefix(among)
    listing = _Listing(connection, prefix, index_from=1 if is_small else _INDEX_FROM)
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
    room = _MAX_REPORTS
    for line in lines.values():
        if isinstance(line, SweepLine) and line.was_resumed:
            _take_newest(connection, line, listing, only)
        elif isinstance(line, SweepLine) and not line.rows and len(line.run_ids) <= room:
            room -= len(line.run_ids)
            listing.count(line)
    return GroupedHistory(tuple(lines.values()), len(entries) - position)


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
        missing = [run_id for run_id in ids if run_id not in found]
        rows = in_parallel(self._row, missing)
        found |= dict(zip(missing, rows, strict=True))
        return [found[run_id] for run_id in ids]

    def count(self, line: SweepLine) -> None:
        """Count the runs of a sweep by their reports. Read the others if they are few.

        A report that a trial ended is the last thing that its agent writes before the outcome, and
        `runner sweep resume` resets it.
        """
        container = runs_container(self._connection)
        left = dict.fromkeys(line.run_ids)
        for blob, metadata in container.list_metadata(reports_folder(line.group_id)):
            report = TrialReport.parse(blob, metadata)
            state = _ENDED.get(report.state) if report else None
            if report is not None and state is not None and report.run_id in left:
                line.counted[state.value] += 1
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
        entries = [self._index[run_id] for run_id in ids if run_id in self._index]
        finished = [ended_row(e.spec, e.result, e.usage) for e in entries if e.result]
        container = runs_container(self._connection)
        rows: dict[str, RunRow | None] = {row.run_id: row for row in finished}
        incomplete = [row for row in finished if lacks_start(row)]  # entries without usage
        rows |= {
            row.run_id: row
            for row in in_parallel(lambda row: with_first_start(container, row), incomplete)
        }
        unfinished = [entry.spec for entry in entries if entry.result is None]
        missing = [run_id for run_id in ids if run_id not in self._index]
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
