"""Choose the pool in which a run with several pools starts, with the reason for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.fallback import (
    PoolChance,
    choose_start,
    explain_unfit,
    listed_pools,
)
from runner.flows.runs.moving.pool_order import judge_pools, node_rates
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import NO_RESOURCES, FallbackRule

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.planning.plan import CheckedRun
    from runner.core.settings import Settings
    from runner.protocol.run_spec import RunSpec


Chances = tuple[PoolChance, ...]
Ask = Callable[[str, "Callable[[Connection], Chances]", Chances], Chances]


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """The pools of a run: the one that it starts in, the reasons, and the rule for the others.

    `rule` is None if only one pool fits, so that the run never moves.
    """

    pool: PoolOutput
    chances: tuple[PoolChance, ...]
    rule: FallbackRule | None


def order_pools(
    run: CheckedRun, settings: Settings, outputs: StackOutputs, ask: Ask, notes: list[str]
) -> PoolOrder | None:
    """Return the pools that a recipe or its options name, or None if they do not apply here.

    On a target without stacks, which has one pool, the list of a recipe does not apply.

    Args:
        run: the run.
        settings: the settings.
        outputs: the stack.
        ask: asks the services: what, a question, and the answer if a dry run gets none.
        notes: receives a warning if the list does not apply.

    Raises:
        RunnerError: R-POOLS-LOCAL, options name pools of a stack for a target without one;
            R-POOL-UNKNOWN, R-POOL-TEAM or R-POOL-FIT, as their entries say.
    """
    recipe, options = run.recipe, run.options
    rates = node_rates(outputs.pools, outputs.location, settings.home)
    try:
        pools = listed_pools(recipe.pools, recipe.gpu, outputs, rates)
    except RunnerError as err:
        if settings.target.has_stacks or err.code not in ("R-POOL-UNKNOWN", "R-POOL-FIT"):
            raise
        if not (options.pools or options.gpu):
            key = "pools" if recipe.pools else "gpu"
            notes.append(f"`{key}` of the recipe has no effect: this machine has one pool")
            return None
        flag = "--pools" if options.pools else "--gpu"
        raise RunnerError(
            "R-POOLS-LOCAL",
            f"{flag} names pools that this machine does not have",
            why=f"it has the pool {outputs.pools[0].id!r}; others are declared by a stack in Azure",
            fix=f"--target azure, or remove {flag}",
        ) from err
    reasons = [
        explain_unfit(pool, recipe.image, recipe.resources, options.resources) for pool in pools
    ]
    chances = _chances(pools, reasons, rates)
    nodes = recipe.resources.nodes
    names = ", ".join(pool.id for pool in pools)
    judged = ask(
        f"pools {names}",
        lambda connection: judge_pools(connection, chances, nodes=nodes),
        tuple(replace(each, why=each.why or "not checked") for each in chances),
    )
    return _order(pools, judged, recipe.fallback_after_s, recipe.fallback_evictions)


def order_same_pools(connection: Connection, spec: RunSpec, nodes: int | None) -> PoolOrder | None:
    """Return the pools of a repeated run that still exist, or None if none of them does."""
    rule, outputs = spec.fallback, connection.outputs
    by_id = {pool.id.lower(): pool for pool in outputs.pools}
    names = rule.pools if rule is not None else ()
    pools = [by_id[name.lower()] for name in names if name.lower() in by_id]
    if rule is None or not pools:
        return None
    resources = replace(spec.resources, nodes=nodes or spec.nodes)
    reasons = [explain_unfit(pool, spec.image, resources, NO_RESOURCES) for pool in pools]
    chances = _chances(pools, reasons, node_rates(pools, outputs.location, connection.home))
    judged = judge_pools(connection, chances, nodes=resources.nodes)
    return _order(pools, judged, rule.after_s, rule.evictions)


def _chances(
    pools: Sequence[PoolOutput], reasons: Sequence[str], rates: Mapping[str, float | None]
) -> tuple[PoolChance, ...]:
    return tuple(
        PoolChance(pool.id, pool.vm_size, pool.spot, rates[pool.id], fits=not why, why=why)
        for pool, why in zip(pools, reasons, strict=True)
    )


def _order(
    pools: Sequence[PoolOutput], judged: Sequence[PoolChance], after_s: int, evictions: int
) -> PoolOrder:
    chances = choose_start(judged)
    chosen = next(n for n, each in enumerate(chances) if each.chosen)
    fitting = tuple(each.pool for each in chances if each.fits)
    rule = FallbackRule(fitting, after_s, evictions) if len(fitting) > 1 else None
    return PoolOrder(pools[chosen], chances, rule)
