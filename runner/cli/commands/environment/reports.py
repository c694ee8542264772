"""What `preview`, `up` and `check` print about drift, interrupted runs and quotas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.cli.ui.output import Output

if TYPE_CHECKING:
    from runner.flows.environment.drift import FoundDrift
    from runner.flows.environment.losses import PoolLoss
    from runner.flows.environment.quotas import AccountQuotas


DRIFT_COLUMNS = ("type", "name", "in_azure", "runner_up")
QUOTA_COLUMNS = ("quota_of_the_account", "cores", "one_node", "all_nodes", "pools")


def drift_documents(drift: Sequence[FoundDrift]) -> list[dict[str, Any]]:
    """Return one JSON object per change that others made."""
    return [dataclasses.asdict(each) for each in drift]


def show_drift(out: Output, drift: Sequence[FoundDrift]) -> None:
    """Print what others changed in Azure, apart from the changes of the configuration."""
    if not drift:
        return
    out.note("changed in Azure since the last deployment, by other means:", style="bold")
    rows = [
        {
            "type": each.type.rpartition(":")[2] if out.as_text else each.type,
            "name": each.name,
            "in_azure": each.text,
            "runner_up": each.then,
        }
        for each in drift
    ]
    out.rows(rows, DRIFT_COLUMNS)
    out.text()


def loss_documents(losses: Sequence[PoolLoss]) -> list[dict[str, Any]]:
    """Return one JSON object per pool whose removal would interrupt work."""
    return [dataclasses.asdict(each) for each in losses]


def show_quotas(out: Output, quotas: AccountQuotas) -> None:
    """Print the core quotas of the pools, what to request, and what works meanwhile."""
    for why in quotas.skipped:
        out.note(f"unknown quota: {why}", style="dim")
    if not quotas.cores:
        return
    out.text()
    rows = [
        {
            "quota_of_the_account": each.name,
            "cores": each.quota,
            "one_node": each.node,
            "all_nodes": each.needed,
            "pools": ", ".join(each.pools),
        }
        for each in quotas.cores
    ]
    out.rows(rows, QUOTA_COLUMNS)
    for each in quotas.cores:
        if each.request is None:
            continue
        if each.state == "none":
            none = f"{each.name} quota {each.quota}: no node of pool {', '.join(each.pools)} starts"
            out.note(none, style="red")
        else:
            out.note(f"{each.name} quota {each.quota}: not all nodes can start", style="yellow")
        out.note(f"  request in the portal (Batch account, Quotas): {each.request.text}")
    for each in quotas.meanwhile:
        out.note(f"  meanwhile: {each}")


def ready_title(quotas: AccountQuotas | None, pools: Sequence[str]) -> str:
    """Return what a deployment achieved: an account without quota has no nodes."""
    if quotas is None:
        return "The environment is deployed; its quotas were not read"
    blocked = quotas.blocked
    if not blocked:
        return "The environment is ready"
    if set(pools) <= set(blocked):
        return "The environment is deployed, but its quota allows no node"
    return f"The environment is ready, except pool {', '.join(blocked)}: no quota"
