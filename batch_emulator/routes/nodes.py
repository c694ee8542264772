"""Nodes."""

from __future__ import annotations

from batch_emulator import odata
from batch_emulator.call import Call, Reply
from batch_emulator.model import Json, Node
from batch_emulator.transitions import nodes
from batch_emulator.wire import paging, render


def _render(call: Call, node: Node) -> Json:
    recent: list[Json] = []
    for job_id, task_id in node.recent:
        job = call.emulator.account.jobs.get(job_id.lower())
        row = None if job is None else call.emulator.store.task(job, task_id.lower())
        if job is not None and row is not None:
            recent.append(render.recent_task(job, row, call.base_url))
    return render.node(node, call.base_url, recent)


async def list_all(call: Call) -> Reply:
    """ComputeNode_List."""
    found = sorted(call.pool().nodes.items())
    rendered = ((key, _render(call, node)) for key, node in found)
    return await call.listing(odata.NODE_FIELDS, paging.from_sorted(rendered))


def get(call: Call) -> Reply:
    """ComputeNode_Get."""
    return call.entity(_render(call, call.node()), {})


def reboot(call: Call) -> Reply:
    """ComputeNode_Reboot."""
    node = call.node()
    option = str(call.json(optional=True).get("nodeRebootOption", "requeue")).lower()
    nodes.reboot(call.emulator.account, node, option, call.now)
    return Reply(202, None, call.data_service_id())
