"""A firing of a schedule now, by the client: in a job of its own, beside the schedule's times."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.azure.batch import add_task, ensure_job
from runner.azure.blobs import BlobContainer
from runner.azure.credentials import Connection
from runner.azure.schedule_jobs import add_wire_tasks, group_storage
from runner.azure.translate import to_task
from runner.core.errors import ExitCode, RunnerError
from runner.core.group import Group, parse_group
from runner.core.plan import RunPlan
from runner.core.repeat import Repetition, choose_same_pool, plan_again
from runner.core.run_document import run_document
from runner.core.run_ids import SUFFIX_ALPHABET, make_run_id
from runner.core.run_paths import RunPaths
from runner.core.run_record import RunRecord, parse_run
from runner.core.secrets import SecretRef, SecretValues, read_secrets, recorded_secrets
from runner.flows.broken_off import submitting
from runner.flows.run_documents import runs_container
from runner.flows.run_index import index_run
from runner.flows.schedules import Schedule
from runner.flows.submit_group import place_group
from runner.node.group_template import (
    GroupAccess,
    group_document,
    inputs_of,
    make_firing,
    run_documents,
    task_bodies,
)
from runner.node.scheduled import template_blob
from runner.node.scheduled_group import group_template_blob

# Of the local services' signatures: what a group may take in all.
_LIFETIME = timedelta(days=90)


def trigger(connection: Connection, schedule: Schedule) -> RunRecord | Group:
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


def _template(container: BlobContainer, schedule: Schedule, blob: str) -> dict[str, Any]:
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


def _trigger_run(connection: Connection, schedule: Schedule, record: RunRecord) -> RunRecord:
    container = runs_container(connection)
    plan = _plan(connection, schedule, record)
    values = _secrets(schedule, plan.recipe.secrets)
    job_id = ensure_job(connection, plan.job_id, plan.pool.id, plan.recipe.priority)
    document = run_document(plan, job_id)
    container.create(RunPaths(plan.run_id).run, document)
    try:
        add_task(connection, job_id, to_task(plan, connection, values))
    except RunnerError:
        container.delete(RunPaths(plan.run_id).run)
        raise
    index_run(container, document)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _plan(connection: Connection, schedule: Schedule, record: RunRecord) -> RunPlan:
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


def _trigger_group(connection: Connection, schedule: Schedule, template: dict[str, Any]) -> Group:
    tasks: dict[str, Any] = template["tasks"]
    values = {
        name: _secrets(schedule, recorded_secrets(task["run"])) for name, task in tasks.items()
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
        document = group_document(template, firing)
        place_group(
            connection,
            job_id,
            document,
            list(run_documents(template, firing)),
            lambda: add_wire_tasks(connection, job_id, list(task_bodies(template, firing, access))),
        )
    return parse_group(json.dumps(document).encode(), firing["group_id"])


def _containers(tasks: dict[str, Any]) -> list[str]:
    inputs = (one for task in tasks.values() for one in inputs_of(task["run"]).values())
    return sorted({str(one["container"]) for one in inputs if one.get("container")})


def _secrets(schedule: Schedule, refs: tuple[SecretRef, ...]) -> SecretValues:
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
