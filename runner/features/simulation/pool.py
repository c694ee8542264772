"""The nodes of a simulated pool: machines, evictions, spot capacity, and resizes."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import exp

from batch_emulator.domain.chance import chance_key, draw_normal, draw_wait
from runner.features.simulation.result import Timeline
from runner.features.simulation.scenario import MS, Scenario
from runner.features.simulation.tasks import Tasks
from runner.features.simulation.world import (
    CREATING,
    EVICTION,
    LEAVING,
    NODE_STEPS,
    NOTICE_ENDS,
    PREEMPTED,
    READY,
    RETURN,
    STARTING,
    TIMEOUT,
    EventQueue,
    SimulatedNode,
    SlotTime,
)

MAX_NODES = 10_000
_RESIZE_TIMEOUT_MS = 15 * 60 * MS
_MAX_MS = 365 * 86_400_000


class NodePool:
    """The nodes, and the resize that adds or removes them.

    Attributes:
        nodes: The nodes by number, which `tasks` reads.
        counts: The number of nodes by state.
        node_counts, targets, spent: Pairs of spot and dedicated nodes.
        resizing: True during a resize. At its end, `on_steady` is called.
        deallocation: What happens to the tasks of a removed node.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: EventQueue,
        nodes: dict[int, SimulatedNode],
        tasks: Tasks,
        timeline: Timeline,
        on_steady: Callable[[], None],
    ) -> None:
        self._scenario, self._events, self._tasks = scenario, events, tasks
        self._timeline, self._on_steady = timeline, on_steady
        self.nodes = nodes
        self.counts = [0] * 5
        self.node_counts = [0, 0]
        self.targets = [scenario.spot, scenario.dedicated]
        self.spent = (SlotTime(), SlotTime())
        self.evictions = 0
        self.resizing = False
        self.deallocation = "requeue"
        self._resize_ends = -1
        self._leaving = [0, 0]
        self._most = (scenario.most_spot, scenario.most_dedicated)
        self._capacity: int | None = None
        self._returning: set[int] = set()  # numbers of preempted nodes that wait for capacity
        self._noticed = 0  # nodes with a notice that have not left
        self._lives: dict[int, int] = {}
        self._machines = 0
        self._random = random.Random(f"evictions/{scenario.seed}")  # noqa: S311
        # The emulator uses the same keys for the same seed and pool.
        root = random.Random(scenario.seed).getrandbits(64)  # noqa: S311
        self._eviction_key, self._return_key, self._boot_key = (
            chance_key(root, purpose, scenario.pool) for purpose in ("evict", "away", "boot")
        )

    @property
    def spot_held(self) -> int:
        """The number of spot nodes that have a machine."""
        return self.node_counts[0] - self.counts[PREEMPTED]

    def _set_state(self, node: SimulatedNode, state: int) -> None:
        self.counts[node.state] -= 1
        self.counts[state] += 1
        node.state = state

    def _add_nodes(self, count: int, *, spot: bool) -> None:
        first = 1 + max(self.nodes, default=0)
        for number in range(first, first + count):
            spent = self.spent[not spot]
            node = SimulatedNode(number, self._scenario.slots_per_node, spent, spot=spot)
            self.nodes[number] = node
            self.counts[node.state] += 1
            self.node_counts[not spot] += 1
            self._allocate_machine(node)

    def _allocate_machine(self, node: SimulatedNode) -> None:
        """Allocate a machine for a new node, or for one that was evicted."""
        scenario = self._scenario
        node.since, node.ready = self._events.now, -1
        if node.spot:
            node.life = self._lives[node.number] = self._lives.get(node.number, 0) + 1
        node.again = node.machine > 0
        self._machines += 1
        node.machine = self._machines
        self._set_state(node, CREATING)
        boot = scenario.boot_ms
        if scenario.boot_spread:
            drawn = draw_normal(self._boot_key, node.number, node.life)
            boot = int(boot * exp(scenario.boot_spread * drawn))
        self._schedule(boot // 2, NODE_STEPS, node.number, node.machine)
        self._schedule(boot + scenario.start_task_ms, NODE_STEPS, node.number, -node.machine)
        if scenario.evictions_per_hour > 0 and node.spot:
            mean = 3_600_000 / scenario.evictions_per_hour
            wait = draw_wait(self._eviction_key, node.number, node.life, mean)
            self._schedule(min(int(wait), _MAX_MS), EVICTION, node.number, node.machine)

    def _schedule(self, after_ms: int, kind: int, one: int, other: int) -> None:
        self._events.schedule(self._events.now + after_ms, kind, one, other)

    def _find_node(self, number: int, machine: int) -> SimulatedNode | None:
        node = self.nodes.get(number)
        return node if node is not None and node.machine == machine else None

    def step(self, number: int, machine: int) -> None:
        """Advance a node: it starts or, if `machine` is negative, becomes ready for tasks."""
        node = self._find_node(number, abs(machine))
        if node is None:
            pass  # the node is gone or has another machine
        elif machine > 0 and node.state == CREATING:
            self._set_state(node, STARTING)
            if self.resizing or self._returning:
                self.allocate()
        elif machine < 0 and node.state in (CREATING, STARTING):
            self._set_state(node, READY)
            node.ready = self._events.now
            self._tasks.offer(node)
        if self._tasks.waiting:
            # Wait for other nodes that are ready at the same time, so that they share the tasks.
            following = self._events.heap[0] if self._events.heap else (-1, 0, 0)
            if following[0] != self._events.now or following[2] != NODE_STEPS:
                self._tasks.start_waiting()

    def _remove_node(self, node: SimulatedNode) -> None:
        self._clear_notice(node)
        self._returning.discard(node.number)
        drains = self.deallocation in ("taskcompletion", "retaineddata")
        if node.state != PREEMPTED:
            node.record_time(self._events.now, whole=False)
        self._set_state(node, LEAVING)
        self._leaving[not node.spot] += 1
        if not drains:
            self._tasks.interrupt(node, again=self.deallocation == "requeue")
        if not node.running:
            self.delete(node)

    def delete(self, node: SimulatedNode) -> None:
        """Delete a node that runs no task."""
        self._clear_notice(node)
        node.record_time(self._events.now, whole=True)
        self.counts[node.state] -= 1
        self._leaving[not node.spot] -= node.state == LEAVING
        self.node_counts[not node.spot] -= 1
        del self.nodes[node.number]

    def _evictable(self, node: SimulatedNode) -> bool:
        gone = node.state in (LEAVING, PREEMPTED)
        return node.spot and not node.noticed and not gone

    def evict_drawn(self, number: int, machine: int) -> None:
        """Evict a node, as drawn when its machine was allocated."""
        node = self._find_node(number, machine)
        if node is not None and self._evictable(node):
            self._evict(node, self._scenario.notice_ms)

    def _evict(self, node: SimulatedNode, notice_ms: int) -> None:
        if notice_ms > 0:
            node.noticed = True
            self._noticed += 1
            self._schedule(notice_ms, NOTICE_ENDS, node.number, node.machine)
        else:
            self._preempt(node)

    def _clear_notice(self, node: SimulatedNode) -> None:
        self._noticed -= node.noticed
        node.noticed = False

    def end_notice(self, number: int, machine: int) -> None:
        """Evict a node whose notice has ended."""
        node = self._find_node(number, machine)
        if node is not None and node.state not in (LEAVING, PREEMPTED):
            self._preempt(node)

    def _preempt(self, node: SimulatedNode) -> None:
        self.evictions += 1
        self._tasks.interrupt(node, again=True)
        node.record_time(self._events.now, whole=True)
        self._clear_notice(node)
        self._set_state(node, PREEMPTED)
        wait = 0
        if self._scenario.away_ms:
            wait = int(draw_wait(self._return_key, node.number, node.life, self._scenario.away_ms))
        self._schedule(wait, RETURN, node.number, node.machine)
        if self._tasks.waiting:
            self._tasks.start_waiting()
        if self.resizing or self._returning:
            self.allocate()

    def bring_back(self, number: int, machine: int) -> None:
        """Allocate another machine for an evicted node, as soon as there is capacity."""
        node = self._find_node(number, machine)
        if node is None or node.state != PREEMPTED:
            return
        if self._spare_capacity() > 0:
            self._allocate_machine(node)
        else:
            self._returning.add(number)
            self.allocate()

    def _spare_capacity(self) -> int:
        """Return the capacity for additional spot nodes; negative if some must leave."""
        if self._capacity is None:
            return MAX_NODES
        gone = self._leaving[0] + self.counts[PREEMPTED] + self._noticed
        return self._capacity - (self.node_counts[0] - gone)

    def apply_change(self, number: int, _: int) -> None:
        """Apply an entry of the trace: evictions, or another capacity."""
        change = self._scenario.changes[number]
        if change.capacity is not None:
            self._capacity = change.capacity
        count = -self._spare_capacity() if change.capacity is not None else (change.evict or 0)
        if count > 0:
            candidates = [node for node in self.nodes.values() if self._evictable(node)]
            own_s = change.notice_s
            notice = self._scenario.notice_ms if own_s is None else round(own_s * MS)
            for node in self._random.sample(candidates, min(count, len(candidates))):
                self._evict(node, notice)
        self._allocate_returning()
        self.allocate()

    def _allocate_returning(self) -> None:
        room = self._spare_capacity() if self._returning and self._capacity is not None else 0
        for number in sorted(self._returning)[: max(0, room)]:
            self._returning.remove(number)
            self._allocate_machine(self.nodes[number])

    def resize(self, spot: int, dedicated: int) -> None:
        """Begin a resize to these numbers of nodes."""
        self.targets = [spot, dedicated]
        self.resizing = True
        self._resize_ends = self._events.now + _RESIZE_TIMEOUT_MS
        self._events.schedule(self._resize_ends, TIMEOUT, 0, 0)
        self.allocate()

    def time_out(self, _: int, __: int) -> None:
        """End the resize if it has reached its timeout."""
        if self.resizing and self._resize_ends == self._events.now:
            self._end_resize("the resize reached its timeout of 15 minutes")

    def allocate(self) -> None:
        """Continue a resize, or end it."""
        if self._returning:
            self._allocate_returning()
        while self.resizing:
            changed, waits, errors = False, False, ""
            for kind, target in ((1, self.targets[1]), (0, self.targets[0])):
                missing = target - (self.node_counts[kind] - self._leaving[kind])
                if missing == 0:
                    continue
                most = self._most[kind]
                room = max(0, most - self.node_counts[kind]) if most is not None else MAX_NODES
                capacity = MAX_NODES if kind else self._spare_capacity() - len(self._returning)
                count = min(missing, room, capacity)
                waits = waits or capacity < min(missing, room)
                if count > 0:
                    self._add_nodes(count, spot=not kind)
                    changed = True
                elif missing < 0:
                    self._remove_nodes(-missing, spot=not kind)
                    changed = True
                if missing > room:
                    errors = f"the quota allows {most} {'dedicated' if kind else 'spot'} nodes"
            moving = self.counts[CREATING] or self.counts[LEAVING]
            if changed:
                continue
            if not moving and not waits:
                self._end_resize(errors)
            return

    def _remove_nodes(self, count: int, *, spot: bool) -> None:
        # Order: nodes that are not ready, then those with few tasks, then the newest.
        ranks = [
            (((node.state == READY) << 9 | len(node.running)) << 40) - number
            for number, node in self.nodes.items()
            if node.spot is spot and node.state != LEAVING
        ]
        first = sorted(ranks) if count > len(ranks) // 8 else heapq.nsmallest(count, ranks)
        for rank in first[:count]:
            self._remove_node(self.nodes[-rank & ((1 << 40) - 1)])
        if self._tasks.waiting:
            self._tasks.start_waiting()

    def _end_resize(self, error: str) -> None:
        self.resizing = False
        if error:
            self._timeline.add_problem(self._events.now, error)
            young = [n for n in self.nodes.values() if n.state == CREATING and not n.again]
            for node in young:
                self.delete(node)
        self._on_steady()
