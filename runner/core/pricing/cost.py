"""The costs of a submission: expected costs, worst case, its cap and the limits that enforce it.

All rules about costs are here: `common_cap` joins the caps of the tasks, `plan_cost` does the rest.

Amounts are whole micro-dollars. Costs are rounded up; the time that a cap pays for is rounded down.
docs/decisions/0019-a-cap-is-a-job-limit.md explains the bound and its exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

from runner.contract import PoolOutput
from runner.core.pricing.prices import Price, PriceTable
from runner.core.units import format_duration
from runner.protocol.codec import JsonDocument
from runner.protocol.errors import RunnerError

MICROS_PER_USD = 1_000_000
BOOT_S = 600  # our estimate for boot and start task of a node; the time limit of a job includes it
LIMIT_DELAY_S = 300  # maximum delay of the service in ending a job, our choice
SHORTEST_JOB_S = BOOT_S + 300
_EXPORT_S = 300  # time for the outputs after the time limit of the script
_MAX_JOB_S = 180 * 86400  # Batch ends tasks after 180 days
_MAX_PRICE_AGE_DAYS = 90
_MAX_USD = 1_000_000


@dataclass(frozen=True, slots=True)
class Work:
    """The nodes and times of one task.

    Attributes:
        nodes: Number of nodes that the task uses at once.
        attempts: Maximum number of attempts, without evictions.
        limit_s: Time limit of one attempt; None if unlimited.
        expected_s: Expected time of one attempt; None if unknown.
        waits: True if the task waits for other tasks.
        recipe: Name of the recipe, for errors.
        cap_micros: Cap of the task; None if it has none.
    """

    nodes: int = 1
    attempts: int = 1
    limit_s: int | None = None
    expected_s: int | None = None
    waits: bool = False
    recipe: str = ""
    cap_micros: int | None = None


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
        nodes: Maximum number of nodes at once.
        job_s: Time limit of the job, from its creation.
        script_s: Time limit of each script, which leaves time to export the outputs.
    """

    cap_micros: int
    bound_micros: int
    nodes: int
    job_s: int
    script_s: int


@dataclass(frozen=True, slots=True)
class SubmissionCost:
    """The costs of a submission on a pool; `uses_spot` is True if it allocates spot nodes first."""

    region: str
    vm_size: str
    nodes: int
    uses_spot: bool
    spot: KindCost
    dedicated: KindCost
    cap: CostCap | None = None
    warnings: tuple[str, ...] = ()

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


def to_micros(amount: object) -> int:
    """Return the micro-dollars of a `--max-cost` such as `5`, `0.25` or `$5`.

    Raises:
        RunnerError: R-FLAG-VALUE, not an amount above zero.
    """
    text = str(amount).strip().removeprefix("$").removesuffix("USD").strip()
    try:
        micros = int(Decimal(text) * MICROS_PER_USD) if re.fullmatch(r"[0-9.]+", text) else 0
    except InvalidOperation:
        micros = 0
    if 0 < micros <= _MAX_USD * MICROS_PER_USD:
        return micros
    raise RunnerError(
        "R-FLAG-VALUE",
        f"invalid --max-cost {amount}",
        why=f"expected US dollars: a number above 0 and up to {_MAX_USD:,}",
        fix="--max-cost 5",
    )


def usd_text(micros: int | None) -> str:
    """Return `4.97 USD`, with more digits below one cent, or `unknown`."""
    if micros is None:
        return "unknown"
    return (
        f"{micros / MICROS_PER_USD:.4f} USD"
        if 0 < micros < 10_000
        else f"{micros / MICROS_PER_USD:.2f} USD"
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
    wanted = sum(each.nodes for each in work)
    later = sum(each.nodes for each in work if each.waits)
    kinds = 2 if pool.capacity == "spot-then-dedicated" else 1
    most = max(pool.max_nodes, 1)
    return min(most, kinds * wanted) + min(most, kinds * later)


def expected_seconds(estimate: str | None) -> int | None:
    """Return the first duration in an estimate such as `about 2 minutes on a GPU`, or None."""
    found = re.search(
        r"(\d+(?:\.\d+)?)\s*(s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|d|days?)\b", estimate or ""
    )
    if found is None:
        return None
    return int(Decimal(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2][0]])


def common_cap(work: Sequence[Work], *, scheduled: bool) -> int | None:
    """Return the cap of the job of all tasks, or None.

    Raises:
        RunnerError: R-COST-GROUP, only some tasks have a cap; R-COST-SCHEDULE, a schedule has one.
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
    if scheduled:
        raise RunnerError(
            "R-COST-SCHEDULE",
            "a schedule cannot have a cost cap",
            why="its limits would be computed with present prices for all later runs",
            fix="remove `max_cost`; set `timeout`, and `spend_cap_usd_per_hour` of the pool",
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
) -> SubmissionCost:
    """Return the costs of tasks on a pool whose nodes are billed.

    Raises:
        RunnerError: R-COST-UNKNOWN, the cap depends on an unknown price; R-COST-POOL, the time when
            the pool releases its nodes is unknown; R-COST-CAP, the cap is too low. Exit code 6.
    """
    spot = prices.find_node(pool.vm_size, region, spot=True)
    dedicated = prices.find_node(pool.vm_size, region, spot=False)
    cap = (
        None
        if cap_micros is None
        else _compute_cap(pool, region, work, (spot, dedicated), cap_micros)
    )
    release_s = _pool_release_s(pool)
    nodes = most_nodes(pool, work)
    used = [price for price in (spot, dedicated) if price is not None]
    return SubmissionCost(
        region,
        pool.vm_size,
        nodes,
        pool.spot,
        # Evictions are not limited, so only a cap limits what spot nodes cost.
        KindCost(spot, _expected(spot, work, release_s), cap.bound_micros if cap else None),
        KindCost(
            dedicated,
            _expected(dedicated, work, release_s),
            cap.bound_micros if cap else _worst_case(dedicated, work, release_s),
        ),
        cap,
        (*_warn_time_limit(cap, work), *_warn_old_prices(used if cap else [], region, today)),
    )


def _pool_release_s(pool: PoolOutput) -> int | None:
    return None if pool.release_minutes is None else 60 * pool.release_minutes


def _expected(price: Price | None, work: Sequence[Work], release_s: int | None) -> int | None:
    """Return the costs if every task runs once for its expected time, on its own nodes."""
    if price is None or any(each.expected_s is None for each in work):
        return None
    around_s = BOOT_S + (release_s or 0)
    node_s = sum(each.nodes * ((each.expected_s or 0) + around_s) for each in work)
    return _cost(rate_micros(price), node_s)


def _worst_case(price: Price | None, work: Sequence[Work], release_s: int | None) -> int | None:
    """Return the costs if every attempt reaches its time limit, without evictions."""
    if price is None or release_s is None or any(each.limit_s is None for each in work):
        return None
    node_s = sum(
        each.nodes * (each.attempts * (each.limit_s or 0) + BOOT_S + release_s) for each in work
    )
    return _cost(rate_micros(price), node_s)


def _cost(rate: int, node_s: int) -> int:
    return -(-rate * node_s // 3600)


def _compute_cap(
    pool: PoolOutput,
    region: str,
    work: Sequence[Work],
    prices: tuple[Price | None, Price | None],
    cap_micros: int,
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
    rate = max(rate_micros(price) for price in (spot, dedicated) if price is not None)
    nodes = most_nodes(pool, work)
    after_s = LIMIT_DELAY_S + release_s
    job_s = min(cap_micros * 3600 // (nodes * rate) - after_s, _MAX_JOB_S)
    if job_s < SHORTEST_JOB_S:
        least = _cost(rate, nodes * (SHORTEST_JOB_S + after_s))
        raise RunnerError(
            "R-COST-CAP",
            f"a cap of {usd_text(cap_micros)} is too low for pool {pool.id}",
            why=f"to boot, work for {format_duration(SHORTEST_JOB_S - BOOT_S)} and leave the pool, "
            f"{nodes} node{'s' * (nodes > 1)} of {pool.vm_size} at {usd_text(rate)} per hour "
            f"cost{'s' * (nodes == 1)} {usd_text(least)}",
            fix=f"--max-cost {-(-least // 10_000) / 100:.2f}",  # rounded up
        )
    script_s = job_s - BOOT_S - _EXPORT_S if job_s > 2 * SHORTEST_JOB_S else job_s
    return CostCap(cap_micros, _cost(rate, nodes * (job_s + after_s)), nodes, job_s, script_s)


def _unknown_price(pool: PoolOutput, region: str, spot: Price | None) -> RunnerError:
    because = ", which is the upper limit of the spot price" if spot else ""
    return RunnerError(
        "R-COST-UNKNOWN",
        f"the price of {pool.vm_size} in {region} is unknown",
        why=f"--max-cost depends on the price of a dedicated node{because}",
        fix=f"run `runner skus --refresh --region {region}`, or remove the cap",
    )


def _warn_time_limit(cap: CostCap | None, work: Sequence[Work]) -> list[str]:
    longest = max((each.limit_s or 0 for each in work), default=0)
    if cap is None or longest <= cap.job_s:
        return []
    ends, limit = format_duration(cap.job_s), format_duration(longest)
    return [f"the cap ends the job after {ends}, before the time limit of {limit}"]


def _warn_old_prices(prices: Sequence[Price], region: str, today: date) -> list[str]:
    oldest = min((price.as_of for price in prices), default=today)
    if (today - oldest).days <= _MAX_PRICE_AGE_DAYS:
        return []
    refresh = f"`runner skus --refresh --region {region}`"
    return [f"the cap is computed with prices of {oldest}; run {refresh} for current prices"]
