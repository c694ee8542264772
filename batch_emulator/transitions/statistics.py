"""What attempts of tasks used is charged to the task and to the node."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.executor.launch import Outcome
from batch_emulator.model import Execution, Node, cores_of
from batch_emulator.usage import Usage


def charge(execution: Execution, outcome: Outcome | None, now: datetime) -> None:
    """An attempt is over; one that never started costs nothing."""
    task = execution.task
    if task is None or task.start is None:
        return
    spent = (outcome and outcome.usage) or Usage()
    spent.wall_s = (now - task.start).total_seconds()
    if task.used is None:
        task.used = Usage()
    task.used.add(spent)
    execution.node.used.add(spent)


def node_gone(account: Account, node: Node, now: datetime) -> None:
    """The pool remembers what a node did that it no longer has."""
    pool = node.pool
    pool.used.add(node.used)
    pool.core_s[0 if node.dedicated else 1] += core_seconds(node, now)
    account.save_pool(pool)


def core_seconds(node: Node, now: datetime) -> float:
    """For how long the pool had the cores of a node."""
    return (now - node.allocated).total_seconds() * cores_of(node.pool.spec["vmSize"])
