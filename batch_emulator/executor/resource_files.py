"""Resource files: what is downloaded into the working directory before a command starts."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from batch_emulator.executor import failures
from batch_emulator.executor.identity import identity_problem
from batch_emulator.executor.launch import SERVER_ERROR, USER_ERROR, ExecutionError, Failure
from batch_emulator.executor.storage import (
    LocalWriteError,
    Storage,
    StorageError,
    blob_url,
    is_http_url,
    redact,
)

_SOURCES = ("httpUrl", "storageContainerUrl", "autoStorageContainerName")
_DEFAULT_MODE = "0770"
_MODE = re.compile(r"0?[0-7]{3}")
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


def validate_resource_file(resource: Mapping[str, Any]) -> str | None:
    """The problem with a wire `resourceFile`, or None when it can be downloaded."""
    given = [name for name in _SOURCES if resource.get(name)]
    if len(given) != 1:
        return f"exactly one of {', '.join(_SOURCES)} must be given, not {len(given)}"
    if given[0] == "autoStorageContainerName":
        return "autoStorageContainerName is not supported: no storage account is linked; use a SAS"
    if resource.get("identityReference"):
        problem = identity_problem(resource["identityReference"])
        if problem is not None:
            return problem
    return _url_problem(given[0], resource[given[0]]) or _target_problem(given[0], resource)


def _url_problem(name: str, url: object) -> str | None:
    return None if is_http_url(url) else f"{name} must be an http or https URL"


def _target_problem(source: str, resource: Mapping[str, Any]) -> str | None:
    path = resource.get("filePath") or ""
    if not isinstance(path, str):
        return "filePath must be a string"
    parts = safe_parts(path)
    if parts is None:
        return f"filePath {path!r} leaves the working directory of the task"
    if source == "httpUrl" and not parts:
        return "filePath is required with httpUrl: it names the file to write"
    if source == "httpUrl" and resource.get("blobPrefix"):
        return "blobPrefix is only valid with storageContainerUrl"
    mode = resource.get("fileMode") or _DEFAULT_MODE
    if not isinstance(mode, str) or not _MODE.fullmatch(mode):
        return f"fileMode {mode!r} is not an octal mode such as 0755"
    return None


def safe_parts(path: str) -> tuple[str, ...] | None:
    """The parts of a relative path, None when it is absolute or climbs with `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        return None
    return pure.parts


@dataclass(frozen=True, slots=True)
class _Transfer:
    storage: Storage
    url: str
    root: Path  # nothing is written outside
    target: Path
    mode: int


async def download(
    storage: Storage, resources: Iterable[Mapping[str, Any]], working_dir: Path
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
    storage: Storage, resource: Mapping[str, Any], working_dir: Path
) -> list[_Transfer]:
    problem = validate_resource_file(resource)
    if problem is not None:
        raise ExecutionError(_other(str(resource.get("filePath") or ""), problem))
    mode = int(resource.get("fileMode") or _DEFAULT_MODE, 8)
    path = str(resource.get("filePath") or "")
    url = str(resource.get("httpUrl") or resource["storageContainerUrl"])
    try:
        storage = storage.on_behalf(resource.get("identityReference"), url)
        if resource.get("httpUrl"):
            return [_Transfer(storage, url, working_dir, working_dir / path, mode)]
        names = await storage.list_blobs(url, str(resource.get("blobPrefix") or ""))
    except StorageError as err:
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
        raise ExecutionError(failures.directory_failure(str(one.target.parent), err)) from err
    try:
        await one.storage.download(one.url, one.target)
        await asyncio.to_thread(one.target.chmod, one.mode)
    except StorageError as err:
        raise ExecutionError(_failure(one.url, one.target, err)) from err
    except LocalWriteError as err:
        made = failures.write_failure if one.target.is_file() else failures.create_failure
        raise ExecutionError(made(str(one.target), err.cause)) from err
    except OSError as err:
        raise ExecutionError(failures.write_failure(str(one.target), err)) from err


def _make_room(one: _Transfer) -> None:
    """A folder for the file, wherever an earlier attempt may have put links and pipes."""
    target = one.target
    if not Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(one.root)):
        raise ExecutionError(_other(str(target), "a link leads out of the working directory"))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or (target.exists() and not (target.is_file() or target.is_dir())):
        target.unlink()


def _failure(url: str, target: Path, err: StorageError) -> Failure:
    category, code, message = _CODES[err.kind]
    details = (("BlobSource", redact(url)), ("FilePath", str(target)), ("Message", err.detail))
    return Failure(category, code, message, details)


def _other(path: str, problem: str) -> Failure:
    _, code, message = _CODES["other"]
    return Failure(USER_ERROR, code, message, (("FilePath", path), ("Message", problem)))
