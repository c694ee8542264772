"""Job schedules: the job of each firing, and the schedules of the service."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.auth.credentials import TASK_TOKEN, TOKENS_API_VERSION, Connection
from runner.azure.batch.translate import (
    agent_files,
    agent_settings,
    command_line,
    container_settings,
    to_task,
    wire_text,
)
from runner.azure.faults import (
    create_when_free,
    error_code,
    read_or_none,
    service_errors,
    was_repeated,
)
from runner.core.planning.plan import (
    RunPlan,
    StorageScopes,
    at_any_time,
    common_start,
    storage_scopes,
)
from runner.core.recurrence import MAX_PARTS, BatchTimes, Recurrence
from runner.core.units import format_duration
from runner.protocol.errors import RunnerError
from runner.protocol.groups import group_blob
from runner.protocol.paths import CODE_FOLDER, make_run_id
from runner.protocol.results import BY_TIME_FOLDER, index_blob
from runner.protocol.schedules import (
    FiringTimes,
    fired_run_documents,
    firings_folder,
    group_template_blob,
    make_firing,
    template_blob,
)
from runner.protocol.task import (
    GROUP_SECRETS_VARIABLE,
    NODES_TOKEN_VARIABLE,
    SCHEDULE_TASKS_VARIABLE,
    SCHEDULE_TIMES_VARIABLE,
    SCHEDULE_VARIABLE,
    STORAGE_VARIABLE,
)

# An alias, so that other modules need not import the SDK.
JobSpecification: TypeAlias = models.BatchJobSpecification

# Lifetime of the SAS of local nodes. Nodes on Azure have a managed identity instead.
_LOCAL_LIFETIME = timedelta(days=3 * 366)
TASK_ID = "run"
GROUP_TASK_ID = "group"
_ANY_SECOND = "*" * 14  # as in the names of the index by time
_MAX_SCOPE_CHARS = 6000  # the head of a request has at most 16 KB
# Retries of the task that adds the others, for transient errors. A retry adds only missing tasks.
_GROUP_RETRIES = 3
# Variables that differ per task: the run, and secrets.
_PER_TASK_VARIABLES = frozenset(
    {"RUNNER_RUN_ID", STORAGE_VARIABLE, "RUNNER_SECRETS", NODES_TOKEN_VARIABLE}
)


def run_job(
    connection: Connection,
    display_name: str,
    prefix: str,
    plan: RunPlan,
    *,
    limit: timedelta | None,
    times: FiringTimes | None,
) -> JobSpecification:
    """Return the job of one run. It ends with the run; the next job waits for its end.

    Args:
        connection: the account.
        display_name: name of the job manager task for users.
        prefix: blob prefix of the schedule.
        plan: the run.
        limit: time after which the job ends; None if it has none.
        times: the firings that start the run; None for all.
    """
    manager = models.BatchJobManagerTask(
        id=TASK_ID,
        display_name=display_name,
        command_line=command_line(plan),
        container_settings=container_settings(plan),
        resource_files=agent_files(plan, connection, _LOCAL_LIFETIME),
        environment_settings=agent_settings(
            connection,
            _run_scopes(plan, prefix),
            _LOCAL_LIFETIME,
            {SCHEDULE_VARIABLE: prefix, **_times_setting(times)},
            plan.secrets,
        ),
        constraints=models.BatchTaskConstraints(
            max_wall_clock_time=plan.wall_clock, max_task_retry_count=plan.recipe.retries
        ),
        kill_job_on_completion=True,
        run_exclusive=False,
        allow_low_priority_node=True,
    )
    return models.BatchJobSpecification(
        pool_info=models.BatchPoolInfo(pool_id=plan.pool.id),
        priority=plan.recipe.priority,
        constraints=_job_constraints(limit),
        job_manager_task=manager,
    )


def group_job(
    connection: Connection,
    display_name: str,
    prefix: str,
    tasks: Mapping[str, RunPlan],
    *,
    template: Mapping[str, Any],
    max_parallel: int | None,
    limit: timedelta | None,
    times: FiringTimes | None,
) -> JobSpecification:
    """Return the job of several runs. The job manager task adds them, and the job ends with them.

    Only a job manager task may complete while the job stays open (REST docs, onAllTasksComplete).

    Args:
        connection: the account.
        display_name: name of the job manager task for users.
        prefix: blob prefix of the schedule.
        tasks: the runs by task name.
        template: the template of the runs, as in protocol/schedules.py.
        max_parallel: maximum number of parallel tasks; None for no limit.
        limit: time after which the job ends; None if it has none.
        times: the firings that start the runs; None for all.

    Raises:
        RunnerError: the nodes of the stack are not allowed to add tasks.
    """
    first = next(iter(tasks.values()))
    firing = make_firing(dict(template), "", "", datetime.now(UTC))
    storage = connection.node_storage(
        group_scopes(template, firing, prefix, any_time=True), _LOCAL_LIFETIME
    )
    settings = {**_group_settings(storage, prefix, tasks), **_times_setting(times)}
    manager = models.BatchJobManagerTask(
        id=GROUP_TASK_ID,
        display_name=display_name,
        command_line=command_line(first),
        container_settings=container_settings(first),
        resource_files=agent_files(first, connection, _LOCAL_LIFETIME),
        environment_settings=[
            models.EnvironmentSetting(name=name, value=value) for name, value in settings.items()
        ],
        constraints=models.BatchTaskConstraints(max_task_retry_count=_GROUP_RETRIES),
        kill_job_on_completion=False,
        run_exclusive=False,
        allow_low_priority_node=True,
    )
    manager.update(connection.job_access())
    return models.BatchJobSpecification(
        pool_info=models.BatchPoolInfo(pool_id=first.pool.id),
        priority=first.recipe.priority,
        constraints=_job_constraints(limit),
        max_parallel_tasks=max_parallel,
        uses_task_dependencies=True,
        all_tasks_complete_mode=models.BatchAllTasksCompleteMode.TERMINATE_JOB,
        job_manager_task=manager,
    )


def _run_scopes(plan: RunPlan, place: str) -> StorageScopes:
    """Return the scopes of all runs of a schedule, whose IDs are not known yet."""
    run_id = make_run_id(place.partition("/")[0], plan.created, "aaaa")
    scopes = storage_scopes({**plan.to_spec().to_json(), "run_id": at_any_time(run_id)})
    return scopes + StorageScopes(_firing_entries(template_blob(place), place))


def group_scopes(
    template: Mapping[str, Any], firing: Mapping[str, Any], place: str, *, any_time: bool = False
) -> StorageScopes:
    """Return the scopes of the runs of a firing, or of the runs of all firings like this one."""
    known, group_id = dict(firing["runs"]), str(firing["group_id"])
    if any_time:
        known = {task: at_any_time(run_id) for task, run_id in known.items()}
        group_id = at_any_time(group_id)
    documents = list(fired_run_documents(dict(template), {**firing, "runs": known}))
    scopes = StorageScopes(
        (*_firing_entries(group_template_blob(place), place), f"rc={group_blob(group_id)}")
    )
    for each in documents:
        archives = tuple(f"r={each[part]['blob']}" for part in ("code", "agent"))
        scopes += storage_scopes(each) + StorageScopes(archives, code=archives)  # old: in `runs`
    if len(",".join(scopes.runs)) > _MAX_SCOPE_CHARS:
        begin = common_start([*known.values()]).partition("*")[0]
        runs = _shortened(scopes.runs, begin)
        scopes = replace(scopes, runs=runs, code=(f"r~{CODE_FOLDER}",))
    return scopes


def _shortened(entries: Iterable[str], begin: str) -> tuple[str, ...]:
    """Return the entries with one for all runs that begin as those of the group do."""
    index, archives = index_blob(begin), CODE_FOLDER
    known = (begin, index, BY_TIME_FOLDER, archives)
    kept = (
        entry for entry in entries if not re.split("[~=]", entry, maxsplit=1)[1].startswith(known)
    )
    by_time = f"{BY_TIME_FOLDER}{_ANY_SECOND}-{begin}"
    return (f"rlawd~{begin}", f"w~{index}", f"w~{by_time}", f"r~{archives}", *kept)


def _firing_entries(template: str, place: str) -> tuple[str, ...]:
    return f"r={template}", f"rc~{firings_folder(place)}"


def task_template(plan: RunPlan, connection: Connection) -> dict[str, Any]:
    """Return the request body of the task, without IDs and secrets."""
    wire: dict[str, Any] = to_task(plan, connection).as_dict()
    for name in ("id", "displayName", "dependsOn"):
        wire.pop(name, None)
    if group := wire.get("multiInstanceSettings"):
        group["commonResourceFiles"] = [
            _without_signature(file) for file in group["commonResourceFiles"]
        ]
    return {
        **wire,
        "resourceFiles": [_without_signature(file) for file in wire["resourceFiles"]],
        "environmentSettings": [
            one for one in wire["environmentSettings"] if one["name"] not in _PER_TASK_VARIABLES
        ],
    }


def add_wire_tasks(
    connection: Connection, job_id: str, bodies: Sequence[Mapping[str, Any]]
) -> None:
    """Add tasks from request bodies, see `task_template`."""
    from runner.azure.batch.jobs import add_tasks  # noqa: PLC0415 - not needed to create schedules

    add_tasks(connection.batch_client(), job_id, bodies)


def _group_settings(
    storage: Mapping[str, Any], prefix: str, tasks: Mapping[str, RunPlan]
) -> dict[str, str]:
    found = {
        SCHEDULE_VARIABLE: prefix,
        SCHEDULE_TASKS_VARIABLE: "1",
        STORAGE_VARIABLE: json.dumps(storage),
    }
    secrets = {name: task.secrets.reveal() for name, task in tasks.items() if task.secrets}
    return {**found, GROUP_SECRETS_VARIABLE: json.dumps(secrets)} if secrets else found


def _job_constraints(limit: timedelta | None) -> models.BatchJobConstraints | None:
    return None if limit is None else models.BatchJobConstraints(max_wall_clock_time=limit)


def _times_setting(times: FiringTimes | None) -> dict[str, str]:
    return {} if times is None else {SCHEDULE_TIMES_VARIABLE: times.to_text()}


def _without_signature(file: Mapping[str, Any]) -> dict[str, Any]:
    return {**file, "httpUrl": str(file["httpUrl"]).partition("?")[0]}


_DELETE_POLL_S = 1
_DELETE_TIMEOUT_S = 300.0  # jobs with many tasks take minutes on the service
_METADATA_NAME = "runner-schedule"
_PARTS_METADATA_NAME = "runner-schedule-parts"  # number of job schedules, if there are several


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule of the service; `state` is `active`, `disabled`, `completed` ...

    Attributes:
        schedule_id: The name of the schedule.
        state: The state of its job schedules: that of an active one, if there is one.
        next_run: Time of the next firing, which may start no run.
        recent_jobs: The newest job of each job schedule.
        pool: Pool of its jobs.
        parts: The state of each job schedule by ID; one, unless the calendar needs several.
    """

    schedule_id: str
    state: str
    next_run: datetime | None
    recent_jobs: tuple[str, ...]
    pool: str = ""
    parts: Mapping[str, str] = field(default_factory=dict[str, str])


def part_ids(schedule_id: str, prefix: str, count: int) -> list[str]:
    """Return the IDs of the job schedules of a schedule; the first is its name."""
    instance = prefix.rpartition("/")[2]
    return [schedule_id, *(f"{schedule_id}-{instance}-{n}" for n in range(2, count + 1))]


def create_schedule(
    connection: Connection,
    schedule_id: str,
    prefix: str,
    recurrence: Recurrence,
    job: Callable[[FiringTimes | None], JobSpecification],
) -> None:
    """Add the job schedules of a schedule. Raise RunnerError R-SCHEDULE-EXISTS if the ID is in use.

    The first has the name of the schedule. If one is refused, those before it are deleted.
    """
    ids = part_ids(schedule_id, prefix, len(recurrence.parts))
    added: list[str] = []
    try:
        for part_id, part in zip(ids, recurrence.parts, strict=True):
            _create_part(connection, part_id, prefix, recurrence, part, job(part.chosen))
            added.append(part_id)
    except RunnerError:
        if added:
            delete_schedule(connection, added)
        raise


def _create_part(
    connection: Connection,
    part_id: str,
    prefix: str,
    recurrence: Recurrence,
    part: BatchTimes,
    job: JobSpecification,
) -> None:
    metadata = [models.BatchMetadataItem(name=_METADATA_NAME, value=prefix)]
    if (count := len(recurrence.parts)) > 1:
        metadata.append(models.BatchMetadataItem(name=_PARTS_METADATA_NAME, value=str(count)))
    body = models.BatchJobScheduleCreateOptions(
        id=part_id,
        schedule=models.BatchJobScheduleConfiguration(
            recurrence_interval=recurrence.interval,
            do_not_run_until=part.first,
            do_not_run_after=part.last,
        ),
        job_specification=job,
        metadata=metadata,
    )
    has_token = TASK_TOKEN in (job.job_manager_task or {})
    client = connection.batch_client(TOKENS_API_VERSION if has_token else None)
    with service_errors(f"creating schedule {part_id}"):
        try:
            create_when_free(
                lambda: client.create_job_schedule(body), _DELETE_TIMEOUT_S, _still_deleted(part_id)
            )
        except HttpResponseError as err:
            if error_code(err) not in ("JobScheduleExists", "JobWithSameIdExists"):
                raise
            if not was_repeated(err) or _find_prefix(client, part_id) != prefix:
                raise schedule_exists(part_id) from err


def _find_prefix(client: BatchClient, schedule_id: str) -> str | None:
    """Return the blob prefix of a schedule, or None if runner did not create it."""
    try:
        found = client.get_job_schedule(schedule_id)
    except ResourceNotFoundError:
        return None
    metadata = {item.name: item.value for item in found.metadata or ()}
    return metadata.get(_METADATA_NAME)


def _still_deleted(schedule_id: str) -> RunnerError:
    return RunnerError(
        "R-SCHEDULE-EXISTS",
        f"schedule {schedule_id!r} is still being deleted",
        why=f"its jobs and tasks were not deleted within {format_duration(_DELETE_TIMEOUT_S)}",
        fix="use another name, or wait a few minutes and run the command again",
    )


def schedule_exists(schedule_id: str) -> RunnerError:
    """Return the error for an ID that is in use by a schedule or a job."""
    return RunnerError(
        "R-SCHEDULE-EXISTS",
        f"schedule or job {schedule_id!r} already exists",
        fix=f"use another name, or run `runner schedule rm {schedule_id}`",
    )


def get_schedule(connection: Connection, schedule_id: str) -> ScheduleView | None:
    """Return a schedule, or None if it does not exist."""
    first = _get_part(connection, schedule_id)
    if first is None:
        return None
    others = part_ids(schedule_id, _prefix(first), _count(first))[1:]
    found = [first, *(_get_part(connection, part_id) for part_id in others)]
    return _to_view([each for each in found if each is not None])


def _get_part(connection: Connection, part_id: str) -> models.BatchJobSchedule | None:
    client = connection.batch_client()
    return read_or_none(f"reading schedule {part_id}", lambda: client.get_job_schedule(part_id))


def list_schedules(connection: Connection) -> list[ScheduleView]:
    """Return all schedules of the account."""
    found: dict[str, list[models.BatchJobSchedule]] = {}
    with service_errors("listing schedules"):
        for part in connection.batch_client().list_job_schedules():
            name = _prefix(part).partition("/")[0] if _count(part) > 1 else ""
            found.setdefault(name or str(part.id), []).append(part)
    return [_to_view(parts, name) for name, parts in found.items()]


def pause_schedule(connection: Connection, view: ScheduleView) -> None:
    """Stop creating jobs until the schedule is resumed. A running job continues."""
    client = connection.batch_client()
    with service_errors(f"pausing schedule {view.schedule_id}"):
        for part_id in _parts_in(view, "active"):
            client.disable_job_schedule(part_id)


def resume_schedule(connection: Connection, view: ScheduleView) -> None:
    """Create jobs again."""
    client = connection.batch_client()
    with service_errors(f"resuming schedule {view.schedule_id}"):
        for part_id in _parts_in(view, "disabled"):
            client.enable_job_schedule(part_id)


def _parts_in(view: ScheduleView, state: str) -> list[str]:
    """Return the job schedules in a state; of a single one, the service decides."""
    if len(view.parts) == 1:
        return list(view.parts)
    return [part_id for part_id, its in view.parts.items() if its == state]


def delete_schedule(connection: Connection, part_ids: Sequence[str]) -> bool:
    """Delete job schedules with their jobs, the first last. Return False if it does not exist."""
    return [_delete_part(connection, part_id) for part_id in reversed(part_ids)][-1]


def _delete_part(connection: Connection, part_id: str) -> bool:
    client = connection.batch_client()
    with service_errors(f"deleting schedule {part_id}"):
        try:
            client.begin_delete_job_schedule(part_id, polling_interval=_DELETE_POLL_S).wait()
        except ResourceNotFoundError as err:
            return was_repeated(err)
        except HttpResponseError as err:
            if error_code(err) != "JobScheduleBeingDeleted":
                raise
            while _find_prefix(client, part_id) is not None:
                time.sleep(_DELETE_POLL_S)
    return True


def _metadata(found: models.BatchJobSchedule) -> dict[str, str]:
    return {str(item.name): str(item.value) for item in found.metadata or ()}


def _prefix(found: models.BatchJobSchedule) -> str:
    return _metadata(found).get(_METADATA_NAME, "")


def _count(found: models.BatchJobSchedule) -> int:
    """Return the number of job schedules of a schedule; other clients may change metadata."""
    text = _metadata(found).get(_PARTS_METADATA_NAME, "")
    return min(int(text), MAX_PARTS) if text.isdecimal() else 1


def _to_view(parts: Sequence[models.BatchJobSchedule], name: str = "") -> ScheduleView:
    states = {str(part.id): wire_text(part.state) for part in parts}
    infos = [part.execution_info for part in parts if part.execution_info]
    state = next((each for each in ("active", "disabled") if each in states.values()), "")
    job = parts[0].job_specification
    return ScheduleView(
        schedule_id=name or str(parts[0].id),
        state=state or next(iter(states.values())),
        next_run=min((info.next_run_time for info in infos if info.next_run_time), default=None),
        recent_jobs=tuple(
            str(info.recent_job.id) for info in infos if info.recent_job and info.recent_job.id
        ),
        pool=str(job.pool_info.pool_id) if job and job.pool_info else "",
        parts=states,
    )
