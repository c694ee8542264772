"""The shares of one storage account: folders of the data dir, and their records in SQLite.

The records contain what a file system cannot store: properties and metadata of shares, SMB
attributes. A folder changes while tasks write to it, so the record of a path is valid only as long
as the path has the same inode.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from batch_emulator.files_share.tree import BadNameError, check_share
from batch_emulator.folders import Owner, open_database, remove_tree

DEFAULT_QUOTA_GIB = 5120
_INT64 = 2**63 - 1  # the largest integer of SQLite; some file systems have larger inode numbers

_SCHEMA = """
CREATE TABLE IF NOT EXISTS shares (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    share TEXT, path TEXT, inode INTEGER NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (share, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS permissions (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS service (id INTEGER PRIMARY KEY, document TEXT NOT NULL);
"""


@dataclass(slots=True)
class Lease:
    """A lease of a share or file; `until_ns` is None for a lease without end."""

    id: str
    duration_s: int = -1
    until_ns: int | None = None
    state: str = "leased"  # leased, breaking or broken


@dataclass(slots=True)
class Share:
    """Properties of a share. Times are nanoseconds since the epoch."""

    name: str
    created_ns: int
    modified_ns: int
    quota_gib: int = DEFAULT_QUOTA_GIB
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    tier: str = "TransactionOptimized"
    policies: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    lease: Lease | None = None


@dataclass(slots=True)
class Item:
    """The record of a file or directory; None for values that were not set."""

    metadata: dict[str, str] = field(default_factory=dict[str, str])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    attributes: str | None = None
    created_ns: int | None = None
    changed_ns: int | None = None
    modified_ns: int | None = None  # of a directory: its own time changes with its content
    permission_key: str | None = None
    copy: dict[str, str] = field(default_factory=dict[str, str])
    revision: int = 0  # number of changes of properties, for the entity tag
    lease: Lease | None = None


_Record = TypeVar("_Record", Share, Item)


class ShareRecords:
    """The SQLite file, with a lock of its own. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = open_database(path)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def shares(self) -> list[Share]:
        """Return all shares by name."""
        rows = self._all("SELECT document FROM shares ORDER BY name")
        return [_record(Share, document) for (document,) in rows]

    def share(self, name: str) -> Share | None:
        """Return one share."""
        rows = self._all("SELECT document FROM shares WHERE name = ?", name)
        return _record(Share, rows[0][0]) if rows else None

    def put_share(self, share: Share) -> None:
        """Insert or replace a share."""
        self._all("REPLACE INTO shares VALUES (?, ?)", share.name, _text(share))

    def delete_share(self, name: str) -> None:
        """Delete the records of a share and its items."""
        self._all("DELETE FROM items WHERE share = ?", name)
        self._all("DELETE FROM shares WHERE name = ?", name)

    def item(self, share: str, path: str, inode: int) -> Item:
        """Return the record of a path, an empty one if the path has another inode now."""
        query = "SELECT document FROM items WHERE share = ? AND path = ? AND inode = ?"
        rows = self._all(query, share, _key(path), inode & _INT64)
        return _record(Item, rows[0][0]) if rows else Item()

    def put_item(self, share: str, path: str, inode: int, item: Item) -> None:
        """Insert or replace the record of a path."""
        self._all(
            "REPLACE INTO items VALUES (?, ?, ?, ?)", share, _key(path), inode & _INT64, _text(item)
        )

    def delete_item(self, share: str, path: str) -> None:
        """Delete the record of a path."""
        self._all("DELETE FROM items WHERE share = ? AND path = ?", share, _key(path))

    def move_items(self, share: str, old: str, new: str) -> None:
        """Move the records of a file, or of a directory and everything in it."""
        old_key, new_key = _key(old), _key(new)
        with self._lock:
            self._db.execute("BEGIN")
            try:
                for key in (new_key, old_key):
                    inside = (share, key, f"{key}/", f"{key}0")  # "0" comes right after "/"
                    where = "WHERE share = ? AND (path = ? OR (path > ? AND path < ?))"
                    if key == new_key:
                        self._db.execute(f"DELETE FROM items {where}", inside)  # noqa: S608 - a constant
                    else:
                        values = (new_key, len(key) + 1, *inside)
                        self._db.execute(
                            f"UPDATE items SET path = ? || substr(path, ?) {where}",  # noqa: S608 - a constant
                            values,
                        )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def permission(self, key: str) -> str | None:
        """Return the security descriptor of a key."""
        rows = self._all("SELECT text FROM permissions WHERE key = ?", key)
        return rows[0][0] if rows else None

    def put_permission(self, key: str, text: str) -> None:
        """Store a security descriptor."""
        self._all("REPLACE INTO permissions VALUES (?, ?)", key, text)

    def service(self) -> str | None:
        """Return the service properties as XML."""
        rows = self._all("SELECT document FROM service")
        return rows[0][0] if rows else None

    def put_service(self, document: str) -> None:
        """Store the service properties."""
        self._all("REPLACE INTO service VALUES (1, ?)", document)

    def _all(self, statement: str, *values: object) -> list[Any]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()


def _key(path: str) -> str:
    """Return text that SQLite accepts, also for names that are not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _text(record: Share | Item) -> str:
    return json.dumps(dataclasses.asdict(record), separators=(",", ":"))


def _record(kind: type[_Record], document: str) -> _Record:
    raw: dict[str, Any] = json.loads(document)
    if raw["lease"]:
        raw["lease"] = Lease(**raw["lease"])
    return kind(**raw)


GIB = 1024**3
_USAGE_FOR_S = 2.0  # the service's number is approximate, too, and a walk takes time
_TRASH = ".trash"
INCOMING = ".incoming"  # files on their way into a share
_STRIPES = 64


@dataclass(frozen=True, slots=True)
class StorageAccount:
    """Name and key (base64) of the account.

    `seed`: of its user delegation keys, or "" for that of an unchanged Azurite.
    """

    name: str
    key: str = field(repr=False)
    seed: str = field(default="", repr=False)


class MountError(Exception):
    """A share cannot be mounted; the message says why, without the key."""


class WrongAccountError(MountError):
    """The storage account does not exist."""


class WrongKeyError(MountError):
    """The key is not the account's."""


class NoSuchShareError(MountError):
    """The share does not exist."""


class Shares:
    """Create, find and delete shares. Thread-safe. Raises OSError and sqlite3.Error."""

    def __init__(
        self,
        data_dir: Path,
        account: StorageAccount,
        folder: Path | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.account = account
        self.root = (folder or data_dir) / "shares"
        self._owner = owner
        self.root.mkdir(parents=True, exist_ok=True)
        self.records = ShareRecords(data_dir / "files.sqlite")
        self.lock = threading.RLock()  # held while a folder and its record are changed
        self._writes = [threading.Lock() for _ in range(_STRIPES)]
        self._usage: dict[str, tuple[int, float]] = {}  # bytes, and until when they are valid
        for leftover in (_TRASH, INCOMING):
            remove_tree(self.root / leftover)
        (self.root / INCOMING).mkdir()
        self._add_existing_folders()
        for share in self.records.shares():
            path = self.root / share.name
            if owner is not None and path.is_dir() and path.stat().st_uid != owner.uid:
                owner.give(path)

    def close(self) -> None:
        """Close the records."""
        self.records.close()

    def folder(self, account: str, share: str, key: str) -> Path:
        """Return the folder to mount for a share. Raises MountError."""
        if account.lower() != self.account.name.lower():
            raise WrongAccountError(f"there is no storage account '{account}'")
        if not hmac.compare_digest(key.encode(), self.account.key.encode()):
            raise WrongKeyError(f"the key is not that of the storage account '{account}'")
        found = self.get(share)
        if found is None:
            raise NoSuchShareError(f"the storage account '{account}' has no share '{share}'")
        return self.path(found.name)

    def get(self, name: str) -> Share | None:
        """Return a share, or None."""
        try:
            return self.records.share(check_share(name))
        except BadNameError:
            return None

    def path(self, name: str) -> Path:
        """Return the folder of a share. If it was deleted by hand, it is created again.

        The folder of a share that another request has deleted meanwhile is not created, because the
        share would exist again after a restart; opening the folder then fails.
        """
        folder = self.root / check_share(name)
        if not folder.is_dir():
            with self.lock:
                if self.records.share(name) is not None:
                    folder.mkdir(exist_ok=True)
                    self.own(folder)
        return folder

    def create(self, share: Share) -> bool:
        """Create a share. Return False if the name is taken. Raises BadNameError."""
        check_share(share.name)
        with self.lock:
            if self.records.share(share.name) is not None:
                return False
            (self.root / share.name).mkdir(exist_ok=True)
            self.own(self.root / share.name)
            self.records.put_share(share)
            return True

    def own(self, path: Path | str, dir_fd: int | None = None) -> None:
        """Let tasks that mount a share write to a new file or folder in it."""
        if self._owner is not None:
            self._owner.own(path, dir_fd)

    def delete(self, name: str) -> None:
        """Delete a share and its files at once, where the service takes half a minute. [S]"""
        trash = self.root / _TRASH / uuid4().hex
        with self.lock:
            trash.parent.mkdir(exist_ok=True)
            folder = self.path(name)
            self.records.delete_share(name)
            self._usage.pop(name, None)
            folder.rename(trash)
        remove_tree(trash)

    def writing(self, inode: int) -> threading.Lock:
        """Return the lock to hold while a file is written or resized."""
        return self._writes[inode % _STRIPES]

    def usage(self, name: str) -> int:
        """Return the bytes of all files of a share, including holes; up to some seconds old."""
        known = self._usage.get(name)
        now = time.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        size = sum(_sizes(self.path(name)))
        done = time.monotonic()
        self._usage[name] = (size, done + max(_USAGE_FOR_S, 20 * (done - now)))
        return size

    def grow(self, name: str, added: int) -> None:
        """Add bytes that were written through REST to the usage."""
        with self.lock:
            if name in self._usage:
                size, until = self._usage[name]
                self._usage[name] = (max(0, size + added), until)

    def _add_existing_folders(self) -> None:
        """Create shares for folders that were created by hand."""
        known = {share.name for share in self.records.shares()}
        for entry in os.scandir(self.root):
            if entry.name in known or not entry.is_dir(follow_symlinks=False):
                continue
            try:
                made_ns = entry.stat().st_mtime_ns
                self.records.put_share(Share(check_share(entry.name), made_ns, made_ns))
            except BadNameError:
                continue


def _sizes(root: Path) -> Iterator[int]:
    folders: list[Path | str] = [root]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # deleted meanwhile, or its path is too long
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                try:
                    yield entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue
