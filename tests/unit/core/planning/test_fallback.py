"""Which pool of its list a run starts in, and when it moves to the next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.contract import PoolOutput
from runner.core.job_moves import JobNote, JobSnapshot, JobStep, may_claim, next_fallback_step
from runner.core.planning.fallback import (
    PoolChance,
    choose_start,
    describe_stay,
    explain_unfit,
    judge_start,
    listed_pools,
    plan_move,
)
from runner.core.states import WaitCause
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import NO_RESOURCES, FallbackRule, PoolStay, Resources, RunSpec
from tests.unit.core.recipe_maker import outputs, pool

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
T4 = pool("t4", vm_size="Standard_NC4as_T4_v3", gpus=1)
T4_DEDICATED = replace(T4, id="t4-dedicated", spot=False)
A10 = pool("a10", vm_size="Standard_NV36ads_A10_v5", gpus=1)
CPU = pool("cpu", vm_size="Standard_D2s_v5")
STACK = outputs(T4_DEDICATED, A10, T4, CPU)
RATES = {"t4": 0.1, "t4-dedicated": 0.5, "a10": 0.6, "cpu": None}
RULE = FallbackRule(("t4", "a10", "t4-dedicated"), after_s=600, evictions=2)
SPEC = RunSpec(run_id="digits-20261121-143005-k3f9", pool="t4", fallback=RULE)


def ids(pools: tuple[PoolOutput, ...]) -> list[str]:
    return [each.id for each in pools]


@pytest.mark.feature(8)
def test_pools_of_a_gpu_model_come_from_the_cheapest_on() -> None:
    assert ids(listed_pools((), ("T4", "a10"), STACK, RATES)) == ["t4", "t4-dedicated", "a10"]
    assert ids(listed_pools((), ("T4",), STACK, {**RATES, "t4": None})) == ["t4-dedicated", "t4"]
    assert ids(listed_pools(("A10", "T4"), (), STACK, RATES)) == ["a10", "t4"]


@pytest.mark.parametrize(
    ("names", "models", "code", "fix"),
    [
        (("t4", "a100"), (), "R-POOL-UNKNOWN", "use 'a10' instead"),
        (("t4", "xxxxx"), (), "R-POOL-UNKNOWN", "remove it from the list"),
        ((), ("H100",), "R-POOL-FIT", "--gpu A10,T4"),
        ((), ("A11",), "R-POOL-FIT", "did you mean A1"),
    ],
)
def test_unknown_pool_or_model_names_what_the_stack_has(
    names: tuple[str, ...], models: tuple[str, ...], code: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        listed_pools(names, models, STACK, RATES)
    assert caught.value.code == code
    assert (caught.value.fix or "").startswith(fix)


@pytest.mark.parametrize(
    ("resources", "cpu", "t4"),
    [
        (Resources(gpus=1), "has no GPUs (1 needed)", ""),
        (Resources(gpu_memory_bytes=16 << 30), "has no GPU memory (16 GiB needed)", ""),
        (
            Resources(gpu_memory_bytes=24 << 30),
            "has no GPU memory (24 GiB needed)",
            "has 16 GiB of GPU memory (24 needed)",
        ),
        (Resources(memory_bytes=20 << 30), "has 8 GiB of memory (20 needed)", ""),
    ],
)
def test_resources_are_checked_for_each_pool(resources: Resources, cpu: str, t4: str) -> None:
    assert explain_unfit(CPU, None, resources, NO_RESOURCES) == cpu
    assert explain_unfit(T4, None, NO_RESOURCES, resources) == t4


def cause(code: str, *, age_s: float = 60, stuck: bool = True) -> WaitCause:
    return WaitCause(code, "no capacity", since=NOW - timedelta(seconds=age_s), stuck=stuck)


@pytest.mark.parametrize(
    ("found", "grows", "starts", "why"),
    [
        (None, False, True, "1 idle node"),
        (cause("AllocationFailed"), True, False, "no capacity (for 1 min"),
        (cause("AllocationFailed", age_s=3700), True, True, "AllocationFailed 1 h"),
        (cause("SpotQuotaReached", age_s=90_000), True, False, "no capacity"),
        (cause("Busy", stuck=False), False, False, "all of its nodes are busy"),
        (cause("Busy", stuck=False), True, True, "1 idle node; it can get more nodes"),
        (cause("Preempted", stuck=False), True, False, "no capacity"),
        (cause("NextEvaluation", stuck=False), True, True, "no capacity"),
    ],
)
def test_pool_starts_a_run_unless_batch_shows_what_prevents_it(
    found: WaitCause | None, grows: bool, starts: bool, why: str
) -> None:
    chance = judge_start(found, may_grow=grows, ready="1 idle node", now=NOW)
    assert chance.can_start is starts
    assert chance.why.startswith(why)


def chances(**able: bool | None) -> tuple[PoolChance, ...]:
    blank = PoolChance("", "size", spot=True, usd_per_hour=0.1, why="says why")
    return tuple(replace(blank, pool=name, can_start=can) for name, can in able.items())


@pytest.mark.parametrize(
    ("able", "chosen"),
    [
        ({"a": True, "b": True}, "a"),
        ({"a": False, "b": True, "c": True}, "b"),
        ({"a": False, "b": False}, "a"),
        ({"a": None, "b": None}, "a"),
    ],
)
def test_first_pool_that_can_start_is_chosen(able: dict[str, Any], chosen: str) -> None:
    found = choose_start(chances(**able))
    assert [each.pool for each in found if each.chosen] == [chosen]
    assert f"{chosen}: chosen: " in next(each.text for each in found if each.chosen)


def test_pool_that_does_not_fit_is_never_chosen() -> None:
    unfit = tuple(replace(each, fits=False) for each in chances(a=None, b=None))
    assert choose_start((unfit[0], *chances(c=False)))[1].chosen
    with pytest.raises(RunnerError, match="no pool of the list can run"):
        choose_start(unfit)


def test_waiting_run_moves_after_its_time() -> None:
    since = NOW - timedelta(seconds=360)
    planned = plan_move(SPEC, since, (), NOW)
    assert planned is not None
    assert not planned.is_due(NOW)
    assert planned.describe(NOW) == "moves to a10 in 4 min (waits since 14:54 UTC)"
    later = NOW + timedelta(minutes=10)
    assert planned.is_due(later)
    assert planned.describe(later) == "due to move to a10 for 6 min (waits since 14:54 UTC)"


def test_wait_in_a_new_pool_begins_with_the_move() -> None:
    stay = PoolStay("t4", until=(NOW - timedelta(seconds=10)).isoformat(), why="waited")
    moved = replace(SPEC, pool="a10", moved_from=(stay,))
    planned = plan_move(moved, NOW - timedelta(hours=1), (), NOW)
    assert planned is not None
    assert (planned.to, planned.is_due(NOW)) == (("t4-dedicated",), False)
    assert describe_stay(stay, RULE) == "waited 10 min for a node of t4"


def test_evictions_within_an_hour_move_a_run_although_it_has_a_node() -> None:
    old, recent = NOW - timedelta(minutes=61), NOW - timedelta(minutes=2)
    few = plan_move(SPEC, None, (old, recent), NOW)
    assert few is not None
    assert (few.due, few.evictions) == (None, 1)
    assert few.describe(NOW) == ""
    enough = plan_move(SPEC, None, (old, NOW - timedelta(minutes=50), recent), NOW)
    assert enough is not None
    assert (enough.is_due(NOW), enough.reason) == (True, "evicted")


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, pool="t4-dedicated"),  # the last one
        replace(SPEC, pool="elsewhere"),  # a person moved it
        replace(SPEC, fallback=None),
    ],
)
def test_run_without_a_later_pool_stays(spec: RunSpec) -> None:
    assert plan_move(spec, NOW - timedelta(days=1), (NOW, NOW, NOW), NOW) is None


JOB = JobSnapshot("job", "active", "t4")
CLAIM = JobNote("fallback", "digits-20261121-143005-k3f9", "a10", "waited")


def test_note_of_a_fallback_is_read_back_and_names_a_command() -> None:
    assert JobNote.parse(CLAIM.to_text()) == CLAIM
    assert CLAIM.command == "runner attach digits-20261121-143005-k3f9"
    assert JobNote.parse("fallback run") is None


def test_fallback_neither_begins_nor_goes_on_against_a_person() -> None:
    assert may_claim(JOB)
    assert not may_claim(replace(JOB, state="disabled"))
    assert not may_claim(replace(JOB, note=JobNote("move", "digits", "b")))
    other = replace(JOB, note=JobNote("move", "digits", "b"))
    assert next_fallback_step(other, CLAIM, is_recorded=False) is JobStep.DONE
    begun = replace(JOB, note=CLAIM)
    assert next_fallback_step(begun, CLAIM, is_recorded=False) is JobStep.DISABLE
