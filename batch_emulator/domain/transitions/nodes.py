"""Nodes: they boot, run their start task and tasks, reboot, wait for retained data and leave."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta

from batch_emulator.domain.account import (
    Account,
    AwaitRetention,
    DeleteNodeFolder,
    SetUpNode,
    Start,
)
from batch_emulator.domain.chance import draw_wait
from batch_emulator.domain.fault_rules import FaultKind, FaultRule
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.launch import DISK_FULL, ExecutionOutcome
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Json,
    Node,
    NodeState,
    Pool,
    Stop,
    key_of,
)
from batch_emulator.domain.transitions.job_preparation import node_restarted
from batch_emulator.domain.transitions.metering import keep_node_usage
from batch_emulator.domain.transitions.states import set_node, settle_node, stop_execution
from batch_emulator.domain.values import time_text

RECOVERY_S = 60.0  # [S]: 15 to 45 minutes on the service (azure-batch-samples 238)
_LONGEST_S = 365 * 86400.0
WITHOUT_MACHINE = (
    NodeState.PREEMPTED,
    NodeState.LEAVING_POOL,
    NodeState.DEALLOCATING,
    NodeState.DEALLOCATED,
)


def add(account: Account, pool: Pool, count: int, *, dedicated: bool, now: datetime) -> None:
    """Add new nodes to the pool; they are created for half of the boot time, then start."""
    first = 1 + max((node.number for node in pool.nodes.values()), default=0)
    for number in range(first, first + count):
        _add(account, pool, number, dedicated=dedicated, now=now)


def _add(account: Account, pool: Pool, number: int, *, dedicated: bool, now: datetime) -> None:
    node = Node(
        id=f"tvm-{account.token()}-{'d' if dedicated else 'p'}",
        pool=pool,
        dedicated=dedicated,
        number=number,
        allocated=now,
        state=NodeState.CREATING,
        state_time=now,
        address=account.addresses.take(),
    )
    pool.nodes[node.key] = node
    account.events.add(now, "node.state", f"{pool.id}/{node.id}", node.state.value)
    create(account, node, now)


def create(
    account: Account, node: Node, now: datetime, state: NodeState = NodeState.CREATING
) -> None:
    """Get a new machine for the node, also after it was preempted or deallocated."""
    node.allocated = now
    node.lives += 1
    node.rebalance = ""
    node.faults = account.faults.of_machine(node.pool.key, f"{node.pool.id}/{node.id}", now)
    if not node.dedicated:
        # Another node may have had this number; its random draws must not be repeated.
        machines = node.pool.machines
        machines[node.number] = machines.get(node.number, 0) + 1
        account.save_pool(node.pool)
    if account.limits.eviction_rate > 0 and not node.dedicated:
        key, mean_s = account.chance("evict", node.pool.key), 3600 / account.limits.eviction_rate
        seconds = draw_wait(key, node.number, machine_of(node), mean_s)
        node.evict_at = now + timedelta(seconds=min(seconds, _LONGEST_S))
        account.set_timer(node.evict_at, node)
    boot(account, node, state, now)


def machine_of(node: Node) -> int:
    """Return how many machines the nodes with this number had in the pool, this one included."""
    return node.pool.machines.get(node.number, node.lives)


def boot(account: Account, node: Node, state: NodeState, now: datetime) -> None:
    """Enter one of the two states through which a node boots."""
    set_node(account, node, state, now)
    slower_s = sum(rule.delay_s for rule in node.faults if rule.kind is FaultKind.SLOW_BOOT)
    if state is NodeState.STARTING and _fault(node, FaultKind.NO_BOOT) is not None:
        node.due = None  # it stays so
    else:
        _set_due(account, node, now, (account.limits.boot_s + slower_s) / 2)
    account.save_node(node)


def _fault(node: Node, kind: FaultKind) -> FaultRule | None:
    return next((rule for rule in node.faults if rule.kind is kind), None)


def _set_due(account: Account, node: Node, now: datetime, seconds: float) -> None:
    node.due = now + timedelta(seconds=seconds)
    account.set_timer(node.due, node)


def advance(account: Account, node: Node, now: datetime) -> None:
    """Take the next step when the time of a state is over, for example start or reboot."""
    node.due = None
    if node.keeps_data:
        account.effects.append(AwaitRetention(node))
    elif node.state in (NodeState.CREATING, NodeState.REBOOTING, NodeState.REIMAGING):
        boot(account, node, NodeState.STARTING, now)
    elif node.state is NodeState.DEALLOCATING:
        set_node(account, node, NodeState.DEALLOCATED, now)
    elif node.state is NodeState.UNUSABLE:
        drain_into(account, node, NodeState.REBOOTING, Stop.LOST, now)
    elif node.state is NodeState.STARTING:
        node.booted = now
        node.errors = []
        account.effects.append(SetUpNode(node))
    account.save_node(node)


def set_up(
    account: Account, node: Node, booted: datetime, errors: list[Json], now: datetime
) -> None:
    """Run the start task of a node that was set up, or make it unusable if the setup had `errors`.

    `booted` identifies the boot: the answer to an earlier boot is ignored.
    """
    if node.state is not NodeState.STARTING or node.booted != booted or _has_left(account, node):
        return
    unusable = _fault(node, FaultKind.UNUSABLE)
    if unusable is not None and unusable.code:
        message = f"The rule '{unusable.name}' makes this node unusable"
        errors = [*errors, {"code": unusable.code, "message": message, "errorDetails": []}]
    if errors or unusable is not None:
        fail(account, node, errors, now)
        return
    node.start_task = node.pool.spec.get("startTask")
    node.start_info = None
    if node.start_task is None:
        _make_ready(account, node, now)
        return
    node.start_info = {"state": "running", "startTime": time_text(now), "retryCount": 0}
    if node.start_task.get("waitForSuccess") is False:
        _make_ready(account, node, now)  # tasks need not wait (docs: waitForSuccess)
    else:
        set_node(account, node, NodeState.WAITING_FOR_START_TASK, now)
    _run_start_task(account, node)
    account.save_node(node)


def fail(account: Account, node: Node, errors: list[Json], now: datetime) -> None:
    """Make a node unusable, with `errors` as the wire shows them; its tasks run elsewhere.

    Without errors, the node has lost contact. The service recovers from this (error checking page);
    here the node reboots after `RECOVERY_S` [S]. A node whose disk was full reboots, too, because
    other programs may have filled the disk. A node without a machine cannot fail.
    """
    if node.state in WITHOUT_MACHINE:
        return
    node.errors = errors
    node.keeps_data = False
    node.due = node.next_state = None
    set_node(account, node, NodeState.UNUSABLE, now)
    if all(error["code"] == DISK_FULL for error in errors):
        _set_due(account, node, now, RECOVERY_S)
        account.save_node(node)
    stop_all(account, node, Stop.LOST)


def _has_left(account: Account, node: Node) -> bool:
    pool = account.pools.get(node.pool.key)
    return pool is None or pool.nodes.get(node.key) is not node


def _make_ready(account: Account, node: Node, now: datetime) -> None:
    state = NodeState.IDLE if node.scheduling else NodeState.OFFLINE
    set_node(account, node, state, now)


def _run_start_task(account: Account, node: Node) -> None:
    key = f"{node.key}/start/{account.token()}"
    body, rule = node.start_task or {}, _fault(node, FaultKind.START_TASK)
    if rule is not None:
        said = shlex.quote(f"the rule '{rule.name}' fails this start task")
        script = shlex.quote(f"echo {said} >&2; exit {rule.exit_code}")
        body = {**body, "commandLine": f"/bin/sh -c {script}"}
    execution = Execution(key=key, kind=ExecutionKind.START, node=node, body=body)
    account.executions[key] = execution
    node.executions[key] = execution
    account.effects.append(Start(execution))


def start_task_ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Retry the start task, open the node, or leave it in starttaskfailed.

    The state starttaskfailed follows the state enum and the error checking page; the REST docs of
    start tasks name unusable instead [X].
    """
    node, info = execution.node, execution.node.start_info
    if execution.stop is not None or outcome is None or info is None:
        return
    allowed = execution.body.get("maxTaskRetryCount") or 0
    leaving = node.state is NodeState.LEAVING_POOL or node.next_state is not None
    if outcome.retryable and not leaving and (allowed == -1 or info["retryCount"] < allowed):
        info["retryCount"] += 1
        info["lastRetryTime"] = time_text(now)
        account.save_node(node)
        _run_start_task(account, node)
        return
    failure = outcome.failure_info
    info |= {"state": "completed", "endTime": time_text(now)}
    info["result"] = "success" if failure is None else "failure"
    if outcome.exit_code is not None:
        info["exitCode"] = outcome.exit_code
    if failure is not None:
        info["failureInfo"] = failure
    if node.state is NodeState.WAITING_FOR_START_TASK:
        if failure is None:
            _make_ready(account, node, now)
        else:
            set_node(account, node, NodeState.START_TASK_FAILED, now)
    account.save_node(node)


_STOPS = {
    "requeue": Stop.REQUEUE,
    "terminate": Stop.TERMINATE,
    "taskcompletion": None,
    "retaineddata": None,  # then the node waits for the retention time of tasks (`keeps_data`)
}


def stop_for(option: str, name: str) -> Stop | None:
    """Return how a deallocation or reboot option ends running tasks; None waits for them.

    Raises:
        Fault: the option is unknown.
    """
    if option not in _STOPS:
        allowed = "one of requeue, terminate, taskcompletion, retaineddata"
        raise bad_property(name, option, allowed)
    return _STOPS[option]


def drain_into(
    account: Account,
    node: Node,
    state: NodeState,
    why: Stop | None,
    now: datetime,
    *,
    keeps_data: bool = False,
) -> None:
    """Enter a state, at once or (`why` None) after its tasks, and continue when drained."""
    node.next_state = state
    node.keeps_data = keeps_data
    node.due = None
    if why is not None:
        set_node(account, node, state, now)
        stop_all(account, node, why)
    account.save_node(node)
    if not node.executions:
        drained(account, node, now)


def stop_all(account: Account, node: Node, why: Stop) -> None:
    """End all executions of the node."""
    for execution in list(node.executions.values()):
        stop_execution(
            account, execution, why if execution.kind is ExecutionKind.TASK else Stop.LOST
        )


def leave(account: Account, node: Node, why: Stop | None, now: datetime) -> None:
    """Remove the node from the pool, at once or (`why` None) when its tasks have ended."""
    node.keeps_data = why is None and node.pool.deallocation == "retaineddata"
    set_node(account, node, NodeState.LEAVING_POOL, now)
    if why is not None:
        stop_all(account, node, why)
    if not node.executions:
        drained(account, node, now)


def drained(account: Account, node: Node, now: datetime) -> None:
    """Take the step that waited until nothing runs on the node."""
    if node.keeps_data and (node.state is NodeState.LEAVING_POOL or node.next_state):
        settle_node(account, node, now)
        account.effects.append(AwaitRetention(node))
    elif node.state is NodeState.LEAVING_POOL:
        forget(account, node)
    elif node.next_state is not None:
        state, node.next_state = node.next_state, None
        node_restarted(account, node, wiped=state is not NodeState.REBOOTING)
        if state is not NodeState.REBOOTING:
            _wipe(account, node)
        if state in WITHOUT_MACHINE:
            node.notice = node.evict_at = None  # both are for the old machine
        if state is NodeState.PREEMPTED:
            if node.away_s is not None:
                _set_due(account, node, now, node.away_s)
            account.save_node(node)
        else:
            node.faults = ()
            boot(account, node, state, now)
    else:
        settle_node(account, node, now)


def _wipe(account: Account, node: Node) -> None:
    """Delete the disk of a machine that is given back or reimaged."""
    node.booted = node.start_info = node.start_task = None
    node.errors = []
    node.users.clear()
    account.effects.append(DeleteNodeFolder(node.pool.id, node.id))


def forget(account: Account, node: Node) -> None:
    """Delete a node and its disk."""
    pool = node.pool
    node.due = node.notice = node.evict_at = None
    account.addresses.free(node.address)
    keep_node_usage(account, node, node.state_time)
    pool.nodes.pop(node.key, None)
    pool.available.pop(node.key, None)
    account.journal.nodes[(pool.key, node.key)] = None
    account.effects.append(DeleteNodeFolder(pool.id, node.id))
    account.dirty_pools[pool.key] = pool


def require(account: Account, pool_id: str, node_id: str) -> Node:
    """Return the node of that id.

    Raises:
        Fault: PoolNotFound or NodeNotFound.
    """
    pool = account.pools.get(key_of(pool_id))
    if pool is None:
        raise Fault("PoolNotFound")
    node = pool.nodes.get(key_of(node_id))
    if node is None:
        raise Fault("NodeNotFound")
    return node


_RETENTION_RECHECK = timedelta(
    minutes=1
)  # [S]: tasks may be deleted before their retention is over


def retention_answered(account: Account, node: Node, until: datetime | None, now: datetime) -> None:
    """Continue if the retention of the node's tasks is over; otherwise check again later.

    `until` is when the last retention time ends, None if the node retains no task.
    """
    if node.pool.nodes.get(node.key) is not node or not node.keeps_data or node.executions:
        return
    if until is None or until <= now:
        node.keeps_data = False
        drained(account, node, now)
        return
    node.due = min(until, now + _RETENTION_RECHECK)
    account.set_timer(node.due, node)
    account.save_node(node)
