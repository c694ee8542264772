"""ComputeNode_UploadBatchServiceLogs: the logs of a node go to a container."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from batch_emulator import service_logs
from batch_emulator.call import Call, Reply
from batch_emulator.executor.storage import StorageError, blob_url, is_http_url
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json
from batch_emulator.values import parse_time
from batch_emulator.wire.bodies import require


async def upload(call: Call) -> Reply:
    """Answered when the files are there; on the service they may follow later [S]."""
    node, body = call.node(), call.json()
    require(body, "containerUrl", "startTime")
    if not is_http_url(body["containerUrl"]):
        raise bad_property("containerUrl", "", "an http or https URL of a container is expected")
    period = (_time(body, "startTime"), _time(body, "endTime") if "endTime" in body else None)
    if node.booted is None:
        raise Fault("OperationInvalidForCurrentState", {"State": node.state.value})
    emulator = call.emulator
    directory = f"{node.pool.id}/{node.id}/{uuid4()}"
    with tempfile.TemporaryDirectory(prefix="service-logs-") as folder:
        layout = emulator.launches.layout(node.pool.id, node.id)
        files = service_logs.collect(Path(folder), emulator.account.events, node, layout, period)
        await asyncio.gather(
            *(_send(call, body, f"{directory}/{name}", path) for name, path in files)
        )
    return Reply(200, {"virtualDirectoryName": directory, "numberOfFilesUploaded": len(files)})


async def _send(call: Call, body: Json, blob: str, path: Path) -> None:
    url = blob_url(body["containerUrl"], blob)
    try:
        await call.emulator.executor.upload(url, path, body.get("identityReference"))
    except (StorageError, OSError) as err:
        reason = err.kind if isinstance(err, StorageError) else "other"
        text = {"missing": "the container does not exist", "denied": "access is denied"}
        problem = text.get(reason, "the upload failed")
        raise bad_property("containerUrl", "", problem) from err


def _time(body: Json, name: str) -> datetime:
    try:
        return parse_time(body[name])
    except (TypeError, ValueError, OverflowError) as err:
        raise bad_property(name, body[name], "an ISO 8601 time is expected") from err
