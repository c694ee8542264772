"""Which task gets slots on which node, and which running tasks make room for those of higher
priority.

Only tasks of jobs with allowTaskPreemption make room, and only for a higher priority (docs). Our
choices [S]:

- The tasks of the lowest priority are displaced first, then the youngest tasks, as few as needed on
  one node. They are requeued as by a request, which counts.
- An exclusive job manager task and a multi-instance task do not displace other tasks.
- Until the last displaced task has ended, lower priorities get no free slots of that node.
  Otherwise the displaced tasks would return and be displaced again and again.

Start in `choose_placements`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from batch_emulator.domain.account import Account
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Job,
    Node,
    PlacementWishes,
    Pool,
    PoolState,
    Task,
)
from batch_emulator.domain.transitions import job_preparation
from batch_emulator.scheduling.actions import Action, Displace, PlaceMultiInstance, PlaceTask


def lowest_preemptible_priority(account: Account, pool: Pool) -> int | None:
    """Return the lowest priority of preemptible jobs that run or wait on the pool, or None."""
    priorities = (
        job.priority
        for job in account.preemptible.values()
        if (job.executions or job.key in pool.waiting) and account.pool_of(job) is pool
    )
    return min(priorities, default=None)


class Displacement:
    """Choose running tasks that make room for tasks of higher priority.

    `free` returns the slots of a node that are left to hand out; `hold` takes them all and returns
    their number.
    """

    def __init__(
        self, pool: Pool, free: Callable[[Node], int], hold: Callable[[Node], int]
    ) -> None:
        self._free, self._hold = free, hold
        self._nodes = [node for node in pool.nodes.values() if node.open]
        self._coming: dict[str, int] = {}  # slots of executions that are being ended, by node
        self._preemptible: dict[str, list[Execution]] = {}
        for node in self._nodes:
            running = [e for e in node.executions.values() if e.kind is ExecutionKind.TASK]
            self._coming[node.key] = sum(e.slots for e in running if e.stop is not None)
            self._preemptible[node.key] = sorted(
                filter(_is_preemptible, running), key=_displacement_order
            )

    def decide(self, job: Job, placed: set[str]) -> Iterator[Displace]:
        """Yield the executions to end so that waiting tasks of the job get slots.

        Args:
            job: the job of higher priority.
            placed: keys of its tasks that just got slots.
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
        """Return the executions to end for the task, None if it cannot fit on any node.

        The list is empty if enough slots are about to become free.
        """
        wants_dedicated = task.wants is not None and task.wants.dedicated
        best: tuple[Node, list[Execution]] | None = None
        for node in self._nodes:
            if not job_preparation.eligible(task.job, node) or (
                wants_dedicated and not node.dedicated
            ):
                continue
            victims = self._victims(node, task)
            if victims is not None and (best is None or _cost(victims) < _cost(best[1])):
                best = (node, victims)
        if best is None:
            return None
        node, victims = best
        self._coming[node.key] += self._hold(node) + sum(e.slots for e in victims) - task.slots
        self._preemptible[node.key] = [e for e in self._preemptible[node.key] if e not in victims]
        return victims

    def _victims(self, node: Node, task: Task) -> list[Execution] | None:
        chosen: list[Execution] = []
        slots = self._free(node) + self._coming[node.key]
        for execution in self._preemptible[node.key]:
            if slots >= task.slots:
                break
            if execution.job is not None and execution.job.priority < task.job.priority:
                chosen.append(execution)
                slots += execution.slots
        return chosen if slots >= task.slots else None


def _is_preemptible(execution: Execution) -> bool:
    job = execution.job
    return execution.stop is None and job is not None and bool(job.spec.get("allowTaskPreemption"))


def _displacement_order(execution: Execution) -> tuple[int, int]:
    """Order executions by priority, lowest first, then youngest first."""
    job, task = execution.job, execution.task
    return (job.priority if job else 0, -(task.order if task else 0))


def _cost(victims: list[Execution]) -> tuple[int, int]:
    return max((e.job.priority for e in victims if e.job), default=-10_000), len(victims)


class _FreeSlots:
    """The free slots of a pool while `decide` hands them out, without a change to the nodes.

    Spread takes the emptiest node first, pack the fullest that still fits (docs: nodeFillType).
    """

    def __init__(self, pool: Pool) -> None:
        sign = 1 if pool.pack else -1
        self._sign = sign
        self._pool = pool
        self._left: dict[str, int] = {}  # free slots of nodes that lost some, by key
        self._heap = [
            (sign * node.free_slots, node.number, node) for node in pool.available.values()
        ]
        heapq.heapify(self._heap)

    def take(self, task: Task) -> Node | None:
        """Take slots for a task. Return its node, or None if no node has room for it now."""
        wants = task.wants
        node = None
        if wants is not None and wants.node is not None:
            node = self._preferred(task, wants.node)
        if wants is not None and wants.manager:
            node = self._find_for_manager(task, wants)
        elif node is None:
            return self._any(task.slots, task.job)
        if node is not None:
            used = node.pool.slots_per_node if task.exclusive else task.slots
            self._give(node, self.left(node) - used)
        return node

    def left(self, node: Node) -> int:
        """Return the slots of the node that are left to hand out."""
        return self._left.get(node.key, node.free_slots)

    def _give(self, node: Node, left: int) -> None:
        self._left[node.key] = left
        if left > 0:
            heapq.heappush(self._heap, (self._sign * left, node.number, node))

    def hold(self, node: Node) -> int:
        """Hand out no more slots of the node; return the number that was left."""
        left = self.left(node)
        self._left[node.key] = 0
        return left

    def _preferred(self, task: Task, key: str) -> Node | None:
        """Return the node that the task has an affinity to: only a hint (docs:
        AffinityInformation).
        """
        node = self._pool.available.get(key)
        fits = node is not None and self.left(node) >= task.slots
        return (
            node if node is not None and fits and job_preparation.eligible(task.job, node) else None
        )

    def _find_for_manager(self, task: Task, wants: PlacementWishes) -> Node | None:
        def fits(node: Node) -> bool:
            free = self.left(node)
            empty = free == node.pool.slots_per_node
            dedicated = node.dedicated or not wants.dedicated
            room = free >= task.slots and (empty or not wants.exclusive)
            return room and dedicated and job_preparation.eligible(task.job, node)

        fitting = filter(fits, self._pool.available.values())
        return min(fitting, key=lambda n: (self._sign * self.left(n), n.number), default=None)

    def _any(self, slots: int, job: Job) -> Node | None:
        aside: list[tuple[int, int, Node]] = []
        found: Node | None = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            free = entry[0] * self._sign
            if self._left.get(entry[2].key, free) != free:
                continue  # stale entry: slots were taken without the heap
            if free >= slots and job_preparation.eligible(job, entry[2]):
                found = entry[2]
                self._left[found.key] = free - slots
                if free > slots:
                    aside.append((self._sign * (free - slots), entry[1], found))
                break
            aside.append(entry)
            if free < slots and self._sign < 0:
                break  # the emptiest has too few
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found

    def take_group(self, task: Task) -> tuple[Node, ...]:
        """Reserve up to `instances` nodes for a multi-instance task and return them."""
        chosen = sorted(
            (
                node
                for node in self._pool.available.values()
                if self.left(node) >= task.slots and job_preparation.eligible(task.job, node)
            ),
            key=lambda node: node.number,
        )[: task.instances]
        for node in chosen:
            self._left[node.key] = self.left(node) - task.slots
        return tuple(chosen)

    @property
    def empty(self) -> bool:
        """Return True if nothing is left to hand out."""
        return not self._heap


def choose_placements(account: Account, pool: Pool) -> Iterator[Action]:
    """Yield placements, jobs of the highest priority first, and displacements that make room for
    them.
    """
    if not pool.waiting or pool.state is PoolState.DELETING:
        return
    lowest = lowest_preemptible_priority(account, pool)
    if lowest is None and not pool.available:
        return
    free = _FreeSlots(pool)
    displacement: Displacement | None = None
    for job in sorted(pool.waiting.values(), key=lambda job: (-job.priority, job.order)):
        placed: set[str] = set()
        for action in _place_job(pool, job, free):
            placed.add(action.task.key)
            yield action
        if lowest is not None and job.priority > lowest:
            displacement = displacement or Displacement(pool, free.left, free.hold)
            yield from displacement.decide(job, placed)
        elif free.empty:
            return


def _place_job(pool: Pool, job: Job, free: _FreeSlots) -> Iterator[PlaceTask | PlaceMultiInstance]:
    """Hand out slots to one job, oldest task first.

    A task that fits on no node delays only tasks that need as many slots [S]. If a multi-instance
    task finds too few free nodes, it reserves them against later tasks [S], and starts when enough
    other tasks have ended. So later tasks cannot delay it for ever, and two such tasks cannot hold
    half of the nodes each. It reserves no nodes if the pool has fewer nodes than it needs.
    """
    left = job.max_parallel - job.tasks.running if job.max_parallel > 0 else 1_000_000_000
    rest = {key: iter(queue.values()) for key, queue in job.queues.items()}
    heads = {key: next(tasks) for key, tasks in rest.items()}
    while left > 0 and heads and not free.empty:
        key, task = min(heads.items(), key=lambda head: head[1].order)
        action = _place_one(task, free) if task.group is None else _place_group(pool, task, free)
        following = None if action is None else next(rest[key], None)
        if action is not None:
            left -= 1
            yield action
        if following is None:
            del heads[key]
        else:
            heads[key] = following


def _place_one(task: Task, free: _FreeSlots) -> PlaceTask | None:
    node = free.take(task)
    return None if node is None else PlaceTask(task, node)


def _place_group(pool: Pool, task: Task, free: _FreeSlots) -> PlaceMultiInstance | None:
    if not pool.runs_groups:
        return None
    working = sum(
        node.open and job_preparation.eligible(task.job, node) for node in pool.nodes.values()
    )
    if working < task.instances:
        return None
    nodes = free.take_group(task)
    return PlaceMultiInstance(task, nodes) if len(nodes) == task.instances else None
