"""Handlers of the account as a whole: export, import, and seeds of pools and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO
from uuid import uuid4

from batch_emulator.domain.faults import Fault, no_room
from batch_emulator.http.call import Call, Reply
from batch_emulator.http.routes import seeding
from batch_emulator.storage import exports

_MOST_SEED_BYTES = 64 << 20


async def export_account(call: Call) -> Reply:
    """Return the account as one file, which `import_account` accepts."""
    await call.emulator.store.committed()
    folder = call.emulator.transfers
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / uuid4().hex
    data_dir = call.emulator.settings.data_dir
    try:
        await asyncio.to_thread(exports.export_account, data_dir, target)
        file = target.open("rb")
    except exports.ExportError as err:
        raise no_room(str(err)) from err
    finally:
        target.unlink(missing_ok=True)  # the open file keeps its content
    return Reply(200, None, {"Content-Type": "application/vnd.sqlite3"}, _chunks_of(file))


async def _chunks_of(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, 1 << 20):
            yield chunk


async def import_account(call: Call) -> Reply:
    """Take over an exported account, the body, into this empty one."""
    emulator, folder = call.emulator, call.emulator.transfers
    target = folder / uuid4().hex
    try:
        exports.require_empty(emulator.account)
        folder.mkdir(mode=0o700, exist_ok=True)
        with target.open("wb") as file:
            async for chunk in call.stream or ():
                await asyncio.to_thread(file.write, chunk)
        exported = await asyncio.to_thread(exports.check_export, target)
        emulator.import_account(exported)
    except exports.ExportError as err:
        reason = f"cannot import an account: {err.why}; {err.fix}"  # not the name of our file
        raise Fault("OperationInvalidForCurrentState", {"Reason": reason}) from err
    finally:
        target.unlink(missing_ok=True)
    return Reply(200, {"pools": exported.pools, "jobs": exported.jobs, "tasks": exported.tasks})


async def seed(call: Call) -> Reply:
    """Add what a seed contains, all or none, and return what was added."""
    content = bytearray()
    if call.stream is not None:
        async for chunk in call.stream:
            content += chunk
            if len(content) > _MOST_SEED_BYTES:
                raise Fault("RequestBodyTooLarge", {"MaxLimit": str(_MOST_SEED_BYTES)})
    try:
        planted = seeding.plant(call.emulator, seeding.parse(bytes(content)), call.base_url)
    except seeding.SeedError as err:
        raise Fault("InvalidRequestBody", {"Reason": f"{err.why}; {err.fix}"}) from err
    return Reply(200, planted.document())
