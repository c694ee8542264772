"""The choice of the pool of a run."""

from __future__ import annotations

import pytest

from runner.core.planning.pool_choice import (
    choose_common_pool,
    choose_pool,
    missing_resources,
    pool_warnings,
)
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import Resources
from tests.unit.core.recipe_maker import outputs, plan, pool, recipe

GIB = 1024**3
CPU = pool("cpu", vm_size="Standard_D4s_v5", vcpus=4, spot=False)
T4 = pool("t4", vm_size="Standard_NC4as_T4_v3", gpus=1)
A100 = pool("a100", vm_size="Standard_NC96ads_A100_v4", gpus=4)
BOTH = pool("both", vm_size="Standard_NC8as_T4_v3", gpus=1, capacity="spot-then-dedicated")
STACK = outputs(CPU, A100, T4, BOTH)


def chosen(**asked: object) -> str:
    return choose_pool(None, STACK, Resources(**asked)).id  # type: ignore[arg-type]


def test_first_pool_is_chosen_without_requirements() -> None:
    assert chosen() == "cpu"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"gpus": 1}, "t4"),
        ({"gpus": 2}, "a100"),
        ({"gpus": 0}, "cpu"),
        ({"memory_bytes": 500 * GIB}, "a100"),
        ({"memory_bytes": 16 * GIB}, "cpu"),
        ({"gpus": 1, "memory_bytes": 50 * GIB}, "both"),
        ({"vm_sizes": ("standard_nc4AS_t4_v3", "Standard_X")}, "t4"),
        ({"capacity": "spot"}, "a100"),
        ({"capacity": "dedicated"}, "cpu"),
        ({"capacity": "spot-then-dedicated"}, "both"),
    ],
)
def test_first_suitable_pool_with_the_fewest_gpus_is_chosen(
    asked: dict[str, object], expected: str
) -> None:
    assert chosen(**asked) == expected


def test_without_a_suitable_pool_each_mismatch_is_named() -> None:
    with pytest.raises(RunnerError) as caught:
        chosen(gpus=8, memory_bytes=900 * GIB)
    error = caught.value
    assert (error.code, error.exit_code) == ("R-POOL-FIT", ExitCode.PREFLIGHT)
    for name in ("cpu has no GPUs (8 needed)", "4 GPUs (8 needed)", "t4 has 1 GPU (", "880 GiB"):
        assert name in error.why
    with pytest.raises(RunnerError) as caught:
        choose_pool(None, outputs(T4), Resources(capacity="spot-then-dedicated"))
    assert "scenario: spot_first_with_dedicated_fallback" in caught.value.fix


def test_named_pool_must_satisfy_flags_but_may_lack_recipe_resources() -> None:
    asked = Resources(gpus=1, vm_sizes=("Standard_NC4as_T4_v3",))
    chosen = choose_pool("CPU", STACK, asked)
    assert chosen.id == "cpu"
    [warning] = pool_warnings(chosen, asked)
    assert warning.endswith("it has no GPUs (1 needed), VM size Standard_D4s_v5")
    assert pool_warnings(choose_pool("t4", STACK, asked), asked) == ()
    with pytest.raises(RunnerError) as caught:
        choose_pool("cpu", STACK, asked, Resources(gpus=1))
    assert caught.value.code == "R-POOL-FIT"
    assert "no GPUs (1 needed)" in caught.value.why


def test_pool_of_both_kinds_is_neither_spot_nor_dedicated() -> None:
    mixed = pool("mixed", capacity="mixed")
    assert missing_resources(mixed, Resources(capacity="spot")) == "mixed nodes"
    assert missing_resources(BOTH, Resources(capacity="dedicated")) == "spot-then-dedicated nodes"
    assert missing_resources(pool("old", spot=False), Resources(capacity="dedicated")) == ""


def test_size_missing_from_the_table_excludes_no_pool() -> None:
    assert (
        missing_resources(pool("local", vm_size="local"), Resources(memory_bytes=900 * GIB)) == ""
    )


@pytest.mark.feature(28)
def test_plan_uses_the_suitable_pool_and_a_job_per_priority() -> None:
    made = plan(recipe(resources=Resources(gpus=1), priority=-20), stack=STACK)
    assert (made.pool.id, made.job_id) == ("t4", "digits_t4_m20")
    assert plan(recipe(priority=1000), stack=STACK).job_id == "digits_cpu_p1000"


ALONE = pool("alone", max_nodes=8, task_nodes=1)
TWO = pool("two", max_nodes=2, task_nodes=2)
FOUR = pool("four", max_nodes=4, task_nodes=4)


def test_run_on_several_nodes_uses_a_pool_with_enough_nodes() -> None:
    stack = outputs(ALONE, TWO, FOUR)
    found = [choose_pool(None, stack, Resources(nodes=nodes)).id for nodes in (1, 2, 3)]
    assert found == ["alone", "two", "four"]
    with pytest.raises(RunnerError) as caught:
        choose_pool(None, stack, Resources(nodes=5))
    assert caught.value.why == (
        "alone has only tasks on one node (5 nodes needed); two has 2 nodes (5 needed); "
        "four has 4 nodes (5 needed)"
    )
    assert "runner local up --nodes 5 --slots 1" in caught.value.fix


def test_pool_with_too_few_nodes_is_refused_even_if_named() -> None:
    """In Batch, the task would wait forever."""
    stack = outputs(ALONE, TWO)
    for name in ("alone", "two"):
        with pytest.raises(RunnerError) as caught:
            choose_pool(name, stack, Resources(nodes=3))
        assert (caught.value.code, caught.value.exit_code) == ("R-POOL-NODES", ExitCode.PREFLIGHT)
        with pytest.raises(RunnerError) as caught:
            choose_common_pool(name, stack, {"a": Resources(), "b": Resources(nodes=3)})
        assert caught.value.code == "R-POOL-NODES"


def test_trials_on_more_nodes_than_any_pool_has_are_refused_with_the_fix_for_nodes() -> None:
    trials = dict.fromkeys(("1", "2"), Resources(nodes=5))
    with pytest.raises(RunnerError, match="satisfies the resources of each trial") as caught:
        choose_common_pool(None, outputs(TWO), {**trials, "merge": Resources()}, trials)
    assert (caught.value.code, caught.value.why) == ("R-POOL-FIT", "two has 2 nodes (5 needed)")
    assert "runner local up --nodes 5 --slots 1" in caught.value.fix
    with pytest.raises(RunnerError, match="fits every task") as caught:
        choose_common_pool(None, outputs(TWO), {"a": Resources(nodes=5), "b": Resources()})
    assert "runner local up --nodes 5 --slots 1" in caught.value.fix


def test_members_of_a_sweep_are_called_trials_and_merge_task() -> None:
    small, large = Resources(nodes=1), Resources(nodes=5)
    with pytest.raises(RunnerError, match="the resources of the merge task") as caught:
        choose_common_pool(None, outputs(TWO), {"1": small, "merge": large}, ["1"])
    assert caught.value.why == "two has 2 nodes (5 needed)"
    apart = {"1": Resources(gpus=4), "merge": Resources(capacity="dedicated")}
    assert all(choose_pool(None, outputs(CPU, A100), one) for one in apart.values())
    with pytest.raises(RunnerError, match="fits the trials and the merge task\n") as caught:
        choose_common_pool(None, outputs(CPU, A100), apart, ["1"])
    assert caught.value.why.startswith("a sweep has one Batch job and therefore a pool; cpu has ")
    assert "for each trial" in caught.value.why
    assert "task" not in caught.value.fix
    with pytest.raises(RunnerError) as caught:
        choose_common_pool(None, outputs(CPU, A100), apart)
    assert "for 1;" in caught.value.why
    assert "or submit the tasks in separate files" in caught.value.fix


def test_pool_of_an_older_stack_without_node_counts_is_accepted() -> None:
    assert choose_pool(None, outputs(pool("old")), Resources(nodes=3)).id == "old"
