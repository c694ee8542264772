"""Files and directories of a share: which names are valid and equal, and how a path is followed
without links.

Source: "Naming and referencing shares, directories, files, and metadata" of the Files REST
API.

Every step opens the next folder relative to the last one and refuses symbolic links, so that no
link that a task creates leads a request out of the share. REST does not show links, pipes and
sockets; over SMB they would be ordinary files. [S]
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from batch_emulator.files_share.faults import FilesFault

MAX_COMPONENT = 255  # characters; a Linux folder holds 255 bytes, longer names are refused [S]
MAX_DEPTH = 250
MAX_PATH = 2048

_SHARE = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")
_SHARE_LENGTHS = range(3, 64)
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff"\\/:|<>*?]')
_DEVICES = re.compile(r"(?:LPT[1-9]|COM[1-9]|PRN|AUX|NUL|CON|CLOCK\$)", re.IGNORECASE)
_METADATA = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # a C# identifier, in ASCII


class BadNameError(FilesFault):
    """A name that the service refuses."""

    def __init__(self, reason: str) -> None:
        super().__init__("InvalidResourceName", {"Reason": reason})
        self.args = (reason,)


def check_share(name: str) -> str:
    """Return the name of a share. Raises BadNameError if it is invalid."""
    if len(name) not in _SHARE_LENGTHS or not _SHARE.fullmatch(name):
        raise BadNameError(f"'{name[:64]}' is not a name of a share")
    return name


def parse_path(raw: str, *, allow_trailing_dot: bool = False) -> tuple[str, ...]:
    """Return the components of the path of a URL, () for the root. Raises BadNameError.

    A percent-encoded slash also separates components. Dots at the end of a component are removed
    unless `allow_trailing_dot` is set (header x-ms-allow-trailing-dot).
    """
    try:
        text = unquote(raw, errors="strict")
    except UnicodeDecodeError as err:
        raise BadNameError("the path is not UTF-8") from err
    if len(text) > MAX_PATH:
        raise BadNameError(f"the path has more than {MAX_PATH} characters")
    text = text.strip("/")
    parts = (
        tuple(_check_component(part, allow_trailing_dot) for part in text.split("/"))
        if text
        else ()
    )
    if len(parts) > MAX_DEPTH:
        raise BadNameError(f"the path is deeper than {MAX_DEPTH}")
    return parts


def _check_component(text: str, allow_trailing_dot: bool) -> str:
    kept = text if allow_trailing_dot or text in (".", "..") else text.rstrip(".")
    if not kept or kept in (".", "..") or _FORBIDDEN.search(kept) or _DEVICES.fullmatch(kept):
        raise BadNameError(f"'{text[:64]}' is not a name of a file or directory")
    if len(kept) > MAX_COMPONENT or len(kept.encode("utf-8", "surrogatepass")) > MAX_COMPONENT:
        raise BadNameError(f"a name has more than {MAX_COMPONENT} bytes")
    return kept


def is_metadata_name(name: str) -> bool:
    """Return True if the name is valid for metadata."""
    return bool(_METADATA.fullmatch(name))


def folded(name: str) -> str:
    """Return the compared form of a name: SMB ignores case."""
    if name.isascii():
        return name.upper()
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in name)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not block


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a directory. The next page begins after `last`, which is "" on the last page."""

    entries: list[tuple[str, os.stat_result]]
    last: str


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """The place of a file or directory, which may be missing: its open parent and its name.

    `path` and `name` are spelled as on disk. `status` is None when nothing is there.
    """

    parent_fd: int
    parent_id: int
    name: str
    path: str
    status: os.stat_result | None

    @property
    def is_directory(self) -> bool:
        """Return True if it is a directory."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """Return True if it is a file."""
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    @property
    def is_root(self) -> bool:
        """Return True if it is the root of the share."""
        return not self.path

    def found(self) -> os.stat_result:
        """Return the status of the entry. Raises Fault."""
        if self.status is None:
            raise FilesFault("ResourceNotFound")
        return self.status

    def file(self) -> os.stat_result:
        """Return the status of the file. Raises Fault."""
        if not self.is_file:
            raise FilesFault("ResourceNotFound")
        return self.found()

    def directory(self) -> os.stat_result:
        """Return the status of the directory. Raises Fault."""
        if not self.is_directory:
            raise FilesFault("ResourceNotFound")
        return self.found()

    def look(self) -> TreeEntry:
        """Return the same entry with its current status."""
        status = _status(self.parent_fd, self.name)
        return TreeEntry(self.parent_fd, self.parent_id, self.name, self.path, status)

    @contextmanager
    def opened(self, flags: int, mode: int = 0o666) -> Generator[int]:
        """Yield a descriptor of the regular file. Raises Fault or OSError."""
        descriptor = self.open(flags, mode)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Return a descriptor as `opened`; the caller closes it."""
        try:
            descriptor = os.open(self.name, flags | _FILE, mode, dir_fd=self.parent_fd)
        except FileNotFoundError as err:
            raise FilesFault("ResourceNotFound") from err
        except FileExistsError as err:
            raise FilesFault("ResourceAlreadyExists") from err
        found = os.fstat(descriptor)
        # a task may have linked a file that it cannot open itself
        linked = found.st_nlink > 1 and found.st_uid != os.fstat(self.parent_fd).st_uid
        if linked or not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise FilesFault("ResourceNotFound")
        return descriptor

    def page(self, prefix: str, after: str, count: int) -> Page:
        """Return the next files and directories of the directory, by name.

        Only the entries of the page are kept in memory and have their status read.
        """
        begins = folded(prefix)
        descriptor = os.open(self.name, _FOLDER, dir_fd=self.parent_fd)
        try:
            with os.scandir(descriptor) as found:
                fitting = (
                    entry.name
                    for entry in found
                    if entry.name > after
                    and folded(entry.name).startswith(begins)
                    and _is_visible(entry)
                )
                chosen = heapq.nsmallest(count + 1, fitting)
            known = [(name, _status(descriptor, name)) for name in chosen[:count]]
        finally:
            os.close(descriptor)
        entries = [(name, status) for name, status in known if status is not None]
        return Page(entries, chosen[count - 1] if len(chosen) > count else "")


@contextmanager
def open_entry(root: Path, parts: tuple[str, ...]) -> Generator[TreeEntry]:
    """Yield the entry of a path below a share's folder. Raises Fault if its parent is missing."""
    descriptor = os.open(root, _FOLDER)
    try:
        real: list[str] = []
        for part in parts[:-1]:
            name, status = _find(descriptor, part)
            if status is None or not stat.S_ISDIR(status.st_mode):
                raise FilesFault("ParentNotFound")
            descriptor = _step(descriptor, name)
            real.append(name)
        parent_id = os.fstat(descriptor).st_ino if parts else 0
        name, status = _find(descriptor, parts[-1]) if parts else (".", os.fstat(descriptor))
        path = "/".join([*real, name]) if parts else ""
        yield TreeEntry(descriptor, parent_id, name, path, status)
    finally:
        os.close(descriptor)


def _step(descriptor: int, name: str) -> int:
    try:
        below = os.open(name, _FOLDER, dir_fd=descriptor)
    except (FileNotFoundError, NotADirectoryError) as err:  # replaced meanwhile
        raise FilesFault("ParentNotFound") from err
    # replaces the caller's descriptor, so that its `finally` closes the right one
    os.dup2(below, descriptor, inheritable=False)
    os.close(below)
    return descriptor


def _find(descriptor: int, name: str) -> tuple[str, os.stat_result | None]:
    """Return the name on disk and its status: the exact name, else one in another case (SMB)."""
    status = _status(descriptor, name)
    if status is None:
        wanted = folded(name)
        for other in os.listdir(descriptor):
            if folded(other) == wanted:
                return other, _status(descriptor, other)
    return name, status


def _status(descriptor: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as err:  # a name that this file system cannot store
        raise FilesFault("InvalidResourceName") from err


def _is_visible(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
