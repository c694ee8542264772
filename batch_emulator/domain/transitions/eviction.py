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
import re
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID

from batch_emulator.domain.account import Account
from batch_emulator.domain.chance import draw_uniform, draw_wait
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
# With rebalance recommendations. The page about them (learn.microsoft.com, spot-eviction-risk-
# notifications, read 2026-11-29) says "a different version" and gives none: any later date [S].
_LATER_VERSION = re.compile(r"\d{4}-\d\d-\d\d(?:-preview)?")
_EVENT_DESCRIPTION = "The spot virtual machine is being evicted"
_REBALANCE_DESCRIPTION = "The spot virtual machine has a higher risk of being evicted"
_UNREQUESTED = frozenset({"rate", "rule", "trace"})  # why a node is evicted


def blocks_metadata(pool: Pool) -> bool:
    """Return True if the pool's metadata security protocol keeps tasks from the metadata service.

    In Enforce mode a node refuses requests that its policy does not allow. Here that is every
    request [S]. A pool with an access control profile instead of a mode does not block them.
    """
    machine = part(pool.spec, "virtualMachineConfiguration")
    agent = part(part(machine, "securityProfile"), "proxyAgentSettings")
    mode = str(part(agent, "imds").get("mode") or "")
    return bool(agent.get("enabled")) and mode.lower() == "enforce"


@lru_cache(maxsize=1024)  # each task of a node gets the URL
def imds_secret(key: str, pool_id: str, node_id: str) -> str:
    """Return the secret in a node's base URL.

    It is derived from the account key, so that it is the same after a restart.
    """
    text = f"imds/{key_of(pool_id)}/{key_of(node_id)}"
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


def imds_url(account_url: str, key: str, pool_id: str, node_id: str) -> str:
    """Return the URL that replaces `http://169.254.169.254` on a node."""
    return f"{account_url}{IMDS_PATH}/{pool_id}/{node_id}/{imds_secret(key, pool_id, node_id)}"


def is_events_version(version: str, now: datetime) -> bool:
    """Return True if the metadata service answers requests of this api-version."""
    return version in IMDS_VERSIONS or _has_recommendations(version, now)


def _has_recommendations(version: str, now: datetime) -> bool:
    is_date = _LATER_VERSION.fullmatch(version) is not None
    return is_date and IMDS_VERSIONS[-1] < version[:10] <= f"{now:%Y-%m-%d}"


def scheduled_events(node: Node, version: str, now: datetime) -> Json:
    """Return the answer to `GET /metadata/scheduledevents`.

    Its DocumentIncarnation changes whenever the events change.
    """
    notice, events = node.notice, list[Json]()
    if notice is not None:
        at, text = http_date(notice.not_before), _EVENT_DESCRIPTION
        events.append(_event(node, notice.event_id, "Preempt", at, text))
    recommended = bool(node.rebalance) and _has_recommendations(version, now)
    if recommended:
        text = _REBALANCE_DESCRIPTION
        events.append(_event(node, node.rebalance, "SpotRebalanceRecommendation", "", text))
    incarnation = 4 * node.lives - 3 + 2 * recommended + (notice is not None)
    return {"DocumentIncarnation": incarnation, "Events": events}


def _event(node: Node, event_id: str, kind: str, not_before: str, text: str) -> Json:
    return {
        "EventId": event_id,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [node.id],
        "EventStatus": "Scheduled",
        "NotBefore": not_before,
        "Description": text,
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def recommend_rebalance(account: Account, node: Node, now: datetime) -> None:
    """Recommend to leave the machine of a spot node, which may or may not be evicted later."""
    node.rebalance = _new_event_id(account)
    account.events.add(now, "node.notice", f"{node.pool.id}/{node.id}", "rebalance", "admin")
    account.save_node(node)


def _new_event_id(account: Account) -> str:
    return str(UUID(int=account.random.getrandbits(128), version=4)).upper()


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
    if not account.limits.trace:
        _set_capacity(account, pool, None, now, "trace")
    while trace_due(account, pool, now):
        follow_trace(account, pool, now)
    follow_capacity(account, pool, now)
    _set_trace_timer(account, pool)


def follow_capacity(account: Account, pool: Pool, now: datetime) -> None:
    """Set the capacity of a rule that holds now; without one, that of the trace."""
    loaded = account.faults.capacity(pool.key, now)
    if loaded is None:
        entries = [entry for entry in account.limits.trace if entry.concerns(pool.key)]
        known = [e.capacity for e in entries[: pool.traced] if e.capacity is not None]
        _set_capacity(account, pool, known[-1] if known else None, now, "trace")
    elif pool.spot_capacity != loaded.rule.nodes:
        loaded.matched += 1
        loaded.hit(pool.id, now)
        _set_capacity(account, pool, loaded.rule.nodes, now, "rule")


def _set_capacity(
    account: Account, pool: Pool, capacity: int | None, now: datetime, why: str
) -> None:
    """Set for how many spot nodes there is capacity, None for any number; evict the others."""
    if pool.spot_capacity == capacity:
        return
    if capacity is None:
        for node in waiting(pool):
            node.due = now
            account.set_timer(now, node)
    pool.spot_capacity = capacity
    if capacity is not None:
        for node in pick(account, pool, max(0, int(-room(pool)))):
            evict(account, node, now, why=why)
    account.save_pool(pool)


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
    notice_s = _notice_s(account, node, why) if notice_s is None else notice_s
    if notice_s <= 0:
        preempt(account, node, now, why)
        return
    _set_notice(account, node, now + timedelta(seconds=notice_s), why)
    account.events.add(now, "node.notice", f"{node.pool.id}/{node.id}", "preempt", why)
    account.save_node(node)


def _notice_s(account: Account, node: Node, why: str) -> float:
    """Return the seconds of notice: drawn for evictions that nobody requested, else the longest.

    Notices are often below 10 s: "minimum notice is actually a maximum" (azure/karpenter-provider-
    azure issue 1769, read 2026-11-29).
    """
    longest, shortest = account.limits.notice_s, account.limits.shortest_notice_s
    if shortest is None or why not in _UNREQUESTED:
        return longest
    key = account.chance("notice", node.pool.key)
    return shortest + (longest - shortest) * draw_uniform(key, node.number, nodes.machine_of(node))


def _set_notice(account: Account, node: Node, at: datetime, why: str) -> None:
    node.notice = EvictionNotice(_new_event_id(account), at, why)
    account.set_timer(at, node)


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
    shows_unusable = node.state is not NodeState.UNUSABLE and node.next_state is None
    if account.limits.unusable_s > 0 and shows_unusable:
        _lose(account, node, now, why)
        return
    account.events.add(now, "node.evict", f"{node.pool.id}/{node.id}", "preempted", why)
    nodes.drain_into(account, node, NodeState.PREEMPTED, Stop.LOST, now)


def _lose(account: Account, node: Node, now: datetime, why: str) -> None:
    """Make the node unusable before it is preempted, as a node may be on Azure [S].

    Its machine is gone already, so nothing reads the notice that keeps the time (MicrosoftDocs/
    azure-docs pull request 128508, read 2026-11-29).
    """
    nodes.fail(account, node, [], now)
    node.due = None  # it does not recover
    _set_notice(account, node, now + timedelta(seconds=account.limits.unusable_s), why)
    account.save_node(node)


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
