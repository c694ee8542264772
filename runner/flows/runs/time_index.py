"""Read the index by time: the runs of a container, newest first, without listing all of them.

Only an index with a mark is read, because without it, runs of earlier versions may be missing; see
`index_upkeep.py`, which writes the mark.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from typing import Any, TypeVar

from runner.azure.storage.blobs import BlobContainer
from runner.flows.runs.waiting import list_started, load_waiting
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.paths import parse_sweep_id
from runner.protocol.results import (
    BY_TIME_FOLDER,
    BY_TIME_MARK,
    STOPPED_EARLY,
    by_time_blob,
    complement_of,
    parse_by_time,
)
from runner.protocol.waiting_trials import WaitingTrials

T = TypeVar("T")
LARGE_PAGE = (
    2000  # entries of a request; more would take longer than what is done with them meanwhile
)
_READ_ALONE = 2  # pages, after which another one is likely to be needed
# Names with metadata, and True if more pages follow.
_Page = tuple[list[tuple[str, Mapping[str, str]]], bool]


@dataclass(frozen=True, slots=True)
class TimedEntry:
    """A run in the index by time; `metadata` is None for a trial that has not started."""

    second: str  # its submission, as in the names of the index
    run_id: str
    metadata: Mapping[str, str] | None = field(repr=False)

    @property
    def status(self) -> str | None:
        """The status of its result; None if the entry has no result that can be read."""
        return self._value("result", "status")

    @property
    def stopped_early(self) -> bool:
        """True for a trial that its sweep stopped."""
        return STOPPED_EARLY in (self.metadata or {}).get("result", "") and (
            self._value("result", "code") == STOPPED_EARLY
        )

    @property
    def sweep_id(self) -> str | None:
        """The sweep of a trial, or None for another run."""
        group_id = parse_sweep_id(self.run_id)
        if group_id is None or self.metadata is None:
            return group_id  # only trials wait without an entry
        is_trial = self._value("run", "group") == group_id and '"trial"' in self.metadata["run"]
        return group_id if is_trial else None

    def is_after(self, moment: datetime) -> bool:
        """Return True if the run was submitted after a moment, to the second."""
        return self.second < _last_second(moment)

    def may_be_of(self, experiment: str) -> bool:
        """Return False if the entry has another experiment. Faster than `parse`."""
        text = (self.metadata or {}).get("run", "")
        named = json.dumps({"experiment": experiment}, separators=(",", ":"))[1:-1]
        return '"experiment":' not in text or named.replace(" ", "\\u0020") in text

    def _value(self, part: str, name: str) -> str | None:
        with suppress(KeyError, *DAMAGED):
            found: Any = parse_json((self.metadata or {})[part])[name]
            return found if isinstance(found, str) else None
        return None


class TimeIndex:
    """The runs of one container, newest first. Pages are requested as they are needed."""

    def __init__(
        self, container: BlobContainer, pages: Iterator[_Page], waiting: Mapping[str, WaitingTrials]
    ) -> None:
        self._container = container
        self._pages = pages
        self._waiting = waiting
        self._listed: list[TimedEntry] = []  # of the last page
        self._seen: set[str] = set()
        self._has_more = False

    @classmethod
    def open(
        cls, container: BlobContainer, first: int = 0, *, page: int = LARGE_PAGE
    ) -> TimeIndex | None:
        """Return the index, or None if it has no mark, so that it may lack runs.

        Args:
            container: The container of runs.
            first: Number of entries of the first request; 0 means as many as of the others.
            page: Number of entries of the others.
        """
        pages = container.metadata_pages(BY_TIME_FOLDER, first + 1 if first else page, page)
        # In this thread: at its end, Python would wait for those of a completion that timed out.
        empty: _Page = ([], False)
        listed, has_more = next(pages, empty)
        if not listed or listed[0][0] != BY_TIME_MARK:
            return None
        waiting = load_waiting(container)
        return cls(container, chain([(listed[1:], has_more)], pages), waiting)

    @property
    def unstarted(self) -> list[str]:
        """The trials on the lists of those that wait; some may have started."""
        return [each.run_id for each in self._unstarted()]

    def see(self, run_id: str) -> None:
        """Do not count a run as one that is left."""
        self._seen.add(run_id)

    def left(self, since: datetime | None = None) -> tuple[list[TimedEntry], bool]:
        """Return the listed runs that were not seen, and if more follow that were not listed."""
        last = _last_second(since)
        known = {each.run_id: each for each in (*self._unstarted(), *self._listed)}
        left = [e for e in known.values() if e.run_id not in self._seen and e.second <= last]
        has_older = bool(self._listed) and self._listed[-1].second > last
        return left, self._has_more and not has_older

    def seconds(self, since: datetime | None = None) -> Iterator[list[TimedEntry]]:
        """Yield the runs of each second in which some were submitted, in the order of lists.

        Args:
            since: Only runs that were submitted since then.
        """
        last = _last_second(since)
        waiting = sorted(self._unstarted(), key=lambda each: each.second)
        merged = heapq.merge(self._entries(), waiting, key=lambda each: each.second)
        for second, found in groupby(merged, key=lambda each: each.second):
            if second > last:
                return
            runs: dict[str, TimedEntry] = {}
            for each in found:
                if each.metadata is not None or each.run_id not in runs:
                    runs[each.run_id] = each
            self._forget_waiting(second, runs)
            yield [runs[run_id] for run_id in sorted(runs, reverse=True)]

    def _unstarted(self) -> Iterator[TimedEntry]:
        for waiting in self._waiting.values():
            yield from (TimedEntry(_second(run_id), run_id, None) for run_id in waiting.trials)

    def _entries(self) -> Iterator[TimedEntry]:
        for page, has_more in ahead(self._pages, _READ_ALONE):
            found = ((parse_by_time(blob), metadata) for blob, metadata in page)
            self._listed = [TimedEntry(*name, metadata) for name, metadata in found if name]
            self._has_more = has_more
            yield from self._listed

    def _forget_waiting(self, second: str, runs: Mapping[str, TimedEntry]) -> None:
        """Delete the list of the waiting trials of a sweep if all have started."""
        for blob, waiting in self._waiting.items():
            ids = waiting.trials
            if not ids or _second(next(iter(ids))) != second:
                continue
            if all(run_id in runs and runs[run_id].metadata is not None for run_id in ids):
                with suppress(RunnerError):  # the next list tries again
                    if list_started(self._container, waiting.group_id).issuperset(ids):
                        self._container.delete(blob)


def ahead(items: Iterator[T], first: int) -> Iterator[T]:
    """Yield the items. After the first ones, each is requested while the one before it is used."""
    yield from islice(items, first)
    with ThreadPoolExecutor(max_workers=1) as threads:
        following = threads.submit(next, items, None)
        while (item := following.result()) is not None:
            following = threads.submit(next, items, None)
            yield item


def _second(run_id: str) -> str:
    return by_time_blob(run_id).removeprefix(BY_TIME_FOLDER).partition("-")[0]


def _last_second(since: datetime | None) -> str:
    return "~" if since is None else complement_of(since.astimezone(UTC))
