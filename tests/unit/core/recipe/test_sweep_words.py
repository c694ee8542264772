"""Words of other programs in a sweep: understood, or refused with the form that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.sweep import SweepFile, change_sweep, parse_params
from runner.flows.submit.sweep import check_sweep
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import load_text, plan


def sweep(*texts: str, **changes: Any) -> SweepFile:
    return change_sweep(None, parse_params(texts), changes)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a, b: {zip: [[1, 3], [2, 4]]}", "a, b={zip: [[1, 3], [2, 4]]}"),
        ("a, b: [[1, 2], [3, 4]]", "a, b=[[1, 2], [3, 4]]"),
        ("lr: {choice: ['x=1']}", "lr={choice: ['x=1']}"),
        ("lr={gauss: [0, 1]}", "lr={normal: [0, 1]}"),
        ("lr={log_uniform: [1e-4, 1]}", "lr={loguniform: [1e-4, 1]}"),
        ("lr={values: [1, 2]}", "lr={choice: [1, 2]}"),
        ("lr={grid_search: [1, 2]}", "lr={choice: [1, 2]}"),
    ],
)
def test_other_words_for_the_same_are_understood(text: str, same: str) -> None:
    trials = [sweep(each).list_trials(Path()) for each in (text, same)]
    assert trials[0] == trials[1]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("lr=1e-4..1e-1", "write {loguniform: [1e-4, 1e-1]}"),
        ("lr=0.1...0.5", "write {uniform: [0.1, 0.5]}"),
        ("n=1..10", "write {range: [1, 10]}"),
        ("lr={quniform: [0, 1, 0.25]}", "write {choice: [0, 0.25, 0.5, 0.75, 1]}"),
        ("lr={quniform: [0, 1000, 1]}", "write {uniform: [0, 1000]}: values are not rounded"),
        ("lr={qloguniform: [1e-4, 1, 1e-4]}", "write {loguniform: [1e-4, 1]}: values are not"),
        ("n={randint: [1, 5]}", "write {integers: [1, 5]}, which includes both"),
        ("lr={min: 0.1, max: 0.5}", "write {uniform: [0.1, 0.5]}"),
        ("lr={distribution: log_uniform_values, min: 1e-4, max: 1}", "{loguniform: [1e-4, 1]}"),
        ("lr={type: range, bounds: [1e-6, 0.4]}", "write {loguniform: [1e-6, 0.4]}"),
        ("lr={loguniform: {min: 1e-3, max: 1}}", "write `loguniform: [1e-3, 1]`"),
        ("lr={asha: 3}", "use --early-stop halving"),
        ("lr=1e-1..1e-4", "write {loguniform: [1e-4, 1e-1]}"),
        ("n=10..1", "write {range: [1, 10]}"),
        ("lr=0.1..0.5:log", "write {loguniform: [0.1, 0.5]}"),
        ("lr={log: [0.1, 0.5]}", "write {loguniform: [0.1, 0.5]}"),
        ("lr={min: 0.1, max: 0.5, scale: log}", "write {loguniform: [0.1, 0.5]}"),
        ("lr={min: 0.1, max: 0.5, scale: linear}", "write {uniform: [0.1, 0.5]}"),
        ("lr={prior: log-uniform, min: 1, max: 5}", "write {loguniform: [1, 5]}"),
    ],
)
def test_form_of_another_program_is_refused_with_ours(text: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        sweep(text)
    assert fix in caught.value.fix
    if form := re.search(r"(\{.*\})|`(.*)`", caught.value.fix):
        sweep(f"{text.partition('=')[0]}={form[1] or f'{{{form[2]}}}'}")


@pytest.mark.parametrize(
    ("call", "form"),
    [
        ("loguniform(1e-5, 1e-1)", "{loguniform: [1e-5, 1e-1]}"),
        ("tune.uniform(0,1)", "{uniform: [0, 1]}"),
        ("log(1e-4,1e-1)", "{loguniform: [1e-4, 1e-1]}"),
        ("reciprocal(1e-4,1e-1)", "{loguniform: [1e-4, 1e-1]}"),
        ("gauss(0,1)", "{normal: [0, 1]}"),
        ("np.random.normal(0,1)", "{normal: [0, 1]}"),
        ("quniform(0,1,0.5)", "{choice: [0, 0.5, 1]}"),
        ("qloguniform(1e-4, 1, 1e-4)", "{loguniform: [1e-4, 1]}"),
        ("randint(1,10)", "{integers: [1, 10]}"),
        ("choice(adam, sgd)", "{choice: [adam, sgd]}"),
        ("tune.choice([adam, sgd])", "{choice: [adam, sgd]}"),
        ("grid_search([1, 2])", "{choice: [1, 2]}"),
        ("range(1,5)", "{choice: [1, 2, 3, 4]}"),
        ("range(3)", "{choice: [0, 1, 2]}"),
        ("np.arange(0, 1, 0.5)", "{choice: [0, 0.5]}"),
        ("np.linspace(0,1,3)", "{choice: [0, 0.5, 1]}"),
        ("np.logspace(-3,-1,3)", "{choice: [0.001, 0.01, 0.1]}"),
        ("geomspace(1, 100, 3)", "{choice: [1, 10, 100]}"),
    ],
)
def test_fix_of_a_call_is_the_option_that_works(call: str, form: str) -> None:
    with pytest.raises(RunnerError) as caught:
        sweep(f"lr={call}")
    assert caught.value.fix == f"--param 'lr={form}'"
    sweep(f"lr={form}")


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        ("foo(1)", "write a list of values: --param lr=1,2"),
        ("unifrm(0, 1)", "did you mean 'uniform' or 'loguniform'?"),
        ("range(1, 1000)", "write a list of values: --param lr=1,2"),
        ("linspace(0, 1, 1e9)", "write a list of values: --param lr=1,2"),
        ("uniform()", "write a list of values: --param lr=1,2"),
    ],
)
def test_fix_of_a_call_without_a_form_names_another_one(call: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        sweep(f"lr={call}")
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"method": "asha"}, "use --early-stop halving"),
        ({"method": "hyperband"}, "use --early-stop hyperband"),
        ({"method": "bayes"}, "use tpe"),
    ],
)
def test_method_of_another_program_is_refused_with_ours(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        sweep("lr=1,2", metric="loss", **changes)
    assert fix in caught.value.fix


def test_names_of_the_same_rule_and_method_are_understood() -> None:
    found = sweep("lr=1,2", metric="loss", early_stop="asha", method="grid_search")
    assert found.early_stop is not None
    assert (found.early_stop.rule, found.method) == ("halving", "grid")
    found = sweep("lr=1,2", metric="loss", early_stop={"rule": "asha", "factor": 4})
    assert found.early_stop is not None
    assert (found.early_stop.rule, found.early_stop.factor) == ("halving", 4)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--lr", "{learning_rte}"), "did you mean {learning_rate}?"),
        (("--log=runs/{learning_rte}",), "did you mean {learning_rate}?"),
        (("--x={size}",), "set it with --set size=VALUE"),
        (("--x", '{"a":1}'), ""),
        (("--x", "epoch-{epoch}.pt"), ""),
    ],
)
def test_misspelt_name_in_braces_is_a_warning(
    tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    recipe = load_text(tmp_path / "a", "params: {learning_rate: 0.1}")
    warnings = plan(recipe, params={"learning_rate": 0.1}, script_args=args).warnings
    assert [said in text for text in warnings if "in the command" in text] == [True] * bool(said)


def test_misspelt_name_of_a_sweep_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    recipe = load_recipe(".", cwd=tmp_path)
    checked = check_sweep(recipe, sweep("learning_rate=1,2"), RunOptions(args=("{learning_rte}",)))
    [first, _] = checked.runs.values()
    warnings = plan(first.recipe, script_args=first.options.args, trial=first.trial).warnings
    assert any("did you mean {learning_rate}?" in text for text in warnings)
