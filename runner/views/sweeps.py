"""Documents about sweeps, groups and experiments: their lines in lists, and their runs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import (
    Any,
    NotRequired,  # for pydantic, see `runs.py`
)

from typing_extensions import TypedDict

from runner.flows.runs.rows import RunRow
from runner.flows.sweeps.experiments import Experiment, Leaderboard, TrialCost
from runner.flows.sweeps.groups import GroupView
from runner.protocol.groups import RunGroup
from runner.views.json_text import Measured


class SweepRow(TypedDict):
    """A sweep of `runner sweep ls -o json`; `params` has the names of its parameters."""

    sweep: str
    trials: int
    params: str
    pool: str
    created: str


class TrialDocument(TypedDict):
    """A trial of `runner sweep show -o json`; the costs are there with `--cost`."""

    trial: str
    run_id: str
    metric: str | None
    value: Measured | None
    params: dict[str, Any]
    state: str
    reason: str
    took_s: float | None
    attempts: int
    evicted: int | None
    error: NotRequired[str]
    cost_usd: NotRequired[float | None]
    evictions_usd: NotRequired[float | None]


class MergeDocument(TypedDict):
    """The merge task of a sweep."""

    run_id: str
    state: str
    reason: str


class SweepDocument(TypedDict):
    """The document of `runner sweep show -o json`: the trials, the best first."""

    sweep: str
    metric: str | None
    states: dict[str, int]
    cause: dict[str, Any] | None
    problems: list[str]
    trials: list[TrialDocument]
    merge: NotRequired[MergeDocument]


class GroupTask(TypedDict):
    """A task of a group, with the tasks that it waits for."""

    task: str
    run_id: str
    after: list[str]
    state: str
    reason: str


class GroupDocument(TypedDict):
    """The document of `runner show GROUP -o json`."""

    group: str
    job_id: str
    pool: str
    created: str
    tasks: list[GroupTask]


class ExperimentLine(TypedDict):
    """An experiment of `runner experiments ls -o json`; durations are seconds.

    `shown_states` also distinguishes runs that are paused, and trials that were stopped early.
    """

    experiment: str
    runs: int
    states: dict[str, int]
    shown_states: NotRequired[dict[str, int]]
    metric: str | None
    value: Measured | None
    best: str | None
    params: dict[str, Any]
    duration_s: dict[str, float]
    newest: str
    oldest: str


class FailureDocument(TypedDict):
    """The failed runs of an experiment with one cause."""

    failed: int
    cause: str
    newest: str
    run_ids: list[str]


class ExperimentDocument(ExperimentLine):
    """The document of `runner experiments show -o json`."""

    failures: list[FailureDocument]


def parameter_names(trials: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the parameters of all trials, without duplicates."""
    return tuple(dict.fromkeys(name for trial in trials.values() for name in trial))


def sweep_line(group: RunGroup) -> SweepRow:
    """Return the document of one sweep of a list."""
    return {
        "sweep": group.group_id,
        "trials": len(group.trials),
        "params": ", ".join(parameter_names(group.trials)),
        "pool": group.pool,
        "created": group.created.isoformat(),
    }


def trial_document(board: Leaderboard, row: RunRow) -> TrialDocument:
    """Return the document of a trial, without its costs."""
    document: TrialDocument = {
        "trial": board.names[row.run_id],
        "run_id": row.run_id,
        "metric": board.metric,
        "value": row.metrics.get(board.metric) if board.metric else None,
        "params": board.params(row),
        "state": row.shown_state,
        "reason": row.reason,
        "took_s": row.took_s,
        "attempts": row.attempts,
        "evicted": row.evicted,
    }
    if row.status and row.status.error:
        document["error"] = row.status.error
    return document


def trial_documents(
    board: Leaderboard, costs: Mapping[str, TrialCost] | None = None
) -> list[TrialDocument]:
    """Return the documents of all trials, with their costs if these are given."""
    documents = [trial_document(board, row) for row in board.rows]
    for each in documents if costs is not None else ():
        cost = (costs or {})[each["trial"]]
        each["cost_usd"], each["evictions_usd"] = cost.cost_usd, cost.evictions_usd
    return documents


def sweep_document(board: Leaderboard, trials: Sequence[TrialDocument]) -> SweepDocument:
    """Return the document of a sweep with those of its trials."""
    document: SweepDocument = {
        "sweep": board.sweep.group_id,
        "metric": board.metric,
        "states": board.shown_states,
        "cause": board.cause.to_json() if board.cause else None,
        "problems": [*filter(None, [board.metric_problem]), *board.problems],
        "trials": list(trials),
    }
    if (merge := board.merge) is not None:
        document["merge"] = {
            "run_id": merge.run_id,
            "state": merge.state,
            "reason": merge.reason,
        }
    return document


def group_document(view: GroupView) -> GroupDocument:
    """Return the document of a group and the present states of its tasks."""
    group = view.group
    return {
        "group": group.group_id,
        "job_id": group.job_id,
        "pool": group.pool,
        "created": group.created.isoformat(),
        "tasks": [_task(view, name) for name in group.runs],
    }


def _task(view: GroupView, name: str) -> GroupTask:
    state, reason = task_state(view.rows.get(name))
    return {
        "task": name,
        "run_id": view.group.runs[name],
        "after": list(view.group.after[name]),
        "state": state,
        "reason": reason,
    }


def task_state(row: RunRow | None) -> tuple[str, str]:
    """Return the state of a task's run and why; `deleted` without a run."""
    if row is None:
        return "deleted", "its run record was deleted from storage"
    return row.state, row.reason


def experiment_line(experiment: Experiment, metric: str | None) -> ExperimentLine:
    """Return the document of one experiment of a list; `metric` decides which run is best."""
    best = None if metric is None else experiment.best(metric)
    created: list[datetime] = [row.spec.created for row in experiment.rows if row.spec]
    return {
        "experiment": experiment.name,
        "runs": len(experiment.rows),
        "states": dict(experiment.states),
        "shown_states": experiment.shown_states,
        "metric": metric,
        "value": best.metrics[metric] if best and metric else None,
        "best": best.run_id if best else None,
        "params": best.params if best else {},
        "duration_s": dict(experiment.durations_s),
        "newest": created[0].isoformat(),
        "oldest": created[-1].isoformat(),
    }


def experiment_document(experiment: Experiment, metric: str | None) -> ExperimentDocument:
    """Return the document of an experiment, with why its runs failed."""
    failures: list[FailureDocument] = [
        {
            "failed": len(rows),
            "cause": cause or "unknown",
            "newest": rows[0].run_id,
            "run_ids": [row.run_id for row in rows],
        }
        for cause, rows in experiment.failures.items()
    ]
    return {**experiment_line(experiment, metric), "failures": failures}
