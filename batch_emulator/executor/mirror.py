"""Synchronize a blob container and a folder of a node in both directions.

Each transferred file is recorded in a line of JSON, so that after a crash it does not look like a
change of the node. If a name has several lines, the last one counts.

This replaces blobfuse, which needs a kernel module and rights that few users have [S]. Blobs are
downloaded before a task starts and every SYNC_S seconds. Files of tasks are uploaded when a task
ends and every SYNC_S seconds, except those that are still being written. The last writer wins; of
a file that changed on both sides, the node's version is kept. Links and empty folders are not
uploaded.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from batch_emulator.domain.launch import NO_SPACE
from batch_emulator.domain.validation.properties import safe_parts
from batch_emulator.executor.blob_client import (
    BlobClient,
    BlobRequestError,
    ListedBlob,
    LocalWriteError,
    blob_url,
)
from batch_emulator.folders import (
    Owner,
    create_below,
    is_below,
    opened_folder,
    stat_below,
    unlink_below,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """A synchronized file: the blob's entity tag, and the file's size and time."""

    etag: str
    size: int
    time_ns: int

    def matches(self, status: os.stat_result) -> bool:
        """Return True if the file has not changed since then."""
        return (self.size, self.time_ns) == (status.st_size, status.st_mtime_ns)


class MirrorRecords:
    """The synchronized files by name. `place` is the inode of their folder."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._file: TextIO | None = None
        self.place: int | None = None
        self.files: dict[str, Known] = {}
        for line in _lines(file):
            self._read(line)

    def _read(self, line: dict[str, Any]) -> None:
        if "place" in line:
            self.place = line["place"]
            return
        name = line.pop("name")
        if line:
            self.files[name] = Known(**line)
        else:
            self.files.pop(name, None)

    def begin(self, place: int) -> None:
        """Begin the records of a new folder."""
        self.place = place
        self.save()

    def put(self, name: str, known: Known) -> None:
        """Record that the file is synchronized. Raises OSError."""
        self.files[name] = known
        self._write({"name": name, **asdict(known)})

    def drop(self, name: str) -> None:
        """Record that the file is deleted on both sides. Raises OSError."""
        self.files.pop(name, None)
        self._write({"name": name})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("a")
            self._file.write("\n")  # a crash may have left half a line
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def save(self) -> None:
        """Rewrite the file with the current records only. Raises OSError."""
        self.close()
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("w") as file:
            file.write(json.dumps({"place": self.place}) + "\n")
            for name, known in self.files.items():
                file.write(json.dumps({"name": name, **asdict(known)}) + "\n")
        new.rename(self._path)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as err:
        log.warning("%s cannot be read: %s", file, err)
        return
    for one in text.splitlines():
        try:
            line = json.loads(one) if one else None
        except ValueError:  # half a line, of a crash
            continue
        if isinstance(line, dict) and ("place" in line or "name" in line):
            yield line


SYNC_S = 10.0
SETTLED_S = 2.0  # time since its last change after which a file counts as written
MAX_BLOBS = 100_000
INCOMING = "incoming-"


class Mirror:
    """One container on one node. `known` is the file of its records, beside the node's root."""

    def __init__(
        self,
        storage: BlobClient,
        container_url: str,
        folder: Path,
        known: Path,
        *,
        read_only: bool,
        owner: Owner | None = None,
    ) -> None:
        self._storage = storage
        self._url = container_url
        self._folder = folder
        self._beside = known.parent
        self._read_only = read_only
        self._owner = owner
        self._records = MirrorRecords(known)
        self._lock = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    async def mount(self) -> None:
        """Download all blobs, then synchronize the folder. Raises as `pull`."""
        try:
            await self.pull()
        except BaseException:  # also if cancelled
            self.forget()
            await self.release()
            raise
        self.resume()

    def resume(self) -> None:
        """Continue to synchronize the folder."""
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def forget(self) -> None:
        """Stop uploading changes of the folder."""
        self.closed = True
        if self._following is not None:
            self._following.cancel()

    async def release(self) -> None:
        """Close the connections."""
        await self._storage.close()

    def _require_mounted(self) -> int:
        """Return the inode of the mounted folder. Raises OSError if it was replaced.

        A real mount point cannot be renamed or replaced; here a task can do so.
        """
        status = stat_below(self._folder, self._beside)
        if self._records.place is None and stat.S_ISDIR(status.st_mode):
            self._records.begin(status.st_ino)
        if status.st_ino != self._records.place:
            raise FileNotFoundError(errno.ENOENT, "the mount point was replaced", self._folder)
        return status.st_ino

    async def pull(self) -> None:
        """Update the folder. Raises BlobRequestError, LocalWriteError and OSError."""
        async with self._lock:
            self._require_mounted()
            found: dict[str, ListedBlob] = {}
            async for blob in self._storage.blobs(self._url):
                found[blob.name] = blob
                if len(found) > MAX_BLOBS:
                    raise BlobRequestError(
                        "other", f"the container holds more than {MAX_BLOBS} blobs"
                    )
            try:
                await self._pull_all(found)
            finally:
                self._save()

    async def _pull_all(self, found: dict[str, ListedBlob]) -> None:
        for name in _files(found):
            if self.closed:
                return
            try:
                await self._pull_one(found[name])
            except (LocalWriteError, OSError) as err:
                cause = err.cause if isinstance(err, LocalWriteError) else err
                if cause.errno in NO_SPACE:
                    raise
                # the name is too long, or its folder is a file here: go on with the others
                log.warning(
                    "blob %r cannot be stored in %s: %s", name, self._folder, cause.strerror
                )
        self._require_mounted()
        for name in [name for name in self._records.files if name not in found]:
            if self._unchanged(name):
                with suppress(OSError):  # it is gone, or behind a link now
                    unlink_below(self._folder / name, self._beside)
            self._records.drop(name)

    async def _pull_one(self, blob: ListedBlob) -> None:
        known = self._records.files.get(blob.name)
        if known is not None and known.etag == blob.etag:
            return  # or it was deleted here, and the next push deletes the blob
        target = self._folder / blob.name
        if not is_below(target.parent, self._folder) or (
            target.exists() if known is None else not self._unchanged(blob.name)
        ):
            return
        incoming = self._beside / f"{INCOMING}{uuid4().hex}"
        try:
            etag = await self._storage.download(
                blob_url(self._url, blob.name), lambda: create_below(incoming, self._beside)
            )
            if self._owner is not None:
                self._owner.own(incoming)
            status = incoming.stat()
            self._require_mounted()
            with opened_folder(target.parent, self._beside, make=True) as folder:
                os.rename(incoming, target.name, dst_dir_fd=folder)
        finally:
            incoming.unlink(missing_ok=True)
        known = Known(etag or blob.etag, status.st_size, status.st_mtime_ns)
        self._records.put(blob.name, known)

    async def push(self, *, settled_s: float = 0.0) -> None:
        """Update the container. Raises BlobRequestError and OSError.

        If the folder is gone, the node is gone, and no blob is deleted. A file that the service
        refuses is tried again the next time, and does not stop the others.
        """
        if self._read_only or self.closed:
            return
        async with self._lock:
            place = self._require_mounted()
            files, unread = await asyncio.to_thread(_walk, self._folder, self._beside)
            if self.closed or self._require_mounted() != place:
                return
            failure: BlobRequestError | None = None
            before_ns = time.time_ns() - int(settled_s * 1e9)
            for name, status in files.items():
                known = self._records.files.get(name)
                if (known and known.matches(status)) or (
                    settled_s and status.st_mtime_ns > before_ns
                ):
                    continue
                try:
                    await self._push_one(name, status)
                except BlobRequestError as err:
                    if not err.detail.startswith("HTTP 400"):  # the error concerns all files
                        raise
                    log.warning("%s of %s is not written: %s", name, self._folder, err.detail)
                    failure = failure or err
            await self._delete_missing(files, unread)
            self._save()
            if failure is not None:
                raise failure

    async def _delete_missing(self, files: dict[str, os.stat_result], unread: set[str]) -> None:
        for name in [name for name in self._records.files if name not in files]:
            if self.closed:
                return
            if not any(name.startswith(folder) for folder in unread):
                self._require_mounted()  # it may have been replaced between two deletions
                await self._storage.delete(blob_url(self._url, name))
                self._records.drop(name)

    async def _push_one(self, name: str, status: os.stat_result) -> None:
        if self.closed:
            return
        try:
            url, path = blob_url(self._url, name), self._folder / name
            done = await self._storage.upload(url, path, {}, top=self._beside)
        except OSError as err:  # deleted meanwhile, now behind a link, or not readable
            log.info("%s of %s cannot be read: %s", name, self._folder, err.strerror)
            return
        except BlobRequestError as err:
            if "shrank" in err.detail:  # it is being written; upload it next time
                return
            raise
        # with the status before the upload, so that the next push sees a change during it
        self._records.put(name, Known(done.etag, status.st_size, status.st_mtime_ns))

    async def _follow(self) -> None:
        """Push and pull until cancelled, and repeat failed attempts."""
        while not self.closed:
            await asyncio.sleep(SYNC_S)
            try:
                await self.push(settled_s=SETTLED_S)
                await self.pull()
            except (BlobRequestError, LocalWriteError, OSError) as err:
                log.warning("%s is not in step with its container: %s", self._folder, err)

    def _unchanged(self, name: str) -> bool:
        try:
            found = stat_below(self._folder / name, self._beside)
        except OSError:
            return False
        return self._records.files[name].matches(found)

    def _save(self) -> None:
        if not self.closed:
            self._records.save()


def _files(names: dict[str, ListedBlob]) -> Iterator[str]:
    """Yield the names that can be files: not the folder of another name, not outside the folder."""
    folders: set[str] = set()
    for name in names:
        while "/" in name:
            name = name.rpartition("/")[0]  # noqa: PLW2901 - from folder to parent
            folders.add(name)
    for name in names:
        parts = safe_parts(name)
        if parts and "/".join(parts) == name and name not in folders:
            yield name


def _walk(folder: Path, top: Path) -> tuple[dict[str, os.stat_result], set[str]]:
    """Return the files below a folder by name, and unreadable folders with a final `/`.

    Links are not followed; names that are not UTF-8 cannot be blob names. Raises OSError.
    """
    files: dict[str, os.stat_result] = {}
    unread: set[str] = set()
    folders = [""]  # no recursion: folders of tasks may be deeper than Python's limit
    while folders:
        above = folders.pop()
        try:
            with opened_folder(folder / above, top) as opened, os.scandir(opened) as entries:
                for entry in entries:
                    name = f"{above}{entry.name}"
                    if not _is_text(name):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(f"{name}/")
                    elif stat.S_ISREG(status.st_mode):
                        files[name] = status
        except OSError:
            if not above:
                raise
            unread.add(above)
    return files, unread


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
