"""The parameters of a run: one set from the recipe, `--set`, a sweep and the words of a command."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol.commands import (
    as_written,
    expand_env,
    get_parameter,
    is_same_value,
    other_arguments,
    read_parameters,
    replace_arguments,
    swept_parameters,
    to_arguments,
    to_value,
)
from runner.protocol.run_spec import RunSpec


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--lr 0.1", {"lr": 0.1}),
        ("--lr=1e-3 --epochs=3", {"lr": 0.001, "epochs": 3}),
        ("--lr 0.1 --amp", {"lr": 0.1, "amp": True}),
        ("--amp --lr 0.1", {"amp": True, "lr": 0.1}),
        ("--batch-size 8 --no-cuda", {"batch_size": 8, "no_cuda": True}),
        ("-b 64 -j8 -lr 0.5 -v", {"b": 64, "j": 8, "lr": 0.5, "v": True}),
        ("--shift -0.5 --low -3 --eps -1e-8", {"shift": -0.5, "low": -3, "eps": -1e-8}),
        ("--layers 64 128 --betas 0.9 0.999", {"layers": [64, 128], "betas": [0.9, 0.999]}),
        ("--tag a --tag b", {"tag": ["a", "b"]}),
        ("--epochs 5 --epochs 1", {"epochs": [5, 1]}),
        ("--name= --ver 1.10 --fold 007", {"name": "", "ver": "1.10", "fold": "007"}),
        ("--config - --out 'a b'", {"config": "-", "out": "a b"}),
        ("lr=0.1 opt=adam", {"lr": 0.1, "opt": "adam"}),
        ("+lr=0.1 ++model.depth=3", {"lr": 0.1, "model.depth": 3}),
        ("db/pool@main=small 'name=\"a b\"'", {"db/pool@main": "small", "name": "a b"}),
        ("lr=0.1 lr=0.2", {"lr": 0.2}),
        ("--multirun lr=0.1,0.2", {"multirun": True, "lr": "0.1,0.2"}),
        ("--use_amp true --x False", {"use_amp": True, "x": False}),
        ("fit data/ https://host/a=b", {}),
    ],
)
def test_arguments_are_parameters_in_every_usual_form(words: str, found: dict[str, Any]) -> None:
    assert read_parameters({"command": ["python", "train.py", *shlex.split(words)]}) == found


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 0.1",
        "python -u -W error -m pkg.train --lr 0.1",
        "torchrun --nproc_per_node 2 train.py --lr 0.1",
        "python -m torch.distributed.run --nnodes 2 -m pkg.train --lr 0.1",
        "accelerate launch --num_processes 2 train.py --lr 0.1",
        "mpirun -np 2 python train.py --lr 0.1",
        "env SEED=1 python train.py --lr 0.1",
        "./train --lr 0.1",
        "bash run.sh --lr 0.1",
        "python -c 'import sys' --lr 0.1",
        "bash -euo pipefail -c 'cd src && python train.py --lr 0.1 > log'",
        "sh -c 'python train.py \"$@\"' sh --lr 0.1",
        "sh -c 'for s in a b; do python train.py --lr 0.1; done'",
    ],
)
def test_options_of_launchers_are_no_parameters(command: str) -> None:
    assert read_parameters({"command": shlex.split(command)}) == {"lr": 0.1}


@pytest.mark.parametrize("command", [[], ["train"], ["sh", "-c", "echo 'open"]])
def test_command_without_arguments_has_no_parameters(command: list[str]) -> None:
    assert read_parameters({"command": command}) == {}


def test_declared_parameters_come_first_and_once() -> None:
    run = {
        "command": ["t.py", "--opt", "sgd", "--learning-rate", "0.1", "--fold", "1"],
        "params": {"learning-rate": 0.1, "fold": "1"},
        "trial": {"params": {"opt": "sgd"}},
    }
    found = read_parameters(run)
    assert found == {"opt": "sgd", "learning-rate": 0.1, "fold": 1}
    assert get_parameter(found, "learning_rate") == 0.1
    assert get_parameter(found, "+opt") == "sgd"
    assert get_parameter(found, "lr") is None


def test_argument_replaces_the_value_of_a_declared_parameter() -> None:
    run = {"command": ["t.py", "--lr", "0.1", "--lr", "0.5"], "params": {"lr": 0.1}}
    assert read_parameters(run) == {"lr": 0.5}
    assert read_parameters({**run, "params": {"lr": "0.50"}}) == {"lr": 0.5}
    assert read_parameters({"command": ["t.py", "+lr=0.1"], "params": {"+lr": "0.1"}}) == {
        "lr": 0.1
    }


def test_parameter_that_the_command_does_not_show_is_kept() -> None:
    command = ["python", "-m", "runner.hooks.notebook", "a.ipynb"]
    assert read_parameters({"command": command, "params": {"lr": 0.1}}) == {"lr": 0.1}


def test_value_of_a_trial_is_replaced_by_that_of_its_repetition() -> None:
    run = {"trial": {"params": {"lr": 0.1, "csv": "data/x.csv"}}, "command": ["t.py"]}
    repeated = {**run, "params": {"lr": "0.3", "csv": "$RUNNER_INPUT_CSV"}}
    assert read_parameters(repeated) == {"lr": 0.3, "csv": "data/x.csv"}
    assert swept_parameters(read_parameters(repeated), {"lr": 0.1}) == {"lr": 0.3}
    assert swept_parameters({"lr": 2}, {"+lr": "2", "n": 1}) == {"+lr": 2, "n": 1}


def test_other_words_are_those_of_the_template() -> None:
    run = {"command": ["t.py", "fit", "resnet", "--lr", "0.1", "data"]}
    assert other_arguments(run) == ["fit", "resnet", "data"]
    template = ["t.py", "fit", "{model}", None, "data"]
    assert other_arguments({**run, "template": template}) == ["fit", "{model}", "data"]
    code = "cd x; ./prog --lr 0.1"
    assert other_arguments({"command": ["sh", "-c", code]}) == ["cd", "x", "./prog", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.1, "1e-1", True), ("0.1", "1e-1", True), (1, 1.0, True), ("1000", "1e3", True),
        (True, "true", True), ([1, "2"], ["1", 2], True), ("a", "a", True),
        (float("nan"), float("nan"), True),
        ("1.10", "1.1", False), ("007", "7", False), (1, True, False), ("a", "A", False),
        (None, 0, False), (None, "None", False), ([1], 1, False), ("1e999", "1e998", False),
    ],
)  # fmt: skip
def test_numbers_are_equal_in_any_spelling(one: object, other: object, same: bool) -> None:
    assert is_same_value(one, other) is same
    assert is_same_value(other, one) is same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("-0.5", -0.5), (".5", 0.5), ("5.", 5.0), ("1.0", 1.0), ("+3", 3),
        ("0", 0), ("True", True), ("1.10", "1.10"), ("007", "007"), ("1_000", "1_000"),
        ("0x10", "0x10"), ("nan", "nan"), ("1e999", "1e999"), ("", ""), ("\u0661", "\u0661"),
        ("1" * 5000, "1" * 5000),
    ],
)  # fmt: skip
def test_texts_that_a_number_would_change_stay_texts(text: str, value: object) -> None:
    found = to_value(text)
    assert (found, type(found)) == (value, type(value))


_NAMES = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True)
_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"[a-z][a-z0-9./]{0,8}", fullmatch=True),
)


@given(st.dictionaries(_NAMES, _VALUES, max_size=4), st.sampled_from(["flags", "key=value"]))
def test_set_is_the_same_wherever_the_parameters_came_from(
    params: dict[str, Any], params_as: Any
) -> None:
    command = ("python", "train.py", *to_arguments(params, params_as))
    typed = RunSpec(run_id="a", command=command, params_as=params_as).all_params
    declared = RunSpec(run_id="b", command=command, params_as=params_as, params=params).all_params
    swept = RunSpec(run_id="c", command=command, trial={"params": params}).all_params
    assert typed.keys() == declared.keys() == swept.keys() == params.keys()
    for name, value in params.items():
        for found in (typed, declared, swept):
            assert is_same_value(found[name], value), (name, found)


@pytest.mark.parametrize(
    ("command", "old", "new", "expected"),
    [
        # The text of a parameter that does not change is kept.
        (["--lr", "1e-3", "--n", "5"], {"lr": 0.001, "n": 5}, {"lr": 0.001, "n": 6},
         ["--lr", "1e-3", "--n", "6"]),
        (["--v", "1.10"], {"v": 1.1}, {"v": as_written(1.2, "1.20")}, ["--v", "1.20"]),
        (["--v", "1.1"], {"v": 1.1}, {"v": as_written(1.1, "1.10")}, ["--v", "1.10"]),
        (["--steps", "1000.0"], {"steps": 1000.0}, {"steps": "2e3"}, ["--steps", "2e3"]),
        (["--n", "5"], {"n": 5}, {"n": None}, []),
        (["x"], {"n": None}, {"n": 5}, ["x", "--n", "5"]),
        (["--n", "None", "x"], {"n": None}, {"n": 5}, ["--n", "5", "x"]),  # of an earlier version
        (["--n=-1e-3", "x"], {"n": "-1e-3"}, {"n": 5}, ["--n", "5", "x"]),
        (["--n", "-1e-3", "x"], {"n": "-1e-3"}, {"n": "-2e-3"}, ["--n=-2e-3", "x"]),  # earlier
    ],
)  # fmt: skip
def test_changed_parameters_replace_those_of_a_recorded_command(
    command: list[str], old: dict[str, Any], new: dict[str, Any], expected: list[str]
) -> None:
    found = replace_arguments(["python", "t.py", *command], old, new, "flags")
    assert found == ("python", "t.py", *expected)


@pytest.mark.parametrize(
    "value", [-3, -0.5, -1e-5, "-1e-3", "-.5", "-x", "--amp", "-", "-1_000", "-inf", "- 1"]
)
def test_value_that_begins_with_a_dash_reaches_argparse(value: object) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    parser.add_argument("--amp", action="store_true")
    words = to_arguments({"lr": value}, "flags")
    found = parser.parse_args(words)
    assert (found.lr, found.amp) == (str(value), False)


def test_swept_text_of_a_number_is_shown_as_written_and_sorted_as_a_number() -> None:
    run = {"command": ["t.py", "--steps", "1e3", "--v", "1.10"]}
    shown = swept_parameters(read_parameters(run), {"steps": "1e3", "v": "1.10"})
    assert (str(shown["steps"]), shown["steps"], shown["v"]) == ("1e3", 1000, "1.10")
    assert json.dumps(shown) == '{"steps": 1000.0, "v": "1.10"}'


def test_variables_of_env_are_expanded_from_each_other_and_the_node() -> None:
    given = {
        "DATA": "$RUNNER_DATA_DIR/${KIND}", "KIND": "train", "PRICE": "5$$ or $$DATA",
        "PATH": "/opt/bin:$PATH", "LD_LIBRARY_PATH": "/opt/lib:$LD_LIBRARY_PATH",
        "A": "$B", "B": "$A", "OTHER": "$UNKNOWN",
    }  # fmt: skip
    others = {"RUNNER_DATA_DIR": "/data", "PATH": "/bin", "KIND": "other"}
    assert expand_env(given, others) == {
        "DATA": "/data/train", "KIND": "train", "PRICE": "5$ or $DATA",
        "PATH": "/opt/bin:/bin", "LD_LIBRARY_PATH": "/opt/lib:",
        "A": "$A", "B": "$A", "OTHER": "$UNKNOWN",
    }  # fmt: skip
