"""The documents of `runner schedule -o json`, for the command line and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.features.schedules.manage import (
    Firing,
    ScheduleRecord,
    find_schedule,
    firings,
    list_schedules,
    trouble,
)
from runner.flows.runs.history import list_runs
from runner.flows.runs.rows import RunRow
from runner.views.schedules import FiringDocument, ScheduleDocument, ScheduleLine

NEXT_RUNS = 5  # that `show` lists


def list_lines(connection: Connection) -> list[ScheduleLine]:
    """Return all schedules, by name."""
    return [schedule_line(schedule) for schedule in list_schedules(connection)]


def load_document(connection: Connection, schedule_id: str) -> ScheduleDocument:
    """Return a schedule with its firings. Raise RunnerError if it does not exist."""
    found = find_schedule(connection, schedule_id)
    made = firings(connection, found)
    return schedule_document(connection, found, made, trouble(connection, found, made))


def schedule_line(schedule: ScheduleRecord) -> ScheduleLine:
    """Return the document of one schedule of a list."""
    document, following = schedule.document, schedule.next_runs(1, datetime.now(UTC))
    return {
        "schedule": schedule.schedule_id,
        "state": schedule.state,
        "when": schedule.when,
        "next": following[0].astimezone(UTC).isoformat() if following else None,
        "recipe": document["recipe"],
        "pool": document["pool"],
        "until": document["last"],
        "tasks": list(schedule.tasks),
    }


def schedule_document(
    connection: Connection,
    schedule: ScheduleRecord,
    made: Sequence[Firing],
    problem: str | None,
) -> ScheduleDocument:
    """Return a schedule with its firings, oldest first, and the states of their runs."""
    rows = firing_rows(connection, made)
    return {
        **schedule_line(schedule),
        "next_runs": [at.isoformat() for at in schedule.next_runs(NEXT_RUNS, datetime.now(UTC))],
        "runs": [run_id for one in made for run_id in one.runs],
        "groups": [one.group_id for one in made if one.group_id is not None],
        "firings": [firing_document(one, rows) for one in made],
        "trouble": problem,
        "document": schedule.document,
    }


def firing_rows(connection: Connection, made: Sequence[Firing]) -> Mapping[str, RunRow]:
    """Return the runs of firings by ID."""
    ids = [run_id for one in made for run_id in one.runs]
    return {row.run_id: row for row in list_runs(connection, limit=None, ids=ids).rows}


def firing_document(one: Firing, rows: Mapping[str, RunRow]) -> FiringDocument:
    """Return a firing with the states of its runs; a deleted run has no state."""
    found = {run_id: rows[run_id].status for run_id in one.runs if run_id in rows}
    return {
        "created": one.created,
        "triggered": one.triggered,
        "job_id": one.job_id,
        "group_id": one.group_id,
        "runs": [
            {
                "run_id": run_id,
                "state": status.label if status else None,
                "reason": status.reason if status else None,
            }
            for run_id, status in ((run_id, found.get(run_id)) for run_id in one.runs)
        ],
    }
