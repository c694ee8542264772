"""Judge the pools of a list: which of them can start a run now, from what Batch shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.contract import PoolOutput
from runner.core.planning.fallback import PoolChance, judge_start
from runner.core.pricing.prices import load_price_table
from runner.core.settings import target_at
from runner.core.units import format_count
from runner.flows.runs.stuck import NodeNeed, PoolFacts, explain_wait, load_pool_facts


def node_rates(
    pools: Sequence[PoolOutput], location: str, home: Path | None
) -> Mapping[str, float | None]:
    """Return US dollars per hour of a node by pool; None if unknown or not billed."""
    if not target_at(location).is_billed:
        return {pool.id: None for pool in pools}
    table = load_price_table(home)
    prices = {pool.id: table.find_node(pool.vm_size, location, spot=pool.spot) for pool in pools}
    return {name: price.usd_per_hour if price else None for name, price in prices.items()}


def judge_pools(
    connection: Connection, chances: Sequence[PoolChance], *, nodes: int
) -> tuple[PoolChance, ...]:
    """Return the pools with whether they can start a run on so many nodes now, and why.

    Pools that do not fit the run are returned as they are.
    """
    now = datetime.now(UTC)

    def judge(chance: PoolChance) -> PoolChance:
        if not chance.fits:
            return chance
        facts = load_pool_facts(connection, chance.pool, log=False)
        cause = explain_wait(NodeNeed("", nodes=nodes), facts, now)
        found = judge_start(cause, may_grow=_may_grow(facts), ready=_describe(facts), now=now)
        why = found.why.removeprefix(f"pool {chance.pool} ")
        return replace(chance, can_start=found.can_start, why=why)

    return tuple(in_parallel(judge, chances))


def _may_grow(facts: PoolFacts) -> bool:
    pool, most = facts.pool, facts.most_nodes
    if pool is None:
        return False
    here = len(facts.nodes)
    if pool.autoscale is not None:
        return most is None or here < most
    return here < pool.spot_target + pool.dedicated_target


def _describe(facts: PoolFacts) -> str:
    """Return what nodes a pool has, in a few words."""
    idle = facts.counts.get("idle", 0)
    if idle:
        return format_count(idle, "idle node")
    others = [f"{count} {state}" for state, count in sorted(facts.counts.items())]
    return f"nodes: {', '.join(others)}" if others else "no nodes yet"
