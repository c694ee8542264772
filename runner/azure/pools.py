"""Pools over the data-plane API: the local pool is made here; Azure's are made by `infra`."""

from __future__ import annotations

from dataclasses import dataclass

from runner.azure.credentials import Connection


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool should be. `start_command` prepares each node."""

    id: str
    vm_size: str
    spot_nodes: int
    slots_per_node: int
    start_command: str
    start_env: tuple[tuple[str, str], ...] = ()


def ensure_pool(connection: Connection, spec: PoolSpec) -> None:
    """Create the pool, or bring an existing one to `spec` (resized in place; recreated if slots changed)."""
    raise NotImplementedError
