"""A run uses only pools of its team, because nodes of others have another identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.contract import SHARED_TEAM, StackOutputs, TeamOutput
from runner.core.planning.pool_choice import pools_for_all
from runner.core.planning.repeat import choose_same_pool
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import outputs, plan, pool


def _stack(team: str | None, *, with_shared: bool = True) -> StackOutputs:
    shared = (pool("t4"),) if with_shared else ()
    teams = tuple(
        TeamOutput(name, f"runs-{name}", f"models-{name}", f"code-{name}", f"{name}-id", f"/{name}")
        for name in ("vision", "audio")
    )
    stack = outputs(*shared, pool("Vision-T4", team="vision"), pool("audio-t4", team="audio"))
    return replace(stack, teams=teams).for_team(team)


@pytest.mark.parametrize(
    ("team", "chosen"), [(None, "t4"), (SHARED_TEAM, "t4"), ("audio", "audio-t4")]
)
def test_default_pool_is_one_of_the_team(team: str | None, chosen: str) -> None:
    assert plan(stack=_stack(team)).pool.id == chosen


@pytest.mark.attack
@pytest.mark.parametrize(
    ("team", "wanted", "owner", "fix"),
    [
        (None, "vision-t4", "team 'vision'", "--team vision, or --pool t4"),
        ("audio", "vision-T4", "team 'vision'", "--team vision, or --pool audio-t4"),
        ("audio", "t4", "the shared part of the stack", "--team shared, or --pool audio-t4"),
    ],
)
def test_pool_of_another_team_is_refused(
    team: str | None, wanted: str, owner: str, fix: str
) -> None:
    stack = _stack(team)
    record = replace(plan(stack=_stack("vision"), wanted_pool="vision-t4").to_spec(), pool=wanted)
    for choose in (
        lambda: plan(stack=stack, wanted_pool=wanted),
        lambda: pools_for_all({"a": None, "b": "image"}, wanted, stack),
        lambda: choose_same_pool(wanted, record, stack),
        lambda: choose_same_pool(None, record, stack),  # as a changed run.json names it
    ):
        with pytest.raises(RunnerError) as caught:
            choose()
        assert caught.value.code == "R-POOL-TEAM"
        assert owner in caught.value.what
        assert caught.value.fix == fix


def test_shared_part_without_pools_names_the_teams() -> None:
    with pytest.raises(RunnerError) as caught:
        plan(stack=_stack(None, with_shared=False))
    assert caught.value.code == "R-POOL-TEAM"
    assert caught.value.why == "all of its pools belong to teams: audio, vision"
    assert caught.value.fix == "--team audio"
