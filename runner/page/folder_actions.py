"""The actions on files of the machine: all below the folder in which the page was started."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner.page import losses
from runner.page.forms import Action, Field, Values, texts
from runner.page.training import find_files, load_allowed
from runner.protocol.errors import RunnerError

_TASKS = re.compile(r"^tasks:", re.MULTILINE)
_YAML = (".yaml", ".yml")
_HEAD = 100_000


def check_below(text: str, folder: Path) -> None:
    """Raise RunnerError for a path that is not below a folder. Commands expand `~`, so it does."""
    with suppress(OSError, RuntimeError, ValueError):  # too long, an unknown ~user, a null
        if (folder / Path(text).expanduser()).resolve().is_relative_to(folder.resolve()):
            return
    raise RunnerError(
        "R-PAGE-RECIPE",
        f"{text[:200]!r} is outside of the folder of the page",
        why=f"the page reads files below {folder}",
        fix="start the page in a folder above it",
    )


def find_task_files(folder: Path) -> list[str]:
    """Return the files with several tasks below a folder, as `./sweep.yaml`."""
    return [ref for ref in find_files(folder, _YAML) if _has_tasks(folder / ref)]


def _has_tasks(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _TASKS.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def _all_below(name: str) -> Callable[[Values], Values]:
    """Return a check that all values of a name are paths below the folder of the page."""

    def check(values: Values) -> Values:
        for text in texts(values, name):
            check_below(text, Path.cwd())
        return values

    return check


def _check_scheduled(values: Values) -> Values:
    for text in texts(values, "recipe"):
        if text.endswith(_YAML):
            check_below(text, Path.cwd())
        else:
            load_allowed(text, Path.cwd())
    return values


_LINES = Field("set", "Parameters", "lines", help="One NAME=VALUE per line.")
_POOL = Field("pool", "Pool", usual="the first that meets the requirements")
_PRIORITY = Field("priority", "Priority", "number", usual="0", low=-1000, high=1000)

SUBMIT = Action(
    "submit",
    "Submit the tasks",
    ("submit", "{file}", "--detach"),
    options={
        "set": "--set", "pool": "--pool", "experiment": "--experiment", "priority": "--priority",
        "max_cost": "--max-cost",
    },
    fields=(
        Field("set", "Parameters", "lines", help="One TASK.NAME=VALUE per line."),
        _POOL,
        Field("experiment", "Experiment", usual="the file's name"),
        _PRIORITY,
        Field("max_cost", "Cost cap in USD"),
    ),
    loss=losses.SUBMISSION,
    reads_folder=True,
    prepare=_all_below("file"),
)  # fmt: skip
SCHEDULE = Action(
    "schedule-create",
    "Create a schedule",
    ("schedule", "create", "{recipe}"),
    options={
        "cron": "--cron", "every": "--every", "timezone": "--timezone", "start": "--start",
        "until": "--until", "max_runs": "--max-runs", "name": "--name", "set": "--set",
        "pool": "--pool", "priority": "--priority",
    },
    fields=(
        Field("recipe", "Recipe", help="A recipe, script, or file with tasks.", required=True),
        Field("cron", "Times", help="Five cron fields: 0 3 * * *"),
        Field("every", "Or an interval", help="6h, 1d, 90m"),
        Field("timezone", "Time zone of the times", usual="UTC"),
        Field("start", "Not before", help="A date, or a time."),
        Field("until", "Not after", help="A date, or a time."),
        Field("max_runs", "Most runs", "number", usual="no limit", low=1),
        Field("name", "Name", usual="the recipe's name"),
        _LINES,
        _POOL,
        _PRIORITY,
    ),
    reads_folder=True,
    prepare=_check_scheduled,
    after="/schedules",
)  # fmt: skip
RECIPE_NEW = Action(
    "recipe-new",
    "Create a recipe",
    ("recipe", "new", "{name}"),
    fields=(Field("name", "Name of its folder", required=True),),
    reads_folder=True,
    prepare=_all_below("name"),
    after="/new?recipe=./{name}",
    takes="",
    prints_json=False,
)
DATA_PUT = Action(
    "data-put",
    "Upload",
    ("data", "put", "{source}", "{path}"),
    options={"force": "--force"},
    fields=(
        Field(
            "source",
            "File or folder",
            help="On the machine of this page, below its folder.",
            required=True,
        ),
        Field("path", "To", usual="its name", help="PATH in container data, or CONTAINER:PATH"),
        Field("force", "Replace files with other content", "check"),
    ),
    reads_folder=True,
    prepare=_all_below("source"),
    after="/data",
)
