"""Stored files: folders with their sizes, and downloads."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.azure.storage.stores import StoredFile
from runner.core.storage_paths import SHARE
from runner.flows.data.commands import listing, stored_place
from runner.flows.data.stores import find_files, open_store
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.data import StoredLine, stored_line

_PIECE = 4 << 20
_MOST_ROWS = 2000


async def read_files(ask: Ask) -> list[StoredLine]:
    """Return the files and folders at a path."""
    path, recursive = ask.text("path"), ask.text("recursive") == "1"

    def load(connection: Connection) -> list[StoredLine]:
        _, entries = listing(connection, path, recursive=recursive)
        return [stored_line(entry) for entry in entries]

    return await ask.source.read(("data", path, recursive), load, fresh_s=2.0)


def parents(path: str) -> list[tuple[str, str]]:
    """Return the folders above a path, each with its name: `data:a/b` is in `data:` and `a`."""
    store, colon, inside = path.rpartition(":")
    parts = PurePosixPath(inside).parts
    found = [(f"{store}{colon}", store or "data")]
    for count in range(1, len(parts) + 1):
        found.append((f"{store}{colon}{'/'.join(parts[:count])}", parts[count - 1]))
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a listing, and its path with the container."""

    line: StoredLine
    full: str

    @property
    def can_download(self) -> bool:
        """True for a file of a container."""
        return self.line["files"] is None and not self.full.startswith(f"{SHARE}:")

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return shlex.join(["runner", "data", "get", self.full])


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `data.html`."""
    path = ask.text("path")
    rows = await read_files(ask)
    share = await ask.source.call(lambda connection: connection.outputs.file_share)
    return {
        "title": f"Data {path}" if path else "Data",
        "path_of_data": path,
        "parents": parents(path),
        "rows": [Row(each, full_path(path, each)) for each in rows[:_MOST_ROWS]],
        "more": max(len(rows) - _MOST_ROWS, 0),
        "has_share": bool(share),
    }


def full_path(path: str, row: StoredLine) -> str:
    """Return the path of a line of a listing, with its container."""
    store, colon, _ = path.rpartition(":")
    return f"{store}{colon}{row['path'].rstrip('/')}"


async def download(ask: Ask) -> Response:
    """Return a stored file as an attachment."""
    path = ask.text("path")

    def find(connection: Connection) -> tuple[BlobContainer, StoredFile]:
        place = stored_place(connection, path)
        if place.store == SHARE:
            raise RunnerError(
                "R-PAGE-SHARE",
                "the page does not download files of the share",
                fix=shlex.join(["runner", "data", "get", path]),
            )
        with open_store(connection, place.store) as store:
            found = find_files(store, place)
        if not found.single:
            raise RunnerError("R-DATA-NONE", f"{path!r} is not a file", fix="/data")
        return BlobContainer(connection.blob_service(), place.store), found.files[0]

    container, file = await ask.source.call(find)

    async def pieces() -> AsyncGenerator[bytes]:
        position = 0
        while position < file.size_bytes:
            start, length = position, min(_PIECE, file.size_bytes - position)
            data = await ask.source.work(
                lambda start=start, length=length: container.read_range(file.path, start, length)
            )
            if not data:
                return
            position += len(data)
            yield data

    name = quote(PurePosixPath(file.path).name)
    headers = {
        "content-length": str(file.size_bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
    }
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


ENDPOINTS = (
    Endpoint(
        "/data",
        "List stored files, and folders with their total size.",
        list[StoredLine],
        read_files,
        (
            ("path", "PATH in container data, CONTAINER:PATH, or share:PATH"),
            ("recursive", "1 lists the files at any depth"),
        ),
        "runner data ls PATH",
    ),
    Endpoint(
        "/data/download",
        "Download a stored file.",
        bytes,
        download,
        (("path", "PATH in container data, or CONTAINER:PATH"),),
    ),
)
PAGE = WebPage("/data", "data", read, every_s=10.0, label="Data")
