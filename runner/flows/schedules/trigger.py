"""A firing of a schedule now, by the client: in a job of its own, beside the schedule's times."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import add_task, ensure_job
from runner.azure.batch.schedules import add_wire_tasks, group_storage
from runner.azure.batch.translate import to_task
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.plan import RunPlan
from runner.core.planning.repeat import Repetition, choose_same_pool, plan_again
from runner.core.recipe.secrets import SecretValues, read_secrets, recorded_secrets
from runner.flows.runs.documents import index_run, runs_container
from runner.flows.schedules.manage import ScheduleRecord
from runner.flows.submit.group import place_group
from runner.flows.submit.interrupted import submitting
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import RunGroup, parse_group
from runner.protocol.paths import SUFFIX_ALPHABET, RunPaths, make_run_id
from runner.protocol.run_spec import RunSpec, SecretRef, parse_run
from runner.protocol.schedules import (
    GroupAccess,
    fired_group,
    fired_run_documents,
    fired_task_bodies,
    group_template_blob,
    inputs_of,
    make_firing,
    template_blob,
)

# Of the local services' signatures: what a group may take in all.
_LIFETIME = timedelta(days=90)


def trigger(connection: Connection, schedule: ScheduleRecord) -> RunSpec | RunGroup:
    """A run of the schedule now, or a group of them; the next ones stay as planned.

    Secrets from variables are read again from this machine's: Batch hands out none that it keeps.
    """
    container = runs_container(connection)
    if schedule.tasks:
        template = _template(container, schedule, group_template_blob(schedule.place))
        return _trigger_group(connection, schedule, template)
    template = _template(container, schedule, template_blob(schedule.place))
    record = parse_run(json.dumps(template).encode(), schedule.schedule_id)
    return _trigger_run(connection, schedule, record)


def _template(container: BlobContainer, schedule: ScheduleRecord, blob: str) -> dict[str, Any]:
    body = container.read(blob)
    if body is None:
        raise RunnerError(
            "R-SCHEDULE-BROKEN",
            f"the template of {schedule.schedule_id} is gone",
            fix=f"runner schedule rm {schedule.schedule_id}, and create it again",
            exit_code=ExitCode.RUN_FAILED,
        )
    template: dict[str, Any] = json.loads(body)
    return template


def _trigger_run(connection: Connection, schedule: ScheduleRecord, record: RunSpec) -> RunSpec:
    container = runs_container(connection)
    plan = _plan(connection, schedule, record)
    values = _secrets(schedule, plan.recipe.secrets)
    job_id = ensure_job(connection, plan.job_id, plan.pool.id, plan.recipe.priority)
    document = plan.to_spec(job_id).to_json()
    container.create(RunPaths(plan.run_id).run, document)
    try:
        add_task(connection, job_id, to_task(plan, connection, values))
    except RunnerError:
        container.delete(RunPaths(plan.run_id).run)
        raise
    index_run(container, document)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _plan(connection: Connection, schedule: ScheduleRecord, record: RunSpec) -> RunPlan:
    now = datetime.now(UTC)
    suffix = "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(4))
    plan = plan_again(
        record,
        Repetition("retry"),
        connection.outputs,
        choose_same_pool(None, record, connection.outputs),
        run_id=make_run_id(schedule.schedule_id, now, suffix),
        created=now,
        agent_sha256=record.agent_sha256,
    )
    return replace(plan, origin=None)


def _trigger_group(
    connection: Connection, schedule: ScheduleRecord, template: dict[str, Any]
) -> RunGroup:
    tasks: dict[str, Any] = template["tasks"]
    values = {
        name: _secrets(schedule, recorded_secrets(RunSpec.from_json(task["run"])))
        for name, task in tasks.items()
    }
    firing = make_firing(template, secrets.token_hex(8), "", datetime.now(UTC))
    with submitting(connection, firing["group_id"]):
        firing["job_id"] = job_id = ensure_job(
            connection,
            firing["group_id"],
            template["pool"],
            int(template["priority"]),
            template["max_parallel"],
        )
        access = GroupAccess(
            group_storage(connection, _containers(tasks), _LIFETIME),
            {name: one.reveal() for name, one in values.items() if one},
        )
        document = fired_group(template, firing).to_json()
        place_group(
            connection,
            job_id,
            document,
            list(fired_run_documents(template, firing)),
            lambda: add_wire_tasks(
                connection, job_id, list(fired_task_bodies(template, firing, access))
            ),
        )
    return parse_group(json.dumps(document).encode(), firing["group_id"])


def _containers(tasks: dict[str, Any]) -> list[str]:
    inputs = (one for task in tasks.values() for one in inputs_of(task["run"]).values())
    return sorted({str(one["container"]) for one in inputs if one.get("container")})


def _secrets(schedule: ScheduleRecord, refs: tuple[SecretRef, ...]) -> SecretValues:
    try:
        return read_secrets(refs, os.environ)
    except RunnerError as err:
        raise RunnerError(
            err.code,
            err.what,
            why=f"{err.why}; the value that {schedule.schedule_id} was made with is in Batch, "
            "for its own tasks alone",
            fix=err.fix,
            exit_code=err.exit_code,
        ) from err
