"""Trigger a schedule now, from the client, in a separate job."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import check_pool, create_job
from runner.azure.batch.schedules import add_wire_tasks, group_scopes
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.planning.repeat import Repetition
from runner.core.pricing.budgets import Claim
from runner.core.progress import ignore_progress
from runner.core.recipe.secrets import SecretValues, read_secrets, recorded_secrets
from runner.core.settings import target_at
from runner.features.schedules.manage import ScheduleRecord, needs_cap
from runner.flows.costs.budgets import load_budgets
from runner.flows.runs.documents import runs_container
from runner.flows.submit.consent import NOTHING, Consent
from runner.flows.submit.pipeline import RepeatRequest
from runner.flows.submit.repeat import submit_again
from runner.flows.submit.submit_group import place_group, submitting
from runner.protocol.codec import parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup, parse_group
from runner.protocol.run_spec import RunSpec, SecretRef, parse_run
from runner.protocol.schedules import (
    GroupAccess,
    fired_group,
    fired_run_documents,
    fired_task_bodies,
    firing_blob,
    group_template_blob,
    make_firing,
    template_blob,
)

# Lifetime of the SAS of local nodes. No group may run longer.
_LIFETIME = timedelta(days=90)


def trigger(
    connection: Connection, schedule: ScheduleRecord, consent: Consent = NOTHING
) -> RunSpec | RunGroup:
    """Start a run or a group of runs of the schedule now. Return it.

    Secrets from variables are read on this machine again, because Batch does not return them.
    """
    container = runs_container(connection)
    if schedule.tasks:
        template = _template(container, schedule, group_template_blob(schedule.place))
        return _trigger_group(connection, schedule, template, consent)
    template = _template(container, schedule, template_blob(schedule.place))
    spec = parse_run(json.dumps(template).encode(), schedule.schedule_id)
    _secrets(schedule, recorded_secrets(spec))
    request = RepeatRequest(
        spec, Repetition("retry"), schedule_id=schedule.schedule_id, consent=consent
    )
    made = submit_again(connection, request, ignore_progress)
    firing = {"run_id": made.run_id, "created": made.created.isoformat(), "job_id": made.job_id}
    _record(container, schedule, made.run_id, firing)
    return made


def _record(
    container: BlobContainer, schedule: ScheduleRecord, name: str, firing: dict[str, Any]
) -> None:
    """Write the record of a firing like a job of the schedule, but under another name."""
    container.put(firing_blob(schedule.place, name), {**firing, "triggered": True})


def _template(container: BlobContainer, schedule: ScheduleRecord, blob: str) -> dict[str, Any]:
    try:
        template: Any = parse_json(container.read(blob) or b"")
    except ValueError:
        template = None
    if not isinstance(template, dict):
        raise RunnerError(
            "R-SCHEDULE-BROKEN",
            f"the template of schedule {schedule.schedule_id} is missing",
            fix=f"runner schedule rm {schedule.schedule_id}, then create it again",
        )
    return cast("dict[str, Any]", template)


def _trigger_group(
    connection: Connection, schedule: ScheduleRecord, template: dict[str, Any], consent: Consent
) -> RunGroup:
    tasks: dict[str, Any] = template["tasks"]
    refuse_pool_of_other_team(template["pool"], connection.outputs)
    for task in tasks.values():
        decisive = (task["task"], template["pool"])
        consent.require(connection, RunSpec.from_json(task["run"]), decisive)
    values = {
        name: _secrets(schedule, recorded_secrets(RunSpec.from_json(task["run"])))
        for name, task in tasks.items()
    }
    firing = make_firing(template, secrets.token_hex(8), "", datetime.now(UTC))
    _claim_budget(connection, template, firing["group_id"])
    with submitting(connection, firing["group_id"]):
        firing["job_id"] = job_id = firing["group_id"]
        check_pool(connection, template["pool"])
        limit = template["max_parallel"]
        access = GroupAccess(
            connection.node_storage(group_scopes(template, firing, schedule.place), _LIFETIME),
            {name: one.reveal() for name, one in values.items() if one},
        )
        document = fired_group(template, firing).to_json()
        place_group(
            connection,
            job_id,
            document,
            list(fired_run_documents(template, firing)),
            create=lambda: create_job(
                connection,
                job_id,
                template["pool"],
                int(template["priority"]),
                limit,
                _job_limit(template),
            ),
            add=lambda: add_wire_tasks(
                connection, job_id, list(fired_task_bodies(template, firing, access))
            ),
        )
    _record(runs_container(connection), schedule, firing["group_id"], firing)
    return parse_group(json.dumps(document).encode(), firing["group_id"])


def _claim_budget(connection: Connection, template: dict[str, Any], job_id: str) -> None:
    """Claim the caps of the runs from the budgets that include them."""
    if not target_at(connection.outputs.location).is_billed:
        return
    budgets = load_budgets(connection, connection.home)
    runs = [RunSpec.from_json(task["run"]) for task in template["tasks"].values()]
    if budgets is None or budgets.left({run.experiment for run in runs}) is None:
        return
    shares: Counter[str] = Counter()
    for run in runs:
        if run.max_cost_micros is None:
            raise needs_cap()
        shares[run.experiment] += run.max_cost_micros
    budgets.claim(connection, Claim(job_id, datetime.now(UTC), shares))


def _job_limit(template: dict[str, Any]) -> timedelta | None:
    """Return the time limit of the job of a template with a cost cap."""
    runs = (RunSpec.from_json(task["run"]) for task in template["tasks"].values())
    limits = [run.job_limit_s for run in runs if run.job_limit_s is not None]
    return timedelta(seconds=min(limits)) if limits else None


def _secrets(schedule: ScheduleRecord, refs: tuple[SecretRef, ...]) -> SecretValues:
    try:
        return read_secrets(refs, os.environ)
    except RunnerError as err:
        raise RunnerError(
            err.code,
            err.what,
            why=f"{err.why}; the value given to {schedule.schedule_id} is stored in Batch, which "
            "passes it only to the scheduled tasks",
            fix=err.fix,
            exit_code=err.exit_code,
        ) from err
