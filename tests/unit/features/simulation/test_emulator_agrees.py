"""The simulator and the emulator's scheduler, given the same tasks, formula and evictions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from batch_emulator.domain.model import NodeState, Pool, Task, TaskState
from runner.features.simulation.engine import simulate
from runner.features.simulation.scenario import MS, Scenario, Workload
from tests.unit.emulator.world import World

BY_QUEUE = """
percent = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 5);
recent = avg($PendingTasks.GetSample(TimeInterval_Minute * 5, 0));
tasks = percent < 70 ? max(0, $PendingTasks.GetSample(1)) : recent;
$TargetLowPriorityNodes = min(8, tasks / avg($TaskSlotsPerNode.GetSample(1)) + 0.5);
$NodeDeallocationOption = taskcompletion;
"""
AT_ONCE = """
$TargetLowPriorityNodes = min(5, $PendingTasks.GetSample(1));
$TargetDedicatedNodes = sum($ActiveTasks.GetSample(1)) > 10 ? 2 : 0;
$NodeDeallocationOption = requeue;
"""


@dataclass
class Measured:
    node_ms: dict[bool, float]
    ended: datetime


class Emulated:
    """A scenario on the emulator's scheduler: tasks arrive and end at their times."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(
            boot_s=scenario.boot_ms / MS,
            seed=scenario.seed,
            eviction_rate=scenario.evictions_per_hour,
            notice_s=scenario.notice_ms / MS,
            capacity_away_s=scenario.away_ms / MS,
        )
        self.world.clock = type(self.world.clock)(scenario.start)
        self.start = scenario.start
        self.left = list(scenario.workload.durations_ms)
        self.ends: dict[int, tuple[str, datetime]] = {}  # of running tasks: attempt and end
        self.node_ms = {True: 0.0, False: 0.0}

    def run(self) -> Measured:
        scenario, world = self.scenario, self.world
        body = {"taskSlotsPerNode": scenario.slots_per_node}
        if scenario.formula is None:
            body |= {"targetLowPriorityNodes": scenario.spot}
            body |= {"targetDedicatedNodes": scenario.dedicated}
        else:
            interval = f"PT{scenario.interval_ms // MS}S"
            body |= {"enableAutoScale": True, "autoScaleFormula": scenario.formula}
            body |= {"autoScaleEvaluationInterval": interval}
        pool = world.pool("pool", boot=False, **body)
        if scenario.formula is not None:
            for name in ("targetDedicatedNodes", "targetLowPriorityNodes"):
                pool.spec.pop(name, None)
        job = world.job()
        work = scenario.workload
        tasks: list[Task] = []
        last = self.start
        while True:
            self._follow(tasks)
            due = [end for _, end in self.ends.values()]
            if len(tasks) < len(work):
                due.append(self.start + timedelta(milliseconds=work.arrivals_ms[len(tasks)]))
            done = len(tasks) == len(work) and all(t.state is TaskState.COMPLETED for t in tasks)
            if done and (scenario.formula is None or not pool.nodes):
                break
            due += [world.account.timers[0][0]] * bool(world.account.timers)
            self._advance(pool, min(due))
            now = world.clock.now()
            for number, (key, end) in list(self.ends.items()):
                if end <= now and key in world.processes:
                    del self.ends[number]
                    world.end(tasks[number])
                    last = now
            while len(tasks) < len(work) and (
                self.start + timedelta(milliseconds=work.arrivals_ms[len(tasks)]) <= now
            ):
                slots = work.slots[len(tasks)]
                name = f"t{len(tasks)}"
                tasks.append(world.task(job, name, requiredSlots=slots))
        return Measured(self.node_ms, last)

    def _follow(self, tasks: list[Task]) -> None:
        """Plan the end of each attempt that began, and keep what one that was cut short saved."""
        now, every = self.world.clock.now(), self.scenario.checkpoint_ms
        for number, task in enumerate(tasks):
            running = task.execution
            key = running.key if running and running.key in self.world.processes else None
            planned = self.ends.get(number)
            if planned is not None and planned[0] != key:
                left = (planned[1] - now) / timedelta(milliseconds=1)
                worked = max(0, self.left[number] - round(left))
                self.left[number] -= worked // every * every if every else 0
                del self.ends[number]
            if key is not None and number not in self.ends:
                work = timedelta(milliseconds=self.scenario.setup_ms + self.left[number])
                self.ends[number] = (key, now + work)

    def _advance(self, pool: Pool, until: datetime) -> None:
        passed = max(timedelta(), until - self.world.clock.now())
        for node in pool.nodes.values():
            if node.state is not NodeState.PREEMPTED:
                self.node_ms[node.dedicated] += passed / timedelta(milliseconds=1)
        self.world.push(passed.total_seconds())


def random_scenario(seed: int) -> Scenario:
    draw = random.Random(seed)
    slots = draw.choice([1, 1, 2, 4])
    count = draw.randint(15, 35)
    arrivals = sorted(draw.randint(0, 4 * 3600) * MS for _ in range(count))
    durations = [draw.randint(60, 3000) * MS for _ in range(count)]
    return Scenario(
        Workload(arrivals, durations, [draw.randint(1, slots) for _ in range(count)]),
        formula=draw.choice([BY_QUEUE, BY_QUEUE, AT_ONCE]),
        interval_ms=draw.choice([300, 600, 900]) * MS,
        slots_per_node=slots,
        boot_ms=draw.choice([60, 240, 500]) * MS,
        evictions_per_hour=draw.choice([0.0, 0.2, 1.0]),
        notice_ms=draw.choice([0, 30]) * MS,
        away_ms=draw.choice([0, 600]) * MS,
        checkpoint_ms=draw.choice([None, 300 * MS]),
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.feature(7)
def test_node_time_agrees_with_the_emulator(seed: int) -> None:
    scenario = random_scenario(seed)
    measured = Emulated(scenario).run()
    found = simulate(scenario)
    assert found.finished == len(scenario.workload)
    for dedicated in (False, True):
        expected = measured.node_ms[dedicated]
        assert found.node_ms[dedicated] == pytest.approx(expected, rel=1e-6)
