"""Blob containers: conditional writes, reads from an offset, parallel transfers; and creating
them.

`BlobContainer` is one container of a run's storage account.
"""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import (
    BlobPrefix,
    BlobProperties,
    BlobServiceClient,
    ContainerClient,
    ContentSettings,
)

from runner.azure.auth.credentials import Connection
from runner.azure.faults import error_code, service_errors
from runner.azure.storage.checked_reader import CheckedReader, Hashed
from runner.azure.storage.stores import CountingReader, OnBytes

T = TypeVar("T")
R = TypeVar("R")
_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One listed blob."""

    name: str
    size_bytes: int
    etag: str = ""  # in quotes, as in a header
    md5: str | None = None  # in base64, as in a header; not every writer sends one


class BlobContainer:
    """One container. Every method raises RunnerError for what the service refuses."""

    def __init__(self, service: BlobServiceClient, name: str) -> None:
        self._client: ContainerClient = service.get_container_client(name)
        self.name = name

    def read(self, blob: str) -> bytes | None:
        """The whole blob, or None where there is none."""
        return self.read_range(blob, 0, None)

    def read_range(self, blob: str, offset: int, length: int | None) -> bytes | None:
        """Bytes from `offset`: empty at or beyond the end, None where there is no blob."""
        with service_errors(f"reading {blob}"):
            try:
                client = self._client.get_blob_client(blob)
                return client.download_blob(offset=offset, length=length).readall()
            except ResourceNotFoundError as err:
                if error_code(err) == "ContainerNotFound":
                    raise
                return None
            except HttpResponseError as err:
                if error_code(err) == "InvalidRange":
                    return b""
                raise

    def size(self, blob: str) -> int | None:
        """Size in bytes, or None where there is no blob."""
        with service_errors(f"looking at {blob}"):
            try:
                return self._client.get_blob_client(blob).get_blob_properties().size
            except ResourceNotFoundError:
                return None

    def create(self, blob: str, document: Mapping[str, Any]) -> bool:
        """Write a JSON document unless the blob exists; whether this call wrote it."""
        return self.create_bytes(blob, json.dumps(document, indent=2).encode(), "application/json")

    def create_bytes(self, blob: str, content: bytes, content_type: str) -> bool:
        """Write bytes unless the blob exists; whether this call wrote it."""
        with service_errors(f"writing {blob}"):
            try:
                self._client.get_blob_client(blob).upload_blob(
                    content,
                    overwrite=False,
                    content_settings=ContentSettings(content_type=content_type),
                )
            except (ResourceExistsError, ResourceModifiedError):
                return False
            return True

    def put(self, blob: str, document: Mapping[str, Any]) -> None:
        """Write a JSON document, over what was there."""
        with service_errors(f"writing {blob}"):
            self._client.get_blob_client(blob).upload_blob(
                json.dumps(document, indent=2).encode(),
                overwrite=True,
                content_settings=ContentSettings(content_type="application/json"),
            )

    def upload_file(self, blob: str, path: Path, hashed: Hashed, on_bytes: OnBytes) -> bool:
        """Upload a file unless the blob exists; whether it was uploaded. Reports new bytes sent.

        Raises SourceChangedError where the content is not `hashed` any more: nothing is there then.
        """
        with service_errors(f"uploading {path.name}"), path.open("rb") as source:
            checked = CheckedReader(CountingReader(source, on_bytes), hashed)
            try:
                self._client.get_blob_client(blob).upload_blob(
                    checked,  # pyright: ignore[reportArgumentType] - read() is all the SDK calls
                    length=hashed.size_bytes,
                    overwrite=False,
                    max_concurrency=2,
                )
            except (ResourceExistsError, ResourceModifiedError):
                return False
            return True

    def delete(self, blob: str) -> None:
        """Delete a blob; nothing happens where there is none."""
        with service_errors(f"deleting {blob}"), contextlib.suppress(ResourceNotFoundError):
            self._client.get_blob_client(blob).delete_blob()

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """All blobs below a prefix, by name."""
        with service_errors(f"listing {prefix}"):
            for blob in self._client.list_blobs(name_starts_with=prefix):
                yield _info(blob)

    def put_metadata(self, blob: str, metadata: Mapping[str, str], *, overwrite: bool) -> None:
        """Write an empty blob that is all metadata; without `overwrite` unless it exists."""
        with (
            service_errors(f"writing {blob}"),
            contextlib.suppress(ResourceExistsError, ResourceModifiedError),
        ):
            self._client.get_blob_client(blob).upload_blob(
                b"", metadata=dict(metadata), overwrite=overwrite
            )

    def list_metadata(self, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Names and metadata of all blobs below a prefix, 5,000 a request."""
        with service_errors(f"listing {prefix}"):
            for blob in self._client.list_blobs(name_starts_with=prefix, include=["metadata"]):
                yield str(blob.name), dict(blob.metadata or {})

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Names of the folders directly below a prefix, without the closing slash."""
        with service_errors(f"listing {self._client.container_name}"):
            for entry in self._client.walk_blobs(name_starts_with=prefix, delimiter="/"):
                if isinstance(entry, BlobPrefix):
                    yield str(entry.name).rstrip("/")

    def download(
        self, blob: str, path: Path, on_bytes: OnBytes, check: Callable[[Path], None]
    ) -> None:
        """Write a blob to `path`, complete and passed by `check`, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
        try:
            with service_errors(f"downloading {blob}"), part.open("wb") as target:
                stream = self._client.get_blob_client(blob).download_blob()
                for chunk in stream.chunks():
                    target.write(chunk)
                    on_bytes(len(chunk))
            check(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _info(blob: BlobProperties) -> BlobInfo:
    digest = blob.content_settings.content_md5
    etag = str(blob.etag or "")
    return BlobInfo(
        str(blob.name),
        int(blob.size or 0),
        etag if etag.startswith('"') or not etag else f'"{etag}"',
        b64encode(bytes(digest)).decode() if digest else None,
    )


def in_parallel(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`function` of every item, eight at a time, in order; the first error is raised."""
    work = list(items)
    if len(work) <= 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(max_workers=min(_PARALLEL, len(work))) as pool:
        return list(pool.map(function, work))


def ensure_containers(connection: Connection) -> None:
    """Create the containers `runs`, `models` and `data` where they are missing."""
    outputs = connection.outputs
    service = connection.blob_service()
    with service_errors("making the blob containers"):
        wanted = (outputs.container_runs, outputs.container_models, outputs.container_data)
        present = {container.name for container in service.list_containers()}
        for name in wanted:
            if name in present:
                continue
            try:
                service.create_container(name)  # pyright: ignore[reportUnknownMemberType]
            except ResourceExistsError:  # made by another runner meanwhile
                continue


def stored_bytes(connection: Connection) -> dict[str, int]:
    """Bytes in each container of the stack; one that is not there holds none."""
    outputs = connection.outputs
    sizes: dict[str, int] = {}
    names = (outputs.container_runs, outputs.container_models, outputs.container_data)
    for name in names:
        container = connection.blob_service().get_container_client(name)
        with service_errors(f"measuring container {name}"):
            try:
                sizes[name] = sum(blob.size or 0 for blob in container.list_blobs())
            except ResourceNotFoundError:
                sizes[name] = 0
    return sizes
