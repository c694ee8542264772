"""Files of a task that still runs, read from its node by offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.core.exceptions import HttpResponseError

from runner.azure.faults import service_errors

if TYPE_CHECKING:
    from runner.azure.credentials import Connection

# 404 no such task or file, 409 the node or its files are gone (TaskFilesUnavailable), 416 beyond it
_GONE = frozenset({404, 409, 416})


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file below a task's directory; `path` is relative to it, with slashes."""

    path: str
    size_bytes: int


def list_task_files(
    connection: Connection, job_id: str, task_id: str, folder: str
) -> tuple[TaskFile, ...]:
    """All files below a folder of a task; none where the task has no node, or it is gone."""
    only = folder.replace("'", "''")
    with service_errors(f"listing the files of task {task_id}"):
        try:
            found = connection.batch_client().list_task_files(
                job_id, task_id, recursive=True, filter=f"startswith(name, '{only}/')"
            )
            return tuple(
                TaskFile(str(file.name).replace("\\", "/"), file.properties.content_length)
                for file in found
                if file.properties is not None and not file.is_directory
            )
        except HttpResponseError as err:
            if err.status_code in _GONE:
                return ()
            raise


def read_task_range(
    connection: Connection, job_id: str, task_id: str, path: str, begin: int, end: int
) -> bytes:
    """The bytes of a task's file from `begin` to before `end`; empty where they are gone."""
    if end <= begin:
        return b""
    with service_errors(f"reading {path} of task {task_id}"):
        try:
            pieces = connection.batch_client().download_task_file(
                job_id, task_id, path, ocp_range=f"bytes={begin}-{end - 1}"
            )
            return b"".join(pieces)
        except HttpResponseError as err:
            if err.status_code in _GONE:
                return b""
            raise
