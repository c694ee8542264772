"""Groups of runs: `groups/<id>.json`, the runs of one submission and their dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runner.protocol.codec import (
    DAMAGED,
    FORMAT,
    NOT_STORED,
    JsonDocument,
    JsonObject,
    parse_json,
    read,
    wire,
    write,
)
from runner.protocol.errors import RunnerError
from runner.protocol.paths import check_batch_id

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

GROUPS_FOLDER = "groups/"
SWEEPS_FOLDER = "sweeps/"  # per sweep: reports of its trials, and the runs that resumed them
MERGE_TASK = "merge"  # task of a sweep that runs after all trials
TRIALS_INPUT = "trials"  # name and kind of the input of the merge task
SUBMITTING_FOLDER = "submitting/"  # one blob per submission that has not added all tasks yet
PAUSED_FOLDER = "paused/"  # one blob per job that a command paused, until the pause ends


@dataclass(frozen=True, slots=True)
class RunGroup(JsonDocument):
    """Runs of one Batch job.

    Attributes:
        runs: Run IDs by task.
        after: The tasks that must succeed before each task, by task.
        schedule: Name of the schedule that started the group.
        trials: Parameters of each trial by task, if the group is a sweep; else empty.
        earlier: Earlier runs of each trial of a sweep that was resumed, oldest first. They are not
            in the document; `runs` then has the newest run, from `LaterRun`.
    """

    group_id: str
    name: str
    created: datetime
    job_id: str
    pool: str
    runs: Mapping[str, str] = field(metadata=NOT_STORED)
    after: Mapping[str, Sequence[str]] = field(metadata=NOT_STORED)
    schedule: str | None = field(default=None, metadata=wire(omit="empty"))
    trials: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]], metadata=NOT_STORED
    )
    earlier: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], metadata=NOT_STORED
    )

    @property
    def trial_runs(self) -> Mapping[str, str]:
        """The runs of the trials of a sweep, without the run of its merge task."""
        return {name: run_id for name, run_id in self.runs.items() if name in self.trials}

    def tasks(self, trials_per_task: int) -> dict[str, str]:
        """Return the ID of the task of each run: its run ID, or that of the first of its trials."""
        names = list(self.trial_runs)
        first = {
            name: names[number - number % trials_per_task] for number, name in enumerate(names)
        }
        return {name: self.runs[first.get(name, name)] for name in self.runs}

    @property
    def noun(self) -> str:
        """What users call a member: a trial of a sweep, a task of a file; else, a run."""
        if not self.trials:
            return "task"
        return "trial" if len(self.trials) == len(self.runs) else "run"

    def with_later(self, later: Iterable[LaterRun]) -> RunGroup:
        """Return the sweep with the newest run of each trial."""
        runs, earlier = dict(self.runs), dict(self.earlier)
        for each in sorted(later, key=lambda each: each.number):
            if each.trial in runs and each.run_id != runs[each.trial]:
                earlier[each.trial] = (*earlier.get(each.trial, ()), runs[each.trial])
                runs[each.trial] = each.run_id
        return replace(self, runs=runs, earlier=earlier)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        tasks = {
            name: {
                "run_id": run_id,
                "after": list(self.after[name]),
                **({"trial": dict(self.trials[name])} if name in self.trials else {}),
            }
            for name, run_id in self.runs.items()
        }
        return {"format": FORMAT, **write(self), "tasks": tasks}

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read the document. Raise one of DAMAGED, or CyclicError."""
        tasks: dict[str, Any] = raw["tasks"]
        after = {name: tuple(map(str, task["after"])) for name, task in tasks.items()}
        levels(after)
        runs = {name: str(task["run_id"]) for name, task in tasks.items()}
        for one in (raw["group_id"], raw["job_id"], raw["pool"], *runs.values()):
            check_batch_id(one)
        trials = {name: task["trial"] for name, task in tasks.items() if "trial" in task}
        return read(cls, raw, runs=runs, after=after, trials=trials, **given)


@dataclass(frozen=True, slots=True)
class LaterRun(JsonDocument):
    """A trial that was resumed as another run, in the blob `sweeps/<id>/runs/<trial>.<number>`.

    The client that creates the blob submits the run. Another client that finds the blob without its
    run submits the same run, so that no trial is started twice.
    """

    trial: str = field(metadata=NOT_STORED)
    number: int = field(metadata=NOT_STORED)
    run_id: str
    created: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {"format": FORMAT, **write(self)}

    @staticmethod
    def folder(group_id: str) -> str:
        """Return the prefix of the later runs of a sweep."""
        return f"{SWEEPS_FOLDER}{group_id}/runs/"

    def blob(self, group_id: str) -> str:
        """Return the blob in the `runs` container."""
        return f"{self.folder(group_id)}{self.trial}.{self.number}"

    @classmethod
    def parse(cls, name: str, content: bytes) -> LaterRun | None:
        """Read a blob. Return None if it is damaged."""
        trial, _, number = name.rpartition("/")[2].rpartition(".")
        try:
            found = cls.from_json(parse_json(content), trial=trial, number=int(number))
            check_batch_id(found.run_id)
            return found
        except DAMAGED:
            return None


def group_blob(group_id: str) -> str:
    """Return the blob of a group in the `runs` container."""
    return f"{GROUPS_FOLDER}{group_id}.json"


def parse_group(content: bytes, group_id: str) -> RunGroup:
    """Read the document. Raise RunnerError (R-GROUP-BROKEN) if it is newer or damaged."""
    try:
        raw: dict[str, Any] = parse_json(content)
        if int(raw["format"]) > FORMAT:
            raise ValueError(f"its format is {raw['format']}; this runner reads up to {FORMAT}")
        return RunGroup.from_json(raw)
    except (*DAMAGED, CyclicError) as err:
        raise RunnerError(
            "R-GROUP-BROKEN",
            f"group {group_id} cannot be read",
            why=f"{type(err).__name__}: {err}",
            fix="run `runner ps` to list its runs",
        ) from err


Edges = Mapping[str, Sequence[str]]


class CyclicError(Exception):
    """Tasks depend on each other; `path` starts and ends with the same task."""

    def __init__(self, path: Sequence[str]) -> None:
        super().__init__(" -> ".join(path))
        self.path = tuple(path)


def levels(after: Edges) -> tuple[tuple[str, ...], ...]:
    """Return the tasks in levels: the tasks of a level can run at the same time.

    Raises:
        CyclicError: Tasks depend on each other.
    """
    from graphlib import CycleError, TopologicalSorter  # noqa: PLC0415  agents need it rarely

    sorter = TopologicalSorter({name: tuple(after[name]) for name in after})
    try:
        sorter.prepare()
    except CycleError as err:
        # graphlib lists each task before its dependents; the message lists dependents first.
        raise CyclicError(list(reversed(err.args[1]))) from err
    place = {name: number for number, name in enumerate(after)}
    found: list[tuple[str, ...]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        found.append(tuple(ready))
        sorter.done(*ready)
    return tuple(found)
