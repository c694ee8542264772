"""Output files: what is uploaded to blob containers after a command ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from batch_emulator.executor import patterns
from batch_emulator.executor.identity import identity_problem
from batch_emulator.executor.launch import SERVER_ERROR, USER_ERROR, Failure
from batch_emulator.executor.storage import (
    Storage,
    StorageError,
    blob_url,
    is_http_url,
    redact,
)

_CONDITIONS = ("tasksuccess", "taskfailure", "taskcompletion")
_DEFAULT_CONDITION = "taskcompletion"
_CODES = {
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


@dataclass(frozen=True, slots=True)
class UploadContext:
    """Where the files of a task lie and what its patterns may name."""

    task_dir: Path
    working_dir: Path
    environment: Mapping[str, str]


def validate_output_file(output: Mapping[str, Any]) -> str | None:
    """The problem with a wire `outputFile`, or None when it can be uploaded."""
    if not isinstance(output.get("filePattern"), str) or not output["filePattern"]:
        return "filePattern is required"
    container = _nested(_nested(output, "destination"), "container")
    if not container:
        return "destination.container is required"
    problem = _container_problem(container)
    if problem is not None:
        return problem
    condition = _condition(output)
    if condition not in _CONDITIONS:
        return f"uploadCondition {condition!r} is none of {', '.join(_CONDITIONS)}"
    return None


async def upload(
    storage: Storage,
    outputs: Iterable[Mapping[str, Any]],
    context: UploadContext,
    *,
    succeeded: bool,
) -> Failure | None:
    """Upload what the conditions ask for; the first failure, after everything was tried."""
    wanted = [one for one in outputs if _wanted(_condition(one), succeeded)]
    if not wanted:
        return None
    log = _Log()
    for one in wanted:
        await _upload_one(storage, one, context, log)
    await asyncio.to_thread(log.save, context.task_dir)
    return log.failure


def _container_problem(container: Mapping[str, Any]) -> str | None:
    if container.get("identityReference"):
        problem = identity_problem(container["identityReference"])
        if problem is not None:
            return problem
    if not is_http_url(container.get("containerUrl")):
        return "destination.container.containerUrl must be an http or https URL"
    headers: list[Any] = container.get("uploadHeaders") or []
    if not isinstance(headers, list) or not all(_is_header(one) for one in headers):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a client
        return "uploadHeaders must be a list of objects with a name and a value"
    return None


def _is_header(header: Any) -> bool:
    return isinstance(header, dict) and {"name", "value"} <= cast("dict[str, Any]", header).keys()


def _condition(output: Mapping[str, Any]) -> str:
    options = _nested(output, "uploadOptions")
    return str(options.get("uploadCondition") or _DEFAULT_CONDITION).lower()


def _nested(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under `name`, empty when it is missing or no object."""
    value = parent.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _wanted(condition: str, succeeded: bool) -> bool:
    return condition in (_DEFAULT_CONDITION, "tasksuccess" if succeeded else "taskfailure")


class _Log:
    """What fileuploadout.txt and fileuploaderr.txt will say, and the first failure."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._err: list[str] = []
        self.failure: Failure | None = None

    def note(self, text: str) -> None:
        self._out.append(f"{datetime.now(UTC).isoformat()} {text}\n")

    def fail(self, failure: Failure) -> None:
        details = ", ".join(f"{name}={value}" for name, value in failure.details)
        self._err.append(
            f"{datetime.now(UTC).isoformat()} {failure.code}: {failure.message} ({details})\n"
        )
        self.failure = self.failure or failure

    def save(self, task_dir: Path) -> None:
        for name, lines in (("fileuploadout.txt", self._out), ("fileuploaderr.txt", self._err)):
            with suppress(OSError):  # a full disk: the outcome says what failed
                (task_dir / name).unlink(missing_ok=True)  # the task may have left a pipe there
                text = "".join(lines)
                (task_dir / name).write_text(text, encoding="utf-8", errors="replace")


async def _upload_one(
    storage: Storage, output: Mapping[str, Any], context: UploadContext, log: _Log
) -> None:
    problem = validate_output_file(output)
    if problem is not None:
        log.fail(_failure("other", "", str(output.get("filePattern")), problem))
        return
    container: Mapping[str, Any] = output["destination"]["container"]
    pattern = patterns.expand(output["filePattern"], context.environment)
    try:
        storage = storage.on_behalf(container.get("identityReference"), container["containerUrl"])
        found = await asyncio.to_thread(
            patterns.find, pattern, context.working_dir, context.task_dir
        )
    except StorageError as err:
        log.fail(_failure(err.kind, container["containerUrl"], pattern, err.detail))
        return
    except patterns.PatternError as err:
        log.fail(_failure("other", container["containerUrl"], pattern, str(err)))
        return
    if not found:  # the service is silent on this; nothing to upload is no failure here
        log.note(f"no file matches {pattern}")
    headers = {str(h["name"]): str(h["value"]) for h in container.get("uploadHeaders") or ()}
    path = str(container.get("path") or "")
    jobs = [
        _upload_file(storage, container["containerUrl"], match, name, headers, log)
        for match, name in _names(found, path, patterns.has_wildcard(pattern))
    ]
    await asyncio.gather(*jobs)


def _names(found: list[patterns.Match], path: str, wild: bool) -> list[tuple[patterns.Match, str]]:
    """Blob names: `path` is the name itself, or with a wildcard what is put before each."""
    if not wild:
        return [(match, path or match.name) for match in found]
    prefix = path.rstrip("/")
    return [(match, f"{prefix}/{match.name}" if prefix else match.name) for match in found]


async def _upload_file(
    storage: Storage,
    container_url: str,
    match: patterns.Match,
    blob: str,
    headers: Mapping[str, str],
    log: _Log,
) -> None:
    try:
        size = (await storage.upload(blob_url(container_url, blob), match.path, headers)).size
    except StorageError as err:
        log.fail(_failure(err.kind, container_url, str(match.path), err.detail))
    except OSError as err:
        log.fail(_failure("other", container_url, str(match.path), err.strerror or str(err)))
    else:
        log.note(f"uploaded {match.path} as {blob} to {redact(container_url)}, {size} bytes")


def _failure(kind: str, container_url: str, path: str, detail: str) -> Failure:
    category, code, message = _CODES.get(kind, (SERVER_ERROR, "FileUploadMiscError", _MISC))
    details = (
        ("ContainerUrl", redact(container_url)),
        ("FilePath", path),
        ("Message", detail),
    )
    return Failure(category, code, message, details)
