"""The file of `runner submit`: its tasks, their dependencies, and its schedule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from runner.core.recipe.builtin import RECIPE_FILE
from runner.core.recipe.file import (
    Duration,
    Identifier,
    KeepTime,
    RecipeName,
    RelativePath,
    Scalar,
    StallTime,
)
from runner.core.recipe.keys import (
    Command,
    EnvFile,
    Inputs,
    Notify,
    Priority,
    ResourcesFile,
    Retries,
    key_error,
)
from runner.core.yaml_files import (
    Amount,
    Document,
    StrictModel,
    TextField,
    WrittenBool,
    check_document,
    did_you_mean,
    field_error,
    one_of,
    read_document,
)
from runner.protocol.errors import RunnerError
from runner.protocol.groups import CyclicError, Edges, levels
from runner.protocol.paths import is_run_id


def _parse_moment(value: object) -> object:
    if not isinstance(value, str | date):
        return value
    try:
        # Convert to text first, because the YAML parser has its own class for times.
        return datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except ValueError as err:
        fix = "write 2026-12-31 or 2026-12-31T06:00+01:00"
        raise key_error(f"{value!r} is not a date or time", fix) from err


Moment = Annotated[
    datetime,
    BeforeValidator(_parse_moment, json_schema_input_type=str),
    WithJsonSchema({"type": "string"}),
]
Every = Annotated[int, Amount("duration", "1m", "366d")]


class ScheduleFile(StrictModel, json_schema_extra=one_of("cron", "every")):
    """The times at which runs start."""

    cron: str | None = Field(
        None, description="Five fields, such as 0 3 * * 1-5, or @daily, in the time zone."
    )
    every: Every | None = Field(None, description="Instead of cron: 6h, 1d12h, 90m.")
    timezone: str = Field("UTC", description="Time zone: UTC, Europe/Berlin, UTC+05:30.")
    start: Moment | None = Field(None, description="Earliest start of a run.")
    until: Moment | None = Field(None, description="Latest start of a run.")
    max_runs: int | None = Field(None, ge=1, description="Maximum number of runs.")
    max_cost: float | None = Field(
        None, gt=0, description="Maximum cost of all runs in USD: the schedule ends before."
    )

    @model_validator(mode="after")
    def _one_source(self) -> ScheduleFile:
        if (self.cron is None) == (self.every is None):
            problem = f"expected cron or every, got {'both' if self.cron else 'neither'}"
            raise key_error(problem, 'write `cron: "0 3 * * *"`, or `every: 6h`')
        return self


CODE = "R-SUBMIT"
MAX_TASKS = 500
TaskName = Annotated[
    str,
    TextField(
        r"^[a-z0-9][a-z0-9_-]{0,29}$",
        "the name of a task",
        "up to 30 lower-case letters, digits, _ and -, and begins with a letter or digit",
        "train-2",
    ),
]


def _to_param(value: object) -> object:
    """Return `True` as a text, so that the script gets it as it is written."""
    return str(value) if isinstance(value, WrittenBool) else value


class DefaultsFile(StrictModel):
    """Defaults of all tasks."""

    env: EnvFile = Field(
        default_factory=dict, description="Variables; those of a task override the defaults."
    )
    timeout: Duration | None = None
    idle_timeout: StallTime | None = None
    keep_node: KeepTime | None = None
    retries: Retries | None = None
    resources: ResourcesFile | None = None
    notify: Notify = Field(
        None, description="As in train.yaml: a webhook that is told how each task goes."
    )


class TaskFile(DefaultsFile, json_schema_extra=one_of("recipe", "command")):
    """One task: a recipe, a folder, a script, or a command in a folder."""

    recipe: str | None = Field(
        None, min_length=1, description="A built-in recipe, a folder or a script, as for train."
    )
    command: Command | None = Field(None, description="Words or a list; no shell.")
    folder: str | None = Field(
        None, description="Folder with the code of a command; defaults to the folder of this file."
    )
    requirements: RelativePath | None = Field(None, description="Requirements of a command.")
    after: list[str] = Field(default_factory=list, description="Tasks that run before this one.")
    on_failure: Literal["block", "satisfy"] = Field(
        "block", description="Effect of a failure on the tasks that depend on this one."
    )
    params: dict[
        Identifier,
        Annotated[Scalar | None, BeforeValidator(_to_param, json_schema_input_type=Scalar | None)],
    ] = Field(
        default_factory=dict,
        description="Parameters, as with --set: the script gets a number as it is written here; "
        "null leaves a parameter out.",
    )
    args: list[str] = Field(default_factory=list, description="Arguments of the script.")
    data: str | None = Field(None, description="File or folder with the recipe's data set.")
    inputs: Inputs = Field(
        default_factory=dict, description="As in train.yaml; {run: TASK} has the outputs of a task."
    )
    outputs: list[RelativePath] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TaskFile:
        if (self.recipe is None) == (self.command is None):
            found = "both" if self.recipe else "neither"
            problem = f"expected recipe or command, got {found}"
            raise key_error(problem, "write `recipe: ./folder`, or `command: python prepare.py`")
        for key in ("folder", "requirements"):
            if self.recipe is not None and getattr(self, key) is not None:
                raise key_error(f"`{key}` cannot be combined with `recipe`", f"remove `{key}`")
        return self


class JobFile(StrictModel):
    """Settings of the Batch job of the tasks."""

    max_parallel: int | None = Field(None, ge=1, description="Maximum number of parallel tasks.")


class SubmitFile(StrictModel, title="file of runner submit"):
    """Several tasks in one Batch job."""

    name: RecipeName | None = Field(None, description="Defaults to the name of the file.")
    experiment: str | None = None
    tasks: dict[TaskName, TaskFile] = Field(min_length=1, max_length=MAX_TASKS)
    defaults: DefaultsFile = Field(DefaultsFile.model_validate({}))
    priority: Priority = 0
    pool: str | None = Field(
        None, description="Pool of all tasks; defaults to the first pool that fits all."
    )
    schedule: ScheduleFile | None = Field(None, description="Times at which the tasks run.")
    job: JobFile = Field(JobFile.model_validate({}))
    max_cost: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        strict=False,
        description="Cap of the costs of all tasks in US dollars.",
    )


def load_submit_file(path: Path) -> tuple[SubmitFile, Document]:
    """Read and validate the file. Raise RunnerError with file, line and field."""
    if path.is_dir() or path.suffix == ".py":
        raise _no_tasks(path)
    document = read_document(path, code=CODE)
    if path.name == RECIPE_FILE and "tasks" not in document.data:
        raise _no_tasks(path)
    parsed = check_document(document, SubmitFile, code=CODE)
    for name, task in parsed.tasks.items():
        _check_after(document, name, task, tuple(parsed.tasks))
    try:
        order_tasks(edges(parsed))
    except CyclicError as err:
        raise RunnerError(
            f"{CODE}-CYCLE",
            f"{path}:{document.line(('tasks', err.path[0]))}: tasks depend on each other",
            why=" -> ".join(err.path) + " (each runs after the next)",
            fix="remove one of these dependencies from `after`, or an input `run:`",
        ) from err
    return parsed, document


def _no_tasks(path: Path) -> RunnerError:
    return RunnerError(
        "R-SUBMIT-RECIPE",
        f"{path} has no tasks to submit",
        why="a folder, a script or a train.yaml is a recipe, not a file with tasks",
        fix=f"run `runner train {shlex.quote(str(path.resolve()))}`, or use a file with `tasks`",
    )


def edges(file: SubmitFile) -> dict[str, tuple[str, ...]]:
    """Return the predecessors of each task: its `after`, and the tasks whose outputs it reads."""
    return {name: _predecessors(task, file) for name, task in file.tasks.items()}


def _predecessors(task: TaskFile, file: SubmitFile) -> tuple[str, ...]:
    if not task.after and not task.inputs:
        return ()
    return tuple(dict.fromkeys([*task.after, *reads(task, file)]))


def reads(task: TaskFile, file: SubmitFile) -> tuple[str, ...]:
    """Return the tasks of the file whose outputs a task reads."""
    runs = (source.run for source in task.inputs.values())
    return tuple(dict.fromkeys(run for run in runs if run is not None and run in file.tasks))


def must_succeed(name: str, file: SubmitFile) -> tuple[str, ...]:
    """Return the predecessors that must succeed; others may also fail."""
    task = file.tasks[name]
    before = _predecessors(task, file)
    needed = reads(task, file) if before else ()
    return tuple(
        each for each in before if each in needed or file.tasks[each].on_failure == "block"
    )


def _check_after(document: Document, name: str, task: TaskFile, known: tuple[str, ...]) -> None:
    for number, before in enumerate(task.after):
        where = ("tasks", name, "after", number)
        if before == name:
            problem, fix = f"{name!r} depends on itself", "remove it"
        elif before not in known:
            problem = f"unknown task {before!r}"
            fix = did_you_mean(before, known) or f"use one of the tasks: {', '.join(known)}"
            if is_run_id(before) or before == "@last":
                problem = f"{before!r} is a run, but a task can only wait for tasks of this file"
                file = document.path.name
                fix = f"wait on this machine: `runner attach {before} && runner submit {file}`"
        elif before in task.after[:number]:
            problem, fix = f"duplicate {before!r}", "remove one of them"
        else:
            continue
        raise field_error(document, where, problem, code=CODE, fix=fix)


def order_tasks(after: Edges) -> tuple[str, ...]:
    """Return the tasks, each after its predecessors, otherwise in the order of the file.

    Unknown names are ignored.

    Raises:
        CyclicError: tasks depend on each other.
    """
    return tuple(name for level in levels(after) for name in level)


_MAX_NAMED = 3  # maximum number of predecessors in one line of the tree


def draw_tree(after: Edges, notes: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the lines of a tree of tasks.

    Each task is below its last predecessor, and its line names the other ones.

    Args:
        after: the predecessors of each task.
        notes: a text for the lines of some tasks.
    """
    order = order_tasks(after)
    place = {name: number for number, name in enumerate(order)}
    children: dict[str | None, list[str]] = {}
    for name in order:
        parents = sorted(set(after[name]), key=place.__getitem__)
        children.setdefault(parents[-1] if parents else None, []).append(name)
    lines: list[str] = []
    # An explicit stack, because a chain of tasks can be deeper than Python's recursion limit.
    stack = [(name, "", "", "") for name in reversed(children.get(None, []))]
    while stack:
        name, lead, mark, below = stack.pop()
        others = sorted(set(after[name]), key=place.__getitem__)[:-1]
        also = f"  (also after {_shorten(others)})" if others else ""
        note = (notes or {}).get(name, "")
        lines.append(f"{lead}{mark}{name}{f'  {note}' if note else ''}{also}")
        inner = children.get(name, [])
        for number, child in reversed(list(enumerate(inner))):
            last = number == len(inner) - 1
            stack.append((child, lead + below, "└─ " if last else "├─ ", "   " if last else "│  "))
    return tuple(lines)


def _shorten(names: Sequence[str]) -> str:
    """Return `a, b and 97 more`."""
    if len(names) <= _MAX_NAMED:
        return ", ".join(names)
    shown = names[: _MAX_NAMED - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"
