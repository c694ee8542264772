"""Executions: place them on a node, record their start and container, and handle every end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from batch_emulator.domain.account import Account
from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.model import Execution, ExecutionKind, Json, Node, NodeState, Stop, Task
from batch_emulator.domain.transitions import job_preparation, metering, nodes, tasks
from batch_emulator.domain.transitions.states import dequeue, set_node, settle_node


def record_container(account: Account, execution: Execution, document: Json) -> None:
    """Record that the container of an execution started or ended. The eTag stays the same [S]."""
    if execution.key not in account.executions or execution.stop is Stop.DISCARD:
        return  # the row may belong to a new task with the same id
    node, job, task = execution.node, execution.job, execution.task
    if task is not None:
        if task.group is not None and execution.instance:
            task.group.subtasks[execution.instance - 1]["containerInfo"] = document
        elif task.execution is execution:
            task.container = document
        account.save_task(task)
    elif job is not None:
        visit = job.visits.get(node.key)
        release = execution.kind is ExecutionKind.RELEASE
        info = None if visit is None else visit.release if release else visit.preparation
        if info is not None:
            info["containerInfo"] = document
            account.save_job(job)
    elif node.start_info is not None:
        node.start_info["containerInfo"] = document
        account.save_node(node)


RECENT_TASKS = 10


def disk_full_error(message: str) -> Json:
    """Return the error of a node without disk space."""
    return {"code": nodes.DISK_FULL, "message": message, "errorDetails": []}


def place(account: Account, task: Task, chosen: Sequence[Node], now: datetime) -> Execution:
    """Give a task its slots and begin it, after the job preparation task if there is one.

    An ordinary task gets one node, a multi-instance task all of its nodes, the primary's first.
    """
    dequeue(account, task)
    task.place = (chosen[0].pool.id, chosen[0].id)
    placed = [_occupy(account, task, node, index, now) for index, node in enumerate(chosen)]
    task.execution = placed[0]
    tasks.begin_instances(task, placed)
    for execution in placed:
        job_preparation.begin(account, execution, now)
    return placed[0]


def _occupy(account: Account, task: Task, node: Node, instance: int, now: datetime) -> Execution:
    job = task.job
    key = f"{job.key}/{task.key}/{account.token()}"
    slots = node.pool.slots_per_node if task.exclusive else task.slots
    execution = Execution(
        key, ExecutionKind.TASK, node, job=job, task=task, slots=slots, instance=instance
    )
    account.executions[key] = execution
    job.executions[key] = execution
    node.executions[key] = execution
    node.used_slots += slots
    newest = (job.id, task.id, instance)
    others = [other for other in node.recent if other != newest]
    node.recent = [newest, *others[: RECENT_TASKS - 1]]
    set_node(account, node, NodeState.RUNNING, now)
    return execution


def begun(account: Account, execution: Execution, now: datetime) -> None:
    """Record that the executor has taken over the execution."""
    group = None if execution.task is None else execution.task.group
    if execution.instance:
        tasks.set_subtask(account, execution, "running", now)
    elif execution.kind is ExecutionKind.TASK and (group is None or not group.coordinated):
        tasks.started(account, execution, now)


def ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Handle the end of an execution; `outcome` is None if it never became a process."""
    node, job = execution.node, execution.job
    if execution.key not in account.executions or tasks.instance_stays(account, execution, outcome):
        return
    del account.executions[execution.key]
    node.executions.pop(execution.key, None)
    node.used_slots -= execution.slots
    if job is not None:
        job.executions.pop(execution.key, None)
        account.wake_job(job)
    if execution.kind is ExecutionKind.TASK:
        metering.charge_attempt(execution, outcome, now)
        tasks.instance_ended(account, execution, outcome, now)
        tasks.attempt_ended(account, execution, outcome, now)
        node.tasks_run += 1
        node.tasks_succeeded += int(outcome is not None and outcome.exit_code == 0)
    elif execution.kind is ExecutionKind.PREPARATION:
        job_preparation.preparation_ended(account, execution, outcome, now)
    elif execution.kind is ExecutionKind.RELEASE:
        job_preparation.release_ended(account, execution, outcome, now)
    else:
        nodes.start_task_ended(account, execution, outcome, now)
    if (
        outcome is not None
        and outcome.failure is not None
        and outcome.failure.code == nodes.DISK_FULL
    ):
        message = outcome.failure.message  # the node cannot be used (error checking page)
        nodes.fail(account, node, [disk_full_error(message)], now)
    account.save_node(node)
    if not node.executions:
        nodes.drained(account, node, now)
    else:
        settle_node(account, node, now)
