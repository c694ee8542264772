"""The containerInfo of whatever runs in a container: a task, a start task, a job's other tasks."""

from __future__ import annotations

from batch_emulator.account import Account
from batch_emulator.model import Execution, Json, Kind, Stop


def show(account: Account, execution: Execution, document: Json) -> None:
    """The container of an execution was started, or ended. Not a change that moves the eTag [S]."""
    if execution.key not in account.executions or execution.stop is Stop.DISCARD:
        return  # its row may be a namesake's by now
    node, job, task = execution.node, execution.job, execution.task
    if task is not None:
        if task.group is not None and execution.instance:
            task.group.subtasks[execution.instance - 1]["containerInfo"] = document
        elif task.execution is execution:
            task.container = document
        account.save_task(task)
    elif job is not None:
        visit = job.visits.get(node.key)
        release = execution.kind is Kind.RELEASE
        info = None if visit is None else visit.release if release else visit.preparation
        if info is not None:
            info["containerInfo"] = document
            account.save_job(job)
    elif node.start_info is not None:
        node.start_info["containerInfo"] = document
        account.save_node(node)
