"""Jobs and tasks: the list of jobs, one job with a page of its tasks, and one task."""

from __future__ import annotations

from typing import Any

from batch_emulator.domain.model import Json
from batch_emulator.domain.values import time_of
from batch_emulator.page import actions
from batch_emulator.page.api_client import ApiError, path_of
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    buttons,
    choice,
    command,
    duration_text,
    empty_state,
    errors,
    facts,
    filters,
    next_page,
    section,
    table,
    tree,
)
from batch_emulator.page.markup import Child, Markup, badge, el, join, moment, url
from batch_emulator.page.views.files import file_list, output, root_of, tail

JOBS = ("Jobs", "/jobs")
_JOBS_OF_A_PAGE = "50"
_TASKS_OF_A_PAGE = "100"
_TASK_STATES = ("active", "preparing", "running", "completed")
_ON_NODE = frozenset({"running", "completed"})


async def jobs(ask: PageRequest) -> PageView:
    """Return a page of the list of jobs."""
    answer = await ask.client.read(
        "jobs", **{"maxresults": _JOBS_OF_A_PAGE, "$skiptoken": ask.query.get("next")}
    )
    table_of_jobs = await job_table(ask, answer["value"], _no_jobs(ask))
    return PageView("Jobs", join([table_of_jobs, next_page(answer, url("jobs"))]))


async def job_table(ask: PageRequest, found: list[Json], empty: Markup | str) -> Markup:
    """Return the table of some jobs with the counts of their tasks."""
    rows: list[tuple[Child, ...]] = []
    for job in found:
        counts = (await ask.client.read("jobs", job["id"], "taskcounts"))["taskCounts"]
        pool = job.get("executionInfo", {}).get("poolId", "")
        rows.append(
            (
                el("a", job["id"], href=url("jobs", job["id"])),
                badge(job["state"]),
                el("a", pool, href=url("pools", pool)) if pool else "-",
                str(job.get("priority", 0)),
                *(str(counts[name]) for name in ("active", "running", "succeeded", "failed")),
                moment(job.get("creationTime")),
                job.get("displayName", ""),
            )
        )
    columns = (
        "Job", "State", "Pool", "Priority#", "Active#", "Running#", "Succeeded#", "Failed#",
        "Created", "Name",
    )  # fmt: skip
    return table("Jobs", columns, rows, empty=empty)


def _no_jobs(ask: PageRequest) -> Markup:
    settings = ask.emulator.settings
    create = "az batch job create --id mine --pool-id mine" + actions.connection(settings)
    return empty_state("There are no jobs. Create one:", create)


async def job(ask: PageRequest) -> PageView:
    """Return one job with a page of its tasks."""
    job_id = ask.steps[0]
    found = await ask.client.read("jobs", job_id)
    counts = (await ask.client.read("jobs", job_id, "taskcounts"))["taskCounts"]
    info: Json = found.get("executionInfo", {})
    pool = info.get("poolId", "")
    content = [
        _job_actions(ask, found),
        facts(
            [
                ("State", badge(found["state"])),
                ("Since", moment(found.get("stateTransitionTime"))),
                ("Pool", el("a", pool, href=url("pools", pool)) if pool else "none"),
                ("Priority", str(found.get("priority", 0))),
                ("Created", moment(found.get("creationTime"))),
                ("Ended", moment(info["endTime"]) if "endTime" in info else None),
                ("Reason", info.get("terminateReason")),
                ("Name", found.get("displayName")),
                ("Tasks", ", ".join(f"{count} {name}" for name, count in counts.items() if count)),
            ]
        ),
        errors([info["schedulingError"]]) if "schedulingError" in info else None,
        await _tasks(ask, found["id"]),
        await _preparation(ask, found["id"]) if "jobPreparationTask" in found else None,
        el(
            "details",
            el("summary", "Everything that the service returns"),
            tree(ask.masks.document(_without_links(found))),
            data_id="definition",
        ),
    ]
    return PageView(f"Job {found['id']}", join(content), (JOBS,))


def _without_links(document: Json) -> Json:
    return {name: v for name, v in document.items() if name not in {"odata.metadata", "url"}}


def _job_actions(ask: PageRequest, job: Json) -> Markup:
    name, state = job["id"], job["state"]
    ended = state in {"completed", "terminating", "deleting"}
    return buttons(
        None if ended else actions.link(ask, "terminate-job", job=name),
        actions.link(ask, "disable-job", job=name) if state in {"active", "enabling"} else None,
        actions.link(ask, "enable-job", job=name) if state in {"disabled", "disabling"} else None,
        actions.link(ask, "delete-job", job=name, back=url("jobs")),
    )


async def _tasks(ask: PageRequest, job_id: str) -> Markup:
    state = ask.query.get("state", "")
    only = f"state eq '{state}'" if state in _TASK_STATES else None
    token = ask.query.get("next")
    query = {"maxresults": _TASKS_OF_A_PAGE, "$filter": only, "$skiptoken": token}
    answer = await ask.client.read("jobs", job_id, "tasks", **query)
    rows = [_task_row(ask, job_id, task) for task in answer["value"]]
    columns = (
        "Task", "State", "Result", "Exit code#", "Node", "Started", "Took#", "Retries#",
        "Command",
    )  # fmt: skip
    settings = ask.emulator.settings
    create = (
        f"az batch task create --job-id {job_id} --task-id mine --command-line '/bin/echo hello'"
        + actions.connection(settings)
    )
    nothing = empty_state("The job has no tasks. Add one:", create)
    if state:
        nothing = el("p", f"No task is {state}.", class_="empty")
    options = [("", "every state"), *((each, each) for each in _TASK_STATES)]
    return section(
        "Tasks",
        filters(url("jobs", job_id), choice("State", "state", options, state)),
        table("Tasks", columns, rows, empty=nothing),
        next_page(answer, url("jobs", job_id, state=state)),
    )


async def _preparation(ask: PageRequest, job_id: str) -> Markup:
    """Return the section with the preparation and release tasks of a job, by node."""
    answer = await ask.client.read("jobs", job_id, "jobpreparationandreleasetaskstatus")
    kinds = (("preparation", "Preparation"), ("release", "Release"))
    rows = [
        (
            el("a", each["nodeId"], href=url("nodes", each["poolId"], each["nodeId"])),
            kind,
            badge(info["state"]),
            badge(info["result"]) if "result" in info else "",
            str(info.get("exitCode", "")),
            moment(info.get("startTime")),
            moment(info.get("endTime")),
        )
        for each in answer["value"]
        for kind, title in kinds
        if (info := each.get(f"job{title}TaskExecutionInfo"))
    ]
    columns = ("Node", "Task", "State", "Result", "Exit code#", "Started", "Ended")
    title = "Preparation and release"
    return section(title, table(title, columns, rows, empty="on no node yet"))


def _task_row(ask: PageRequest, job_id: str, task: Json) -> tuple[Child, ...]:
    info: Json = task.get("executionInfo", {})
    return (
        el("a", task["id"], href=url("jobs", job_id, "tasks", task["id"])),
        badge(task["state"]),
        badge(info["result"]) if "result" in info else "",
        str(info.get("exitCode", "")),
        _node_link(task.get("nodeInfo", {})),
        moment(info.get("startTime")),
        _took(ask, info),
        str(info.get("retryCount", 0)),
        el("code", ask.masks.text(str(task.get("commandLine", "")))[:200], class_="cut"),
    )


def _node_link(place: Json) -> Child:
    if not place:
        return "-"
    return el("a", place["nodeId"], href=url("nodes", place["poolId"], place["nodeId"]))


def _took(ask: PageRequest, info: Json) -> str:
    if "startTime" not in info:
        return ""
    start = time_of(info["startTime"])
    end = time_of(info["endTime"]) if "endTime" in info else ask.emulator.clock.now()
    return duration_text(max(0.0, (end - start).total_seconds()))


async def task(ask: PageRequest) -> PageView:
    """Return one task with the ends of its output and its files."""
    job_id, _, task_id = ask.steps
    found = await ask.client.read("jobs", job_id, "tasks", task_id)
    info: Json = found.get("executionInfo", {})
    subtasks = await _subtasks(ask, job_id, task_id) if "multiInstanceSettings" in found else None
    content = [
        _task_actions(ask, job_id, found),
        facts(
            [
                ("State", badge(found["state"])),
                ("Result", badge(info["result"]) if "result" in info else None),
                ("Exit code", str(info["exitCode"]) if "exitCode" in info else None),
                ("Node", _node_link(found.get("nodeInfo", {}))),
                ("Created", moment(found.get("creationTime"))),
                ("Started", moment(info.get("startTime"))),
                ("Ended", moment(info.get("endTime"))),
                ("Took", _took(ask, info)),
                ("Retries", str(info.get("retryCount", 0))),
                ("Requeued", str(info.get("requeueCount", 0))),
                ("Slots", str(found.get("requiredSlots", 1))),
                ("Name", found.get("displayName")),
            ]
        ),
        errors([info["failureInfo"]]) if "failureInfo" in info else None,
        section("Command", command(ask.masks.text(str(found.get("commandLine", ""))))),
        section("Constraints", tree(found["constraints"])) if found.get("constraints") else None,
        subtasks,
        [await _stream(ask, job_id, found, name) for name in ("stdout.txt", "stderr.txt")],
        await file_list(ask, "task", job_id, found["id"]),
        el(
            "details",
            el("summary", "Everything that the service returns"),
            tree(ask.masks.document(_without_links(found))),
            data_id="definition",
        ),
    ]
    trail = (JOBS, (f"Job {job_id}", url("jobs", job_id)))
    return PageView(f"Task {found['id']}", join(content), trail, is_moving=True)


def _task_actions(ask: PageRequest, job_id: str, task: Json) -> Markup:
    names = {"job": job_id, "task": task["id"]}
    ended = task["state"] == "completed"
    failed = task.get("executionInfo", {}).get("result") == "failure"
    return buttons(
        None if ended else actions.link(ask, "terminate-task", **names),
        actions.link(ask, "reactivate-task", **names) if ended and failed else None,
        actions.link(ask, "delete-task", **names, back=url("jobs", job_id)),
    )


async def _stream(ask: PageRequest, job_id: str, task: Json, name: str) -> Markup | None:
    if task["state"] not in _ON_NODE:
        return None
    try:
        text, size = await tail(ask, path_of(*root_of("task", job_id, task["id"]), name))
    except ApiError as err:
        return section(name, el("p", err.text, class_="empty"))
    download = url("download", "task", job_id, task["id"], path=name)
    link = el("a", "Download", href=download, class_="button", aria_label=f"Download {name}")
    return section(name, output(text, size, name), el("p", link, class_="actions"))


async def _subtasks(ask: PageRequest, job_id: str, task_id: str) -> Markup:
    answer: dict[str, Any] = await ask.client.read("jobs", job_id, "tasks", task_id, "subtasksinfo")
    rows = [
        (
            str(each["id"]),
            badge(each.get("state", "")),
            _node_link(each.get("nodeInfo", {})),
            moment(each.get("startTime")),
            moment(each.get("endTime")),
            str(each.get("exitCode", "")),
        )
        for each in answer["value"]
    ]
    columns = ("Instance", "State", "Node", "Started", "Ended", "Exit code#")
    return section("Subtasks", table("Subtasks", columns, rows, empty="none"))
