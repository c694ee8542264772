"""Write the autoscale formula of a pool. `own_formula` checks the formulas that users write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import time
from decimal import Decimal

from runner.core.azure.clouds import cloud_of_region
from runner.core.pricing.prices import PriceTable
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import OfficeHours, PoolConfig

_SPOT, _DEDICATED = "$TargetLowPriorityNodes", "$TargetDedicatedNodes"
# Time that nodes stay after the last task, so that the next trial of a sweep can use them.
_KEEP_MINUTES = 5
# Time that tasks wait without spot capacity before dedicated nodes are added.
FALLBACK_WAIT_MINUTES = 15
# Time from the evaluation that releases nodes until they are gone. It includes the delay of
# samples, about a minute.
_LEAVE_MINUTES = 10
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class NodeCaps:
    """The maximum numbers of spot and dedicated nodes of a pool."""

    spot: int
    dedicated: int


def node_caps(pool: PoolConfig, location: str, prices: PriceTable) -> NodeCaps:
    """Return the maxima of a pool, lowered to the nodes that its spend cap pays for.

    Spot and dedicated nodes may run at the same time, so the cap covers both: first one dedicated
    node, then spot nodes, then the remaining dedicated nodes.

    Args:
        pool: the configuration of the pool.
        location: the region, for prices.
        prices: USD per node and hour.

    Raises:
        RunnerError: R-POOL-CAP, the cap is too low, or a price is unknown.
    """
    caps = NodeCaps(pool.max_spot, pool.max_dedicated)
    if pool.spend_cap_usd_per_hour is not None:
        caps = _affordable_nodes(pool, location, prices)
    kept = pool.office_hours.nodes if pool.office_hours is not None else 0
    if kept > caps.spot + caps.dedicated:
        raise RunnerError(
            "R-POOL-CAP",
            f"pool {pool.id!r} cannot keep {kept} nodes during office hours",
            why=f"the maximum of the pool is {caps.spot + caps.dedicated}",
            fix="lower office_hours.nodes, or raise max_spot, max_dedicated or the spend cap",
        )
    return caps


def _affordable_nodes(pool: PoolConfig, location: str, prices: PriceTable) -> NodeCaps:
    left = Decimal(str(pool.spend_cap_usd_per_hour))
    spot_price = _price(pool, location, prices, spot=True) if pool.max_spot else Decimal(1)
    price = _price(pool, location, prices, spot=False) if pool.max_dedicated else Decimal(1)
    first = min(1, pool.max_dedicated)
    spot = min(pool.max_spot, max(0, int((left - first * price) / spot_price)))
    dedicated = min(pool.max_dedicated, max(0, int((left - spot * spot_price) / price)))
    least = first * price + min(1, pool.max_spot) * spot_price
    if spot < min(1, pool.max_spot) or dedicated < first:
        both = "one spot and one dedicated node" if first and pool.max_spot else "one node"
        raise RunnerError(
            "R-POOL-CAP",
            f"pool {pool.id!r}: {left} USD per hour do not pay for {both}",
            why=f"{both} of {pool.vm_size} in {location} cost {least} USD per hour",
            fix=f"set spend_cap_usd_per_hour to {least} or more, or use a smaller vm_size",
        )
    return NodeCaps(spot, dedicated)


def _price(pool: PoolConfig, location: str, prices: PriceTable, *, spot: bool) -> Decimal:
    """Return the exact price, so that 0.3 USD pay for three nodes of 0.1 USD.

    The dedicated price replaces an unknown spot price, as in the cost lines.
    """
    found = prices.find(pool.vm_size, location, spot=spot)
    if found is None and spot:
        found = prices.find(pool.vm_size, location, spot=False)
    if found is not None:
        return Decimal(str(found.usd_per_hour))
    kind = "spot" if spot else "dedicated"
    load = f"run `runner skus --refresh --region {location}`, or "
    raise RunnerError(
        "R-POOL-CAP",
        f"pool {pool.id!r} has a spend cap, but the price of its nodes is unknown",
        why=f"no {kind} price of {pool.vm_size} in {location} is in the price table",
        fix=f"{'' if cloud_of_region(location).prices else load}remove spend_cap_usd_per_hour and "
        "set max_spot and max_dedicated",
    )


def formula_text(pool: PoolConfig, caps: NodeCaps) -> str | None:
    """Return the formula of a pool, or None for a pool of fixed size.

    A custom formula is checked, and statements are added that limit its node counts to `caps`.

    Args:
        pool: the configuration of the pool.
        caps: the maximum numbers of nodes.

    Raises:
        RunnerError: R-POOL-FORMULA, the user's own formula is invalid.
    """
    if pool.scenario in ("formula", "fixed"):
        if pool.formula is None:
            return None
        # Only a custom formula needs the language, which takes 1 MiB.
        from runner_infra.planning.own_formula import capped_formula  # noqa: PLC0415

        limits = ((_SPOT, caps.spot), (_DEDICATED, caps.dedicated))
        return capped_formula(pool.formula, limits, f"pool {pool.id!r}")
    if pool.scenario == "spot_first_with_dedicated_fallback":
        lines = _fallback_statements(pool, caps)
    else:
        lines = _one_kind_statements(pool, caps)
    return "\n".join([*lines, "$NodeDeallocationOption = taskcompletion;", ""])


def _one_kind_statements(pool: PoolConfig, caps: NodeCaps) -> Sequence[str]:
    """Return statements that scale one kind of node with tasks and office hours."""
    target, other = (_SPOT, _DEDICATED) if caps.spot else (_DEDICATED, _SPOT)
    kind = "spot" if caps.spot else "dedicated"
    hours = pool.office_hours
    return [
        f"// runner, {pool.scenario}: {kind} nodes for its tasks, none without tasks",
        f"cap = {caps.spot or caps.dedicated};",
        *_demand_statements(pool, target),
        *(_office_hours_statements(hours) if hours is not None else ()),
        f"{other} = 0;",
        f"{target} = min(cap, max(need, warm{', kept' if hours is not None else ''}));",
    ]


def _fallback_statements(pool: PoolConfig, caps: NodeCaps) -> Sequence[str]:
    """Return statements that add dedicated nodes when spot nodes are not available for a while.

    Preempted nodes still count in $CurrentLowPriorityNodes; nodes that were never allocated do not.
    The spot target stays at the full demand: if the dedicated nodes lowered it, spot nodes could
    not replace them later.
    """
    wait = FALLBACK_WAIT_MINUTES
    return [
        f"// runner, {pool.scenario}: spot nodes for its tasks, and",
        f"// dedicated nodes for tasks that have waited for spot nodes for {wait} minutes",
        f"cap = {caps.spot};",
        f"dedicatedCap = {caps.dedicated};",
        *_demand_statements(pool, _SPOT),
        f"{_SPOT} = min(cap, max(need, warm));",
        f"wait = {wait} * TimeInterval_Minute;",
        "// the most spot nodes that can have been up at once in that time",
        "known = min($PendingTasks.GetSamplePercent(wait),",
        "  $CurrentLowPriorityNodes.GetSamplePercent(wait),",
        "  $PreemptedNodeCount.GetSamplePercent(wait)) >= 70;",
        "up = known ? max($CurrentLowPriorityNodes.GetSample(wait))",
        "  - min($PreemptedNodeCount.GetSample(wait)) : cap;",
        "// the nodes that were wanted all that time, and still are",
        "waited = known ? ceil(min($PendingTasks.GetSample(wait)) / slots) : 0;",
        "lack = min(cap, need, waited) - max(0, up);",
        f"{_DEDICATED} = max(0, min(dedicatedCap, lack));",
    ]


def _demand_statements(pool: PoolConfig, target: str) -> Sequence[str]:
    """Return statements for `need`, nodes for the current tasks, and `warm`, nodes that may stay.

    The service truncates fractions of nodes (Azure/Batch#151), so counts are rounded up. Samples
    count tasks, not the slots that they require (Azure/Batch#118, both read 2026-11-21). Each
    instance of a multi-instance task needs its own node, so slots do not divide them.
    """
    slots = 1 if pool.inter_node_communication else pool.slots
    return [
        f"slots = {slots};",
        f"recently = {_KEEP_MINUTES} * TimeInterval_Minute;",
        "pending = max(0, $PendingTasks.GetSample(1));",
        "need = ceil(pending / slots);",
        "// samples can be missing: with fewer than 70 % of them the newest decides alone",
        "lately = $PendingTasks.GetSamplePercent(recently) < 70 ? pending",
        "  : avg($PendingTasks.GetSample(recently));",
        "// tasks of a moment ago keep nodes that are there, and start none",
        f"warm = min({target}, ceil(lately / slots));",
    ]


def _office_hours_statements(hours: OfficeHours) -> Sequence[str]:
    """Return statements for `kept`, the nodes in office hours.

    The clock starts its day at the opening time, so hours across midnight belong to the day on
    which they start. Sunday is 0 or 7: the documentation only says that Monday is 1.
    """
    opens, closes = _minutes(hours.start), _minutes(hours.end)
    shift = hours.utc_offset_hours * 60 - opens
    wanted = [number for number, day in enumerate(_WEEKDAYS, start=1) if day in hours.days]
    days = " || ".join(f"clock.weekday == {n}" for n in ([0] if 7 in wanted else []) + wanted)
    at = f"{hours.start:%H:%M} to {hours.end:%H:%M}, UTC{hours.utc_offset_hours:+d}"
    return [
        f"// nodes kept: {hours.nodes} on {' '.join(hours.days)} from {at}",
        f"clock = time() + ({shift} * TimeInterval_Minute);",
        "minutes = clock.hour * 60 + clock.minute;",
        f"today = {days};",
        f"kept = today && minutes < {(closes - opens) % _DAY_MINUTES} ? {hours.nodes} : 0;",
    ]


def release_minutes(pool: PoolConfig) -> int | None:
    """Return the minutes after the last task until the nodes that tasks started are gone.

    Return 0 for a pool of fixed size, where tasks start no nodes, and None for a custom formula,
    which may keep nodes.
    """
    if pool.scenario == "fixed":
        return 0
    if pool.scenario == "formula":
        return None
    return pool.evaluation_minutes + _KEEP_MINUTES + _LEAVE_MINUTES


def _minutes(moment: time) -> int:
    return moment.hour * 60 + moment.minute


def idle_nodes(pool: PoolConfig, caps: NodeCaps, formula: str | None) -> NodeCaps:
    """Return the maximum number of nodes that a pool keeps without tasks, at any time of the week.

    Args:
        pool: the configuration of the pool.
        caps: its maximum numbers of nodes.
        formula: its formula, None for a pool of fixed size.
    """
    if formula is None:
        return caps
    if pool.office_hours is not None:
        kept = pool.office_hours.nodes
        return NodeCaps(kept, 0) if caps.spot else NodeCaps(0, kept)
    if pool.formula is None:
        return NodeCaps(0, 0)
    from runner_infra.planning.own_formula import WEEK, evaluate_idle  # noqa: PLC0415  the language

    found = [evaluate_idle(formula, at) for at in WEEK]
    return NodeCaps(max(each.spot for each in found), max(each.dedicated for each in found))
