"""Unpacking zip files that nobody has looked at: nothing outside, no links, no end of the disk."""

from __future__ import annotations

import stat
import threading
import zipfile
import zlib
from pathlib import Path, PurePosixPath

MAX_FILES = 200_000  # [S]
MAX_BYTES = 64 * 1024**3  # [S], unpacked
_CHUNK_BYTES = 1024 * 1024
_MODE = 0o644
_UNIX = 3  # `create_system` of archives that carry modes


class BrokenArchiveError(Exception):
    """The archive cannot be unpacked; the message says why."""


def unpack(
    archive: Path, target: Path, stop: threading.Event, *, max_bytes: int = MAX_BYTES
) -> None:
    """Unpack into a folder that exists. Raises BrokenArchiveError and OSError.

    Gives up when `stop` is set. What the headers say of sizes is not believed.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > MAX_FILES:
                raise BrokenArchiveError(f"it holds more than {MAX_FILES} files")
            left = max_bytes
            for member in members:
                left -= _unpack_one(opened, member, target, stop, left)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as err:
        raise BrokenArchiveError(f"it is no zip file: {err}") from err
    except (NotImplementedError, RuntimeError) as err:  # encrypted, or packed in an unknown way
        raise BrokenArchiveError(str(err)) from err


def _unpack_one(
    opened: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    target: Path,
    stop: threading.Event,
    left: int,
) -> int:
    mode = member.external_attr >> 16 if member.create_system == _UNIX else 0
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BrokenArchiveError(f"'{member.filename}' is a link or a device")
    path = target.joinpath(*_parts(member.filename))
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with opened.open(member) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > left:
                raise BrokenArchiveError("it holds more bytes than are allowed")
            if stop.is_set():
                raise BrokenArchiveError("it was given up")
            file.write(chunk)
    path.chmod(stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR if mode else _MODE)
    return size


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or ":" in path.parts[0]:
        raise BrokenArchiveError(f"'{name}' leads out of the folder")
    return path.parts
