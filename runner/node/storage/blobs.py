"""The operations of Azure Blob Storage that the agent needs (REST docs: Put Blob, Append Block).

`AppendBlob` assumes a single writer, so a retried append is never written twice.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from runner.node.storage.http import StorageRequestError, StorageResponse, Transport

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# A larger file is uploaded as staged blocks, so that a lost connection repeats only one block.
STAGED_BLOCK_BYTES = 16 * 1024 * 1024
# Blocks that are sent in parallel, in addition to one for each thread that uploads a file. All of
# them are in memory.
PARALLEL_BLOCKS = 4
# Largest block of the API version in use, and the most blocks an append blob takes
# (storage REST docs, "Append Block").
MAX_APPEND_BYTES = 4 * 1024 * 1024
MAX_BLOCKS = 50_000
RESERVED_BLOCKS = 100  # kept for the rest that is shipped after the script ended

# Intervals between appends, and the number of blocks up to which each applies, see
# `append_interval_s`.
QUICK_S = 0.1
QUICK_BLOCKS = 2_000
STEADY_S = 0.3
STEADY_BLOCKS = 25_000
BLOCKS_PER_DOUBLING = 1_800

CONTENT_TYPES = {
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
}


OnBytes = Callable[[int], object]


def ignore_bytes(count: int) -> None:
    """Ignore the report."""
    del count


@dataclass(frozen=True)
class BlobProperties:
    """The size of a blob, the number of committed blocks of an append blob, and the ETag."""

    size_bytes: int
    blocks: int
    etag: str = ""


@dataclass(frozen=True)
class Appended:
    """The result of an append: the blob after it, or None if the blob was not as expected.

    `tries` is how often the request was sent. If it is more than 1, an earlier try may have been
    executed.
    """

    blob: BlobProperties | None
    tries: int


class ContainerClient:
    """The blobs of one container, by name. Every method may raise StorageRequestError."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._parallel = threading.BoundedSemaphore(PARALLEL_BLOCKS)

    def get(self, name: str) -> bytes | None:
        """Return the whole blob, or None if it does not exist."""
        answer = self.transport.send("GET", name)
        return None if answer.status == 404 else expect_success(answer, "GET", name).body

    def get_range(self, name: str, first_byte: int, size: int) -> bytes:
        """Return `size` bytes from `first_byte`."""
        headers = {"x-ms-range": f"bytes={first_byte}-{first_byte + size - 1}"}
        return expect_success(self.transport.send("GET", name, headers=headers), "GET", name).body

    def head(self, name: str) -> BlobProperties | None:
        """Return size and block count, or None if the blob does not exist."""
        answer = self.transport.send("HEAD", name)
        if answer.status == 404:
            return None
        headers = expect_success(answer, "HEAD", name).headers
        return BlobProperties(
            int(headers["content-length"]),
            int(headers.get("x-ms-blob-committed-block-count", "0")),
            headers.get("etag", ""),
        )

    def put(self, name: str, body: bytes) -> None:
        """Write a block blob, replacing an existing one."""
        answer = self.transport.send("PUT", name, headers=_block_blob(name), body=body)
        expect_success(answer, "PUT", name)

    def create(self, name: str, body: bytes) -> bool:
        """Write a block blob that must not exist. Return False if another writer was first."""
        return self._put_if(name, body, {"If-None-Match": "*"})

    def put_metadata(
        self, name: str, metadata: Mapping[str, str], *, overwrite: bool = True
    ) -> None:
        """Write an empty block blob with metadata. Without `overwrite`, keep an existing one."""
        named = {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        headers = {**_block_blob(name), **named, **({} if overwrite else {"If-None-Match": "*"})}
        answer = self.transport.send("PUT", name, headers=headers)
        if overwrite or answer.status not in (409, 412):
            expect_success(answer, "PUT", name)

    def put_file(self, name: str, path: Path, on_bytes: OnBytes = ignore_bytes) -> tuple[int, str]:
        """Upload a file. Return the size and SHA-256 of the bytes sent, even if the file changes.

        A file above 16 MiB is uploaded as staged blocks. A block of zeros is sent only once, for
        all holes of the file. `on_bytes` is called in any thread with numbers of uploaded bytes.
        """
        with path.open("rb") as source:
            first = source.read(STAGED_BLOCK_BYTES)
            if len(first) == STAGED_BLOCK_BYTES:
                return self._put_staged(name, first, source, on_bytes)
        self.put(name, first)
        on_bytes(len(first))
        return len(first), hashlib.sha256(first).hexdigest()

    def _put_staged(
        self, name: str, first: bytes, source: BinaryIO, on_bytes: OnBytes
    ) -> tuple[int, str]:
        from concurrent.futures import Future, ThreadPoolExecutor  # noqa: PLC0415  large files only

        size, digest, block = 0, hashlib.sha256(), first
        listed: list[int] = []
        hole: int | None = None  # the block of zeros
        sent: list[Future[None]] = []

        def send(number: int, block: bytes) -> None:
            self.put_block(name, number, block)
            on_bytes(len(block))

        with ThreadPoolExecutor(PARALLEL_BLOCKS or 1, thread_name_prefix="block") as threads:
            while block:
                digest.update(block)
                size += len(block)
                is_hole = len(block) == STAGED_BLOCK_BYTES and block == bytes(len(block))
                if is_hole and hole is not None:
                    listed.append(hole)  # a list may have a block several times ("Put Block List")
                    on_bytes(len(block))
                else:
                    number = len(listed)
                    listed.append(number)
                    hole = number if is_hole else hole
                    if self._parallel.acquire(blocking=False):
                        sent.append(threads.submit(send, number, block))
                        sent[-1].add_done_callback(lambda _: self._parallel.release())
                    else:
                        send(number, block)
                for each in [each for each in sent if each.done()]:
                    sent.remove(each)
                    each.result()
                block = source.read(STAGED_BLOCK_BYTES)
            for each in sent:
                each.result()
        self.put_block_list(name, listed)
        return size, digest.hexdigest()

    def copy(self, source: str, target: str, size: int) -> bool:
        """Copy a blob of this size by way of this node. Return False if it does not exist."""
        if size < STAGED_BLOCK_BYTES:
            body = self.get(source)
            if body is not None:
                self.put(target, body)
            return body is not None
        if self.head(source) is None:
            return False
        starts = range(0, size, STAGED_BLOCK_BYTES)
        for number, first in enumerate(starts):
            length = min(STAGED_BLOCK_BYTES, size - first)
            self.put_block(target, number, self.get_range(source, first, length))
        self.put_block_list(target, range(len(starts)))
        return True

    def put_block(self, name: str, number: int, block: bytes) -> None:
        """Stage block `number`, counted from 0, for `put_block_list`."""
        query = {"comp": "block", "blockid": _block_id(number)}
        expect_success(self.transport.send("PUT", name, query=query, body=block), "PUT", name)

    def put_block_list(self, name: str, blocks: Iterable[int]) -> None:
        """Commit staged blocks as the blob, in this order, replacing an existing one."""
        latest = "".join(f"<Latest>{_block_id(number)}</Latest>" for number in blocks)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        headers = {"x-ms-blob-content-type": content_type(name)}
        answer = self.transport.send(
            "PUT", name, query={"comp": "blocklist"}, headers=headers, body=body
        )
        expect_success(answer, "PUT", name)

    def delete(self, name: str) -> None:
        """Delete a blob if it exists. Auth errors are not retried."""
        answer = self.transport.send("DELETE", name, retry_auth_errors=False)
        if answer.status != 404:
            expect_success(answer, "DELETE", name)

    def create_append(self, name: str) -> BlobProperties | None:
        """Create an empty append blob and return its properties, or None if it exists."""
        headers = {
            "x-ms-blob-type": "AppendBlob",
            "x-ms-blob-content-type": content_type(name),
            "If-None-Match": "*",
        }
        answer = self.transport.send("PUT", name, headers=headers)
        if answer.status in (409, 412):
            return None
        etag = expect_success(answer, "PUT", name).headers.get("etag", "")
        return BlobProperties(0, 0, etag)

    def append(self, name: str, data: bytes, to: BlobProperties) -> Appended:
        """Append one block to a blob if it still has the size and the ETag of `to`."""
        headers = {"x-ms-blob-condition-appendpos": str(to.size_bytes)}
        if to.etag:
            headers["If-Match"] = to.etag
        answer = self.transport.send(
            "PUT", name, query={"comp": "appendblock"}, headers=headers, body=data
        )
        if answer.status == 412 or answer.code == "BlobNotFound":
            return Appended(None, answer.tries)
        etag = expect_success(answer, "append", name).headers.get("etag", "")
        size, blocks = to.size_bytes + len(data), to.blocks + 1
        return Appended(BlobProperties(size, blocks, etag), answer.tries)

    def reject_pending_appends(self, name: str) -> BlobProperties | None:
        """Give a blob another ETag. Return its properties, or None if it does not exist.

        An append that an agent sent before it was killed may arrive later. It fails from now on, so
        that the size is final. An agent that still runs reads the new ETag, and appends again.
        """
        answer = self.transport.send("PUT", name, query={"comp": "metadata"})
        if answer.status == 404:
            return None
        expect_success(answer, "PUT metadata", name)
        return self.head(name)

    def list_names(self, prefix: str) -> list[str]:
        """Return the names of all blobs that start with `prefix`."""
        return list(self.list_sizes(prefix))

    def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of all blobs that start with `prefix`, by name."""
        return {
            blob.findtext("Name") or "": int(blob.findtext("Properties/Content-Length") or 0)
            for blob in self.list_blobs(prefix)
        }

    def list_metadata(self, prefix: str, limit: int | None = None) -> dict[str, dict[str, str]]:
        """Return the metadata of the blobs that start with `prefix`, by name.

        With `limit`, return at most that many, the first by name.
        """
        first = {} if limit is None else {"maxresults": str(limit)}
        return {
            blob.findtext("Name") or "": {
                pair.tag: pair.text or "" for pair in blob.iterfind("Metadata/*")
            }
            for blob in islice(self.list_blobs(prefix, include="metadata", **first), limit)
        }

    def list_blobs(self, prefix: str, **options: str) -> Iterator[Element]:
        """Yield the elements of the blobs that start with `prefix`, with further options."""
        from xml.etree import ElementTree  # noqa: PLC0415  many runs list no blobs

        query = {"restype": "container", "comp": "list", "prefix": prefix, **options}
        while True:
            answer = expect_success(self.transport.send("GET", "", query=query), "list", prefix)
            root = ElementTree.fromstring(answer.body.lstrip(b"\xef\xbb\xbf"))  # noqa: S314 - our own storage
            yield from root.iterfind("Blobs/Blob")
            query["marker"] = root.findtext("NextMarker") or ""
            if not query["marker"]:
                return

    def replace(self, name: str, body: bytes, etag: str) -> bool:
        """Write a block blob that must still have this ETag. Return False if it changed."""
        return self._put_if(name, body, {"If-Match": etag})

    def _put_if(self, name: str, body: bytes, condition: Mapping[str, str]) -> bool:
        headers = {**_block_blob(name), **condition}
        answer = self.transport.send("PUT", name, headers=headers, body=body)
        if answer.status not in (409, 412):
            expect_success(answer, "PUT", name)
            return True
        # If the answer to an earlier try was lost, that try may have written the existing blob.
        return answer.tries > 1 and self.get(name) == body


def content_type(name: str) -> str:
    """Return the content type by the suffix of the name."""
    suffix = Path(name).suffix
    known = CONTENT_TYPES.get(suffix)
    if known is None and suffix:
        import mimetypes  # noqa: PLC0415  it reads the tables of the system

        known = mimetypes.guess_type(quote(name))[0]
    return known or "application/octet-stream"


def _block_id(number: int) -> str:
    # All IDs of a blob must have the same length (Put Block docs).
    return base64.b64encode(b"%08d" % number).decode()


def _block_blob(name: str) -> Mapping[str, str]:
    return {"x-ms-blob-type": "BlockBlob", "x-ms-blob-content-type": content_type(name)}


def expect_success(answer: StorageResponse, verb: str, name: str) -> StorageResponse:
    """Return the answer. Raise StorageRequestError if it is an error."""
    if answer.status >= 300:
        what = f"{verb} {name}"
        raise StorageRequestError(
            answer.status, answer.code, what, answer.why, is_retryable=answer.is_retryable
        )
    return answer


def append_interval_s(blocks: int) -> float:
    """Return the seconds between two appends to a blob of `blocks` blocks.

    After two hours of constant output the interval doubles every 1,800 blocks, so that a task that
    prints for 120 days stays below 50,000 blocks.
    """
    if blocks < QUICK_BLOCKS:
        return QUICK_S
    if blocks < STEADY_BLOCKS:
        return STEADY_S
    return STEADY_S * 2 ** ((blocks - STEADY_BLOCKS) / BLOCKS_PER_DOUBLING)


class BlobShrankError(Exception):
    """Storage lost bytes that it had acknowledged, so they must be sent again."""

    def __init__(self, name: str, lost_bytes: int) -> None:
        super().__init__(f"storage lost the last {lost_bytes} bytes of {name}")
        self.lost_bytes = lost_bytes


class AppendBlob:
    """Appends to one blob. Not safe for concurrent use by several threads.

    Each append is conditional on the state of the blob after the previous one. After an error, call
    `append` again with the same data, which may have been written.
    """

    def __init__(self, container: ContainerClient, name: str) -> None:
        self._container = container
        self.name = name
        self._blob = BlobProperties(0, 0)
        self._may_be_written = False  # the data of the last, failed call

    def open(self) -> None:
        """Create the blob, or continue at its end if it exists."""
        self._blob = self._container.create_append(self.name) or self._find()

    @property
    def position(self) -> int:
        """The last known size of the blob in bytes."""
        return self._blob.size_bytes

    @property
    def blocks(self) -> int:
        """The last known number of blocks of the blob."""
        return self._blob.blocks

    @property
    def is_full(self) -> bool:
        """True if only the reserved blocks are left."""
        return self.blocks >= MAX_BLOCKS - RESERVED_BLOCKS

    @property
    def is_at_end(self) -> bool:
        """True if at most one block is left."""
        return self.blocks >= MAX_BLOCKS - 1

    def append(self, data: bytes) -> None:
        """Append at most 4 MiB, exactly once. Raise StorageRequestError or BlobShrankError."""
        if len(data) > MAX_APPEND_BYTES:
            raise ValueError(f"{len(data)} bytes do not fit into one block")
        while True:
            may_be_written, self._may_be_written = self._may_be_written, True
            answer = self._container.append(self.name, data, self._blob)
            found = answer.blob
            if found is None:
                found = self._find()
                self._raise_if_shorter(found)
                if not (may_be_written or answer.tries > 1) or not self._has_after_end(data, found):
                    # If nothing changed, the service compares ETags incorrectly: do without.
                    is_same = found == self._blob
                    self._blob = replace(found, etag="") if is_same else found
                    self._may_be_written = False
                    continue
            self._blob, self._may_be_written = found, False
            return

    def check(self) -> None:
        """Raise BlobShrankError if the blob is shorter than the data that was appended."""
        if self._blob.size_bytes:
            self._raise_if_shorter(self._find())

    def _raise_if_shorter(self, found: BlobProperties) -> None:
        lost = self._blob.size_bytes - found.size_bytes
        if lost > 0:
            self._blob, self._may_be_written = found, False
            raise BlobShrankError(self.name, lost)

    def _has_after_end(self, data: bytes, found: BlobProperties) -> bool:
        """Return True if an earlier try wrote the data after the known end of the blob."""
        start = self._blob.size_bytes
        if found.size_bytes < start + len(data):
            return False
        return self._container.get_range(self.name, start, len(data)) == data

    def _find(self) -> BlobProperties:
        found = self._container.head(self.name)
        if found is None:
            self._container.create_append(self.name)
            found = self._container.head(self.name)
        if found is None:
            raise StorageRequestError(
                404, "BlobNotFound", f"append {self.name}: it cannot be created"
            )
        return found
