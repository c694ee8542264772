"""Blob containers over the SDK: documents and files of a container, and creating containers.

`BlobContainer` is one container: conditional writes, reads from an offset, and uploads of files in
parallel blocks that continue after an interruption. `BlobStore` is its `FileStore`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4
from xml.etree import ElementTree

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    IncompleteReadError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.core.rest import HttpRequest
from azure.storage.blob import (
    BlobBlock,
    BlobClient,
    BlobProperties,
    BlobServiceClient,
    ContainerClient,
    ContentSettings,
)

from runner.azure.auth.credentials import Connection
from runner.azure.faults import error_code, read_or_none, service_errors, was_repeated
from runner.azure.storage.stores import ChangedError, OnBytes, SourceChangedError, StoredFile
from runner.protocol.errors import RunnerError
from runner.protocol.paths import (
    blob_name,
    file_path,
    is_shortened,
    listed_prefix,
    stored_path_from_bytes,
)

T = TypeVar("T")
R = TypeVar("R")
MIB = 1024 * 1024
BLOCK_BYTES = 8 * MIB
_PARALLEL = 8
# A blob has at most 50,000 blocks (learn.microsoft.com/answers/questions/614012, read 2026-11-21,
# which quotes "Scalability targets for Blob storage").
_MAX_BLOCKS = 50_000
_NAME_METADATA = "name"  # metadata with the full name of a blob with a shortened name, in base64
_PARALLEL_BLOCKS = 16  # threads for all files of a container
# Characters of a file's name in the name of its part, which file systems limit.
_PART_NAME_CHARS = 40
_SMALL_BYTES = 4 * MIB  # size up to which `read` needs one request
_MAX_AHEAD = 8  # parallel blocks of one file
# Maximum age of a stored blob that a submission uses; older ones are renewed.
RENEWED_AFTER = timedelta(hours=12)
# https://learn.microsoft.com/rest/api/storageservices/blob-batch (read 2026-11-23)
_DELETES_PER_REQUEST = 64  # of at most 256: a smaller batch has lower latency
_DELETED_STATUSES = frozenset({202, 404})
_CONFLICTS = (ResourceExistsError, ResourceModifiedError)
_CHANGED_CODES = frozenset({"BlobNotFound", "ConditionNotMet", "ContainerNotFound", "InvalidRange"})


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One listed blob."""

    name: str
    size_bytes: int
    etag: str = ""  # with quotes, as in a header
    md5: str | None = None  # base64, as in a header; None if the writer sent none
    modified: datetime | None = None


class BlobContainer:
    """One container. Methods raise RunnerError if a request fails.

    `close` ends the threads of `upload_file`, which are started with the first large file.
    """

    def __init__(self, service: BlobServiceClient, name: str) -> None:
        self.client: ContainerClient = service.get_container_client(name)
        self.name = name

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that send and receive the blocks of large files."""
        return ThreadPoolExecutor(_PARALLEL_BLOCKS, thread_name_prefix="block")

    def blob(self, name: str) -> BlobClient:
        """Return the SDK's client of one blob, whose full name may be too long for storage."""
        return self.client.get_blob_client(self._name_of(name))

    def _name_of(self, name: str) -> str:
        """Return the name in storage.

        Raises:
            RunnerError: R-BLOB-NAME, the name leads out of the container: HTTP resolves `..` in it.
        """
        if any(part in (".", "..") for part in name.split("/")):
            raise RunnerError(
                "R-BLOB-NAME",
                f"{name!r} cannot be the name of a blob",
                why=f"it leads out of container {self.name}, so whoever wrote it means another one",
                fix="find out who wrote the record that names it, and delete the record",
            )
        return blob_name(name)

    def read(self, blob: str) -> bytes | None:
        """Return the content of a blob, or None if it does not exist."""
        with service_errors(f"reading {blob}"):
            is_known, content = self._read_small(blob)
        return content if is_known else self.read_range(blob, 0, None)

    def _read_small(self, blob: str) -> tuple[bool, bytes | None]:
        """Return True with the content of a blob, or with None if it does not exist.

        This sends one request through the pipeline of the SDK, because its downloader takes twice
        as long for a document. Return False for a large blob and for every other response, so that
        the SDK reads the blob.
        """
        container, _, sas = self.client.url.partition("?")
        request = HttpRequest(
            "GET",
            f"{container}/{quote(self._name_of(blob), safe='~/')}{'?' if sas else ''}{sas}",
            headers={"x-ms-range": f"bytes=0-{_SMALL_BYTES - 1}"},
        )
        answer = self._send_request(request, stream=True)
        with answer, contextlib.suppress(AzureError):
            if answer.headers.get("x-ms-error-code") == "BlobNotFound":
                return True, None
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if answer.status_code == HTTPStatus.PARTIAL_CONTENT and total.isdigit():
                content = b"".join(answer.iter_raw())
                return len(content) == int(total), content
        return False, None

    def _send_request(self, request: HttpRequest, *, stream: bool = False) -> Any:
        """Send a request through the pipeline of the SDK. Return the response, even an error."""
        request.headers["x-ms-version"] = str(self.client.api_version)
        send: Any = self.client._client._send_request  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        return send(request, stream=stream)

    def read_range(self, blob: str, offset: int, length: int | None) -> bytes | None:
        """Return at most `length` bytes from `offset`, or all if it is None.

        Returns nothing at or beyond the end, and None if the blob is missing.
        """
        with service_errors(f"reading {blob}"):
            try:
                return (
                    self.blob(blob)
                    .download_blob(
                        offset=offset,
                        length=length,
                        raw_response_hook=_release_empty,
                        decompress=False,
                    )
                    .readall()
                )
            except ResourceNotFoundError as err:
                if error_code(err) == "ContainerNotFound":
                    raise
                return None
            except HttpResponseError as err:
                if error_code(err) == "InvalidRange":
                    return b""
                raise

    def size(self, blob: str) -> int | None:
        """Return the size in bytes, or None if the blob does not exist."""
        found = self._find(blob)
        return None if found is None else found.size

    def _find(self, blob: str) -> BlobProperties | None:
        client = self.blob(blob)
        return read_or_none(f"reading the properties of {blob}", client.get_blob_properties)

    def create(self, blob: str, document: Mapping[str, Any]) -> bool:
        """Write a JSON document unless the blob exists. Return True if this call wrote it."""
        return self.create_bytes(blob, json.dumps(document, indent=2).encode(), "application/json")

    def create_bytes(self, blob: str, content: bytes, content_type: str) -> bool:
        """Write bytes unless the blob exists. Return True if this call wrote them."""
        with service_errors(f"writing {blob}"):
            try:
                self.blob(blob).upload_blob(
                    content,
                    overwrite=False,
                    content_settings=ContentSettings(content_type=content_type),
                )
            except _CONFLICTS as err:
                return self.is_own_write(err, blob, content)
            return True

    def is_own_write(self, err: HttpResponseError, blob: str, content: bytes) -> bool:
        """Return True if a rejected write succeeded before, and only its response was lost."""
        return was_repeated(err) and self.read(blob) == content

    def put(self, blob: str, document: Mapping[str, Any]) -> None:
        """Write a JSON document, replacing an existing blob."""
        with service_errors(f"writing {blob}"):
            self.blob(blob).upload_blob(
                json.dumps(document, indent=2).encode(),
                overwrite=True,
                content_settings=ContentSettings(content_type="application/json"),
            )

    def update(self, blob: str, change: Callable[[bytes], bytes | None]) -> bool:
        """Replace the content of a blob by `change(content)`, called again after a conflict.

        Return False if the blob is missing, or was deleted because `change` returned None.
        """
        with service_errors(f"updating {blob}"):
            while True:
                try:
                    found = self.blob(blob).download_blob(decompress=False)
                    content = change(found.readall())
                    condition = if_unchanged(found.properties.etag)
                    if content is None:
                        self.blob(blob).delete_blob(**condition)
                    else:
                        self.blob(blob).upload_blob(content, overwrite=True, **condition)
                    return content is not None
                except ResourceModifiedError:
                    continue
                except ResourceNotFoundError:
                    return False

    def upload_file(
        self,
        blob: str,
        source: Path,
        on_bytes: OnBytes,
        over: str | None = None,
        sha256: str | None = None,
    ) -> None:
        """Write a file as a blob with its MD5, whole or not at all.

        Blocks that an interrupted upload of the same content has staged are not sent again.

        Args:
            on_bytes: Called with the number of bytes that were sent or were already staged.
            over: ETag of the blob to replace; None means that the blob must not exist.
            sha256: Expected hash of the content, if it is known.

        Raises:
            ChangedError: the blob exists, or has another ETag than `over`.
            SourceChangedError: the file changed while it was sent, or does not have that `sha256`.
            OSError: the file cannot be read.
        """
        with service_errors(f"uploading {blob}"), source.open("rb") as content:
            hashes = _Hashes(sha256)
            before = os.fstat(content.fileno())
            if before.st_size <= BLOCK_BYTES:
                data = content.read(BLOCK_BYTES + 1)
                hashes.update(data)
                write = partial(self.blob(blob).upload_blob, data, overwrite=over is not None)
            else:
                blocks = self._stage_blocks(blob, content, before.st_size, hashes, on_bytes)
                write = partial(self.blob(blob).commit_block_list, blocks)
            hashes.check(content, before)
            missing: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
            condition = missing if over is None else if_unchanged(over)
            metadata = _name_metadata(blob)
            try:
                write(
                    content_settings=ContentSettings(content_md5=hashes.md5()),
                    metadata=metadata,
                    **condition,
                )
            except _CONFLICTS as err:
                if not (
                    was_repeated(err) and self._has_content(blob, before.st_size, hashes.md5())
                ):
                    raise ChangedError(blob) from err
            if before.st_size <= BLOCK_BYTES:
                on_bytes(before.st_size)

    def _has_content(self, blob: str, size: int, md5: bytearray) -> bool:
        with contextlib.suppress(ResourceNotFoundError):
            found = self.blob(blob).get_blob_properties()
            return (found.size, found.content_settings.content_md5) == (size, md5)
        return False

    def _stage_blocks(
        self, blob: str, content: IO[bytes], size: int, hashes: _Hashes, on_bytes: OnBytes
    ) -> list[BlobBlock]:
        """Send the blocks that are not staged yet. Return all blocks.

        The ID of a block contains the hash of all content up to its end.
        """
        staged = self._list_staged(blob)
        length = max(BLOCK_BYTES, -(-size // _MAX_BLOCKS))
        blocks: list[BlobBlock] = []

        def missing() -> Iterator[Callable[[], None]]:
            while data := content.read(length):
                hashes.update(data)
                block_id = f"{len(blocks):06d}{hashes.md5().hex()}"
                blocks.append(BlobBlock(block_id))
                if block_id in staged:
                    on_bytes(len(data))
                else:
                    yield partial(self._stage_block, blob, block_id, data, on_bytes)

        for _ in _run_ahead(self.threads, missing()):
            pass
        return blocks

    def _list_staged(self, blob: str) -> frozenset[str]:
        with contextlib.suppress(ResourceNotFoundError):
            _, uncommitted = self.blob(blob).get_block_list("uncommitted")
            return frozenset(_block_id(block.id) for block in uncommitted)
        return frozenset()

    def _stage_block(self, blob: str, block_id: str, data: bytes, on_bytes: OnBytes) -> None:
        self.blob(blob).stage_block(block_id, data, len(data))
        on_bytes(len(data))

    def stat(self, blob: str) -> BlobInfo | None:
        """Return a blob without its content, or None if it does not exist."""
        found = self._find(blob)
        return None if found is None else _to_info(found)

    def renew(self, found: BlobInfo) -> str | None:
        """Keep a blob from deletion. Return its ETag, or None if it has changed since `found`.

        An old blob gets a new ETag and date, so that a client that listed it does not delete it.
        """
        if found.modified is None or datetime.now(UTC) - found.modified <= RENEWED_AFTER:
            return found.etag
        same = if_unchanged(found.etag)
        with service_errors(f"renewing {found.name}"):
            try:
                return str(self.blob(found.name).set_blob_metadata({}, **same)["etag"])
            except (ResourceModifiedError, ResourceNotFoundError):
                return None

    def write(self, blob: str, content: bytes, over: str | None) -> str | None:
        """Write bytes. Return the ETag, or None if another client has written the blob.

        Args:
            blob: Name of the blob.
            content: The bytes.
            over: ETag of the blob to replace; None means that the blob must not exist.
        """
        with service_errors(f"writing {blob}"):
            try:
                written = self.blob(blob).upload_blob(
                    content,
                    overwrite=over is not None,
                    content_settings=ContentSettings(content_type="application/octet-stream"),
                    **if_unchanged(over),
                )
            except _CONFLICTS:
                return None
        return str(written["etag"])

    def delete(self, blob: str, etag: str = "") -> bool:
        """Delete a blob, only with this `etag` if given. Return False if it does not exist."""
        with service_errors(f"deleting {blob}"):
            try:
                self.blob(blob).delete_blob(**if_unchanged(etag))
            except (ResourceNotFoundError, ResourceModifiedError) as err:
                return was_repeated(err) and self.size(blob) is None
            return True

    def delete_all(self, blobs: Iterable[str], on_deleted: Callable[[int], object]) -> None:
        """Delete blobs and their snapshots, many per request; `on_deleted` receives counts."""
        names = list(blobs)
        for name in names:
            self._name_of(name)
        starts = range(0, len(names), _DELETES_PER_REQUEST)
        chunks = [names[first : first + _DELETES_PER_REQUEST] for first in starts]

        def delete(chunk: list[str]) -> None:
            with service_errors(f"deleting {len(chunk)} blobs"):
                answers = self.client.delete_blobs(
                    *chunk, delete_snapshots="include", raise_on_any_failure=False
                )
                codes = [answer.status_code for answer in answers]
            if len(codes) != len(chunk):  # Azurite rejects a batch as a whole in one answer
                codes = [0] * len(chunk)
            for name, code in zip(chunk, codes, strict=True):
                if code not in _DELETED_STATUSES:
                    self.delete(name)  # raises the error of this blob
            on_deleted(len(chunk))

        in_parallel(delete, chunks)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Yield all blobs below a prefix, by name."""
        with service_errors(f"listing {prefix}"):
            for blob in self.client.list_blobs(name_starts_with=prefix):
                yield _to_info(blob)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the names and sizes of all blobs below a prefix; faster than `list`."""
        marker: str | None = ""
        while marker is not None:
            with service_errors(f"listing {prefix}"):
                root = self._page(prefix, {}, marker)
                if root is None:  # the SDK raises its error
                    page = [(each.name, each.size_bytes) for each in self.list(prefix)]
                    marker = None
                else:
                    page = [
                        (_listed_name(each), int(each.findtext("Properties/Content-Length") or 0))
                        for each in root.iterfind("Blobs/Blob")
                    ]
                    marker = root.findtext("NextMarker") or None
            yield from page

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all blobs below a prefix; faster than `list`."""
        return (name for name, _ in self.list_metadata(prefix))

    def with_full_name(self, blob: BlobInfo) -> BlobInfo:
        """Return a listed blob with its full name, if its stored name is shortened."""
        if not is_shortened(blob.name):
            return blob
        with service_errors(f"reading the properties of {blob.name}"):
            return replace(blob, name=_full_name(self.blob(blob.name).get_blob_properties()))

    def put_metadata(self, blob: str, metadata: Mapping[str, str], *, overwrite: bool) -> None:
        """Write an empty blob with metadata, unless it exists and `overwrite` is False."""
        with service_errors(f"writing {blob}"), contextlib.suppress(*_CONFLICTS):
            self.blob(blob).upload_blob(b"", metadata=dict(metadata), overwrite=overwrite)

    def read_metadata(self, blob: str) -> Mapping[str, str] | None:
        """Return the metadata of a blob, or None if it does not exist."""
        found = self._find(blob)
        return None if found is None else dict(found.metadata or {})

    def list_metadata(self, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield names and metadata of all blobs below a prefix, 5,000 per request."""
        for page, _ in self.metadata_pages(prefix):
            yield from page

    def metadata_pages(
        self, prefix: str, first: int = 0, later: int = 0
    ) -> Iterator[tuple[list[tuple[str, Mapping[str, str]]], bool]]:
        """Yield pages of names and metadata of blobs below a prefix, and if more pages follow.

        Args:
            prefix: The prefix.
            first: Size of the first page; 0 means 5,000.
            later: Size of the pages after it.
        """
        marker: str | None = ""
        sizes = chain([first], repeat(later))
        while marker is not None:
            size = next(sizes)
            options = {"include": "metadata"} | ({"maxresults": str(size)} if size else {})
            with service_errors(f"listing {prefix}"):
                page, marker = self._metadata_page(prefix, options, marker)
            yield page, marker is not None

    def _metadata_page(
        self, prefix: str, options: Mapping[str, str], marker: str
    ) -> tuple[list[tuple[str, Mapping[str, str]]], str | None]:
        """Return names and metadata of one page, and the marker of the next one or None."""
        root = self._page(prefix, options, marker)
        if root is None:  # the SDK raises its error
            blobs = self.client.list_blobs(name_starts_with=prefix, include=["metadata"])
            return [(str(blob.name), dict(blob.metadata or {})) for blob in blobs], None
        found: list[tuple[str, Mapping[str, str]]] = [
            (
                _listed_name(blob),
                {each.tag: each.text or "" for each in blob.iterfind("Metadata/*")},
            )
            for blob in root.iterfind("Blobs/Blob")
        ]
        return found, root.findtext("NextMarker") or None

    def _page(
        self, prefix: str, options: Mapping[str, str], marker: str
    ) -> ElementTree.Element | None:
        """Return one page of a listing, or None if the service rejects the request.

        The request is that of the SDK, through its pipeline. The response is parsed here, because
        the SDK takes a millisecond per blob to make a model of all its properties.
        """
        query = {"restype": "container", "comp": "list", "prefix": prefix, **options}
        request = HttpRequest(
            "GET",
            self.client.url,
            params={**query, "marker": marker} if marker else query,
            headers={"Accept": "application/xml"},
        )
        answer = self._send_request(request)
        if answer.status_code != HTTPStatus.OK:
            return None
        return ElementTree.fromstring(answer.content.lstrip(b"\xef\xbb\xbf"))  # noqa: S314 - our own storage

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below a prefix, without the closing slash."""
        return (name.rstrip("/") for name in self.children(prefix) if name.endswith("/"))

    def children(self, prefix: str = "") -> Iterator[str]:
        """Yield the blobs and the folders, with a closing slash, directly below a prefix."""
        marker: str | None = ""
        while marker is not None:
            with service_errors(f"listing {self.client.container_name}"):
                root = self._page(prefix, {"delimiter": "/"}, marker)
                if root is None:  # the SDK raises its error
                    entries = self.client.walk_blobs(name_starts_with=prefix, delimiter="/")
                    page, marker = [str(entry.name) for entry in entries], None
                else:
                    page = [_listed_name(each) for each in root.iterfind("Blobs/*")]
                    marker = root.findtext("NextMarker") or None
            yield from page

    def download(
        self, blob: str, path: Path, on_bytes: OnBytes, check: Callable[[Path], None]
    ) -> None:
        """Write a blob to `path`, or nothing if it is incomplete or `check` raises an error.

        Creates the folder. `check` is called with the complete file before it is renamed to `path`.
        Blocks of zeros become holes, so that a sparse file stays sparse.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_old_parts(path.parent)
        with _new_part(path) as target:
            with service_errors(f"downloading {blob}"):
                stream = self.blob(blob).download_blob(decompress=False)
                for chunk in stream.chunks():
                    if chunk == bytes(len(chunk)):
                        target.seek(len(chunk), os.SEEK_CUR)
                    else:
                        target.write(chunk)
                    on_bytes(len(chunk))
            target.truncate()
            target.flush()
            part = Path(target.name)
            check(part)
            part.replace(path)


_PART_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.part")
_CLEANED: set[Path] = set()  # folders without parts of processes that were killed before


@contextlib.contextmanager
def _new_part(path: Path) -> Generator[IO[bytes]]:
    """Yield a new file beside `path`, locked until the end of the block, and remove it then."""
    while True:
        part = path.with_name(f".{path.name[:_PART_NAME_CHARS]}.{uuid4().hex[:8]}.part")
        with part.open("wb") as target:
            # Between its creation and the lock, another download may have removed it as an old one.
            if _lock(target.fileno()) is False or not part.exists():
                continue
            try:
                yield target
            finally:
                part.unlink(missing_ok=True)
            return


def _remove_old_parts(folder: Path) -> None:
    """Remove the parts that killed processes left in a folder, once in this process."""
    if folder in _CLEANED:
        return
    _CLEANED.add(folder)
    for part in folder.iterdir():
        if _PART_NAME.fullmatch(part.name) and part.is_file() and not part.is_symlink():
            with contextlib.suppress(OSError), part.open("ab") as held:
                if _lock(held.fileno()):  # nobody writes it
                    part.unlink()


def _lock(descriptor: int) -> bool | None:
    """Lock a file until it is closed.

    Returns:
        False if another download has the lock, None on a file system without locks.
    """
    import fcntl  # noqa: PLC0415  not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class BlobStore:
    """The files of one container, as a `FileStore`."""

    def __init__(self, service: BlobServiceClient, container: str) -> None:
        self._container = BlobContainer(service, container)

    def close(self) -> None:
        """Cancel transfers that have not begun; running requests end by themselves."""
        self._container.threads.shutdown(wait=False, cancel_futures=True)

    def find(self, path: str) -> StoredFile | None:
        """Return one file, or None if it does not exist."""
        with service_errors(f"reading the properties of {path}"):
            try:
                return _to_stored_file(self._container.blob(path).get_blob_properties())
            except ResourceNotFoundError as err:
                if error_code(err) == "ContainerNotFound":
                    raise
                return None

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Yield all files below a folder, without the folder markers that other tools write."""
        folder = f"{prefix}/" if prefix else ""
        with service_errors(f"listing {prefix or self._container.name}"):
            start = listed_prefix(folder) if folder else None
            blobs = self._container.client.list_blobs(start, include=["metadata"])
            files = (_to_stored_file(blob) for blob in blobs if not _is_folder(blob))
            yield from (file for file in files if file.path.startswith(folder))

    def put(self, path: str, source: Path, on_bytes: OnBytes, over: StoredFile | None) -> None:
        """See `FileStore.put`."""
        self._container.upload_file(path, source, on_bytes, over.etag if over else None)

    def get(self, file: StoredFile, target: Path, on_bytes: OnBytes) -> bytes:
        """See `FileStore.get`."""
        mode = "r+b" if target.exists() else "w+b"
        with service_errors(f"downloading {file.path}"), target.open(mode) as part:
            digest = _hash_part(part, file.size_bytes)
            on_bytes(part.tell())
            for data in self._read_ranges(file, part.tell()):
                part.write(data)
                digest.update(data)
                on_bytes(len(data))
            return digest.digest()

    def delete(self, file: StoredFile) -> bool:
        """See `FileStore.delete`."""
        with service_errors(f"deleting {file.path}"):
            try:
                self._container.blob(file.path).delete_blob(
                    delete_snapshots="include", **if_unchanged(file.etag)
                )
            except ResourceNotFoundError as err:
                return was_repeated(err)
            except ResourceModifiedError as err:
                if self.find(file.path) is None:  # a missing blob never meets the condition
                    return was_repeated(err)
                raise ChangedError(file.path) from err
            return True

    def _read_ranges(self, file: StoredFile, start: int) -> Iterator[bytes]:
        """Yield the content from `start` in order; later ranges are requested ahead."""
        ranges = (
            partial(self._read_range, file, first, min(BLOCK_BYTES, file.size_bytes - first))
            for first in range(start, file.size_bytes, BLOCK_BYTES)
        )
        if file.size_bytes - start <= BLOCK_BYTES:  # one range needs no thread
            return (load() for load in ranges)
        return _run_ahead(self._container.threads, ranges)

    def _read_range(self, file: StoredFile, first: int, length: int) -> bytes:
        try:
            blob: Any = self._container.blob(file.path)
            stream = blob.download_blob(
                first,
                length,
                **if_unchanged(file.etag),
                decompress=False,
            )
            data: bytes = stream.readall()
        except HttpResponseError as err:
            if error_code(err) in _CHANGED_CODES:
                raise ChangedError(file.path) from err
            raise
        if len(data) != length:
            raise IncompleteReadError(f"{file.path}: {len(data)} of {length} bytes")
        return data


def if_unchanged(etag: str | None) -> dict[str, Any]:
    """Return the condition that a blob still has this ETag; none if the ETag is unknown."""
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}


class _Hashes:
    """The hashes of a file during its upload."""

    def __init__(self, sha256: str | None) -> None:
        self._expected = sha256
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size = 0

    def update(self, data: bytes) -> None:
        self._md5.update(data)
        self._size += len(data)
        if self._expected is not None:
            self._sha256.update(data)

    def md5(self) -> bytearray:
        return bytearray(self._md5.digest())

    def check(self, content: IO[bytes], before: os.stat_result) -> None:
        """Raise SourceChangedError if the file has changed or does not have the expected hash."""
        after = os.fstat(content.fileno())
        if (self._size, after.st_size, after.st_mtime_ns) != (
            before.st_size,
            before.st_size,
            before.st_mtime_ns,
        ):
            raise SourceChangedError
        if self._expected is not None and self._sha256.hexdigest() != self._expected:
            raise SourceChangedError


def _run_ahead(threads: ThreadPoolExecutor, work: Iterator[Callable[[], R]]) -> Iterator[R]:
    """Yield the results of `work` in order. Later calls already run in threads.

    No call is running any more when the iterator ends.
    """
    waiting: deque[Future[R]] = deque()
    try:
        for call in work:
            if len(waiting) >= _MAX_AHEAD:
                yield waiting.popleft().result()
            waiting.append(threads.submit(call))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            if not future.cancelled():
                future.exception()


def _release_empty(response: Any) -> None:
    """Read an empty body, because the SDK does not, and its connection could not be used again.

    Azurite returns an empty body for a range that begins at the end of a blob; Azure returns the
    error InvalidRange.
    """
    if response.http_response.headers.get("Content-Length") == "0":
        response.http_response.internal_response.content  # noqa: B018  a property that reads


def _to_stored_file(blob: BlobProperties) -> StoredFile:
    md5 = blob.content_settings.content_md5
    return StoredFile(
        _full_name(blob),
        int(blob.size or 0),
        bytes(md5) if md5 else None,
        _etag(blob),
        blob.last_modified,
    )


def _full_name(blob: BlobProperties) -> str:
    name = (blob.metadata or {}).get(_NAME_METADATA) if is_shortened(str(blob.name)) else None
    return stored_path_from_bytes(base64.b64decode(name)) if name else str(blob.name)


def _name_metadata(name: str) -> dict[str, str] | None:
    """Return metadata with the full name of a blob, or None if storage accepts that name."""
    if blob_name(name) == name:
        return None
    path = file_path(name).encode("utf-8", "surrogateescape")
    return {_NAME_METADATA: base64.b64encode(path).decode()}


def _listed_name(entry: ElementTree.Element) -> str:
    """Return the name of a listed blob; listings encode names that are invalid in XML."""
    found = entry.find("Name")
    name = "" if found is None else found.text or ""
    return unquote(name) if found is not None and found.get("Encoded") == "true" else name


def _etag(blob: BlobProperties) -> str:
    """Return the ETag with quotes, as in a header; listings omit them."""
    etag = str(blob.etag or "").strip('"')
    return f'"{etag}"' if etag else ""


def _is_folder(blob: BlobProperties) -> bool:
    return bool((blob.metadata or {}).get("hdi_isfolder"))


def _block_id(listed: str) -> str:
    """Decode the ID of a listed block, which some versions of the SDK encode and never decode."""
    try:
        return base64.b64decode(listed, validate=True).decode()
    except ValueError:
        return listed


def _hash_part(part: IO[bytes], size: int) -> Any:
    """Hash the bytes of an earlier attempt and seek to their end; drop bytes beyond `size`."""
    digest = hashlib.md5(usedforsecurity=False)
    if os.fstat(part.fileno()).st_size > size:
        part.truncate(0)
    while data := part.read(MIB):
        digest.update(data)
    return digest


def _to_info(blob: BlobProperties) -> BlobInfo:
    digest = blob.content_settings.content_md5
    return BlobInfo(
        str(blob.name),
        int(blob.size or 0),
        _etag(blob),
        base64.b64encode(bytes(digest)).decode() if digest else None,
        blob.last_modified,
    )


def in_parallel(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of `function` for every item, in order. Raise the first error.

    Up to eight calls run in parallel.
    """
    work = list(items)
    if len(work) <= 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(max_workers=min(_PARALLEL, len(work))) as pool:
        return list(pool.map(function, work))


def ensure_containers(connection: Connection) -> None:
    """Create the containers of the stack if they are missing."""
    service = connection.blob_service()
    with service_errors("creating the blob containers"):
        present = {container.name for container in service.list_containers()}
        for name in connection.outputs.containers:
            if name in present:
                continue
            try:
                service.create_container(name)  # pyright: ignore[reportUnknownMemberType]
            except ResourceExistsError:  # another process created it
                continue


def stored_bytes(connection: Connection) -> dict[str, int]:
    """Return the size in bytes of each container of all parts of the stack; 0 if it is missing."""
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(
        name for part in connection.outputs.parts() for name in part.containers
    ):
        container = connection.blob_service().get_container_client(name)
        with service_errors(f"measuring container {name}"):
            try:
                sizes[name] = sum(blob.size or 0 for blob in container.list_blobs())
            except ResourceNotFoundError:
                sizes[name] = 0
    return sizes
