"""Nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from batch_emulator import odata
from batch_emulator.account import Account
from batch_emulator.call import Call, Handler, Reply
from batch_emulator.faults import Fault
from batch_emulator.model import Json, Node
from batch_emulator.transitions import node_operations, node_users
from batch_emulator.wire import extensions, paging, render

_REMOTE_PORT = 50000  # as in the docs' example; one a node, and nobody answers there [S]


def _render(call: Call, node: Node) -> Json:
    recent: list[Json] = []
    for job_id, task_id, instance in node.recent:
        job = call.emulator.account.jobs.get(job_id.lower())
        row = None if job is None else call.emulator.store.tasks.find(job, task_id.lower())
        if job is not None and row is not None:
            recent.append(render.recent_task(job, row, call.base_url, instance))
    return render.node(node, call.base_url, recent)


async def list_all(call: Call) -> Reply:
    """ComputeNode_List."""
    found = sorted(call.pool().nodes.items())
    rendered = ((key, _render(call, node)) for key, node in found)
    return await call.listing(odata.NODE_FIELDS, paging.from_sorted(rendered))


def get(call: Call) -> Reply:
    """ComputeNode_Get."""
    return call.entity(_render(call, call.node()), {})


def _with_option(
    name: str, operation: Callable[[Account, Node, str, datetime], None], status: int
) -> Handler:
    """An operation whose body has one property, by default `requeue` (docs)."""

    def handler(call: Call) -> Reply:
        node = call.node()
        option = str(call.json(optional=True).get(name) or "requeue").lower()
        operation(call.emulator.account, node, option, call.now)
        return Reply(status, None, call.data_service_id())

    return handler


reboot = _with_option("nodeRebootOption", node_operations.reboot, 202)
reimage = _with_option("nodeReimageOption", node_operations.reimage, 202)
deallocate = _with_option("nodeDeallocateOption", node_operations.deallocate, 202)
disable_scheduling = _with_option(
    "nodeDisableSchedulingOption", node_operations.disable_scheduling, 200
)


def start(call: Call) -> Reply:
    """ComputeNode_Start."""
    node_operations.start(call.emulator.account, call.node(), call.now)
    return Reply(202, None, call.data_service_id())


def enable_scheduling(call: Call) -> Reply:
    """ComputeNode_EnableScheduling."""
    node_operations.enable_scheduling(call.emulator.account, call.node(), call.now)
    return Reply(200, None, call.data_service_id())


def add_user(call: Call) -> Reply:
    """ComputeNode_AddUser."""
    name = node_users.add(call.emulator.account, call.node(), call.json(), call.now)
    url = f"{call.base_url}{call.path}/{name}"
    return Reply(201, None, {"Location": url, "DataServiceId": url})


def update_user(call: Call) -> Reply:
    """ComputeNode_UpdateUser."""
    name = call.params["userName"]
    node_users.update(call.emulator.account, call.node(), name, call.json(), call.now)
    return Reply(200, None, call.data_service_id())


def delete_user(call: Call) -> Reply:
    """ComputeNode_DeleteUser."""
    node_users.delete(call.emulator.account, call.node(), call.params["userName"])
    return Reply(200)


def remote_login_settings(call: Call) -> Reply:
    """ComputeNode_GetRemoteLoginSettings."""
    port = _REMOTE_PORT + call.node().number - 1
    body = {"remoteLoginIPAddress": "127.0.0.1", "remoteLoginPort": port}
    return call.entity(body, {})


def remote_desktop(call: Call) -> Reply:
    """ComputeNode_GetRemoteDesktop: for cloud service pools only, which no longer exist."""
    reason = "the pool has a virtualMachineConfiguration; ask for remoteloginsettings"
    raise Fault("OperationNotValidOnNode", {"NodeId": call.node().id, "Reason": reason})


async def extension_list(call: Call) -> Reply:
    """ComputeNodeExtension_List."""
    found = extensions.of_node(call.node())
    return await call.listing(None, paging.from_sorted(sorted(found.items())))


def extension(call: Call) -> Reply:
    """ComputeNodeExtension_Get."""
    found = extensions.of_node(call.node()).get(call.params["extensionName"].lower())
    if found is None:
        raise Fault("ResourceNotFound", {"ExtensionName": call.params["extensionName"][:64]})
    return call.entity(found, {})
