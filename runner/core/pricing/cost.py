"""The costs of a submission: expected costs, worst case, its cap and the limits that enforce it.

All rules about costs are here: `common_cap` joins the caps of the tasks, `plan_cost` does the rest.

Amounts are whole micro-dollars. Costs are rounded up; the time that a cap pays for is rounded down.
docs/decisions/0019-a-cap-is-a-job-limit.md explains the bound and its exceptions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from heapq import heappop, heappush
from typing import Any

from runner.contract import PoolOutput
from runner.core.pricing.prices import Price, PriceTable
from runner.core.units import format_duration
from runner.protocol.codec import JsonDocument, wire
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

MICROS_PER_USD = 1_000_000
BOOT_S = 600  # our estimate for boot and start task of a node; the time limit of a job includes it
LIMIT_DELAY_S = 300  # maximum delay of the service in ending a job, our choice
SHORTEST_JOB_S = BOOT_S + 300
_EXPORT_S = 300  # time for the outputs after the time limit of the script
_MAX_JOB_S = 180 * 86400  # Batch ends tasks after 180 days
_MAX_PRICE_AGE_DAYS = 90
_MAX_USD = 1_000_000
MAX_MICROS = _MAX_USD * MICROS_PER_USD
_ONLY_SPOT = frozenset({"spot"})


@dataclass(frozen=True, slots=True)
class Work:
    """The nodes and times of one task.

    Attributes:
        nodes: Number of nodes that the task uses at once.
        attempts: Maximum number of attempts, without evictions.
        limit_s: Time limit of one attempt; None if unlimited.
        expected_s: Expected time of one attempt; None if unknown.
        recipe: Name of the recipe, for errors.
        cap_micros: Cap of the task; None if it has none.
        name: Name of the task in its submission.
        after: Names of the tasks before it that it waits for.
        hold_s: Time for which its node is kept after a failure.
    """

    nodes: int = 1
    attempts: int = 1
    limit_s: int | None = None
    expected_s: int | None = None
    recipe: str = ""
    cap_micros: int | None = None
    name: str = ""
    after: tuple[str, ...] = ()
    hold_s: int = 0

    @property
    def needed_s(self) -> int | None:
        """The time that an attempt may need: its limit, else twice the expected time, or None.

        The time after it for which its node is kept is included.
        """
        if self.limit_s is not None:
            return self.limit_s + self.hold_s
        return None if self.expected_s is None else 2 * self.expected_s + self.hold_s


@dataclass(frozen=True, slots=True)
class KindCost:
    """The costs on spot or on dedicated nodes; None if unknown or unlimited."""

    price: Price | None
    expected_micros: int | None
    worst_micros: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the costs for `-o json`."""
        price = self.price
        return {
            "usd_per_hour": price.usd_per_hour if price else None,
            "as_of": price.as_of.isoformat() if price else None,
            "expected_micros": self.expected_micros,
            "worst_micros": self.worst_micros,
        }


@dataclass(frozen=True, slots=True)
class CostCap(JsonDocument):
    """A cap, and the limits that enforce it.

    Attributes:
        cap_micros: The cap as given.
        bound_micros: Maximum costs under these limits, at most `cap_micros`.
        rate_limit_micros: Price of a spot node and hour up to which the cap holds; None if it holds
            at any price up to that of dedicated nodes.
        nodes: Maximum number of nodes at once.
        job_s: Time limit of the job, from its creation.
        script_s: Time limit of each script, which leaves time to export the outputs.
    """

    cap_micros: int
    bound_micros: int
    nodes: int
    job_s: int
    script_s: int
    rate_limit_micros: int | None = field(default=None, metadata=wire(omit="empty"))


@dataclass(frozen=True, slots=True)
class SubmissionCost:
    """The costs of a submission on a pool; `uses_spot` is True if it allocates spot nodes first.

    Attributes:
        wanted: Number of nodes that its tasks use at once; `nodes` may be billed at once.
        kinds: The kinds of nodes that the pool may have.
        around_s: Time for which a node is billed before and after its tasks; None if unknown.
        least_cap_micros: The lowest cap that is accepted; None if unknown.
    """

    region: str
    vm_size: str
    nodes: int
    uses_spot: bool
    spot: KindCost
    dedicated: KindCost
    cap: CostCap | None = None
    warnings: tuple[str, ...] = ()
    wanted: int = 1
    kinds: frozenset[str] = frozenset({"spot", "dedicated"})
    around_s: int | None = None
    least_cap_micros: int | None = None

    @property
    def first_kind(self) -> KindCost:
        """The costs on the kind of nodes that the pool starts first."""
        return self.spot if self.uses_spot else self.dedicated

    def to_json(self) -> dict[str, Any]:
        """Return the costs for `-o json`, in micro-dollars."""
        return {
            "region": self.region,
            "vm_size": self.vm_size,
            "nodes": self.nodes,
            "kind": "spot" if self.uses_spot else "dedicated",
            "spot": self.spot.to_json(),
            "dedicated": self.dedicated.to_json(),
            "cap": self.cap.to_json() if self.cap else None,
        }


@dataclass(frozen=True, slots=True)
class ScheduleCost:
    """The costs of a schedule on the nodes that its pool starts first; None if unknown.

    Attributes:
        run: Costs of one run or group.
        skip_micros: Costs of a firing that starts a node, but no run.
        runs: Runs per month.
        skipped: Firings per month that start no run.
    """

    run: KindCost
    skip_micros: int | None
    runs: float
    skipped: float

    @property
    def expected_month_micros(self) -> int | None:
        """The expected costs of a month."""
        return self._month(self.run.expected_micros)

    @property
    def worst_month_micros(self) -> int | None:
        """The maximum costs of a month; None if those of a run have no limit."""
        return self._month(self.run.worst_micros)

    def to_json(self) -> dict[str, Any]:
        """Return the costs for `-o json`, in micro-dollars."""
        return {
            "run": self.run.to_json(),
            "runs_per_month": round(self.runs, 2),
            "skipped_per_month": round(self.skipped, 2),
            "skipped_micros": self.skip_micros,
            "expected_month_micros": self.expected_month_micros,
            "worst_month_micros": self.worst_month_micros,
        }

    def affordable_runs(self, cap_micros: int) -> int:
        """Return how many runs a cap of the schedule pays for, with the firings between them.

        Raises:
            RunnerError: R-COST-CAP, not even one; R-COST-POOL, what a node costs is unknown.
        """
        if self.run.worst_micros is None or self.skip_micros is None:
            raise ValueError("a schedule with a cap, whose runs have none")
        each = self.run.worst_micros + math.ceil(self.skip_micros * self.skipped / self.runs)
        if cap_micros < each:
            raise RunnerError(
                "R-COST-CAP",
                f"a cap of {format_usd(cap_micros)} is too low for the schedule",
                why=f"one run costs at most {format_usd(each)}, as its `max_cost`, or else its "
                "`timeout` allows",
                fix=f"--max-cost {-(-each // 10_000) / 100:.2f}, or a lower `timeout`",
            )
        return cap_micros // each

    def _month(self, run_micros: int | None) -> int | None:
        if run_micros is None or (self.skip_micros is None and self.skipped):
            return None
        return math.ceil(run_micros * self.runs + (self.skip_micros or 0) * self.skipped)


def plan_schedule_cost(cost: SubmissionCost, runs: float, skipped: float) -> ScheduleCost:
    """Return the costs of a schedule, from those of one run and its firings per month."""
    found = cost.first_kind
    known = found.price is not None and cost.around_s is not None
    skip = _cost(rate_micros(found.price), cost.around_s or 0) if known and found.price else None
    return ScheduleCost(found, skip, runs, skipped)


def to_micros(amount: object, option: str = "--max-cost") -> int:
    """Return the micro-dollars of an option such as `--max-cost`: `5`, `0.25` or `$5`.

    Raises:
        RunnerError: R-FLAG-VALUE, not an amount above zero.
    """
    text = str(amount).strip().removeprefix("$").removesuffix("USD").strip()
    try:
        micros = int(Decimal(text) * MICROS_PER_USD) if re.fullmatch(r"[0-9.]+", text) else 0
    except InvalidOperation:
        micros = 0
    if 0 < micros <= MAX_MICROS:
        return micros
    raise RunnerError(
        "R-FLAG-VALUE",
        f"invalid {option} {amount}",
        why=f"expected US dollars: a number above 0 and up to {_MAX_USD:,}",
        fix=f"{option} 5" if option.startswith("--") else "a number such as 5",
    )


def rate_micros(price: Price) -> int:
    """Return micro-dollars per node and hour, rounded up."""
    exact = Decimal(str(price.usd_per_hour)) * MICROS_PER_USD
    return int(exact.to_integral_value(rounding=ROUND_CEILING))


def most_nodes(pool: PoolOutput, work: Sequence[Work]) -> int:
    """Return the maximum number of nodes that can be billed at once for these tasks.

    A task occupies nodes, or lets the pool start nodes while it is queued. With a fallback, a
    dedicated node may run in addition to each spot node. A task that waits for other tasks may
    start new nodes while the nodes of those tasks still leave the pool.
    """
    wanted = _nodes_at_once(work)
    later = sum(each.nodes for each in work if each.after)
    kinds = 2 if pool.capacity == "spot-then-dedicated" else 1
    most = max(pool.max_nodes, 1)
    return min(most, kinds * wanted) + min(most, kinds * later)


def _nodes_at_once(work: Sequence[Work]) -> int:
    """Return the most nodes that the tasks use at once.

    Tasks of a chain, each of which waits for the one before, never run at once.
    """
    chains: dict[str, int] = {}  # nodes of each chain, by the name of its last task
    for number, each in enumerate(work):
        before = next((name for name in each.after if name in chains), None)
        nodes = 0 if before is None else chains.pop(before)
        chains[each.name or f"#{number}"] = max(nodes, each.nodes)
    return sum(chains.values())


def join_trials(work: Sequence[Work], tasks: Mapping[str, str]) -> list[Work]:
    """Return the work of each task: a task may run several trials one after another.

    Args:
        work: The trials, and other tasks.
        tasks: The ID of the task of each, by name; it becomes the name.
    """
    joined: dict[str, Work] = {}
    for each in work:
        task, before = tasks[each.name], joined.get(tasks[each.name])
        after = tuple(dict.fromkeys(tasks[name] for name in each.after))
        joined[task] = (
            replace(each, name=task, after=after)
            if before is None
            else replace(
                before,
                limit_s=_sum(before.limit_s, each.limit_s),
                expected_s=_sum(before.expected_s, each.expected_s),
                cap_micros=_sum(before.cap_micros, each.cap_micros),
            )
        )
    return list(joined.values())


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _needed_s(
    pool: PoolOutput,
    work: Sequence[Work],
    times: Sequence[int | None],
    max_parallel: int | None,
) -> int | None:
    """Return how long a job needs whose tasks take these times, or None if one is unknown.

    The tasks start in their order, each as soon as a node is free, fewer than `max_parallel` run
    and those before it have ended: three tasks of an hour need two hours on two nodes.
    """
    known = [time_s for time_s in times if time_s is not None]
    if len(known) < len(times):
        return None
    nodes, most = max(pool.max_nodes, 1), max_parallel or len(work)
    sizes = [min(each.nodes, nodes) for each in work]
    numbers = {each.name: number for number, each in enumerate(work)}
    waits = [{numbers[name] for name in each.after if name in numbers} for each in work]
    followers: list[list[int]] = [[] for _ in work]
    for number, before in enumerate(waits):
        for each in before:
            followers[each].append(number)
    ready = [number for number, before in enumerate(waits) if not before]
    running: list[tuple[int, int]] = []  # the end and the number of each task
    now, free = 0, nodes
    while ready or running:
        while ready and sizes[ready[0]] <= free and len(running) < most:
            number = heappop(ready)
            free -= sizes[number]
            heappush(running, (now + known[number], number))
        now, done = heappop(running)
        free += sizes[done]
        for number in followers[done]:
            waits[number].discard(done)
            if not waits[number]:
                heappush(ready, number)
    return BOOT_S + now + _EXPORT_S


def expected_seconds(estimate: str | None) -> int | None:
    """Return the first duration in an estimate such as `about 2 minutes on a GPU`, or None."""
    found = re.search(
        r"(\d+(?:\.\d+)?)\s*(s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|d|days?)\b", estimate or ""
    )
    if found is None:
        return None
    return int(Decimal(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2][0]])


def common_cap(work: Sequence[Work]) -> int | None:
    """Return the cap of the job of all tasks, or None.

    Raises:
        RunnerError: R-COST-GROUP, only some tasks have a cap.
    """
    caps = [each.cap_micros for each in work if each.cap_micros is not None]
    if not caps:
        return None
    if uncapped := next((each for each in work if each.cap_micros is None), None):
        raise RunnerError(
            "R-COST-GROUP",
            "some tasks of the file have a cost cap, others do not",
            why=f"{uncapped.recipe} has none, but one limit ends the job of all tasks",
            fix="set `max_cost` for the whole file, or use --max-cost",
        )
    return sum(caps)


def plan_cost(
    pool: PoolOutput,
    region: str,
    work: Sequence[Work],
    prices: PriceTable,
    *,
    cap_micros: int | None,
    today: date,
    left_micros: int | None = None,
    max_parallel: int | None = None,
) -> SubmissionCost:
    """Return the costs of tasks on a pool whose nodes are billed.

    Args:
        pool: The pool.
        region: Its region.
        work: The tasks.
        prices: The known prices.
        cap_micros: The cap of all tasks; None if they have none.
        today: The date.
        left_micros: What is left of caps that include the tasks. Tasks without a cap then get what
            they need as one, or what is left, if that is enough for their expected time.
        max_parallel: The most tasks that the job runs at once; None if it has no limit.

    Raises:
        RunnerError: R-COST-UNKNOWN, the cap depends on an unknown price; R-COST-POOL, the time when
            the pool releases its nodes is unknown; R-COST-CAP, the cap is too low; R-COST-NEED, it
            is unknown what the tasks need. Exit code 6.
    """
    if cap_micros is None and left_micros is not None:
        cap_micros = _needed_cap(pool, region, work, prices, left_micros, max_parallel)
    spot = prices.find_node(pool.vm_size, region, spot=True, disk=pool.os_disk)
    dedicated = prices.find_node(pool.vm_size, region, spot=False, disk=pool.os_disk)
    cap = (
        None
        if cap_micros is None
        else _compute_cap(pool, region, work, (spot, dedicated), cap_micros, max_parallel)
    )
    release_s = _pool_release_s(pool)
    nodes, kinds = most_nodes(pool, work), _kinds(pool)
    at_once = min(max(pool.max_nodes, 1), _nodes_at_once(work))
    used = [price for price in (spot, dedicated) if price is not None]
    return SubmissionCost(
        region,
        pool.vm_size,
        nodes,
        pool.spot,
        # Evictions are not limited, so only a cap limits what spot nodes cost.
        KindCost(
            spot, _expected(spot, work, release_s, at_once), cap.bound_micros if cap else None
        ),
        KindCost(
            dedicated,
            _expected(dedicated, work, release_s, at_once),
            cap.bound_micros
            if cap and "dedicated" in kinds
            else _worst_case(dedicated, work, release_s),
        ),
        cap,
        (
            *_warn_too_short(pool, cap, work, (spot, dedicated), max_parallel),
            *_warn_old_prices(used if cap else [], region, today),
        ),
        at_once,
        kinds,
        None if release_s is None else BOOT_S + release_s,
        _least_cap(pool, work, spot, dedicated),
    )


def _least_cap(
    pool: PoolOutput, work: Sequence[Work], spot: Price | None, dedicated: Price | None
) -> int | None:
    """Return the lowest cap that `_compute_cap` accepts, or None if it accepts none."""
    release_s = _pool_release_s(pool)
    if dedicated is None or release_s is None:
        return None
    rates = [rate_micros(price) for price in (spot, dedicated) if price is not None]
    is_known = all(each.needed_s is not None for each in work)
    is_spot = is_known and spot is not None and _kinds(pool) == _ONLY_SPOT
    node_s = most_nodes(pool, work) * (SHORTEST_JOB_S + LIMIT_DELAY_S + release_s)
    return _cost(rates[0] if is_spot else max(rates), node_s)


def _kinds(pool: PoolOutput) -> frozenset[str]:
    """Return the kinds of nodes that a pool may have."""
    if pool.capacity in ("mixed", "spot-then-dedicated"):
        return frozenset({"spot", "dedicated"})
    return frozenset({pool.capacity or ("spot" if pool.spot else "dedicated")})


def _pool_release_s(pool: PoolOutput) -> int | None:
    return None if pool.release_minutes is None else 60 * pool.release_minutes


def _expected(
    price: Price | None, work: Sequence[Work], release_s: int | None, nodes: int
) -> int | None:
    """Return the costs if every task runs once for its expected time, on these nodes together."""
    if price is None or any(each.expected_s is None for each in work):
        return None
    node_s = nodes * (BOOT_S + (release_s or 0))
    node_s += sum(each.nodes * (each.expected_s or 0) for each in work)
    return _cost(rate_micros(price), node_s)


def _worst_case(price: Price | None, work: Sequence[Work], release_s: int | None) -> int | None:
    """Return the costs if every attempt reaches its time limit, without evictions."""
    if price is None or release_s is None or any(each.limit_s is None for each in work):
        return None
    node_s = sum(
        each.nodes * (each.attempts * (each.limit_s or 0) + each.hold_s + BOOT_S + release_s)
        for each in work
    )
    return _cost(rate_micros(price), node_s)


def _cost(rate: int, node_s: int) -> int:
    return -(-rate * node_s // 3600)


def _needed_cap(
    pool: PoolOutput,
    region: str,
    work: Sequence[Work],
    prices: PriceTable,
    left_micros: int,
    max_parallel: int | None,
) -> int:
    """Return the cap of tasks without one: what they need, or what is left if it may suffice."""
    spot = prices.find_node(pool.vm_size, region, spot=True, disk=pool.os_disk)
    dedicated = prices.find_node(pool.vm_size, region, spot=False, disk=pool.os_disk)
    used = spot if _kinds(pool) == _ONLY_SPOT else dedicated
    if used is None:
        raise _unknown_price(pool, region, spot)
    nodes, after_s = most_nodes(pool, work), LIMIT_DELAY_S + (_pool_release_s(pool) or 0)

    def price(times: Sequence[int | None]) -> int | None:
        needed_s = _needed_s(pool, work, times, max_parallel)
        if needed_s is None:
            return None
        return _cost(rate_micros(used), nodes * (max(needed_s, SHORTEST_JOB_S) + after_s))

    most = price([each.needed_s for each in work])
    if most is None:
        raise RunnerError(
            "R-COST-NEED",
            "it is unknown what the run may cost",
            why="a cap includes it, and it has neither `timeout`, `estimate` nor a cap of its own",
            fix="--timeout 2h, or --max-cost 5",
        )
    expected = price([each.expected_s for each in work])
    return left_micros if expected is not None and expected <= left_micros < most else most


def _compute_cap(
    pool: PoolOutput,
    region: str,
    work: Sequence[Work],
    prices: tuple[Price | None, Price | None],
    cap_micros: int,
    max_parallel: int | None,
) -> CostCap:
    spot, dedicated = prices
    if dedicated is None:
        raise _unknown_price(pool, region, spot)
    release_s = _pool_release_s(pool)
    if release_s is None:
        raise RunnerError(
            "R-COST-POOL",
            f"--max-cost cannot limit the costs of pool {pool.id}",
            why="the time when the pool releases its nodes is unknown: it has a custom autoscale "
            "formula, or an older version of runner deployed the stack",
            fix="run `runner up` to deploy the stack again, or use a pool without a custom formula",
        )
    # A spot price may change at any time, up to the dedicated price.
    rate = highest = max(rate_micros(price) for price in (spot, dedicated) if price is not None)
    nodes = most_nodes(pool, work)
    after_s = LIMIT_DELAY_S + release_s
    job_s = min(cap_micros * 3600 // (nodes * rate) - after_s, _MAX_JOB_S)
    needed_s = _needed_s(pool, work, [each.needed_s for each in work], max_parallel)
    if _kinds(pool) == _ONLY_SPOT and spot is not None and needed_s is not None:
        # The time that the run needs, as far as the cap pays for it at the present spot price.
        rate = rate_micros(spot)
        paid_s = cap_micros * 3600 // (nodes * rate) - after_s
        job_s = max(job_s, min(max(needed_s, SHORTEST_JOB_S), paid_s, _MAX_JOB_S))
    if job_s < SHORTEST_JOB_S:
        least = _cost(rate, nodes * (SHORTEST_JOB_S + after_s))
        raise RunnerError(
            "R-COST-CAP",
            f"a cap of {format_usd(cap_micros)} is too low for pool {pool.id}",
            why=f"to boot, work for {format_duration(SHORTEST_JOB_S - BOOT_S)} and leave the pool, "
            f"{nodes} node{'s' * (nodes > 1)} of {pool.vm_size} at {format_usd(rate)} per hour "
            f"cost{'s' * (nodes == 1)} {format_usd(least)}",
            fix=f"--max-cost {-(-least // 10_000) / 100:.2f}",  # rounded up
        )
    script_s = job_s - BOOT_S - _EXPORT_S if job_s > 2 * SHORTEST_JOB_S else job_s
    most = _cost(highest, nodes * (job_s + after_s))
    held = cap_micros * 3600 // (nodes * (job_s + after_s))
    return CostCap(
        cap_micros,
        min(most, cap_micros),
        nodes,
        job_s,
        script_s,
        held if most > cap_micros else None,
    )


def _unknown_price(pool: PoolOutput, region: str, spot: Price | None) -> RunnerError:
    from runner.core.azure.clouds import cloud_of_region  # noqa: PLC0415  only an error needs it

    because = ", which is the upper limit of the spot price" if spot else ""
    return RunnerError(
        "R-COST-UNKNOWN",
        f"the price of {pool.vm_size} in {region} is unknown",
        why=f"--max-cost depends on the price of a dedicated node{because}",
        fix="remove the cap"
        if cloud_of_region(region).prices
        else f"run `runner skus --refresh --region {region}`, or remove the cap",
    )


def _warn_too_short(
    pool: PoolOutput,
    cap: CostCap | None,
    work: Sequence[Work],
    prices: tuple[Price | None, Price | None],
    max_parallel: int | None,
) -> list[str]:
    """Return a warning if a cap ends the job before the expected time, or else the time limit."""
    if cap is None:
        return []
    ends = f"the cap ends the job after {format_duration(cap.job_s)}"
    expected_s = _needed_s(pool, work, [each.expected_s for each in work], max_parallel)
    if expected_s is None:
        longest = max((each.limit_s or 0 for each in work), default=0)
        limit = format_duration(longest)
        return [f"{ends}, before the time limit of {limit}"] if longest > cap.job_s else []
    if expected_s <= cap.job_s:
        return []
    spot, dedicated = prices
    used = spot if _kinds(pool) == _ONLY_SPOT and spot is not None else dedicated
    rate = rate_micros(used) if used is not None else 0
    after_s = LIMIT_DELAY_S + (_pool_release_s(pool) or 0)
    enough = -(-_cost(rate, cap.nodes * (expected_s + after_s)) // 10_000) / 100
    needs = f"by the `estimate` it needs {format_duration(expected_s)}"
    return [f"{ends}, but {needs}: --max-cost {enough:.2f} pays for it"]


def _warn_old_prices(prices: Sequence[Price], region: str, today: date) -> list[str]:
    oldest = min((price.as_of for price in prices), default=today)
    if (today - oldest).days <= _MAX_PRICE_AGE_DAYS:
        return []
    refresh = f"`runner skus --refresh --region {region}`"
    return [f"the cap is computed with prices of {oldest}; run {refresh} for current prices"]
