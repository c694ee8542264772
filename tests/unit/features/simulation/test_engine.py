"""The simulator: accounts that add up, evictions, quotas, and formulas that fail in known ways."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.features.simulation.engine import simulate
from runner.features.simulation.result import PURPOSES, SimulationResult
from runner.features.simulation.scenario import (
    MS,
    Scenario,
    ScenarioError,
    TraceEntry,
    Workload,
    generate,
    parse_spread,
)

MINUTE, HOUR = 60 * MS, 3600 * MS
SIMPLE = "$TargetLowPriorityNodes = min(4, $PendingTasks.GetSample(1));"
DRAINING = f"{SIMPLE} $NodeDeallocationOption = taskcompletion;"


def tasks(count: int, length_ms: int = 10 * MINUTE, every_ms: int = 0, slots: int = 1) -> Workload:
    return Workload([n * every_ms for n in range(count)], [length_ms] * count, [slots] * count)


def fixed(work: Workload, spot: int, **settings: object) -> Scenario:
    return dataclasses.replace(Scenario(work, spot=spot), **settings)


def test_two_tasks_on_one_node_run_one_after_the_other() -> None:
    found = simulate(fixed(tasks(2), 1, boot_ms=4 * MINUTE))
    assert found.makespan_ms == 24 * MINUTE
    assert found.waits_ms == [4 * MINUTE, 14 * MINUTE]
    assert {name: each[0] for name, each in found.spent_ms.items()} == {
        "boot": 4 * MINUTE, "setup": 0, "useful": 20 * MINUTE, "lost": 0, "idle": 0,
    }  # fmt: skip


def test_slots_of_a_node_run_at_the_same_time() -> None:
    found = simulate(fixed(tasks(3, slots=2), 1, slots_per_node=4))
    assert found.waits_ms == [4 * MINUTE, 4 * MINUTE, 14 * MINUTE]


def test_an_eviction_costs_the_work_since_the_checkpoint() -> None:
    change = (TraceEntry(10 * MINUTE / 1000, evict=1, notice_s=0),)
    settings = {"boot_ms": MINUTE, "changes": change, "setup_ms": MINUTE}
    kept = simulate(fixed(tasks(1, 20 * MINUTE), 1, checkpoint_ms=5 * MINUTE, **settings))
    again = simulate(fixed(tasks(1, 20 * MINUTE), 1, **settings))
    # 1 minute of boot and of setup, then 8 of work, of which 5 are kept
    assert (kept.spent_ms["useful"][0], kept.spent_ms["lost"][0]) == (20 * MINUTE, 3 * MINUTE)
    assert (again.spent_ms["useful"][0], again.spent_ms["lost"][0]) == (20 * MINUTE, 8 * MINUTE)
    assert kept.makespan_ms == 27 * MINUTE
    assert (kept.evictions, kept.repeated) == (1, 1)


def test_nodes_wait_for_capacity() -> None:
    changes = (TraceEntry(0, capacity=0), TraceEntry(HOUR / 1000, capacity=1))
    found = simulate(fixed(tasks(1), 1, changes=changes, boot_ms=0))
    assert found.unfinished == 1  # the resize of a pool without a formula times out
    assert [each.message for each in found.problems] == [
        "the resize reached its timeout of 15 minutes"
    ]
    scaled = Scenario(tasks(1), formula=DRAINING, changes=changes, boot_ms=0)
    assert simulate(scaled).finished == 1  # but a formula requests it again


def test_the_quota_limits_nodes() -> None:
    found = simulate(Scenario(tasks(8), formula=DRAINING, most_spot=2))
    assert found.finished == 8
    assert max(each.spot for each in found.timeline) == 2
    assert "the quota allows 2 spot nodes" in {each.message for each in found.problems}


def test_a_formula_removes_the_nodes_after_the_last_task() -> None:
    found = simulate(Scenario(tasks(4), formula=DRAINING, interval_ms=5 * MINUTE))
    assert found.left_nodes == 0
    assert found.ended_ms < HOUR


def test_nodes_that_a_formula_keeps_are_reported() -> None:
    found = simulate(Scenario(tasks(1), formula="$TargetLowPriorityNodes = 2;"))
    assert (found.finished, found.left_nodes) == (1, 2)


@pytest.mark.slow
def test_counting_only_active_tasks_removes_working_nodes() -> None:
    """MicrosoftDocs/azure-docs#47753: running tasks do not count, so their nodes are removed."""
    work = Workload([0, 0, 0, 20 * MINUTE], [HOUR] * 4, [1] * 4)
    settings = {"interval_ms": 5 * MINUTE}
    active = SIMPLE.replace("Pending", "Active")
    requeued = result_of(active, work, **settings)
    drained = result_of(DRAINING.replace("Pending", "Active"), work, **settings)
    pending = result_of(SIMPLE, work, **settings)
    assert requeued.repeated > 0
    assert requeued.spent_ms["lost"][0] > HOUR
    assert (drained.repeated, drained.spent_ms["lost"]) == (0, (0, 0))
    assert (pending.repeated, pending.spent_ms["lost"]) == (0, (0, 0))


def test_preempted_nodes_take_the_place_of_new_ones() -> None:
    """nextflow-io/nextflow#5545: the target includes preempted nodes, which do not return soon."""
    work = tasks(8, HOUR)
    settings = {
        "interval_ms": 5 * MINUTE,
        "away_ms": 10 * HOUR,
        "changes": (TraceEntry(30 * MINUTE / 1000, evict=4, notice_s=0),),
    }
    without = result_of(DRAINING, work, **settings)
    added = "min(4, $PendingTasks.GetSample(1)) + sum($PreemptedNodeCount.GetSample(1))"
    formula = f"$TargetLowPriorityNodes = {added}; $NodeDeallocationOption = taskcompletion;"
    replaced = result_of(formula, work, **settings)
    assert without.makespan_ms is not None
    assert replaced.makespan_ms is not None
    assert replaced.makespan_ms < 4 * HOUR < without.makespan_ms


def test_the_same_seed_gives_the_same_result() -> None:
    work = generate(50, HOUR, parse_spread("exponential(20m)"), 1, 3)
    scenario = Scenario(work, formula=SIMPLE, evictions_per_hour=1.0, boot_spread=0.3, seed=5)
    assert simulate(scenario) == simulate(scenario)
    assert simulate(scenario) != simulate(dataclasses.replace(scenario, seed=6))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    slots = draw(st.sampled_from([1, 2, 5]))
    each = st.tuples(
        st.integers(0, 5 * HOUR), st.integers(1, 2 * HOUR), st.integers(1, slots)
    )  # fmt: skip
    rows = sorted(draw(st.lists(each, min_size=1, max_size=25)))
    times = st.integers(0, 6 * HOUR)
    changes = sorted(draw(st.lists(st.tuples(times, st.integers(0, 5), st.booleans()), max_size=4)))
    return Scenario(
        Workload(*map(list, zip(*rows, strict=True))),  # pyright: ignore[reportArgumentType]
        formula=draw(st.sampled_from([None, SIMPLE, DRAINING])),
        spot=draw(st.integers(0, 3)),
        dedicated=draw(st.integers(0, 2)),
        slots_per_node=slots,
        pack=draw(st.booleans()),
        boot_ms=draw(st.integers(0, 20 * MINUTE)),
        setup_ms=draw(st.integers(0, 10 * MINUTE)),
        checkpoint_ms=draw(st.none() | st.integers(1, HOUR)),
        evictions_per_hour=draw(st.sampled_from([0.0, 0.5, 5.0])),
        away_ms=draw(st.sampled_from([0, 10 * MINUTE])),
        changes=[
            TraceEntry(time / 1000, evict=None if full else count, capacity=count if full else None)
            for time, count, full in changes
        ],
        until_ms=24 * HOUR,
        seed=draw(st.integers(0, 99)),
    )


@pytest.mark.slow
@given(scenarios(), st.floats(0.001, 50), st.floats(0.001, 50))
def test_cost_is_the_sum_of_its_parts(scenario: Scenario, spot: float, dedicated: float) -> None:
    found = simulate(scenario)
    assert found.finished + found.unfinished + found.terminated == len(scenario.workload)
    assert all(time >= 0 for pair in found.spent_ms.values() for time in pair)
    cost = found.cost_micro(spot, dedicated)
    assert cost is not None
    whole = scenario.slots_per_node * HOUR
    expected = sum(
        (2 * sum(found.spent_ms[name][kind] for name in PURPOSES) * round(usd * 1e6) + whole)
        // (2 * whole)
        for kind, usd in enumerate((spot, dedicated))
    )
    assert sum(cost.values()) == expected
    if found.unfinished == found.terminated == 0:
        useful = sum(found.spent_ms["useful"])
        assert useful == scenario.workload.slot_ms


def test_an_unknown_price_is_never_counted_as_zero() -> None:
    found = simulate(fixed(tasks(1), 1))
    assert found.cost_micro(None, 1.0) is None
    assert found.cost_micro(0.5, None) is not None  # no dedicated node ran


def test_a_task_that_fits_no_node_is_refused() -> None:
    """Azure/Batch#117: such a task waits forever."""
    with pytest.raises(ScenarioError, match="a task needs 4 slots, but a node has 2"):
        simulate(fixed(tasks(1, slots=4), 1, slots_per_node=2))


def test_a_broken_formula_is_refused() -> None:
    with pytest.raises(ScenarioError, match="Line 1, Col"):
        simulate(Scenario(tasks(1), formula="$TargetLowPriorityNodes = ;"))


def result_of(formula: str, work: Workload, **settings: object) -> SimulationResult:
    return simulate(dataclasses.replace(Scenario(work, formula=formula), **settings))


def test_a_formula_cannot_get_more_nodes_than_a_pool_may_have() -> None:
    found = result_of("$TargetLowPriorityNodes = 1000000;", tasks(3), until_ms=HOUR)
    assert found.finished == 3
    assert max(each.spot for each in found.timeline) == 10_000
    assert "1,000,000 nodes" in found.problems[0].message


@pytest.mark.slow
def test_evictions_are_as_frequent_on_a_pool_that_scales() -> None:
    """A node that reuses the number of an earlier node must not be evicted at the same age."""
    work = tasks(200, HOUR, every_ms=4 * HOUR)
    counts = [
        result_of(
            DRAINING, work, evictions_per_hour=0.5, checkpoint_ms=MINUTE, boot_ms=0, seed=seed
        )
        for seed in range(8)
    ]
    hours = sum(sum(each.node_ms) for each in counts) / HOUR
    assert sum(each.evictions for each in counts) == pytest.approx(0.5 * hours, rel=0.15)


def test_unfinished_tasks_have_no_makespan_and_count_as_waiting() -> None:
    found = result_of(
        "$TargetDedicatedNodes = 1;", tasks(10, 24 * HOUR), until_ms=48 * HOUR
    )  # fmt: skip
    assert (found.unfinished, found.makespan_ms) == (9, None)
    assert found.wait_ms(99) == 48 * HOUR


def test_a_simulation_of_endless_evictions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.features.simulation.engine._MAX_EVENTS", 5000)
    found = result_of(
        "$TargetLowPriorityNodes = 9;", tasks(1, 24 * HOUR), evictions_per_hour=3600.0, boot_ms=0
    )
    assert found.unfinished == 1
    assert "stopped after 5,000 events" in found.problems[-1].message


def test_random_durations_have_the_given_mean() -> None:
    draw = random.Random(1)
    for text, mean in (("exponential(30m)", 1800), ("20m-40m", 1800), ("90", 90)):
        found = [parse_spread(text)(draw) for _ in range(4000)]
        assert sum(found) / len(found) == pytest.approx(mean, rel=0.1)


@pytest.mark.parametrize(
    "text", ["", "-5m", "5m-1m", "normal(3m)", "lognormal(3m)", "lognormal(3m, 9)", "1m("]
)
def test_an_invalid_distribution_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_spread(text)
