"""Job schedules: the list, and one schedule with its jobs."""

from __future__ import annotations

from batch_emulator.domain.model import Json
from batch_emulator.page import actions
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    buttons,
    empty_state,
    facts,
    next_page,
    section,
    table,
    tree,
)
from batch_emulator.page.markup import Child, Markup, badge, el, join, moment, url
from batch_emulator.page.views.jobs import job_table

_SCHEDULES = ("Schedules", "/schedules")
_OF_A_PAGE = "100"


async def schedules(ask: PageRequest) -> PageView:
    """Return a page of the list of job schedules."""
    answer = await ask.client.read(
        "jobschedules", **{"maxresults": _OF_A_PAGE, "$skiptoken": ask.query.get("next")}
    )
    rows = [
        (
            el("a", each["id"], href=url("schedules", each["id"])),
            badge(each["state"]),
            _rhythm(each),
            moment(each.get("executionInfo", {}).get("nextRunTime")),
            _recent(each),
            each.get("displayName", ""),
        )
        for each in answer["value"]
    ]
    columns = ("Schedule", "State", "Every", "Next job", "Newest job", "Name")
    shown = table("Job schedules", columns, rows, empty=_no_schedules(ask))
    return PageView("Schedules", join([shown, next_page(answer, url("schedules"))]))


def _rhythm(schedule: Json) -> str:
    return str(schedule.get("schedule", {}).get("recurrenceInterval", "once"))


def _recent(schedule: Json) -> Child:
    name = schedule.get("executionInfo", {}).get("recentJob", {}).get("id")
    return el("a", name, href=url("jobs", name)) if name else "-"


def _no_schedules(ask: PageRequest) -> Markup:
    create = (
        "az batch job-schedule create --id hourly --pool-id mine --recurrence-interval PT1H \\\n"
        "  --job-manager-task-id manager --job-manager-task-command-line '/bin/echo hello'"
        + actions.connection(ask.emulator.settings)
    )
    return empty_state("There are no job schedules. Create one:", create)


async def schedule(ask: PageRequest) -> PageView:
    """Return one job schedule with its jobs."""
    name = ask.steps[0]
    found = await ask.client.read("jobschedules", name)
    jobs = await ask.client.read("jobschedules", name, "jobs", maxresults="50")
    info: Json = found.get("executionInfo", {})
    content = [
        _actions(ask, found),
        facts(
            [
                ("State", badge(found["state"])),
                ("Every", _rhythm(found)),
                ("Next job", moment(info.get("nextRunTime"))),
                ("Newest job", _recent(found)),
                ("Created", moment(found.get("creationTime"))),
                ("Ended", moment(info["endTime"]) if "endTime" in info else None),
                ("Name", found.get("displayName")),
            ]
        ),
        section("Jobs", await job_table(ask, jobs["value"], "no job yet")),
        el(
            "details",
            el("summary", "Everything that the service returns"),
            tree(ask.masks.document(found)),
            data_id="definition",
        ),
    ]
    return PageView(f"Schedule {found['id']}", join(content), (_SCHEDULES,), is_moving=True)


def _actions(ask: PageRequest, schedule: Json) -> Markup:
    name, state = schedule["id"], schedule["state"]
    ended = state in {"completed", "terminating", "deleting"}
    return buttons(
        actions.link(ask, "disable-schedule", schedule=name) if state == "active" else None,
        actions.link(ask, "enable-schedule", schedule=name) if state == "disabled" else None,
        None if ended else actions.link(ask, "terminate-schedule", schedule=name),
        actions.link(ask, "delete-schedule", schedule=name, back=url("schedules")),
    )
