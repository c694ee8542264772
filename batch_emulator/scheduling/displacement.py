"""Running tasks that make room for those of a job of higher priority.

Only jobs with allowTaskPreemption give way, and only to a higher priority (docs). Our choices [S]:
the lowest priority first, then the youngest tasks, as few as make room on one node; they are
requeued as by request, which counts; an exclusive job manager task and a multi-
instance task displace nobody. Until the last of them has gone, what is free on the node is kept
from lower priorities: else their tasks would come back, and be displaced again, for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from batch_emulator.account import Account
from batch_emulator.model import Execution, Job, Kind, Node, Pool, Task
from batch_emulator.scheduling.actions import Displace
from batch_emulator.transitions import preparation


def lowest_giver(account: Account, pool: Pool) -> int | None:
    """The lowest priority of whoever gives way on the pool, now or once it runs there again."""
    givers = (
        job.priority
        for job in account.preemptible.values()
        if (job.executions or job.key in pool.waiting) and account.pool_of(job) is pool
    )
    return min(givers, default=None)


class Room:
    """Slots of each node that are free or about to be, and who could give more.

    `free` tells the slots of a node that are left to hand out, `hold` takes them all away.
    """

    def __init__(
        self, pool: Pool, free: Callable[[Node], int], hold: Callable[[Node], int]
    ) -> None:
        self._free, self._hold = free, hold
        self._nodes = [node for node in pool.nodes.values() if node.open]
        self._coming: dict[str, int] = {}
        self._givers: dict[str, list[Execution]] = {}
        for node in self._nodes:
            running = [e for e in node.executions.values() if e.kind is Kind.TASK]
            self._coming[node.key] = sum(e.slots for e in running if e.stop is not None)
            self._givers[node.key] = sorted(filter(_gives, running), key=_loss)

    def make(self, job: Job, placed: set[str]) -> Iterator[Displace]:
        """Whom to end so that the tasks of the job that wait get slots.

        `placed` are the keys of those that have just got some.
        """
        left = job.max_parallel - job.tasks.running - len(placed) if job.max_parallel > 0 else None
        queues = (queue.values() for queue in job.queues.values())
        queued = heapq.merge(*queues, key=lambda task: task.order)
        waiting = (task for task in queued if task.key not in placed)
        for task in islice(waiting, None if left is None else max(0, left)):
            alone = task.exclusive or task.group is not None
            victims = None if alone else self._take(task)
            if victims is None:
                return
            yield from map(Displace, victims)

    def _take(self, task: Task) -> list[Execution] | None:
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
        self._coming[node.key] += self._hold(node) + sum(e.slots for e in victims) - task.slots
        self._givers[node.key] = [e for e in self._givers[node.key] if e not in victims]
        return victims

    def _victims(self, node: Node, task: Task) -> list[Execution] | None:
        chosen: list[Execution] = []
        slots = self._free(node) + self._coming[node.key]
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
