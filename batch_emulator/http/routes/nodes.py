"""Handlers of node operations, user accounts, extensions, and the upload of service logs.

The service uploads the logs of its agent. Here they contain the changes of the
node's state and the output of its start task [S].
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from batch_emulator.domain.account import Account, Event, Events
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, Node
from batch_emulator.domain.transitions import node_operations
from batch_emulator.domain.validation.properties import is_http_url, require
from batch_emulator.domain.values import parse_time
from batch_emulator.executor.blob_client import BlobRequestError, blob_url
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.folders import stat_below
from batch_emulator.http import endpoints, odata, render, secrets
from batch_emulator.http.call import Call, Handler, Reply

log = logging.getLogger(__name__)


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
    fetch = odata.from_entities(call.pool().nodes, partial(_render, call))
    return await call.listing(odata.NODE_FIELDS, fetch)


def get(call: Call) -> Reply:
    """ComputeNode_Get."""
    return call.entity(_render(call, call.node()), {})


def _with_option(
    name: str, operation: Callable[[Account, Node, str, datetime], None], status: int
) -> Handler:
    """Run an operation whose body has one property, by default `requeue` (docs)."""

    def handler(call: Call) -> Reply:
        option = str(call.json(optional=True).get(name) or "requeue").lower()
        node = call.node()
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
    body = call.json()
    name = node_operations.add_user(call.emulator.account, call.node(), body, call.now)
    url = f"{call.base_url}{call.path}/{name}"
    return Reply(201, None, {"Location": url, "DataServiceId": url})


def update_user(call: Call) -> Reply:
    """ComputeNode_UpdateUser."""
    name, body = call.params["userName"], call.json()
    node_operations.update_user(call.emulator.account, call.node(), name, body, call.now)
    return Reply(200, None, call.data_service_id())


def delete_user(call: Call) -> Reply:
    """ComputeNode_DeleteUser."""
    node_operations.delete_user(call.emulator.account, call.node(), call.params["userName"])
    return Reply(200)


def remote_login_settings(call: Call) -> Reply:
    """ComputeNode_GetRemoteLoginSettings; refused if the node has no endpoint [S]."""
    node = call.node()
    found = endpoints.remote_login(node)
    if found is None:  # an answer must have an address and a port
        reason = "the node has no endpoint for SSH or RDP"
        raise Fault("OperationNotValidOnNode", {"NodeId": node.id, "Reason": reason})
    return call.entity(found, call.data_service_id())


def remote_desktop(call: Call) -> Reply:
    """ComputeNode_GetRemoteDesktop: for cloud service pools only, which no longer exist."""
    reason = "the pool has a virtualMachineConfiguration; ask for remoteloginsettings"
    raise Fault("OperationNotValidOnNode", {"NodeId": call.node().id, "Reason": reason})


async def extension_list(call: Call) -> Reply:
    """ComputeNodeExtension_List."""
    found = secrets.extensions_of_node(call.node())
    return await call.listing(None, odata.from_sorted(sorted(found.items())))


def extension(call: Call) -> Reply:
    """ComputeNodeExtension_Get."""
    found = secrets.extensions_of_node(call.node()).get(call.params["extensionName"].lower())
    if found is None:
        raise Fault("ResourceNotFound", {"ExtensionName": call.params["extensionName"][:64]})
    return call.entity(found, {})


_START_TASK_FILES = ("stdout.txt", "stderr.txt")
_Log = tuple[str, Path, Path]  # name, file, and a folder above it that tasks cannot replace


def _collect_logs(
    folder: Path,
    events: Events,
    node: Node,
    layout: NodeLayout,
    period: tuple[datetime, datetime | None],
) -> list[_Log]:
    """Return the logs with a message in the period; write the agent's log to `folder`.

    A file is sent whole, so it may hold more than requested (docs). The agent's log is still being
    written: it is sent unless the period ends before its first line. The service sent a file for
    a period that begins in ten minutes (recorded in the tests of the SDK for Java, 2021 and 2023).
    """
    found: list[_Log] = []
    lines = [event for event in events.after(0) if _is_of_node(event, node)]
    _, end = period
    if lines and (end is None or lines[0].time <= end):
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".log", delete=False) as log:
            log.writelines(json.dumps(event.document()) + "\n" for event in lines)
        found.append(("agent.log", Path(log.name), folder))
    return [*found, *_start_task_logs(layout, period)]


def _is_of_node(event: Event, node: Node) -> bool:
    return event.kind.startswith("node.") and event.entity == f"{node.pool.id}/{node.id}"


def _start_task_logs(
    layout: NodeLayout, period: tuple[datetime, datetime | None]
) -> Iterator[_Log]:
    start, _ = period
    for name in _START_TASK_FILES:
        path = layout.startup / name
        with suppress(OSError):
            found = stat_below(path, layout.root.parent)
            written = datetime.fromtimestamp(found.st_mtime, UTC)
            if stat.S_ISREG(found.st_mode) and written >= start:
                yield f"startup/{name}", path, layout.root.parent


def upload_service_logs(call: Call) -> Reply:
    """ComputeNode_UploadBatchServiceLogs: answered at once, uploaded later.

    The service does the same: it answers 200 for a container that is not accessible (recorded with
    azure-batch 14.0). Failed uploads are logged.
    """
    body = call.json()
    require(body, "containerUrl", "startTime")
    node = call.node()
    if not is_http_url(body["containerUrl"]):
        raise bad_property("containerUrl", "", "an http or https URL of a container is expected")
    period = (
        _log_time(body, "startTime"),
        _log_time(body, "endTime") if "endTime" in body else None,
    )
    if node.booted is None:
        raise Fault("OperationInvalidForCurrentState", {"State": node.state.value})
    emulator = call.emulator
    directory = _log_directory(emulator.account.name, node, call.request_id)
    emulator.service_logs.mkdir(mode=0o700, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=emulator.service_logs))
    layout = emulator.launches.layout(node.pool.id, node.id)
    files = _collect_logs(folder, emulator.account.events, node, layout, period)
    emulator.loop.spawn(_send_logs(call, body, directory, files, folder))
    found = {"virtualDirectoryName": directory, "numberOfFilesUploaded": len(files)}
    return call.entity(found, {})


def _log_directory(account: str, node: Node, request_id: str) -> str:
    """Return the virtual directory of an upload: `account-16 digits/pool/node/request`.

    So the service names it (recorded as above), with the ID of the pool in lower case. The digits
    are of the account; here they are a digest of its name.
    """
    digits = hashlib.sha256(account.encode()).hexdigest()[:16].upper()
    return f"{account}-{digits}/{node.pool.id.lower()}/{node.id}/{request_id}"


async def _send_logs(
    call: Call, body: Json, directory: str, files: list[_Log], folder: Path
) -> None:
    try:
        await asyncio.gather(
            *(_send_log(call, body, f"{directory}/{name}", path, top) for name, path, top in files)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _send_log(call: Call, body: Json, blob: str, path: Path, top: Path) -> None:
    try:
        url = blob_url(body["containerUrl"], blob)
        await call.emulator.executor.upload(url, path, top, body.get("identityReference"))
    except (BlobRequestError, OSError, ValueError) as err:
        reason = err.kind if isinstance(err, BlobRequestError) else type(err).__name__
        log.warning("the service log %s is not uploaded: %s", blob, reason)


def _log_time(body: Json, name: str) -> datetime:
    try:
        return parse_time(body[name])
    except (TypeError, ValueError, OverflowError) as err:
        raise bad_property(name, body[name], "an ISO 8601 time is expected") from err
