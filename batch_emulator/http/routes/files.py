"""Handlers of file operations on tasks and nodes. Disk work runs in threads."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from batch_emulator.domain.faults import Fault, bad_query
from batch_emulator.domain.model import Json, Node, NodeState, TaskState, key_of
from batch_emulator.domain.transitions import tasks
from batch_emulator.domain.values import etag_text, http_date, time_text
from batch_emulator.executor import node_files
from batch_emulator.executor.node_files import FileEntry, FileRange
from batch_emulator.folders import is_below
from batch_emulator.http import odata
from batch_emulator.http.call import Call, Handler, Reply

Root = Callable[[Call], tuple[Path, str]]
_NOT_READY = frozenset(
    {
        NodeState.REBOOTING,
        NodeState.REIMAGING,
        NodeState.UNUSABLE,
        NodeState.UNKNOWN,
        NodeState.PREEMPTED,
        NodeState.LEAVING_POOL,
        NodeState.UPGRADING_OS,
        NodeState.DEALLOCATING,
        NodeState.DEALLOCATED,
    }
)


def task_root(call: Call) -> tuple[Path, str]:
    """Return the folder of a task and the URL of its files. Raises Fault.

    A task that has not run has no files: github.com/MicrosoftDocs/azure-docs/issues/53298 has the
    code, and Batch Shipyard waits for its end (convoy/batch.py; both read 2026-11-30). The files of
    a node that has left are lost (docs).
    """
    job = call.job()
    row = call.emulator.store.tasks.find(job, key_of(call.params["taskId"]))
    if row is None:
        raise Fault("TaskNotFound")
    place = row.record.get("place")
    if place is None or row.record["state"] in (TaskState.ACTIVE, TaskState.PREPARING):
        raise Fault("OperationInvalidForCurrentState", {"State": row.record["state"]})
    pool = call.emulator.account.pools.get(key_of(place[0]))
    node = None if pool is None else pool.nodes.get(key_of(place[1]))
    if node is None:
        raise Fault("TaskFilesCleanedup", {"NodeId": place[1]})
    _require_ready(node)
    if tasks.retention_over(row.record, row.body, call.now):
        # docs: "for example because the retention period has expired"; cleaned up fits too [X]
        raise Fault("TaskFilesUnavailable", {"Reason": "the retention time is over"})
    launches = call.emulator.launches
    folder = launches.layout(*place).task_dir(job.id, row.id)
    if not is_below(folder, launches.nodes):  # a task replaced it by a link
        raise Fault("TaskFilesCleanedup", {"NodeId": place[1]})
    return folder, f"{call.base_url}/jobs/{job.id}/tasks/{row.id}/files"


def _require_ready(node: Node) -> None:
    """Refuse to read the files of a node that does not answer. Raises Fault.

    Sources: github.com/microsoft/haste/pull/124 (a node that leaves its pool) and
    github.com/microsoft/CromwellOnAzure/issues/243 (unusable), read 2026-11-30. A node that waits
    for its tasks, or keeps their files (`retaineddata`), before it leaves still answers [S].
    """
    waits = node.state is NodeState.LEAVING_POOL and (node.executions or node.keeps_data)
    if node.state in _NOT_READY and not waits:
        raise Fault("NodeNotReady", {"State": node.state.value})


def node_root(call: Call) -> tuple[Path, str]:
    """Return the root folder of a node and the URL of its files. Raises Fault."""
    node = call.node()
    _require_ready(node)
    if node.booted is None:
        raise Fault("NodeFilesUnavailable", {"State": node.state.value})
    layout = call.emulator.launches.layout(node.pool.id, node.id)
    return layout.root, f"{call.base_url}/pools/{node.pool.id}/nodes/{node.id}/files"


def _quoted(name: str) -> str:
    return quote(os.fsencode(name))  # names are bytes, not always text


def _render(entry: FileEntry, url: str) -> Json:
    body: Json = {
        "name": entry.name,
        "url": f"{url}/{_quoted(entry.name)}",
        "isDirectory": entry.is_directory,
    }
    if not entry.is_directory:
        body["properties"] = {
            "lastModified": time_text(entry.modified),
            "contentLength": str(entry.size_bytes),  # 64-bit numbers are sent as text
            "contentType": entry.content_type,
            "fileMode": entry.mode,
        }
    return body


def list_of(root: Root) -> Handler:
    """Return the list operation over the files below a root."""

    async def list_files(call: Call) -> Reply:
        folder, url = root(call)
        recursive = call.query.get("recursive", "false").lower() == "true"
        found = await asyncio.to_thread(node_files.list_files, folder, recursive=recursive)
        rendered = ((entry.name, _render(entry, url)) for entry in found)
        reply = await call.listing(odata.FILE_FIELDS, odata.from_sorted(rendered))
        if recursive and reply.body is not None and "odata.nextLink" in reply.body:
            reply.body["odata.nextLink"] += "&recursive=true"  # clients follow the link as it is
        return reply

    return list_files


def _headers(call: Call, entry: FileEntry, url: str) -> dict[str, str]:
    ticks = int(entry.modified.timestamp() * 1e7)
    call.check(ticks, entry.modified)
    return {
        "ETag": etag_text(ticks),
        "Last-Modified": http_date(entry.modified),
        "ocp-creation-time": http_date(entry.modified),
        "ocp-batch-file-isdirectory": str(entry.is_directory),  # `True` or `False`, as recorded
        "ocp-batch-file-url": quote(f"{url}/".encode() + os.fsencode(entry.name), safe=""),
        "ocp-batch-file-mode": entry.mode,
        "Content-Type": entry.content_type,
    }


def properties_of(root: Root) -> Handler:
    """Return the HEAD operation on a file below a root."""

    async def properties(call: Call) -> Reply:
        folder, url = root(call)
        entry = await asyncio.to_thread(node_files.properties, folder, call.params["filePath"])
        headers = _headers(call, entry, url)
        return Reply(200, None, headers | {"Content-Length": str(entry.size_bytes)})

    return properties


def get_of(root: Root) -> Handler:
    """Return the GET operation on a file below a root; as on the service, a range gets 200, too."""

    async def get(call: Call) -> Reply:
        folder, url = root(call)
        wanted = call.headers.get("ocp-range")
        if wanted is not None and not re.fullmatch(r"bytes=\d*-\d*", wanted.strip()):
            raise Fault("InvalidHeaderValue", {"HeaderName": "ocp-range", "HeaderValue": wanted})
        name = call.params["filePath"]
        opened = await asyncio.to_thread(node_files.open_range, folder, name, wanted)
        headers = _headers(call, opened.entry, url) | {"Content-Length": str(opened.length)}
        return Reply(200, None, headers, stream=_chunks(opened))

    return get


async def _chunks(opened: FileRange) -> AsyncIterator[bytes]:
    chunks = opened.chunks()
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def delete_of(root: Root) -> Handler:
    """Return the DELETE operation on a file or folder below a root."""

    async def delete(call: Call) -> Reply:
        folder, _ = root(call)
        recursive = call.query.get("recursive", "false").lower()
        if recursive not in ("true", "false"):
            raise bad_query("recursive", recursive, "true or false")
        name = call.params["filePath"]
        await asyncio.to_thread(node_files.delete, folder, name, recursive=recursive == "true")
        return Reply(200)

    return delete
