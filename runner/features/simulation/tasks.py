"""The tasks of a simulation: which one starts on which node, and what an eviction costs it.

Tasks wait in order of arrival, after those that are repeated. Spread selects the emptiest node,
and pack the fullest one with room; of equal nodes, the lowest number is selected.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from itertools import accumulate

from runner.features.simulation.scenario import Scenario
from runner.features.simulation.world import LEAVING, READY, TASK_ENDS, EventQueue, SimulatedNode


class Tasks:
    """The work of all tasks, the queue, and the nodes with room.

    Attributes:
        left: Work of each task that is not done or not saved.
        longest_from: For each task, the longest duration of it and all later ones; then a zero.
        first_start: The time of the first start of each task, or -1.
        queues: Waiting tasks by slots: repeated ones first, then in order of arrival.
        last_end: The time of the last end of a task, or -1.
    """

    # Without `__slots__`, access to this many attributes is a tenth slower.
    __slots__ = (
        "_attempt", "_buckets", "_checkpoint_ms", "_events", "_nodes", "_only_queue", "_orders",
        "_place", "_save_ms", "_setup_ms", "arrived", "finished", "first_start", "last_end", "left",
        "longest_from", "queues", "repeated", "running", "slots_of", "terminated", "waiting",
    )  # fmt: skip

    def __init__(
        self, scenario: Scenario, events: EventQueue, nodes: Mapping[int, SimulatedNode]
    ) -> None:
        work = scenario.workload
        self._events, self._nodes = events, nodes
        self._setup_ms, self._checkpoint_ms = scenario.setup_ms, scenario.checkpoint_ms
        self._save_ms = scenario.save_ms if scenario.checkpoint_ms else 0
        self.slots_of = work.slots
        self.left = list(work.durations_ms)
        self.longest_from = [*accumulate(reversed([*work.durations_ms, 0]), max)][::-1]
        self.first_start = [-1] * len(work)
        self._attempt = [0] * len(work)
        self._place = [0] * len(work)  # number of the node
        self.arrived = self.waiting = self.running = self.finished = self.terminated = 0
        self.repeated = 0
        self.last_end = -1
        self.queues: dict[int, deque[int]] = {each: deque() for each in sorted(set(work.slots))}
        self._only_queue = self.queues[work.slots[0]] if len(self.queues) == 1 else None
        self._buckets: list[list[int]] = [[] for _ in range(scenario.slots_per_node + 1)]
        free = list(enumerate(self._buckets))  # buckets of nodes by free slots
        self._orders = {
            each: free[each:] if scenario.pack else free[each:][::-1] for each in self.queues
        }

    @property
    def ended(self) -> bool:
        """Whether no task is left."""
        return self.finished + self.terminated == len(self.left)

    def arrive(self) -> None:
        """Start the next task, or let it wait."""
        task = self.arrived
        self.arrived += 1
        slots = self.slots_of[task]
        if self.waiting == 0:
            node = self._take_node(slots)
            if node is not None:
                self._start(task, node)
                return
        self.queues[slots].append(task)
        self.waiting += 1
        if self.waiting > 1 and len(self.queues) > 1:
            self.start_waiting()

    def _start(self, task: int, node: SimulatedNode) -> None:
        now, number = self._events.now, node.number
        node.running[task] = now
        node.free = free = node.free - self.slots_of[task]
        if free:
            heapq.heappush(self._buckets[free], number)
        self.running += 1
        self._attempt[task] = attempt = self._attempt[task] + 1
        if attempt == 1:
            self.first_start[task] = now
        self._place[task] = number
        left = self.left[task]
        end = now + self._setup_ms + left + self._saves(left)
        self._events.schedule(end, TASK_ENDS, task, attempt)

    def _saves(self, work_ms: int) -> int:
        """Return the time of all checkpoints during some work; none is taken at its end."""
        return (work_ms - 1) // (self._checkpoint_ms or 1) * self._save_ms

    def end(self, task: int, attempt: int) -> SimulatedNode | None:
        """End an attempt. Return its node if that leaves the pool and has become empty."""
        if attempt != self._attempt[task]:
            return None  # the attempt was interrupted
        node = self._nodes[self._place[task]]
        slots = self.slots_of[task]
        del node.running[task]
        spent = node.spent
        left = self.left[task]
        spent.setup += (self._setup_ms + self._saves(left)) * slots
        spent.useful += left * slots
        self.running -= 1
        self.finished += 1
        self.last_end = self._events.now
        node.free += slots
        if node.state == READY:
            if self.waiting and self._only_queue is not None:
                # No other node has room, otherwise the task would not wait.
                self.waiting -= 1
                self._start(self._only_queue.popleft(), node)
                return None
            self.offer(node)
            if self.waiting:
                self.start_waiting()
        elif node.state == LEAVING and not node.running:
            return node
        return None

    def longest_left(self) -> int:
        """Return the longest remaining time of a task that waits or arrives later."""
        fresh, longest = self.arrived, 0
        for queue in self.queues.values():
            for task in queue:  # repeated ones are first
                if not self._attempt[task]:
                    fresh = min(fresh, task)
                    break
                longest = max(longest, self.left[task])
        return max(longest, self.longest_from[fresh])

    def offer(self, node: SimulatedNode) -> None:
        """Let a ready node take tasks."""
        heapq.heappush(self._buckets[node.free], node.number)

    def interrupt(self, node: SimulatedNode, *, again: bool) -> None:
        """End all tasks of a node.

        With `again`, they are queued again and continue from their last checkpoints.
        """
        setup, every = self._setup_ms, self._checkpoint_ms
        spent = node.spent
        for task, started in node.running.items():
            slots = self.slots_of[task]
            passed = self._events.now - started
            spent.setup += min(passed, setup) * slots
            worked = max(0, passed - setup)
            saved = worked // (every + self._save_ms) if every and again else 0
            kept = saved * (every or 0)
            spent.useful += kept * slots
            spent.setup += saved * self._save_ms * slots
            spent.lost += (worked - kept - saved * self._save_ms) * slots
            self.left[task] -= kept
            self._attempt[task] += 1  # invalidates the event of its end
            node.free += slots
            self.running -= 1
            if again:
                self.queues[slots].appendleft(task)
                self.waiting += 1
                self.repeated += 1
            else:
                self.terminated += 1
                self.last_end = self._events.now
        node.running.clear()

    def start_waiting(self) -> None:
        """Start waiting tasks, oldest first. A task that fits no node delays those of its size."""
        heads = {slots: queue for slots, queue in self.queues.items() if queue}
        while heads:
            slots, queue = min(heads.items(), key=lambda head: head[1][0])
            node = self._take_node(slots)
            if node is None:
                del heads[slots]
                continue
            self.waiting -= 1
            self._start(queue.popleft(), node)
            if not queue:
                del heads[slots]

    def _take_node(self, slots: int) -> SimulatedNode | None:
        """Return the node for a task and remove it from its bucket; None if no node has room."""
        nodes, pop = self._nodes, heapq.heappop
        for free, bucket in self._orders[slots]:
            while bucket:
                node = nodes.get(pop(bucket))
                if node is not None and node.free == free and node.state == READY:
                    return node
        return None

    def count_running(self, node: SimulatedNode) -> None:
        """Count the work of tasks that run when the simulation ends as useful."""
        spent, setup = node.spent, self._setup_ms
        for task, started in node.running.items():
            passed = self._events.now - started
            worked = max(0, passed - setup)
            saves = min(worked, self._saves(worked)) if worked else 0
            spent.setup += (min(passed, setup) + saves) * self.slots_of[task]
            spent.useful += (worked - saves) * self.slots_of[task]
