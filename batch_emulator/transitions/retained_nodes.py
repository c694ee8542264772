"""Nodes that leave or reboot with `retaineddata`: when no task on them is retained any more."""

from __future__ import annotations

from datetime import datetime, timedelta

from batch_emulator.account import Account
from batch_emulator.model import Node
from batch_emulator.transitions import nodes

_LOOK_AGAIN = timedelta(minutes=1)  # [S]: tasks may be deleted before their retention is over


def answer(account: Account, node: Node, until: datetime | None, now: datetime) -> None:
    """The last retention of a task of the node is over at `until`, or (None) there is none."""
    if node.pool.nodes.get(node.key) is not node or not node.keeps_data or node.executions:
        return
    if until is None or until <= now:
        node.keeps_data = False
        nodes.drained(account, node, now)
        return
    node.due = min(until, now + _LOOK_AGAIN)
    account.at(node.due, node)
    account.save_node(node)
