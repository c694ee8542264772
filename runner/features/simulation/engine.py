"""Simulate one pool event by event, by the rules of the emulator's scheduler.

The rules (which node gets a task, which nodes leave first, when a formula is evaluated and which
samples it reads) are those of `batch_emulator.scheduling` and `batch_emulator.domain.transitions`.
They are implemented again because the emulator updates a document for each node and task, which
takes a thousand times as long. `test_emulator_agrees.py` compares both.

Node time counts from allocation until the node is gone, without the time in which an evicted node
has no machine.
"""

from __future__ import annotations

import heapq
import random
import re
from collections import deque
from datetime import timedelta
from math import exp

from batch_emulator.autoscale.evaluate import Inputs, evaluate
from batch_emulator.autoscale.samples import PERIOD, TICKS_PER_SECOND, SampleHistory
from batch_emulator.autoscale.scope import METRIC_ALIASES
from batch_emulator.autoscale.values import FormulaSyntaxError, FormulaTooLongError, Timestamp
from batch_emulator.domain.chance import chance_key, draw_normal, draw_wait
from runner.features.simulation.result import Moment, SimulationProblem, SimulationResult
from runner.features.simulation.scenario import MS, Scenario, ScenarioError, SimulatedPool

_SAMPLE_MS = 30 * MS
_TICKS_PER_MS = TICKS_PER_SECOND // MS
_RESIZE_TIMEOUT_MS = 15 * 60 * MS
_MAX_NODES = 10_000
_MAX_EVENTS = 10_000_000
_MAX_MOMENTS = 4096  # the timeline is thinned out if it has more entries
_MAX_PROBLEMS = 100
_MAX_MS = 365 * 86_400_000


# Kinds of events (indexes of their handlers) and states of nodes. Plain numbers, because an
# enumeration would take a fifth of the time.
_TASK_ENDS, _NODE_STEPS, _TRACE, _EVICTION, _NOTICE_ENDS, _RETURN, _TIMEOUT, _EVALUATION = range(8)
_CREATING, _STARTING, _READY, _LEAVING, _PREEMPTED = range(5)


class _Node:
    """One node. `since` is when its machine was allocated, `ready` when it took its first task."""

    __slots__ = (
        "again", "free", "life", "machine", "noticed", "number", "ready", "running", "since",
        "spent", "spot", "state",
    )  # fmt: skip

    def __init__(self, number: int, slots: int, spent: _SlotTime, *, spot: bool) -> None:
        self.number = number
        self.spot = spot
        self.spent = spent  # number among all nodes of its kind
        self.free = slots
        self.state = _CREATING
        self.life = 0  # number of machines that this node has had, including the current one
        self.machine = 0  # unique number of the machine
        self.noticed = False
        self.since = 0
        self.ready = -1
        self.again = False  # it had another machine before
        self.running: dict[int, int] = {}  # running tasks and their start times


class _SlotTime:
    """Slot time of one price class, in milliseconds."""

    __slots__ = ("boot", "lost", "ready", "setup", "useful")

    def __init__(self) -> None:
        self.boot = self.setup = self.useful = self.lost = self.ready = 0


def simulate(scenario: Scenario) -> SimulationResult:
    """Run a scenario to its end.

    Raises:
        ScenarioError: a task needs more slots than a node has, or the formula is invalid.
    """
    workload, slots = scenario.workload, scenario.slots_per_node
    if len(workload) and max(workload.slots) > slots:
        most = max(workload.slots)
        raise ScenarioError(
            f"a task needs {most} slots, but a node has {slots}, so it would never start"
        )
    try:
        return _Simulation(scenario).run()
    except (FormulaSyntaxError, FormulaTooLongError) as err:
        raise ScenarioError(f"{err.message} {err.detail(scenario.formula or '')}") from err


class _Simulation:
    # Without `__slots__`, access to this many attributes is a tenth slower.
    __slots__ = (
        "_recorded_ms", "arrivals", "arrived", "attempt", "boot_key", "buckets", "capacity",
        "counts", "deallocation", "due", "durations", "epoch_ticks", "evaluations", "events",
        "eviction_key", "eviction_rng", "evictions", "finished", "first_start", "heap", "history",
        "last_end", "leaving", "left", "lives", "machines", "measured", "most", "next_sample",
        "node_counts", "nodes", "noticed", "now", "only_queue", "orders", "place", "problems",
        "queues", "random", "repeated", "resize_ends", "resizing", "return_key", "returning",
        "running", "save_ms", "scaled", "scenario", "sequence", "setup_ms", "slots_of", "spacing",
        "spent", "targets", "tasks", "terminated", "timeline", "total", "waiting",
    )  # fmt: skip

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        work = scenario.workload
        self.arrivals, self.slots_of = work.arrivals_ms, work.slots
        self.setup_ms = scenario.setup_ms
        self.save_ms = scenario.save_ms if scenario.checkpoint_ms else 0
        self.scaled = scenario.formula is not None or scenario.policy is not None
        self.durations, self.tasks, self.total = work.durations_ms, len(work), work.slot_ms
        self.left = list(work.durations_ms)  # work that is not done or not saved, by task
        self.attempt = [0] * len(work)
        self.place = [0] * len(work)  # number of the node
        self.first_start: list[int] = [-1] * len(work)
        self.arrived = 0
        # Waiting tasks by slots: repeated ones first, then in order of arrival.
        self.queues: dict[int, deque[int]] = {each: deque() for each in sorted(set(work.slots))}
        self.waiting = self.running = self.finished = self.terminated = self.evictions = 0
        self.repeated = 0
        self.last_end = -1
        self.nodes: dict[int, _Node] = {}
        self.buckets: list[list[int]] = [[] for _ in range(scenario.slots_per_node + 1)]
        self.orders = {each: self._bucket_order(each) for each in self.queues}
        self.counts = [0] * 5
        self.node_counts = [0, 0]  # spot and dedicated nodes
        self.leaving = [0, 0]
        self.targets = [scenario.spot, scenario.dedicated]
        self.most = (scenario.most_spot, scenario.most_dedicated)
        self.spent = (_SlotTime(), _SlotTime())
        self.capacity: int | None = None
        self.returning: set[int] = set()  # numbers of preempted nodes that wait for capacity
        self.noticed = 0  # nodes with a notice that have not left
        self.lives: dict[int, int] = {}
        self.resizing = False
        self.resize_ends = -1
        self.deallocation = "requeue"
        self.only_queue = self.queues[work.slots[0]] if len(self.queues) == 1 else None
        self.heap: list[tuple[int, int, int, int, int]] = []
        self.sequence = 0
        self.now = 0
        self.events = 0
        self.evaluations = self.machines = 0
        self.due: int | None = None
        self.random = random.Random(f"formula/{scenario.seed}")  # noqa: S311
        self.eviction_rng = random.Random(f"evictions/{scenario.seed}")  # noqa: S311
        # The emulator uses the same keys for the same seed and pool.
        root, pool = random.Random(scenario.seed).getrandbits(64), scenario.pool  # noqa: S311
        self.eviction_key, self.return_key, self.boot_key = (
            chance_key(root, purpose, pool) for purpose in ("evict", "away", "boot")
        )
        self.history, self.measured = _history(scenario.formula or "")
        self.next_sample = 0
        self.epoch_ticks = Timestamp.of(scenario.start).ticks
        self.timeline: list[Moment] = []
        self.spacing = 1
        self.problems: list[SimulationProblem] = []

    # -- the loop

    def run(self) -> SimulationResult:
        self._begin()
        arrivals, heap, handlers = iter(self.arrivals), self.heap, self._handlers
        horizon, most, pop = self.scenario.horizon_ms, _MAX_EVENTS, heapq.heappop
        never = horizon + 1
        arrival = next(arrivals, never)
        scaled, events = self.scenario.formula is not None, 0
        note = self._recorded_ms + self.spacing
        while True:
            event = heap[0][0] if heap else never
            now = arrival if arrival <= event else event
            if now > horizon or (self.running == 0 == self.waiting and self._is_over()):
                break
            self.now = now
            if scaled and self.next_sample <= now:  # the metrics are constant until the event
                self._record_samples((now - self.next_sample) // _SAMPLE_MS + 1)
            events += 1
            if events > most:
                self._record_problem(f"the simulation stopped after {most:,} events")
                break
            if arrival < event:
                self._arrive()
                arrival = next(arrivals, never)
            else:
                _, _, kind, one, other = pop(heap)
                handlers[kind](self, one, other)
            if now >= note:
                self._record_moment()
                note = now + self.spacing
        self.events = events
        return self._result(min(horizon, self.now))

    def _begin(self) -> None:
        scenario = self.scenario
        self._recorded_ms = -1
        for number, change in enumerate(scenario.changes):
            if change.time_ms > 0:
                self._schedule(change.time_ms, _TRACE, number, 0)
            else:
                self._apply_change(number, 0)
        if not self.scaled:
            self._begin_resize(scenario.spot, scenario.dedicated)
        else:
            self._schedule(0, _EVALUATION, 0, 0)

    def _is_over(self) -> bool:
        """Return True if all tasks have ended and nothing can change any more."""
        if self.finished + self.terminated < len(self.attempt):
            return False
        if not self.scaled:
            return True
        # Give the formula a day to remove the nodes.
        return not self.nodes or self.now > max(self.last_end, self.arrivals[-1]) + 86_400_000

    def _schedule(self, time: int, kind: int, one: int, other: int) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (time, self.sequence, kind, one, other))

    # -- tasks

    def _arrive(self) -> None:
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
            self._start_waiting()

    def _start(self, task: int, node: _Node) -> None:
        now, number = self.now, node.number
        node.running[task] = now
        node.free = free = node.free - self.slots_of[task]
        if free:
            heapq.heappush(self.buckets[free], number)
        self.running += 1
        self.attempt[task] = attempt = self.attempt[task] + 1
        if attempt == 1:
            self.first_start[task] = now
        self.sequence = sequence = self.sequence + 1
        self.place[task] = number
        end = now + self.setup_ms + self.left[task]
        if self.save_ms:
            end += self._saves(self.left[task])
        heapq.heappush(self.heap, (end, sequence, _TASK_ENDS, task, attempt))

    def _saves(self, work_ms: int) -> int:
        """Return the time of all checkpoints during some work; none is taken at its end."""
        return (work_ms - 1) // (self.scenario.checkpoint_ms or 1) * self.save_ms

    def _task_ends(self, task: int, attempt: int) -> None:
        if attempt != self.attempt[task]:
            return  # the attempt was interrupted
        node = self.nodes[self.place[task]]
        slots = self.slots_of[task]
        del node.running[task]
        spent = node.spent
        spent.setup += self.setup_ms * slots
        if self.save_ms:
            spent.setup += self._saves(self.left[task]) * slots
        spent.useful += self.left[task] * slots
        self.running -= 1
        self.finished += 1
        self.last_end = self.now
        node.free += slots
        if node.state == _READY:
            if self.waiting and self.only_queue is not None:
                # No other node has room, otherwise the task would not wait.
                self.waiting -= 1
                self._start(self.only_queue.popleft(), node)
                return
            heapq.heappush(self.buckets[node.free], node.number)
            if self.waiting:
                self._start_waiting()
        elif node.state == _LEAVING and not node.running:
            self._delete_node(node)
            self._allocate()

    def _interrupt_tasks(self, node: _Node, *, again: bool) -> None:
        """End all tasks of a node.

        With `again`, they are queued again and continue from their last checkpoints.
        """
        setup, every = self.setup_ms, self.scenario.checkpoint_ms
        spent = node.spent
        for task, started in node.running.items():
            slots = self.slots_of[task]
            passed = self.now - started
            spent.setup += min(passed, setup) * slots
            worked = max(0, passed - setup)
            saved = worked // (every + self.save_ms) if every and again else 0
            kept = saved * (every or 0)
            spent.useful += kept * slots
            spent.setup += saved * self.save_ms * slots
            spent.lost += (worked - kept - saved * self.save_ms) * slots
            self.left[task] -= kept
            self.attempt[task] += 1  # invalidates the event of its end
            node.free += slots
            self.running -= 1
            if again:
                self.queues[slots].appendleft(task)
                self.waiting += 1
                self.repeated += 1
            else:
                self.terminated += 1
                self.last_end = self.now
        node.running.clear()

    def _start_waiting(self) -> None:
        """Start waiting tasks, oldest first. A task that fits no node delays those of its size."""
        if self.only_queue is not None:
            self._start_only_queue(self.only_queue)
            return
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

    def _start_only_queue(self, queue: deque[int]) -> None:
        """Start waiting tasks that all need the same number of slots."""
        slots = self.slots_of[0]
        while queue:
            node = self._take_node(slots)
            if node is None:
                return
            self.waiting -= 1
            self._start(queue.popleft(), node)

    def _take_node(self, slots: int) -> _Node | None:
        """Return the node for a task and remove it from its bucket; None if no node has room.

        Spread selects the emptiest node, and pack the fullest one with room. Of equal nodes, the
        lowest number is selected.
        """
        nodes, pop = self.nodes, heapq.heappop
        for free, bucket in self.orders[slots]:
            while bucket:
                node = nodes.get(pop(bucket))
                if node is not None and node.free == free and node.state == _READY:
                    return node
        return None

    def _bucket_order(self, slots: int) -> list[tuple[int, list[int]]]:
        """Return the buckets to search for a node, with their free slots."""
        found = list(enumerate(self.buckets))[slots:]
        return found if self.scenario.pack else found[::-1]

    # -- nodes

    def _set_state(self, node: _Node, state: int) -> None:
        self.counts[node.state] -= 1
        self.counts[state] += 1
        node.state = state

    def _add_nodes(self, count: int, *, spot: bool) -> None:
        first = 1 + max(self.nodes, default=0)
        for number in range(first, first + count):
            spent = self.spent[not spot]
            node = _Node(number, self.scenario.slots_per_node, spent, spot=spot)
            self.nodes[number] = node
            self.counts[node.state] += 1
            self.node_counts[not spot] += 1
            self._allocate_machine(node)

    def _allocate_machine(self, node: _Node) -> None:
        """Allocate a machine for a new node, or for one that was evicted."""
        scenario = self.scenario
        node.since, node.ready = self.now, -1
        if node.spot:
            node.life = self.lives[node.number] = self.lives.get(node.number, 0) + 1
        node.again = node.machine > 0
        self.machines += 1
        node.machine = self.machines
        self._set_state(node, _CREATING)
        boot = scenario.boot_ms
        if scenario.boot_spread:
            drawn = draw_normal(self.boot_key, node.number, node.life)
            boot = int(boot * exp(scenario.boot_spread * drawn))
        self._schedule(self.now + boot // 2, _NODE_STEPS, node.number, node.machine)
        self._schedule(
            self.now + boot + scenario.start_task_ms, _NODE_STEPS, node.number, -node.machine
        )
        if scenario.evictions_per_hour > 0 and node.spot:
            mean = 3_600_000 / scenario.evictions_per_hour
            wait = draw_wait(self.eviction_key, node.number, node.life, mean)
            due = self.now + min(int(wait), _MAX_MS)
            self._schedule(due, _EVICTION, node.number, node.machine)

    def _find_node(self, number: int, machine: int) -> _Node | None:
        node = self.nodes.get(number)
        return node if node is not None and node.machine == machine else None

    def _step(self, number: int, machine: int) -> None:
        """Advance a node: it starts or, if `machine` is negative, becomes ready for tasks."""
        node = self._find_node(number, abs(machine))
        if node is None:
            pass  # the node is gone or has another machine
        elif machine > 0 and node.state == _CREATING:
            self._set_state(node, _STARTING)
            if self.resizing or self.returning:
                self._allocate()
        elif machine < 0 and node.state in (_CREATING, _STARTING):
            self._set_state(node, _READY)
            node.ready = self.now
            heapq.heappush(self.buckets[node.free], node.number)
        if self.waiting:
            # Wait for other nodes that are ready at the same time, so that they share the tasks.
            following = self.heap[0] if self.heap else (-1, 0, 0)
            if following[0] != self.now or following[2] != _NODE_STEPS:
                self._start_waiting()

    def _remove_node(self, node: _Node) -> None:
        self._clear_notice(node)
        self.returning.discard(node.number)
        drains = self.deallocation in ("taskcompletion", "retaineddata")
        if node.state != _PREEMPTED:
            self._record_node_time(node, whole=False)
        self._set_state(node, _LEAVING)
        self.leaving[not node.spot] += 1
        if not drains:
            self._interrupt_tasks(node, again=self.deallocation == "requeue")
        if not node.running:
            self._delete_node(node)

    def _delete_node(self, node: _Node) -> None:
        self._clear_notice(node)
        self._record_node_time(node, whole=True)
        self.counts[node.state] -= 1
        self.leaving[not node.spot] -= node.state == _LEAVING
        self.node_counts[not node.spot] -= 1
        del self.nodes[node.number]

    def _record_node_time(self, node: _Node, *, whole: bool) -> None:
        """Record the time of a machine until now. With `whole`, its time ends."""
        if node.since < 0:
            return
        spent, slots = node.spent, self.scenario.slots_per_node
        if node.ready < 0:
            spent.boot += (self.now - node.since) * slots
        else:
            spent.boot += (node.ready - node.since) * slots
            spent.ready += (self.now - node.ready) * slots
            node.ready = self.now
        node.since = -1 if whole else self.now

    def _evictable(self, node: _Node) -> bool:
        gone = node.state in (_LEAVING, _PREEMPTED)
        return node.spot and not node.noticed and not gone

    def _eviction(self, number: int, machine: int) -> None:
        node = self._find_node(number, machine)
        if node is not None and self._evictable(node):
            self._evict(node, self.scenario.notice_ms)

    def _evict(self, node: _Node, notice_ms: int) -> None:
        if notice_ms > 0:
            node.noticed = True
            self.noticed += 1
            self._schedule(self.now + notice_ms, _NOTICE_ENDS, node.number, node.machine)
        else:
            self._preempt(node)

    def _clear_notice(self, node: _Node) -> None:
        self.noticed -= node.noticed
        node.noticed = False

    def _notice_ends(self, number: int, machine: int) -> None:
        node = self._find_node(number, machine)
        if node is not None and node.state not in (_LEAVING, _PREEMPTED):
            self._preempt(node)

    def _preempt(self, node: _Node) -> None:
        self.evictions += 1
        self._interrupt_tasks(node, again=True)
        self._record_node_time(node, whole=True)
        self._clear_notice(node)
        self._set_state(node, _PREEMPTED)
        wait = 0
        if self.scenario.away_ms:
            wait = int(draw_wait(self.return_key, node.number, node.life, self.scenario.away_ms))
        self._schedule(self.now + wait, _RETURN, node.number, node.machine)
        if self.waiting:
            self._start_waiting()
        if self.resizing or self.returning:
            self._allocate()

    def _return(self, number: int, machine: int) -> None:
        node = self._find_node(number, machine)
        if node is None or node.state != _PREEMPTED:
            return
        if self._spare_capacity() > 0:
            self._allocate_machine(node)
        else:
            self.returning.add(number)
            self._allocate()

    def _spare_capacity(self) -> int:
        """Return the capacity for additional spot nodes; negative if some must leave."""
        if self.capacity is None:
            return _MAX_NODES
        gone = self.leaving[0] + self.counts[_PREEMPTED] + self.noticed
        return self.capacity - (self.node_counts[0] - gone)

    def _apply_change(self, number: int, _: int) -> None:
        change = self.scenario.changes[number]
        if change.capacity is not None:
            self.capacity = change.capacity
        count = -self._spare_capacity() if change.capacity is not None else (change.evict or 0)
        if count > 0:
            candidates = [node for node in self.nodes.values() if self._evictable(node)]
            notice = self.scenario.notice_ms if change.notice_ms is None else change.notice_ms
            for node in self.eviction_rng.sample(candidates, min(count, len(candidates))):
                self._evict(node, notice)
        self._allocate_returning()
        self._allocate()

    def _allocate_returning(self) -> None:
        room = self._spare_capacity() if self.returning and self.capacity is not None else 0
        for number in sorted(self.returning)[: max(0, room)]:
            self.returning.remove(number)
            self._allocate_machine(self.nodes[number])

    # -- the formula and resizes

    def _evaluation(self, _: int, __: int) -> None:
        self.due = self.now
        if not self.resizing:
            self._evaluate()

    def _evaluate(self) -> None:
        """Evaluate the formula and resize the pool to the result."""
        scenario, due = self.scenario, self.due
        if not self.scaled or due is None:
            return
        late = max(0, self.now - due) // scenario.interval_ms
        self.due = None
        self._schedule(due + scenario.interval_ms * (1 + late), _EVALUATION, 0, 0)
        self.evaluations += 1
        if scenario.policy is not None:
            self.deallocation = "requeue" if scenario.checkpoint_ms else "taskcompletion"
            self._request_targets(*scenario.policy(self._state()))
            return
        now = scenario.start + timedelta(milliseconds=self.now)
        spot, dedicated = self.targets
        found = evaluate(
            scenario.formula or "", Inputs(self.history, now, dedicated, spot, self.random.random)
        )
        if found.problem is not None:
            self._record_problem(found.problem.detail)
            return
        self.deallocation = found.option
        self._request_targets(found.spot, found.dedicated)

    def _request_targets(self, spot: int, dedicated: int) -> None:
        wanted = [min(spot, _MAX_NODES), min(dedicated, _MAX_NODES)]
        if wanted != [spot, dedicated]:
            asked = max(spot, dedicated)
            self._record_problem(
                f"the formula requests {asked:,} nodes; the simulation has at most {_MAX_NODES:,}"
            )
        if wanted != self.targets or wanted != self.node_counts:
            self._begin_resize(*wanted)

    def _state(self) -> SimulatedPool:
        """Return the state that a policy may use."""
        now, setup = self.now, self.setup_ms
        done = sum(spent.useful for spent in self.spent)
        longest = max(self.durations, default=0) if self.waiting or self.arrived < self.tasks else 0
        busy = 0
        for node in self.nodes.values():
            for task, started in node.running.items():
                worked = min(self.left[task], max(0, now - started - setup))
                busy += self.slots_of[task]
                done += worked * self.slots_of[task]
                longest = max(longest, self.left[task] - worked)
        waiting = sum(slots * len(queue) for slots, queue in self.queues.items())
        return SimulatedPool(
            now,
            -(-(waiting + busy) // self.scenario.slots_per_node),
            self.node_counts[0] - self.counts[_PREEMPTED],
            self.node_counts[1],
            done,
            self.total - done,
            longest,
        )

    def _begin_resize(self, spot: int, dedicated: int) -> None:
        self.targets = [spot, dedicated]
        self.resizing = True
        self.resize_ends = self.now + _RESIZE_TIMEOUT_MS
        self._schedule(self.resize_ends, _TIMEOUT, 0, 0)
        self._allocate()

    def _resize_timeout(self, _: int, __: int) -> None:
        if self.resizing and self.resize_ends == self.now:
            self._end_resize("the resize reached its timeout of 15 minutes")

    def _allocate(self) -> None:
        """Continue a resize, or end it."""
        if self.returning:
            self._allocate_returning()
        while self.resizing:
            changed, waits, errors = False, False, ""
            for kind, target in ((1, self.targets[1]), (0, self.targets[0])):
                missing = target - (self.node_counts[kind] - self.leaving[kind])
                if missing == 0:
                    continue
                most = self.most[kind]
                room = max(0, most - self.node_counts[kind]) if most is not None else _MAX_NODES
                capacity = _MAX_NODES if kind else self._spare_capacity() - len(self.returning)
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
            moving = self.counts[_CREATING] or self.counts[_LEAVING]
            if changed:
                continue
            if not moving and not waits:
                self._end_resize(errors)
            return

    def _remove_nodes(self, count: int, *, spot: bool) -> None:
        # Order: nodes that are not ready, then those with few tasks, then the newest.
        ranks = [
            (((node.state == _READY) << 9 | len(node.running)) << 40) - number
            for number, node in self.nodes.items()
            if node.spot is spot and node.state != _LEAVING
        ]
        first = sorted(ranks) if count > len(ranks) // 8 else heapq.nsmallest(count, ranks)
        for rank in first[:count]:
            self._remove_node(self.nodes[-rank & ((1 << 40) - 1)])
        if self.waiting:
            self._start_waiting()

    def _end_resize(self, error: str) -> None:
        self.resizing = False
        if error:
            self._record_problem(error)
            young = [n for n in self.nodes.values() if n.state == _CREATING and not n.again]
            for node in young:
                self._delete_node(node)
        if self.due is not None:
            self._evaluate()

    # -- samples, timeline, result

    def _record_samples(self, count: int) -> None:
        first = self.epoch_ticks + self.next_sample * _TICKS_PER_MS
        self.next_sample += count * _SAMPLE_MS
        if self.measured:
            everything = self._measure()
            self.history.fill(first, count, {name: everything[name] for name in self.measured})
        elif self.scenario.formula is not None:
            self.history.fill(first, count, {})

    def _measure(self) -> dict[str, float]:
        ready = self.counts[_READY]
        slots = ready * self.scenario.slots_per_node
        cpu = 0.0
        if "$CPUPercent" in self.measured and slots:
            cpu = sum(
                self.scenario.slots_per_node - node.free
                for node in self.nodes.values()
                if node.state == _READY
            ) / slots  # fmt: skip
        return {
            "$CPUPercent": cpu,
            "$ActiveTasks": self.waiting,
            "$RunningTasks": self.running,
            "$PendingTasks": self.waiting + self.running,
            "$SucceededTasks": self.finished,
            "$FailedTasks": self.terminated,
            "$CurrentDedicatedNodes": self.node_counts[1],
            "$CurrentLowPriorityNodes": self.node_counts[0],
            "$PreemptedNodeCount": self.counts[_PREEMPTED],
            "$SampleNodeCount": ready,
            "$TaskSlotsPerNode": self.scenario.slots_per_node,
            "$UsableNodeCount": ready,
        }

    def _record_moment(self) -> None:
        self._recorded_ms = self.now
        held = self.node_counts[0] - self.counts[_PREEMPTED]
        moment = Moment(self.now, held, self.node_counts[1], self.waiting, self.running)
        self.timeline.append(moment)
        if len(self.timeline) > _MAX_MOMENTS:
            self.spacing = max(2, 2 * self.now // _MAX_MOMENTS)
            del self.timeline[1::2]

    def _record_problem(self, message: str) -> None:
        last = self.problems[-1] if self.problems else None
        if last is not None and last.message == message:
            self.problems[-1] = SimulationProblem(last.time_ms, message, last.count + 1)
        elif len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(SimulationProblem(self.now, message))

    def _result(self, ended: int) -> SimulationResult:
        self.now = ended
        self._record_moment()
        left = len(self.nodes)
        for node in self.nodes.values():
            self._account_running(node)
            if node.state != _PREEMPTED:
                self._record_node_time(node, whole=True)
        pairs = list(self.spent)
        spent = {
            "boot": (pairs[0].boot, pairs[1].boot),
            "setup": (pairs[0].setup, pairs[1].setup),
            "useful": (pairs[0].useful, pairs[1].useful),
            "lost": (pairs[0].lost, pairs[1].lost),
            "idle": tuple(p.ready - p.setup - p.useful - p.lost for p in pairs),
        }
        unfinished = len(self.attempt) - self.finished - self.terminated
        first = self.arrivals[0] if len(self.arrivals) else 0
        started = zip(self.first_start, self.arrivals, strict=True)
        return SimulationResult(
            finished=self.finished,
            unfinished=unfinished,
            terminated=self.terminated,
            evictions=self.evictions,
            repeated=self.repeated,
            makespan_ms=self.last_end - first if self.last_end >= 0 and not unfinished else None,
            waits_ms=sorted(
                (start if start >= 0 else max(ended, arrival)) - arrival
                for start, arrival in started
            ),
            spent_ms=spent,  # pyright: ignore[reportArgumentType]  pairs of int
            slots_per_node=self.scenario.slots_per_node,
            left_nodes=left,
            ended_ms=ended,
            timeline=self.timeline,
            problems=self.problems,
            evaluations=self.evaluations,
            events=self.events,
        )

    def _account_running(self, node: _Node) -> None:
        """Count the work of tasks that run when the simulation ends as useful."""
        spent, setup = node.spent, self.setup_ms
        for task, started in node.running.items():
            passed = self.now - started
            worked = max(0, passed - setup)
            saves = min(worked, self._saves(worked)) if self.save_ms and worked else 0
            spent.setup += (min(passed, setup) + saves) * self.slots_of[task]
            spent.useful += (worked - saves) * self.slots_of[task]

    # Handlers by kind of event.
    _handlers = (
        _task_ends, _step, _apply_change, _eviction, _notice_ends, _return, _resize_timeout,
        _evaluation,
    )  # fmt: skip


def _history(formula: str) -> tuple[SampleHistory, frozenset[str]]:
    """Return an empty history of the metrics that the formula names."""
    names = {METRIC_ALIASES.get(name, name) for name in re.findall(r"\$[A-Za-z_]\w*", formula)}
    history = SampleHistory()
    history.series = {name: s for name, s in history.series.items() if name in names}
    return history, frozenset(history.series)


assert PERIOD == _SAMPLE_MS * _TICKS_PER_MS  # noqa: S101
