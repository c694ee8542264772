"""The lowest cost that any policy can reach if it knows the trace: the offline optimum.

The result is a lower bound for every schedule of the simulator that ends all tasks by the
deadline. It is the exact optimum of a problem with fewer restrictions than the real one:

- Spot nodes are machines that exist in *windows*. `spot_windows` divides a capacity over time into
  windows so that the machine that came last leaves first. No division has fewer starts, nor more
  time in long windows, so no policy can use the capacity better.
- A window that is used costs its changeover first, boot and setup, in which no work is done. At
  its end, only work up to the last checkpoint is kept, unless a task ends in the window.
- All other work is done on dedicated nodes, whose number has no limit, with one changeover.
- Work can be divided among windows and nodes at will; nodes leave when they have no work.

In this problem all used windows have the same changeover, so that with `k` of them the `k` longest
are best, and each is used before a dedicated node if that costs more. `lowest_cost` tries all `k`,
which gives the result of dynamic programming over the windows in a time linear in their number.
`test_optimum.py` compares it with all choices of windows, and with all schedules of the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from runner.features.simulation.scenario import MS, Scenario, TraceEntry

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What the tasks need, in milliseconds of whole nodes.

    Attributes:
        work_ms: Work of all tasks with its checkpoints, which stop it.
        setups_ms: One setup of each task.
        tasks: Number of nodes that the tasks would fill if all ran at once; each ends once.
    """

    work_ms: float
    setups_ms: float
    tasks: float


def demand_of(scenario: Scenario) -> Demand:
    """Return what the tasks of a scenario need."""
    work, slots = scenario.workload, scenario.slots_per_node
    every, save = scenario.checkpoint_ms, scenario.save_ms
    busy = filled = 0
    for duration, taken in zip(work.durations_ms, work.slots, strict=True):
        saves = (duration - 1) // every * save if every else 0
        busy += (duration + saves) * taken
        filled += taken
    return Demand(busy / slots, scenario.setup_ms * filled / slots, filled / slots)


def spot_windows(
    changes: Iterable[TraceEntry], *, most: int, notice_ms: int, until_ms: int
) -> list[int]:
    """Return the lengths of the windows of spot machines, in milliseconds, longest first.

    Args:
        changes: Capacities and evictions by time; before the first capacity, there is no limit.
        most: Maximum number of spot nodes at once.
        notice_ms: Time for which a node works on after the notice, unless an entry has its own.
        until_ms: Nothing after this time counts.
    """
    opened = [0] * most  # starts of the windows that are open; the last one came last
    capacity = most
    lengths: list[int] = []
    for change in changes:
        now = round(change.time_s * MS)
        if now >= until_ms:
            break
        notice = notice_ms if change.notice_s is None else round(change.notice_s * MS)
        if change.capacity is not None:
            capacity = min(most, change.capacity)
        # An eviction leaves the capacity, but no more nodes than this run on.
        kept = capacity if change.evict is None else max(0, capacity - change.evict)
        while len(opened) > kept:
            start = opened.pop()
            if now > 0:  # no node runs before the first entries
                lengths.append(min(now + notice, until_ms) - start)
        opened += [now] * (capacity - len(opened))
    lengths += [until_ms - start for start in opened]
    return sorted(filter(None, lengths), reverse=True)


def lowest_cost(
    scenario: Scenario,
    windows: Sequence[int],
    *,
    spot_usd: float,
    dedicated_usd: float,
) -> float:
    """Return the lowest cost in micro-dollars; no schedule that uses these windows costs less.

    Two problems are solved, each of which any schedule solves: one counts the setup of each task
    once, and the other the setup and the lost work of each window. The dearer one is the bound.

    Args:
        scenario: Tasks, boot, setup and checkpoints.
        windows: Lengths of the windows, longest first.
        spot_usd, dedicated_usd: Prices per node and hour.
    """
    demand = demand_of(scenario)
    boot = scenario.boot_ms + scenario.start_task_ms
    by_task = [length - boot for length in windows if length > boot]
    first = _cheapest(
        demand.work_ms + demand.setups_ms, boot, list(accumulate(by_task)), spot_usd, dedicated_usd
    )
    changeover = boot + scenario.setup_ms
    by_window = [length - changeover for length in windows if length > changeover]
    done = _kept_work(scenario, by_window, demand.tasks)
    second = _cheapest(demand.work_ms, changeover, done, spot_usd, dedicated_usd)
    return max(first, second)


def _kept_work(scenario: Scenario, lengths: Sequence[int], tasks: float) -> list[float]:
    """Return the most work that the longest 1, 2, ... windows keep, without their changeovers.

    A window keeps whole checkpoint intervals. Where a task ends, it may keep all, so that the
    remainders of as many windows as tasks count too.
    """
    every = scenario.checkpoint_ms
    step = every + scenario.save_ms if every else None
    whole = [length // step * step if step else 0 for length in lengths]
    remainders = sorted(
        (length - kept for length, kept in zip(lengths, whole, strict=True)), reverse=True
    )
    count = int(min(tasks, len(remainders)))
    rest = remainders[count] * (tasks - count) if count < len(remainders) else 0.0
    extra = [*accumulate(remainders[:count])]
    extra += [(extra[-1] if extra else 0) + rest] * (len(lengths) - count)
    floors, alls = accumulate(whole), accumulate(lengths)
    return [
        min(everything, floor + more)
        for everything, floor, more in zip(alls, floors, extra, strict=True)
    ]


def _cheapest(
    needed_ms: float,
    changeover_ms: int,
    done_ms: Sequence[float],
    spot_usd: float,
    dedicated_usd: float,
) -> float:
    """Return the lowest cost over the number of windows, of which `done_ms` has the most work."""

    def cost(used: int, on_spot_ms: float) -> float:
        left = needed_ms - on_spot_ms
        dedicated = left + changeover_ms if left > 0 else 0.0
        spot = on_spot_ms + used * changeover_ms
        return (spot * spot_usd + dedicated * dedicated_usd) * 1_000_000 / _HOUR_MS

    best = cost(0, 0.0)
    for used, done in enumerate(done_ms, 1):
        best = min(best, cost(used, min(done, needed_ms)))
        if done >= needed_ms:
            break
    return best
