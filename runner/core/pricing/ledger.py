"""The costs of runs: node time by purpose, times the price, in micro-dollars.

One rule divides the time of a node among runs. While n attempts run on the node, each pays 1/n. The
attempts that begin first also pay for the boot and the time until they start; idle time is paid by
the attempts that ended last. So the costs of a run do not change when other runs use the node
later, and all parts of a node sum exactly to its time times its price, rounded once to a
micro-dollar.

Node time that was not recorded is a `Gap` and part of no sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runner.protocol.run_spec import PoolStay
from runner.protocol.usage import AttemptUsage

Part = Literal["useful", "boot", "setup", "lost", "evicted", "failed", "idle"]
PARTS: tuple[Part, ...] = ("useful", "boot", "setup", "lost", "evicted", "failed", "idle")
EVICTED: tuple[Part, ...] = ("lost", "evicted")  # parts that evictions cause
_HOUR_MS = 3_600_000
_LONGEST_BOOT_MS = (
    _HOUR_MS  # from the start of the kernel until Batch creates the folders of the node
)
_SKEW_MS = 2000  # largest correction of a working clock
MICRO = 1_000_000

GapCause = Literal["unreadable", "clock", "boot", "lost", "end"]


@dataclass(frozen=True, slots=True)
class RunUsage:
    """A run with its attempts; `status` is from its result, empty without a result.

    `is_running` is True while its last attempt runs. `attempts` is None if its records cannot be
    read. `moved_from` are its earlier pools.
    """

    run_id: str
    pool: str
    vm_size: str
    spot: bool
    status: str
    attempts: tuple[AttemptUsage, ...] | None
    is_running: bool = False
    moved_from: tuple[PoolStay, ...] = ()

    def place_of(self, usage: AttemptUsage) -> PoolStay:
        """Return the pool of an attempt."""
        own = PoolStay(self.pool, self.vm_size, self.spot)
        if not self.moved_from:
            return own
        pool = (usage.pool or self.pool).lower()
        places = (own, *reversed(self.moved_from))
        return next((each for each in places if each.pool.lower() == pool), own)


@dataclass(frozen=True, slots=True)
class Gap:
    """Node time that is in no sum, beginning at `since_ms`, or None if unknown.

    `until_ms` is the latest possible end, or None if no record bounds it.
    """

    cause: GapCause
    run_id: str
    pool: str
    node: str
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class Spent:
    """Node time in milliseconds and its price in micro-dollars, by part.

    Attributes:
        unpriced_ms: Node time with an unknown price, which is not in `micro`.
        spot_ms: Node time on spot nodes.
        repeated_ms: The part of `spot_ms` that evictions caused.
        spot_micro: Price of `spot_ms`; None if unknown.
        dedicated_micro: Price of the same time on dedicated nodes; None if unknown.
    """

    ms: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    micro: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    unpriced_ms: int = 0
    spot_ms: int = 0
    repeated_ms: int = 0
    spot_micro: int | None = 0
    dedicated_micro: int | None = 0

    @property
    def total_ms(self) -> int:
        """The node time."""
        return sum(self.ms.values())

    @property
    def total_micro(self) -> int | None:
        """The price in micro-dollars, or None if the price of a node is unknown."""
        return None if self.unpriced_ms else sum(self.micro.values())

    @property
    def goodput(self) -> float | None:
        """The share of the node time that was useful work; None without node time."""
        return self.ms["useful"] / self.total_ms if self.total_ms else None

    def add(self, other: Spent) -> None:
        """Add the node time and price of `other`."""
        for part in PARTS:
            self.ms[part] += other.ms[part]
            self.micro[part] += other.micro[part]
        self.unpriced_ms += other.unpriced_ms
        self.spot_ms += other.spot_ms
        self.repeated_ms += other.repeated_ms
        self.spot_micro = _sum(self.spot_micro, other.spot_micro)
        self.dedicated_micro = _sum(self.dedicated_micro, other.dedicated_micro)

    @property
    def break_even(self) -> BreakEven | None:
        """Return the comparison with dedicated nodes, or None without spot nodes or a price."""
        if not self.spot_ms or self.spot_micro is None or not self.dedicated_micro:
            return None
        repeated = self.repeated_ms / self.spot_ms
        return BreakEven(
            self.spot_micro,
            round(self.dedicated_micro * (1 - repeated)),
            repeated,
            1 - self.spot_micro / self.dedicated_micro,
        )


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The costs of spot nodes compared with dedicated nodes for the same work.

    Attributes:
        spot_micro: Price of the spot node time.
        dedicated_micro: Price of dedicated nodes for the same work, without evictions.
        repeated: Share of the spot node time that evictions caused.
        limit: The share at which dedicated nodes become cheaper; if negative, they always are.
    """

    spot_micro: int
    dedicated_micro: int
    repeated: float
    limit: float


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True)
class NodeLife:
    """One life of a node, from its start to its end or the last record.

    `micro_per_hour` is its price, and `dedicated_per_hour` the price of a dedicated node of the
    same size; None if unknown.
    """

    pool: str
    node: str
    vm_size: str
    spot: bool
    started_ms: int
    ended_ms: int
    micro_per_hour: int | None
    dedicated_per_hour: int | None

    @property
    def micro(self) -> int | None:
        """The price of the node time, rounded to a micro-dollar; None if unknown."""
        return self.micro_until(self.ended_ms)

    def micro_until(self, moment_ms: int) -> int | None:
        """Return the price of the node from its start until a moment."""
        return _price(moment_ms - self.started_ms, self.micro_per_hour)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The costs of each run, the nodes that these sum to, and the gaps in the records.

    `pools` has the costs of each run by pool: a run that was moved has several pools.
    """

    runs: Mapping[str, Spent]
    lives: Sequence[NodeLife]
    gaps: Sequence[Gap]
    pools: Mapping[tuple[str, str], Spent] = field(default_factory=dict[tuple[str, str], Spent])


# Micro-dollars per hour of a VM size, spot or dedicated; None if unknown.
Rate = Callable[[str, bool], "int | None"]


def keep_ledger(
    runs: Iterable[RunUsage],
    rate: Rate,
    *,
    now_ms: int,
    present: Mapping[tuple[str, str], bool] | None = None,
    share_kernel: bool = False,
) -> Ledger:
    """Return the costs of runs.

    Args:
        runs: All runs of the nodes; other runs would pay for the time of a missing one.
        rate: Returns the price of a node.
        now_ms: The present, for running attempts.
        present: The nodes that exist, by pool and ID in lower case; their last idle time lasts
            until now. False means that the node has no machine, as after an eviction.
        share_kernel: True if the nodes are folders of one machine, whose boot does not count.
    """
    gaps: list[Gap] = []
    by_node: dict[tuple[str, str], list[_Use]] = defaultdict(list)
    for run in runs:
        for use in _uses(run, now_ms, gaps, share_kernel=share_kernel):
            by_node[use.place.pool.lower(), use.usage.node.lower()].append(use)
    spent: _Accounts = defaultdict(Spent)
    lives: list[NodeLife] = []
    for key, uses in by_node.items():
        groups = list(_lives(uses))
        for number, group in enumerate(groups):
            is_last = number == len(groups) - 1
            exists = is_last and (present or {}).get(key, False)
            lives.append(_settle(group, rate, now_ms, gaps, spent, exists=exists))
    gaps.sort(key=lambda gap: (gap.run_id, gap.since_ms or 0, gap.cause))
    total: dict[str, Spent] = defaultdict(Spent)
    for (run_id, _), account in spent.items():
        total[run_id].add(account)
    return Ledger(dict(total), lives, gaps, dict(spent))


_Accounts = dict[tuple[str, str], Spent]  # by run and pool


@dataclass(frozen=True, slots=True)
class _Use:
    """An attempt on a node; `segments` are its contiguous parts from start to end."""

    run: RunUsage
    usage: AttemptUsage
    segments: tuple[tuple[Part, int, int], ...]
    node_started_ms: int | None = None
    is_lost: bool = False

    @property
    def place(self) -> PoolStay:
        return self.run.place_of(self.usage)

    @property
    def started_ms(self) -> int:
        return self.segments[0][1]

    @property
    def ended_ms(self) -> int:
        return self.segments[-1][2]


def _uses(run: RunUsage, now_ms: int, gaps: list[Gap], *, share_kernel: bool) -> Iterator[_Use]:
    if run.attempts is None:
        gaps.append(Gap("unreadable", run.run_id, run.pool, ""))
        return
    last = max((each.attempt for each in run.attempts), default=0)
    primaries = {each.attempt: each for each in run.attempts if each.rank == 0}
    for usage in run.attempts:
        if not usage.node or usage.started is None:
            gaps.append(Gap("unreadable", run.run_id, run.pool, usage.node, usage.started))
            continue
        following = primaries.get(usage.attempt + 1)
        found = _use(run, usage, now_ms, following, is_last=usage.attempt == last)
        if isinstance(found, Gap):
            gaps.append(found)
            continue
        if _is_lost(usage, run, is_last=usage.attempt == last):
            until = following.started if following else None
            gaps.append(_gap("lost", run, usage, found.ended_ms, until))
            found = replace(found, is_lost=True)
        yield replace(found, node_started_ms=_node_start(usage, share_kernel=share_kernel))


def _gap(
    cause: GapCause, run: RunUsage, usage: AttemptUsage, since: int | None, until: int | None = None
) -> Gap:
    return Gap(cause, run.run_id, run.place_of(usage).pool, usage.node, since, until)


def _is_lost(usage: AttemptUsage, run: RunUsage, *, is_last: bool) -> bool:
    """Return True if no record says when the attempt ended."""
    return usage.ended is None and not (is_last and run.is_running)


def _use(
    run: RunUsage,
    usage: AttemptUsage,
    now_ms: int,
    following: AttemptUsage | None,
    *,
    is_last: bool,
) -> _Use | Gap:
    """Return the parts of an attempt, or a gap if its clock went backwards."""
    started = usage.started or 0
    ended = usage.ended
    if ended is None:
        is_running = is_last and run.is_running
        known = [t for t in (started, usage.command, usage.seen, usage.saved) if t is not None]
        ended = now_ms if is_running else max(known)
    command = usage.command
    is_behind = ended < started - _SKEW_MS or (command is not None and command < started - _SKEW_MS)
    # The clock of the node was set back after the command or the last event.
    is_set_back = any(t is not None and t > ended + _SKEW_MS for t in (command, usage.seen))
    if is_behind or is_set_back or started > now_ms + _HOUR_MS:
        return _gap("clock", run, usage, started)
    ended = max(ended, started)
    command = ended if command is None else min(max(command, started), ended)
    segments: list[tuple[Part, int, int]] = [("setup", started, command)]
    segments += _command_parts(run, usage, command, ended, is_last=is_last)
    gone = usage.node_ends
    if gone is not None and following is not None and following.node == usage.node:
        gone = (
            gone if following.started is None else min(gone, following.started)
        )  # the notice was withdrawn
    if usage.why == "terminated" and gone is not None and gone > ended:
        segments.append(("evicted", ended, gone))
    return _Use(run, usage, tuple(segments))


def _command_parts(
    run: RunUsage, usage: AttemptUsage, command: int, ended: int, *, is_last: bool
) -> list[tuple[Part, int, int]]:
    has_failed = run.status in ("failed", "cancelled")
    if is_last and (run.is_running or run.status):
        return [("failed" if has_failed else "useful", command, ended)]
    kept = command if usage.kept is None else min(max(usage.kept, command), ended)
    rest: Part = "failed" if usage.why == "failed" else "lost"
    return [("failed" if has_failed else "useful", command, kept), (rest, kept, ended)]


def _node_start(usage: AttemptUsage, *, share_kernel: bool) -> int | None:
    created, booted = usage.created, usage.booted
    if created is None or booted is None or share_kernel:
        return created if created is not None or share_kernel else booted
    return booted if 0 <= created - booted <= _LONGEST_BOOT_MS else created


def _lives(uses: list[_Use]) -> Iterator[list[_Use]]:
    """Yield the uses of each life of a node: a spot node may return with the same ID."""
    uses.sort(key=lambda use: (use.started_ms, use.run.run_id, use.usage.attempt, use.usage.rank))
    group: list[_Use] = []
    for use in uses:
        start = use.node_started_ms
        if group and start is not None and start >= max(each.ended_ms for each in group):
            yield group
            group = []
        group.append(use)
    yield group


def _settle(
    uses: list[_Use],
    rate: Rate,
    now_ms: int,
    gaps: list[Gap],
    spent: _Accounts,
    *,
    exists: bool,
) -> NodeLife:
    """Divide the costs of one life of a node among its uses."""
    first, final = uses[0], max(uses, key=lambda use: use.ended_ms)
    starts = [use.node_started_ms for use in uses if use.node_started_ms is not None]
    start, ended = first.started_ms, final.ended_ms
    if not starts or min(starts) > start + _SKEW_MS:
        cause: GapCause = "clock" if starts else "boot"
        gaps.append(_gap(cause, first.run, first.usage, None, start))
    else:
        start = min(start, *starts)
    if exists and ended < now_ms:
        ended = now_ms
    elif not exists and not (final.run.is_running or final.is_lost or _is_gone(final)):
        gaps.append(_gap("end", final.run, final.usage, ended))
    place, usage = first.place, first.usage
    spot = place.spot if usage.dedicated is None else not usage.dedicated
    size = place.vm_size or ""
    prices = rate(size, spot), rate(size, False)
    life = NodeLife(place.pool, usage.node, size, spot, start, ended, *prices)
    for payers, begin, end in _moments(uses, start, ended):
        _charge(spent, life, payers, begin, end)
    return life


def _is_gone(use: _Use) -> bool:
    """Return True if the end of the node is on record."""
    return use.segments[-1][0] == "evicted"


_Payers = Sequence[tuple[str, Part]]


def _moments(uses: Sequence[_Use], start: int, ended: int) -> Iterator[tuple[_Payers, int, int]]:
    """Yield the pieces of a life, each with the runs that pay for it and the purpose."""
    begin = uses[0].started_ms
    last = [use.run.run_id for use in uses if use.started_ms == begin]
    ready = uses[0].usage.ready
    ready = begin if ready is None else min(max(ready, start), begin)
    yield [(each, "boot") for each in last], start, ready
    yield [(each, "idle") for each in last], ready, begin
    changes: dict[int, list[tuple[int, Part | None]]] = defaultdict(list)
    for number, use in enumerate(uses):
        for part, since, until in use.segments:
            if since < until:
                changes[since].append((number, part))
        changes[use.ended_ms].append((number, None))
    active: dict[int, Part] = {}
    moments = sorted({*changes, ended})
    for moment, following in zip(moments, (*moments[1:], ended), strict=True):
        for number, part in changes.get(moment, ()):
            if part is not None:
                active[number] = part
        gone = [number for number, part in changes.get(moment, ()) if part is None]
        for number in gone:
            active.pop(number, None)
        last = [uses[number].run.run_id for number in gone] or last
        payers: _Payers = [(uses[number].run.run_id, active[number]) for number in sorted(active)]
        yield payers or [(each, "idle") for each in last], moment, following


def _charge(spent: _Accounts, life: NodeLife, payers: _Payers, begin: int, end: int) -> None:
    """Divide a piece of a life equally; the first runs get the remainder."""
    count = len(payers)
    times = _shares(end - begin, count)
    paid = _shares(_between(life, begin, end, life.micro_per_hour), count)
    dedicated = _shares(_between(life, begin, end, life.dedicated_per_hour), count)
    for number, (run_id, part) in enumerate(payers):
        account = spent[run_id, life.pool]
        account.ms[part] += times[number]
        account.micro[part] += paid[number]
        if life.micro_per_hour is None:
            account.unpriced_ms += times[number]
        if life.spot and times[number]:
            is_known = life.micro_per_hour is not None
            account.spot_ms += times[number]
            account.repeated_ms += times[number] if part in ("lost", "evicted") else 0
            account.spot_micro = _sum(account.spot_micro, paid[number] if is_known else None)
            is_known = life.dedicated_per_hour is not None
            other = dedicated[number] if is_known else None
            account.dedicated_micro = _sum(account.dedicated_micro, other)


def _between(life: NodeLife, begin: int, end: int, micro_per_hour: int | None) -> int:
    """Return the price of a piece, so that the pieces of a life sum to its price; 0 if unknown."""
    before = _price(begin - life.started_ms, micro_per_hour) or 0
    return (_price(end - life.started_ms, micro_per_hour) or 0) - before


def _shares(amount: int, count: int) -> list[int]:
    if count == 1:
        return [amount]
    each, left = divmod(amount, count)
    return [each + (number < left) for number in range(count)]


def _price(ms: int, micro_per_hour: int | None) -> int | None:
    """Return the price of node time since its start, so that pieces sum to the whole."""
    if micro_per_hour is None:
        return None
    return (2 * ms * micro_per_hour + _HOUR_MS) // (2 * _HOUR_MS)
