"""Meter the resources of each attempt, and node hours by pool (Pool_ListUsageMetrics).

A node counts from its start until it leaves, not while it is preempted or being allocated. Nodes
continue to count while the emulator is down, since they continue to exist [S].
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from batch_emulator.domain.account import Account
from batch_emulator.domain.launch import ExecutionOutcome, ResourceUsage
from batch_emulator.domain.model import Execution, Node, Pool, UsageKey, cores_of


def charge_attempt(execution: Execution, outcome: ExecutionOutcome | None, now: datetime) -> None:
    """Add the resource usage of an ended attempt to its task and node, if it ever started."""
    task = execution.task
    if task is None or task.start is None:
        return
    spent = (outcome and outcome.usage) or ResourceUsage()
    spent.wall_s = (now - task.start).total_seconds()
    if task.used is None:
        task.used = ResourceUsage()
    task.used.add(spent)
    execution.node.used.add(spent)


def keep_node_usage(account: Account, node: Node, now: datetime) -> None:
    """Add the usage of a node that leaves to its pool."""
    pool = node.pool
    pool.used.add(node.used)
    pool.core_s[0 if node.dedicated else 1] += core_seconds(node, now)
    account.save_pool(pool)


def core_seconds(node: Node, now: datetime) -> float:
    """Return how long the pool had the cores of a node."""
    return (now - node.allocated).total_seconds() * cores_of(node.pool.spec["vmSize"])


INTERVAL = timedelta(minutes=30)  # docs: the example of Pool_ListUsageMetrics, 00:00 to 00:30
KEPT_INTERVALS = timedelta(days=90)  # [S]: older intervals are forgotten
_UNBILLED_STATES = frozenset({"creating", "preempted", "leavingpool", "deallocated"})
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def interval_of(when: datetime) -> datetime:
    """Return the start of the interval that contains a moment."""
    return when - (when - _EPOCH) % INTERVAL


def meter(account: Account, node: Node, now: datetime) -> None:
    """Start or stop counting the time of a node that entered a state."""
    counts = node.state.value not in _UNBILLED_STATES
    if counts and node.billed_since is None:
        node.billed_since = now
    elif not counts and node.billed_since is not None:
        booked: dict[UsageKey, float] = {}
        _spread(booked, node.pool, node.billed_since, now, 1.0)
        _book(account, booked)
        node.billed_since = None


def close_meter(account: Account, pool: Pool, now: datetime) -> None:
    """Record that a pool being deleted existed, even if it had no node."""
    booked: dict[UsageKey, float] = {}
    _spread(booked, pool, pool.created, now, 0.0)
    _book(account, booked)
    prune_usage(account, now)


def prune_usage(account: Account, now: datetime) -> None:
    """Delete usage that is too old to be queried."""
    for key in [key for key in account.usage if key[2] < now - KEPT_INTERVALS]:
        del account.usage[key]
        account.journal.usage[key] = None


def report_usage(account: Account, since: datetime, until: datetime) -> dict[UsageKey, float]:
    """Return node-seconds by pool, VM size and start of the interval, for intervals in a range.

    Pools that existed without a node are included with 0 (docs: all pools of the time range).
    """
    found = {key: value for key, value in account.usage.items() if since <= key[2] < until}
    for pool in account.pools.values():
        _spread(found, pool, max(pool.created, since), until, 0.0)
        for node in pool.nodes.values():
            if node.billed_since is not None:
                _spread(found, pool, max(node.billed_since, since), until, 1.0)
    return found


def _spread(
    into: dict[UsageKey, float], pool: Pool, since: datetime, until: datetime, share: float
) -> None:
    """Divide a time among the intervals that it overlaps."""
    if since >= until:
        return
    since = max(since, until - KEPT_INTERVALS)
    start = interval_of(since)
    while start < until:
        end = start + INTERVAL
        seconds = (min(end, until) - max(start, since)).total_seconds()
        key = (pool.id, str(pool.spec.get("vmSize", "")), start)
        into[key] = into.get(key, 0.0) + share * seconds
        start = end


def _book(account: Account, booked: dict[UsageKey, float]) -> None:
    for key, seconds in booked.items():
        total = account.usage.get(key, 0.0) + seconds
        account.usage[key] = total
        account.journal.usage[key] = total
