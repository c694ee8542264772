"""Find, pause, resume and delete schedules, and list their firings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch import schedules as service
from runner.azure.batch.jobs import get_task, read_task_file, terminate_task
from runner.azure.batch.schedules import GROUP_TASK_ID, TASK_ID, ScheduleView
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.recurrence import CronError, ScheduleSpec, next_runs, parse_zone
from runner.core.units import format_duration
from runner.core.yaml_files import did_you_mean
from runner.flows.costs.budgets import release_claim, schedule_key
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import load_result, runs_container
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import parse_run
from runner.protocol.schedules import SCHEDULES_FOLDER

# Replaces an unreadable document, so that the schedule is listed and can be deleted.
_UNREADABLE = {
    "recipe": None,
    "pool": None,
    "last": None,
    "cron": "unreadable",
    "timezone": "UTC",
    "instance": "unreadable",
}


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule: its document, and its state in Batch or None if Batch does not have it."""

    schedule_id: str
    document: Mapping[str, Any]
    view: ScheduleView | None

    @property
    def state(self) -> str:
        """`active`, `paused`, `completed`, or `gone` if Batch does not have it."""
        state = self.view.state if self.view else "gone"
        return "paused" if state == "disabled" else state

    @property
    def when(self) -> str:
        """Its cron expression, or its interval."""
        if self.document["cron"]:
            zone = "" if self.document["timezone"] == "UTC" else f" {self.document['timezone']}"
            return f"{self.document['cron']}{zone}"
        return f"every {format_duration(self.document['interval_s'])}"

    def next_runs(self, count: int, now: datetime) -> list[datetime]:
        """Return the times of the next runs, in the time zone of the schedule; none if paused."""
        following = self.view.next_run if self.view else None
        if following is None:
            return []
        try:
            return self._next_runs(following, count, now)
        except (RunnerError, CronError, *DAMAGED):
            return [following]

    def _next_runs(self, following: datetime, count: int, now: datetime) -> list[datetime]:
        last = self.document["last"]
        until = datetime.fromisoformat(last) if last else None
        spec = ScheduleSpec(cron=self.document["cron"], timezone=self.document["timezone"])
        if spec.cron is not None:
            return next_runs(spec, now, until, count)
        zone, step = parse_zone(spec.timezone), timedelta(seconds=self.document["interval_s"])
        times = (following + number * step for number in range(count))
        return [at.astimezone(zone) for at in times if until is None or at <= until]

    @property
    def place(self) -> str:
        """The folder of its template and its firings, below `schedules/`."""
        return f"{self.schedule_id}/{self.document['instance']}"

    @property
    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The predecessors of each task; empty if it creates single runs."""
        found: Mapping[str, list[str]] = self.document.get("tasks") or {}
        return {name: tuple(before) for name, before in found.items()}


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing of a schedule, or a `trigger`, with the run or group that it started."""

    created: str
    job_id: str
    group_id: str | None
    runs: tuple[str, ...]
    triggered: bool = False


def list_schedules(connection: Connection) -> list[ScheduleRecord]:
    """Return all schedules of the stack, by ID."""
    container = runs_container(connection)
    views = {view.schedule_id: view for view in service.list_schedules(connection)}
    names = sorted(
        name.removeprefix(SCHEDULES_FOLDER) for name in container.folders(SCHEDULES_FOLDER)
    )
    found = (_load(container, name, views) for name in names)
    return [schedule for schedule in found if schedule is not None]


def find_schedule(connection: Connection, schedule_id: str) -> ScheduleRecord:
    """Return the schedule of an ID. Raise R-SCHEDULE-UNKNOWN if it does not exist."""
    container = runs_container(connection)
    view = service.get_schedule(connection, schedule_id)
    found = _load(container, schedule_id, {schedule_id: view} if view else {})
    if found is not None:
        return found
    known = [name.removeprefix(SCHEDULES_FOLDER) for name in container.folders(SCHEDULES_FOLDER)]
    raise RunnerError(
        "R-SCHEDULE-UNKNOWN",
        f"unknown schedule {schedule_id!r}",
        why=f"schedules: {', '.join(known)}" if known else "there are no schedules",
        fix=did_you_mean(schedule_id, known) or "run `runner schedule ls` to list them",
    )


def firings(connection: Connection, schedule: ScheduleRecord) -> list[Firing]:
    """Return the firings so far, newest last."""
    container = runs_container(connection)
    names = [blob.name for blob in container.list(f"{SCHEDULES_FOLDER}{schedule.place}/firings/")]
    bodies = [body for body in in_parallel(container.read, names) if body]
    made = (_firing(body) for body in bodies)
    return sorted((one for one in made if one is not None), key=lambda one: one.created)


def _firing(body: bytes) -> Firing | None:
    """Return the firing of a document, or None if it cannot be read."""
    with suppress(*DAMAGED):
        raw: dict[str, Any] = parse_json(body)
        runs: dict[str, str] = raw.get("runs") or {}
        found = tuple(runs.values()) if runs else (str(raw["run_id"]),)
        triggered = bool(raw.get("triggered"))
        created, job_id = str(raw["created"]), str(raw["job_id"])
        return Firing(created, job_id, raw.get("group_id"), found, triggered)
    return None


def trouble(connection: Connection, schedule: ScheduleRecord, made: Sequence[Firing]) -> str | None:
    """Return why a newest job of a schedule has created no run, or None if nothing is wrong."""
    known = {one.job_id for one in made}
    recent = schedule.view.recent_jobs if schedule.view else ()
    found = (_job_trouble(connection, schedule, each) for each in recent if each not in known)
    return next(filter(None, found), None)


def _job_trouble(connection: Connection, schedule: ScheduleRecord, job_id: str) -> str | None:
    task_id = GROUP_TASK_ID if schedule.tasks else TASK_ID
    task = get_task(connection, job_id, task_id)
    if task is None or task.phase != "completed":
        return f"job {job_id} waits for a node"
    if task.exit_code == 0:  # its time is not one of the calendar
        return None
    output = read_task_file(connection, job_id, task_id, "stdout.txt") or b""
    lines = output.decode(errors="replace").splitlines()
    last = lines[-1] if lines else task.failure_message or f"exit code {task.exit_code}"
    return f"job {job_id} created no run: {last}"


def pause_schedule(connection: Connection, schedule: ScheduleRecord) -> None:
    """Start no runs until the schedule is resumed. Raise R-SCHEDULE-OVER if it has ended."""
    service.pause_schedule(connection, _check_goes_on(schedule))


def resume_schedule(connection: Connection, schedule: ScheduleRecord) -> None:
    """Start runs again; missed runs are not started. Raise R-SCHEDULE-OVER if it has ended."""
    service.resume_schedule(connection, _check_goes_on(schedule))


def _check_goes_on(schedule: ScheduleRecord) -> ScheduleView:
    if schedule.view is None or schedule.state not in ("active", "paused"):
        raise RunnerError(
            "R-SCHEDULE-OVER",
            f"schedule {schedule.schedule_id!r} has ended: {schedule.state}",
            fix=f"runner schedule rm {schedule.schedule_id}, then create it again",
        )
    return schedule.view


def needs_cap() -> RunnerError:
    """Return the error for a schedule without a cap whose runs a budget includes."""
    return RunnerError(
        "R-BUDGET-SCHEDULE",
        "a schedule needs a cap, because a budget includes its runs",
        why="they start without a client that could ask the budget",
        fix="create it with --max-cost USD, or with `max_cost` below `schedule`, for all its runs",
    )


def remove_schedule(connection: Connection, schedule: ScheduleRecord) -> list[str]:
    """Delete the schedule and cancel its active runs. Return the IDs of the cancelled runs."""
    container = runs_container(connection)
    if schedule.view is not None:
        _stop_firing(connection, schedule)
    made = [run_id for one in firings(connection, schedule) for run_id in reversed(one.runs)]

    def cancel(run_id: str) -> bool:
        if load_result(container, run_id) is not None:
            return False
        body = container.read(RunPaths(run_id).run)
        return body is not None and cancel_run(connection, parse_run(body, run_id)).changed

    changed = in_parallel(cancel, made)
    cancelled = [run_id for run_id, one in zip(made, changed, strict=True) if one]
    if schedule.view is not None:
        service.delete_schedule(connection, list(schedule.view.parts))
    if connection.target.is_billed:
        release_claim(connection, schedule_key(schedule.schedule_id))
    forget(container, schedule)
    return cancelled


def _stop_firing(connection: Connection, schedule: ScheduleRecord) -> None:
    view = schedule.view
    if view is not None and view.state == "active":
        service.pause_schedule(connection, view)
    if schedule.tasks and view is not None:
        for job_id in view.recent_jobs:
            terminate_task(connection, job_id, GROUP_TASK_ID)  # it may still create runs


def schedule_blob(schedule_id: str) -> str:
    """Return the blob of the schedule's document."""
    return f"{SCHEDULES_FOLDER}{schedule_id}/schedule.json"


def _load(
    container: BlobContainer, schedule_id: str, views: Mapping[str, ScheduleView]
) -> ScheduleRecord | None:
    body = container.read(schedule_blob(schedule_id))
    if body is None:
        return None
    view = views.get(schedule_id)
    try:
        found = ScheduleRecord(schedule_id, dict(parse_json(body)), view)
        _ = found.when, found.place, found.tasks
        _ = [found.document[name] for name in ("recipe", "pool", "last")]
    except DAMAGED:
        return ScheduleRecord(schedule_id, _UNREADABLE, view)
    return found


def forget(container: BlobContainer, schedule: ScheduleRecord) -> None:
    """Delete the documents of a schedule, `schedule.json` last, so that `rm` can be repeated."""
    names = [blob.name for blob in container.list(f"{SCHEDULES_FOLDER}{schedule.schedule_id}/")]
    last = schedule_blob(schedule.schedule_id)
    in_parallel(container.delete, [name for name in names if name != last])
    container.delete(last)
