"""Spot evictions: a notice, then the node loses its machine and disk, and may get another one.

Batch itself promises no notice; the machine reads one from Scheduled Events (VM docs). Until
then the node gets tasks as before [S]: the service does not know of the notice.

On Azure the instance metadata service answers at `http://169.254.169.254`. Here each node has
a base URL of its own, which its tasks find in `BATCH_EMULATOR_IMDS`; paths, headers and
documents are the same, so one script works on both:
`${BATCH_EMULATOR_IMDS:-http://169.254.169.254}/metadata/scheduledevents`. The URL contains a
secret that only tasks of the node know, because acknowledging an event evicts the node.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from datetime import datetime, timedelta
from uuid import UUID

from batch_emulator.domain.account import Account
from batch_emulator.domain.chance import draw_wait
from batch_emulator.domain.eviction_trace import TraceEntry, planned_evictions
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    EvictionNotice,
    Execution,
    ExecutionKind,
    Json,
    Node,
    NodeState,
    Pool,
    Stop,
    key_of,
    part,
)
from batch_emulator.domain.transitions import nodes
from batch_emulator.domain.values import http_date

IMDS_VARIABLE = "BATCH_EMULATOR_IMDS"
IMDS_PATH = "/_emulator/imds"
IMDS_VERSIONS = ("2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
_EVENT_DESCRIPTION = "The spot virtual machine is being evicted"


def blocks_metadata(pool: Pool) -> bool:
    """Return True if the pool's metadata security protocol keeps tasks from the metadata service.

    In Enforce mode a node refuses requests that its policy does not allow. Here that is every
    request [S]. A pool with an access control profile instead of a mode does not block them.
    """
    machine = part(pool.spec, "virtualMachineConfiguration")
    agent = part(part(machine, "securityProfile"), "proxyAgentSettings")
    mode = str(part(agent, "imds").get("mode") or "")
    return bool(agent.get("enabled")) and mode.lower() == "enforce"


def imds_secret(key: str, pool_id: str, node_id: str) -> str:
    """Return the secret in a node's base URL.

    It is derived from the account key, so that it is the same after a restart.
    """
    text = f"imds/{key_of(pool_id)}/{key_of(node_id)}"
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


def imds_url(account_url: str, key: str, pool_id: str, node_id: str) -> str:
    """Return the URL that replaces `http://169.254.169.254` on a node."""
    return f"{account_url}{IMDS_PATH}/{pool_id}/{node_id}/{imds_secret(key, pool_id, node_id)}"


def scheduled_events(node: Node) -> Json:
    """Return the answer to `GET /metadata/scheduledevents`.

    Its DocumentIncarnation changes whenever the events change.
    """
    notice = node.notice
    if notice is None:
        return {"DocumentIncarnation": 2 * node.lives - 1, "Events": []}
    event = {
        "EventId": notice.event_id,
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": [node.id],
        "EventStatus": "Scheduled",
        "NotBefore": http_date(notice.not_before),
        "Description": _EVENT_DESCRIPTION,
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return {"DocumentIncarnation": 2 * node.lives, "Events": [event]}


def evictable(node: Node) -> bool:
    """Return True for a spot node with a machine and without a notice."""
    return not node.dedicated and node.notice is None and node.state not in nodes.WITHOUT_MACHINE


def trace_due(account: Account, pool: Pool, now: datetime) -> bool:
    """Return True if the next entry of the trace is due."""
    entry = _next_entry(account, pool)
    return entry is not None and _entry_time(pool, entry) <= now


def begin_trace(account: Account, pool: Pool, now: datetime) -> None:
    """Follow the trace of a pool that was added or read from disk.

    Without a trace, the capacity that an earlier one set no longer applies.
    """
    if not account.limits.trace and pool.spot_capacity is not None:
        for node in waiting(pool):
            node.due = now
            account.set_timer(now, node)
        pool.spot_capacity = None
        account.save_pool(pool)
    while trace_due(account, pool, now):
        follow_trace(account, pool, now)
    _set_trace_timer(account, pool)


def _set_trace_timer(account: Account, pool: Pool) -> None:
    entry = _next_entry(account, pool)
    if entry is not None:
        account.set_timer(_entry_time(pool, entry), pool)


def _next_entry(account: Account, pool: Pool) -> TraceEntry | None:
    entries = [entry for entry in account.limits.trace if entry.concerns(pool.key)]
    return entries[pool.traced] if pool.traced < len(entries) else None


def _entry_time(pool: Pool, entry: TraceEntry) -> datetime:
    return pool.created + timedelta(seconds=entry.time_s)


def require_evictable(node: Node) -> None:
    """Refuse to evict a node that is not evictable. Raises Fault."""
    if node.dedicated:
        reason = "it is a dedicated node; only spot nodes are evicted"
        raise Fault("OperationNotValidOnNode", {"NodeId": node.id, "Reason": reason})
    if not evictable(node):
        reason = "it is being evicted already" if node.notice else f"it is {node.state.value}"
        raise Fault("OperationInvalidForCurrentState", {"NodeId": node.id, "Reason": reason})


def pick(account: Account, pool: Pool, count: int) -> list[Node]:
    """Return up to `count` spot nodes of the pool, at random [S]."""
    candidates = [node for node in pool.nodes.values() if evictable(node)]
    candidates.sort(key=lambda node: node.number)
    return account.random.sample(candidates, min(count, len(candidates)))


def evict(
    account: Account,
    node: Node,
    now: datetime,
    *,
    why: str,
    notice_s: float | None = None,
    away_s: float | None = None,
) -> None:
    """Give notice, or preempt the node at once if the notice is 0."""
    node.evict_at = None
    node.away_s = _away_s(account, node) if away_s is None else away_s
    notice_s = account.limits.notice_s if notice_s is None else notice_s
    if notice_s <= 0:
        preempt(account, node, now, why)
        return
    event_id = UUID(int=account.random.getrandbits(128), version=4)
    node.notice = EvictionNotice(str(event_id).upper(), now + timedelta(seconds=notice_s), why)
    account.set_timer(node.notice.not_before, node)
    account.events.add(now, "node.notice", f"{node.pool.id}/{node.id}", "preempt", why)
    account.save_node(node)


def _away_s(account: Account, node: Node) -> float:
    mean = account.limits.capacity_away_s
    if mean <= 0:
        return 0.0
    key = account.chance("away", node.pool.key)
    return draw_wait(key, node.number, nodes.machine_of(node), mean)


def preempt(account: Account, node: Node, now: datetime, why: str) -> None:
    """Take the machine away: its processes are killed; its tasks run again, not counted."""
    if node.state in nodes.WITHOUT_MACHINE or node.pool.nodes.get(node.key) is not node:
        return
    node.notice = node.evict_at = None
    account.events.add(now, "node.evict", f"{node.pool.id}/{node.id}", "preempted", why)
    nodes.drain_into(account, node, NodeState.PREEMPTED, Stop.LOST, now)


def return_node(account: Account, node: Node, now: datetime) -> None:
    """Get another machine for a preempted node, or wait until there is capacity."""
    away = node.state is NodeState.PREEMPTED and node.pool.nodes.get(node.key) is node
    due = node.due is not None and node.due <= now
    if not away or not (due or _waits(node)):
        return
    node.due = None
    if has_room(account, node.pool):
        nodes.create(account, node, now)
    else:
        node.away_s = None
        account.save_node(node)


def apply_due(account: Account, node: Node, why: str, now: datetime) -> None:
    """Preempt a node after its notice, or evict it at random (`why` is `rate`)."""
    if node.notice is not None and node.notice.not_before <= now:
        preempt(account, node, now, node.notice.why)
    elif node.evict_at is not None and node.evict_at <= now:
        node.evict_at = None
        account.save_node(node)
        if evictable(node):
            evict(account, node, now, why=why)
    elif node.rehearsal is not None and node.rehearsal[0] <= now:
        _evict_as_requested(account, node, now)


def schedule_planned_eviction(account: Account, execution: Execution, now: datetime) -> None:
    """Set the timer of the next eviction that the task of a new attempt requests."""
    task, planned = execution.task, planned_evictions(execution.body)
    primary = execution.kind is ExecutionKind.TASK and execution.instance == 0
    if primary and task is not None and task.evicted < len(planned):
        due = now + timedelta(seconds=planned[task.evicted].after_s)
        execution.node.rehearsal = (due, execution.key)
        account.set_timer(due, execution.node)


def _evict_as_requested(account: Account, node: Node, now: datetime) -> None:
    """Evict a node of the attempt if it still runs: the nodes of several instances in turn."""
    _, key = node.rehearsal or (now, "")
    node.rehearsal = None
    execution = node.executions.get(key)
    if execution is None or execution.task is None or execution.job is None:
        return  # it has ended
    task = execution.task
    rank = task.evicted % (1 if task.group is None else task.group.size)
    members = [e for e in execution.job.executions.values() if e.task is task]
    victim = next((e.node for e in members if e.instance == rank), node)
    if not evictable(victim):
        return
    wanted = planned_evictions(execution.body)[task.evicted]
    task.evicted += 1
    account.save_task(task)
    times = {"notice_s": wanted.notice_s, "away_s": wanted.away_s}
    evict(account, victim, now, why="rehearsal", **times)


def follow_trace(account: Account, pool: Pool, now: datetime) -> None:
    """Carry out the next entry of the trace, and set the timer of the one after it."""
    entry = _next_entry(account, pool)
    if entry is None or _entry_time(pool, entry) > now or account.pools.get(pool.key) is not pool:
        return
    pool.traced += 1
    if entry.capacity is not None:
        pool.spot_capacity = entry.capacity
    count = -room(pool) if entry.capacity is not None else (entry.evict or 0)
    for node in pick(account, pool, max(0, int(count))):
        evict(account, node, now, why="trace", notice_s=entry.notice_s)
    account.save_pool(pool)
    _set_trace_timer(account, pool)


def _waits(node: Node) -> bool:
    """Return True if the node is preempted and returns as soon as there is capacity."""
    return node.state is NodeState.PREEMPTED and node.away_s is None and node.next_state is None


def waiting(pool: Pool) -> list[Node]:
    """Return the preempted nodes that return as soon as there is capacity, by number."""
    if pool.spot_capacity is None:
        return []
    return sorted(filter(_waits, pool.nodes.values()), key=lambda node: node.number)


def room(pool: Pool) -> float:
    """Return for how many more spot nodes there is capacity; negative if some must leave."""
    if pool.spot_capacity is None:
        return math.inf
    return pool.spot_capacity - sum(
        not node.dedicated and node.notice is None and node.state not in nodes.WITHOUT_MACHINE
        for node in pool.nodes.values()
    )


def has_room(account: Account, pool: Pool) -> bool:
    """Return True if a preempted node of the pool can return."""
    return account.pools.get(pool.key) is pool and room(pool) > 0
