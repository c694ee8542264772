"""Commands of forms: values are never options, and what they would destroy is said in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import OPTIONS
from runner.page import losses
from runner.page.actions import ACTIONS
from runner.page.forms import Action, Field, Loss, Values
from runner.page.processes import find_error, insert_options
from runner.page.rendering import render
from runner.page.training import (
    OPTION_FIELDS,
    SWEEP,
    TRAIN,
    check_train,
    find_recipes,
    load_allowed,
    plan_action,
    train_form,
)
from runner.protocol.errors import RunnerError

AWKWARD = ("--all", "-", "--", "-y", "a b", "'; rm -rf /", "<script>", "über", "@last", "=", "on")


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("name", sorted(set(ACTIONS) - {"train", "sweep"}))
def test_value_is_one_word_after_the_options(name: str, value: str) -> None:
    action = ACTIONS[name]
    argv = action.argv(dict.fromkeys(action.names, value))
    values = [word for word in argv if word == value]
    assert len(values) >= len(action.names)
    if value.startswith("-"):
        after = argv[argv.index("--") + 1 :]
        assert len(after) == len(action.names)
        assert all(word == value for word in after)


@pytest.mark.parametrize("value", AWKWARD)
def test_value_of_an_option_stays_with_its_option(value: str) -> None:
    argv = TRAIN.argv({"recipe": "mnist", "experiment": value, "set.lr": value})
    assert f"--experiment={value}" in argv
    assert f"--set=lr={value}" in argv
    assert argv[:3] == ["train", "mnist", "--detach"]
    assert len(argv) == 5


def test_flag_is_set_by_on_and_left_out_when_empty() -> None:
    resume = ACTIONS["resume"]
    assert resume.argv({"run": "a", "fresh": "on"})[-1] == "--fresh"
    assert "--fresh" not in resume.argv({"run": "a", "fresh": ""})


def test_several_values_are_several_words() -> None:
    assert ACTIONS["rm"].argv({"run": ["a", "b"]}) == ["rm", "a", "b", "--yes"]


def test_lines_are_one_option_each() -> None:
    argv = TRAIN.argv({"recipe": "./a.py", "params": "lr=0.1\r\n\n size=3 "})
    assert argv[-2:] == ["--set=lr=0.1", "--set=size=3"]


@pytest.mark.parametrize("values", [{}, {"run": ""}, {"run": []}, {"run": ["", ""]}])
def test_missing_value_is_named(values: Values) -> None:
    with pytest.raises(RunnerError, match="run is missing") as caught:
        ACTIONS["cancel"].argv(values)
    assert caught.value.code == "R-PAGE-FORM"


def test_null_character_is_refused() -> None:
    with pytest.raises(RunnerError, match="null character"):
        ACTIONS["cancel"].argv({"run": "a\0b"})
    with pytest.raises(RunnerError, match="null character"):
        TRAIN.argv({"recipe": "mnist", "experiment": "a\0b"})


def test_optional_value_may_be_missing() -> None:
    assert ACTIONS["register"].argv({"run": "a", "name": ""}) == ["models", "register", "a"]
    assert ACTIONS["register"].argv({"run": "a", "name": "m"})[-1] == "m"


def test_options_of_the_target_come_before_values() -> None:
    argv = insert_options(["rm", "--yes", "--", "--all"], ["-o", "json"])
    assert argv == ["rm", "--yes", "-o", "json", "--", "--all"]


def test_address_afterwards_is_quoted() -> None:
    assert ACTIONS["cancel"].target({"run": ["a/../b?c"]}) == "/runs/a%2F..%2Fb%3Fc"
    assert ACTIONS["cancel"].target({}) == "/runs"


def test_each_action_that_deletes_says_what_would_be_lost() -> None:
    for action in ACTIONS.values():
        if "--yes" in action.words or "rm" in action.words:
            assert action.loss is not None, action.name
            assert action.asks, action.name


@pytest.mark.parametrize(
    ("loss", "document", "said"),
    [
        (
            losses.RUNS,
            {"runs": [{}, {}], "files": 12, "size_bytes": 3_000_000, "kept": []},
            "2 runs with 12 files, 3.0 MB",
        ),
        (
            losses.RUNS,
            {
                "runs": [],
                "files": 0,
                "size_bytes": 0,
                "kept": [{"run_id": "a", "why": "model m needs it", "fix": ""}],
            },
            "Nothing would be deleted. a is kept: model m needs it.",
        ),
        (losses.RUN_ENDS, {"run_id": "a", "result": {}, "state": "failed"}, "ended already"),
        (
            losses.RUN_ENDS,
            {"run_id": "a", "result": None, "checkpoints": []},
            "has no checkpoint",
        ),
        (
            losses.RUN_ENDS,
            {
                "run_id": "a",
                "result": None,
                "checkpoints": [{"time": "2020-01-01T00:00:00+00:00", "step": 40}],
            },
            "newest checkpoint at step 40",
        ),
        (losses.DATA, [{"size_bytes": 10}, {"size_bytes": 20}], "2 files, 30 B"),
        (
            losses.MODELS,
            [
                {"version": 3, "size_bytes": 1000, "aliases": ["latest", "prod"]},
                {"version": 2, "size_bytes": 1000, "aliases": []},
            ],
            "1 version of the model, 1.0 kB, would be lost for good. Its aliases: prod.",
        ),
        (losses.SERVICES, [], "No run is active."),
        (losses.SERVICES, [{}], "1 run would stop"),
        (losses.DISK, {"items": [{}], "size_bytes": 5}, "1 item, 5 B"),
    ],
)
def test_loss_is_said_in_numbers(loss: Loss, document: Any, said: str) -> None:
    assert said in loss.describe(document, {"model": "cats@3"})


def test_form_has_the_parameters_of_the_recipe() -> None:
    recipe = load_recipe("mnist", cwd=Path.cwd())
    form = train_form(recipe, sweep=True, pools=["a", "b"])
    names = [each.name for each in form.params]
    assert names == [f"set.{param.name}" for param in recipe.params]
    by_name = {each.name: each for each in form.params}
    assert by_name["set.epochs"].kind == "number"
    assert by_name["set.epochs"].usual == "8"
    pool = next(each for each in form.options if each.name == "pool")
    assert pool.choices == ("", "a", "b")


def test_options_of_the_form_are_those_of_the_command_line() -> None:
    for each in OPTION_FIELDS:
        assert each.help == OPTIONS[each.name].help
        assert TRAIN.options[each.name] == OPTIONS[each.name].flag


def test_invalid_values_are_refused_before_a_command_starts() -> None:
    for values, said in (
        ({"recipe": "mnist", "set.epochs": "many"}, "must be a whole number"),
        ({"recipe": "mnist", "gpus": "two"}, "expected a whole number"),
        ({"recipe": "mnist", "gpus": "5000"}, "allowed"),
        ({"recipe": "mnist", "capacity": "free"}, "allowed"),
        ({"recipe": "mnist", "timeout": "soon"}, "soon"),
    ):
        with pytest.raises(RunnerError) as caught:
            check_train(values)
        assert said in caught.value.summary


def test_recipe_outside_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    monkeypatch.chdir(tmp_path / "here")
    for ref in ("../train.py", str(script)):
        with pytest.raises(RunnerError) as caught:
            load_allowed(ref, Path.cwd())
        assert caught.value.code == "R-PAGE-RECIPE"
    (tmp_path / "here" / "link.py").symlink_to(script)
    assert load_allowed("mnist", Path.cwd()).source == "builtin"


def test_recipes_and_scripts_below_the_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.yaml").write_text("name: a\ncommand: python x.py\n")
    (tmp_path / "a" / "x.py").write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.yaml").write_text("nonsense: [")
    (tmp_path / "s.py").write_text("print(1)\n")
    for hidden in (".venv/s.py", "node_modules/s.py", "1/2/3/4/s.py", "test_s.py", "setup.py"):
        path = tmp_path / hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    found = {each.ref: each for each in find_recipes(tmp_path) if not each.is_builtin}
    assert set(found) == {"./a", "./broken", "./s.py"}
    assert found["./broken"].problem
    assert not found["./a"].problem


def test_plan_starts_nothing() -> None:
    for action in (TRAIN, SWEEP):
        argv = plan_action(action).argv({"recipe": "mnist"})
        assert "--dry-run" in argv
        assert "--detach" not in argv


def test_sweep_varies_parameters() -> None:
    values = {"recipe": "mnist", "param.lr": "0.1,0.2", "set.epochs": "2", "trials": "4"}
    argv = SWEEP.argv(values)
    assert argv[:4] == ["sweep", "start", "mnist", "--detach"]
    assert {"--param=lr=0.1,0.2", "--set=epochs=2", "--trials=4"} <= set(argv)


def test_fields_escape_awkward_values() -> None:
    evil = '"><script>alert(1)</script>'
    action = Action("a", evil, ("a", "{x}"), fields=(Field("y", evil, usual=evil, help=evil),))
    context: dict[str, Any] = {
        "action": action, "values": {"x": [evil], "y": [evil]}, "command": evil, "problem": None,
        "loss": None, "may_act": True, "back": "/runs", "title": evil,
    }  # fmt: skip
    text = render("action.html", "view", context)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("document", [None, [], {}, {"error": None}, {"error": "x"}, {"error": []}])
def test_document_without_an_error_has_none(document: Any) -> None:
    assert find_error(document) is None


def test_error_of_a_document_is_complete() -> None:
    found = find_error({"error": {"code": "R-X", "what": "w", "fix": None}})
    assert found == {"code": "R-X", "what": "w", "why": "", "fix": ""}
