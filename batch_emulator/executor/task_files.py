"""Copy resource files into the working directory before a command, and output files to blobs
after it.

Patterns of output files are `* ? [a-c] [!abc] **`, relative to the working directory.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from batch_emulator.domain.launch import (
    SERVER_ERROR,
    USER_ERROR,
    DiskStep,
    ExecutionError,
    FailureInfo,
    LaunchSpec,
    disk_failure,
)
from batch_emulator.domain.validation.properties import safe_parts
from batch_emulator.domain.validation.task_rules import (
    DEFAULT_FILE_MODE,
    DEFAULT_UPLOAD_CONDITION,
    output_file_problem,
    resource_file_problem,
    upload_condition,
)
from batch_emulator.executor.blob_client import (
    BlobClient,
    BlobRequestError,
    LocalWriteError,
    blob_url,
    redact,
)
from batch_emulator.folders import create_below, is_below, opened_folder, stat_below, write_below

_DOWNLOAD_CODES = {
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

    def create(self, node_dir: Path) -> int:
        """Return a descriptor of the new file. Links that stay inside are resolved first."""
        folder, top = (Path(os.path.realpath(path)) for path in (self.target.parent, node_dir))
        descriptor = create_below(folder / self.target.name, top, make=True)
        os.fchmod(descriptor, self.mode)
        return descriptor


async def download(storage: BlobClient, launch: LaunchSpec) -> None:
    """Download all resource files. Raises ExecutionError with the service's failureInfo."""
    transfers: dict[Path, _Transfer] = {}  # a later entry for the same file wins
    for resource in launch.resource_files:
        for one in await _plan(storage, resource, launch.resource_dir or launch.working_dir):
            transfers[one.target] = one
    tasks = [asyncio.ensure_future(_fetch(one, launch.node_dir)) for one in transfers.values()]
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
    url = str(resource.get("httpUrl") or resource.get("storageContainerUrl") or "")
    try:
        if linked := resource.get("autoStorageContainerName"):
            storage, url = storage.linked(str(linked))
        else:
            storage = storage.on_behalf(resource.get("identityReference"), url)
        if resource.get("httpUrl"):
            return [_Transfer(storage, url, working_dir, working_dir / path, mode)]
        names = await storage.list_blobs(url, str(resource.get("blobPrefix") or ""))
    except BlobRequestError as err:
        raise ExecutionError(_download_failure(url, working_dir / path, err)) from err
    transfers: list[_Transfer] = []
    for name in names:
        parts = safe_parts(name)
        if not parts:
            raise ExecutionError(_other(name, "the blob name leaves the working directory"))
        if not name.endswith("/"):  # a name with a final slash is an empty folder
            target = working_dir.joinpath(path, *parts)
            source = blob_url(url, name)
            transfers.append(_Transfer(storage, source, working_dir, target, mode))
    return transfers


async def _fetch(one: _Transfer, node_dir: Path) -> None:
    try:
        await asyncio.to_thread(_make_parent, one, node_dir)
    except OSError as err:
        failure = disk_failure(DiskStep.MAKE_FOLDER, one.target.parent, err)
        raise ExecutionError(failure) from err
    try:
        await one.storage.download(one.url, lambda: one.create(node_dir))
    except BlobRequestError as err:
        raise ExecutionError(_download_failure(one.url, one.target, err)) from err
    except LocalWriteError as err:
        step = DiskStep.WRITE_FILE if one.target.is_file() else DiskStep.CREATE_FILE
        raise ExecutionError(disk_failure(step, one.target, err.cause)) from err
    except OSError as err:
        raise ExecutionError(disk_failure(DiskStep.WRITE_FILE, one.target, err)) from err


def _make_parent(one: _Transfer, node_dir: Path) -> None:
    if not is_below(one.target.parent, one.root):
        why = "a link leads out of the working directory"
        raise ExecutionError(_other(str(one.target), why))
    folder, top = (Path(os.path.realpath(path)) for path in (one.target.parent, node_dir))
    with opened_folder(folder, top, make=True):
        pass


def _download_failure(url: str, target: Path, err: BlobRequestError) -> FailureInfo:
    category, code, message = _DOWNLOAD_CODES[err.kind]
    details = (("BlobSource", redact(url)), ("FilePath", str(target)), ("Message", err.detail))
    return FailureInfo(category, code, message, details)


def _other(path: str, problem: str) -> FailureInfo:
    _, code, message = _DOWNLOAD_CODES["other"]
    return FailureInfo(USER_ERROR, code, message, (("FilePath", path), ("Message", problem)))


_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_WILD = re.compile(r"[*?\[]")
_SET = re.compile(r"\[(!?)(\]?[^\]]*)\]")


class PatternError(ValueError):
    """The pattern is invalid; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Match:
    """A matching file; `name` is its path below the fixed folders of the pattern.

    `real` is its path without links, below `top`, the root of the node.
    """

    path: Path
    name: str
    real: Path
    top: Path


def expand_variables(pattern: str, environment: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; unknown names are unchanged."""
    return _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), pattern)


def has_wildcard(pattern: str) -> bool:
    """Return True if the pattern has a wildcard; `[*]` is an escape."""
    return any(_literal(part) is None for part in pattern.split("/"))


def find_files(pattern: str, working_dir: Path, task_dir: Path, root: Path) -> list[Match]:
    """Return the files that match an expanded pattern, sorted. Raises PatternError. Blocks.

    Files that a link finds outside the root of the node are left out: the emulator may have rights
    that the task that made the link does not have.
    """
    fixed, rest = _split(pattern)
    base = Path(os.path.normpath(working_dir.joinpath(*fixed)))
    if not base.is_relative_to(task_dir):
        raise PatternError(f"{pattern!r} leaves the directory of the task")
    if ".." in rest:
        raise PatternError(f"{pattern!r}: '..' may only stand before the first wildcard")
    top = Path(os.path.realpath(root))
    matches: list[Match] = []
    for path in sorted(set(_walk(base, rest, top))):
        with suppress(OSError):  # it is outside, or it vanished
            real = Path(os.path.realpath(path))
            if stat.S_ISREG(stat_below(real, top).st_mode):
                matches.append(Match(path, path.relative_to(base).as_posix(), real, top))
    return matches


def _split(pattern: str) -> tuple[list[str], list[str]]:
    """Split into fixed folders and the parts from the first wildcard on, or the last part."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise PatternError(f"{pattern!r} names no file")
    fixed: list[str] = ["/"] if pattern.startswith("/") else []
    while len(parts) > 1 and (name := _literal(parts[0])) is not None:
        fixed.append(name)
        parts.pop(0)
    return fixed, parts


def _walk(folder: Path, parts: list[str], top: Path) -> Iterator[Path]:
    """Yield the paths that match, of files and of anything else."""
    part, *rest = parts
    if part == "**":
        if not rest:
            rest = ["*"]
        yield from _walk(folder, rest, top)
        for name, is_folder in _entries(folder, top):
            if is_folder and not name.startswith("."):
                yield from _walk(folder / name, parts, top)
        return
    literal = _literal(part)
    found = [literal] if literal is not None else [name for name, _ in _entries(folder, top)]
    for name in found:
        if literal is not None or _compiled(part).fullmatch(name):
            yield from _walk(folder / name, rest, top) if rest else (folder / name,)


def _entries(folder: Path, top: Path) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether they are folders; none if it is outside."""
    try:
        with (
            opened_folder(Path(os.path.realpath(folder)), top) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []


def _literal(part: str) -> str | None:
    """Return the only name that a part matches, or None if it has a wildcard."""
    unescaped = re.sub(r"\[([*?\[\]])\]", lambda found: f"\0{ord(found[1])}\0", part)
    if _WILD.search(unescaped) and (_SET.search(unescaped) or re.search(r"[*?]", unescaped)):
        return None
    return re.sub(r"\0(\d+)\0", lambda found: chr(int(found[1])), unescaped)


@lru_cache(maxsize=256)
def _compiled(part: str) -> re.Pattern[str]:
    """Return the regular expression of a part; wildcards do not match a leading dot."""
    out: list[str] = ["" if part.startswith((".", "[.]")) else r"(?!\.)"]
    position = 0
    while position < len(part):
        char = part[position]
        found = _SET.match(part, position) if char == "[" else None
        if found is not None:
            inner = found[2].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            inner = inner.replace("]", r"\]").replace("&&", r"\&\&").replace("||", r"\|\|")
            out.append(f"[{'^' if found[1] else ''}{inner}]")
            position = found.end()
            continue
        out.append({"*": ".*", "?": "."}.get(char) or re.escape(char))
        position += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as err:
        raise PatternError(f"{part!r}: {err}") from err


_UPLOAD_CODES = {
    "missing": (
        USER_ERROR,
        "FileUploadContainerNotFound",
        "The specified container to upload files to does not exist",
    ),
    "denied": (
        USER_ERROR,
        "FileUploadAccessDenied",
        "Access to the specified container to upload files to is denied",
    ),
}
_MISC = "Miscellaneous error encountered while uploading one of the output files"


async def upload(storage: BlobClient, launch: LaunchSpec, *, succeeded: bool) -> FailureInfo | None:
    """Upload the files whose condition holds. Return the first failure, after trying all."""
    conditions = (DEFAULT_UPLOAD_CONDITION, "tasksuccess" if succeeded else "taskfailure")
    wanted = [one for one in launch.output_files if upload_condition(one) in conditions]
    if not wanted:
        return None
    log = _Log()
    for one in wanted:
        await _upload_one(storage, one, launch, log)
    await asyncio.to_thread(log.save, launch)
    return log.failure


class _Log:
    """The content of fileuploadout.txt and fileuploaderr.txt, and the first failure."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._err: list[str] = []
        self.failure: FailureInfo | None = None

    def note(self, text: str) -> None:
        self._out.append(f"{datetime.now(UTC).isoformat()} {text}\n")

    def fail(self, failure: FailureInfo) -> None:
        details = ", ".join(f"{name}={value}" for name, value in failure.details)
        self._err.append(
            f"{datetime.now(UTC).isoformat()} {failure.code}: {failure.message} ({details})\n"
        )
        self.failure = self.failure or failure

    def save(self, launch: LaunchSpec) -> None:
        for name, lines in (("fileuploadout.txt", self._out), ("fileuploaderr.txt", self._err)):
            with suppress(OSError):  # a full disk: the outcome says what failed
                text = "".join(lines).encode(errors="replace")
                write_below(launch.task_dir / name, launch.node_dir, text)


async def _upload_one(
    storage: BlobClient, output: Mapping[str, Any], launch: LaunchSpec, log: _Log
) -> None:
    problem = output_file_problem(output)
    if problem is not None:
        log.fail(_upload_failure("other", "", str(output.get("filePattern")), problem))
        return
    container: Mapping[str, Any] = output["destination"]["container"]
    pattern = expand_variables(output["filePattern"], launch.environment)
    try:
        storage = storage.on_behalf(container.get("identityReference"), container["containerUrl"])
        folders = launch.working_dir, launch.task_dir, launch.root_dir
        found = await asyncio.to_thread(find_files, pattern, *folders)
    except BlobRequestError as err:
        log.fail(_upload_failure(err.kind, container["containerUrl"], pattern, err.detail))
        return
    except PatternError as err:
        log.fail(_upload_failure("other", container["containerUrl"], pattern, str(err)))
        return
    if not found:  # [S]: nothing to upload is not a failure
        log.note(f"no file matches {pattern}")
    headers = {str(h["name"]): str(h["value"]) for h in container.get("uploadHeaders") or ()}
    path = str(container.get("path") or "")
    jobs = [
        _upload_file(storage, container["containerUrl"], match, name, headers, log)
        for match, name in _names(found, path, has_wildcard(pattern))
    ]
    await asyncio.gather(*jobs)


def _names(found: list[Match], path: str, wild: bool) -> list[tuple[Match, str]]:
    """Return the blob names: `path` is the name, or with a wildcard the prefix of each."""
    if not wild:
        return [(match, path or match.name) for match in found]
    prefix = path.rstrip("/")
    return [(match, f"{prefix}/{match.name}" if prefix else match.name) for match in found]


async def _upload_file(
    storage: BlobClient,
    container_url: str,
    match: Match,
    blob: str,
    headers: Mapping[str, str],
    log: _Log,
) -> None:
    url = blob_url(container_url, blob)
    try:
        size = (await storage.upload(url, match.real, headers, top=match.top)).size
    except BlobRequestError as err:
        log.fail(_upload_failure(err.kind, container_url, str(match.path), err.detail))
    except OSError as err:
        log.fail(_upload_failure("other", container_url, str(match.path), err.strerror or str(err)))
    else:
        log.note(f"uploaded {match.path} as {blob} to {redact(container_url)}, {size} bytes")


def _upload_failure(kind: str, container_url: str, path: str, detail: str) -> FailureInfo:
    category, code, message = _UPLOAD_CODES.get(kind, (SERVER_ERROR, "FileUploadMiscError", _MISC))
    details = (
        ("ContainerUrl", redact(container_url)),
        ("FilePath", path),
        ("Message", detail),
    )
    return FailureInfo(category, code, message, details)
