"""Documents about stored files."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.core.units import format_size
from runner.flows.data.stores import Entry


class StoredLine(TypedDict):
    """A file, or a folder with the number of its files, of `runner data ls -o json`."""

    path: str
    size: str
    size_bytes: int
    files: int | None
    modified: str | None
    md5: str | None


def stored_line(entry: Entry) -> StoredLine:
    """Return the document of one line of a listing."""
    return {
        "path": entry.path,
        "size": format_size(entry.size_bytes),
        "size_bytes": entry.size_bytes,
        "files": entry.files,
        "modified": str(entry.modified) if entry.modified else None,
        "md5": entry.md5,
    }
