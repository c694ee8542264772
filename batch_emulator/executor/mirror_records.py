"""What a mirror remembers on disk: which files were the same on both sides, and whose folder it is.

A file of JSON lines, written behind each transfer: after a crash nothing that was brought in step
is taken for a change of the node's. The last line of a name counts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """A file that was the same on both sides: the blob's tag, the file's size and time."""

    etag: str
    size: int
    time_ns: int

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file is as it was."""
        return (self.size, self.time_ns) == (status.st_size, status.st_mtime_ns)


class Records:
    """Files by name. `place` is the inode of the folder that they lie in."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._file: TextIO | None = None
        self.place: int | None = None
        self.files: dict[str, Known] = {}
        for line in _lines(file):
            self._read(line)

    def _read(self, line: dict[str, Any]) -> None:
        if "place" in line:
            self.place = line["place"]
            return
        name = line.pop("name")
        if line:
            self.files[name] = Known(**line)
        else:
            self.files.pop(name, None)

    def begin(self, place: int) -> None:
        """The folder is a new one."""
        self.place = place
        self.save()

    def put(self, name: str, known: Known) -> None:
        """The file is the same on both sides. Raises OSError."""
        self.files[name] = known
        self._write({"name": name, **asdict(known)})

    def drop(self, name: str) -> None:
        """The file is on neither side. Raises OSError."""
        self.files.pop(name, None)
        self._write({"name": name})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("a")
            self._file.write("\n")  # a crash may have left half a line
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def save(self) -> None:
        """Write what counts and nothing else. Raises OSError."""
        self.close()
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("w") as file:
            file.write(json.dumps({"place": self.place}) + "\n")
            for name, known in self.files.items():
                file.write(json.dumps({"name": name, **asdict(known)}) + "\n")
        new.rename(self._path)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as err:
        log.warning("%s cannot be read: %s", file, err)
        return
    for one in text.splitlines():
        try:
            line = json.loads(one) if one else None
        except ValueError:  # half a line, of a crash
            continue
        if isinstance(line, dict) and ("place" in line or "name" in line):
            yield line
