"""The rows of all lists of runs: read once, and then only new and unfinished runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice
from sys import intern
from threading import Lock
from typing import Any, NamedTuple

from runner.azure.auth.credentials import Connection
from runner.flows.runs.history import iterate_runs, list_runs
from runner.flows.runs.rows import RunRow
from runner.page.source import Source
from runner.protocol.metrics import Goal
from runner.protocol.paths import newest_first, parse_sweep_id
from runner.protocol.usage import AttemptUsage, parse_usage

MOST_RUNS = 20_000
_NEWEST = 60  # read again for every update: new runs, and deleted ones among them
_PAGE = 250  # entries of the index that are in memory at a time
_AGAIN_S = 120.0  # after which all rows are read again
_AT_ONCE = 39  # unfinished runs of one call; from 40 on, a list reads the index of all runs
_MOST_UNFINISHED = 400  # that are read again for every update


class NodeUse(NamedTuple):
    """Time of one node for a run, in milliseconds since 1970; `end` is None while it runs."""

    start: int
    end: int | None
    spot: bool


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in little memory: what lists show and sort by.

    Attributes:
        label: The state as lists show it, such as `paused`; `state` is a value of RunState.
        group: The sweep or group of the run.
        is_trial: True for a trial of the sweep `group`.
        metric: The metric that lists show.
        used: The times of its nodes, and `saved` that of its newest checkpoint in milliseconds
            since 1970, from the index; `used` is None if they have to be read.
    """

    run_id: str
    state: str
    label: str
    reason: str = ""
    is_over: bool = False
    recipe: str = ""
    experiment: str = ""
    pool: str = ""
    vm_size: str = ""
    spot: bool = False
    nodes: int = 1
    group: str = ""
    is_trial: bool = False
    created: datetime | None = None
    ended: datetime | None = None
    took_s: float | None = None
    attempts: int = 0
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    metric: str | None = None
    goals: Mapping[str, Goal] = field(default_factory=dict[str, Goal])
    used: tuple[NodeUse, ...] | None = None
    saved: int | None = None

    @property
    def status(self) -> str:
        """The status of the result, empty without one."""
        return self.state if self.ended is not None else ""


def to_entry(row: RunRow) -> RunEntry:
    """Return a row without its documents."""
    spec = row.spec
    if spec is None:
        return RunEntry(row.run_id, "unreadable", "unreadable", row.reason, is_over=True)
    trial = spec.trial or {}
    entry = RunEntry(
        row.run_id,
        intern(row.state),
        intern(row.status.label if row.status else row.state),
        row.failure if row.status and row.status.error else row.reason,
        row.is_over,
        intern(spec.recipe),
        intern(spec.experiment),
        intern(spec.pool),
        intern(spec.vm_size or ""),
        spec.spot,
        spec.nodes,
        intern(spec.group or ""),
        bool(trial and spec.group),
        spec.created,
        row.ended,
        row.took_s,
        row.attempts,
        {intern(name): value for name, value in row.params.items()},
        {intern(name): value for name, value in row.metrics.items()},
        row.shown_metric or next(iter(spec.named_metrics), None),
        _shared_goals(tuple(spec.goals.items())),
    )
    usages = parse_usage(row.usage) if row.usage else None
    return entry if usages is None else with_usage(entry, usages)


def with_usage(entry: RunEntry, usages: Sequence[AttemptUsage]) -> RunEntry:
    """Return an entry with the times of its nodes. The boot of a node for the run counts."""
    used: list[NodeUse] = []
    before: dict[int, int] = {}
    for each in usages:
        if each.started is None:
            continue
        since = before.get(each.rank)
        if since is None:
            since = round(entry.created.timestamp() * 1000) if entry.created else 0
        start = each.started
        if each.booted is not None and since < each.booted < start:
            start = each.booted
        end = each.ended
        if end is None and (entry.is_over or each.attempt < entry.attempts):
            end = each.last_sign or start
        if each.held_by is not None:
            end = each.held_by if each.held is None else each.held
        before[each.rank] = end or start
        used.append(
            NodeUse(start, end, entry.spot if each.dedicated is None else not each.dedicated)
        )
    saved = max((each.saved for each in usages if each.saved is not None), default=None)
    return replace(entry, used=tuple(used), saved=saved)


@lru_cache(1000)
def _shared_goals(items: tuple[tuple[str, Goal], ...]) -> Mapping[str, Goal]:
    return dict(items)


class RunTable:
    """The newest runs, at most MOST_RUNS of them. `refresh` and `load_all` are called in threads.

    Attributes:
        entries: All known runs, newest first.
        is_complete: False until all runs were read once.
        is_cut: True if there are older runs than MOST_RUNS.
    """

    def __init__(self) -> None:
        self.entries: tuple[RunEntry, ...] = ()
        self.is_complete = False
        self.is_cut = False
        self._by_id: dict[str, RunEntry] = {}
        self._lock = Lock()
        self._task: asyncio.Future[None] | None = None

    def find(self, run_id: str) -> RunEntry | None:
        """Return a run that is known, or None."""
        return self._by_id.get(run_id)

    def refresh(self, connection: Connection) -> tuple[RunEntry, ...]:
        """Read the newest runs and the unfinished ones again, and return all known runs."""
        found = list_runs(connection, limit=_NEWEST)
        newest = {row.run_id: to_entry(row) for row in found.rows}
        with self._lock:
            known = self._by_id
            unfinished = [
                run_id for run_id, each in known.items()
                if not each.is_over and run_id not in newest
            ][:_MOST_UNFINISHED]  # fmt: skip
        again: dict[str, RunEntry] = {}
        for ids in _calls(unfinished):
            again |= _read(connection, ids)
        with self._lock:
            has_older = found.older > 0 or found.has_more
            last = found.rows[-1].run_id if found.rows and has_older else None
            kept = self._older_than(last) if last else ()
            gone = {run_id for run_id in unfinished if run_id not in again}
            rest = {e.run_id: again.get(e.run_id, e) for e in kept if e.run_id not in gone}
            self._replace({**newest, **rest})
            if not has_older:
                self.is_complete, self.is_cut = True, False
        return self.entries

    def load_all(self, connection: Connection) -> None:
        """Read all runs."""
        rows = iterate_runs(connection, page=_PAGE)
        entries = {row.run_id: self._entry(row) for row in islice(rows, MOST_RUNS)}
        with self._lock:
            # Those that were submitted meanwhile come with the next refresh.
            self._replace(entries)
            self.is_complete, self.is_cut = True, next(rows, None) is not None

    def _entry(self, row: RunRow) -> RunEntry:
        """Return the entry of a row, the known one of a run that had ended before."""
        known = self._by_id.get(row.run_id)
        if row.result is not None and row.result.kept_until is not None:
            return to_entry(row)  # the time for which its node is kept may change
        if known is None or known.used is None or row.ended is None or known.ended != row.ended:
            return to_entry(row)
        return known

    def _older_than(self, run_id: str) -> Iterable[RunEntry]:
        order = newest_first([run_id, *(e.run_id for e in self.entries if e.run_id != run_id)])
        older = order[order.index(run_id) + 1 :]
        return [self._by_id[each] for each in older]

    def _replace(self, entries: Mapping[str, RunEntry]) -> None:
        order = newest_first(list(entries))[:MOST_RUNS]
        self._by_id = {run_id: entries[run_id] for run_id in order}
        self.entries = tuple(self._by_id.values())

    async def read(self, source: Source, *, wait_s: float = 0.0) -> tuple[RunEntry, ...]:
        """Return the known runs, of which the newest and the unfinished ones are up to date.

        All others are read in the background when there are more; wait at most so long for them.
        """
        entries = await source.read(("run table",), self.refresh)
        if self.is_complete and len(entries) <= _NEWEST:
            return entries
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(
                source.read(("every run",), self.load_all, fresh_s=_AGAIN_S)
            )
            self._task.add_done_callback(_ignore)
        if not self.is_complete:
            await asyncio.wait({self._task}, timeout=wait_s)
        return self.entries


def _ignore(task: asyncio.Future[None]) -> None:
    """Ignore an error: the next request reads again, and its own read shows what is wrong."""
    if not task.cancelled():
        task.exception()


def _calls(run_ids: Sequence[str]) -> Iterable[Sequence[str]]:
    """Yield the IDs of a sweep, which have a common prefix, together, and all others in parts."""
    sweeps: dict[str, list[str]] = {}
    for run_id in run_ids:
        sweeps.setdefault(parse_sweep_id(run_id) or "", []).append(run_id)
    single = sweeps.pop("", [])
    for begin in range(0, len(single), _AT_ONCE):
        yield single[begin : begin + _AT_ONCE]
    yield from sweeps.values()


def _read(connection: Connection, run_ids: Sequence[str]) -> dict[str, RunEntry]:
    rows = list_runs(connection, limit=None, ids=run_ids).rows
    return {row.run_id: to_entry(row) for row in rows}


async def find_entries(source: Source, run_ids: Sequence[str]) -> dict[str, RunEntry]:
    """Return runs by ID, also those that are too old for the table. Unknown IDs are left out."""
    table = source.kept(RunTable)
    missing = tuple(run_id for run_id in run_ids if table.find(run_id) is None)
    read: dict[str, RunEntry] = {}
    if missing:
        read = await source.read(
            ("runs by id", missing), lambda connection: _read(connection, missing), fresh_s=5.0
        )
    found = {run_id: table.find(run_id) or read.get(run_id) for run_id in run_ids}
    return {run_id: each for run_id, each in found.items() if each is not None}
