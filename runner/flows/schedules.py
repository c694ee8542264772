"""Schedules: a template in blob and a Batch job schedule that makes a run of it again and again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.azure import schedules as service
from runner.azure.batch import add_task, ensure_job
from runner.azure.blobs import BlobContainer, in_parallel
from runner.azure.credentials import Connection
from runner.azure.schedules import ScheduleView
from runner.azure.translate import to_task
from runner.core.document import near
from runner.core.errors import ExitCode, RunnerError
from runner.core.plan import RunPlan
from runner.core.progress import OnProgress, Progress
from runner.core.recurrence import Recurrence, ScheduleSpec
from runner.core.repeat import Repetition, choose_same_pool, plan_again
from runner.core.run_document import run_document
from runner.core.run_ids import SUFFIX_ALPHABET, make_run_id
from runner.core.run_paths import RunPaths
from runner.core.run_record import FORMAT, RunRecord, parse_run
from runner.flows.cancel import cancel_run
from runner.flows.prepare import PreparedRun
from runner.flows.run_documents import load_result, runs_container
from runner.flows.run_index import index_run
from runner.flows.submit import upload_run, with_inputs
from runner.node.scheduled import FOLDER, template_blob

# Nodes of Azure sign in with their identity. The local services give them a signature, which ends.
_LOCAL_LIFETIME = timedelta(days=3 * 366)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule: what was written, and what the service says; `view` None where it is gone."""

    schedule_id: str
    document: Mapping[str, Any]
    view: ScheduleView | None

    @property
    def place(self) -> str:
        """Where its template and its firings lie, below `schedules/`."""
        return f"{self.schedule_id}/{self.document['instance']}"


def create_schedule(
    connection: Connection,
    prepared: PreparedRun,
    schedule_id: str,
    spec: ScheduleSpec,
    recurrence: Recurrence,
    on_progress: OnProgress,
) -> Schedule:
    """Upload the code, write the template, and add the schedule; refused, nothing stays."""
    if service.get_schedule(connection, schedule_id) is not None:
        raise _exists(schedule_id)
    container = runs_container(connection)
    prepared = with_inputs(connection, prepared)
    upload_run(connection, prepared, container, on_progress)
    on_progress(Progress("submit", "start"))
    instance = "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(8))
    document = _document(schedule_id, instance, prepared.plan, spec, recurrence)
    made = Schedule(schedule_id, document, None)
    template = run_document(prepared.plan, "") | {"schedule": schedule_id}
    container.put(_blob(schedule_id), document)
    container.create(template_blob(made.place), template)
    try:
        service.create_schedule(
            connection,
            schedule_id,
            made.place,
            prepared.plan,
            recurrence,
            _LOCAL_LIFETIME,
            prepared.secrets,
        )
    except RunnerError:
        _forget(container, made)
        raise
    on_progress(Progress("submit", "end", f"schedule {schedule_id}"))
    return replace(made, view=service.get_schedule(connection, schedule_id))


def list_schedules(connection: Connection) -> list[Schedule]:
    """Every schedule of this stack, by id."""
    container = runs_container(connection)
    views = {view.schedule_id: view for view in service.list_schedules(connection)}
    names = sorted(name.removeprefix(FOLDER) for name in container.folders(FOLDER))
    found = (_load(container, name, views) for name in names)
    return [schedule for schedule in found if schedule is not None]


def find_schedule(connection: Connection, schedule_id: str) -> Schedule:
    """The schedule of that id. Raises R-SCHEDULE-UNKNOWN."""
    container = runs_container(connection)
    view = service.get_schedule(connection, schedule_id)
    found = _load(container, schedule_id, {schedule_id: view} if view else {})
    if found is not None:
        return found
    known = [name.removeprefix(FOLDER) for name in container.folders(FOLDER)]
    raise RunnerError(
        "R-SCHEDULE-UNKNOWN",
        f"there is no schedule {schedule_id!r}",
        why=f"there are: {', '.join(known)}" if known else "there is none at all",
        fix=near(schedule_id, known) or "runner schedule ls",
    )


def firings(connection: Connection, schedule: Schedule) -> list[str]:
    """Ids of the runs it made, the newest last."""
    container = runs_container(connection)
    names = [blob.name for blob in container.list(f"{FOLDER}{schedule.place}/firings/")]
    bodies = [body for body in in_parallel(container.read, names) if body]
    made: list[dict[str, Any]] = [json.loads(body) for body in bodies]
    return [str(one["run_id"]) for one in sorted(made, key=lambda one: str(one["created"]))]


def trigger(connection: Connection, schedule: Schedule) -> RunRecord:
    """A run of the schedule now, in a job of its own experiment; the next ones stay as planned."""
    container = runs_container(connection)
    body = container.read(template_blob(schedule.place))
    if body is None:
        raise RunnerError(
            "R-SCHEDULE-BROKEN",
            f"the template of {schedule.schedule_id} is gone",
            fix=f"runner schedule rm {schedule.schedule_id}, and create it again",
            exit_code=ExitCode.RUN_FAILED,
        )
    plan = _from_template(connection, schedule, parse_run(body, schedule.schedule_id))
    job_id = ensure_job(connection, plan.job_id, plan.pool.id, plan.recipe.priority)
    document = run_document(plan, job_id)
    container.create(RunPaths(plan.run_id).run, document)
    try:
        add_task(connection, job_id, to_task(plan, connection))
    except RunnerError:
        container.delete(RunPaths(plan.run_id).run)
        raise
    index_run(container, document)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _from_template(connection: Connection, schedule: Schedule, record: RunRecord) -> RunPlan:
    if record.raw.get("secrets"):
        raise RunnerError(
            "R-SCHEDULE-SECRETS",
            f"{schedule.schedule_id} has secrets, which only its own tasks are given",
            fix="wait for its next time, or run the recipe itself",
        )
    now = datetime.now(UTC)
    suffix = "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(4))
    plan = plan_again(
        record,
        Repetition("retry"),
        connection.outputs,
        choose_same_pool(None, record, connection.outputs),
        run_id=make_run_id(schedule.schedule_id, now, suffix),
        created=now,
        agent_sha256=record.raw["agent"]["sha256"],
    )
    return replace(plan, origin=None)


def remove_schedule(connection: Connection, schedule: Schedule) -> list[str]:
    """Delete it. Batch deletes its jobs with it, so a run that goes on is cancelled; its id."""
    container = runs_container(connection)
    service_knows = schedule.view is not None
    if service_knows:
        _let_none_begin(connection, schedule)
    cancelled = [
        run_id
        for run_id in firings(connection, schedule)
        if load_result(container, run_id) is None and _cancel(connection, container, run_id)
    ]
    if service_knows:
        service.delete_schedule(connection, schedule.schedule_id)
    _forget(container, schedule)
    return cancelled


def _let_none_begin(connection: Connection, schedule: Schedule) -> None:
    if schedule.view is not None and schedule.view.state == "active":
        service.pause_schedule(connection, schedule.schedule_id)


def _cancel(connection: Connection, container: BlobContainer, run_id: str) -> bool:
    body = container.read(RunPaths(run_id).run)
    return body is not None and cancel_run(connection, parse_run(body, run_id)).changed


def _blob(schedule_id: str) -> str:
    return f"{FOLDER}{schedule_id}/schedule.json"


def _document(
    schedule_id: str, instance: str, plan: RunPlan, spec: ScheduleSpec, recurrence: Recurrence
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schedule_id": schedule_id,
        "instance": instance,
        "created": plan.created.isoformat(),
        "recipe": plan.recipe.name,
        "experiment": plan.experiment,
        "pool": plan.pool.id,
        "cron": spec.cron,
        "timezone": spec.timezone,
        "interval_s": recurrence.interval.total_seconds(),
        "first": recurrence.first.isoformat() if recurrence.first else None,
        "last": recurrence.last.isoformat() if recurrence.last else None,
        "max_runs": spec.max_runs,
    }


def _load(
    container: BlobContainer, schedule_id: str, views: Mapping[str, ScheduleView]
) -> Schedule | None:
    body = container.read(_blob(schedule_id))
    if body is None:
        return None
    document: dict[str, Any] = json.loads(body)
    return Schedule(schedule_id, document, views.get(schedule_id))


def _forget(container: BlobContainer, schedule: Schedule) -> None:
    """`schedule.json` last: as long as it is there, `rm` may be repeated."""
    names = [blob.name for blob in container.list(f"{FOLDER}{schedule.schedule_id}/")]
    in_parallel(container.delete, [name for name in names if name != _blob(schedule.schedule_id)])
    container.delete(_blob(schedule.schedule_id))


def _exists(schedule_id: str) -> RunnerError:
    return RunnerError(
        "R-SCHEDULE-EXISTS",
        f"there is a schedule or job {schedule_id!r} already",
        fix=f"--name another, or runner schedule rm {schedule_id}",
    )
