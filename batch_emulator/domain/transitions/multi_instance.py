"""Multi-instance tasks: one primary and its subtasks, on as many nodes (MPI page of the docs).

Every instance runs the coordination command; when all have succeeded the primary runs the task's
own command, and what the others left running lives until that ends. The first instance that ends
otherwise ends them all, and its end is the task's. Our choices [S]: the task ends when the last
of its instances has gone; until then its subtasks are ended at once, without a grace period.
"""

from __future__ import annotations

from datetime import datetime

from batch_emulator.domain.account import Account, Start
from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.model import Execution, Json, MultiInstance, Stop, Task
from batch_emulator.domain.transitions import tasks
from batch_emulator.domain.transitions.states import stop_execution
from batch_emulator.domain.values import time_text


def begin(task: Task, members: list[Execution]) -> None:
    """A new attempt: nothing is coordinated yet. Does nothing to an ordinary task."""
    group = task.group
    if group is None:
        return
    group.members = members
    group.left = len(members)
    group.waiting = set(range(len(members)))
    group.subtasks = [
        {"id": one.instance, "place": [one.node.pool.id, one.node.id]} for one in members[1:]
    ]


def set_subtask(account: Account, execution: Execution, state: str, now: datetime) -> None:
    """Move a subtask to preparing, running or completed."""
    task = execution.task
    if task is None or task.group is None:
        return
    info = task.group.subtasks[execution.instance - 1]
    if info.get("state") == state:
        return
    if "state" in info:
        info["previousState"] = info["state"]
        info["previousStateTransitionTime"] = info["stateTransitionTime"]
    info["state"] = state
    info["stateTransitionTime"] = time_text(now)
    if state != "preparing":
        info["startTime" if state == "running" else "endTime"] = time_text(now)
    name = f"{task.job.id}/{task.id}/{execution.instance}"
    account.events.add(now, "subtask.state", name, state)
    _save(account, execution)


def _save(account: Account, execution: Execution) -> None:
    """Write the task, unless it was deleted: its row may be a namesake's by now."""
    if execution.task is not None and execution.stop is not Stop.DISCARD:
        account.save_task(execution.task)


def stays(account: Account, execution: Execution, outcome: ExecutionOutcome | None) -> bool:
    """Whether an instance keeps its node: its coordination command is done, its task is not."""
    group = None if execution.task is None else execution.task.group
    if group is None or not execution.coordinating or execution.stop is not None:
        return False
    if outcome is None or outcome.failure is not None or outcome.exit_code != 0:
        return False
    group.waiting.discard(execution.instance)
    if execution.instance:
        group.subtasks[execution.instance - 1]["exitCode"] = outcome.exit_code
        _save(account, execution)
    if not group.waiting:
        group.coordinated = True
        account.effects.append(Start(group.members[0]))
    return True


def ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """One instance has gone: so will the others, and with the last of them the task ends."""
    task = execution.task
    if task is None or task.group is None:
        return
    group = task.group
    group.left -= 1
    if execution.instance == 0:
        group.primary = outcome
    else:
        _close(group.subtasks[execution.instance - 1], execution, outcome)
        set_subtask(account, execution, "completed", now)
    if execution.stop is None and group.end is None:
        group.end = outcome
        for other in group.members:
            if other.key in account.executions:
                stop_execution(account, other, Stop.GROUP)
    _save(account, execution)  # also what it used
    if group.left == 0:
        _settle(account, task, group, now)


def _close(info: Json, execution: Execution, outcome: ExecutionOutcome | None) -> None:
    if info.get("exitCode") == 0:  # its own command was done long ago
        info["result"] = "success"
        return
    if outcome is not None and outcome.exit_code is not None:
        info["exitCode"] = outcome.exit_code
    if execution.stop is not None or outcome is None:
        info["failureInfo"] = tasks.ENDED
    else:
        info["failureInfo"] = tasks.failure_info(outcome)
    info["result"] = "failure"


def _decisive(group: MultiInstance) -> Stop | None:
    """What the attempt comes to: a deletion, the end that came first (None), or what was asked for.

    Who asked for the end of the task while its last instances were going wants no other attempt.
    """
    asked = [one.stop for one in group.members if one.stop not in (None, Stop.GROUP)]
    if Stop.DISCARD in asked:
        return Stop.DISCARD
    if group.end is not None:
        return Stop.TERMINATE if group.end.retryable and Stop.TERMINATE in asked else None
    if Stop.TERMINATE in asked:
        return Stop.TERMINATE
    return asked[0] if asked else None


def _settle(account: Account, task: Task, group: MultiInstance, now: datetime) -> None:
    """The last instance has gone: end the attempt, and the task with it unless it runs again."""
    stop = _decisive(group)
    primary, outcome = group.members[0], group.end or group.primary
    group.members, group.waiting, group.coordinated = [], set(), False
    group.end = group.primary = None
    tasks.settle(account, task, stop, primary, outcome, now)
