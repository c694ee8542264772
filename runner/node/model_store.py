"""The agent's side of the registry: the `models` container over plain HTTP."""

from __future__ import annotations

import base64
import hashlib
from xml.etree import ElementTree

from runner.node.blobs import Container
from runner.node.registry import StoredBlob
from runner.node.transport import Answer, StorageError

# Put Block From URL takes 4,000 MiB; smaller ones lose less to a cut connection.
COPY_BLOCK_BYTES = 64 * 1024 * 1024
SUMMARY = "summary"  # the metadata of a version that a listing brings along
READ_BYTES = 8 * 1024 * 1024


class NodeModels:
    """`ModelStore` of the agent; `runs` is where outputs are copied from. Raises StorageError."""

    def __init__(self, models: Container, runs: Container) -> None:
        self._models = models
        self._transport = models.transport
        self._runs = runs

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Content and ETag, or None where there is no blob."""
        answer = self._transport.send("GET", name)
        if _is_missing(answer):
            return None
        answer = _expect(answer, "GET", name)
        return answer.body, answer.headers.get("etag", "")

    def create(self, name: str, body: bytes, summary: str = "") -> bool:
        """Write unless the blob exists; whether this call surely wrote it."""
        return self._write(name, body, summary, {"If-None-Match": "*"})

    def replace(self, name: str, body: bytes, etag: str, summary: str = "") -> bool:
        """Write over the version with this ETag; whether this call surely did."""
        return self._write(name, body, summary, {"If-Match": etag})

    def _write(self, name: str, body: bytes, summary: str, condition: dict[str, str]) -> bool:
        headers = {"x-ms-blob-type": "BlockBlob", **condition}
        headers["x-ms-blob-content-type"] = "application/json"
        if summary:
            headers[f"x-ms-meta-{SUMMARY}"] = summary
        answer = self._transport.send("PUT", name, headers=headers, body=body)
        if answer.status in (409, 412):
            return False
        _expect(answer, "PUT", name)
        return True

    def list(self, prefix: str) -> list[StoredBlob]:
        """All blobs below a prefix."""
        found: list[StoredBlob] = []
        query = {"restype": "container", "comp": "list", "prefix": prefix}
        query["include"] = "metadata"
        while True:
            answer = _expect(self._transport.send("GET", "", query=query), "list", prefix)
            root = ElementTree.fromstring(answer.body.lstrip(b"\xef\xbb\xbf"))  # noqa: S314
            for node in root.iterfind("Blobs/Blob"):
                size = node.findtext("Properties/Content-Length") or "0"
                etag = node.findtext("Properties/Etag") or ""
                summary = node.findtext(f"Metadata/{SUMMARY}") or ""
                found.append(StoredBlob(node.findtext("Name") or "", int(size), etag, summary))
            marker = root.findtext("NextMarker")
            if not marker:
                return found
            query["marker"] = marker

    def copy(self, source: str, name: str, size_bytes: int, *, replace: bool) -> bool:
        """Copy a blob of the `runs` container inside of the service, in blocks of any number."""
        condition = {} if replace else {"If-None-Match": "*"}
        if not size_bytes:
            headers = {"x-ms-blob-type": "BlockBlob", **condition}
            return self._commit(self._transport.send("PUT", name, headers=headers), name)
        ids: list[str] = []
        for first in range(0, size_bytes, COPY_BLOCK_BYTES):
            last = min(first + COPY_BLOCK_BYTES, size_bytes) - 1
            # The same ids for everybody: whoever copies this blob stages the same blocks.
            ids.append(base64.b64encode(b"%08d" % len(ids)).decode())
            query = {"comp": "block", "blockid": ids[-1]}
            headers = {
                **self._runs.transport.copy_source(source),
                "x-ms-source-range": f"bytes={first}-{last}",
            }
            answer = self._transport.send("PUT", name, query=query, headers=headers)
            if _is_missing(answer):
                return False
            _expect(answer, "copy", source)
        latest = "".join(f"<Latest>{block_id}</Latest>" for block_id in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        query = {"comp": "blocklist"}
        answer = self._transport.send("PUT", name, query=query, headers=condition, body=body)
        return self._commit(answer, name)

    def _commit(self, answer: Answer, name: str) -> bool:
        # Somebody else's commit drops the blocks that were staged; then the blob is there.
        if answer.status not in (409, 412) and answer.code != "InvalidBlockList":
            _expect(answer, "PUT", name)
        return True

    def digest(self, name: str) -> tuple[int, str] | None:
        """Size and SHA-256 of what lies there, read back; None where there is nothing."""
        found = self._models.head(name)
        if found is None:
            return None
        digest = hashlib.sha256()
        for first in range(0, found.size_bytes, READ_BYTES):
            size = min(READ_BYTES, found.size_bytes - first)
            try:
                digest.update(self._models.get_range(name, first, size))
            except StorageError as err:
                if err.status in (404, 416):  # replaced, or removed, while it was read
                    return None
                raise
        return found.size_bytes, digest.hexdigest()

    def touch(self, name: str) -> bool:
        """Give the blob a new ETag; False where there is none."""
        answer = self._transport.send("PUT", name, query={"comp": "metadata"})
        if _is_missing(answer):
            return False
        _expect(answer, "touch", name)
        return True


def _is_missing(answer: Answer) -> bool:
    """A missing container is no missing blob: that is an error worth telling."""
    return answer.status == 404 and answer.code != "ContainerNotFound"


def _expect(answer: Answer, verb: str, name: str) -> Answer:
    if answer.status >= 300:
        raise StorageError(answer.status, answer.code, f"{verb} {name}")
    return answer
