"""Job schedules on the wire: what is allowed in a body, and how one is shown."""

from __future__ import annotations

from datetime import timedelta

from batch_emulator.faults import bad_property
from batch_emulator.job_schedule import JobSchedule
from batch_emulator.model import Json, part
from batch_emulator.values import etag_text, parse_duration, parse_time, time_text
from batch_emulator.wire import entities
from batch_emulator.wire import render as rendering
from batch_emulator.wire.bodies import require, require_id

_SHORTEST = timedelta(minutes=1)  # docs: startWindow and recurrenceInterval


def check(body: Json) -> None:
    """Refuse what a job schedule cannot be. Raises Fault."""
    require_id(body)
    require(body, "schedule", "jobSpecification")
    times = part(body, "schedule")
    for name in ("startWindow", "recurrenceInterval"):
        text = times.get(name)
        duration = None if text is None else parse_duration(text)
        if duration is not None and duration < _SHORTEST:
            raise bad_property(f"schedule/{name}", text, "the minimum is PT1M")
    after, until = times.get("doNotRunAfter"), times.get("doNotRunUntil")
    if after is not None and until is not None and parse_time(after) < parse_time(until):
        raise bad_property("schedule/doNotRunAfter", after, f"not before doNotRunUntil {until}")
    entities.check_job_specification(body["jobSpecification"], scheduled=True)


def render(entity: JobSchedule, base_url: str) -> Json:
    """A job schedule."""
    execution: Json = {}
    if entity.next_run is not None and _runs(entity):
        execution["nextRunTime"] = time_text(entity.next_run)
    if entity.runs:
        url = f"{base_url}/jobs/{entity.recent_job}"
        execution["recentJob"] = {"id": entity.recent_job, "url": url}
    if entity.ended is not None:
        execution["endTime"] = time_text(entity.ended)
    body: Json = {
        **entity.spec,
        "jobSpecification": rendering.job_defaults(part(entity.spec, "jobSpecification")),
        "id": entity.id,
        "url": f"{base_url}/jobschedules/{entity.id}",
        "eTag": etag_text(entity.etag),
        "lastModified": time_text(entity.modified),
        "creationTime": time_text(entity.created),
        "state": entity.state.value,
        "stateTransitionTime": time_text(entity.state_time),
        "executionInfo": execution,
    }
    if entity.previous is not None and entity.previous_time is not None:
        body["previousState"] = entity.previous.value
        body["previousStateTransitionTime"] = time_text(entity.previous_time)
    return body


def _runs(entity: JobSchedule) -> bool:
    """Whether the next run comes before doNotRunAfter."""
    after = part(entity.spec, "schedule").get("doNotRunAfter")
    return after is None or entity.next_run is None or entity.next_run < parse_time(after)
