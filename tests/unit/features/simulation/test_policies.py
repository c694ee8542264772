"""Policies meet their deadlines, save money, and the checkpoint interval is near the optimum."""

from __future__ import annotations

import random

import pytest

from runner.features.simulation.engine import simulate
from runner.features.simulation.policies import POLICIES, Goal, checkpoint_interval_s
from runner.features.simulation.result import SimulationResult
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

MINUTE, HOUR = 60 * MS, 3600 * MS
NODES = 20
CHANGEOVER = 26 * MINUTE


def costs(seed: int, deadline_ms: int, name: str) -> tuple[SimulationResult, int]:
    """Simulate 200 tasks on spot nodes whose capacity changes every 90 minutes."""
    draw = random.Random(seed)
    changes = [
        TraceEntry(n * 90 * MINUTE / 1000, capacity=draw.choice([20, 20, 12, 5, 0, 0]))
        for n in range(40)
    ]
    found = simulate(
        Scenario(
            generate(200, 0, parse_spread("lognormal(40m, 0.5)"), 1, seed),
            policy=POLICIES[name](Goal(deadline_ms, NODES, 1, CHANGEOVER)),
            interval_ms=5 * MINUTE,
            evictions_per_hour=1 / 6,
            away_ms=20 * MINUTE,
            setup_ms=2 * MINUTE,
            checkpoint_ms=10 * MINUTE,
            changes=changes,
            seed=seed,
        )
    )
    cost = found.cost_micro(0.2, 1.0)
    assert cost is not None
    return found, sum(cost.values())


@pytest.mark.parametrize("deadline_h", [12, 16, 24])
def test_every_policy_meets_its_deadline_and_spot_nodes_save_money(deadline_h: int) -> None:
    spent = dict.fromkeys(POLICIES, 0)
    for seed in range(4):
        for name in POLICIES:
            found, cost = costs(seed, deadline_h * HOUR, name)
            assert found.makespan_ms is not None
            # `spot` promises no deadline: it never uses a dedicated node.
            assert name == "spot" or found.makespan_ms <= deadline_h * HOUR, name
            assert name != "spot" or not found.node_ms[1]
            spent[name] += cost
    assert max(spent, key=lambda name: spent[name]) == "on-demand"
    assert spent["forecast"] < spent["uniform"]


def test_uniform_progress_uses_dedicated_nodes_only_when_it_is_behind() -> None:
    decide = POLICIES["uniform"](Goal(10 * HOUR, 10, 1, 5 * MINUTE))
    total = 40 * HOUR  # with uniform progress, half of it is done after 5 hours

    def after(hours: float, done_h: float, spot: int) -> tuple[int, int]:
        done = int(done_h * HOUR)
        return decide(state(int(hours * HOUR), 40, spot, done, total - done))

    assert after(1, 5, 0) == (10, 0)
    assert after(5, 19, 4) == (10, 6)
    assert after(5.1, 20.5, 4) == (10, 6)  # ahead, but by less than two changeovers
    assert after(5.2, 23, 4) == (10, 0)


def test_greedy_policy_stays_on_dedicated_nodes_once_switched() -> None:
    decide = POLICIES["greedy"](Goal(10 * HOUR, 10, 1, 5 * MINUTE))
    assert decide(state(HOUR, 40, 0, 0, 40 * HOUR)) == (10, 0)
    assert decide(state(6 * HOUR, 40, 10, 0, 40 * HOUR)) == (0, 10)
    assert decide(state(7 * HOUR, 4, 10, 39 * HOUR, HOUR)) == (0, 4)


def test_fallback_policy_replaces_each_missing_spot_node() -> None:
    decide = POLICIES["fallback"](Goal(10 * HOUR, 10, 1, 5 * MINUTE))
    assert decide(state(HOUR, 40, 7, 0, 40 * HOUR)) == (10, 3)
    assert decide(state(HOUR, 40, 10, 0, 40 * HOUR)) == (10, 0)


def test_a_task_with_its_own_node_has_the_slack_of_its_own_work() -> None:
    """Ten tasks of 6 hours on ten nodes need 6 hours, not 12 as in an order that is unknown."""
    goal = Goal(10 * HOUR, 10, 1, 5 * MINUTE)
    pool = SimulatedPool(HOUR, 10, 10, 0, 0, 60 * HOUR, 6 * HOUR, all_arrived=True)
    assert goal.slack_ms(pool) == 3 * HOUR
    full = SimulatedPool(HOUR, 11, 10, 0, 0, 60 * HOUR, 6 * HOUR, all_arrived=True)
    assert goal.slack_ms(full) == 9 * HOUR - (6 + 0.9 * 6) * HOUR


def test_spot_nodes_that_work_are_kept_while_one_eviction_fits() -> None:
    decide = POLICIES["greedy"](Goal(10 * HOUR, 10, 1, 20 * MINUTE, lost_ms=15 * MINUTE))

    def after(slack_min: int, spot: int) -> tuple[int, int]:
        left = 9 * HOUR - slack_min * MINUTE
        return decide(SimulatedPool(HOUR, 10, spot, 0, 0, 10 * left, left, all_arrived=True))

    assert after(45, 8) == (10, 0)
    assert after(39, 8) == (8, 2)
    assert after(39, 5) == (5, 5)
    assert after(34, 5) == (0, 10)


def test_an_evicted_task_counts_with_the_work_that_is_left() -> None:
    """A task with 2 of 10 hours left is evicted; the policy does not see 10 hours."""
    seen: list[int] = []

    def policy(pool: SimulatedPool) -> tuple[int, int]:
        seen.append(pool.longest_ms)
        return 1, 0

    changes = [TraceEntry(8 * 3600 + 360, capacity=0), TraceEntry(9 * 3600, capacity=1)]
    scenario = Scenario(
        Workload([0], [10 * HOUR], [1]), policy=policy, interval_ms=5 * MINUTE, changes=changes,
        checkpoint_ms=10 * MINUTE,
    )  # fmt: skip
    assert simulate(scenario).finished == 1
    assert min(seen[100:]) < max(seen[100:]) <= 2 * HOUR + 20 * MINUTE


def state(now_ms: int, wanted: int, spot: int, done_ms: int, left_ms: int) -> SimulatedPool:
    return SimulatedPool(now_ms, wanted, spot, 0, done_ms, left_ms, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("save_s", "mtbf_s"), [(60, 3600), (20, 1800), (120, 4 * 3600)])
def test_recommended_checkpoint_interval_is_near_the_best_of_the_simulator(
    save_s: int, mtbf_s: int
) -> None:
    """Its time is within 5 % of the shortest of 40 intervals, for long tasks with evictions."""
    work = Workload([0] * 30, [30 * mtbf_s * MS] * 30, [1] * 30)

    def node_ms(every_s: float) -> float:
        found = simulate(
            Scenario(
                work,
                spot=30,
                boot_ms=0,
                notice_ms=0,
                checkpoint_ms=round(every_s * MS),
                save_ms=save_s * MS,
                evictions_per_hour=3600 / mtbf_s,
                seed=3,
            )
        )
        assert found.finished == 30
        return sum(found.node_ms)

    young, daly = checkpoint_interval_s(save_s, mtbf_s)
    assert daly < young
    best = min(node_ms(young * 0.2 * 1.1**step) for step in range(40))
    assert node_ms(daly) <= 1.05 * best


def test_a_save_longer_than_the_time_between_evictions_has_an_interval() -> None:
    assert checkpoint_interval_s(100, 40) == (pytest.approx(89.4, rel=1e-3), 40)


def test_checkpoints_cost_their_time() -> None:
    """40 minutes of work have 3 checkpoints, because the end needs none."""
    work = Workload([0], [40 * MINUTE], [1])
    found = simulate(
        Scenario(work, spot=1, boot_ms=0, checkpoint_ms=10 * MINUTE, save_ms=2 * MINUTE)
    )
    assert found.makespan_ms == 46 * MINUTE
    assert (found.spent_ms["setup"][0], found.spent_ms["useful"][0]) == (6 * MINUTE, 40 * MINUTE)


def test_a_policy_that_asks_for_a_million_nodes_gets_those_of_a_pool() -> None:
    million: Policy = lambda _: (1_000_000, 0)  # noqa: E731
    found = simulate(Scenario(Workload([0], [HOUR], [1]), policy=million, until_ms=2 * HOUR))
    assert "requests 1,000,000 nodes" in found.problems[0].message
