"""Isolate tasks from the emulator, by a user or by an environment of their own.

As root, the emulator runs tasks as a user that owns the folders of nodes and cannot read any other
file of the emulator. Each emulator has a user of its own, so that tasks of one cannot reach those
of another. Otherwise tasks run as the emulator's user, without its variables and with a
Python of their own. Elevated tasks (`elevationLevel` admin) run as the emulator's user in both
modes.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import logging
import os
import pwd
import shutil
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from batch_emulator.domain.model import part, parts
from batch_emulator.executor.blob_mounts import mounted_below
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_python import BasePython, own_python, python_for
from batch_emulator.executor.processes import kill_node_processes
from batch_emulator.folders import (
    Owner,
    make_real_folder,
    open_below,
    opened_folder,
    remove_below,
    remove_tree,
    stat_below,
    write_below,
)

log = logging.getLogger(__name__)

MODES = ("auto", "user", "environment")
USER_NAME = "_azbatch"  # as in AZ_BATCH_TASK_USER
_FIRST_UID = 41000
_LAST_UID = 41999
_OUTSIDE = Path("/var/lib/batch-emulator")
_LINK = "outside"  # in the data dir: a link to the folders of tasks, if they are elsewhere
# In a folder of _OUTSIDE, also of an emulator that has the folders of tasks in its data dir:
_CLAIM = "data-dir"  # names its data dir, locked while it is used
_USER = "uid"  # the user id of its tasks
_KEPT_FOLDERS = ("shares", "nfs", "cifs")
_NODE_FOLDERS = ("nodes", "trash")


class IsolationError(Exception):
    """Tasks cannot run as a user of their own; the message says why."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How tasks are isolated. `folder` contains what they can reach: nodes and shares.

    `owner` is the user of tasks, None for the emulator's user; `why` says why `auto` did not choose
    another user.
    """

    folder: Path
    python: BasePython = field(default_factory=own_python)
    owner: Owner | None = None
    why: str = ""

    @property
    def mode(self) -> str:
        """`user` or `environment`."""
        return "environment" if self.owner is None else "user"

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of all tasks: a user without an entry in the system has no name."""
        return {} if self.owner is None else {"USER": USER_NAME, "LOGNAME": USER_NAME}

    def document(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        uid = None if self.owner is None else self.owner.uid
        return {"mode": self.mode, "uid": uid, "folder": str(self.folder), "why": self.why}

    def prepare_node(self, layout: NodeLayout, python: BasePython | None = None) -> None:
        """Create the Python of a node, and give the folders of tasks to their user. Blocks.

        `python` is the one of the node's image, by default the one of this machine.
        """
        python = python or self.python
        if self.owner is None:
            python.make(layout.python, None)
            return
        # Ordinary tasks write to theirs, and would decide what elevated ones execute as root.
        python.make(layout.elevated_python, None)
        python.make(layout.python, self.owner, layout.elevated_python)
        above = takewhile(lambda folder: folder != self.folder, layout.root.parents)
        for folder in (layout.applications, layout.workitems, layout.root, *above):
            _make_passable(folder)
        tasks = (one for one in layout.workitems.glob("*/*/*") if one.is_dir())
        for folder in (layout.startup, layout.shared, layout.volatile, layout.fsmounts, *tasks):
            if folder.stat().st_uid != self.owner.uid and not _is_elevated(folder):
                self.owner.give(folder)

    def settle(self, data_dir: Path) -> None:
        """Move the folders of tasks to `folder` from where an earlier mode had them. Blocks.

        Shares are kept; nodes boot again, because their disks are deleted.
        """
        link = data_dir / _LINK
        earlier = link.readlink() if link.is_symlink() else data_dir
        if self.folder == data_dir:
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            _claim(self.folder, data_dir)
        if earlier == self.folder:
            self._give_shared()
            return
        kill_node_processes(earlier / "nodes")
        for name in _KEPT_FOLDERS:
            _move(earlier / name, self.folder / name)
        for name in _NODE_FOLDERS:
            if not mounted_below(earlier / name):
                remove_tree(earlier / name)
        link.unlink(missing_ok=True)
        if self.folder != data_dir:
            link.symlink_to(self.folder)
        self._give_shared()

    def _give_shared(self) -> None:
        """Give exports and the cache to the user of tasks, if they belong to another one."""
        if self.owner is None or self.folder.stat().st_gid == self.owner.gid:
            return
        for name in ("nfs", "cifs"):
            if (self.folder / name).is_dir():
                for folder in (self.folder / name).iterdir():
                    self.owner.give(folder)
        if (self.folder / "cache").is_dir():
            self.owner.give(self.folder / "cache")

    def close_folders(self, data_dir: Path) -> None:
        """Let the user of tasks reach only its folders, and other users nothing."""
        if self.owner is None:
            data_dir.chmod(0o700)
            return
        # no other user of this machine passes through: what tasks write may be secret
        os.chown(self.folder, -1, self.owner.gid)
        self.folder.chmod(0o710)
        for name in (*_KEPT_FOLDERS, "nodes"):
            _make_passable(self.folder / name)
        if self.folder != data_dir:
            data_dir.chmod(0o700)
            return
        for path in data_dir.iterdir():
            if path.name not in _KEPT_FOLDERS and path.name != "nodes":
                path.chmod(0o700 if path.is_dir() else 0o600)


_CLAIMS: dict[Path, TextIO] = {}  # locked until the process ends


def _record_of(data_dir: Path) -> Path:
    """Return the folder in _OUTSIDE that belongs to a data dir."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    return _OUTSIDE / name


def _claim(folder: Path, data_dir: Path) -> None:
    """Create a folder in _OUTSIDE, and record in it to which data dir it belongs.

    With the record, the folder can be removed when the data dir is gone. Who removes it locks the
    record first, and gets no lock while an emulator runs.
    """
    while True:
        if make_real_folder(folder, folder.parent):
            folder.chmod(0o700)
        with suppress(FileNotFoundError):  # removed in this moment
            claim = (folder / _CLAIM).open("a+", encoding="utf-8", errors="surrogateescape")
            fcntl.flock(claim, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(claim.fileno()), (folder / _CLAIM).stat()):
                break
    (folder / _CLAIM).chmod(0o600)
    claim.truncate(0)
    claim.write(os.path.realpath(data_dir))
    claim.flush()
    if before := _CLAIMS.pop(folder, None):
        before.close()
    _CLAIMS[folder] = claim


@contextmanager
def _registry() -> Generator[None]:
    """Hold the lock of _OUTSIDE, whose folders record the user of each emulator.

    Raises IsolationError if it cannot be used, or belongs to another user.
    """
    try:
        _OUTSIDE.mkdir(mode=0o711, parents=True, exist_ok=True)
        with opened_folder(_OUTSIDE, _OUTSIDE) as descriptor:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, f"{_OUTSIDE} belongs to another user")
            os.fchmod(descriptor, 0o711)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
    except OSError as err:
        why = f"the users of emulators cannot be recorded in {_OUTSIDE}: {err.strerror}"
        raise IsolationError(why) from err


def _own_uid(data_dir: Path) -> int:
    """Return the user id of the emulator with a data dir, the same at each start.

    Raises IsolationError.
    """
    record = _record_of(data_dir)
    with _registry():
        _claim(record, data_dir)
        taken = {folder: _recorded_uid(folder) for folder in _records() if folder != record}
        uid = _recorded_uid(record)
        if uid is None or uid in taken.values() or not _has_no_name(uid):
            uid = _free_uid({one for one in taken.values() if one is not None})
            write_below(record / _USER, _OUTSIDE, f"{uid}\n".encode(), 0o600)
    return uid


def _records() -> list[Path]:
    return [one for one in sorted(_OUTSIDE.iterdir()) if not one.is_symlink() and one.is_dir()]


def _recorded_uid(record: Path) -> int | None:
    try:
        with os.fdopen(open_below(record / _USER, _OUTSIDE)) as file:
            uid = int(file.read(16))
    except (OSError, ValueError):
        return None
    return uid if _FIRST_UID <= uid <= _LAST_UID else None


def _free_uid(taken: set[int]) -> int:
    """Return an id that no user, group, emulator or process has. Raises IsolationError."""
    used = taken | _uids_of_processes()
    for uid in range(_FIRST_UID, _LAST_UID + 1):
        if uid not in used and _has_no_name(uid):
            return uid
    raise IsolationError(f"the user ids {_FIRST_UID} to {_LAST_UID} are taken")


def _has_no_name(uid: int) -> bool:
    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(uid)
        except KeyError:
            continue
        return False
    return True


def _uids_of_processes() -> set[int]:
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            found.add(process.stat().st_uid)
    return found


def remove_abandoned() -> None:
    """Remove the folders of emulators whose home is gone, and end what runs on their nodes. Blocks.

    Only folders with a record of their data dir are removed. A running emulator holds the lock of
    its record; who starts one meanwhile waits for the lock, and then finds no folder.
    """
    with suppress(OSError):
        for folder in _records():
            with suppress(OSError):
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    if stat_below(folder, _OUTSIDE).st_uid != os.geteuid():
        return
    with os.fdopen(open_below(folder / _CLAIM, _OUTSIDE), "rb") as claim:
        data_dir = Path(os.fsdecode(claim.read()))
        if not data_dir.is_absolute() or not _is_gone(data_dir) or mounted_below(folder):
            return
        if any(_holds_files(folder / name) for name in _KEPT_FOLDERS):
            return  # its home may be on a disk that returns: only nodes and packages are remade
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_gone(data_dir):
            return
        log.warning("removing %s: its data dir %s is gone", folder, data_dir)
        if (folder / "nodes").is_dir():
            kill_node_processes(folder / "nodes")
        with opened_folder(folder, _OUTSIDE) as opened:
            names = os.listdir(opened)  # noqa: PTH208 - a descriptor has no Path
            # the record is deleted last: if this process is killed, the rest is found again
            for name in sorted(names, key=lambda one: (one == _CLAIM, one == _USER)):
                remove_below(folder / name, _OUTSIDE)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)
        remove_below(folder, _OUTSIDE)


def _holds_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


def _is_gone(data_dir: Path) -> bool:
    """Return True if the home of a data dir is gone. In an empty folder, no disk may be mounted."""
    home = data_dir.parents[1] if data_dir.parts[-2:] == ("local", "batch") else data_dir
    there = next(one for one in (home, *home.parents) if one.is_dir())
    return there != home and any(there.iterdir())


def _move(source: Path, target: Path) -> None:
    """Move a folder, unless the target exists. After a crash, the next call continues.

    Between two file systems, the copy is complete before the source is renamed.
    """
    copy, moved = (path.with_name(f".{path.name}.moving") for path in (target, source))
    if source.is_dir() and not target.exists():
        try:
            source.rename(target)
        except OSError as err:
            if err.errno != errno.EXDEV:
                raise
            remove_tree(copy)
            remove_tree(moved)
            shutil.copytree(source, copy, symlinks=True)
            source.rename(moved)
    if moved.is_dir() and copy.is_dir() and not target.exists():
        copy.rename(target)
    remove_tree(moved)


def _is_elevated(folder: Path) -> bool:
    """Return True if an elevated task began in this folder, which stays closed to other tasks."""
    with suppress(OSError):
        return all(one.lstat().st_uid == 0 for one in (folder, folder / "stdout.txt"))
    return False


def _make_passable(folder: Path) -> None:
    """Let every user pass through a folder that was created with a umask of 027 or 077."""
    with suppress(FileNotFoundError):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)


def choose_isolation(wanted: str, data_dir: Path) -> Isolation:
    """Return the isolation of an emulator: `auto` is `user` where that works.

    Raises IsolationError if `user` is wanted and impossible.
    """
    if wanted == "environment":
        return Isolation(data_dir)
    try:
        return _as_user(data_dir)
    except IsolationError as err:
        if wanted == "user":
            raise
        return Isolation(data_dir, why=str(err))


def _as_user(data_dir: Path) -> Isolation:
    if os.geteuid() != 0:
        raise IsolationError("only root can run tasks as another user")
    uid = _own_uid(data_dir)
    owner = Owner(uid, uid)
    python = python_for(owner)
    if python is None:
        why = f"no Python on this machine can be run by another user ({uid})"
        raise IsolationError(f"{why}: install the package python3")
    return Isolation(_reachable(data_dir), python, owner)


def _reachable(data_dir: Path) -> Path:
    """Return the data dir if other users can reach it, else a folder that they can reach."""
    return data_dir if is_open(data_dir.parent) else _record_of(data_dir)


def is_open(folder: Path) -> bool:
    """Return True if every user can pass through the folder and its parents."""
    real = Path(os.path.realpath(folder))
    with suppress(OSError):
        return all(one.stat().st_mode & stat.S_IXOTH for one in (real, *real.parents))
    return False


def is_elevated(body: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Return True if the auto user or the user account of a task has administrator access."""
    identity = part(body, "userIdentity")
    level = part(identity, "autoUser").get("elevationLevel")
    name = identity.get("username")
    for account in parts(pool, "userAccounts"):
        if name is not None and account.get("name") == name:
            level = account.get("elevationLevel")
    return str(level).lower() == "admin"
