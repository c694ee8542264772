"""The model registry of the client: the `models` container over the SDK."""

from __future__ import annotations

import hashlib
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import BlobBlock, ContentSettings

from runner.azure.auth.credentials import Connection
from runner.azure.faults import error_code, service_errors
from runner.azure.storage.blobs import BlobContainer, if_unchanged
from runner.protocol.models import (
    COPY_BLOCK_BYTES,
    DIGEST_READ_BYTES,
    SUMMARY_METADATA,
    StoredModelBlob,
)

_CONFLICTS = (ResourceExistsError, ResourceModifiedError)


class ModelContainer:
    """The `ModelStore` of the client. Methods raise RunnerError if a request fails."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        service, outputs = connection.blob_service(), connection.outputs
        self._client = service.get_container_client(outputs.container_models)
        self._container = BlobContainer(service, outputs.container_models)

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the blob does not exist."""
        with service_errors(f"reading {name}"):
            try:
                stream = self._client.get_blob_client(name).download_blob(decompress=False)
            except ResourceNotFoundError as err:
                return _none_if_missing(err)
            return stream.readall(), str(stream.properties.etag)

    def create(self, name: str, body: bytes, summary: str = "") -> bool:
        """Write a blob unless it exists. Return True if this call certainly wrote it."""
        return self._write(name, body, summary, overwrite=False)

    def replace(self, name: str, body: bytes, etag: str, summary: str = "") -> bool:
        """Replace the version with this ETag. Return True if this call certainly did."""
        return self._write(name, body, summary, overwrite=True, **if_unchanged(etag))

    def _write(self, name: str, body: bytes, summary: str, **options: Any) -> bool:
        with service_errors(f"writing {name}"):
            try:
                self._client.get_blob_client(name).upload_blob(
                    body,
                    metadata={SUMMARY_METADATA: summary} if summary else None,
                    content_settings=ContentSettings(content_type="application/json"),
                    **options,
                )
            except _CONFLICTS as err:
                return self._container.is_own_write(err, name, body)
            return True

    def list(self, prefix: str) -> list[StoredModelBlob]:
        """Return all blobs below a prefix."""
        with service_errors(f"listing {prefix}"):
            return [
                StoredModelBlob(
                    str(blob.name),
                    int(blob.size or 0),
                    str(blob.etag),
                    str((blob.metadata or {}).get(SUMMARY_METADATA) or ""),
                )
                for blob in self._client.list_blobs(name_starts_with=prefix, include=["metadata"])
            ]

    def names(self) -> list[str]:
        """Return the names of the top folders, sorted."""
        return sorted(self._container.folders())

    def copy(self, source: str, name: str, size_bytes: int, *, replace: bool) -> bool:
        """Copy a blob of the `runs` container within the service, in blocks.

        Returns:
            False if the source does not exist.
        """
        if not size_bytes:
            self._container.put_metadata(name, {}, overwrite=replace)
            return True
        client = self._client.get_blob_client(name)
        url, authorization = self._connection.copy_source(source)
        options: dict[str, Any] = {"source_authorization": authorization} if authorization else {}
        missing: dict[str, Any] = {} if replace else {"match_condition": MatchConditions.IfMissing}
        blocks: list[BlobBlock] = []
        with service_errors(f"copying {source}"):
            try:
                for first in range(0, size_bytes, COPY_BLOCK_BYTES):
                    # The same IDs as the agent (the SDK encodes them): all block IDs of a blob must
                    # have one length, including those that an interrupted copy has staged.
                    block_id = f"{len(blocks):08d}"
                    length = min(COPY_BLOCK_BYTES, size_bytes - first)
                    client.stage_block_from_url(block_id, url, first, length, **options)
                    blocks.append(BlobBlock(block_id))
                client.commit_block_list(blocks, **missing)
            except ResourceNotFoundError as err:
                return _none_if_missing(err) is not None
            except HttpResponseError as err:
                # If the commit of another process dropped the staged blocks, the blob exists.
                if not isinstance(err, _CONFLICTS) and error_code(err) != "InvalidBlockList":
                    raise
        return True

    def digest(self, name: str) -> tuple[int, str] | None:
        """Read a blob and return its size and SHA-256, or None if it does not exist."""
        size, digest = self._container.size(name), hashlib.sha256()
        if size is None:
            return None
        for first in range(0, size, DIGEST_READ_BYTES):
            block = self._container.read_range(name, first, min(DIGEST_READ_BYTES, size - first))
            if not block:  # replaced or removed while it was read
                return None
            digest.update(block)
        return size, digest.hexdigest()

    def touch(self, name: str) -> bool:
        """Give the blob a new ETag. Return False if it does not exist."""
        with service_errors(f"touching {name}"):
            try:
                self._client.get_blob_client(name).set_blob_metadata({})
            except ResourceNotFoundError as err:
                return _none_if_missing(err) is not None
            return True

    def delete(self, name: str, etag: str) -> bool:
        """Delete the blob with this ETag. Return True if it does not exist any more."""
        with service_errors(f"deleting {name}"):
            try:
                self._client.get_blob_client(name).delete_blob(**if_unchanged(etag))
            except ResourceNotFoundError as err:
                return _none_if_missing(err) is None
            except _CONFLICTS:
                return False
            return True


def _none_if_missing(err: ResourceNotFoundError) -> None:
    """Return None for a missing blob, and raise the error of a missing container."""
    if error_code(err) == "ContainerNotFound":
        raise err
