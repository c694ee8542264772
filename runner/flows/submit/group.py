"""Validate the tasks of a file, and create the group of its runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from runner.contract import PoolOutput
from runner.core.planning.plan import CheckedRun
from runner.core.pricing.cost import to_micros
from runner.core.recipe.dimensions import Trial
from runner.core.recipe.file import command_recipe, load_recipe, missing_script
from runner.core.recipe.keys import to_inputs, to_notify
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Param, Recipe
from runner.core.recipe.submit_file import SubmitFile, TaskFile, edges, order_tasks
from runner.core.yaml_files import did_you_mean
from runner.flows.submit.check_and_read import check_run, random_suffix
from runner.protocol.commands import NULL
from runner.protocol.errors import RunnerError
from runner.protocol.groups import TRIALS_INPUT, RunGroup
from runner.protocol.paths import MAX_ID, STAMP_LENGTH, make_run_id, slug
from runner.protocol.run_spec import NO_RESOURCES


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A validated file of tasks, or a sweep; `runs` are in a valid order of execution.

    `trials` has the varied parameters of each trial of a sweep, and `trials_per_task` how many of
    them a task runs one after another.
    """

    file: SubmitFile
    name: str
    priority: int
    runs: Mapping[str, CheckedRun]
    trials: Mapping[str, Trial] = field(default_factory=dict[str, Trial])
    trials_per_task: int = 1

    @property
    def is_single(self) -> bool:
        """Return True for one task on one node. A schedule of it creates runs instead of groups."""
        return [run.recipe.resources.nodes for run in self.runs.values()] == [1]


def check_file(file: SubmitFile, path: Path, options: RunOptions) -> CheckedFile:
    """Validate the recipe and options of every task. Raise RunnerError. Write nothing.

    Of `options`, parameters (as `TASK.NAME=VALUE`), experiment, priority and cap are used.
    """
    recipes = load_tasks(file, path.parent)
    overrides = _by_task(options.set, recipes)
    name = slug(file.name or path.stem)
    experiment = options.experiment or file.experiment or name
    priority = file.priority if options.priority is None else options.priority
    caps = _caps(options.max_cost or file.max_cost, recipes)
    runs: dict[str, CheckedRun] = {}
    for task in order_tasks(edges(file)):
        own = _options(file.tasks[task], path.parent, overrides[task], experiment)
        with naming_task(task):
            recipe = replace(recipes[task], priority=priority, max_cost_micros=caps[task])
            runs[task] = check_run(recipe, own)
    return CheckedFile(file, name, priority, runs)


def _caps(total: object | None, recipes: Mapping[str, Recipe]) -> dict[str, int | None]:
    """Return the cap of each task: an equal share of `total`, or else the cap of its recipe.

    The cap of their job is the sum, because a job has only one limit.
    """
    if total is None:
        return {name: recipe.max_cost_micros for name, recipe in recipes.items()}
    micros, count = to_micros(total), len(recipes)
    return {name: (micros + number) // count for number, name in enumerate(recipes)}


def load_tasks(file: SubmitFile, base: Path) -> dict[str, Recipe]:
    """Load the recipe of every task, with the values that the file sets. Errors name the task."""
    load = cache(partial(load_recipe, cwd=base))
    return {name: _recipe(name, task, file, base, load) for name, task in file.tasks.items()}


def _options(
    task: TaskFile, base: Path, overrides: Sequence[str], experiment: str | None
) -> RunOptions:
    """Return the options that the file sets; parameters are validated like those of `--set`."""
    given = {text.partition("=")[0] for text in overrides}  # they replace values of the file
    of_file = (f"{name}={_to_text(v)}" for name, v in task.params.items() if name not in given)
    return RunOptions(
        set=(*of_file, *overrides),
        args=tuple(task.args),
        experiment=experiment,
        data=None if task.data is None else base / Path(task.data).expanduser(),
    )


def _to_text(value: object) -> str:
    return NULL if value is None else str(value)


def new_group(submission: CheckedFile, pool: PoolOutput, created: datetime) -> RunGroup:
    """Return the group of a submission, with new IDs."""
    name, file = submission.name, submission.file
    if submission.trials:
        group_id, runs = new_trial_ids(name, tuple(file.tasks), created)
    else:
        group_id = make_run_id(name, created, random_suffix())
        runs = new_run_ids(name, tuple(file.tasks), created)
    return RunGroup(
        group_id=group_id,
        name=name,
        created=created,
        job_id=group_id,
        pool=pool.id,
        runs=runs,
        after=edges(file),
        trials=submission.trials,
    )


def resolve_task_input(document: Mapping[str, Any], group: RunGroup) -> Mapping[str, Any]:
    """Return an input of a task, completed from the group.

    `{run: TASK}` gets the run ID of the task, and an input of all trials gets the group ID.
    """
    if document["kind"] == TRIALS_INPUT:
        return {"kind": TRIALS_INPUT, "group": group.group_id}
    if document["kind"] == "run" and document.get("run") in group.runs:
        run_id = group.runs[document["run"]]
        return {"kind": "run", "run_id": run_id, "path": document.get("path")}
    return document


def new_trial_ids(
    name: str, trials: Sequence[str], created: datetime
) -> tuple[str, dict[str, str]]:
    """Return the ID of a sweep, and the run ID of each trial: the same ID with its number."""
    suffix, longest = random_suffix(), max(map(len, trials))
    short = name[: MAX_ID - STAMP_LENGTH - longest - 1].rstrip("-_")
    group_id = make_run_id(short, created, suffix)
    stem, rest = group_id[:-STAMP_LENGTH], group_id[-STAMP_LENGTH:]
    return group_id, {trial: f"{stem}-{trial}{rest}" for trial in trials}


def new_run_ids(name: str, tasks: Sequence[str], created: datetime) -> dict[str, str]:
    """Return a unique run ID `<name>-<task>-…` for each task. Long IDs have a shortened `name`."""
    found: dict[str, str] = {}
    for task in tasks:
        short = name[: MAX_ID - STAMP_LENGTH - len(task) - 1].rstrip("-_")
        while (
            run_id := make_run_id(f"{short}-{task}", created, random_suffix())
        ) in found.values():
            pass
        found[task] = run_id
    return found


def _recipe(
    name: str, task: TaskFile, file: SubmitFile, base: Path, load: Callable[[str], Recipe]
) -> Recipe:
    with naming_task(name):
        recipe = _loaded(name, task, base) if task.recipe is None else load(task.recipe)
    if recipe.after:
        raise RunnerError(
            "R-SUBMIT-AFTER",
            f"task {name}: its train.yaml has `after: {list(recipe.after)}`",
            why="the file of tasks decides their order",
            fix=f"move `after` from train.yaml to task {name} of the file",
        )
    defaults = file.defaults
    retries = (task.retries, recipe.retries or None, defaults.retries, 0)
    asked = task.resources or (None if recipe.resources != NO_RESOURCES else defaults.resources)
    inputs = {spec.name: spec for spec in recipe.inputs}
    inputs |= {spec.name: spec for spec in to_inputs(task.inputs, base)}
    return replace(
        recipe,
        env={**defaults.env, **recipe.env, **task.env},
        timeout_s=task.timeout or recipe.timeout_s or defaults.timeout,
        idle_timeout_s=task.idle_timeout or recipe.idle_timeout_s or defaults.idle_timeout,
        keep_node_s=task.keep_node or recipe.keep_node_s or defaults.keep_node,
        retries=next(number for number in retries if number is not None),
        resources=asked.to_resources() if asked else recipe.resources,
        notify=to_notify(task.notify) or recipe.notify or to_notify(defaults.notify),
        outputs=recipe.outputs if task.outputs is None else tuple(task.outputs),
        inputs=tuple(inputs.values()),
    )


@contextmanager
def naming_task(name: str) -> Generator[None]:
    """Name the task in the errors of the block."""
    try:
        yield
    except RunnerError as err:
        raise RunnerError(
            err.code, f"task {name}: {err.what}", why=err.why, fix=err.fix, exit_code=err.exit_code
        ) from err


def _loaded(name: str, task: TaskFile, base: Path) -> Recipe:
    folder = (base / Path(task.folder or ".").expanduser()).resolve()
    if not folder.is_dir():
        raise RunnerError("R-SUBMIT-FOLDER", f"no such folder: {folder}", fix="correct `folder`")
    requirements = task.requirements
    if requirements is not None and not (folder / requirements).is_file():
        raise RunnerError(
            "R-SUBMIT-FOLDER",
            f"{requirements} not found in {folder}",
            fix="correct `requirements`",
        )
    if missing := missing_script(task.command or (), folder):
        raise RunnerError(
            "R-SUBMIT-FOLDER", f"{missing} not found in {folder}", fix="correct `command`"
        )
    params = tuple(Param.of_value(key, value) for key, value in task.params.items())
    return command_recipe(name, folder, tuple(task.command or ()), params, requirements)


def _by_task(texts: Sequence[str], recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in recipes}
    for text in texts:
        task, dot, rest = text.partition(".")
        if not dot or "=" in task:
            raise RunnerError(
                "R-SET-FORM", f"invalid --set {text!r}: expected TASK.PARAM=VALUE",
                fix=f"--set {next(iter(recipes))}.{text if '=' in text else 'epochs=VALUE'}",
            )  # fmt: skip
        if task not in recipes:
            raise RunnerError(
                "R-SET-UNKNOWN",
                f"--set {text!r}: unknown task {task!r}",
                why=f"tasks: {', '.join(recipes)}",
                fix=did_you_mean(task, recipes) or "use one of these tasks",
            )
        found[task].append(rest)
    return found
