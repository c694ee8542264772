"""Documents about schedules; `runner.features.schedules.documents` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on


class ScheduleLine(TypedDict):
    """A schedule of `runner schedule ls -o json`; `next` is the time of its next run."""

    schedule: str
    state: str
    when: str
    next: str | None
    recipe: str | None
    pool: str | None
    until: str | None
    tasks: list[str]


class FiredRun(TypedDict):
    """A run that a schedule has started; a deleted run has no state."""

    run_id: str
    state: str | None
    reason: str | None


class FiringDocument(TypedDict):
    """A firing of a schedule, or a trigger, with what it started."""

    created: str
    triggered: bool
    job_id: str
    group_id: str | None
    runs: list[FiredRun]


class ScheduleDocument(ScheduleLine):
    """The document of `runner schedule show -o json`; `trouble` is why no run was created.

    `next_runs` are the next times in the time zone of the schedule.
    """

    next_runs: list[str]
    runs: list[str]
    groups: list[str]
    firings: list[FiringDocument]
    trouble: str | None
    document: Mapping[str, Any]
