"""Documents about pools and their nodes."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.azure.batch.pools import PoolAutoscale
from runner.core.pricing.prices import Price
from runner.flows.environment.pools import NodeStatus, PoolStatus


class NodeCounts(TypedDict):
    """The number of nodes by state."""

    spot: dict[str, int]
    dedicated: dict[str, int]


class PoolDocument(TypedDict):
    """A pool of `runner pool ls -o json`; times are ISO 8601, unknown prices None."""

    pool: str
    vm_size: str
    state: str
    allocation: str
    slots: int
    spot: int
    spot_target: int
    dedicated: int
    dedicated_target: int
    nodes: NodeCounts
    running_tasks: int
    spot_usd_per_hour: float | None
    spot_as_of: str | None
    dedicated_usd_per_hour: float | None
    dedicated_as_of: str | None
    usd_per_hour: float | None
    formula: str | None
    evaluation_s: float | None
    evaluated: str | None
    autoscale: str
    resize_errors: list[str]
    image: str
    node_agent: str
    mounts: list[str]
    inter_node_communication: bool


def pool_document(found: PoolStatus) -> PoolDocument:
    """Return the document of one pool."""
    view = found.pool
    scale = view.autoscale
    return {
        "pool": view.id,
        "vm_size": view.vm_size,
        "state": view.state,
        "allocation": view.allocation,
        "slots": view.slots,
        "spot": view.spot,
        "spot_target": view.spot_target,
        "dedicated": view.dedicated,
        "dedicated_target": view.dedicated_target,
        "nodes": {
            "spot": dict(found.states.get(True, {})),
            "dedicated": dict(found.states.get(False, {})),
        },
        "running_tasks": found.running_tasks,
        "spot_usd_per_hour": _usd(found.spot_price),
        "spot_as_of": _as_of(found.spot_price),
        "dedicated_usd_per_hour": _usd(found.dedicated_price),
        "dedicated_as_of": _as_of(found.dedicated_price),
        "usd_per_hour": found.usd_per_hour,
        "formula": scale.formula if scale else None,
        "evaluation_s": scale.interval_s if scale else None,
        "evaluated": scale.evaluated.isoformat() if scale and scale.evaluated else None,
        "autoscale": evaluation_text(scale),
        "resize_errors": [f"{each.code}: {each.message}" for each in view.resize_errors],
        "image": view.image,
        "node_agent": view.node_agent,
        "mounts": list(view.mounts),
        "inter_node_communication": view.inter_node,
    }


def evaluation_text(scale: PoolAutoscale | None) -> str:
    """Return the result of the last evaluation of a formula."""
    if scale is None:
        return "off"
    if scale.error is not None:
        return f"failed: {scale.error.code}: {scale.error.message}"
    if scale.evaluated is None:
        return "not evaluated yet"
    spot = scale.results.get("$TargetLowPriorityNodes", "?")
    dedicated = scale.results.get("$TargetDedicatedNodes", "?")
    return f"{spot} spot, {dedicated} dedicated"


def _usd(price: Price | None) -> float | None:
    return price.usd_per_hour if price else None


def _as_of(price: Price | None) -> str | None:
    return price.as_of.isoformat() if price else None


class NodeDocument(TypedDict):
    """A node of `runner pool nodes -o json`; `log` is the end of a failed start task's output.

    `use` says what a run there uses at present, None if that is unknown.
    """

    node: str
    state: str
    spot: bool
    running_tasks: int
    tasks_run: int
    since: str | None
    use: str | None
    problem: str | None
    log: list[str]


def node_document(found: NodeStatus) -> NodeDocument:
    """Return the document of one node."""
    node = found.node
    return {
        "node": node.id,
        "state": node.state,
        "spot": node.spot,
        "running_tasks": node.running_tasks,
        "tasks_run": node.tasks_run,
        "since": node.since.isoformat() if node.since else None,
        "use": found.use or None,
        "problem": node.problem or None,
        "log": list(found.log),
    }
