"""A folder of a node that follows a blob container, and the container that follows the folder.

This stands for blobfuse, which needs a kernel module and rights that few have [S]. Blobs come
before a task starts and every SYNC_S seconds; what tasks write goes to the container when a task
ends and every SYNC_S seconds, files that are still being written excepted. Whoever wrote last
wins, and a file that changed on both sides is the node's. Links and empty folders stay here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from batch_emulator.executor.resource_files import safe_parts
from batch_emulator.executor.storage import (
    Blob,
    LocalWriteError,
    Storage,
    StorageError,
    blob_url,
)

log = logging.getLogger(__name__)

SYNC_S = 10.0
SETTLED_S = 2.0  # since its last change a file counts as written
MAX_BLOBS = 100_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A file that was the same on both sides: the blob's tag, the file's size and time."""

    etag: str
    size: int
    time_ns: int


class Mirror:
    """One container on one node. `known` is where it remembers, beside the node's root."""

    def __init__(
        self, storage: Storage, container_url: str, folder: Path, known: Path, *, read_only: bool
    ) -> None:
        self._storage = storage
        self._url = container_url
        self._folder = folder
        self._file = known
        self._read_only = read_only
        self._known = _load(known)
        self._lock = asyncio.Lock()
        self.closed = False

    async def pull(self) -> None:
        """Bring the folder up to date. Raises StorageError, LocalWriteError and OSError."""
        async with self._lock:
            found: dict[str, Blob] = {}
            async for blob in self._storage.blobs(self._url):
                found[blob.name] = blob
                if len(found) > MAX_BLOBS:
                    raise StorageError("other", f"the container holds more than {MAX_BLOBS} blobs")
            try:
                await self._pull_all(found)
            finally:
                self._save()

    async def _pull_all(self, found: dict[str, Blob]) -> None:
        for name in _files(found):
            if self.closed:
                return
            await self._pull_one(found[name])
        for name in [name for name in self._known if name not in found]:
            if self._unchanged(name):
                (self._folder / name).unlink(missing_ok=True)
            del self._known[name]

    async def _pull_one(self, blob: Blob) -> None:
        known = self._known.get(blob.name)
        if known is not None and known.etag == blob.etag:
            return  # also when it was deleted here: that is still to be said there
        target = self._folder / blob.name
        if not _is_inside(target, self._folder) or (
            target.exists() if known is None else not self._unchanged(blob.name)
        ):
            return
        incoming = self._file.with_name(f"incoming-{uuid4().hex}")
        try:
            etag = await self._storage.download(blob_url(self._url, blob.name), incoming)
            target.parent.mkdir(parents=True, exist_ok=True)
            status = incoming.stat()
            incoming.rename(target)
        finally:
            incoming.unlink(missing_ok=True)
        tag = etag or blob.etag
        self._known[blob.name] = _Known(tag, status.st_size, status.st_mtime_ns)

    async def push(self, *, settled_s: float = 0.0) -> None:
        """Bring the container up to date. Raises StorageError and OSError.

        A folder that is gone means that the node is, never that its blobs are to be deleted.
        """
        if self._read_only:
            return
        async with self._lock:
            place = self._folder.lstat().st_ino
            files = await asyncio.to_thread(lambda: dict(_walk(self._folder, "")))
            if self.closed or self._folder.lstat().st_ino != place:
                return
            before_ns = time.time_ns() - int(settled_s * 1e9)
            for name, status in files.items():
                known = self._known.get(name)
                same = known and (known.size, known.time_ns) == (status.st_size, status.st_mtime_ns)
                if not same and (not settled_s or status.st_mtime_ns <= before_ns):
                    await self._push_one(name, status)
            for name in [name for name in self._known if name not in files]:
                if self.closed:
                    return
                await self._storage.delete(blob_url(self._url, name))
                del self._known[name]
            self._save()

    async def _push_one(self, name: str, status: os.stat_result) -> None:
        if self.closed:
            return
        try:
            done = await self._storage.upload(blob_url(self._url, name), self._folder / name, {})
        except FileNotFoundError:  # deleted meanwhile
            return
        except StorageError as err:
            if "shrank" in err.detail:  # it is being written: next time
                return
            raise
        # with what it was before: a change meanwhile is seen by the next push
        self._known[name] = _Known(done.etag, status.st_size, status.st_mtime_ns)

    async def follow(self) -> None:
        """Push and pull until cancelled; what fails is tried again."""
        while not self.closed:
            await asyncio.sleep(SYNC_S)
            try:
                await self.push(settled_s=SETTLED_S)
                await self.pull()
            except (StorageError, LocalWriteError, OSError) as err:
                log.warning("%s is not in step with its container: %s", self._folder, err)

    def _unchanged(self, name: str) -> bool:
        known = self._known[name]
        try:
            status = (self._folder / name).lstat()
        except OSError:
            return False
        return (known.size, known.time_ns) == (status.st_size, status.st_mtime_ns)

    def _save(self) -> None:
        if self.closed:
            return
        text = json.dumps({name: asdict(known) for name, known in self._known.items()})
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(text)
        new.rename(self._file)


def _load(file: Path) -> dict[str, _Known]:
    try:
        return {name: _Known(**known) for name, known in json.loads(file.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as err:
        log.warning("%s cannot be read: %s", file, err)
        return {}


def _files(names: dict[str, Blob]) -> Iterator[str]:
    """Names that can be files here: no folders of other names, none that lead out."""
    folders: set[str] = set()
    for name in names:
        while "/" in name:
            name = name.rpartition("/")[0]  # noqa: PLW2901 - it climbs
            folders.add(name)
    for name in names:
        parts = safe_parts(name)
        if parts and "/".join(parts) == name and name not in folders:
            yield name


def _walk(folder: Path, above: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files below a folder by name; links are not followed. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{above}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), f"{name}/")
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield name, status


def _is_inside(target: Path, folder: Path) -> bool:
    return Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(folder))
