"""Work below folders that tasks write into, without following their links; and private files.

A task can replace any file or folder below its own folder at any time, also by a link, and the
emulator may run as root. So the functions here that take `top` walk from `top` to a path folder by
folder, relative to the open parent, and follow no link. `top` itself must be out of the reach of
tasks, such as the folder of a node. What root creates belongs to the owner of the folder it is in.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for ever
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = getattr(os, "O_PATH", 0)  # Linux only
_TRIES = 5  # a task may create a name again and again
_DEEPEST = 20_000  # nested folders that are deleted


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
                        self._give_file(name, descriptor)

    def _give_file(self, name: str, folder: int) -> None:
        if not _PATH:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if found.st_uid != self.uid and found.st_nlink == 1:
                self.own(name, folder)
            return
        file = os.open(name, _PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:  # the name may be that of another file by now
            found = os.fstat(file)
            if found.st_uid != self.uid and found.st_nlink == 1:
                os.chown(f"/proc/self/fd/{file}", self.uid, self.gid)
        finally:
            os.close(file)


# The space below these limits is reserved for work that has begun.
_LOW_BYTES = 1 << 20
_LOW_INODES = 64


def shortage(folder: Path) -> str | None:
    """Return why nothing more should be written to the disk of a folder, or None.

    The folder need not exist yet.
    """
    try:
        found = _statistics(folder)
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
    mount_point = _mount_point(Path(os.path.realpath(folder)))
    return f"the disk of {folder}, mounted at {mount_point}, {why}"


def _statistics(folder: Path) -> os.statvfs_result:
    try:
        return os.statvfs(folder)
    except FileNotFoundError:
        real = Path(os.path.realpath(folder))
        return os.statvfs(next(path for path in real.parents if path.exists()))


def _mount_point(real: Path) -> Path:
    return next(path for path in (real, *real.parents) if path == path.parent or path.is_mount())


def remove_tree(folder: Path) -> None:
    """Delete a folder and its content as far as possible; it may be absent.

    Only for a folder whose parent tasks cannot replace; otherwise `remove_below`.
    """
    with suppress(OSError):
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _remove_at(folder.name, parent)
        finally:
            os.close(parent)


def remove_below(folder: Path, top: Path) -> None:
    """Delete a folder below `top` and its content as far as possible; it may be absent."""
    with suppress(OSError), opened_folder(folder.parent, top) as parent:
        _remove_at(folder.name, parent)


def _remove_at(name: str, parent: int) -> None:
    with suppress(RecursionError):  # before Python 3.13 a thousand nested folders are too deep
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            _open_up(name, parent)
            folder = os.open(name, _FOLDER, dir_fd=parent)
            try:
                _empty(folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=parent)


def _empty(top: int) -> None:
    """Delete what rmtree left: folders of any depth, or without permissions (caches of Go)."""
    for _ in range(_DEEPEST):  # a process may create more meanwhile
        for name in os.listdir(top):
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            _open_up(name, top)
            below = os.open(name, _FOLDER, dir_fd=top)
            try:
                for each in os.listdir(below):  # noqa: PTH208 - a descriptor has no Path
                    if _is_folder(each, below):  # flat folders need neither recursion nor paths
                        _open_up(each, below)  # to be moved
                        os.rename(each, uuid4().hex, src_dir_fd=below, dst_dir_fd=top)
                    else:
                        os.unlink(each, dir_fd=below)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)
        if not os.listdir(top):
            return


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _open_up(name: str, parent: int) -> None:
    """Allow this user everything in a folder of its own; root needs no permission."""
    if os.geteuid() != 0:  # chmod follows links, which leads root's rights out, but no others
        with suppress(OSError):
            os.chmod(name, 0o700, dir_fd=parent)


def make_real_folder(folder: Path, top: Path, owner: Owner | None = None) -> bool:
    """Create a folder and its parents below `top`, for `owner`. Return False if it existed.

    A link on the way is replaced: a task put it there. Raises OSError.
    """
    top.mkdir(parents=True, exist_ok=True)
    descriptor, is_new = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), False
    try:
        for part in _parts(folder, top):
            descriptor, is_new = _make_step(descriptor, part)
        if owner is not None and os.fstat(descriptor).st_uid != owner.uid:
            os.fchown(descriptor, owner.uid, owner.gid)
    finally:
        os.close(descriptor)
    return is_new


def _make_step(folder: int, name: str) -> tuple[int, bool]:
    """Return a folder below another, which is closed, and True if it was created."""
    try:
        return _step(folder, name, make=False), False
    except FileNotFoundError:
        pass
    except OSError:
        if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
        os.unlink(name, dir_fd=folder)
    return _step(folder, name, make=True), True


def _step(folder: int, name: str, *, make: bool) -> int:
    """Open a folder below an open one, and close that. Raises OSError, and closes nothing then."""
    try:
        below = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        below = os.open(name, _FOLDER, dir_fd=folder)
        try:
            _inherit(below, folder)
        except OSError:
            os.close(below)
            raise
    os.close(folder)
    return below


def _inherit(descriptor: int, folder: int) -> None:
    """Give what root created in a folder of a task's user to that user."""
    if os.geteuid() == 0:
        above = os.fstat(folder)
        if above.st_uid != 0:
            os.fchown(descriptor, above.st_uid, above.st_gid)


def _parts(path: Path, top: Path) -> list[str]:
    """Return the names from `top` to a path. Raises OSError if the path leads out."""
    text, prefix = os.fspath(path), f"{os.fspath(top)}/"
    try:
        if text.startswith(prefix):  # relative_to takes ten times as long
            parts = text[len(prefix) :].split("/")
        else:
            parts = list(path.relative_to(top).parts)
    except ValueError as err:
        raise PermissionError(errno.EACCES, f"it is not below {top}", text) from err
    if ".." in parts:
        raise PermissionError(errno.EACCES, f"it is not below {top}", text)
    return parts


def open_folder(path: Path, top: Path, *, make: bool = False) -> int:
    """Return a descriptor of a folder below `top`; with `make`, create it if it is missing.

    Raises OSError, also if a link is on the way.
    """
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in _parts(path, top):
            descriptor = _step(descriptor, part, make=make)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def opened_folder(path: Path, top: Path, *, make: bool = False) -> Generator[int]:
    """Yield the descriptor that `open_folder` returns, and close it."""
    descriptor = open_folder(path, top, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(path: Path, top: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file below `top`. Raises OSError.

    A file with several hard links must belong to the owner of its folder: a task may have linked a
    file that it cannot open itself.
    """
    with opened_folder(path.parent, top) as folder:
        descriptor = os.open(path.name, flags | _FILE, dir_fd=folder)
        found, above = os.fstat(descriptor), os.fstat(folder)
    if stat.S_ISREG(found.st_mode) and (found.st_nlink == 1 or found.st_uid == above.st_uid):
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EACCES, "it is a hard link to a file of another user", path)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def create_below(
    path: Path, top: Path, mode: int = 0o644, *, flags: int = 0, make: bool = False
) -> int:
    """Return a descriptor of a new file below `top`, in place of anything but a folder.

    With `make`, missing parents are created. Raises OSError.
    """
    with opened_folder(path.parent, top, make=make) as folder:
        for left in reversed(range(_TRIES)):
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            try:
                descriptor = os.open(path.name, _NEW | flags, mode, dir_fd=folder)
            except FileExistsError:
                if not left:
                    raise
                continue
            _inherit(descriptor, folder)
            return descriptor
    raise AssertionError  # the last try returns or raises


def write_below(path: Path, top: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file below `top`, in place of anything but a folder. Raises OSError."""
    with os.fdopen(create_below(path, top, mode), "wb") as file:
        file.write(content)


def read_end_below(path: Path, top: Path, size: int) -> bytes:
    """Return the last bytes of a file below `top`; none if it cannot be read."""
    try:
        descriptor = open_below(path, top)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - size))
        return file.read(size)


def stat_below(path: Path, top: Path) -> os.stat_result:
    """Return the status of a path below `top`, of a link itself. Raises OSError."""
    if path == top:
        return top.stat()
    with opened_folder(path.parent, top) as folder:
        return os.stat(path.name, dir_fd=folder, follow_symlinks=False)


def unlink_below(path: Path, top: Path) -> None:
    """Delete a file or a link below `top`. Raises OSError."""
    with opened_folder(path.parent, top) as folder:
        os.unlink(path.name, dir_fd=folder)


def move_below(path: Path, top: Path, target: Path) -> None:
    """Move a file or folder below `top` to a path that tasks cannot reach. Raises OSError."""
    with opened_folder(path.parent, top) as folder:
        try:
            os.rename(path.name, target, src_dir_fd=folder)
        except PermissionError:  # moving a folder changes it, and a task may have forbidden that
            if not _is_folder(path.name, folder):
                raise
            _open_up(path.name, folder)
            os.rename(path.name, target, src_dir_fd=folder)


def is_below(path: Path, folder: Path) -> bool:
    """Return True if a path, with all links resolved, is the folder or inside it."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except OSError:  # a link was replaced meanwhile
        return False
