"""Files of tasks and nodes: a folder at a time, the end of a text, and downloads."""

from __future__ import annotations

from typing import Literal
from urllib.parse import unquote

from batch_emulator.domain.model import Json
from batch_emulator.page.api_client import ApiAnswer, ApiError, path_of
from batch_emulator.page.layout import PageRequest, PageView, section, size_text, table
from batch_emulator.page.markup import Markup, el, join, moment, url

Kind = Literal["task", "node"]
_TAIL_BYTES = 64 * 1024
_MOST_FILES = 500
_TEXT_CONTROLS = frozenset({7, 8, 9, 10, 12, 13, 27})


def root_of(kind: str, first: str, second: str) -> tuple[str, ...]:
    """Return the path of the API to the files of a task (job, task) or a node (pool, node)."""
    if kind == "task":
        return ("jobs", first, "tasks", second, "files")
    return ("pools", first, "nodes", second, "files")


async def file_list(ask: PageRequest, kind: Kind, first: str, second: str) -> Markup:
    """Return the section with the files of a task or a node: one folder of them."""
    folder = ask.query.get("folder", "").strip("/")
    try:
        answer = await ask.client.read(
            *root_of(kind, first, second), recursive="true" if folder else "false",
            maxresults=str(_MOST_FILES),
        )  # fmt: skip
    except ApiError as err:
        return section("Files", el("p", err.text, class_="empty"))
    rows = [
        _row(kind, (first, second), entry, name, folder)
        for entry in answer["value"]
        if (name := _name_of(entry)) and _is_directly_in(name, folder)
    ]
    above = folder.rpartition("/")[0]
    up = el("a", "Up", href=_folder_url(kind, first, second, above)) if folder else None
    columns = ("Name", "Size#", "Changed", "Actions")
    more = "odata.nextLink" in answer
    return section(
        f"Files of {folder}" if folder else "Files",
        el("p", up) if up else None,
        table("Files", columns, rows, empty="no files"),
        el("p", "There are more files than are shown.", class_="note") if more else None,
    )


def _name_of(entry: Json) -> str:
    """Return the name as bytes in text: the address of the entry has them, its name may not."""
    return unquote(str(entry["url"]).partition("/files/")[2], errors="surrogateescape")


def _is_directly_in(name: str, folder: str) -> bool:
    inside = name.removeprefix(f"{folder}/") if folder else name
    return (not folder or inside != name) and "/" not in inside


def _folder_url(kind: Kind, first: str, second: str, folder: str) -> str:
    steps = ("jobs", first, "tasks", second) if kind == "task" else ("nodes", first, second)
    return url(*steps, folder=folder)


def _row(
    kind: Kind, place: tuple[str, str], entry: Json, name: str, folder: str
) -> tuple[Markup | str, ...]:
    shown = name.removeprefix(f"{folder}/") if folder else name
    text = shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if entry["isDirectory"]:
        return (el("a", f"{text}/", href=_folder_url(kind, *place, name)), "", "", "")
    properties = entry["properties"]
    view = url("files", kind, *place, path=name)
    download = url("download", kind, *place, path=name)
    return (
        el("a", text, href=view),
        size_text(int(properties["contentLength"])),
        moment(properties["lastModified"]),
        el("a", "Download", href=download, class_="button", aria_label=f"Download {text}"),
    )


async def tail(ask: PageRequest, path: str) -> tuple[str | None, int]:
    """Return the end of a file as text without secrets, None if it is binary, and its size.

    Raises ApiError.
    """
    known = await ask.client.ask("HEAD", path)
    size = int(known.headers.get("content-length", "0"))
    if not size:
        return "", 0
    wanted = {"ocp-range": f"bytes={max(0, size - _TAIL_BYTES)}-{size - 1}"}
    answer = await ask.client.ask("GET", path, headers=wanted)
    return _text_of(ask, answer), size


def _text_of(ask: PageRequest, answer: ApiAnswer) -> str | None:
    sample = answer.content[:4096]
    if any(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample):
        return None
    return ask.masks.text(answer.content.decode("utf-8", "replace"))


def output(text: str | None, size: int, label: str) -> Markup:
    """Return the end of a text file, or what is said instead."""
    if text is None:
        return el("p", f"binary, {size_text(size)}", class_="empty")
    if not size:
        return el("p", "empty", class_="empty")
    cut = f"the last {size_text(_TAIL_BYTES)} of {size_text(size)}" if size > _TAIL_BYTES else None
    shown = el(
        "pre", el("code", text), class_="output", tabindex="0", role="region", aria_label=label
    )
    return join([el("p", cut, class_="note") if cut else None, shown])


async def file(ask: PageRequest) -> PageView:
    """Return the end of one file."""
    kind, first, second = ask.steps
    name = ask.query.get("path", "")
    text, size = await tail(ask, path_of(*root_of(kind, first, second), name))
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    download = el(
        "a", "Download", href=url("download", kind, first, second, path=name), class_="button"
    )
    above = (
        (f"Task {first}/{second}", url("jobs", first, "tasks", second))
        if kind == "task"
        else (f"Node {second}", url("nodes", first, second))
    )
    body = join([el("p", download, class_="actions"), output(text, size, shown)])
    return PageView(shown, body, (above,), is_moving=True)
