"""The files of a run: a preview of text, JSON, notebooks and pictures, and downloads.

Scripts of others write these files. A browser never interprets one as a page: text is escaped,
pictures are bitmaps, and everything else is an attachment.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from runner.azure.auth.credentials import Connection
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.outputs import RunFile, find_files
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError

_PREVIEW = 256 * 1024
_PIECE = 4 << 20
# Bitmaps only: an SVG may have scripts.
_PICTURES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
    ".webp": "image/webp", ".bmp": "image/bmp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a notebook: its kind, its source, and the texts that it printed."""

    kind: str
    source: str
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a page shows of a file: one of text, cells or a picture, or nothing of it."""

    text: str | None = None
    cells: tuple[Cell, ...] = ()
    is_picture: bool = False
    is_cut: bool = False


def find_file(connection: Connection, run_id: str, name: str) -> RunFile:
    """Return a file of a run. Raise RunnerError if there is none of this name."""
    spec = find_run(connection, run_id)
    found = next((each for each in find_files(connection, spec) if each.path == name), None)
    if found is None:
        raise RunnerError(
            "R-FILE-UNKNOWN", f"{run_id} has no file {name!r}", fix=f"/runs/{quote(run_id)}"
        )
    return found


def preview(connection: Connection, file: RunFile) -> Preview:
    """Return what a page shows of a file."""
    suffix = PurePosixPath(file.path).suffix.lower()
    if suffix in _PICTURES:
        return Preview(is_picture=True)
    content = runs_container(connection).read_range(file.blob, 0, _PREVIEW) or b""
    is_cut = file.size_bytes > len(content)
    if suffix == ".ipynb":
        whole = runs_container(connection).read(file.blob) or b""
        if cells := _cells(whole):
            return Preview(cells=cells)
    if b"\0" in content:
        return Preview()
    text = content.decode("utf-8", "replace")
    if suffix == ".json" and not is_cut:
        with suppress(ValueError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return Preview(text=text, is_cut=is_cut)


def _cells(content: bytes) -> tuple[Cell, ...]:
    """Return the cells of a notebook of format 4, or nothing if it is damaged."""
    try:
        raw: Any = json.loads(content)
        cells = cast("list[dict[str, Any]]", raw["cells"])
        return tuple(
            Cell(
                str(cell["cell_type"]),
                _joined(cell["source"]),
                tuple(_joined(_output(each)) for each in cell.get("outputs", ())),
            )
            for cell in cells
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _output(raw: dict[str, Any]) -> Any:
    if "traceback" in raw:
        return "\n".join(raw["traceback"])
    return raw.get("text") or raw.get("data", {}).get("text/plain", "")


def _joined(text: Any) -> str:
    return "".join(map(str, cast("list[Any]", text))) if isinstance(text, list) else str(text)


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `file.html`."""
    run_id, name = ask.parts["run_id"], ask.text("name")

    def load(connection: Connection) -> dict[str, Any]:
        file = find_file(connection, run_id, name)
        return {"file": file, "preview": preview(connection, file)}

    found = await ask.source.read(("file", run_id, name), load, fresh_s=5.0)
    return {"title": name, "run_id": run_id, **found}


async def download(ask: Ask) -> Response:
    """Return a file of a run as an attachment, or a picture for its preview."""
    run_id, name = ask.parts["run_id"], ask.text("name")
    file = await ask.source.call(lambda connection: find_file(connection, run_id, name))

    async def pieces() -> AsyncGenerator[bytes]:
        position = 0
        while position < file.size_bytes:
            start, size = position, min(_PIECE, file.size_bytes - position)
            data = await ask.source.call(
                lambda connection, start=start, size=size: runs_container(connection).read_range(
                    file.blob, start, size
                )
            )
            if not data:
                return
            position += len(data)
            yield data

    path = PurePosixPath(file.path)
    picture = _PICTURES.get(path.suffix.lower()) if ask.text("inline") else None
    headers = {"content-length": str(file.size_bytes)}
    if picture is None:
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(path.name)}"
    return StreamingResponse(
        pieces(), media_type=picture or "application/octet-stream", headers=headers
    )


ENDPOINTS = (
    Endpoint(
        "/runs/{run_id}/download",
        "Download a file of a run.",
        bytes,
        download,
        (("name", "path of an output, or logs/NAME"), ("inline", "1 gives the type of a picture")),
    ),
)
PAGE = WebPage("/runs/{run_id}/files", "file", read, every_s=0)
