"""The file share as a `FileStore`: a file is uploaded under another name, then renamed.

Parts of interrupted uploads are not listed and are removed after a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import IO
from uuid import uuid4

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.fileshare import ContentSettings, FileProperties, ShareClient, ShareFileClient

from runner.azure.auth.credentials import Connection
from runner.azure.faults import error_code, service_errors
from runner.azure.storage.stores import ChangedError, OnBytes, SourceChangedError, StoredFile
from runner.core.storage_paths import SHARE_PARTS

# Parts that are older are abandoned, because a running upload writes every few seconds.
_MAX_PART_AGE = timedelta(days=1)
_SECONDS_LENGTH = len("2026-11-21T22:30:00")  # length of a listed time without fractions


class ShareParts:
    """The folder of partial uploads; safe for several threads."""

    def __init__(self, client: ShareClient) -> None:
        self._client = client
        self._lock = Lock()
        self._is_ready = False

    def new(self) -> ShareFileClient:
        """Return a new file of this upload, not yet created."""
        with self._lock:
            if not self._is_ready:
                self._prepare()
                self._is_ready = True
        return self._client.get_file_client(f"{SHARE_PARTS}/{uuid4().hex}")

    def _prepare(self) -> None:
        folder = self._client.get_directory_client(SHARE_PARTS)
        with contextlib.suppress(ResourceExistsError):
            folder.create_directory()
            return
        before = (datetime.now(UTC) - _MAX_PART_AGE).isoformat()[:_SECONDS_LENGTH]
        for part in folder.list_directories_and_files(include=["timestamps"]):
            written = part.last_write_time if isinstance(part, FileProperties) else None
            if written and str(written)[:_SECONDS_LENGTH] < before:
                with contextlib.suppress(HttpResponseError):
                    folder.delete_file(str(part.name))


_READ_BYTES = 1024 * 1024
_PARALLEL = 4  # parallel ranges of one file; files are parallel, too
_NO_FILE_CODES = frozenset({"ParentNotFound", "ResourceNotFound", "ResourceTypeMismatch"})


class _CountingReader:
    """A file that reports how many bytes were read."""

    def __init__(self, source: IO[bytes], on_bytes: OnBytes) -> None:
        self._source = source
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._on_bytes(len(data))
        return data


class ShareStore:
    """One Azure Files share. After an interruption, a file is sent again from its start."""

    def __init__(self, client: ShareClient) -> None:
        self._client = client
        self._parts = ShareParts(client)

    def close(self) -> None:
        """Do nothing, because the share has no threads."""

    def find(self, path: str) -> StoredFile | None:
        """Return one file, or None if it does not exist or is a folder."""
        with service_errors(f"reading the properties of {path}"):
            try:
                found = self._file(path).get_file_properties()
            except HttpResponseError as err:
                if error_code(err) in _NO_FILE_CODES:
                    return None
                raise
        md5 = found.content_settings.content_md5
        return StoredFile(
            path, int(found.size or 0), bytes(md5) if md5 else None, found.etag, found.last_modified
        )

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Yield all files below a folder, without their MD5, which only `find` returns."""
        with service_errors(f"listing {prefix or 'the share'}"):
            yield from self._walk(prefix)

    def put(self, path: str, source: Path, on_bytes: OnBytes, over: StoredFile | None) -> None:
        """See `FileStore.put`. A share has no conditional writes, so `over` is checked before."""
        with service_errors(f"uploading {path}"):
            self._make_folders(path.rpartition("/")[0])
            part = self._parts.new()
            try:
                self._send(part, source, on_bytes)
                self._rename(part, path, over)
            except BaseException:
                with contextlib.suppress(HttpResponseError):
                    part.delete_file()
                raise

    def get(self, file: StoredFile, target: Path, on_bytes: OnBytes) -> bytes:
        """See `FileStore.get`."""
        digest = hashlib.md5(usedforsecurity=False)
        with service_errors(f"downloading {file.path}"), target.open("wb") as part:
            try:
                stream = self._file(file.path).download_file(max_concurrency=_PARALLEL)
                if str(stream.properties.etag).strip('"') != file.etag.strip('"'):
                    raise ChangedError(file.path)
                for data in stream.chunks():
                    part.write(data)
                    digest.update(data)
                    on_bytes(len(data))
            except ResourceNotFoundError as err:
                raise ChangedError(file.path) from err
        return digest.digest()

    def delete(self, file: StoredFile) -> bool:
        """See `FileStore.delete`."""
        now = self.find(file.path)
        if now is None:
            return False
        if now.etag.strip('"') != file.etag.strip('"'):
            raise ChangedError(file.path)
        with service_errors(f"deleting {file.path}"):
            try:
                self._file(file.path).delete_file()
            except ResourceNotFoundError:
                return False
        self._remove_empty(file.path.rpartition("/")[0])
        return True

    def _walk(self, folder: str) -> Iterator[StoredFile]:
        try:
            entries = list(
                self._client.list_directories_and_files(
                    folder or None, include=["timestamps", "Etag"]
                )
            )
        except HttpResponseError as err:
            if error_code(err) in _NO_FILE_CODES:
                return
            raise
        for entry in entries:
            path = f"{folder}/{entry.name}".lstrip("/")
            if path == SHARE_PARTS:
                continue
            if isinstance(entry, FileProperties):
                etag = str(entry.etag or "")
                yield StoredFile(path, int(entry.size or 0), None, etag, entry.last_modified)
            else:
                yield from self._walk(path)

    def _send(self, part: ShareFileClient, source: Path, on_bytes: OnBytes) -> None:
        with source.open("rb") as content:
            before = os.fstat(content.fileno())
            digest = hashlib.md5(usedforsecurity=False)
            while data := content.read(_READ_BYTES):
                digest.update(data)
            content.seek(0)
            sent = _CountingReader(content, on_bytes)
            settings = ContentSettings(content_md5=bytearray(digest.digest()))
            part.upload_file(  # pyright: ignore[reportUnknownMemberType]
                sent,  # pyright: ignore[reportArgumentType] - read() is all the SDK calls
                length=before.st_size,
                max_concurrency=1,
                content_settings=settings,
            )
            after = os.fstat(content.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise SourceChangedError

    def _rename(self, part: ShareFileClient, path: str, over: StoredFile | None) -> None:
        now = self.find(path) if over is not None else None
        if over is not None and (now is None or now.etag.strip('"') != over.etag.strip('"')):
            raise ChangedError(path)
        try:
            part.rename_file(path, overwrite=over is not None)
        except ResourceExistsError as err:
            raise ChangedError(path) from err

    def _make_folders(self, folder: str) -> None:
        done = ""
        for name in folder.split("/") if folder else ():
            done = f"{done}/{name}".lstrip("/")
            with contextlib.suppress(ResourceExistsError):
                self._client.get_directory_client(done).create_directory()

    def _remove_empty(self, folder: str) -> None:
        """Remove folders with their last file, because `runner data` has no empty folders."""
        while folder:
            try:
                self._client.get_directory_client(folder).delete_directory()
            except HttpResponseError:
                return
            folder = folder.rpartition("/")[0]

    def _file(self, path: str) -> ShareFileClient:
        return self._client.get_file_client(path)


def ensure_share(connection: Connection) -> None:
    """Create the file share of the target if it is missing."""
    with service_errors("creating the file share"):
        try:
            connection.share_client().create_share()  # pyright: ignore[reportUnknownMemberType]
        except ResourceExistsError:
            return
