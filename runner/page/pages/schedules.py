"""The schedules: when each starts its next run, and what it has started."""

from __future__ import annotations

from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.features import load_feature
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.views.schedules import ScheduleDocument, ScheduleLine

_FIRINGS_SHOWN = 100


async def read_schedules(ask: Ask) -> list[ScheduleLine]:
    """Return all schedules."""

    def load(connection: Connection) -> list[ScheduleLine]:
        return load_feature("schedules.documents").list_lines(connection)

    return await ask.source.read(("schedules",), load, fresh_s=2.0)


async def read_schedule(ask: Ask) -> ScheduleDocument:
    """Return a schedule with its firings."""
    name = ask.parts["schedule"]

    def load(connection: Connection) -> ScheduleDocument:
        return load_feature("schedules.documents").load_document(connection, name)

    return await ask.source.read(("schedule", name), load, fresh_s=2.0)


async def read_list(ask: Ask) -> dict[str, Any]:
    """Return the values of `schedules.html`."""
    return {"title": "Schedules", "schedules": await read_schedules(ask)}


async def read_one(ask: Ask) -> dict[str, Any]:
    """Return the values of `schedule.html`."""
    found = await read_schedule(ask)
    newest = found["firings"][: -_FIRINGS_SHOWN - 1 : -1]
    return {
        "title": f"Schedule {found['schedule']}",
        "found": found,
        "newest": newest,
        "older": len(found["firings"]) - len(newest),
    }


ENDPOINTS = (
    Endpoint(
        "/schedules",
        "List the schedules.",
        list[ScheduleLine],
        read_schedules,
        command="runner schedule ls",
    ),
    Endpoint(
        "/schedules/{schedule}",
        "Return a schedule with its firings, oldest first.",
        ScheduleDocument,
        read_schedule,
        command="runner schedule show SCHEDULE",
    ),
)
PAGE = WebPage("/schedules", "schedules", read_list, every_s=5.0, label="Schedules")
SCHEDULE_PAGE = WebPage("/schedules/{schedule}", "schedule", read_one, every_s=5.0)
