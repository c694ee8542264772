"""Pools: their nodes, what they run and cost, and their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.api import html
from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.requests import bind, settings_of, whole

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.environment.pools import NodeStatus, PoolStatus, Resized


class _BoundPool:
    found: PoolStatus
    settings: Settings


@dataclass(frozen=True)
class Pool(_BoundPool):
    """A pool as it was when it was asked for; `runner.pool(id)` looks again.

    `spot` and `dedicated` count nodes, with the number that is wanted beside them. What the nodes
    cost is in USD per hour, None where a price is not known. `found` has everything else: `.pool`
    (formula, image, mounts, resize errors), `.states` of the nodes, `.spot_price`.
    """

    id: str
    vm_size: str
    state: str
    spot: int
    spot_target: int
    dedicated: int
    dedicated_target: int
    slots: int
    running_tasks: int
    usd_per_hour: float | None

    def nodes(self) -> Table[NodeStatus]:
        """Its nodes now: `.node`, and in `.log` the end of what a failed start task said."""
        from runner.flows.environment.pools import pool_nodes

        return Table(pool_nodes(self.settings, self.id), _node_cells)

    @checked
    def resize(
        self, spot: int, dedicated: int | None = None, *, disable_autoscale: bool = False
    ) -> Resized:
        """Set how many nodes it is to have; nodes that go end their tasks first.

        Raises RunnerError (R-POOL-AUTOSCALED) where a formula would undo it;
        `disable_autoscale=True` takes the formula away: the pool no longer scales to zero then.
        """
        from runner.flows.environment.pools import resize

        return resize(
            self.settings, self.id, spot=whole(spot), dedicated=whole(dedicated),
            without_formula=disable_autoscale,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return html.record(html.texts(_cells(self)))


@checked
def pools(*, target: str | None = None, stack: str | None = None) -> Table[Pool]:
    """All pools of the target, with nodes, tasks and cost as they are now."""
    from runner.flows.environment.pools import pool_list

    settings = settings_of(target, stack)
    return Table((_pool(settings, found) for found in pool_list(settings)), _cells)


@checked
def pool(id: str, *, target: str | None = None, stack: str | None = None) -> Pool:  # noqa: A002
    """One pool. Raises RunnerError (R-POOL-MISSING) naming those there are."""
    from runner.flows.environment.pools import pool_status

    settings = settings_of(target, stack)
    return _pool(settings, pool_status(settings, id))


def _pool(settings: Settings, found: PoolStatus) -> Pool:
    view = found.pool
    pool = Pool(
        id=view.id,
        vm_size=view.vm_size,
        state=view.state if view.allocation == "steady" else f"{view.state}, {view.allocation}",
        spot=view.spot,
        spot_target=view.spot_target,
        dedicated=view.dedicated,
        dedicated_target=view.dedicated_target,
        slots=view.slots,
        running_tasks=found.running_tasks,
        usd_per_hour=found.usd_per_hour,
    )
    bind(pool, found=found, settings=settings)
    return pool


def _cells(pool: Pool) -> dict[str, object]:
    cost = pool.usd_per_hour
    return {
        "pool": pool.id,
        "vm_size": pool.vm_size,
        "state": pool.state,
        "spot": f"{pool.spot} of {pool.spot_target}",
        "dedicated": f"{pool.dedicated} of {pool.dedicated_target}",
        "slots": pool.slots,
        "running tasks": pool.running_tasks,
        "USD per hour": "unknown" if cost is None else f"{cost:.3f}",
    }


def _node_cells(found: NodeStatus) -> dict[str, object]:
    node = found.node
    return {
        "node": node.id,
        "state": node.state,
        "spot": node.spot,
        "running tasks": node.running_tasks,
        "tasks run": node.tasks_run,
        "since": node.since,
        "problem": f"{node.trouble.code}: {node.trouble.message}" if node.trouble else "",
    }
