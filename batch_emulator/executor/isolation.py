"""Isolate tasks from the emulator, by a user or by an environment of their own.

As root, the emulator runs tasks as a user that owns the folders of nodes and cannot read any other
file of the emulator. Otherwise tasks run as the emulator's user, without its variables and with a
Python of their own. Elevated tasks (`elevationLevel` admin) run as the emulator's user in both
modes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO, cast

from batch_emulator.executor.blob_mounts import mounted_below
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_python import BasePython, own_python, python_for
from batch_emulator.executor.processes import kill_node_processes
from batch_emulator.folders import Owner, remove_tree

MODES = ("auto", "user", "environment")
USER_NAME = "_azbatch"  # as in AZ_BATCH_TASK_USER
_FIRST_UID = 41000
_LAST_UID = 41999
_OUTSIDE = Path("/var/lib/batch-emulator")
_LINK = "outside"  # in the data dir: a link to the folders of tasks, if they are elsewhere
_CLAIM = "data-dir"  # in a folder of tasks elsewhere: names its data dir, locked while it is used
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

    def prepare_node(self, layout: NodeLayout) -> None:
        """Create the Python of a node, and give the folders of tasks to their user. Blocks."""
        self.python.make(layout.python, self.owner)
        if self.owner is None:
            return
        above = takewhile(lambda folder: folder != self.folder, layout.root.parents)
        for folder in (layout.applications, layout.workitems, layout.root, *above):
            _make_passable(folder)
        self.owner.own(layout.fsmounts)
        for folder in (layout.startup, layout.shared, layout.volatile):
            if folder.stat().st_uid != self.owner.uid:
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

    def close_folders(self, data_dir: Path) -> None:
        """Let the user of tasks reach only its folders, and other users nothing."""
        if self.owner is None:
            data_dir.chmod(0o700)
            return
        self.folder.chmod(0o711)
        if self.folder.parent == _OUTSIDE:
            _OUTSIDE.chmod(0o711)
        for name in (*_KEPT_FOLDERS, "nodes"):
            _make_passable(self.folder / name)
        if self.folder != data_dir:
            data_dir.chmod(0o700)
            return
        for path in data_dir.iterdir():
            if path.name not in _KEPT_FOLDERS and path.name != "nodes":
                path.chmod(0o700 if path.is_dir() else 0o600)


_CLAIMS: dict[Path, TextIO] = {}  # locked until the process ends


def _claim(folder: Path, data_dir: Path) -> None:
    """Create a folder of tasks elsewhere, and record in it to which data dir it belongs.

    With the record, the folder can be removed when the data dir is gone. Who removes it locks the
    record first, and gets no lock while an emulator runs.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
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
    uid = _free_uid()
    owner = Owner(uid, uid)
    python = python_for(owner)
    if python is None:
        why = f"no Python on this machine can be run by another user ({uid})"
        raise IsolationError(f"{why}: install the package python3")
    return Isolation(_reachable(data_dir), python, owner)


def _free_uid() -> int:
    for uid in range(_FIRST_UID, _LAST_UID + 1):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    raise IsolationError(f"the user ids {_FIRST_UID} to {_LAST_UID} are taken")


def _reachable(data_dir: Path) -> Path:
    """Return the data dir if other users can reach it, else a folder that they can reach."""
    if is_open(data_dir.parent):
        return data_dir
    name = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    return _OUTSIDE / name


def is_open(folder: Path) -> bool:
    """Return True if every user can pass through the folder and its parents."""
    real = Path(os.path.realpath(folder))
    with suppress(OSError):
        return all(one.stat().st_mode & stat.S_IXOTH for one in (real, *real.parents))
    return False


def is_elevated(body: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Return True if the auto user or the user account of a task has administrator access."""
    identity = _part(body, "userIdentity")
    level = _part(identity, "autoUser").get("elevationLevel")
    name = identity.get("username")
    accounts = cast("list[Mapping[str, Any]]", pool.get("userAccounts") or [])
    for account in accounts:
        if name is not None and account.get("name") == name:
            level = account.get("elevationLevel")
    return str(level).lower() == "admin"


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
