"""What a run needs of a node, apart from any pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Capacity = Literal["spot", "dedicated", "spot-then-dedicated"]
CAPACITIES: tuple[Capacity, ...] = get_args(Capacity)
# Of a pool whose nodes reach one another (Batch quotas page).
MOST_NODES = 100
PRIORITIES = range(-1000, 1001)  # of a Batch job: Jobs - Create, Batch REST 2025-06-01


@dataclass(frozen=True, slots=True)
class Resources:
    """What a node must have at least; None and () do not care. `memory_bytes` is the node's."""

    gpus: int | None = None
    memory_bytes: int | None = None
    vm_sizes: tuple[str, ...] = ()
    nodes: int = 1
    capacity: Capacity | None = None

    def to_json(self) -> Mapping[str, Any]:
        """As run.json holds it."""
        return {
            "gpus": self.gpus,
            "memory_bytes": self.memory_bytes,
            "vm_sizes": list(self.vm_sizes),
            "nodes": self.nodes,
            "capacity": self.capacity,
        }


NO_RESOURCES = Resources()
