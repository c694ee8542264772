"""A container as a store: blocks in parallel, hashed as they pass, continued after a break."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import (
    BlobBlock,
    BlobClient,
    BlobProperties,
    BlobServiceClient,
    ContentSettings,
)

from runner.azure.faults import error_code, service_errors
from runner.azure.storage.blob_requests import BlobRequests
from runner.azure.storage.stores import ChangedError, OnBytes, SourceChangedError, StoredFile

MIB = 1024 * 1024
BLOCK_BYTES = 8 * MIB
# A blob has at most 50,000 blocks (learn.microsoft.com/answers/questions/614012, read 2026-11-21,
# which quotes "Scalability targets for Blob storage").
_MOST_BLOCKS = 50_000
_PARALLEL_BLOCKS = 16
_WINDOW = 8  # blocks of one file on their way at once
_WRITTEN_BY_OTHERS = frozenset({"BlobAlreadyExists", "ConditionNotMet"})
_NOT_THAT_FILE = frozenset({"BlobNotFound", "ConditionNotMet", "ContainerNotFound", "InvalidRange"})


class BlobStore:
    """One container. `close` ends its threads."""

    def __init__(
        self,
        service: BlobServiceClient,
        container: str,
        requests: BlobRequests,
    ) -> None:
        self._client = service.get_container_client(container)
        self._requests = requests
        self._pool = ThreadPoolExecutor(_PARALLEL_BLOCKS, thread_name_prefix="block")

    def close(self) -> None:
        """Give up what was not begun; running requests end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def find(self, path: str) -> StoredFile | None:
        """One blob, or None where there is none."""
        with service_errors(f"looking at {path}"):
            try:
                return _stored(self._blob(path).get_blob_properties())
            except ResourceNotFoundError as err:
                if error_code(err) == "ContainerNotFound":
                    raise
                return None

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """All blobs below a folder; markers of folders that other tools leave are no files."""
        below = f"{prefix}/" if prefix else None
        with service_errors(f"listing {prefix or self._client.container_name}"):
            for blob in self._client.list_blobs(name_starts_with=below, include=["metadata"]):
                if not (blob.metadata or {}).get("hdi_isfolder"):
                    yield _stored(blob)

    def put(self, path: str, source: Path, on_bytes: OnBytes, over: StoredFile | None) -> None:
        """See `Store.put`."""
        with service_errors(f"uploading {path}"), source.open("rb") as content:
            before = os.fstat(content.fileno())
            if before.st_size <= BLOCK_BYTES:
                data = content.read(BLOCK_BYTES + 1)
                _check_still(content, before, len(data))
                self._put_whole(path, over, data)
                on_bytes(len(data))
                return
            blocks, md5 = self._stage(path, content, before.st_size, on_bytes)
            _check_still(content, before, content.tell())
            self._commit(path, over, md5, blocks)

    def get(self, file: StoredFile, target: Path, on_bytes: OnBytes) -> bytes:
        """See `Store.get`."""
        with service_errors(f"downloading {file.path}"), _open_part(target) as part:
            digest = _hash_rest(part, file.size_bytes)
            on_bytes(part.tell())
            for data in self._ranges(file, part.tell()):
                part.write(data)
                digest.update(data)
                on_bytes(len(data))
            return digest.digest()

    def delete(self, file: StoredFile) -> bool:
        """See `Store.delete`."""
        with service_errors(f"deleting {file.path}"):
            try:
                self._blob(file.path).delete_blob(
                    etag=file.etag,
                    match_condition=MatchConditions.IfNotModified,
                    delete_snapshots="include",
                )
            except ResourceNotFoundError:
                return False
            except ResourceModifiedError as err:
                if self.find(file.path) is None:  # a blob that is gone meets no condition
                    return False
                raise ChangedError(file.path) from err
            return True

    def _stage(
        self, path: str, content: IO[bytes], size: int, on_bytes: OnBytes
    ) -> tuple[list[BlobBlock], bytes]:
        """Send the blocks that are not staged yet; a block's id names all content up to its end."""
        there = self._staged(path)
        digest = hashlib.md5(usedforsecurity=False)
        length = max(BLOCK_BYTES, -(-size // (_MOST_BLOCKS * MIB)) * MIB)
        blocks: list[BlobBlock] = []
        waiting: deque[Future[None]] = deque()
        with _all_ended(waiting):
            while data := content.read(length):
                digest.update(data)
                block_id = f"{len(blocks):06d}{digest.hexdigest()}"
                blocks.append(BlobBlock(block_id))
                if block_id in there:
                    on_bytes(len(data))
                    continue
                if len(waiting) >= _WINDOW:
                    waiting.popleft().result()
                waiting.append(self._pool.submit(self._send, path, block_id, data, on_bytes))
            while waiting:
                waiting.popleft().result()
        return blocks, digest.digest()

    def _staged(self, path: str) -> frozenset[str]:
        with contextlib.suppress(ResourceNotFoundError):
            _, uncommitted = self._blob(path).get_block_list("uncommitted")
            return frozenset(_block_id(block.id) for block in uncommitted)
        return frozenset()

    def _send(self, path: str, block_id: str, data: bytes, on_bytes: OnBytes) -> None:
        self._blob(path).stage_block(block_id, data, len(data))
        on_bytes(len(data))

    def _put_whole(self, path: str, over: StoredFile | None, data: bytes) -> None:
        md5 = hashlib.md5(data, usedforsecurity=False).digest()
        try:
            self._requests.put(path, data, md5, over.etag if over else None)
        except HttpResponseError as err:
            if error_code(err) in _WRITTEN_BY_OTHERS:
                raise ChangedError(path) from err
            raise

    def _commit(
        self, path: str, over: StoredFile | None, md5: bytes, blocks: list[BlobBlock]
    ) -> None:
        condition: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
        if over is not None:
            condition = {"etag": over.etag, "match_condition": MatchConditions.IfNotModified}
        settings = ContentSettings(content_md5=bytearray(md5))
        try:
            self._blob(path).commit_block_list(blocks, content_settings=settings, **condition)
        except (ResourceExistsError, ResourceModifiedError) as err:
            raise ChangedError(path) from err

    def _ranges(self, file: StoredFile, start: int) -> Iterator[bytes]:
        """The content from `start` in order, some ranges ahead of the reader."""
        if file.size_bytes - start <= BLOCK_BYTES:  # no thread has to be asked for one range
            if file.size_bytes > start:
                yield self._range(file, start, file.size_bytes - start)
            return
        waiting: deque[Future[bytes]] = deque()
        with _all_ended(waiting):
            for first in range(start, file.size_bytes, BLOCK_BYTES):
                if len(waiting) >= _WINDOW:
                    yield waiting.popleft().result()
                length = min(BLOCK_BYTES, file.size_bytes - first)
                waiting.append(self._pool.submit(self._range, file, first, length))
            while waiting:
                yield waiting.popleft().result()

    def _range(self, file: StoredFile, first: int, length: int) -> bytes:
        try:
            return self._requests.get(file.path, file.etag, first, length)
        except HttpResponseError as err:
            if error_code(err) in _NOT_THAT_FILE:
                raise ChangedError(file.path) from err
            raise

    def _blob(self, path: str) -> BlobClient:
        return self._client.get_blob_client(path)


def _stored(blob: BlobProperties) -> StoredFile:
    md5 = blob.content_settings.content_md5
    return StoredFile(
        str(blob.name),
        int(blob.size or 0),
        bytes(md5) if md5 else None,
        str(blob.etag).strip('"'),
        blob.last_modified,
    )


def _block_id(listed: str) -> str:
    """The SDK encodes ids when it sends them, and some versions do not decode what they list."""
    try:
        return base64.b64decode(listed, validate=True).decode()
    except ValueError:
        return listed


def _open_part(target: Path) -> IO[bytes]:
    return target.open("r+b" if target.exists() else "w+b")


def _hash_rest(part: IO[bytes], size: int) -> Any:
    """Hash what an earlier try left, and stand at its end; a longer one begins anew."""
    digest = hashlib.md5(usedforsecurity=False)
    if os.fstat(part.fileno()).st_size > size:
        part.truncate(0)
    while data := part.read(MIB):
        digest.update(data)
    return digest


def _check_still(content: IO[bytes], before: os.stat_result, read: int) -> None:
    after = os.fstat(content.fileno())
    if read != before.st_size or (after.st_size, after.st_mtime_ns) != (
        before.st_size,
        before.st_mtime_ns,
    ):
        raise SourceChangedError


@contextlib.contextmanager
def _all_ended(waiting: deque[Future[Any]]) -> Generator[None]:
    """On the way out nothing of this file is sent any more."""
    try:
        yield
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            if not future.cancelled():
                with contextlib.suppress(Exception):
                    future.result()
