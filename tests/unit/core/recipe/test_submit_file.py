"""The file of `runner submit`: its contents, and the errors of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.planning.pool_choice import choose_common_pool
from runner.core.progress import ignore_progress
from runner.core.recipe.code_archive import CodeArchive, pack_code
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.submit_file import (
    MAX_TASKS,
    SubmitFile,
    edges,
    load_submit_file,
    must_succeed,
)
from runner.flows.submit import check_and_read
from runner.flows.submit.group import check_file, load_tasks
from runner.flows.submit.pipeline import Services, SubmissionPlan, plan_submission
from runner.protocol.errors import RunnerError
from runner.protocol.paths import is_run_id
from runner.protocol.run_spec import Resources
from tests.unit.core.recipe_maker import outputs, pool, settings
from tools.recipe_schema import SUBMIT_SCHEMA_FILE, submit_schema

GIB = 1024**3
Write = Callable[[str], Path]

WHOLE = """
name: cats
experiment: trials
priority: 7
pool: local
job: {max_parallel: 2}
defaults:
  retries: 1
  timeout: 2h
  env: {A: default, B: default}
tasks:
  prepare:
    command: python prepare.py
    params: {rows: 100, shuffle: true}
    on_failure: satisfy
  train:
    recipe: ./model
    after: [prepare]
    params: {epochs: 3}
    args: [--verbose]
    env: {A: task}
    timeout: 30m
  merge:
    command: [python, merge.py]
    inputs:
      model: {run: train, path: model.bin}
      old: {run: cats-20261121-143005-k3f9}
    outputs: [all.txt]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        for name in ("prepare.py", "merge.py"):
            (tmp_path / name).write_text("print('hi')\n")
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "train.yaml").write_text("params: {epochs: {default: 5, max: 9}}\n")
        (tmp_path / "model" / "train.py").write_text("print('hi')\n")
        path = tmp_path / "cats.yaml"
        path.write_text(text)
        return path

    return to_file


def prepared(path: Path, *overrides: str, wanted: str | None = None) -> SubmissionPlan:
    file, _ = load_submit_file(path)
    stack = outputs(pool("first"), pool("local"))
    where = replace(settings(wanted), home=path.parent / "home", output_dir=path.parent / "out")
    submission = check_file(file, path, RunOptions(set=overrides))
    return plan_submission(submission, Services(where, stack, None, dry_run=True), ignore_progress)


def test_tasks_become_dependent_runs_of_one_job(write: Write) -> None:
    made = prepared(write(WHOLE))
    group, runs = made.run_group, made.run_group.runs
    assert (made.job.priority, made.job.max_parallel, group.pool) == (7, 2, "local")
    assert is_run_id(group.group_id)
    assert runs["train"].startswith("cats-train-")
    assert list(made.runs) == ["prepare", "train", "merge"]
    documents = made.documents()
    for name, document in documents.items():
        assert document["group"] == group.group_id
        assert document["experiment"] == "trials"
        assert document["priority"] == 7
        assert document["batch"]["job_id"] == group.group_id
        assert document["batch"]["task_id"] == document["run_id"] == runs[name]
    train, merge = made.runs["train"], made.runs["merge"]
    assert (train.after, train.depends_on) == ((), (runs["prepare"],)), "its failure satisfies"
    assert (merge.after, merge.depends_on) == ((runs["train"],), (runs["train"],))
    assert documents["prepare"]["command"] == [
        "python", "prepare.py", "--rows", "100", "--shuffle", "true",
    ]  # fmt: skip
    assert documents["train"]["params"] == {"epochs": 3}
    assert documents["train"]["command"][-1] == "--verbose"
    assert documents["train"]["env"] == {"A": "task", "B": "default"}
    assert [documents[name]["timeout_s"] for name in documents] == [7200, 1800, 7200]
    assert {document["retries"] for document in documents.values()} == {1}
    assert documents["merge"]["outputs"] == ["all.txt"]
    model = {"kind": "run", "run_id": runs["train"], "path": "model.bin"}
    assert merge.content.inputs["model"] == model
    assert merge.content.inputs["old"]["run"] == "cats-20261121-143005-k3f9"


def test_tasks_of_one_folder_share_one_archive(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Recipe] = []

    def pack(recipe: Recipe, *args: Any) -> CodeArchive:
        packed.append(recipe)
        return pack_code(recipe, *args)

    monkeypatch.setattr(check_and_read, "pack_code", pack)
    path = write(
        "tasks:\n"
        "  a: {command: python prepare.py}\n"
        "  b: {command: python merge.py, args: [x]}\n"
        "  c: {recipe: ./model}\n"
        "  d: {recipe: ./model, params: {epochs: 2}}\n"
        "  e: {recipe: ./model, inputs: {rows: ./model/rows}}\n"
    )
    rows = path.parent / "model" / "rows"
    rows.mkdir()
    (rows / "1.txt").write_text("1")
    made = prepared(path)
    runs = made.runs
    code = {name: run.content.code.sha256 for name, run in runs.items()}
    assert (code["a"], code["c"]) == (code["b"], code["d"])
    assert len({code[name] for name in "ace"}) == len(packed) == 3, "an input is no code"
    assert made.files.archives.keys() == {*code.values(), runs["a"].content.agent_sha256}
    assert runs["d"].recipe is not runs["c"].recipe


def test_set_changes_one_parameter_of_one_task(write: Write) -> None:
    made = prepared(write(WHOLE), "train.epochs=9", "prepare.rows=1")
    assert made.runs["train"].params == {"epochs": 9}
    assert made.runs["prepare"].params["rows"] == 1
    for text, code in (
        ("epochs=9", "R-SET-FORM"),
        ("trian.epochs=9", "R-SET-UNKNOWN"),
        ("train.epoch=9", "R-SET-UNKNOWN"),
        ("train.epochs=10", "R-SET-VALUE"),
    ):
        with pytest.raises(RunnerError) as caught:
            prepared(write(WHOLE), text)
        assert caught.value.code == code


def test_input_from_a_task_needs_its_success_despite_on_failure(write: Write) -> None:
    text = (
        "tasks:\n"
        "  a: {command: x, on_failure: satisfy}\n"
        "  b: {command: x, inputs: {i: {run: a}}}\n"
        "  c: {command: x, after: [a, b]}\n"
    )
    file, _ = load_submit_file(write(text))
    assert edges(file) == {"a": (), "b": ("a",), "c": ("a", "b")}
    assert [must_succeed(name, file) for name in "abc"] == [(), ("a",), ("b",)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tasks: missing"),
        ("tasks: {}", "1: tasks"),
        ("tasks:\n  a: {command: x}\n  a: {command: y}", ":3: "),
        ("tasks:\n  A: {command: x}", "tasks.A"),
        ("tasks:\n  a: {}", "2: tasks.a: expected recipe or command, got neither"),
        ("tasks:\n  a: {command: x, recipe: y}", "got both"),
        ("tasks:\n  a: {command: x, aftr: [b]}", "tasks.a.aftr: unknown key"),
        ("tasks:\n  a: {command: x, after: [a]}", "'a' depends on itself"),
        ("tasks:\n  a: {command: x, after: [b]}", "unknown task 'b'"),
        ("tasks:\n  ab: {command: x}\n  b: {command: x, after: [abc]}", "did you mean 'ab'"),
        ("tasks:\n  a: {command: x}\n  b: {command: x, after: [a, a]}", "duplicate 'a'"),
        ("tasks:\n  a: {command: x}\npriority: 2000", "3: priority"),
        ("tasks:\n  a: {recipe: x, folder: y}", "`folder` cannot be combined with `recipe`"),
        ("tasks:\n  a: {command: 'x | y'}", "commands do not run in a shell"),
        (
            "tasks:\n  a: {command: x, after: [mnist-20261121-143005-k3f9]}",
            "is a run, but a task can only wait for tasks of this file",
        ),
        ("tasks:\n  a: {command: x, after: ['@last']}", "'@last' is a run, but a task"),
        ("tasks:\n  a: {command: x, on_failure: ignore}", "tasks.a.on_failure: got 'ignore'"),
        ("tasks:\n  a: {command: x}\njob: {max_parallel: 0}", "job.max_parallel"),
        (
            "tasks:\n  a: {command: x}\nschedule: {}",
            "schedule: expected cron or every, got neither",
        ),
        ("tasks: [a]", "1: tasks: expected"),
    ],
)
def test_invalid_file_is_refused_with_line_and_field(write: Write, text: str, said: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load_submit_file(write(text))
    assert caught.value.code.startswith("R-SUBMIT")
    assert said in str(caught.value)


def test_cycle_through_inputs_is_printed(write: Write) -> None:
    text = (
        "tasks:\n"
        "  first: {command: x, after: [third]}\n"
        "  second: {command: x, inputs: {i: {run: first}}}\n"
        "  third: {command: x, after: [second]}\n"
    )
    with pytest.raises(RunnerError) as caught:
        load_submit_file(write(text))
    assert caught.value.code == "R-SUBMIT-CYCLE"
    shown = caught.value.why
    assert any(
        path in shown
        for path in (
            "first -> third -> second -> first",
            "third -> second -> first -> third",
            "second -> first -> third -> second",
        )
    )


def test_too_many_tasks_are_refused(write: Write) -> None:
    tasks = "".join(f"  t{number}: {{command: x}}\n" for number in range(MAX_TASKS + 1))
    with pytest.raises(RunnerError) as caught:
        load_submit_file(write(f"tasks:\n{tasks}"))
    assert str(MAX_TASKS) in str(caught.value)


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ("recipe: ./gone", "R-RECIPE-UNKNOWN"),
        ("{command: x, folder: gone}", "R-SUBMIT-FOLDER"),
        ("{command: x, requirements: gone.txt}", "R-SUBMIT-FOLDER"),
    ],
)
def test_task_with_missing_code_is_named(write: Write, task: str, code: str) -> None:
    file, _ = load_submit_file(path := write(f"tasks:\n  lost:\n    {task}\n"))
    with pytest.raises(RunnerError) as caught:
        load_tasks(file, path.parent)
    assert caught.value.code == code
    assert "lost" in caught.value.what


def test_recipe_with_after_is_refused_in_a_file(write: Write) -> None:
    path = write("tasks:\n  a: {recipe: ./model}\n")
    (path.parent / "model" / "train.yaml").write_text("after: ['@last']\n")
    file, _ = load_submit_file(path)
    with pytest.raises(RunnerError) as caught:
        load_tasks(file, path.parent)
    assert caught.value.code == "R-SUBMIT-AFTER"


def test_pool_must_fit_every_task() -> None:
    cpu = pool("cpu", vm_size="Standard_D4s_v5")
    gpu = pool("gpu", vm_size="Standard_NC4as_T4_v3", gpus=1)
    asked = {"prepare": Resources(memory_bytes=16 * GIB), "train": Resources(gpus=1)}
    assert choose_common_pool(None, outputs(cpu, gpu), asked).id == "gpu"
    assert choose_common_pool("cpu", outputs(cpu, gpu), asked).id == "cpu"
    with pytest.raises(RunnerError) as caught:
        choose_common_pool(None, outputs(cpu), asked)
    assert "cpu has no GPUs (1 needed) for train" in caught.value.why


def test_long_names_are_truncated_to_distinct_run_ids(write: Write) -> None:
    name, tasks = "n" * 40, [f"{'t' * 27}{number:03}" for number in range(100)]
    text = "".join(f"  {task}: {{command: x}}\n" for task in tasks)
    made = prepared(write(f"name: {name}\ntasks:\n{text}"))
    runs = made.run_group.runs
    assert len(set(runs.values())) == 100
    assert all(is_run_id(run_id) and task in run_id for task, run_id in runs.items())


def test_schema_file_is_what_make_schema_writes() -> None:
    assert SUBMIT_SCHEMA_FILE.read_text(encoding="utf-8") == submit_schema()
    assert SubmitFile.model_json_schema()


def test_error_of_a_task_names_it_with_a_fix_for_the_file(write: Write) -> None:
    path = write("tasks:\n  a: {command: python prepare.py}\n  b: {recipe: ./model}\n")
    assert prepared(path, "a.n=3").runs["a"].command[-2:] == ("--n", "3")
    for override, what, fix in (
        ("a.--n=3", "task a: parameter '--n' is not declared", "without dashes: n"),
        ("b.epoch=3", "task b: parameter 'epoch' is not declared", "did you mean epochs?"),
        ("b.epochs=10", "task b: ", ""),
    ):
        with pytest.raises(RunnerError) as caught:
            prepared(path, override)
        assert what in caught.value.what
        assert fix in caught.value.fix


@pytest.mark.parametrize("name", ["", "model", "model/train.yaml", "model/train.py"])
def test_recipe_file_is_refused_as_a_file_of_tasks(write: Write, name: str) -> None:
    folder = write("").parent
    with pytest.raises(RunnerError, match="has no tasks to submit") as caught:
        load_submit_file(folder / name)
    assert caught.value.fix.startswith(f"run `runner train {folder / name}`")
