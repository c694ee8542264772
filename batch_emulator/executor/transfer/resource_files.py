"""Resource files: what is downloaded into the working directory before a command starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_emulator.domain import launch
from batch_emulator.domain.launch import SERVER_ERROR, USER_ERROR, ExecutionError, FailureInfo
from batch_emulator.domain.validation.properties import safe_parts
from batch_emulator.domain.validation.task_rules import (
    DEFAULT_FILE_MODE,
    resource_file_problem,
)
from batch_emulator.executor.transfer.blob_client import (
    BlobClient,
    BlobRequestError,
    LocalWriteError,
    blob_url,
    redact,
)

_CODES = {
    "missing": (USER_ERROR, "BlobNotFound", "One of the specified Azure Blob(s) is not found"),
    "denied": (
        USER_ERROR,
        "BlobAccessDenied",
        "Access for one of the specified Azure Blob(s) is denied",
    ),
    "timeout": (
        SERVER_ERROR,
        "BlobDownloadTimedOut",
        "Downloading one of the specified Azure Blob(s) timed out",
    ),
    "other": (
        SERVER_ERROR,
        "BlobDownloadMiscError",
        "Miscellaneous error encountered while downloading one of the specified Azure Blob(s)",
    ),
}


@dataclass(frozen=True, slots=True)
class _Transfer:
    storage: BlobClient
    url: str
    root: Path  # nothing is written outside
    target: Path
    mode: int


async def download(
    storage: BlobClient, resources: Iterable[Mapping[str, Any]], working_dir: Path
) -> None:
    """Fetch all resource files. Raises ExecutionError with the service's failureInfo."""
    transfers: dict[Path, _Transfer] = {}  # a later entry for the same file wins
    for resource in resources:
        for one in await _plan(storage, resource, working_dir):
            transfers[one.target] = one
    tasks = [asyncio.ensure_future(_fetch(one)) for one in transfers.values()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _plan(
    storage: BlobClient, resource: Mapping[str, Any], working_dir: Path
) -> list[_Transfer]:
    problem = resource_file_problem(resource)
    if problem is not None:
        raise ExecutionError(_other(str(resource.get("filePath") or ""), problem))
    mode = int(resource.get("fileMode") or DEFAULT_FILE_MODE, 8)
    path = str(resource.get("filePath") or "")
    url = str(resource.get("httpUrl") or resource["storageContainerUrl"])
    try:
        storage = storage.on_behalf(resource.get("identityReference"), url)
        if resource.get("httpUrl"):
            return [_Transfer(storage, url, working_dir, working_dir / path, mode)]
        names = await storage.list_blobs(url, str(resource.get("blobPrefix") or ""))
    except BlobRequestError as err:
        raise ExecutionError(_failure(url, working_dir / path, err)) from err
    transfers: list[_Transfer] = []
    for name in names:
        parts = safe_parts(name)
        if not parts:
            raise ExecutionError(_other(name, "the blob name leaves the working directory"))
        if not name.endswith("/"):  # such names stand for empty folders
            target = working_dir.joinpath(path, *parts)
            source = blob_url(url, name)
            transfers.append(_Transfer(storage, source, working_dir, target, mode))
    return transfers


async def _fetch(one: _Transfer) -> None:
    try:
        await asyncio.to_thread(_make_room, one)
    except OSError as err:
        raise ExecutionError(launch.directory_failure(str(one.target.parent), err)) from err
    try:
        await one.storage.download(one.url, one.target)
        await asyncio.to_thread(one.target.chmod, one.mode)
    except BlobRequestError as err:
        raise ExecutionError(_failure(one.url, one.target, err)) from err
    except LocalWriteError as err:
        made = launch.write_failure if one.target.is_file() else launch.create_failure
        raise ExecutionError(made(str(one.target), err.cause)) from err
    except OSError as err:
        raise ExecutionError(launch.write_failure(str(one.target), err)) from err


def _make_room(one: _Transfer) -> None:
    """A folder for the file, wherever an earlier attempt may have put links and pipes."""
    target = one.target
    if not Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(one.root)):
        raise ExecutionError(_other(str(target), "a link leads out of the working directory"))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or (target.exists() and not (target.is_file() or target.is_dir())):
        target.unlink()


def _failure(url: str, target: Path, err: BlobRequestError) -> FailureInfo:
    category, code, message = _CODES[err.kind]
    details = (("BlobSource", redact(url)), ("FilePath", str(target)), ("Message", err.detail))
    return FailureInfo(category, code, message, details)


def _other(path: str, problem: str) -> FailureInfo:
    _, code, message = _CODES["other"]
    return FailureInfo(USER_ERROR, code, message, (("FilePath", path), ("Message", problem)))
