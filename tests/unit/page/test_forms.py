"""Commands of forms: values are never options, and what they would destroy is said in numbers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import OPTIONS
from runner.page import losses
from runner.page.actions import ACTIONS
from runner.page.folder_actions import check_below, find_task_files
from runner.page.forms import Action, Field, Loss, Values
from runner.page.processes import check_words, find_error, insert_options
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
from runner.page.upkeep import check_formula
from runner.protocol.errors import RunnerError

AWKWARD = ("--all", "-", "--", "-y", "a b", "'; rm -rf /", "<script>", "über", "@last", "=", "on")


@pytest.mark.attack
@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_value_is_one_word_and_never_an_option(name: str, value: str) -> None:
    action = ACTIONS[name]
    names = {name: value for word in action.words for name in re.findall("{(.+)}", word)}
    filled = [word.format_map(names) for word in action.words]
    argv, at = action.argv(names), len(action.words)
    if value.startswith("-") and value in filled:
        at = argv.index("--")
        del argv[at]
    assert sorted(argv) == sorted(filled)
    assert not [word for word in argv[:at] if word == value and value.startswith("-")]


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
        if action.loss is not None and not action.reads_folder:
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
            losses.POOL,
            {"pool": "a", "vm_size": "b", "nodes": 2, "created_again_by": "stack dev"},
            "Pool a with 2 nodes of b would be deleted. It is created again by stack dev.",
        ),
        (losses.POOL_TASKS, {"running_tasks": 1}, "What 1 running task computed"),
        (losses.POOL_TASKS, {"running_tasks": 0}, "No task runs in the pool."),
        (losses.NODE_TASKS, [{"node": "b", "running_tasks": 1}], "No task runs on the node."),
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
        (losses.ALL_RUNS, [{}, {}], "2 runs with their files, and all models, would be lost"),
        (
            losses.POOL,
            {"pool": "a", "nodes": 2, "vm_size": "Standard_NC4", "created_again_by": None},
            "Pool a with 2 nodes of Standard_NC4 would be deleted.",
        ),
        (losses.DEPLOYMENT, {"changes": []}, "Nothing would change."),
        (
            losses.DEPLOYMENT,
            {"changes": [{"change": "delete", "name": f"pool-{n}"} for n in range(30)]},
            "delete pool-0; delete pool-1;",
        ),
        (losses.STACK, [{}], "1 run would be kept"),
        (
            losses.FORMULA,
            {"error": None, "spot": 2, "dedicated": None, "results": {}},
            "It would set 2 spot nodes now.",
        ),
        (
            losses.FORMULA,
            {"error": {"code": "x", "message": "unknown variable"}},
            "fails now: unknown variable",
        ),
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


@pytest.mark.parametrize("name", ["submit", "schedule-create", "recipe-new", "data-put"])
@pytest.mark.parametrize("path", ["~/x.yaml", "../x.yaml", "/etc/x.yaml", "~nobody-here/x.yaml"])
def test_path_outside_of_the_folder_is_refused(
    name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x.yaml").write_text("tasks: []\n")
    (tmp_path / "home" / "x.yaml").write_text("tasks: []\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    action = ACTIONS[name]
    key = {"submit": "file", "schedule-create": "recipe", "recipe-new": "name"}.get(name, "source")
    action.prepare({key: "x.yaml"})
    for given in (path, ["x.yaml", path], ["", path]):
        with pytest.raises(RunnerError) as caught:
            action.prepare({key: given})
        assert caught.value.code == "R-PAGE-RECIPE"


def test_path_that_no_file_can_have_is_refused() -> None:
    for text in ("a\0b", "~nobody-here", "\ud800"):
        with pytest.raises(RunnerError):
            check_below(text, Path.cwd())


def test_form_of_a_script_says_how_values_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    recipe = load_recipe("./a.py", cwd=tmp_path)
    for sweep, said in ((True, "loguniform"), (False, "gets --NAME VALUE")):
        (lines,) = train_form(recipe, sweep=sweep, pools=()).params
        assert (lines.name, said in lines.help) == ("params", True)


def test_run_has_one_recipe() -> None:
    for action in (TRAIN, SWEEP):
        with pytest.raises(RunnerError, match="one recipe"):
            action.prepare({"recipe": ["mnist", "/etc/x.py"]})


@pytest.mark.parametrize(
    "words",
    [["a\0b"], ["\ud800"], ["ps", "\udfff" * 2], ["x" * 200_000], ["é" * 60_000], ["x"] * 200_000],
)
def test_words_that_no_process_can_have_are_refused(words: list[str]) -> None:
    with pytest.raises(RunnerError) as caught:
        check_words(words)
    assert caught.value.code == "R-PAGE-QUERY"
    caught.value.summary.encode()  # an answer can show it


def test_usual_words_are_accepted() -> None:
    words = ["", "--set=x=\u202e<b>", "é" * 40_000, *["run"] * 10_000]
    check_words(words)
    assert subprocess.run(["true", *words], check=False).returncode == 0


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


def test_formula_is_never_the_name_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").write_text("secret")
    for formula in ("/etc/passwd", "a=b", "", "$x"):
        with pytest.raises(RunnerError) as caught:
            check_formula({"formula": formula})
        assert caught.value.code == "R-PAGE-FORM"
    given = {"formula": f"$a = 1;\r\n$b = 2;{' ' * 5000}"}
    assert "".join(check_formula(given)["formula"]).startswith("$a = 1;\n$b")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("submit", "file"),
        ("data-put", "source"),
        ("recipe-new", "name"),
        ("schedule-create", "recipe"),
    ],
)
def test_files_outside_of_the_folder_are_refused(
    name: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "tasks.yaml").write_text("tasks: {}\n")
    monkeypatch.chdir(tmp_path / "here")
    for path in ("../tasks.yaml", str(tmp_path / "tasks.yaml")):
        with pytest.raises(RunnerError) as caught:
            ACTIONS[name].prepare({field: path})
        assert caught.value.code == "R-PAGE-RECIPE"
    (tmp_path / "here" / "tasks.yaml").write_text("name: x\ntasks:\n  a: {recipe: mnist}\n")
    (tmp_path / "here" / "other.yaml").write_text("name: tasks\n")
    assert ACTIONS[name].prepare({field: "tasks.yaml"}) == {field: "tasks.yaml"}
    assert find_task_files(tmp_path / "here") == ["./tasks.yaml"]


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
        "loss": None, "may_act": True, "back": "/runs", "title": evil, "where": evil,
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
