"""Calls of the Python API with wrong arguments."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import runner
from runner.api.arguments import checked
from runner.protocol.errors import RunnerError

api: Any = runner  # the type checker would refuse all of them
CALLS: list[tuple[Callable[[], Any], str, str, str]] = [
    (
        lambda: api.train("mnist", set=["a=3"]),
        "train: invalid set ['a=3']",
        "Mapping[str, object] | None, not list",
        "help(",
    ),
    (
        lambda: api.train("mnist", args="--lr 1"),
        "invalid args '--lr 1'",
        "Sequence[str], not str",
        "help(",
    ),
    (
        lambda: api.train("mnist", args=["--lr", 1]),
        "invalid args ['--lr', 1]",
        "Sequence[str], not list with 1 in it",
        "help(",
    ),
    (
        lambda: api.train("mnist", wait="yes"),
        "invalid wait 'yes'",
        "expected bool, not str",
        "help(runner.train)",
    ),
    (
        lambda: api.train("mnist", epochs=3),
        "unknown argument 'epochs'",
        "accepts recipe, set",
        "set={'epochs': 3}",
    ),
    (lambda: api.train("mnist", wiat=True), "unknown argument 'wiat'", "", "did you mean 'wait'?"),
    (lambda: api.train(*()), "missing argument 'recipe'", "", "help(runner.train)"),
    (
        lambda: api.train("mnist", on_progress=3),
        "invalid on_progress 3",
        "OnUpdate | None, not int",
        "help(",
    ),
    (
        lambda: api.train("mnist", capacity="x"),
        "invalid capacity 'x'",
        "expected 'spot', 'dedicated' or",
        "help(",
    ),
    (
        lambda: api.train("mnist", after="x"),
        "invalid after 'x'",
        "Iterable[Run | str], not str",
        "help(",
    ),
    (
        lambda: api.train("mnist", env={"A": 1}),
        "invalid env {'A': 1}",
        "expected Mapping[str, str] | None, not dict",
        "help(",
    ),
    (lambda: api.run(3), "runner.run: invalid ref 3", "expected str, not int", "help(runner.run)"),
    (lambda: api.runs(-1), "invalid limit -1", "expected greater than or equal to 0", "help("),
    (lambda: api.runs(True), "invalid limit True", "NonNegativeInt | None, not bool", "help("),
    (lambda: api.runs("5"), "invalid limit '5'", "NonNegativeInt | None, not str", "help("),
    (
        lambda: api.compare(["a", "b"]),
        "invalid runs ['a', 'b']",
        "Run | str, not list",
        "help(runner.compare)",
    ),
    (
        lambda: api.compare("a", metrics="loss"),
        "invalid metrics 'loss'",
        "Sequence[str], not str",
        "help(",
    ),
    (lambda: api.model(None), "invalid ref None", "expected str, not NoneType", "help("),
    (
        lambda: api.get_model("a", "b", True),
        "unexpected positional argument True",
        "accepts ref",
        "help(",
    ),
    (lambda: api.submit(7), "invalid file 7", "expected str | Path, not int", "help("),
    (
        lambda: api.data.put(3),
        "runner.data.put: invalid source 3",
        "Iterable[str | Path], not int",
        "help(runner.data.put)",
    ),
    (lambda: api.data.put(["a", 3]), "invalid source ['a', 3]", "not list with 3 in it", "help("),
    (lambda: api.data.put("a", 3), "invalid dest 3", "expected str | None, not int", "help("),
    (lambda: api.data.get(Path("a")), "invalid path", "expected str, not PosixPath", "help("),
    (
        lambda: api.data.rm("a", recursiv=True),
        "unknown argument 'recursiv'",
        "",
        "did you mean 'recursive'?",
    ),
    (
        lambda: api.create_schedule("a", every=6),
        "invalid every 6",
        "str | timedelta | None, not int",
        "help(",
    ),
    (
        lambda: api.create_schedule("a", max_runs=0),
        "invalid max_runs 0",
        "greater than or equal to 1",
        "help(",
    ),
    (
        lambda: api.create_schedule("a", until=5),
        "invalid until 5",
        "str | datetime | None",
        "help(",
    ),
    (lambda: api.runs(status=3), "invalid status 3", "str | Iterable[str], not int", "help("),
    (lambda: api.runs(group=3), "invalid group 3", "str | Group | None, not int", "help("),
    (lambda: api.runs(since=3), "invalid since 3", "str | datetime | timedelta | None", "help("),
    (lambda: api.pool(3), "runner.pool: invalid id 3", "expected str, not int", "help("),
    (lambda: api.remove_model(3), "invalid ref 3", "expected str, not int", "help("),
    (lambda: api.alias_model("a"), "missing argument 'alias'", "accepts ref, alias", "help("),
    (
        lambda: api.local.up(nodes="2"),
        "runner.local.up: invalid nodes '2'",
        "int | None, not str",
        "help(",
    ),
    (
        lambda: api.local.evict(notice_s=-1),
        "invalid notice_s -1",
        "greater than or equal to 0",
        "help(",
    ),
    (lambda: api.skus(refresh="x"), "invalid refresh 'x'", "expected bool, not str", "help("),
    (
        lambda: api.tensorboard(port="x"),
        "invalid port 'x'",
        "expected int | None, not str",
        "help(",
    ),
    (
        lambda: api.Run.logs(api, tail=-1),
        "runner.Run.logs: invalid tail -1",
        "equal to 0",
        "help(",
    ),
    (
        lambda: api.Run.logs(api, 3),
        "runner.Run.logs: invalid stream 3",
        "'stdout', 'stderr' or 'build'",
        "help(",
    ),
]


@pytest.mark.parametrize(("call", "what", "why", "fix"), CALLS)
def test_wrong_argument_is_a_runner_error_and_a_type_error(
    call: Callable[[], Any], what: str, why: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        call()
    err = caught.value
    assert err.code == "R-ARGUMENT"
    assert (what in err.what, why in err.why, fix in err.fix) == (True, True, True), err
    assert isinstance(err, TypeError)


def numpy_scalar(value: object) -> Any:
    return SimpleNamespace(shape=(), item=lambda: value)


def test_reserved_variable_is_refused_before_anything_is_started() -> None:
    with pytest.raises(RunnerError) as caught:
        api.train("mnist", env={"RUNNER_RUN_ID": "x"})
    assert (caught.value.code, "reserved for runner" in caught.value.what) == ("R-ENV", True)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    @checked
    def call(
        number: int | None = None, rate: float = 1, path: str | Path = ".", flag: bool = False
    ) -> tuple[object, ...]:
        return number, rate, path, flag

    assert call(
        numpy_scalar(3), rate=numpy_scalar(0.5), path=Path("x"), flag=numpy_scalar(True)
    ) == (3, 0.5, Path("x"), True)
    assert call() == (None, 1, ".", False)
    with pytest.raises(TypeError):
        call(cast("int", 2.5))


def test_signatures_and_docstrings_are_those_of_the_functions() -> None:
    assert list(inspect.signature(runner.train).parameters)[:2] == ["recipe", "set"]
    assert (runner.train.__doc__ or "").startswith("Submit a built-in recipe")
    assert list(inspect.signature(runner.Run.logs).parameters) == [
        "self", "stream", "tail", "attempt", "node",
    ]  # fmt: skip


def test_argument_error_can_be_pickled() -> None:
    with pytest.raises(RunnerError) as caught:
        api.data.put({3}, "x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert again.exit_code is caught.value.exit_code


def test_stack_of_the_local_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (
        lambda: runner.runs(target="local", stack="prod"),
        lambda: runner.train("mnist", target="local", stack="prod"),
        lambda: runner.pools(target="local", stack="prod"),
        lambda: runner.data.ls(target="local", stack="prod"),
    ):
        with pytest.raises(RunnerError) as caught:
            call()
        assert caught.value.code == "R-SETTING-VALUE"
        assert "target 'local' has no stacks" in caught.value.what


def test_every_verb_reports_services_that_do_not_run(
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
