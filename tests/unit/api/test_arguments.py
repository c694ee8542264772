"""Calls of the Python API with what it does not take: told in words, before anything is done."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import runner
from runner.api.arguments import checked
from runner.protocol.errors import RunnerError

api: Any = runner  # the type checker would refuse all of them
CALLS: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: api.train("mnist", set=["epochs=3"]), "set cannot be", "not list", '{"epochs": 3}'),
    (lambda: api.train("mnist", args="--lr 1"), "args cannot be", "a list of texts", '"--lr"'),
    (lambda: api.train("mnist", args=["--lr", 1]), "args cannot be", "a int in it", '"0.1"'),
    (lambda: api.train("mnist", wait="yes"), "wait cannot be 'yes'", "True or", "wait=True"),
    (lambda: api.train("mnist", epochs=3), "no argument epochs", "recipe, set", "{'epochs': 3}"),
    (lambda: api.train("mnist", wiat=True), "no argument wiat", "", "did you mean wait?"),
    (lambda: api.train(*()), "missing a required argument: 'recipe'", "", "help(runner.train)"),
    (lambda: api.train("mnist", on_progress=3), "on_progress cannot be 3", "function", "=print"),
    (lambda: api.run(3), "runner.run: ref cannot be 3", "text, not int", 'ref="@last"'),
    (lambda: api.runs(-1), "limit cannot be -1", "0 or more", "limit="),
    (lambda: api.runs(True), "limit cannot be True", "a whole number, not bool", "limit="),
    (lambda: api.runs("5"), "limit cannot be '5'", "a whole number, not str", "limit="),
    (lambda: api.compare(["a", "b"]), "runs cannot be", "a run or text", "runner.compare(run"),
    (lambda: api.compare("a", metrics="loss"), "metrics cannot be", "list", '["loss"]'),
    (lambda: api.model(None), "ref cannot be None", "text, not NoneType", "ref="),
    (lambda: api.get_model("a", "b", True), "too many positional", "it takes ref", "help("),
    (lambda: api.submit(7), "file cannot be 7", "text or a path", "file="),
    (lambda: api.data.put(3), "runner.data.put: source cannot be 3", "a list of paths", '"./cats"'),
    (lambda: api.data.put(["a", 3]), "source cannot be ['a', 3]", "a int in it", '"./cats"'),
    (lambda: api.data.put("a", 3), "dest cannot be 3", "text, not int", "dest="),
    (lambda: api.data.get(Path("a")), "path cannot be", "text, not Po", 'path="cats/2024"'),
    (
        lambda: api.data.rm("a", recursiv=True),
        "no argument recursiv",
        "",
        "did you mean recursive?",
    ),
    (
        lambda: api.create_schedule("a", every=6),
        "every cannot be 6",
        "text or a duration",
        "every=",
    ),
    (
        lambda: api.create_schedule("a", max_runs=0),
        "max_runs cannot be 0",
        "1 or more",
        "max_runs=",
    ),
    (lambda: api.create_schedule("a", until=5), "until cannot be 5", "text or a moment", "until="),
    (lambda: api.runs(status=3), "status cannot be 3", "text or a list of texts", "status="),
    (lambda: api.runs(group=3), "group cannot be 3", "text or a group", "group="),
    (lambda: api.runs(since=3), "since cannot be 3", "a moment or a duration", "since="),
    (lambda: api.pool(3), "runner.pool: id cannot be 3", "text, not int", "id="),
    (lambda: api.remove_model(3), "ref cannot be 3", "text, not int", "ref="),
    (lambda: api.alias_model("a"), "missing a required argument: 'alias'", "", "help("),
    (lambda: api.local.up(nodes="2"), "runner.local.up: nodes cannot be '2'", "whole", "nodes="),
    (lambda: api.local.evict(notice_s=-1), "notice_s cannot be -1", "0 or more", "notice_s="),
    (lambda: api.skus(refresh="x"), "refresh cannot be 'x'", "True or False", "refresh="),
    (lambda: api.tensorboard(port="x"), "port cannot be 'x'", "a whole number", "port="),
]


@pytest.mark.parametrize(("call", "what", "why", "fix"), CALLS)
def test_wrong_argument_is_an_error_of_ours_and_still_a_type_error(
    call: Callable[[], Any], what: str, why: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        call()
    err = caught.value
    assert err.code == "R-ARGUMENT"
    assert (what in err.what, why in err.why, fix in err.fix) == (True, True, True), err
    assert isinstance(err, TypeError)


class np_int64:  # noqa: N801  as numpy has them
    def __index__(self) -> int:
        return 3


class np_float32:  # noqa: N801
    def __float__(self) -> float:
        return 0.5


np_bool = type("bool_", (), {})


def test_what_python_takes_for_the_same_is_taken() -> None:
    @checked
    def call(
        number: int | None = None, rate: float = 1, path: str | Path = ".", flag: bool = False
    ) -> tuple[object, ...]:
        return number, rate, path, flag

    whole, part, true = np_int64(), np_float32(), np_bool()
    given = call(cast("int", whole), cast("float", part), Path("x"), cast("bool", true))
    assert given[0] is whole
    assert call() == (None, 1, ".", False)
    with pytest.raises(TypeError):
        call(cast("int", 2.5))


def test_signatures_and_help_are_those_of_the_functions() -> None:
    assert list(inspect.signature(runner.train).parameters)[:2] == ["recipe", "set"]
    assert (runner.train.__doc__ or "").startswith("Submit a built-in recipe")
    assert list(inspect.signature(runner.Run.logs).parameters) == [
        "self", "stream", "tail", "attempt", "node",
    ]  # fmt: skip


def test_error_comes_out_of_another_process_as_it_was() -> None:
    with pytest.raises(RunnerError) as caught:
        api.data.put({3}, "x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert again.exit_code is caught.value.exit_code


def test_stack_is_refused_where_the_target_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (
        lambda: runner.runs(target="local", stack="prod"),
        lambda: runner.train("mnist", target="local", stack="prod"),
        lambda: runner.pools(target="local", stack="prod"),
        lambda: runner.data.ls(target="local", stack="prod"),
    ):
        with pytest.raises(RunnerError) as caught:
            call()
        assert caught.value.code == "R-SETTING-VALUE"
        assert "the target local has no stacks" in caught.value.what


def test_services_that_do_not_run_are_told_by_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    for call in (
        lambda: runner.data.put("a.txt"),
        runner.data.ls,
        runner.schedules,
        runner.pools,
        runner.models,
        lambda: runner.remove_model("a@1"),
        runner.runs,
        runner.group,
        runner.retry_failed,
        runner.local.env,
        runner.local.evict,
    ):
        with pytest.raises(RunnerError) as caught:
            call()
        assert "runner local up" in caught.value.fix, caught.value
    assert not runner.local.status().running
    assert not (tmp_path / "home").exists(), "looking makes nothing"
