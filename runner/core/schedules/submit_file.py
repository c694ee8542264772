"""The file of `runner submit`: its tasks, which comes after which, and its schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from runner.core.recipe.file import Command, Duration, Identifier, RecipeName, RelativePath, Scalar
from runner.core.recipe.keys import EnvFile, Inputs, Priority, ResourcesFile, key_error
from runner.core.recipe.recipe import RECIPE_FILE
from runner.core.yaml_files import (
    Amount,
    Document,
    StrictModel,
    TextField,
    check_document,
    field_error,
    near,
    one_of,
    read_document,
)
from runner.protocol.errors import RunnerError
from runner.protocol.groups import CyclicError, Edges, levels
from runner.protocol.paths import is_run_id


def _moment(value: object) -> object:
    if not isinstance(value, str | date):
        return value
    try:
        # As text and back: what YAML makes of a time is a class of its own.
        return datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except ValueError as err:
        fix = "write 2026-12-31 or 2026-12-31T06:00+01:00"
        raise key_error(f"{value!r} is not a date or time", fix) from err


Moment = Annotated[
    datetime,
    BeforeValidator(_moment, json_schema_input_type=str),
    WithJsonSchema({"type": "string"}),
]
Every = Annotated[int, Amount("duration", "1m", "366d")]


class ScheduleFile(StrictModel, json_schema_extra=one_of("cron", "every")):
    """When a run begins again and again."""

    cron: str | None = Field(None, description="Five fields that make an even interval: 0 3 * * *")
    every: Every | None = Field(None, description="Instead of cron: 6h, 1d12h, 90m.")
    timezone: str = Field("UTC", description="Of cron: UTC, Europe/Berlin, UTC+05:30.")
    start: Moment | None = Field(None, description="No run begins before.")
    until: Moment | None = Field(None, description="No run begins later.")
    max_runs: int | None = Field(None, ge=1, description="At most so many runs.")

    @model_validator(mode="after")
    def _one_source(self) -> ScheduleFile:
        if (self.cron is None) == (self.every is None):
            problem = f"a schedule has cron or every, got {'both' if self.cron else 'neither'}"
            raise key_error(problem, 'cron: "0 3 * * *", or every: 6h')
        return self


CODE = "R-SUBMIT"
MAX_TASKS = 500
TaskName = Annotated[
    str,
    TextField(
        r"^[a-z0-9][a-z0-9_-]{0,29}$",
        "the name of a task",
        "small letters, digits, _ and -, 30 at most, and begins with a letter or digit",
        "train-2",
    ),
]


class DefaultsFile(StrictModel):
    """What holds for every task that does not say otherwise."""

    env: EnvFile = Field(default_factory=dict, description="Beside what the task itself sets.")
    timeout: Duration | None = None
    retries: int | None = Field(None, ge=0, le=100)
    resources: ResourcesFile | None = None


class TaskFile(StrictModel, json_schema_extra=one_of("recipe", "command")):
    """One task: a recipe, folder or script, or a command in a folder."""

    recipe: str | None = Field(
        None, min_length=1, description="A built-in recipe, a folder or a script, as for train."
    )
    command: Command | None = Field(None, description="Words or a list; no shell.")
    folder: str | None = Field(
        None, description="The code of a command; the folder of this file if not given."
    )
    requirements: RelativePath | None = Field(None, description="Of a command's folder.")
    after: list[str] = Field(default_factory=list, description="Tasks that come before this one.")
    on_failure: Literal["block", "satisfy"] = Field(
        "block", description="What a failure of this task means for those after it."
    )
    params: dict[Identifier, Scalar] = Field(default_factory=dict)
    args: list[str] = Field(default_factory=list, description="Arguments of the script.")
    data: str | None = Field(None, description="File or folder with the recipe's data set.")
    inputs: Inputs = Field(
        default_factory=dict, description="As in train.yaml; {run: TASK} is what a task wrote."
    )
    outputs: list[RelativePath] | None = None
    env: EnvFile = Field(default_factory=dict)
    timeout: Duration | None = None
    retries: int | None = Field(None, ge=0, le=100)
    resources: ResourcesFile | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TaskFile:
        if (self.recipe is None) == (self.command is None):
            found = "both" if self.recipe else "neither"
            problem = f"a task has a recipe or a command, got {found}"
            raise key_error(problem, "recipe: ./folder, or command: python prepare.py")
        for key in ("folder", "requirements"):
            if self.recipe is not None and getattr(self, key) is not None:
                raise key_error(f"{key} goes with command: a recipe has its own", f"remove {key}")
        return self


class JobFile(StrictModel):
    """Of the Batch job that holds the tasks."""

    max_parallel: int | None = Field(None, ge=1, description="Tasks that run at the same time.")


class SubmitFile(StrictModel, title="file of runner submit"):
    """Tasks of one Batch job."""

    name: RecipeName | None = Field(None, description="Defaults to the name of the file.")
    experiment: str | None = None
    tasks: dict[TaskName, TaskFile] = Field(min_length=1, max_length=MAX_TASKS)
    defaults: DefaultsFile = Field(DefaultsFile.model_validate({}))
    priority: Priority = 0
    pool: str | None = Field(None, description="One pool for all; else the first that fits all.")
    schedule: ScheduleFile | None = Field(None, description="When the tasks run, again and again.")
    job: JobFile = Field(JobFile.model_validate({}))


def load_submit_file(path: Path) -> tuple[SubmitFile, Document]:
    """Read and check the file. Raises RunnerError with file, line and field."""
    if path.is_dir() or path.suffix == ".py":
        raise _no_tasks(path)
    document = read_document(path, code=CODE)
    if path.name == RECIPE_FILE and "tasks" not in document.data:
        raise _no_tasks(path)
    parsed = check_document(document, SubmitFile, code=CODE)
    for name, task in parsed.tasks.items():
        _check_after(document, name, task, tuple(parsed.tasks))
    try:
        in_order(edges(parsed))
    except CyclicError as err:
        raise RunnerError(
            f"{CODE}-CYCLE",
            f"{path}:{document.line(('tasks', err.path[0]))}: tasks wait for one another",
            why=" -> ".join(err.path) + "   (-> means: comes after)",
            fix="remove one of these from an `after`, or from an input of `run:`",
        ) from err
    return parsed, document


def _no_tasks(path: Path) -> RunnerError:
    return RunnerError(
        f"{CODE}-RECIPE",
        f"{path} has no tasks to submit",
        why="a folder, a script and a train.yaml are recipes",
        fix=f"runner train {path.name}, or name a file with tasks",
    )


def edges(file: SubmitFile) -> dict[str, tuple[str, ...]]:
    """What each task comes after: what it says, and the tasks whose outputs it reads."""
    return {
        name: tuple(dict.fromkeys([*task.after, *reads(task, file)]))
        for name, task in file.tasks.items()
    }


def reads(task: TaskFile, file: SubmitFile) -> tuple[str, ...]:
    """Tasks of the same file whose outputs a task reads."""
    runs = (source.run for source in task.inputs.values())
    return tuple(dict.fromkeys(run for run in runs if run is not None and run in file.tasks))


def must_succeed(name: str, file: SubmitFile) -> tuple[str, ...]:
    """Tasks without whose success this one does not start; a failure of others satisfies it."""
    needed = reads(file.tasks[name], file)
    return tuple(
        before
        for before in edges(file)[name]
        if before in needed or file.tasks[before].on_failure == "block"
    )


def _check_after(document: Document, name: str, task: TaskFile, known: tuple[str, ...]) -> None:
    for number, before in enumerate(task.after):
        where = ("tasks", name, "after", number)
        if before == name:
            problem, fix = f"{name!r} comes after itself", "remove it"
        elif before not in known:
            problem = f"there is no task {before!r}"
            fix = near(before, known) or f"tasks are: {', '.join(known)}"
            if is_run_id(before) or before == "@last":
                problem = f"{before!r} is a run, and tasks wait for tasks of the same file"
                file = document.path.name
                fix = f"wait for it here: runner attach {before} && runner submit {file}"
        elif before in task.after[:number]:
            problem, fix = f"{before!r} is named twice", "remove one of them"
        else:
            continue
        raise field_error(document, where, problem, code=CODE, fix=fix)


def in_order(after: Edges) -> tuple[str, ...]:
    """Every task behind those it comes after; equals as they stand in the file.

    Raises CyclicError. Names that are no task are the caller's to find.
    """
    return tuple(name for level in levels(after) for name in level)


_NAMED = 3  # predecessors that one line of the picture names; more say nothing


def draw(after: Edges, notes: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A tree, each task once: below the last of those it comes after, which it names if several."""
    order = in_order(after)
    place = {name: number for number, name in enumerate(order)}
    children: dict[str | None, list[str]] = {}
    for name in order:
        parents = sorted(set(after[name]), key=place.__getitem__)
        children.setdefault(parents[-1] if parents else None, []).append(name)
    lines: list[str] = []
    # Explicit stack: a chain of tasks is as deep as it is long.
    stack = [(name, "", "", "") for name in reversed(children.get(None, []))]
    while stack:
        name, lead, mark, below = stack.pop()
        others = sorted(set(after[name]), key=place.__getitem__)[:-1]
        also = f"  (also after {_few(others)})" if others else ""
        note = (notes or {}).get(name, "")
        lines.append(f"{lead}{mark}{name}{f'  {note}' if note else ''}{also}")
        inner = children.get(name, [])
        for number, child in reversed(list(enumerate(inner))):
            last = number == len(inner) - 1
            stack.append((child, lead + below, "└─ " if last else "├─ ", "   " if last else "│  "))
    return tuple(lines)


def _few(names: Sequence[str]) -> str:
    """`a, b and 97 more`: the last one is named where it alone would be left."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    shown = names[: _NAMED - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"
