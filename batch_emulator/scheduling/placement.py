"""Which task gets slots on which node."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from batch_emulator.model import Job, Node, Pool, PoolState
from batch_emulator.scheduling.actions import Action, Place
from batch_emulator.transitions import preparation


class _Free:
    """The free slots of a pool while `decide` hands them out, without touching the nodes.

    Spread takes the emptiest node first, pack the fullest that still fits (docs: nodeFillType).
    """

    def __init__(self, pool: Pool) -> None:
        sign = 1 if pool.pack else -1
        self._sign = sign
        self._heap = [
            (sign * node.free_slots, node.number, node) for node in pool.available.values()
        ]
        heapq.heapify(self._heap)

    def take(self, slots: int, job: Job) -> Node | None:
        """The node for a task of that many slots, None when no node has them."""
        aside: list[tuple[int, int, Node]] = []
        found: Node | None = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            free = entry[0] * self._sign
            if free >= slots and preparation.eligible(job, entry[2]):
                found = entry[2]
                if free > slots:
                    aside.append((self._sign * (free - slots), entry[1], found))
                break
            aside.append(entry)
            if free < slots and self._sign < 0:
                break  # the emptiest has too few
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found

    @property
    def empty(self) -> bool:
        """Whether nothing is left to hand out."""
        return not self._heap


def place(pool: Pool) -> Iterator[Action]:
    """Hand out free slots, jobs of the highest priority first."""
    if not pool.waiting or not pool.available or pool.state is PoolState.DELETING:
        return
    free = _Free(pool)
    for job in sorted(pool.waiting.values(), key=lambda job: (-job.priority, job.order)):
        yield from _place_job(job, free)
        if free.empty:
            return


def _place_job(job: Job, free: _Free) -> Iterator[Action]:
    """Hand out slots to one job, oldest task first.

    Tasks that fit nowhere hold up only those that need as many slots [S].
    """
    left = job.max_parallel - job.tasks.running if job.max_parallel > 0 else 1_000_000_000
    rest = {slots: iter(queue.values()) for slots, queue in job.queues.items()}
    heads = {slots: next(tasks) for slots, tasks in rest.items()}
    while left > 0 and heads and not free.empty:
        slots, task = min(heads.items(), key=lambda head: head[1].order)
        node = free.take(slots, job)
        following = None if node is None else next(rest[slots], None)
        if node is not None:
            left -= 1
            yield Place(task, node)
        if following is None:
            del heads[slots]
        else:
            heads[slots] = following
