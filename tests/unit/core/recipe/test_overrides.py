"""`--set name=value`."""

from __future__ import annotations

import pytest

from runner.core.recipe.options import parse_value, resolve_params
from runner.core.recipe.recipe import Param
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import param

PARAMS = (
    param("epochs", "int", 5, min=1, max=100),
    param("lr", "float", 0.001, min=0.0),
    param("optimizer", "str", "adam", choices=("adam", "sgd")),
    param("augment", "bool", False),
    param("subset", "int", None),
)


def refusal(*overrides: str) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        resolve_params(PARAMS, overrides)
    return caught.value


def test_defaults_are_kept_and_parameters_without_one_omitted() -> None:
    assert resolve_params(PARAMS, []) == {
        "epochs": 5,
        "lr": 0.001,
        "optimizer": "adam",
        "augment": False,
    }


@pytest.mark.parametrize("params", [PARAMS, ()])
def test_parameter_that_is_set_twice_is_refused(params: tuple[Param, ...]) -> None:
    with pytest.raises(RunnerError) as caught:
        resolve_params(params, ["lr=1", "epochs=2", "epochs=3"])
    assert (caught.value.code, caught.value.what) == ("R-SET-FORM", "--set epochs is given twice")
    assert "'2' and '3'" in caught.value.why


def test_values_have_the_declared_type() -> None:
    values = resolve_params(
        PARAMS, ["epochs=3", "lr=1", "augment=Yes", "subset=8000", "optimizer=sgd"]
    )
    assert values == {
        "epochs": 3,
        "lr": 1.0,
        "optimizer": "sgd",
        "augment": True,
        "subset": 8000,
    }
    assert isinstance(values["lr"], float)


def test_value_can_be_empty_or_contain_an_equals_sign() -> None:
    text = param("text", "str", "x")
    assert resolve_params((text,), ["text=a=b"]) == {"text": "a=b"}
    assert resolve_params((text,), ["text="]) == {"text": ""}


def test_unknown_parameter_names_similar_and_declared_ones() -> None:
    error = refusal("epoch=3")
    assert error.code == "R-SET-UNKNOWN"
    assert "epochs" in error.fix
    assert "optimizer" in error.why


def test_undeclared_parameters_are_passed_as_typed() -> None:
    given = ["lr=1e-4", "id=007", "tag=a=b", "model.width=[1, 2]"]
    values = resolve_params((), given)
    assert values == {"lr": "1e-4", "id": "007", "tag": "a=b", "model.width": "[1, 2]"}


def test_name_with_dashes_is_corrected() -> None:
    with pytest.raises(RunnerError) as caught:
        resolve_params((), ["--batch-size=1"])
    assert caught.value.fix == "write the name without dashes: batch-size"


@pytest.mark.parametrize("name", ["--a b", "a b", "1st"])
def test_invalid_argument_name_is_refused(name: str) -> None:
    with pytest.raises(RunnerError) as caught:
        resolve_params((), [f"{name}=1"])
    assert caught.value.code == "R-SET-UNKNOWN"
    assert "letters" in caught.value.fix


def test_set_is_refused_for_a_notebook_without_parameters() -> None:
    with pytest.raises(RunnerError) as caught:
        resolve_params((), ["EPOCHS=3"], "train.ipynb")
    assert caught.value.code == "R-SET-UNKNOWN"


def test_fix_for_an_entry_that_hydra_removes_is_an_argument() -> None:
    assert refusal("~db.user").fix == "-- '~db.user'"


@pytest.mark.parametrize("text", ["epochs", "=3", " =3", ""])
def test_text_without_a_name_or_equals_sign_is_refused(text: str) -> None:
    assert refusal(text).code == "R-SET-FORM"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epochs=many", "whole number"),
        ("epochs=2.5", "whole number"),
        ("epochs=0", "at least 1"),
        ("epochs=101", "at most 100"),
        ("lr=nan", "finite"),
        ("lr=inf", "finite"),
        ("lr=fast", "a number"),
        ("lr=-0.5", "at least 0"),
        ("optimizer=lion", "adam, sgd"),
        ("augment=maybe", "true or false"),
    ],
)
def test_invalid_value_names_the_allowed_ones(text: str, why: str) -> None:
    error = refusal(text)
    assert error.code == "R-SET-VALUE"
    assert why in error.why
    assert text.partition("=")[0] in error.what


def test_list_is_read_as_yaml_and_other_values_are_refused() -> None:
    layers = param("layers", "list", None)
    assert parse_value(layers, "[64, 32]") == [64, 32]
    with pytest.raises(RunnerError) as caught:
        parse_value(layers, "64")
    assert "must be a list" in caught.value.why


@pytest.mark.parametrize("word", ["true", "on", "1", "YES"])
def test_words_for_true_are_accepted(word: str) -> None:
    assert parse_value(param("flag", "bool", False), word) is True


def test_example_of_a_value_is_not_a_refused_one() -> None:
    rate = param("rate", "float", float("nan"))
    with pytest.raises(RunnerError) as caught:
        parse_value(rate, "nan")
    assert "nan" not in caught.value.fix
