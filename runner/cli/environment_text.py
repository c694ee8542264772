"""Tables of an Azure environment: what is declared, what it costs, what changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.engine import Change
    from infra.offline import Declared
    from runner.flows.environment import PoolCost

RESOURCE_COLUMNS = ("change", "type", "name", "part_of", "kept_by_down")
CHANGE_COLUMNS = ("change", "type", "name", "because_of")
COST_COLUMNS = ("pool", "vm_size", "gpu", "nodes", "usd_per_hour", "idle_usd_per_hour", "prices_of")
_SYMBOLS = {"create": "+", "update": "~", "replace": "±", "delete": "-"}


def resource_rows(declared: Sequence[Declared]) -> list[dict[str, Any]]:
    """One row a resource of a first deployment."""
    return [
        {
            "change": "+ create",
            "type": found.type.removeprefix("azure-native:"),
            "name": found.azure_name or found.name,
            "part_of": found.component,
            "kept_by_down": "yes" if found.protect else "",
        }
        for found in declared
    ]


def change_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """One row a resource; components and the provider are the engine's own and left out."""
    return [
        {
            "change": f"{_SYMBOLS.get(change.op, ' ')} {change.op}",
            "type": change.type.removeprefix("azure-native:"),
            "name": change.name,
            "because_of": ", ".join(change.keys),
        }
        for change in changes
        if change.type.startswith("azure-native:")
    ]


def cost_rows(costs: Sequence[PoolCost]) -> list[dict[str, Any]]:
    """One row a pool: at most so much an hour, and while nothing runs."""
    return [
        {
            "pool": cost.pool,
            "vm_size": cost.vm_size,
            "gpu": cost.gpu or "none",
            "nodes": _nodes(cost),
            "usd_per_hour": _money(cost.usd_per_hour_max, "below " if cost.bounded else "up to "),
            "idle_usd_per_hour": "0" if not cost.idle_nodes else _money(cost.usd_per_hour_max),
            "prices_of": cost.as_of.isoformat() if cost.as_of else "unknown",
        }
        for cost in costs
    ]


def _nodes(cost: PoolCost) -> str:
    low = "" if cost.idle_nodes else "0 to "
    kinds = ((cost.max_spot, "spot"), (cost.max_dedicated, "dedicated"))
    return " + ".join(f"{low}{count} {kind}" for count, kind in kinds if count)


def _money(usd: float | None, before: str = "") -> str:
    return "unknown" if usd is None else f"{before}{usd:.2f}"
