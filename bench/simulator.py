"""A month of 1,000 nodes and 100,000 tasks in the simulator, against a bare loop over a heap."""

from __future__ import annotations

import heapq
import time

from bench.report import Ratio
from runner.features.simulation.engine import simulate
from runner.features.simulation.result import SimulationResult
from runner.features.simulation.scenario import Scenario, generate, parse_spread

TASKS = 100_000
MORE = 1_000_000
BOUND_S = 10.0
BOUND_RATE = 300_000
ROUNDS = 3  # the best rate counts: other processes share caches and memory
_MONTH_MS = 30 * 86_400_000
# Growth by n log n between TASKS and MORE, plus 20 % for noise.
GROWTH = 1.2 * MORE / TASKS * (MORE.bit_length() / TASKS.bit_length())
_FORMULA = """
percent = $PendingTasks.GetSamplePercent(5 * TimeInterval_Minute);
recent = avg($PendingTasks.GetSample(5 * TimeInterval_Minute, 0));
tasks = percent < 70 ? max(0, $PendingTasks.GetSample(1)) : recent;
$TargetLowPriorityNodes = min(1000, tasks);
$NodeDeallocationOption = taskcompletion;
"""


def measure() -> list[Ratio]:
    """Return processor time, which excludes other processes of the machine."""
    month_s, month = _simulate(TASKS, _FORMULA)
    fixed_s, fixed = min(
        (_simulate(TASKS, None) for _ in range(ROUNDS)), key=lambda found: found[0]
    )
    more_s, _ = _simulate(MORE, None)
    rate = fixed.events / fixed_s
    return [
        Ratio(
            "simulated month, 1,000 nodes, 100,000 tasks",
            "s",
            month_s,
            "heap of as many events",
            _heap_s(month.events),
            "< 10 s",
            month_s < BOUND_S,
        ),
        Ratio(
            "simulator events per second",
            "1/s",
            rate,
            "heap of as many events",
            fixed.events / _heap_s(fixed.events),
            f">= {BOUND_RATE:,}",
            rate >= BOUND_RATE,
        ),
        Ratio(
            "simulator, 1,000,000 tasks in ten months",
            "s",
            more_s,
            "100,000 tasks in a month",
            fixed_s,
            f"<= {GROWTH:.1f} x, n log n",
            more_s <= GROWTH * fixed_s,
        ),
    ]


def _simulate(tasks: int, formula: str | None) -> tuple[float, SimulationResult]:
    work = generate(tasks, _MONTH_MS * tasks // TASKS, parse_spread("exponential(5h)"), 1, 1)
    scenario = Scenario(
        work,
        formula=formula,
        spot=0 if formula else 1000,
        evictions_per_hour=1 / 24,
        away_ms=600_000,
        setup_ms=60_000,
        checkpoint_ms=600_000,
    )
    begin = time.process_time()
    result = simulate(scenario)
    spent = time.process_time() - begin
    assert result.finished == tasks
    return spent, result


def _heap_s(events: int) -> float:
    """Return the seconds for as many pushes and pops on a heap with a thousand elements."""
    heap = [(n, n, 0, n, n) for n in range(1000)]
    begin = time.process_time()
    for n in range(events):
        now = heapq.heappop(heap)[0]
        heapq.heappush(heap, (now + n * 7919 % 1009, n, 0, n, n))
    return time.process_time() - begin
