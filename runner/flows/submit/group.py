"""Submit the tasks of a file as one Batch job: plan each run, then send all of them or none."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import add_tasks, close_when_done, delete_job, ensure_job
from runner.azure.batch.translate import to_task
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import in_parallel
from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.plan import RunPlan
from runner.core.planning.pool_choice import choose_common_pool, is_mixed, pools_for_all
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.file import missing_script
from runner.core.recipe.keys import to_inputs
from runner.core.recipe.recipe import (
    Param,
    ParamType,
    ParamValue,
    Recipe,
    load_recipe,
)
from runner.core.schedules.submit_file import SubmitFile, TaskFile, edges, in_order, must_succeed
from runner.core.settings import Settings
from runner.core.yaml_files import near
from runner.flows.local.state import with_container_pool
from runner.flows.runs.documents import index_run, runs_container
from runner.flows.submit.interrupted import finish_interrupted, submitting
from runner.flows.submit.prepare import Memo, PreparedRun, TrainOptions, prepare_run
from runner.flows.submit.submit_run import upload_runs, with_inputs
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.paths import MAX_ID, STAMP_LENGTH, SUFFIX_ALPHABET, RunPaths, make_run_id, slug
from runner.protocol.run_spec import NO_RESOURCES

_TYPES: Mapping[type, ParamType] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What was typed beside the file; `overrides` are `task.param=value`."""

    overrides: tuple[str, ...] = ()
    experiment: str | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """Everything of one submission, in an order in which it may run."""

    group: RunGroup
    priority: int
    max_parallel: int | None
    runs: Mapping[str, PreparedRun]
    warnings: tuple[str, ...]


def load_tasks(file: SubmitFile, base: Path) -> dict[str, Recipe]:
    """The recipe of every task, with what the file says of it. Raises RunnerError naming it."""
    memo = Memo()
    return {name: _recipe(name, task, file, base, memo) for name, task in file.tasks.items()}


def prepare_group(
    file: SubmitFile,
    path: Path,
    settings: Settings,
    outputs: StackOutputs,
    request: GroupRequest,
    on_progress: OnProgress,
    *,
    fetch_data: bool = True,
) -> PreparedGroup:
    """Pack the code, find the data and plan every task. Raises RunnerError."""
    recipes = load_tasks(file, path.parent)
    overrides = _by_task(request.overrides, recipes)
    settings = replace(settings, pool=settings.pool or file.pool)
    outputs = _with_pools(recipes, settings, outputs, on_progress, make=fetch_data)
    asked = {name: recipe.resources for name, recipe in recipes.items()}
    pool = choose_common_pool(settings.pool, outputs, asked)
    group = _group(file, path, pool)
    experiment = request.experiment or file.experiment or group.name
    pending = frozenset(group.runs.values())
    priority = file.priority if request.priority is None else request.priority
    prepared: dict[str, PreparedRun] = {}
    memo = Memo()
    for name in in_order(edges(file)):
        options = task_options(file.tasks[name], path.parent, overrides[name], experiment)
        where = replace(settings, pool=pool.id)
        with _of_task(name):
            ready = prepare_run(
                recipes[name],
                where,
                outputs,
                options,
                on_progress,
                fetch_data=fetch_data,
                memo=memo,
            )
        plan = _placed(name, ready, file, group, priority)
        prepared[name] = replace(ready, plan=plan, pending_runs=pending)
    warnings = dict.fromkeys(text for run in prepared.values() for text in run.warnings)
    return PreparedGroup(group, priority, file.job.max_parallel, prepared, tuple(warnings))


def _with_pools(
    recipes: Mapping[str, Recipe],
    settings: Settings,
    outputs: StackOutputs,
    on_progress: OnProgress,
    *,
    make: bool,
) -> StackOutputs:
    """The stack with the pools that take all of them, with a container or without."""
    images = {name: recipe.image for name, recipe in recipes.items()}
    # Where others have none, a pool for containers would take them as little.
    image = None if is_mixed(images) else next(filter(None, images.values()), None)
    outputs = with_container_pool(image, settings, outputs, on_progress, make=make)
    return pools_for_all(images, settings.pool, outputs)


def task_options(
    task: TaskFile, base: Path, overrides: Sequence[str], experiment: str | None
) -> TrainOptions:
    """What the file says beside the recipe. Its values take the way of `--set`: checked alike."""
    return TrainOptions(
        overrides=(*(f"{name}={value}" for name, value in task.params.items()), *overrides),
        script_args=tuple(task.args),
        experiment=experiment,
        data=None if task.data is None else base / Path(task.data).expanduser(),
    )


def _placed(
    name: str, ready: PreparedRun, file: SubmitFile, group: RunGroup, priority: int
) -> RunPlan:
    """The plan as a task of the group's job, behind those it comes after."""
    plan = ready.plan
    named = {key: _of_group(document, group) for key, document in plan.inputs.named.items()}
    return replace(
        plan,
        run_id=group.runs[name],
        created=group.created,
        job_id=group.job_id,
        recipe=replace(plan.recipe, priority=priority),
        inputs=replace(plan.inputs, named=named),
        after=tuple(group.runs[before] for before in must_succeed(name, file)),
        depends_on=tuple(group.runs[before] for before in group.after[name]),
        group=group.group_id,
    )


def _of_group(document: Mapping[str, Any], group: RunGroup) -> Mapping[str, Any]:
    """An input `{run: TASK}` means that task's run; another name is a run of its own."""
    if document["kind"] == "run" and document.get("run") in group.runs:
        return {**document, "run": group.runs[document["run"]]}
    return document


def _group(file: SubmitFile, path: Path, pool: PoolOutput) -> RunGroup:
    name = slug(file.name or path.stem)
    created = datetime.now(UTC)
    group_id = make_run_id(name, created, _suffix())
    return RunGroup(
        group_id=group_id,
        name=name,
        created=created,
        job_id=group_id,
        pool=pool.id,
        runs=_run_ids(name, tuple(file.tasks), created),
        after=edges(file),
    )


def _run_ids(name: str, tasks: Sequence[str], created: datetime) -> dict[str, str]:
    """`<name>-<task>-…`: a long name is cut, a task's never, and no two runs share an id."""
    found: dict[str, str] = {}
    for task in tasks:
        short = name[: MAX_ID - STAMP_LENGTH - len(task) - 1].rstrip("-_")
        while (run_id := make_run_id(f"{short}-{task}", created, _suffix())) in found.values():
            pass
        found[task] = run_id
    return found


def _suffix() -> str:
    return "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(4))


def _recipe(name: str, task: TaskFile, file: SubmitFile, base: Path, memo: Memo) -> Recipe:
    with _of_task(name):
        recipe = _loaded(name, task, base, memo)
    if recipe.after:
        raise RunnerError(
            "R-SUBMIT-AFTER",
            f"task {name}: its train.yaml has `after: {list(recipe.after)}`",
            why="within a file, order is between the tasks of the file",
            fix=f"write `after` at task {name} of the file, and remove it from train.yaml",
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
        retries=next(number for number in retries if number is not None),
        resources=asked.to_resources() if asked else recipe.resources,
        outputs=recipe.outputs if task.outputs is None else tuple(task.outputs),
        inputs=tuple(inputs.values()),
    )


@contextmanager
def _of_task(name: str) -> Generator[None]:
    """Says of which task an error is."""
    try:
        yield
    except RunnerError as err:
        fix = err.fix
        if err.code == "R-SET-UNKNOWN" and "after --" in fix:  # there are no such words in a file
            fix = f"write it under `params` of {name}, or among its `args`"
        raise RunnerError(
            err.code, f"task {name}: {err.what}", why=err.why, fix=fix, exit_code=err.exit_code
        ) from err


def _loaded(name: str, task: TaskFile, base: Path, memo: Memo) -> Recipe:
    ref = task.recipe
    if ref is not None:
        return memo(ref, lambda: load_recipe(ref, cwd=base))
    folder = (base / Path(task.folder or ".").expanduser()).resolve()
    if not folder.is_dir():
        raise RunnerError("R-SUBMIT-FOLDER", f"there is no folder {folder}", fix="correct `folder`")
    requirements = task.requirements
    if requirements is not None and not (folder / requirements).is_file():
        raise RunnerError(
            "R-SUBMIT-FOLDER", f"there is no {requirements} in {folder}", fix="correct it"
        )
    if missing := missing_script(task.command or (), folder):
        raise RunnerError(
            "R-SUBMIT-FOLDER", f"there is no {missing} in {folder}", fix="correct `command`"
        )
    return Recipe(
        name=name,
        description="",
        folder=folder,
        source="folder",
        command=tuple(task.command or ()),
        params=tuple(_param(key, value) for key, value in task.params.items()),
        requirements_file=requirements,
    )


def _param(name: str, value: ParamValue) -> Param:
    """A command declares no parameters: each is of the type of what is written."""
    return Param(name, _TYPES[type(value)], value)


def _by_task(texts: Sequence[str], recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in recipes}
    for text in texts:
        task, dot, rest = text.partition(".")
        if not dot or "=" in task:
            raise RunnerError(
                "R-SET-FORM", f"--set {text!r} is not task.param=value",
                fix=f"--set {next(iter(recipes))}.{text if '=' in text else 'epochs=VALUE'}",
            )  # fmt: skip
        if task not in recipes:
            raise RunnerError(
                "R-SET-UNKNOWN",
                f"--set {text!r}: there is no task {task!r}",
                why=f"tasks are: {', '.join(recipes)}",
                fix=near(task, recipes) or "use one of these",
            )
        found[task].append(rest)
    return found


def submit_group(connection: Connection, prepared: PreparedGroup, on_progress: OnProgress) -> None:
    """Bring all runs into being. Raises RunnerError after taking back what was there already."""
    finish_interrupted(connection)
    container = runs_container(connection)
    memo = Memo()
    ready = [with_inputs(connection, run, memo) for run in prepared.runs.values()]
    upload_runs(connection, ready, container, on_progress)
    on_progress(Progress("submit", "start"))
    plans = [run.plan for run in ready]
    group = prepared.group
    tasks = [to_task(run.plan, connection, run.secrets) for run in ready]
    with submitting(connection, group.group_id):
        job_id = ensure_job(
            connection, group.job_id, group.pool, prepared.priority, prepared.max_parallel
        )
        documents = [plan.to_spec(job_id).to_json() for plan in plans]
        place_group(
            connection,
            job_id,
            group.to_json(),
            documents,
            lambda: add_tasks(connection.batch_client(), job_id, tasks),
        )
    on_progress(Progress("submit", "end", f"{len(plans)} tasks to job {job_id}"))


def place_group(
    connection: Connection,
    job_id: str,
    group: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    add: Callable[[], object],
) -> None:
    """Write what describes a group, add its tasks to their new job, and let it end with them.

    Refused or interrupted, nothing of it stays, and the job is deleted.
    """
    container = runs_container(connection)
    blob = group_blob(str(group["group_id"]))
    try:
        container.create(blob, group)
        in_parallel(lambda run: container.create(RunPaths(run["run_id"]).run, run), documents)
        add()
        # Not before: an empty job would be complete at once.
        close_when_done(connection, job_id)
    except (RunnerError, KeyboardInterrupt) as err:
        if not isinstance(err, RunnerError) or err.code != SERVICES_DOWN:
            delete_job(connection, job_id)
            in_parallel(lambda run: container.delete(RunPaths(run["run_id"]).run), documents)
            container.delete(blob)
        raise
    in_parallel(lambda run: index_run(container, run), documents)
