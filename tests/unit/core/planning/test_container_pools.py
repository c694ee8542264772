from __future__ import annotations

import pytest

from runner.core.planning.pool_choice import pools_for, pools_for_all
from runner.core.recipe.file import load_recipe
from runner.core.states import RunState, TaskView, decide_status
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import image_digest
from tests.unit.core.recipe_maker import outputs, plan, pool, recipe

PLAIN, BOXES, UNKNOWN = pool("a", containers=False), pool("b", containers=True), pool("c")


@pytest.mark.parametrize(("image", "found"), [(None, ["a", "c"]), ("x:1", ["b", "c"])])
def test_pool_accepts_the_run(image: str | None, found: list[str]) -> None:
    stack = pools_for(image, None, outputs(PLAIN, BOXES, UNKNOWN))
    assert [pool.id for pool in stack.pools] == found


@pytest.mark.parametrize(
    ("image", "wanted", "pools", "said"),
    [
        ("x:1", "A", (PLAIN, BOXES), "pool a runs no containers"),
        (None, "b", (PLAIN, BOXES), "pool b runs containers only"),
        ("x:1", None, (PLAIN,), "every pool of this stack runs no containers"),
    ],
)
def test_unsuitable_pool_is_refused(image, wanted, pools, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RunnerError, match=said) as caught:
        pools_for(image, wanted, outputs(*pools))
    assert caught.value.code == "R-POOL-CONTAINERS"
    assert caught.value.fix


def test_tasks_of_a_file_use_a_pool_suitable_for_all() -> None:
    stack = outputs(PLAIN, BOXES, UNKNOWN)
    inside, outside = {"a": "x:1", "b": "y:1"}, {"a": None, "b": None}
    assert [one.id for one in pools_for_all(inside, None, stack).pools] == ["b", "c"]
    assert [one.id for one in pools_for_all(outside, None, stack).pools] == ["a", "c"]
    mixed = {"fetch": None, "train": "x:1"}
    assert [one.id for one in pools_for_all(mixed, None, stack).pools] == ["c"]
    with pytest.raises(RunnerError) as caught:
        pools_for_all(mixed, None, outputs(PLAIN, BOXES))
    assert caught.value.why.startswith("train has an image and fetch has none")
    for wanted, pools, fix in (
        ("A", (PLAIN, BOXES), "add an image to fetch"),
        ("b", (PLAIN, BOXES, UNKNOWN), "--pool c"),
    ):
        with pytest.raises(
            RunnerError, match=f"pool {wanted.lower()} cannot run every task"
        ) as caught:
            pools_for_all(mixed, wanted, outputs(*pools))
        assert caught.value.fix.startswith(fix), "a pool that takes the others is no help"
    assert pools_for_all(mixed, "c", stack) == stack
    swept = {"1": "x:1", "2": "x:1", "merge": None}
    with pytest.raises(RunnerError, match="can run the trials and the merge task") as caught:
        pools_for_all(swept, None, outputs(PLAIN, BOXES), ("1", "2"))
    assert caught.value.why.startswith("each trial has an image and the merge task has none; a sw")
    assert caught.value.fix == "add an image to the merge task"


def test_run_with_an_image_uses_a_pool_with_containers() -> None:
    assert plan(recipe(image="x:1"), stack=outputs(PLAIN, BOXES)).pool == BOXES
    assert plan(recipe(), stack=outputs(BOXES, PLAIN)).pool == PLAIN


@pytest.mark.parametrize(
    "name",
    [
        "ubuntu",
        "python:3.12-slim",
        "ghcr.io/a/b_c/d-e:v1.2",
        "localhost:5000/x",
        "a@sha256:" + "0" * 64,
    ],
)
def test_valid_image_names_are_accepted(tmp_path, name: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.yaml").write_text(f"image: {name}\n")
    assert load_recipe(str(tmp_path), cwd=tmp_path).image == name
    assert (image_digest(name) is not None) == ("@" in name)


@pytest.mark.parametrize(
    "name", ["Upper/Case", "-v /:/host x", "a b", "x:", "x@sha256:12", "http://a/b", "x;rm", ""]
)
def test_invalid_image_name_is_refused(tmp_path, name: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.yaml").write_text(f"image: '{name}'\n")
    with pytest.raises(RunnerError, match=r"train\.yaml:1: image: invalid image name"):
        load_recipe(str(tmp_path), cwd=tmp_path)


@pytest.mark.parametrize(
    ("view", "said", "fix"),
    [
        (
            TaskView("completed", failure_code="ContainerInvalidImage", failure_message="no such"),
            "ContainerInvalidImage: the image cannot be pulled: no such",
            "docker pull",
        ),
        (TaskView("completed", exit_code=121), "the image has no python3", "add python3"),
        (
            TaskView("completed", exit_code=122),
            "storage denied access: the SAS expired",
            "submit the run again",
        ),
        (
            TaskView("completed", failure_code="BlobAccessDenied", failure_message="denied"),
            "storage denied the node access to the code",
            "submit the run again",
        ),
    ],
)
def test_task_without_a_result_is_explained(view: TaskView, said: str, fix: str) -> None:
    status = decide_status(None, view, 0, None)
    assert status.state is RunState.FAILED
    assert said in status.reason
    assert fix in status.fix


def test_python_version_beside_an_image_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.yaml").write_text("image: x:1\npython: '3.11'\n")
    with pytest.raises(RunnerError, match=r"train\.yaml:2: python: .*its own Python") as caught:
        load_recipe(str(tmp_path), cwd=tmp_path)
    assert "remove `python`" in str(caught.value.fix)
