"""Folders that tasks write into: create, check and delete them; and files that they cannot read."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe would wait for ever


def open_database(path: Path) -> sqlite3.Connection:
    """Open an SQLite file that only this user can read; threads may share the connection.

    SQLite gives its other files, such as the write-ahead log, the permissions of this one. Raises
    OSError and sqlite3.Error.
    """
    path.touch(mode=0o600)
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(FileNotFoundError):
            file.chmod(0o600)
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    return database


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that runs tasks, if it is not that of the emulator."""

    uid: int
    gid: int

    def own(self, path: Path | str, dir_fd: int | None = None) -> None:
        """Give a file or a folder to the user, or a link itself. Raises OSError."""
        os.chown(path, self.uid, self.gid, dir_fd=dir_fd, follow_symlinks=False)

    def give(self, folder: Path) -> None:
        """Give a folder and its content to the user. Files that vanish meanwhile are skipped.

        Files with several hard links are skipped, too: a task may have linked a file from outside.
        """
        with suppress(FileNotFoundError, NotADirectoryError, RecursionError):
            for _, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
                os.fchown(descriptor, self.uid, self.gid)
                for name in files:
                    with suppress(FileNotFoundError):
                        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if found.st_uid != self.uid and found.st_nlink == 1:
                            self.own(name, descriptor)


# The space below these limits is reserved for work that has begun.
_LOW_BYTES = 1 << 20
_LOW_INODES = 64


def shortage(folder: Path) -> str | None:
    """Return why nothing more should be written to the disk of a folder, or None.

    The folder need not exist yet.
    """
    real = Path(os.path.realpath(folder))
    try:
        found = os.statvfs(next(path for path in (real, *real.parents) if path.exists()))
    except OSError:
        return None  # writing to it will report the error
    privileged = os.geteuid() == 0  # may use the reserved part of the file system
    free = (found.f_bfree if privileged else found.f_bavail) * found.f_frsize
    inodes = found.f_ffree if privileged else found.f_favail
    if found.f_flag & os.ST_RDONLY:
        why = "is mounted read-only"
    elif found.f_blocks and free < _LOW_BYTES:
        why = f"is full: {free} bytes free"
    elif found.f_files and inodes < _LOW_INODES:  # some file systems do not count them
        why = f"is full: {inodes} inodes free"
    else:
        return None
    return f"the disk of {folder}, mounted at {_mount_point(real)}, {why}"


def _mount_point(real: Path) -> Path:
    return next(path for path in (real, *real.parents) if path == path.parent or path.is_mount())


def remove_tree(folder: Path) -> None:
    """Delete a folder and its content as far as possible; it may be absent."""
    with suppress(RecursionError):  # before Python 3.13 a thousand nested folders are too deep
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        # neither follows links; rmtree leaves folders without write permission (caches of Go)
        for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):
            subprocess.run([*command, "--", str(folder)], check=False, capture_output=True)


def make_real_folder(folder: Path, top: Path) -> None:
    """Create a folder and its parents below `top`. Raises OSError.

    A link on the way is replaced: a task put it there, and it would lead writes and deletions of
    the emulator out of the node.
    """
    top.mkdir(parents=True, exist_ok=True)
    current = str(top)
    for part in folder.relative_to(top).parts:
        current = f"{current}/{part}"
        try:
            mode = os.lstat(current).st_mode
            if stat.S_ISDIR(mode):
                continue
            if stat.S_ISLNK(mode):
                os.unlink(current)  # noqa: PTH108 - every task start comes here
        except FileNotFoundError:
            pass
        os.mkdir(current)  # noqa: PTH102


def open_below(path: Path, top: Path) -> int:
    """Open a regular file below `top` to read it, and return its descriptor. Raises OSError.

    No link is followed, not even one that takes the place of a folder in the meantime.
    """
    *above, name = path.relative_to(top).parts
    folder = os.open(top, _FOLDER)
    try:
        for part in above:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        descriptor = os.open(name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def is_below(path: Path, folder: Path) -> bool:
    """Return True if a path, with all links resolved, is the folder or inside it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
