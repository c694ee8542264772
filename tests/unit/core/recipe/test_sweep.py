from __future__ import annotations

import itertools
import math
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runner.core.recipe.dimensions import DISTRIBUTIONS, MAX_TRIALS
from runner.core.recipe.sweep import (
    SweepFile,
    change_sweep,
    parse_param,
    parse_params,
    replace_trials,
)
from runner.core.yaml_files import explain_errors
from runner.protocol.errors import RunnerError
from runner.protocol.sweeps import StopRule

HERE = Path(__file__).parent


def sweep(params: dict[str, Any], **keys: Any) -> SweepFile:
    return SweepFile.model_validate({"params": params, **keys})


def trials(params: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
    return list(sweep(params, **keys).list_trials(HERE))


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        SweepFile.model_validate(document)
    [problem] = explain_errors(document, SweepFile, caught.value.errors())
    assert problem.fix
    return problem.what


def test_grid_has_every_combination_and_the_last_parameter_changes_fastest() -> None:
    assert trials({"lr": [0.1, 0.01], "optimizer": ["adam", "sgd"]}) == [
        {"lr": 0.1, "optimizer": "adam"},
        {"lr": 0.1, "optimizer": "sgd"},
        {"lr": 0.01, "optimizer": "adam"},
        {"lr": 0.01, "optimizer": "sgd"},
    ]


@pytest.mark.parametrize(
    ("key", "space", "expected"),
    [
        ("a", {"range": [1, 9, 4]}, [{"a": 1}, {"a": 5}, {"a": 9}]),
        ("a", {"range": [3, 1, -2]}, [{"a": 3}, {"a": 1}]),
        ("a, b", [[1, 2], [3, 4]], [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        ("a, b", {"zip": [[1, 3], [2, 4]]}, [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        (
            "a,b",
            {"combinations": ["x", "y", "z"]},
            [{"a": "x", "b": "y"}, {"a": "x", "b": "z"}, {"a": "y", "b": "z"}],
        ),
        ("a,b", {"permutations": [1, 2]}, [{"a": 1, "b": 2}, {"a": 2, "b": 1}]),
        ("file", {"files": "test_sec*.py"}, [{"file": "test_secrets.py"}]),
    ],
    ids=["range", "range down", "rows", "zip", "combinations", "permutations", "files"],
)
@pytest.mark.feature(42)
def test_lists_of_values_are_read(key: str, space: Any, expected: list[dict[str, Any]]) -> None:
    assert trials({key: space}) == expected


def test_conditional_parameter_is_set_only_if_its_condition_holds() -> None:
    params = {
        "momentum": {"choice": [0.8, 0.9], "when": {"optimizer": "sgd"}},
        "optimizer": ["adam", "sgd"],
    }
    expected = [
        {"optimizer": "adam"},
        {"optimizer": "sgd", "momentum": 0.8},
        {"optimizer": "sgd", "momentum": 0.9},
    ]
    assert trials(params) == expected
    drawn = trials(params, method="random", trials=50)
    assert all(("momentum" in trial) == (trial["optimizer"] == "sgd") for trial in drawn)
    assert {trial["optimizer"] for trial in drawn} == {"adam", "sgd"}


def test_repeated_trials_are_adjacent() -> None:
    assert trials({"a": [1, 2]}, repeat=2) == [{"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}]


ARGUMENTS = {
    "uniform": [-1, 1],
    "loguniform": [1e-5, 1e-1],
    "integers": [-3, 3],
    "normal": [5, 2],
    "lognormal": [0, 1],
    "triangular": [0, 10, 2],
    "beta": [2, 3],
    "gamma": [2, 3],
    "exponential": [4],
    "pareto": [3],
    "weibull": [2, 1.5],
}
# Of the distributions above, from their definitions.
MEANS = {
    "uniform": 0,
    "loguniform": (1e-1 - 1e-5) / math.log(1e4),
    "integers": 0,
    "normal": 5,
    "lognormal": math.exp(0.5),
    "triangular": 4,
    "beta": 2 / 5,
    "gamma": 6,
    "exponential": 1 / 4,
    "pareto": 3 / 2,
    "weibull": 2 * math.gamma(1 + 1 / 1.5),
}


@pytest.mark.feature(43)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_of_a_distribution_equals_its_definition(name: str) -> None:
    drawn = [trial["x"] for trial in trials({"x": {name: ARGUMENTS[name]}}, trials=1000)]
    mean = sum(drawn) / len(drawn)
    deviation = math.sqrt(sum((number - mean) ** 2 for number in drawn) / len(drawn))
    assert abs(mean - MEANS[name]) < 5 * deviation / math.sqrt(len(drawn))
    assert all(isinstance(number, int) for number in drawn) == (name == "integers")


@given(seed=st.integers(), count=st.integers(2, 40))
def test_same_seed_gives_the_same_trials_and_more_trials_keep_the_earlier_ones(
    seed: int, count: int
) -> None:
    params = {"lr": {"loguniform": [1e-5, 1e-1]}, "layers": [1, 2, 3]}
    first = trials(params, seed=seed, trials=count)
    assert trials(params, seed=seed, trials=count + 10)[:count] == first
    assert trials(params, seed=seed + 1, trials=count) != first


def test_bounds_truncate_a_distribution() -> None:
    drawn = trials({"x": {"normal": [0, 10], "min": -1, "max": 2}}, trials=200)
    assert all(-1 <= trial["x"] <= 2 for trial in drawn)
    with pytest.raises(RunnerError, match="no value of x between 1e\\+06 and inf"):
        trials({"x": {"normal": [0, 1], "min": 1e6}})


@pytest.mark.parametrize("distribution", [{"lognormal": [1e4, 1]}, {"pareto": 1e-6}])
def test_draws_that_are_too_large_for_a_number_are_outside_of_the_bounds(
    distribution: dict[str, object],
) -> None:
    with pytest.raises(RunnerError) as caught:
        trials({"x": distribution}, trials=20)
    assert caught.value.code == "R-SWEEP-BOUNDS"


def test_more_trials_than_allowed_are_refused_before_they_are_built() -> None:
    huge = {name: {"range": [1, 10**9]} for name in "abcdefgh"}
    with pytest.raises(RunnerError, match="more than 10,000 trials") as caught:
        trials(huge)
    assert caught.value.code == "R-SWEEP-SIZE"
    with pytest.raises(RunnerError, match="more than 100 trials, 100 times each"):
        trials({"a": list(range(101))}, repeat=100)
    with pytest.raises(RunnerError, match="sweep: 100,000 trials") as caught:
        trials({"a": {"range": [1, 1000]}, "b": {"range": [1, 100]}})
    assert "--method random --trials 100" in caught.value.fix
    assert len(trials({"a": {"range": [1, MAX_TRIALS]}})) == MAX_TRIALS


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"lr": 0.1}, "0.1 is a single value"),
        ({"n": [1], "lr": []}, "lr: choice has no values"),
        ({"day": [date(2024, 1, 1)]}, "datetime.date(2024, 1, 1) cannot be the value"),
        ({"lr": [math.nan]}, "nan cannot be the value of a parameter"),
        ({"lr": {"unifrom": [0, 1]}}, "'unifrom' is not a distribution"),
        ({"lr": {"min": 1}}, "expected one of choice, range"),
        ({"lr": {"uniform": [0, 1], "choice": [1]}}, "got uniform and choice"),
        ({"lr": {"uniform": [1, 0]}}, "invalid arguments [1.0, 0.0] for `uniform: [low, high]`"),
        ({"lr": {"uniform": [0, math.inf]}}, "invalid arguments [0.0, inf] for `uniform"),
        ({"lr": {"uniform": "0, 1"}}, "invalid arguments '0, 1' for uniform"),
        ({"lr": {"loguniform": [0, 1]}}, "invalid arguments [0.0, 1.0] for `loguniform"),
        ({"x": {"gamma": [1e308, 1]}}, "invalid arguments [1e+308, 1.0] for `gamma"),
        ({"n": {"integers": [0.5, 2]}}, "invalid arguments [0.5, 2.0] for `integers"),
        ({"lr": {"normal": [0, 1], "min": 2, "max": 1}}, "no value is between min 2 and max 1"),
        ({"lr": {"choice": [1], "min": 0}}, "min and max do not apply to choice"),
        ({"n": {"range": [1, 5, 0]}}, "range [1, 5, 0] is empty"),
        ({"n": {"range": [5, 1]}}, "range [5, 1] is empty"),
        ({"n": {"range": ["a", "b"]}}, "['a', 'b'] is not a range"),
        ({"a, b": {"zip": [[1, 2], [3]]}}, "zip needs 2 lists of the same length"),
        ({"a, b": [[1, 2], [3]]}, "each entry needs 2 values"),
        ({"a": {"zip": [[1]]}}, "zip needs several parameters"),
        ({"a, b": {"combinations": [1]}}, "combinations of 2 parameters need at least 2 values"),
        ({"a, b": {"uniform": [0, 1]}}, "uniform gives one value, not 2"),
        ({"a,": [1]}, "'a,' is not a list of parameter names"),
        ({"a": [1], "a, b": [[1, 2]]}, "a has two entries in params"),
        ({"a": {"choice": [1], "when": {"b": 1}}}, "unknown parameter 'b' in `when` of a"),
        (
            {
                "a": {"choice": [1], "when": {"b": 1}},
                "b": {"choice": [1], "when": {"a": 1}},
            },
            "a, b depend on each other",
        ),
        ({"a": {"choice": [1], "when": {}}}, "`when` names no parameter"),
        ({"lr": [[1]]}, "[1] cannot be the value of a parameter"),
        ({"f": {"files": "../*.csv"}}, "'../*.csv' is not a pattern below the folder"),
    ],
)
def test_invalid_parameters_are_refused_with_a_fix(params: dict[str, Any], what: str) -> None:
    assert what in refusal({"params": params})


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({}, "expected params or generator, got neither"),
        ({"params": {"a": [1]}, "generator": "t.py:make"}, "got both"),
        ({"params": {"a": {"uniform": [0, 1]}}, "method": "grid"}, "a is a distribution"),
        ({"params": {"a": [1]}, "trials": 3}, "a grid has one trial per combination"),
        ({"generator": "t.py:make", "trials": 3}, "a generator decides the number of trials"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], what: str) -> None:
    assert what in refusal(keys)


def test_files_that_do_not_exist_are_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(RunnerError, match="no file for f matches 'data/'") as caught:
        sweep({"f": {"files": "data/"}}).dimensions(tmp_path)
    assert caught.value.fix == 'write `files: "data/*"`'
    with pytest.raises(RunnerError, match=r"no file for f matches 'data/\*.csv"):
        trials({"f": {"files": "data/*.csv"}})


def test_command_line_changes_the_sweep_of_the_recipe() -> None:
    ours = sweep({"lr": [0.1], "momentum": [0.9]})
    texts = ["lr={loguniform: [1e-4, 1e-1]}", "layers=1,2", "name=a,true"]
    changed = change_sweep(ours, dict(map(parse_param, texts)), {"trials": 7, "seed": None})
    assert (changed.trials, changed.seed) == (7, 0)
    assert changed.params == {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "momentum": {"choice": [0.9]},
        "layers": {"choice": [1, 2]},
        "name": {"choice": ["a", True]},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("subject=001,002,010", ["001", "002", "010"]),
        ("commit=0x1f,2", ["0x1f", "2"]),
        ("steps=1e3,2e3", ["1e3", "2e3"]),
        ("version=1.10,1.9", ["1.10", "1.9"]),
        ("version=[1.10, 1.9]", ["1.10", "1.9"]),
        ("version={choice: [1.10, 2]}", ["1.10", "2"]),
        ("flag=True,false", ["True", "false"]),
        ("flag=true,false", [True, False]),
        ("amp=null,1e3", [None, "1e3"]),
        ("size=1_000,+5,.5", ["1_000", "+5", ".5"]),
        ("day=2024-01-01,2024-02-01", ["2024-01-01", "2024-02-01"]),
        ("lr=0.001,0.1,-1", [0.001, 0.1, -1]),
        ("x=[1, 2]", [1, 2]),
    ],
)
def test_ids_and_dates_of_the_command_line_stay_as_written(text: str, expected: list[Any]) -> None:
    sweep = change_sweep(None, parse_params([text]), {})
    values = [trial[text.partition("=")[0]] for trial in sweep.list_trials(Path())]
    assert [(type(each), each) for each in values] == [(type(each), each) for each in expected]


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        ([], "R-SWEEP-EMPTY"),
        (["lr"], "R-SWEEP-PARAM"),
        (["lr="], "R-SWEEP-PARAM"),
        (["lr={uniform: [0"], "R-SWEEP-PARAM"),
        (["lr={uniform: [1, 0]}"], "R-SWEEP"),
    ],
)
def test_invalid_option_is_refused(texts: list[str], code: str) -> None:
    with pytest.raises(RunnerError) as caught:
        change_sweep(None, dict(map(parse_param, texts)), {})
    assert caught.value.code == code
    assert caught.value.fix


def test_sweep_without_parameters_names_those_of_the_recipe() -> None:
    with pytest.raises(RunnerError) as caught:
        change_sweep(None, {}, {}, declared=["lr", "epochs"])
    assert caught.value.fix == "--param NAME=VALUE,VALUE with a NAME of lr, epochs"


@pytest.mark.parametrize(
    ("space", "why", "fix"),
    [
        ({"range": [5, 1]}, "steps of 1 do not lead from 5 to 1", "write `range: [1, 5]`"),
        ({"range": [1, 5, 0]}, "the step is 0", "write `range: [1, 5]`"),
        ({"range": [0.1, 0.5, 0.1]}, "two or three whole numbers", "or the values as a list"),
        ({"range": [1, math.inf]}, "two or three whole numbers", "or the values as a list"),
        ({"uniform": [0, math.inf]}, "no values can be drawn", "use finite numbers"),
        ({"uniform": [1, 0]}, "uniform needs low < high", "use numbers where low < high"),
        ([], "the sweep has no trials", "write a list with at least one value"),
    ],
)
def test_empty_or_infinite_space_is_refused_with_its_reason(
    space: object, why: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        change_sweep(None, {"n": space}, {})
    assert why in caught.value.why
    assert fix in caught.value.fix


def test_parameter_that_is_given_twice_is_refused() -> None:
    with pytest.raises(RunnerError, match="--param lr is given twice") as caught:
        parse_params(["lr=0.1", "n=3", "lr=0.2"])
    assert "--param lr=0.1,0.01" in caught.value.fix
    assert parse_params(["lr=0.1", "n=3"]) == {"lr": [0.1], "n": [3]}


DRAWN = {"lr": {"loguniform": [1e-4, 1e-1]}, "layers": [1, 2]}


@pytest.mark.feature(45)
def test_tpe_with_median_stopping_is_the_default_of_draws_with_a_metric() -> None:
    drawn = sweep(DRAWN)
    assert (drawn.choose_method("loss"), drawn.choose_method(None)) == ("tpe", "random")
    assert drawn.stop_rule("tpe") == StopRule("median", min_reports=3)
    assert drawn.stop_rule("random") is None
    assert sweep(DRAWN, early_stop="none").stop_rule("tpe") is None
    assert sweep(DRAWN, method="random").choose_method("loss") == "random"
    assert sweep({"lr": [0.1, 0.2]}).choose_method("loss") == "grid"
    assert sweep({"lr": [0.1]}, early_stop="halving").stop_rule("grid") == StopRule("halving")


@pytest.mark.parametrize("keys", [{"method": "tpe"}, {"early_stop": "bandit"}])
def test_learning_from_results_needs_a_metric(keys: dict[str, Any]) -> None:
    with pytest.raises(RunnerError, match="requires a metric"):
        sweep(DRAWN, **keys).choose_method(None)


def test_unknown_rule_and_too_early_decisions_are_refused() -> None:
    assert "medain" in refusal({"params": DRAWN, "early_stop": "medain"})
    assert "2" in refusal({"params": DRAWN, "early_stop": {"rule": "median", "min_reports": 2}})


def test_space_of_the_sampler_keeps_bounds_and_conditions() -> None:
    space = sweep(
        {
            "momentum": {"uniform": [0, 1], "max": 0.9, "when": {"opt": "sgd"}},
            "opt": ["sgd", "adam"],
            "decay": {"gamma": [1, 2]},
        }
    ).space(HERE)
    assert space == (
        {"names": ["opt"], "when": [], "kind": "rows", "rows": [["sgd"], ["adam"]]},
        {
            **{"names": ["momentum"], "when": [["opt", ["sgd"]]]},
            **{"kind": "uniform", "low": 0.0, "high": 0.9},
        },
        {"names": ["decay"], "when": [], "kind": "gamma"},
    )


def test_repeated_draws_are_not_changed_by_a_sampler() -> None:
    assert sweep(DRAWN, repeat=2).choose_method("loss") == "random"
    with pytest.raises(RunnerError, match="`repeat` does not apply to `method: tpe`"):
        sweep(DRAWN, repeat=2, method="tpe").choose_method("loss")


def test_goal_without_a_metric_is_refused() -> None:
    with pytest.raises(RunnerError, match="`goal` requires a metric"):
        sweep({"lr": [0.1, 0.2]}, goal="min").choose_method(None)
    assert sweep({"lr": [0.1, 0.2]}, goal="min").choose_method("regret") == "grid"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("lr=loguniform(1e-5, 1e-1)", "--param 'lr={loguniform: [1e-5, 1e-1]}'"),
        ("lr=tune.log_uniform(1e-5,1e-1)", "--param 'lr={loguniform: [1e-5, 1e-1]}'"),
        ("--lr=0.1,0.01", "--param lr=0.1,0.01"),
        ("opt=choice(sgd, adam)", "--param 'opt={choice: [sgd, adam]}'"),
    ],
)
def test_parameter_written_for_another_program_is_refused(text: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        parse_param(text)
    assert (caught.value.code, caught.value.fix) == ("R-SWEEP-PARAM", fix)
    assert parse_param("act=relu(),gelu()")[1] == ["relu()", "gelu()"]


@pytest.mark.parametrize(
    ("text", "fix", "values"),
    [
        ("csv=*.csv", "--param 'csv={files: \"*.csv\"}'", {"files": "*.csv"}),
        ("csv=*/a-?.csv", "--param 'csv={files: \"*/a-?.csv\"}'", {"files": "*/a-?.csv"}),
        (
            "layers=[1,2], [3]",
            '--param \'layers={choice: ["[1,2]", "[3]"]}\'',
            {"choice": ["[1,2]", "[3]"]},
        ),
    ],
)
def test_value_that_is_not_yaml_is_corrected(text: str, fix: str, values: object) -> None:
    with pytest.raises(RunnerError) as caught:
        parse_param(text)
    assert caught.value.fix == fix
    [_, corrected] = shlex.split(fix)
    assert parse_param(corrected)[1] == values
    assert "write YAML in one line" in refused_param("lr=[0.1, 0.2").fix


def refused_param(text: str) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        parse_param(text)
    return caught.value


def test_list_as_a_value_is_quoted() -> None:
    with pytest.raises(RunnerError) as caught:
        change_sweep(None, dict([parse_param("layers=[[1, 2], [3]]")]), {})
    assert caught.value.fix == 'quote it: "[1, 2]"'


def test_refused_arguments_name_the_condition() -> None:
    document = {"params": {"lr": {"integers": [1.5, 3]}}}
    with pytest.raises(ValidationError) as caught:
        SweepFile.model_validate(document)
    [problem] = explain_errors(document, SweepFile, caught.value.errors())
    assert problem.fix == "use numbers where low < high, both whole"


def test_single_values_for_several_parameters_are_explained() -> None:
    assert "each entry needs 2 values" in refusal({"params": {"a, b": [1, 2]}})


class Array:
    """As arrays and numbers of NumPy convert themselves."""

    def __init__(self, values: object) -> None:
        self.values = values

    def tolist(self) -> object:
        return self.values


def test_values_of_python_are_lists_of_values() -> None:
    found = sweep(
        {"a": (1, 2), "b": range(2), "c": Array([0.5]), "d": [Array(3)], "e, f": [(1, 2)]}
    )
    assert found.list_trials(HERE)[0] == {"a": 1, "b": 0, "c": 0.5, "d": 3, "e": 1, "f": 2}
    assert "is not a list of values" in refusal({"params": {"a": iter([1])}})


@pytest.mark.feature(44)
def test_given_trials_are_the_trials_of_the_sweep() -> None:
    own = sweep({"lr": {"uniform": [0, 1]}}, trials=5, metric="loss")
    wanted: list[object] = [{"lr": 0.1}, {"lr": Array(0.2), "momentum": 0.9}, {"width": 3}]
    found = replace_trials(own, iter(wanted), {"repeat": 1})
    expected = ({"lr": 0.1}, {"lr": 0.2, "momentum": 0.9}, {"width": 3})
    assert found.list_trials(HERE) == expected
    assert (found.metric, found.choose_method("loss")) == ("loss", "grid")
    for wrong, what in (
        ([], "no trials"),
        ([{}], "invalid trial"),
        ([None], "invalid trial None"),
        ([{"lr": float("nan")}], "nan"),
    ):
        with pytest.raises(RunnerError, match=what):
            replace_trials(None, wrong, {})
    with pytest.raises(RunnerError, match="the number of trials"):
        replace_trials(None, wanted, {"method": "random"})
    with pytest.raises(RunnerError, match="more than 10,000 trials"):
        replace_trials(None, ({"n": n} for n in itertools.count()), {}).list_trials(HERE)
