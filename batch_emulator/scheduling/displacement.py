"""Running tasks that make room for those of a job of higher priority.

Only jobs with allowTaskPreemption give way, and only to a higher priority (docs). Our choices [S]:
the lowest priority first, then the youngest tasks, as few as make room on one node; they are
requeued as by request, which counts; an exclusive job manager task and a multi-
instance task displace nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from batch_emulator.account import Account
from batch_emulator.model import Execution, Job, Kind, Node, Pool, Task
from batch_emulator.scheduling.actions import Displace
from batch_emulator.transitions import preparation


def displace(account: Account, pool: Pool) -> Iterator[Displace]:
    """Whom to end so that tasks that wait for slots get them; nothing could be placed just now."""
    givers = [
        j for j in account.preemptible.values() if j.executions and account.pool_of(j) is pool
    ]
    if not givers or not pool.waiting:
        return
    lowest = min(job.priority for job in givers)
    room = _Room(pool)
    for job in sorted(pool.waiting.values(), key=lambda job: (-job.priority, job.order)):
        if job.priority > lowest:
            yield from _make_room(job, room)


def _make_room(job: Job, room: _Room) -> Iterator[Displace]:
    left = job.max_parallel - job.tasks.running if job.max_parallel > 0 else None
    queues = (queue.values() for queue in job.queues.values())
    waiting = heapq.merge(*queues, key=lambda task: task.order)
    for task in islice(waiting, None if left is None else max(0, left)):
        alone = task.exclusive or task.group is not None
        victims = None if alone else room.take(task)
        if victims is None:
            return
        yield from map(Displace, victims)


class _Room:
    """Slots of each node that are free or about to be, and who could give more."""

    def __init__(self, pool: Pool) -> None:
        self._nodes = [node for node in pool.nodes.values() if node.open]
        self._coming: dict[str, int] = {}
        self._givers: dict[str, list[Execution]] = {}
        for node in self._nodes:
            running = [e for e in node.executions.values() if e.kind is Kind.TASK]
            ending = sum(e.slots for e in running if e.stop is not None)
            self._coming[node.key] = node.free_slots + ending
            self._givers[node.key] = sorted(filter(_gives, running), key=_loss)

    def take(self, task: Task) -> list[Execution] | None:
        """Whom to end for the task: nobody where slots are coming; None when it cannot be."""
        wants_dedicated = task.wants is not None and task.wants.dedicated
        best: tuple[Node, list[Execution]] | None = None
        for node in self._nodes:
            if not preparation.eligible(task.job, node) or (wants_dedicated and not node.dedicated):
                continue
            victims = self._victims(node, task)
            if victims is not None and (best is None or _price(victims) < _price(best[1])):
                best = (node, victims)
        if best is None:
            return None
        node, victims = best
        self._coming[node.key] += sum(e.slots for e in victims) - task.slots
        self._givers[node.key] = [e for e in self._givers[node.key] if e not in victims]
        return victims

    def _victims(self, node: Node, task: Task) -> list[Execution] | None:
        chosen: list[Execution] = []
        slots = self._coming[node.key]
        for execution in self._givers[node.key]:
            if slots >= task.slots:
                break
            if execution.job is not None and execution.job.priority < task.job.priority:
                chosen.append(execution)
                slots += execution.slots
        return chosen if slots >= task.slots else None


def _gives(execution: Execution) -> bool:
    job = execution.job
    return execution.stop is None and job is not None and bool(job.spec.get("allowTaskPreemption"))


def _loss(execution: Execution) -> tuple[int, int]:
    """Lowest priority first, then who came last."""
    job, task = execution.job, execution.task
    return (job.priority if job else 0, -(task.order if task else 0))


def _price(victims: list[Execution]) -> tuple[int, int]:
    return max((e.job.priority for e in victims if e.job), default=-10_000), len(victims)
