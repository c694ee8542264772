"""Simulate one pool event by event, by the rules of the emulator's scheduler.

The rules (which node gets a task, which nodes leave first, when a formula is evaluated and which
samples it reads) are those of `batch_emulator.scheduling` and `batch_emulator.domain.transitions`.
They are implemented again because the emulator updates a document for each node and task, which
takes a thousand times as long. `test_emulator_agrees.py` compares both.

Node time counts from allocation until the node is gone, without the time in which an evicted node
has no machine. `tasks.py` places tasks, `pool.py` has the nodes; this module has the order of
events, the formula or policy that resizes the pool, and the samples that a formula reads.
"""

from __future__ import annotations

import heapq
import random
import re
from datetime import timedelta

from batch_emulator.autoscale.evaluate import Inputs, evaluate
from batch_emulator.autoscale.samples import PERIOD, TICKS_PER_SECOND, SampleHistory
from batch_emulator.autoscale.scope import METRIC_ALIASES
from batch_emulator.autoscale.values import FormulaSyntaxError, FormulaTooLongError, Timestamp
from runner.features.simulation.pool import MAX_NODES, NodePool
from runner.features.simulation.result import PURPOSES, Moment, SimulationResult, Timeline
from runner.features.simulation.scenario import MS, Scenario, ScenarioError, SimulatedPool
from runner.features.simulation.tasks import Tasks
from runner.features.simulation.world import (
    EVALUATION,
    PREEMPTED,
    READY,
    TRACE,
    EventQueue,
    SimulatedNode,
)

_SAMPLE_MS = 30 * MS
_TICKS_PER_MS = TICKS_PER_SECOND // MS
_MAX_EVENTS = 10_000_000
_DAY_MS = 86_400_000


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
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._is_scaled = scenario.formula is not None or scenario.policy is not None
        self._events, self._timeline = EventQueue(), Timeline()
        nodes: dict[int, SimulatedNode] = {}
        self._tasks = Tasks(scenario, self._events, nodes)
        self._pool = NodePool(
            scenario, self._events, nodes, self._tasks, self._timeline, self._evaluate_due
        )
        self._due: int | None = None  # when an evaluation was due that waits for a resize
        self._evaluations = 0
        self._random = random.Random(f"formula/{scenario.seed}")  # noqa: S311
        self._history, self._measured = _history(scenario.formula or "")
        self._next_sample = 0
        self._epoch_ticks = Timestamp.of(scenario.start).ticks
        self._work = scenario.workload.slot_ms

    def run(self) -> SimulationResult:
        self._begin()
        tasks, pool, events, timeline = self._tasks, self._pool, self._events, self._timeline
        handlers = (  # by kind of event
            self._end_task, pool.step, pool.apply_change, pool.evict_drawn, pool.end_notice,
            pool.bring_back, pool.time_out, self._evaluation,
        )  # fmt: skip
        arrivals, heap, pop = iter(self._scenario.workload.arrivals_ms), events.heap, heapq.heappop
        horizon, most = self._scenario.horizon_ms, _MAX_EVENTS
        never = horizon + 1
        arrival = next(arrivals, never)
        scaled, number = self._scenario.formula is not None, 0
        while True:
            event = heap[0][0] if heap else never
            now = arrival if arrival <= event else event
            if now > horizon or (tasks.running == 0 == tasks.waiting and self._is_over()):
                break
            events.now = now
            if scaled and self._next_sample <= now:  # the metrics are constant until the event
                self._record_samples((now - self._next_sample) // _SAMPLE_MS + 1)
            number += 1
            if number > most:
                timeline.add_problem(now, f"the simulation stopped after {most:,} events")
                break
            if arrival < event:
                tasks.arrive()
                arrival = next(arrivals, never)
            else:
                _, _, kind, one, other = pop(heap)
                handlers[kind](one, other)
            if now >= timeline.due_ms:
                self._record_moment()
        events.now = min(horizon, events.now)
        return self._result(number)

    def _begin(self) -> None:
        scenario = self._scenario
        for number, change in enumerate(scenario.changes):
            if (time_ms := round(change.time_s * MS)) > 0:
                self._events.schedule(time_ms, TRACE, number, 0)
            else:
                self._pool.apply_change(number, 0)
        if not self._is_scaled:
            self._pool.resize(scenario.spot, scenario.dedicated)
        else:
            self._events.schedule(0, EVALUATION, 0, 0)

    def _is_over(self) -> bool:
        """Return True if all tasks have ended and nothing can change any more."""
        tasks, arrivals = self._tasks, self._scenario.workload.arrivals_ms
        if not tasks.ended:
            return False
        if not self._is_scaled:
            return True
        # Give the formula a day to remove the nodes.
        return (
            not self._pool.nodes or self._events.now > max(tasks.last_end, arrivals[-1]) + _DAY_MS
        )

    def _end_task(self, task: int, attempt: int) -> None:
        node = self._tasks.end(task, attempt)
        if node is not None:
            self._pool.delete(node)
            self._pool.allocate()

    def _evaluation(self, _: int, __: int) -> None:
        self._due = self._events.now
        if not self._pool.resizing:
            self._evaluate_due()

    def _evaluate_due(self) -> None:
        """Evaluate the formula or policy if that is due, and resize the pool to the result."""
        scenario, due = self._scenario, self._due
        if due is None:
            return
        late = max(0, self._events.now - due) // scenario.interval_ms
        self._due = None
        self._events.schedule(due + scenario.interval_ms * (1 + late), EVALUATION, 0, 0)
        self._evaluations += 1
        if scenario.policy is not None:
            self._pool.deallocation = "requeue" if scenario.checkpoint_ms else "taskcompletion"
            self._request_targets(*scenario.policy(self._state()))
            return
        now = scenario.start + timedelta(milliseconds=self._events.now)
        spot, dedicated = self._pool.targets
        found = evaluate(
            scenario.formula or "", Inputs(self._history, now, dedicated, spot, self._random.random)
        )
        if found.problem is not None:
            self._timeline.add_problem(self._events.now, found.problem.detail)
            return
        self._pool.deallocation = found.option
        self._request_targets(found.spot, found.dedicated)

    def _request_targets(self, spot: int, dedicated: int) -> None:
        wanted = [min(spot, MAX_NODES), min(dedicated, MAX_NODES)]
        if wanted != [spot, dedicated]:
            asked = max(spot, dedicated)
            self._timeline.add_problem(
                self._events.now,
                f"the formula requests {asked:,} nodes; the simulation has at most {MAX_NODES:,}",
            )
        if wanted != self._pool.targets or wanted != self._pool.node_counts:
            self._pool.resize(*wanted)

    def _state(self) -> SimulatedPool:
        """Return the state that a policy may use."""
        now, tasks, pool = self._events.now, self._tasks, self._pool
        durations, setup = self._scenario.workload.durations_ms, self._scenario.setup_ms
        done = sum(spent.useful for spent in pool.spent)
        longest = tasks.longest_left()
        arrived = tasks.arrived == len(durations)
        busy = 0
        for node in pool.nodes.values():
            for task, started in node.running.items():
                slots, left = tasks.slots_of[task], tasks.left[task]
                worked = min(left, max(0, now - started - setup))
                busy += slots
                done += worked * slots
                longest = max(longest, left - worked)
        waiting = sum(slots * len(queue) for slots, queue in tasks.queues.items())
        wanted = -(-(waiting + busy) // self._scenario.slots_per_node)
        dedicated = pool.node_counts[1]
        left = self._work - done
        return SimulatedPool(now, wanted, pool.spot_held, dedicated, done, left, longest, arrived)

    def _record_samples(self, count: int) -> None:
        first = self._epoch_ticks + self._next_sample * _TICKS_PER_MS
        self._next_sample += count * _SAMPLE_MS
        everything = self._measure() if self._measured else {}
        self._history.fill(first, count, {name: everything[name] for name in self._measured})

    def _measure(self) -> dict[str, float]:
        pool, tasks = self._pool, self._tasks
        ready = pool.counts[READY]
        slots = ready * self._scenario.slots_per_node
        cpu = 0.0
        if "$CPUPercent" in self._measured and slots:
            nodes = [node for node in pool.nodes.values() if node.state == READY]
            cpu = sum(node.slots - node.free for node in nodes) / slots
        return {
            "$CPUPercent": cpu,
            "$ActiveTasks": tasks.waiting,
            "$RunningTasks": tasks.running,
            "$PendingTasks": tasks.waiting + tasks.running,
            "$SucceededTasks": tasks.finished,
            "$FailedTasks": tasks.terminated,
            "$CurrentDedicatedNodes": pool.node_counts[1],
            "$CurrentLowPriorityNodes": pool.node_counts[0],
            "$PreemptedNodeCount": pool.counts[PREEMPTED],
            "$SampleNodeCount": ready,
            "$TaskSlotsPerNode": self._scenario.slots_per_node,
            "$UsableNodeCount": ready,
        }

    def _record_moment(self) -> None:
        pool, tasks = self._pool, self._tasks
        counts = pool.spot_held, pool.node_counts[1], tasks.waiting, tasks.running
        self._timeline.add(Moment(self._events.now, *counts))

    def _result(self, events: int) -> SimulationResult:
        ended, tasks, pool = self._events.now, self._tasks, self._pool
        self._record_moment()
        for node in pool.nodes.values():
            tasks.count_running(node)
            if node.state != PREEMPTED:
                node.record_time(ended, whole=True)
        arrivals = self._scenario.workload.arrivals_ms
        unfinished = len(arrivals) - tasks.finished - tasks.terminated
        first = arrivals[0] if len(arrivals) else 0
        spot, dedicated = pool.spent
        return SimulationResult(
            finished=tasks.finished,
            unfinished=unfinished,
            terminated=tasks.terminated,
            evictions=pool.evictions,
            repeated=tasks.repeated,
            makespan_ms=tasks.last_end - first if tasks.last_end >= 0 and not unfinished else None,
            waits_ms=sorted(
                (start if start >= 0 else max(ended, arrival)) - arrival
                for start, arrival in zip(tasks.first_start, arrivals, strict=True)
            ),
            spent_ms={name: (getattr(spot, name), getattr(dedicated, name)) for name in PURPOSES},
            slots_per_node=self._scenario.slots_per_node,
            left_nodes=len(pool.nodes),
            ended_ms=ended,
            timeline=self._timeline.moments,
            problems=self._timeline.problems,
            evaluations=self._evaluations,
            events=events,
        )


def _history(formula: str) -> tuple[SampleHistory, frozenset[str]]:
    """Return an empty history of the metrics that the formula names."""
    names = {METRIC_ALIASES.get(name, name) for name in re.findall(r"\$[A-Za-z_]\w*", formula)}
    history = SampleHistory()
    history.series = {name: s for name, s in history.series.items() if name in names}
    return history, frozenset(history.series)


assert PERIOD == _SAMPLE_MS * _TICKS_PER_MS  # noqa: S101
