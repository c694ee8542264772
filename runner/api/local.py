"""`runner.local`: the local Azure Batch and Azure Blob that runs go to unless told otherwise.

The first `train` starts them; `up` does so by itself, or changes how many nodes there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import settings_of

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
    """Start the services; what is not given stays as it was. `slots` are those of a node."""
    from runner.flows.local import lifecycle

    with live(on_progress, what="local.up") as view:
        return lifecycle.up(
            settings_of("local", None), view.on_progress, nodes=nodes, slots=slots,
            port=port, blob_port=blob_port,
        )  # fmt: skip


@checked
def down(*, on_progress: OnUpdate | None = None) -> bool:
    """Stop the services; their data stays. False where they did not run."""
    from runner.flows.local import lifecycle

    with live(on_progress, what="local.down") as view:
        return lifecycle.down(settings_of("local", None), view.on_progress)


def status() -> LocalStatus:
    """What runs, and where: `.running`, `.services`, `.nodes`, `.slots` of a node, `.home`."""
    from runner.flows.local import lifecycle

    return lifecycle.status(settings_of("local", None))


def env() -> dict[str, str]:
    """The variables with which other clients of Azure Batch and Blob connect; keys are secrets."""
    from runner.flows.local import lifecycle

    return lifecycle.shell_env(settings_of("local", None))


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
    """Take spot nodes away, as Azure does: notice, then disk and processes are gone.

    The node of an id or how it begins, else `count` of the pool, any one unless given.
    `notice_s` is 30 unless given; the node comes back after `away_s`, 0 unless given.
    """
    from runner.flows.local import evict as local_evict

    gone = local_evict.evict(
        settings_of("local", None), node=node, pool=pool, count=count,
        everything=everything, notice_s=notice_s, away_s=away_s,
    )  # fmt: skip
    return Table(gone, _cells)


def _cells(gone: Evicted) -> dict[str, object]:
    return {
        "node": gone.node,
        "pool": gone.pool,
        "state": gone.state,
        "evicted": gone.not_before or "now",
    }
