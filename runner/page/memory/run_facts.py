"""What costs a document per run: its curves, its price so far, and its newest checkpoint.

Ended runs are read once. Of the others, only new points are read, and only while somebody looks.
Pages show what is known, and get the rest with their next update.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.flows.runs.documents import TextCursor, runs_container
from runner.page.memory.points import GrowingMetrics, MetricPoints
from runner.page.memory.run_table import NodeUse, RunEntry, with_usage
from runner.page.source import Source
from runner.protocol.paths import RunPaths
from runner.protocol.usage import load_usage

_MOST_POINTS = 1_500_000  # of all runs: 24 bytes each
_MOST_RUNS = 20_000
_LIVE_S = 4.0  # a run that has not ended is read again after this time
_BATCH = 32
_MOST_WANTED = 1000
_PRICES_S = 300.0
_READ_FOR_S = 1.0  # of one call; the next one reads on, and pages show what is known meanwhile
_READ_BYTES = 512 * 1024  # of one request: some runs are read at once
_HOUR_MS = 3_600_000


# The price of a node in micro-dollars per hour by its kind (spot or not); None if it is unknown.
Rates = Mapping[bool, int | None]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run.

    Attributes:
        series: Its metrics by name.
        nodes: The times of its nodes, and `rates` their prices.
        saved: When its newest checkpoint was written, in milliseconds since 1970.
        is_over: True if nothing changes any more.
        read_at: When it was read, by `time.monotonic`.
        is_whole: False if there are more points than could be read at once.
    """

    series: Mapping[str, MetricPoints] = field(default_factory=dict[str, MetricPoints])
    nodes: tuple[NodeUse, ...] = ()
    rates: Rates = field(default_factory=dict[bool, int | None])
    saved: int | None = None
    is_over: bool = False
    read_at: float | None = None
    is_whole: bool = True

    @property
    def points(self) -> int:
        """The number of points that are kept."""
        return sum(len(each.steps) for each in self.series.values())

    @property
    def started(self) -> int | None:
        """When its first node began, in milliseconds since 1970."""
        return min((each.start for each in self.nodes), default=None)

    @property
    def saved_at(self) -> datetime | None:
        """When its newest checkpoint was written."""
        return None if self.saved is None else datetime.fromtimestamp(self.saved / 1000, UTC)

    def micro(self, until_ms: float) -> int | None:
        """Return the price until a moment in micro-dollars; None if a price is unknown."""
        spent = self.spent(until_ms)
        return None if spent is None else round(spent)

    def spent(self, until_ms: float) -> float | None:
        """Return `micro` with its fraction."""
        total = 0.0
        for each in self.nodes:
            took = min(until_ms if each.end is None else each.end, until_ms) - each.start
            rate = self.rates.get(each.spot)
            if took > 0 and rate is None:
                return None
            total += max(took, 0) * (rate or 0) / _HOUR_MS
        return total


def now_ms() -> float:
    """Return the current time in milliseconds since 1970."""
    return time.time() * 1000


class FactsMemory:
    """The facts of runs that somebody looked at, bounded; those that were shown last are kept."""

    def __init__(self) -> None:
        self._known: dict[str, RunFacts] = {}
        self._growing: dict[str, _MetricsReader] = {}
        self._points = 0
        self._wanted: dict[str, RunEntry] = {}
        self._task: asyncio.Task[None] | None = None
        self._table: PriceTable | None = None
        self._table_at = -math.inf

    def find(self, entry: RunEntry) -> RunFacts | None:
        """Return the facts of a run if they are known; they may be some seconds old."""
        found = self._known.pop(entry.run_id, None)
        if found is not None:
            self._known[entry.run_id] = found  # now the one that was used last
        return found

    def is_fresh(self, entry: RunEntry) -> bool:
        """Return True if a run does not have to be read."""
        found = self._known.get(entry.run_id)
        if found is None or not found.is_whole:
            return False
        return found.is_over or (
            found.read_at is not None and time.monotonic() - found.read_at < _LIVE_S
        )

    async def gather(
        self,
        source: Source,
        entries: Sequence[RunEntry],
        *,
        wait_s: float,
        vm_size: str = "",
        region: str = "",
    ) -> dict[str, RunFacts]:
        """Return the facts of runs that are known, after at most `wait_s` seconds.

        The others, and those that have changed, are read in the background. The prices are those
        of `find_or_price`.
        """
        missing = [each for each in entries if not self.is_fresh(each) and each.attempts]
        if missing:
            self._wanted = {each.run_id: each for each in missing[:_MOST_WANTED]} | self._wanted
            for run_id in [*self._wanted][_MOST_WANTED:]:
                del self._wanted[run_id]
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work(source))
                self._task.add_done_callback(_ignore)
            if wait_s and any(each.run_id not in self._known for each in missing):
                await asyncio.wait({self._task}, timeout=wait_s)
        known = {each.run_id: facts for each in entries if (facts := self.find(each)) is not None}
        if not (vm_size or region):
            return known
        price = await source.call(
            lambda connection: self.find_or_price(connection, vm_size, region)
        )
        return {
            each.run_id: price(each) or known[each.run_id]
            for each in entries
            if each.run_id in known
        }

    async def _work(self, source: Source) -> None:
        while self._wanted:
            batch = [self._wanted.pop(run_id) for run_id in [*self._wanted][:_BATCH]]
            read = await source.call(lambda connection, batch=batch: self.read(connection, batch))
            entries = {each.run_id: each for each in batch}
            for run_id, facts in read.items():
                self._keep(run_id, facts)
                if not facts.is_whole:  # after all others
                    self._wanted.setdefault(run_id, entries[run_id])

    def read(self, connection: Connection, entries: Sequence[RunEntry]) -> dict[str, RunFacts]:
        """Return the facts of runs as they are now. Called in threads."""
        container = runs_container(connection)
        rates_of = self._rates(connection)

        def load(entry: RunEntry) -> RunFacts:
            growing = self._growing.get(entry.run_id) or _MetricsReader(container, entry)
            is_whole = growing.read()
            if entry.is_over and is_whole:
                self._growing.pop(entry.run_id, None)
            else:
                self._growing[entry.run_id] = growing
            known = entry if entry.used is not None else _read_usage(container, entry)
            return RunFacts(
                growing.metrics.by_name(),
                known.used or (),
                rates_of(entry),
                known.saved,
                entry.is_over,
                time.monotonic(),
                is_whole,
            )

        found = in_parallel(load, entries)
        return {each.run_id: facts for each, facts in zip(entries, found, strict=True)}

    def find_or_price(
        self, connection: Connection, vm_size: str = "", region: str = ""
    ) -> Callable[[RunEntry], RunFacts | None]:
        """Return a function that returns what is known of a run: at least its price, if it ended.

        Called in threads.

        Args:
            connection: The services.
            vm_size: Use the prices of this size; empty means that of the run.
            region: Use the prices of this region; empty means that of the services.
        """
        rates_of = self._rates(connection, vm_size, region)
        is_other = bool(vm_size or region)

        def find(entry: RunEntry) -> RunFacts | None:
            found = self._known.get(entry.run_id)
            if found is None and entry.used is not None:
                return RunFacts({}, entry.used, rates_of(entry), entry.saved, entry.is_over)
            return replace(found, rates=rates_of(entry)) if found and is_other else found

        return find

    def _rates(
        self, connection: Connection, vm_size: str = "", region: str = ""
    ) -> Callable[[RunEntry], Rates]:
        is_billed = connection.target.is_billed or bool(vm_size or region)
        place = region or connection.outputs.location
        if is_billed and time.monotonic() - self._table_at > _PRICES_S:
            self._table = load_price_table(connection.home)
            self._table_at = time.monotonic()
        table, known = self._table, dict[str, Rates]()

        def rate(size: str, *, spot: bool) -> int | None:
            if not is_billed:
                return 0
            price = table.find_node(size, place, spot=spot) if table else None
            return None if price is None else round(price.usd_per_hour * MICROS_PER_USD)

        def rates_of(entry: RunEntry) -> Rates:
            size = vm_size or entry.vm_size
            if size not in known:
                known[size] = {spot: rate(size, spot=spot) for spot in (True, False)}
            return known[size]

        return rates_of

    def _keep(self, run_id: str, facts: RunFacts) -> None:
        old = self._known.pop(run_id, None)
        self._points += facts.points - (old.points if old else 0)
        self._known[run_id] = facts
        while len(self._known) > 1 and (
            self._points > _MOST_POINTS or len(self._known) > _MOST_RUNS
        ):
            first = next(iter(self._known))
            self._points -= self._known.pop(first).points
            self._growing.pop(first, None)


def _ignore(task: asyncio.Task[None]) -> None:
    """Ignore an error: the page shows what is known, and its own reads show what is wrong."""
    if not task.cancelled():
        task.exception()


class _MetricsReader:
    """The metrics of a run, of which each call reads what is new."""

    def __init__(self, container: BlobContainer, entry: RunEntry) -> None:
        self._cursor = TextCursor(container, RunPaths(entry.run_id).metrics, most=_READ_BYTES)
        self._rest = ""
        self.metrics = GrowingMetrics(entry.goals)

    def read(self) -> bool:
        """Read new points. Return False if there are more."""
        started = time.monotonic()
        while text := self._cursor.read():
            *lines, self._rest = (self._rest + text).split("\n")
            self.metrics.add(lines)
            if time.monotonic() - started > _READ_FOR_S:
                return False
        return True


def _read_usage(container: BlobContainer, entry: RunEntry) -> RunEntry:
    usages = load_usage(
        container.read,
        entry.run_id,
        nodes=entry.nodes,
        status=entry.status,
        ended=entry.ended,
        attempts=entry.attempts,
    )
    return with_usage(entry, usages)
