"""Each option of a run has a flag, a Python argument, a key and a help text, declared once."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

import runner
from runner.cli.main import build_app, main
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import OPTIONS, RunOptions
from runner.flows.submit.check_and_read import check_run
from runner.protocol.errors import ExitCode
from tools.recipe_schema import submit_schema, train_schema

Capture = pytest.CaptureFixture[str]


def parameters(*words: str) -> dict[str, Any]:
    """Return the parameters of a command by their flags; an argument by its name."""
    command: Any = typer.main.get_command(build_app((words[0],)))
    for word in words:
        command = command.commands[word]
    return {flag: each for each in command.params for flag in each.opts}


def keys(schema: dict[str, Any]) -> set[str]:
    """Return the keys of a file and of its sections, such as `tasks` and `timeout`."""
    return {
        key for each in (schema, *schema["$defs"].values()) for key in each.get("properties", ())
    }


def test_train_and_sweep_have_a_flag_for_each_option() -> None:
    train, sweep = parameters("train"), parameters("sweep", "start")
    for name, option in OPTIONS.items():
        flag = option.flag or name
        assert option.help.rstrip(".") in train[flag].help
        assert flag in sweep or name == "after", name


def test_python_has_an_argument_for_each_option() -> None:
    train, sweep = (inspect.signature(each).parameters for each in (runner.train, runner.sweep))
    assert OPTIONS.keys() <= train.keys()
    assert OPTIONS.keys() - sweep.keys() == {"after"}
    for name, option in OPTIONS.items():
        assert f"{name}: {option.help}" in (runner.train.__doc__ or "")


def test_files_have_a_key_for_each_option() -> None:
    known = keys(json.loads(train_schema())) | keys(json.loads(submit_schema()))
    assert {part for option in OPTIONS.values() for part in option.key.split(".")} <= known


def test_word_of_an_option_is_the_same_everywhere() -> None:
    """`--set` is short for the parameters of a file, and a repeated flag has the singular."""
    for name, option in OPTIONS.items():
        flag = option.flag.removeprefix("--").replace("-", "_") or name
        key = option.key.rpartition(".")[2]
        assert flag in (name, name.removesuffix("s")), name
        assert name in (key, "set"), name


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    return "./train.py"


@pytest.mark.parametrize(
    ("old", "new", "verb"),
    [
        (("--max-time", "soon"), "--timeout", ("train",)),
        (("--max-time", "soon"), "--timeout", ("sweep", "start")),
    ],
)
def test_old_flag_works_with_a_warning(
    script: str, old: tuple[str, str], new: str, verb: tuple[str, ...], capsys: Capture
) -> None:
    assert main([*verb, script, *old]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert f"warning: {old[0]} is now {new}" in shown
    assert f"error[R-FLAG-VALUE]: invalid {new}" in shown


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--gpu", "1"), "R-FLAG-VALUE", "--gpu 1: expected GPU models, not a number"),
        (("--pools", ","), "R-FLAG-VALUE", "--pools: the list of pools is empty"),
        (("--pools", "a,b,A"), "R-FLAG-VALUE", "--pools: 'A' is listed twice"),
        (("--pools", "a,b", "--pool", "a"), "R-USAGE", "--pool and --pools exclude each other"),
        (("--pools", "a,b", "--gpu", "T4"), "R-USAGE", "--pools and --gpu exclude each other"),
        (("--fallback-after", "1s"), "R-FLAG-VALUE", "invalid --fallback-after 1s"),
        (("--fallback-evictions", "0"), "R-FLAG-VALUE", "invalid --fallback-evictions 0"),
        (("--pools", "a,b", "--dry-run"), "R-POOLS-LOCAL", "--pools names pools that this machine"),
        (("--gpu", "T4", "--dry-run"), "R-POOLS-LOCAL", "--gpu names pools that this machine"),
    ],
)
def test_invalid_list_of_pools_is_refused(
    script: str, words: tuple[str, ...], code: str, what: str, capsys: Capture
) -> None:
    assert main(["train", script, *words]) != 0
    assert f"error[{code}]: {what}" in capsys.readouterr().err


def test_list_of_a_recipe_has_no_effect_on_this_machine(script: str, capsys: Capture) -> None:
    Path("train.yaml").write_text("command: python train.py\npools: [t4-spot, a10-spot]\n")
    assert main(["train", ".", "--dry-run"]) == 0
    assert "`pools` of the recipe has no effect: this machine has one pool" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ("pools: []", "the list of pools is empty"),
        ("pools: [a, a]", "'a' is listed twice"),
        ("pools: [a]\ngpu: [T4]", "`pools` and `gpu` exclude each other"),
        ("pools: ['a b']", "'a b' is not the ID of a pool"),
    ],
)
def test_invalid_list_in_a_recipe_is_refused(
    script: str, keys: str, what: str, capsys: Capture
) -> None:
    Path("train.yaml").write_text(f"command: python train.py\n{keys}\n")
    assert main(["train", ".", "--dry-run"]) == ExitCode.USAGE
    assert what in capsys.readouterr().err


def test_sweep_of_a_recipe_with_several_pools_is_refused(script: str, capsys: Capture) -> None:
    words = ["sweep", "start", script, "-p", "a=1,2", "--pools", "a,b", "--dry-run"]
    assert main(words) != 0
    shown = capsys.readouterr().err
    assert "error[R-POOLS-GROUP]: a sweep has one pool, but train names several" in shown
    assert "fix: --pool a" in shown


def test_old_name_of_max_parallel_works_with_a_warning(script: str, capsys: Capture) -> None:
    assert main(["sweep", "start", script, "--parallel", "0", "-p", "a=1"]) == ExitCode.USAGE
    assert "warning: --parallel is now --max-parallel" in capsys.readouterr().err


def test_sweep_without_parallel_trials_is_refused(script: str, capsys: Capture) -> None:
    words = ["sweep", "start", script, "--max-parallel", "0", "-p", "a=1", "--dry-run"]
    assert main(words) == ExitCode.USAGE
    assert "sweep.max_parallel: got 0" in capsys.readouterr().err


def test_capacity_and_another_short_form_exclude_each_other(script: str, capsys: Capture) -> None:
    words = ["train", script, "--capacity", "dedicated", "--spot"]
    assert main(words) == ExitCode.USAGE
    assert "--capacity dedicated and --spot exclude each other" in capsys.readouterr().err
    assert main(["train", script, "--capacity", "spots"]) == ExitCode.USAGE
    assert "fix: --capacity spot" in capsys.readouterr().err


def test_only_the_command_line_takes_an_experiment_for_a_variable(
    script: str, capsys: Capture
) -> None:
    assert main(["train", script, "-e", "A=1", "--dry-run"]) == ExitCode.USAGE
    assert "an experiment has no '='" in capsys.readouterr().err
    recipe = load_recipe(script, cwd=Path.cwd())
    assert check_run(recipe, RunOptions(experiment="A=1")).options.experiment == "A=1"
