"""The offline optimum is a lower bound, and the advice is near it on generated traces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from runner.features.simulation.engine import simulate
from runner.features.simulation.formulas import AssumedPool
from runner.features.simulation.lifetimes import LIFETIMES, generate_trace
from runner.features.simulation.optimum import demand_of, lowest_cost, spot_windows
from runner.features.simulation.policies import POLICIES, Goal
from runner.features.simulation.scenario import (
    MS,
    Policy,
    Scenario,
    SimulatedPool,
    TraceEntry,
    Workload,
    generate,
    parse_spread,
)
from runner.features.simulation.what_if import OptionComparison, PoolKind, compare

MINUTE, HOUR = 60 * MS, 3600 * MS
SPOT, DEDICATED = 0.2, 1.0


def windows_of(scenario: Scenario, most: int, deadline_ms: int) -> list[int]:
    changes, notice = scenario.changes, scenario.notice_ms
    return spot_windows(changes, most=most, notice_ms=notice, until_ms=deadline_ms)


def optimum(scenario: Scenario, most: int, deadline_ms: int) -> float:
    windows = windows_of(scenario, most, deadline_ms)
    return lowest_cost(scenario, windows, spot_usd=SPOT, dedicated_usd=DEDICATED)


def minutes(*changes: tuple[int, int]) -> list[TraceEntry]:
    return [TraceEntry(60.0 * time, capacity=capacity) for time, capacity in changes]


def test_the_machine_that_came_last_leaves_first() -> None:
    changes = minutes((0, 1), (10, 3), (20, 2), (40, 0), (50, 1))
    found = spot_windows(changes, most=3, notice_ms=0, until_ms=60 * MINUTE)
    assert [each // MINUTE for each in found] == [40, 30, 10, 10]


def test_an_eviction_ends_a_window_and_its_notice_extends_it() -> None:
    changes = [TraceEntry(600.0, evict=1), TraceEntry(1200.0, evict=5, notice_s=0)]
    found = spot_windows(changes, most=2, notice_ms=30_000, until_ms=30 * MINUTE)
    assert [each / MINUTE for each in found] == [20, 10.5, 10, 10, 10]


def test_tasks_on_spot_nodes_cost_their_boot_setup_and_work() -> None:
    scenario = Scenario(Workload([0], [HOUR], [1]), boot_ms=4 * MINUTE, setup_ms=2 * MINUTE)
    assert optimum(scenario, 1, 2 * HOUR) == pytest.approx(SPOT * 1.1e6)
    never = replace(scenario, changes=minutes((0, 0)))
    assert optimum(never, 1, 2 * HOUR) == pytest.approx(DEDICATED * 1.1e6)


def test_work_after_the_last_checkpoint_of_a_window_is_lost() -> None:
    """Two windows of 60 minutes keep 50 each, and the one in which the task ends keeps more."""
    down = minutes((0, 1), (60, 0), (70, 1), (130, 0))
    scenario = Scenario(
        Workload([0], [2 * HOUR], [1]),
        boot_ms=4 * MINUTE,
        setup_ms=MINUTE,
        checkpoint_ms=25 * MINUTE,
        notice_ms=0,
        changes=down,
    )
    spot, dedicated = 5 + 50 + 5 + 55, 5 + 15
    expected = (spot * SPOT + dedicated * DEDICATED) / 60 * 1e6
    assert optimum(scenario, 1, 5 * HOUR) == pytest.approx(expected)


def test_demand_counts_checkpoints_and_shares_of_nodes() -> None:
    work = Workload([0, 0], [HOUR, HOUR], [1, 2])
    made = Scenario(
        work, slots_per_node=2, setup_ms=MINUTE, checkpoint_ms=30 * MINUTE, save_ms=MINUTE
    )
    assert demand_of(made).work_ms == 1.5 * 61 * MINUTE
    assert (demand_of(made).setups_ms, demand_of(made).tasks) == (1.5 * MINUTE, 1.5)


def brute_force(needed: int, changeover: int, lengths: Sequence[int]) -> float:
    """Return the lowest cost over all sets of windows, and all work in whole minutes in each."""
    best = (needed + changeover) * DEDICATED
    for count in range(1, len(lengths) + 1):
        for used in itertools.combinations(lengths, count):
            ranges = [range(1, length - changeover + 1) for length in used]
            for parts in itertools.product(*ranges):
                done = sum(parts)
                if done > needed:
                    continue
                left = needed - done
                spot = done + count * changeover
                cost = spot * SPOT + (left + changeover if left else 0) * DEDICATED
                best = min(best, cost)
    return best / 60 * 1e6


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_all_choices_of_windows(seed: int) -> None:
    draw = random.Random(seed)
    lengths = sorted((draw.randint(1, 14) for _ in range(4)), reverse=True)
    needed, boot = draw.randint(5, 30), draw.randint(0, 4)
    # A checkpoint after each minute, so that all work in whole minutes is kept.
    scenario = Scenario(
        Workload([0], [needed * MINUTE], [1]), boot_ms=boot * MINUTE, checkpoint_ms=MINUTE
    )
    found = lowest_cost(
        scenario,
        [length * MINUTE for length in lengths],
        spot_usd=SPOT,
        dedicated_usd=DEDICATED,
    )
    usable = [length for length in lengths if length > boot]
    assert found == pytest.approx(brute_force(needed, boot, usable))


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_of_the_simulator_costs_less(seed: int, tasks: int) -> None:
    """All 4,096 schedules of six decisions, of none, spot, dedicated or both."""
    draw = random.Random(f"{tasks}/{seed}")
    changes = minutes(*((5 * n, draw.choice([0, 1, 1])) for n in range(12)))
    work = Workload([0] * tasks, [draw.randint(5, 25) * MINUTE for _ in range(tasks)], [1] * tasks)
    scenario = Scenario(
        work,
        interval_ms=5 * MINUTE,
        boot_ms=MINUTE,
        setup_ms=30_000,
        checkpoint_ms=2 * MINUTE,
        save_ms=5_000,
        changes=changes,
        most_spot=1,
        until_ms=90 * MINUTE,
    )
    deadline_ms = 60 * MINUTE
    bound, best = optimum(scenario, 1, deadline_ms), float("inf")
    for plan in itertools.product([(0, 0), (1, 0), (0, 1), (1, 1)], repeat=6):
        found = simulate(replace(scenario, policy=follow(plan)))
        if found.makespan_ms is not None and found.makespan_ms <= deadline_ms:
            parts = found.cost_micro(SPOT, DEDICATED)
            best = min(best, sum(parts.values()) if parts else best)
    assert bound <= best + 1
    assert best < float("inf")


def follow(plan: Sequence[tuple[int, int]]) -> Policy:
    """Return a policy with fixed decisions, one for each 10 minutes, until the work is done."""

    def decide(state: SimulatedPool) -> tuple[int, int]:
        step = min(state.now_ms // (10 * MINUTE), len(plan) - 1)
        return plan[step] if state.left_ms else (0, 0)

    return decide


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_no_policy_costs_less_than_the_optimum(seed: int) -> None:
    """Random workloads, traces of all kinds, slots, and deadlines."""
    draw = random.Random(f"policies/{seed}")
    nodes, slots = draw.randint(1, 8), draw.choice([1, 1, 2, 4])
    spread = parse_spread(draw.choice(["20m", "10m-3h", "exponential(1h)"]))
    work = generate(draw.randint(1, 30), draw.choice([0, 2 * HOUR]), spread, 1, seed)
    scenario = Scenario(
        work,
        slots_per_node=slots,
        interval_ms=5 * MINUTE,
        setup_ms=draw.choice([0, 3 * MINUTE]),
        checkpoint_ms=draw.choice([None, 10 * MINUTE]),
        save_ms=draw.choice([0, 20_000]),
        notice_ms=draw.choice([0, 30_000]),
        most_spot=nodes,
        changes=trace_of(draw, nodes),
        seed=seed,
    )
    first = work.arrivals_ms[0]
    alone = work.slot_ms / (nodes * slots) + max(work.durations_ms) + HOUR
    deadline_ms = first + round(alone * draw.choice([1.1, 1.5, 3]))
    bound = optimum(scenario, nodes, deadline_ms)
    met = 0
    for policy in POLICIES.values():
        decide = policy(Goal(deadline_ms, nodes, slots, 26 * MINUTE, 11 * MINUTE))
        found = simulate(replace(scenario, policy=decide))
        if found.makespan_ms is not None and first + found.makespan_ms <= deadline_ms:
            parts = found.cost_micro(SPOT, DEDICATED)
            assert parts is not None
            assert sum(parts.values()) >= bound - 1
            met += 1
    assert met


def trace_of(draw: random.Random, nodes: int) -> Sequence[TraceEntry]:
    kind = draw.choice(["exponential", "bathtub", "capacity", "evict"])
    if kind in LIFETIMES:
        away = draw.choice([0, 20 * MINUTE, 2 * HOUR])
        return generate_trace(
            kind, 2.0 * HOUR, away, machines=nodes, until_ms=96 * HOUR, seed=draw.randint(0, 99)
        )
    times = sorted(draw.uniform(0, 86_400) for _ in range(20))
    if kind == "evict":
        return [TraceEntry(time, evict=draw.randint(1, nodes)) for time in times]
    return [TraceEntry(time, capacity=draw.randint(0, nodes + 2)) for time in times]


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_lifetimes_have_their_mean(lifetime: str) -> None:
    draw = random.Random(1)
    drawn = [LIFETIMES[lifetime](draw.random()) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1, rel=0.02)
    early, late = sum(each < 0.2 for each in drawn), sum(0.6 < each < 1.2 for each in drawn)
    if lifetime == "bathtub":  # many early losses, few in the middle, the rest near the end
        assert early > 0.35 * len(drawn)
        assert late < 0.06 * len(drawn)
        assert max(drawn) < 2.1


def test_a_generated_trace_is_the_capacity_of_its_machines() -> None:
    found = generate_trace("exponential", 4.0 * HOUR, HOUR, machines=5, until_ms=200 * HOUR, seed=2)
    assert found[0] == TraceEntry(0.0, capacity=5)
    assert all(each.capacity is not None and 0 <= each.capacity <= 5 for each in found)
    lost = sum(
        (before.capacity or 0) > (after.capacity or 0)
        for before, after in itertools.pairwise(found)
    )
    assert lost == pytest.approx(5 * 200 / 5, rel=0.2)  # each lives 4 hours and is away for one


def assumed() -> AssumedPool:
    return AssumedPool(
        candidates=(),
        slots=1,
        interval_s=300,
        vm_size=None,
        region=None,
        spot_usd=SPOT,
        dedicated_usd=DEDICATED,
    )


def compared(
    tasks: int, duration: str, nodes: int, lifetime: str, hours: tuple[float, float], seed: int
) -> OptionComparison:
    """Compare as `runner cost whatif` does, with its default deadline."""
    lives, away = hours
    scenario = Scenario(
        generate(tasks, 0, parse_spread(duration), 1, 0),
        setup_ms=2 * MINUTE,
        checkpoint_ms=10 * MINUTE,
        save_ms=5_000,
        evictions_per_hour=1 / lives,
        away_ms=round(away * HOUR),
        seed=seed,
    )
    pool = [PoolKind(assumed(), "pool")]
    return compare(pool, scenario, nodes=nodes, deadline_ms=None, seeds=5, lifetime=lifetime)


# Tasks, duration, nodes; and hours that a machine lives and is away. With as many long tasks as
# nodes and little capacity, the bound is far below any schedule: tasks cannot be divided.
MANY, LONG, ONE, EACH = (100, "30m", 10), (40, "lognormal(2h, 0.5)", 8), (1, "24h", 1), (8, "8h", 8)
CASES = [
    *itertools.product([MANY, LONG, ONE, EACH], [(4, 0), (4, 0.5), (8, 1)]),
    *itertools.product([MANY, LONG, ONE], [(4, 2), (12, 6)]),
]


@pytest.mark.slow
@pytest.mark.feature(7)
@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize(("workload", "hours"), CASES)
def test_the_advice_is_within_15_percent_of_the_optimum(
    workload: tuple[int, str, int], hours: tuple[float, float], lifetime: str
) -> None:
    """The policy that five traces advise is also near the optimum of five others."""
    advised = compared(*workload, lifetime, hours, 0).best
    assert advised is not None
    assert advised.regret is not None
    assert 0 <= advised.regret <= 0.15
    others = {each.name: each for each in compared(*workload, lifetime, hours, 100).options}
    held_out = others[advised.name]
    assert held_out.late == 0
    assert held_out.regret is not None
    assert held_out.regret <= 0.15
