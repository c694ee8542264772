"""One node: its state, start task, errors, recent tasks and files."""

from __future__ import annotations

from batch_emulator.domain.model import Json
from batch_emulator.page import actions
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    buttons,
    errors,
    facts,
    section,
    table,
    tree,
)
from batch_emulator.page.markup import Markup, badge, el, join, moment, url
from batch_emulator.page.views.files import file_list
from batch_emulator.page.views.pools import POOLS
from batch_emulator.page.views.timeline import timeline_of


async def node(ask: PageRequest) -> PageView:
    """Return one node."""
    pool_id, node_id = ask.steps
    found = await ask.client.read("pools", pool_id, "nodes", node_id)
    listed = await ask.client.read_admin("pools", pool_id, "nodes")
    evictable = any(each["nodeId"] == found["id"] and each["evictable"] for each in listed["value"])
    start = found.get("startTaskInfo")
    content = [
        _actions(ask, pool_id, found, evictable=evictable),
        facts(
            [
                ("State", badge(found["state"])),
                ("Since", moment(found.get("stateTransitionTime"))),
                ("Scheduling", found.get("schedulingState")),
                ("Kind", "dedicated" if found.get("isDedicated") else "spot"),
                ("VM size", found.get("vmSize")),
                ("Address", found.get("ipAddress")),
                ("Allocated", moment(found.get("allocationTime"))),
                ("Booted", moment(found.get("lastBootTime"))),
                (
                    "Tasks so far",
                    f"{found['totalTasksRun']}, {found['totalTasksSucceeded']} succeeded",
                ),
                ("Slots in use", str(found.get("runningTaskSlotsCount", 0))),
            ]
        ),
        section("Errors", errors(found["errors"])) if found.get("errors") else None,
        section("Start task", tree(ask.masks.document(start))) if start else None,
        section("Time", timeline_of(ask, pool_id, found["id"])),
        _recent(found),
        await file_list(ask, "node", pool_id, found["id"]),
    ]
    trail = (POOLS, (f"Pool {pool_id}", url("pools", pool_id)))
    return PageView(f"Node {found['id']}", join(content), trail, is_moving=True)


def _actions(ask: PageRequest, pool_id: str, node: Json, *, evictable: bool) -> Markup:
    names = {"pool": pool_id, "node": node["id"]}
    online = node.get("schedulingState") == "enabled"
    return buttons(
        actions.link(ask, "evict", **names) if evictable else None,
        actions.link(ask, "fail-node", **names),
        actions.link(ask, "reboot", **names),
        actions.link(ask, "reimage", **names),
        actions.link(ask, "disable-node" if online else "enable-node", **names),
        actions.link(
            ask, "remove-node", pool=pool_id, nodeList=node["id"], back=url("pools", pool_id)
        ),
    )


def _recent(node: Json) -> Markup:
    rows = [
        (
            el("a", f"{each['jobId']}/{each['taskId']}", href=_task_url(each)),
            badge(each["taskState"]),
            moment(each["executionInfo"].get("startTime")),
            moment(each["executionInfo"].get("endTime")),
            str(each["executionInfo"].get("exitCode", "")),
        )
        for each in node.get("recentTasks", ())
    ]
    columns = ("Task", "State", "Started", "Ended", "Exit code#")
    return section("Newest tasks", table("Newest tasks", columns, rows, empty="no task ran yet"))


def _task_url(recent: Json) -> str:
    return url("jobs", recent["jobId"], "tasks", recent["taskId"])
