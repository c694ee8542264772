"""Nodes taken out of a pool by name: Pool_RemoveNodes."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from batch_emulator.account import Account
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json, Node, NodeState, Pool, key_of
from batch_emulator.transitions import nodes, pools

MAX_NODES = 100  # docs: Pool_RemoveNodes


def remove(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Remove the nodes and want as many fewer; the pool is resizing until they are gone.

    Nothing is removed when one of them does not exist [S]. Raises Fault.
    """
    found = _find(pool, body.get("nodeList"))
    targets = {
        "targetDedicatedNodes": pool.dedicated_target - sum(node.dedicated for node in found),
        "targetLowPriorityNodes": pool.spot_target - sum(not node.dedicated for node in found),
    }
    wanted = {name: max(0, target) for name, target in targets.items()}
    option = body.get("nodeDeallocationOption") or "requeue"
    timeout = {"resizeTimeout": body["resizeTimeout"]} if body.get("resizeTimeout") else {}
    pools.resize(account, pool, {**wanted, **timeout, "nodeDeallocationOption": option}, now)
    why = nodes.stop_for(option, "nodeDeallocationOption")
    for node in found:
        nodes.leave(account, node, why, now)


def _find(pool: Pool, names: object) -> list[Node]:
    if names is not None and not isinstance(names, list):
        raise bad_property("nodeList", names, "a list of node ids is expected")
    if not names:
        raise Fault("MissingRequiredProperty", {"PropertyName": "nodeList"})
    listed = cast("list[object]", names)
    if len(listed) > MAX_NODES:
        raise bad_property("nodeList", len(listed), f"1 to {MAX_NODES} nodes are allowed")
    found: dict[str, Node] = {}
    for name in listed:
        node = pool.nodes.get(key_of(name)) if isinstance(name, str) else None
        if node is None or node.state is NodeState.LEAVING_POOL:
            raise Fault("NodeNotFound", {"NodeId": str(name)[:64]})
        found[node.key] = node
    return list(found.values())
