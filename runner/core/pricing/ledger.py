"""The costs of runs: node time by purpose, times the price, in micro-dollars.

One rule divides the time of a node among runs. While n attempts run on the node, each pays 1/n. The
attempts that start first also pay for the boot and the time until they start. The attempts that
ended last pay for idle time. So the costs of a run do not change when other runs use the node
later, and all parts of a node sum exactly to its time times its price, rounded once to a
micro-dollar.

If the end of an attempt was not recorded, as on a node that was lost without a notice, the attempt
counts until its latest possible end. The sums then contain the time from its last record to that
end as `bound_ms`, and are upper limits. Other node time that was not recorded is a `Gap` and part
of no sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runner.protocol.run_spec import PoolStay
from runner.protocol.usage import AttemptUsage, loses_work

Part = Literal["useful", "boot", "setup", "lost", "evicted", "failed", "idle"]
PARTS: tuple[Part, ...] = ("useful", "boot", "setup", "lost", "evicted", "failed", "idle")
EVICTED: tuple[Part, ...] = ("lost", "evicted")  # parts that evictions cause
_HOUR_MS = 3_600_000
_MAX_BOOT_MS = _HOUR_MS  # from the start of the kernel until Batch creates the folders of the node
_MAX_SKEW_MS = 2000  # larger steps of a clock are errors, not corrections

GapCause = Literal["unreadable", "clock", "boot", "lost", "end"]


@dataclass(frozen=True, slots=True)
class RunUsage:
    """A run with its attempts; `status` is from its result, empty without a result.

    `is_running` is True while the last attempt runs. `attempts` is None if the records cannot be
    read. `moved_from` are the earlier pools of the run.
    """

    run_id: str
    pool: str
    vm_size: str
    spot: bool
    status: str
    attempts: tuple[AttemptUsage, ...] | None
    is_running: bool = False
    moved_from: tuple[PoolStay, ...] = ()

    def last_end(self, now_ms: int) -> int:
        """Return when its last attempt ended at the latest; 0 if no attempt is known."""
        if self.is_running:
            return now_ms
        ends = (
            (each.last_sign, each.ended, each.ends_by, each.node_ends, _released(each, now_ms))
            for each in self.attempts or ()
        )
        return max((end or 0 for each in ends for end in each), default=0)

    def find_pool(self, usage: AttemptUsage) -> PoolStay:
        """Return the pool in which an attempt ran."""
        own = PoolStay(self.pool, self.vm_size, self.spot)
        if not self.moved_from:
            return own
        pool = (usage.pool or self.pool).lower()
        places = (own, *reversed(self.moved_from))
        return next((each for each in places if each.pool.lower() == pool), own)


@dataclass(frozen=True, slots=True)
class Gap:
    """Node time that was not recorded and is in no sum.

    Attributes:
        since_ms: Start of the time; None if unknown.
        until_ms: Latest possible end; None if no record limits it.
    """

    cause: GapCause
    run_id: str
    pool: str
    node: str
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class NodeCosts:
    """Node time in milliseconds and its price in micro-dollars, by part.

    Attributes:
        unpriced_ms: Node time with an unknown price, which is not in `micro`.
        bound_ms: Node time that was used at most, by part. It is part of `ms`.
        spot_ms: Node time on spot nodes.
        repeated_ms: The part of `spot_ms` that evictions caused.
        spot_micro: Price of `spot_ms`; None if unknown.
        dedicated_micro: Price of the same time on dedicated nodes; None if unknown.
    """

    ms: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    micro: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    unpriced_ms: int = 0
    bound_ms: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
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
    def is_bound(self) -> bool:
        """True if the sums are upper limits, because the end of an attempt is not on record."""
        return any(self.bound_ms.values())

    @property
    def goodput(self) -> float | None:
        """The share of the node time that was useful work; None without node time."""
        return self.ms["useful"] / self.total_ms if self.total_ms else None

    def add(self, other: NodeCosts) -> None:
        """Add the node time and price of `other`."""
        for part in PARTS:
            self.ms[part] += other.ms[part]
            self.micro[part] += other.micro[part]
            self.bound_ms[part] += other.bound_ms[part]
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
    same size; None if unknown. `evictions` are the times at which attempts lost the node; it may
    have returned, with the same ID and without a record of its start.
    """

    pool: str
    node: str
    vm_size: str
    spot: bool
    started_ms: int
    ended_ms: int
    micro_per_hour: int | None
    dedicated_per_hour: int | None
    evictions: tuple[int, ...] = ()

    @property
    def micro(self) -> int | None:
        """The price of the node time, rounded to a micro-dollar; None if unknown."""
        return self.micro_until(self.ended_ms)

    def micro_until(self, moment_ms: int) -> int | None:
        """Return the price of the node from its start until a moment."""
        return _price(moment_ms - self.started_ms, self.micro_per_hour)


@dataclass(frozen=True, slots=True)
class NodeCharge:
    """What an attempt pays for a piece of the life of a node, which others may share.

    Attributes:
        part: The purpose; the attempt did not run yet, or not any more, if it is `boot` or `idle`.
        start_ms, end_ms: The piece.
        ms: The share of its time.
        micro: The share of its price in micro-dollars; None if it is unknown.
        dedicated_micro: The same share of a dedicated node; None if it is unknown.
        is_bound: True if the node was used at most.
    """

    run_id: str
    attempt: int
    rank: int
    pool: str
    node: str
    spot: bool
    part: Part
    start_ms: int
    end_ms: int
    ms: int
    micro: int | None
    dedicated_micro: int | None
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """The costs of each run, the nodes that these sum to, and the gaps in the records.

    `pools` has the costs of each run by pool: a run that was moved has several pools. `charges` has
    the summands of all costs, if they were asked for.
    """

    runs: Mapping[str, NodeCosts]
    lives: Sequence[NodeLife]
    gaps: Sequence[Gap]
    pools: Mapping[tuple[str, str], NodeCosts] = field(
        default_factory=dict[tuple[str, str], NodeCosts]
    )
    charges: Sequence[NodeCharge] = ()


# Micro-dollars per hour of a VM size, spot or dedicated; None if unknown.
Rate = Callable[[str, bool], "int | None"]


def compute_ledger(
    runs: Iterable[RunUsage],
    rate: Rate,
    *,
    now_ms: int,
    existing_nodes: Mapping[tuple[str, str], bool] | None = None,
    share_kernel: bool = False,
    keep_charges: bool = False,
) -> Ledger:
    """Return the costs of runs.

    Args:
        runs: All runs of the nodes; other runs would pay for the time of a missing one.
        rate: Returns the price of a node.
        now_ms: The current time, until which running attempts are counted.
        existing_nodes: The nodes that exist now, by pool and ID in lower case; their idle time is
            counted until now. False means that a node has no machine, as after an eviction.
        share_kernel: True if the nodes are folders of one machine, whose boot does not count.
        keep_charges: True if the result has all charges.
    """
    gaps: list[Gap] = []
    by_node = _uses_by_node(runs, now_ms, gaps, share_kernel=share_kernel)
    spent: _Accounts = defaultdict(NodeCosts)
    charges: list[NodeCharge] | None = [] if keep_charges else None
    lives: list[NodeLife] = []
    for key, uses in by_node.items():
        groups = list(_group_by_life(uses))
        for number, group in enumerate(groups):
            is_last = number == len(groups) - 1
            exists = is_last and (existing_nodes or {}).get(key, False)
            lives.append(_divide_life(group, rate, now_ms, gaps, spent, charges, exists=exists))
    gaps.sort(key=lambda gap: (gap.run_id, gap.since_ms or 0, gap.cause))
    total: dict[str, NodeCosts] = defaultdict(NodeCosts)
    for (run_id, _), account in spent.items():
        total[run_id].add(account)
    return Ledger(dict(total), lives, gaps, dict(spent), charges or ())


def find_start(
    runs: Iterable[RunUsage], chosen: Collection[str], *, now_ms: int, share_kernel: bool = False
) -> int | None:
    """Return when the nodes of chosen runs started; the costs need all other runs since then.

    Args:
        runs: The chosen runs, and others that may have used the same nodes.
        chosen: The IDs of the chosen runs.
        now_ms: The current time, which is returned if the chosen runs used no node.
        share_kernel: As for `compute_ledger`.

    Returns:
        Milliseconds; None if the start of a node is not recorded, so that it may be any time ago.
    """
    start = now_ms
    for uses in _uses_by_node(runs, now_ms, [], share_kernel=share_kernel).values():
        for group in _group_by_life(uses):
            if any(use.run.run_id in chosen for use in group):
                if group[0].node_started_ms is None:
                    return None
                known = (use.node_started_ms for use in group)
                start = min(start, *(each for each in known if each is not None))
    return start


def _uses_by_node(
    runs: Iterable[RunUsage], now_ms: int, gaps: list[Gap], *, share_kernel: bool
) -> dict[tuple[str, str], list[_NodeUse]]:
    found: dict[tuple[str, str], list[_NodeUse]] = defaultdict(list)
    for run in runs:
        for use in _find_uses(run, now_ms, gaps, share_kernel=share_kernel):
            found[use.stay.pool.lower(), use.usage.node.lower()].append(use)
    return found


_Accounts = dict[tuple[str, str], NodeCosts]  # by run and pool


@dataclass(frozen=True, slots=True)
class _NodeUse:
    """An attempt on a node. `segments` are its contiguous parts: purpose, start and end.

    The attempt ran at least until `known_ms`.
    """

    run: RunUsage
    usage: AttemptUsage
    segments: tuple[tuple[Part, int, int], ...]
    known_ms: int
    node_started_ms: int | None = None
    is_lost: bool = False

    @property
    def stay(self) -> PoolStay:
        return self.run.find_pool(self.usage)

    @property
    def bound_since_ms(self) -> int:
        """When the time begins that the attempt used at most; the end if there is none."""
        usage = self.usage
        is_known = usage.ended is not None and (usage.held_by is None or usage.held is not None)
        return self.ended_ms if is_known else self.known_ms

    @property
    def has_recorded_end(self) -> bool:
        # Also if the attempt ended later than announced, so that it has no time after its end.
        return self.usage.why == "terminated" and self.usage.node_ends is not None

    @property
    def started_ms(self) -> int:
        return self.segments[0][1]

    @property
    def ended_ms(self) -> int:
        return self.segments[-1][2]


def _find_uses(
    run: RunUsage, now_ms: int, gaps: list[Gap], *, share_kernel: bool
) -> Iterator[_NodeUse]:
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
        found = _to_use(run, usage, now_ms, following, is_last=usage.attempt == last)
        if isinstance(found, Gap):
            gaps.append(found)
            continue
        if _is_lost(usage, run, is_last=usage.attempt == last):
            if usage.ended is None and usage.ends_by is None:
                until = following.started if following else None
                gaps.append(_gap("lost", run, usage, found.ended_ms, until))
            found = replace(found, is_lost=True)
        yield replace(found, node_started_ms=_node_start(usage, share_kernel=share_kernel))


def _gap(
    cause: GapCause, run: RunUsage, usage: AttemptUsage, since: int | None, until: int | None = None
) -> Gap:
    return Gap(cause, run.run_id, run.find_pool(usage).pool, usage.node, since, until)


def _is_lost(usage: AttemptUsage, run: RunUsage, *, is_last: bool) -> bool:
    """Return True if the attempt ended with its node, which is not in its records."""
    return (usage.ended is None or not usage.why) and not (is_last and run.is_running)


def _to_use(
    run: RunUsage,
    usage: AttemptUsage,
    now_ms: int,
    following: AttemptUsage | None,
    *,
    is_last: bool,
) -> _NodeUse | Gap:
    """Return the use of a node by an attempt, or a gap if the clock of the node was set back."""
    started = usage.started or 0
    ended = known = usage.ended
    if ended is None or known is None:
        is_running = is_last and run.is_running
        known = now_ms if is_running else usage.last_sign
        ended = known if is_running else max(known, usage.ends_by or known)
    command = usage.command
    is_behind = ended < started - _MAX_SKEW_MS or (
        command is not None and command < started - _MAX_SKEW_MS
    )
    # The clock of the node was set back after the command or the last event.
    is_set_back = any(t is not None and t > ended + _MAX_SKEW_MS for t in (command, usage.seen))
    if is_behind or is_set_back or started > now_ms + _HOUR_MS:
        return _gap("clock", run, usage, started)
    ended = max(ended, started)
    command = ended if command is None else min(max(command, started), ended)
    # The preparation is lost too if the node was lost before the script began.
    is_settled = run.is_running or bool(run.status)
    is_repeated = loses_work(usage, is_last=is_last, is_settled=is_settled)
    before: Part = "lost" if is_repeated and usage.command is None else "setup"
    segments: list[tuple[Part, int, int]] = [(before, started, command)]
    segments += _command_parts(run, usage, command, ended, is_last=is_last)
    gone = usage.node_ends
    if gone is not None and following is not None and following.node == usage.node:
        # The node was not evicted: the next attempt ran on it.
        gone = gone if following.started is None else min(gone, following.started)
    if usage.why == "terminated" and gone is not None and gone > ended:
        segments.append(("evicted", ended, gone))
    if (released := _released(usage, now_ms)) is not None and released > ended:
        segments.append(("failed", ended, released))
        is_kept = usage.held is None and released == now_ms
        known = released if is_kept else known
    return _NodeUse(run, usage, tuple(segments), max(known, started))


def _released(usage: AttemptUsage, now_ms: int) -> int | None:
    """Return until when a node was kept after a failure, at most until now; None if it was not."""
    known = usage.held_by if usage.held is None else usage.held
    return None if known is None else min(known, now_ms)


def _command_parts(
    run: RunUsage, usage: AttemptUsage, command: int, ended: int, *, is_last: bool
) -> list[tuple[Part, int, int]]:
    has_failed = run.status in ("failed", "cancelled")
    if is_last and (run.is_running or run.status):
        return [("failed" if has_failed else "useful", command, ended)]
    kept = usage.kept_until(is_last=is_last)
    kept = command if kept is None else min(max(kept, command), ended)
    rest: Part = "failed" if usage.why == "failed" else "lost"
    return [("failed" if has_failed else "useful", command, kept), (rest, kept, ended)]


def _node_start(usage: AttemptUsage, *, share_kernel: bool) -> int | None:
    created, booted = usage.created, usage.booted
    if created is None or booted is None or share_kernel:
        return created if created is not None or share_kernel else booted
    return booted if 0 <= created - booted <= _MAX_BOOT_MS else created


def _group_by_life(uses: list[_NodeUse]) -> Iterator[list[_NodeUse]]:
    """Yield the uses of each life of a node. A spot node may return with the same ID."""
    uses.sort(key=lambda use: (use.started_ms, use.run.run_id, use.usage.attempt, use.usage.rank))
    group: list[_NodeUse] = []
    for use in uses:
        start = use.node_started_ms
        if group and start is not None and start >= max(each.ended_ms for each in group):
            yield group
            group = []
        group.append(use)
    yield group


def _divide_life(
    uses: list[_NodeUse],
    rate: Rate,
    now_ms: int,
    gaps: list[Gap],
    spent: _Accounts,
    charges: list[NodeCharge] | None,
    *,
    exists: bool,
) -> NodeLife:
    """Divide the costs of one life of a node among its uses."""
    first, final = uses[0], max(uses, key=lambda use: use.ended_ms)
    starts = [use.node_started_ms for use in uses if use.node_started_ms is not None]
    start, ended = first.started_ms, final.ended_ms
    if not starts or min(starts) > start + _MAX_SKEW_MS:
        cause: GapCause = "clock" if starts else "boot"
        gaps.append(_gap(cause, first.run, first.usage, None, start))
    else:
        start = min(start, *starts)
    if exists and ended < now_ms:
        ended = now_ms
    elif not exists and not (final.run.is_running or final.is_lost or final.has_recorded_end):
        gaps.append(_gap("end", final.run, final.usage, ended))
    stay, usage = first.stay, first.usage
    spot = stay.spot if usage.dedicated is None else not usage.dedicated
    size = stay.vm_size or ""
    prices = rate(size, spot), rate(size, False)
    evictions = _find_evictions(uses)
    life = NodeLife(stay.pool, usage.node, size, spot, start, ended, *prices, evictions)
    for payers, begin, end in _split_life(uses, start, ended):
        _charge(spent, charges, life, payers, begin, end)
    return life


def _find_evictions(uses: Sequence[_NodeUse]) -> tuple[int, ...]:
    """Return when the node was lost: attempts that it interrupted together count once."""
    found: list[int] = []
    for use in sorted(uses, key=lambda use: use.ended_ms):
        if not (use.is_lost or use.has_recorded_end):
            continue
        if found and not any(found[-1] <= each.started_ms < use.ended_ms for each in uses):
            found[-1] = use.ended_ms
        else:
            found.append(use.ended_ms)
    return tuple(found)


# Each use with the purpose, and True if the node was used at most.
_Payers = Sequence[tuple[_NodeUse, Part, bool]]


def _split_life(
    uses: Sequence[_NodeUse], start: int, ended: int
) -> Iterator[tuple[_Payers, int, int]]:
    """Yield the pieces of a life: the uses that pay, each with its purpose, start and end."""
    begin = uses[0].started_ms
    last = [use for use in uses if use.started_ms == begin]
    ready = uses[0].usage.ready
    ready = begin if ready is None else min(max(ready, start), begin)
    yield [(each, "boot", False) for each in last], start, ready
    yield [(each, "idle", False) for each in last], ready, begin
    changes: dict[int, list[tuple[int, Part | None]]] = defaultdict(list)
    for number, use in enumerate(uses):
        for part, since, until in use.segments:
            if since < until:
                changes[since].append((number, part))
        changes[use.ended_ms].append((number, None))
        changes[use.bound_since_ms] += ()  # a piece ends there
    active: dict[int, Part] = {}
    moments = sorted({*changes, ended})
    for moment, following in zip(moments, (*moments[1:], ended), strict=True):
        for number, part in changes.get(moment, ()):
            if part is not None:
                active[number] = part
        gone = [number for number, part in changes.get(moment, ()) if part is None]
        for number in gone:
            active.pop(number, None)
        last = [uses[number] for number in gone] or last
        payers: _Payers = [
            (uses[number], active[number], moment >= uses[number].bound_since_ms)
            for number in sorted(active)
        ]
        yield payers or [(each, "idle", False) for each in last], moment, following


def _charge(
    spent: _Accounts,
    charges: list[NodeCharge] | None,
    life: NodeLife,
    payers: _Payers,
    begin: int,
    end: int,
) -> None:
    """Divide a piece of a life equally among the payers; the first runs pay the remainder."""
    count = len(payers)
    times = _divide(end - begin, count)
    paid = _divide(_piece_price(life, begin, end, life.micro_per_hour), count)
    dedicated = _divide(_piece_price(life, begin, end, life.dedicated_per_hour), count)
    for number, (use, part, is_bound) in enumerate(payers):
        run_id, attempt = use.run.run_id, use.usage
        is_priced = life.micro_per_hour is not None
        micro = paid[number] if is_priced else None
        other = dedicated[number] if life.dedicated_per_hour is not None else None
        account = spent[run_id, life.pool]
        account.ms[part] += times[number]
        account.bound_ms[part] += times[number] if is_bound else 0
        account.micro[part] += paid[number]
        if not is_priced:
            account.unpriced_ms += times[number]
        if life.spot and times[number]:
            account.spot_ms += times[number]
            account.repeated_ms += times[number] if part in EVICTED else 0
            account.spot_micro = _sum(account.spot_micro, micro)
            account.dedicated_micro = _sum(account.dedicated_micro, other)
        if charges is not None and begin < end:
            charges.append(
                NodeCharge(
                    run_id, attempt.attempt, attempt.rank, life.pool, life.node, life.spot, part,
                    begin, end, times[number], micro, other, is_bound,
                )
            )  # fmt: skip


def _piece_price(life: NodeLife, begin: int, end: int, micro_per_hour: int | None) -> int:
    """Return the price of a piece, 0 if unknown. The pieces of a life sum exactly to its price."""
    before = _price(begin - life.started_ms, micro_per_hour) or 0
    return (_price(end - life.started_ms, micro_per_hour) or 0) - before


def _divide(amount: int, count: int) -> list[int]:
    if count == 1:
        return [amount]
    each, left = divmod(amount, count)
    return [each + (number < left) for number in range(count)]


def _price(ms: int, micro_per_hour: int | None) -> int | None:
    """Return the price of node time in micro-dollars, rounded; None if the rate is unknown."""
    if micro_per_hour is None:
        return None
    return (2 * ms * micro_per_hour + _HOUR_MS) // (2 * _HOUR_MS)
