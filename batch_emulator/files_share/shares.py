"""The shares of one storage account: folders of the data dir, and what is known of them."""

from __future__ import annotations

import hmac
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from batch_emulator.files_share.records import Share, ShareRecords
from batch_emulator.files_share.tree import BadNameError, check_share
from batch_emulator.folders import remove_tree

GIB = 1024**3
_USAGE_FOR_S = 2.0  # the service's figure is approximate too; a walk costs time
_TRASH = ".trash"
INCOMING = ".incoming"  # files on their way into a share
_STRIPES = 64


@dataclass(frozen=True, slots=True)
class StorageAccount:
    """Name and key (base64) of the account that clients and mounts present."""

    name: str
    key: str = field(repr=False)


class MountError(Exception):
    """A share cannot be mounted; the message says why, without the key."""


class WrongAccountError(MountError):
    """There is no such storage account."""


class WrongKeyError(MountError):
    """The key is not the account's."""


class NoSuchShareError(MountError):
    """The account has no such share."""


class Shares:
    """Makes, finds and deletes shares. Thread-safe. Raises OSError and sqlite3.Error."""

    def __init__(self, data_dir: Path, account: StorageAccount) -> None:
        self.account = account
        self.root = data_dir / "shares"
        self.root.mkdir(parents=True, exist_ok=True)
        self.records = ShareRecords(data_dir / "files.sqlite")
        self.lock = threading.RLock()  # held while a folder and its record change together
        self._writes = [threading.Lock() for _ in range(_STRIPES)]
        self._usage: dict[str, tuple[int, float]] = {}  # bytes, and until when they count
        for leftover in (_TRASH, INCOMING):
            remove_tree(self.root / leftover)
        (self.root / INCOMING).mkdir()
        self._adopt()

    def close(self) -> None:
        """Close the records."""
        self.records.close()

    def folder(self, account: str, share: str, key: str) -> Path:
        """The folder to mount for a share. Raises a MountError."""
        if account.lower() != self.account.name.lower():
            raise WrongAccountError(f"there is no storage account '{account}'")
        if not hmac.compare_digest(key.encode(), self.account.key.encode()):
            raise WrongKeyError(f"the key is not that of the storage account '{account}'")
        found = self.get(share)
        if found is None:
            raise NoSuchShareError(f"the storage account '{account}' has no share '{share}'")
        return self.path(found.name)

    def get(self, name: str) -> Share | None:
        """A share, None when there is none."""
        try:
            return self.records.share(check_share(name))
        except BadNameError:
            return None

    def path(self, name: str) -> Path:
        """The folder of a share; one that was deleted by hand comes back empty.

        Of a share that another request has deleted meanwhile it does not, or the share would be
        back after a restart: opening it fails then.
        """
        folder = self.root / check_share(name)
        if not folder.is_dir():
            with self.lock:
                if self.records.share(name) is not None:
                    folder.mkdir(exist_ok=True)
        return folder

    def create(self, share: Share) -> bool:
        """Make a share; False when there is one of that name. Raises BadNameError."""
        check_share(share.name)
        with self.lock:
            if self.records.share(share.name) is not None:
                return False
            (self.root / share.name).mkdir(exist_ok=True)
            self.records.put_share(share)
            return True

    def delete(self, name: str) -> None:
        """Delete a share and its files at once; the service takes half a minute. [S]"""
        trash = self.root / _TRASH / uuid4().hex
        with self.lock:
            trash.parent.mkdir(exist_ok=True)
            folder = self.path(name)
            self.records.delete_share(name)
            self._usage.pop(name, None)
            folder.rename(trash)
        remove_tree(trash)

    def writing(self, inode: int) -> threading.Lock:
        """Held while bytes of a file are written or its size changes."""
        return self._writes[inode % _STRIPES]

    def usage(self, name: str) -> int:
        """Bytes of all files of a share, holes included; up to some seconds old."""
        known = self._usage.get(name)
        now = time.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        size = sum(_sizes(self.path(name)))
        done = time.monotonic()
        self._usage[name] = (size, done + max(_USAGE_FOR_S, 20 * (done - now)))
        return size

    def grow(self, name: str, added: int) -> None:
        """Correct the figure by what REST has written itself."""
        with self.lock:
            if name in self._usage:
                size, until = self._usage[name]
                self._usage[name] = (max(0, size + added), until)

    def _adopt(self) -> None:
        """A folder that was put there by hand is a share."""
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
        except OSError:  # deleted meanwhile, or deeper than a path can say
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                try:
                    yield entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue
