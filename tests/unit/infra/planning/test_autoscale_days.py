"""Days of pools under their formulas: when nodes come, when they go, what they do meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner_infra.config.pool import PoolConfig
from runner_infra.planning.autoscale_formula import FALLBACK_WAIT_MINUTES, NodeCaps, formula_text
from tests.unit.emulator.scheduling.test_autoscaling import scaling
from tests.unit.emulator.world import World
from tests.unit.infra.day import Day, Moment

_MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)  # a Monday
# The newest sample is a minute old, tasks of five minutes keep nodes, and the next evaluation may
# be five minutes away: the idle minutes that a last task may cost at most.
_IDLE_AT_MOST = timedelta(minutes=12)
_FALLBACK = {
    "scenario": "spot_first_with_dedicated_fallback",
    "max_spot": 4,
    "max_dedicated": 2,
}


def formula(**values: Any) -> str:
    pool = PoolConfig.model_validate({"id": "t4", "vm_size": "Standard_NC4as_T4_v3", **values})
    text = formula_text(pool, NodeCaps(pool.max_spot, pool.max_dedicated))
    assert text is not None
    return text


def at(hours: float) -> datetime:
    return _MIDNIGHT + timedelta(hours=hours)


def last(moments: list[Moment], what: str) -> datetime:
    return max(moment.at for moment in moments if getattr(moment, what))


def first(moments: list[Moment], what: str) -> datetime:
    return min(moment.at for moment in moments if getattr(moment, what))


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("lost", [0, 3, 2])  # every n-th sample
def test_pool_is_at_zero_minutes_after_its_last_task(slots: int, lost: int) -> None:
    def is_lost(step: int) -> bool:
        return bool(lost) and step % lost == 0

    day = Day(formula(slots=slots), _MIDNIGHT, slots=slots, lost=is_lost)
    moments = day.run(24, {at(1): [20] * 10, at(9.99): [45], at(15): [5] * 30})
    assert day.done == 41
    assert max(moment.spot for moment in moments) <= 4
    assert not any(moment.dedicated for moment in moments)
    for begin, end in ((0, 9.9), (9.9, 14.9), (14.9, 24)):
        part = [moment for moment in moments if at(begin) <= moment.at < at(end)]
        assert last(part, "spot") - last(part, "pending") <= _IDLE_AT_MOST
        assert not part[0].spot
        assert not part[-1].spot


def test_pool_keeps_its_nodes_between_consecutive_trials() -> None:
    day = Day(formula(max_spot=1), _MIDNIGHT)
    moments = day.run(6, {at(1 + n / 4): [11] for n in range(12)})
    while_busy = [m.spot for m in moments if at(1.2) < m.at < last(moments, "pending")]
    assert set(while_busy) == {1}
    assert day.done == 12


def test_dedicated_nodes_replace_spot_after_the_wait_until_it_returns() -> None:
    def capacity(now: datetime) -> int:
        return 0 if at(3) <= now < at(5) else 1000

    day = Day(formula(**_FALLBACK), _MIDNIGHT, capacity=capacity)
    moments = day.run(24, {at(1): [30] * 60})
    assert day.done == 60
    wait = timedelta(minutes=FALLBACK_WAIT_MINUTES)
    began, ended = first(moments, "want_dedicated"), last(moments, "want_dedicated")
    assert at(3) + wait <= began <= at(3) + wait + timedelta(minutes=7)
    assert at(5) <= ended <= at(5) + timedelta(minutes=7)
    assert last(moments, "dedicated") <= ended + timedelta(minutes=31), "its task may finish"
    away = [m for m in moments if at(3.5) <= m.at < at(5)]
    assert {(m.spot, m.dedicated, m.want_spot) for m in away} == {(0, 2, 4)}
    assert last(moments, "spot") - last(moments, "pending") <= _IDLE_AT_MOST


def test_dedicated_nodes_replace_spot_capacity_never_available() -> None:
    day = Day(formula(**_FALLBACK), _MIDNIGHT, capacity=lambda _: 1)
    moments = day.run(12, {at(1): [20] * 12})
    assert day.done == 12
    assert first(moments, "dedicated") >= at(1) + timedelta(minutes=FALLBACK_WAIT_MINUTES)
    busy = [m for m in moments if at(1.5) < m.at < at(2)]
    assert {(m.spot, m.dedicated) for m in busy} == {(1, 2)}
    assert not moments[-1].spot
    assert not moments[-1].dedicated


def test_no_dedicated_node_is_requested_while_spot_is_available() -> None:
    day = Day(formula(**_FALLBACK), _MIDNIGHT)
    moments = day.run(24, {at(1): [30] * 60, at(18): [5] * 3})
    assert day.done == 63
    assert not any(moment.want_dedicated for moment in moments)


@pytest.mark.slow
def test_nodes_without_tasks_are_kept_only_in_office_hours() -> None:
    hours = {"start": "08:00", "end": "18:00", "utc_offset_hours": 1, "nodes": 2}
    text = formula(scenario="office_hours", office_hours=hours)
    day = Day(text, _MIDNIGHT)
    moments = day.run(24 * 7, {at(10): [30] * 8})
    for number in range(7):
        of_day = [m for m in moments if at(24 * number) <= m.at < at(24 * (number + 1))]
        if number >= 5:
            assert not any(m.spot for m in of_day), "the weekend is free"
            continue
        in_hours = [m for m in of_day if at(24 * number + 7.1) <= m.at < at(24 * number + 17)]
        assert min(m.spot for m in in_hours) == 2
        assert first(of_day, "spot") >= at(24 * number + 7)
        assert last(of_day, "spot") <= at(24 * number + 17.1)
    assert max(m.spot for m in moments) == 4


def test_pool_of_the_emulator_grows_for_a_task_and_returns_to_zero() -> None:
    world = World(boot_s=60)
    pool = scaling(world, formula(slots=2), taskSlotsPerNode=2)
    task = world.task(world.job(), "train")
    for _ in range(14):
        world.push(30)
    assert [node.dedicated for node in pool.nodes.values()] == [False]
    assert task.execution is not None
    world.end(task)
    for _ in range(25):
        world.push(30)
    assert not pool.nodes
    assert (pool.dedicated_target, pool.spot_target) == (0, 0)
