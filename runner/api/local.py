"""`runner.local`: the local Azure Batch and Azure Blob, the default target of runs.

The first `train` starts them; `up` starts them alone, or changes the number of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import load_call_settings

if TYPE_CHECKING:
    from pydantic import NonNegativeFloat, PositiveInt

    from runner.flows.local.evict import Evicted
    from runner.flows.local.lifecycle import LocalStatus

__all__ = ["down", "env", "evict", "status", "up"]


@checked
def up(
    *,
    nodes: int | None = None,
    slots: int | None = None,
    port: int | None = None,
    blob_port: int | None = None,
    on_progress: OnUpdate | None = None,
) -> LocalStatus:
    """Start the services. Omitted arguments keep their last values; `slots` is per node."""
    from runner.flows.local import lifecycle

    with live(on_progress, what="local.up") as view:
        return lifecycle.up(
            load_call_settings("local", None), view.on_progress, nodes=nodes, slots=slots,
            port=port, blob_port=blob_port,
        )  # fmt: skip


@checked
def down(*, on_progress: OnUpdate | None = None) -> bool:
    """Stop the services; their data stays. Return False if they were not running."""
    from runner.flows.local import lifecycle

    with live(on_progress, what="local.down") as view:
        return lifecycle.down(load_call_settings("local", None), view.on_progress).ran


def status() -> LocalStatus:
    """Return `.running`, `.services`, `.nodes`, `.slots` (per node) and `.home`."""
    from runner.flows.local import lifecycle

    return lifecycle.status(load_call_settings("local", None))


def env() -> dict[str, str]:
    """Return the variables for other clients of Azure Batch and Blob, secret keys included."""
    from runner.flows.local import lifecycle

    return lifecycle.shell_env(load_call_settings("local", None))


@checked
def evict(
    node: str | None = None,
    *,
    pool: str | None = None,
    count: PositiveInt | None = None,
    everything: bool = False,
    notice_s: NonNegativeFloat | None = None,
    away_s: NonNegativeFloat | None = None,
) -> Table[Evicted]:
    """Evict spot nodes as Azure does: a notice, then the node and its disk are lost.

    Args:
        node: ID or prefix of a node.
        pool: pool of the nodes; by default "local".
        count: number of nodes, if no `node` is given; by default 1.
        everything: evict all spot nodes of the pool.
        notice_s: time between notice and eviction; by default 30.
        away_s: time until the node returns; by default 0.
    """
    from runner.flows.local import evict as local_evict

    evicted = local_evict.evict(
        load_call_settings("local", None), node=node, pool=pool, count=count,
        everything=everything, notice_s=notice_s, away_s=away_s,
    )  # fmt: skip
    return Table(evicted, _cells)


def _cells(evicted: Evicted) -> dict[str, object]:
    return {
        "node": evicted.node,
        "pool": evicted.pool,
        "state": evicted.state,
        "evicted": evicted.not_before or "now",
    }
