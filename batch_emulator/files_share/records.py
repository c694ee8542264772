"""What the file system cannot hold: shares' properties, metadata, SMB attributes, in SQLite.

A folder changes under us while tasks write to it, so an item counts only while its path still
leads to the inode it was written for; what is stale is ignored and replaced.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_QUOTA_GIB = 5120
_INT64 = 2**63 - 1  # SQLite's integers; some file systems number their inodes higher

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
    """Who holds a share or file; `until_ns` is None for a lease without end."""

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
    """What is kept of a file or directory; None where nothing was set."""

    metadata: dict[str, str] = field(default_factory=dict[str, str])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    attributes: str | None = None
    created_ns: int | None = None
    changed_ns: int | None = None
    modified_ns: int | None = None  # of a directory, whose own time moves with what is in it
    permission_key: str | None = None
    copy: dict[str, str] = field(default_factory=dict[str, str])
    revision: int = 0  # changes of properties, for the entity tag
    lease: Lease | None = None


class ShareRecords:
    """The SQLite file, behind a lock of its own. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def shares(self) -> list[Share]:
        """All shares by name."""
        rows = self._all("SELECT document FROM shares ORDER BY name")
        return [_share(document) for (document,) in rows]

    def share(self, name: str) -> Share | None:
        """One share."""
        rows = self._all("SELECT document FROM shares WHERE name = ?", name)
        return _share(rows[0][0]) if rows else None

    def put_share(self, share: Share) -> None:
        """Insert or replace."""
        self._all("REPLACE INTO shares VALUES (?, ?)", share.name, _text(share))

    def delete_share(self, name: str) -> None:
        """Forget a share and what is in it."""
        self._all("DELETE FROM items WHERE share = ?", name)
        self._all("DELETE FROM shares WHERE name = ?", name)

    def item(self, share: str, path: str, inode: int) -> Item:
        """What is kept of a path, nothing when another inode stands there now."""
        query = "SELECT document FROM items WHERE share = ? AND path = ? AND inode = ?"
        rows = self._all(query, share, _key(path), inode & _INT64)
        return _item(rows[0][0]) if rows else Item()

    def put_item(self, share: str, path: str, inode: int, item: Item) -> None:
        """Insert or replace."""
        self._all(
            "REPLACE INTO items VALUES (?, ?, ?, ?)", share, _key(path), inode & _INT64, _text(item)
        )

    def delete_item(self, share: str, path: str) -> None:
        """Forget a path."""
        self._all("DELETE FROM items WHERE share = ? AND path = ?", share, _key(path))

    def move_items(self, share: str, old: str, new: str) -> None:
        """A file or a directory with all in it has a new path."""
        old_key, new_key = _key(old), _key(new)
        with self._lock:
            self._db.execute("BEGIN")
            try:
                for key in (new_key, old_key):
                    inside = (share, key, f"{key}/", f"{key}0")  # "0" comes right after "/"
                    where = "WHERE share = ? AND (path = ? OR (path > ? AND path < ?))"
                    if key == new_key:
                        self._db.execute(f"DELETE FROM items {where}", inside)  # noqa: S608
                    else:
                        values = (new_key, len(key) + 1, *inside)
                        self._db.execute(
                            f"UPDATE items SET path = ? || substr(path, ?) {where}",  # noqa: S608
                            values,
                        )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def permission(self, key: str) -> str | None:
        """The security descriptor behind a key."""
        rows = self._all("SELECT text FROM permissions WHERE key = ?", key)
        return rows[0][0] if rows else None

    def put_permission(self, key: str, text: str) -> None:
        """Keep a security descriptor."""
        self._all("REPLACE INTO permissions VALUES (?, ?)", key, text)

    def service(self) -> str | None:
        """The service properties, as XML."""
        rows = self._all("SELECT document FROM service")
        return rows[0][0] if rows else None

    def put_service(self, document: str) -> None:
        """Keep the service properties."""
        self._all("REPLACE INTO service VALUES (1, ?)", document)

    def _all(self, statement: str, *values: object) -> list[Any]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()


def _key(path: str) -> str:
    """Text that SQLite takes also for names that are not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _text(record: Share | Item) -> str:
    return json.dumps(dataclasses.asdict(record), separators=(",", ":"))


def _share(document: str) -> Share:
    raw = _raw(document)
    return Share(**raw)


def _item(document: str) -> Item:
    raw = _raw(document)
    return Item(**raw)


def _raw(document: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(document)
    if raw["lease"]:
        raw["lease"] = Lease(**raw["lease"])
    return raw
