"""A simulated pool that a formula scales, with its queue, in steps of 30 seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from batch_emulator.autoscale.evaluate import Inputs, evaluate
from batch_emulator.autoscale.samples import SampleHistory
from batch_emulator.autoscale.values import Timestamp

STEP = timedelta(seconds=30)
INTERVAL_STEPS = 10  # a formula every 5 minutes
BOOT_STEPS = 6  # 3 minutes from allocation to the first task


@dataclass(eq=False)
class Work:
    """A task; `left` is the number of remaining steps. An eviction resets it to `steps`."""

    steps: int
    left: int = 0
    node: Machine | None = None


@dataclass(eq=False)
class Machine:
    """A node; `away` while it is preempted, `leaving` if it is removed after its tasks."""

    spot: bool
    boots: int = BOOT_STEPS
    away: bool = False
    leaving: bool = False
    tasks: list[Work] = field(default_factory=list)


@dataclass(frozen=True)
class Moment:
    """The state at one time: nodes, pending tasks, and the targets of the formula."""

    at: datetime
    spot: int
    dedicated: int
    pending: int
    want_spot: int
    want_dedicated: int


class Day:
    """The simulation.

    `capacity` returns the maximum number of spot nodes at a time; `lost` returns True for steps
    without a sample.
    """

    def __init__(
        self,
        formula: str,
        start: datetime,
        *,
        slots: int = 1,
        capacity: Callable[[datetime], int] = lambda _: 1000,
        lost: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.formula, self.now, self.slots = formula, start, slots
        self.capacity, self.lost = capacity, lost
        self.history = SampleHistory()
        self.machines: list[Machine] = []
        self.tasks: list[Work] = []
        self.moments: list[Moment] = []
        self.want = {True: 0, False: 0}
        self.done = 0
        self._steps = 0

    def run(self, hours: float, arrivals: dict[datetime, list[int]] | None = None) -> list[Moment]:
        """Simulate some hours. `arrivals` has the minutes of work of new tasks by their arrival."""
        waiting = dict(arrivals or {})
        for _ in range(int(hours * 120)):
            for at in [at for at in waiting if at <= self.now]:
                self.tasks += [Work(minutes * 2, minutes * 2) for minutes in waiting.pop(at)]
            self._step()
        return self.moments

    def _step(self) -> None:
        self._sample()
        if self._steps % INTERVAL_STEPS == 0:
            self._scale()
        self._allocate()
        self._work()
        up = [m for m in self.machines if not m.away]
        spot = sum(m.spot for m in up)
        wants = (self.want[True], self.want[False])
        self.moments.append(Moment(self.now, spot, len(up) - spot, len(self.tasks), *wants))
        self._steps += 1
        self.now += STEP

    def _sample(self) -> None:
        if self.lost(self._steps):
            return
        spot = [m for m in self.machines if m.spot]
        metrics = {
            "$PendingTasks": len(self.tasks),
            "$CurrentLowPriorityNodes": len(spot),
            "$PreemptedNodeCount": sum(m.away for m in spot),
            "$CurrentDedicatedNodes": len(self.machines) - len(spot),
        }
        self.history.fill(Timestamp.of(self.now).ticks, 1, metrics)

    def _scale(self) -> None:
        inputs = Inputs(self.history, self.now, self.want[False], self.want[True], lambda: 0.5)
        found = evaluate(self.formula, inputs)
        assert found.problem is None, found.problem
        self.want = {True: found.spot, False: found.dedicated}

    def _allocate(self) -> None:
        """Add nodes up to the targets and the capacity, remove idle ones, and evict the excess."""
        room = self.capacity(self.now)
        for kind, want in self.want.items():
            mine = [m for m in self.machines if m.spot is kind]
            for machine in sorted(mine, key=lambda m: len(m.tasks))[: max(0, len(mine) - want)]:
                machine.leaving = True
            while len(mine) < want and (not kind or len(mine) < room):
                mine.append(Machine(kind))
                self.machines.append(mine[-1])
        for number, machine in enumerate(m for m in self.machines if m.spot):
            if number >= room and not machine.away:
                machine.away = True
                for task in machine.tasks:
                    task.node, task.left = None, task.steps
                machine.tasks.clear()
            elif number < room and machine.away:
                machine.away, machine.boots = False, BOOT_STEPS
        self.machines = [m for m in self.machines if not m.leaving or m.tasks]

    def _work(self) -> None:
        for machine in self.machines:
            if machine.away:
                continue
            machine.boots = max(0, machine.boots - 1)
            waiting = [task for task in self.tasks if task.node is None]
            if not machine.boots and not machine.leaving:
                for task in waiting[: self.slots - len(machine.tasks)]:
                    task.node = machine
                    machine.tasks.append(task)
            for task in list(machine.tasks):
                task.left -= 1
                if task.left <= 0:
                    machine.tasks.remove(task)
                    self.tasks.remove(task)
                    self.done += 1
