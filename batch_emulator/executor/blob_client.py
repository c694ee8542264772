"""A small client of the blob service, which signs in with a SAS, a shared key or a managed
identity.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit
from xml.etree import ElementTree as ET

from batch_emulator.domain.shared_key import SignedRequest, secret_of, sign
from batch_emulator.executor.blob_sas import without_protocol
from batch_emulator.files_share.auth import strings_to_sign
from batch_emulator.folders import open_below
from batch_emulator.proxies import client_options

if TYPE_CHECKING:
    import httpx


_T = TypeVar("_T")

ATTEMPTS = 6  # within 15 s
# Our choice for storage on this machine that is stopped or busy: it may start later than the
# emulator, or have a full disk, and Batch never repeats a task whose files could not be downloaded.
AWAY_S = 300.0
TIMEOUT_S = 60.0  # without a byte of progress, not for a whole transfer
SINGLE_PUT_BYTES = 256 * 1024 * 1024  # the limit of the blob service for one Put Blob
BLOCK_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_TRANSFERS = 8
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_DENIED = frozenset({401, 403})
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class BlobRequestError(Exception):
    """A transfer failed permanently: `kind` is missing, denied, timeout or other."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class LocalWriteError(Exception):
    """The local side of a download failed; `cause` is the OSError."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def redact(url: str) -> str:
    """Return the URL without its query and credentials, which may be secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def blob_url(container_url: str, blob: str) -> str:
    """Return the URL of a blob; the container's URL may have a SAS."""
    parts = urlsplit(container_url)
    path = f"{parts.path.rstrip('/')}/{quote(os.fsencode(blob))}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """A blob in a listing; the entity tag without quotes."""

    name: str
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An uploaded blob."""

    etag: str
    size: int


class BlobClient:
    """Downloads, lists and uploads over one shared connection pool.

    `sign` signs each request; without it, a SAS in the URL gives access. Requests wait up to
    `away_s` for storage on this machine that is stopped or answers 503.
    """

    def __init__(
        self,
        *,
        retry_delay_s: float = 0.5,
        away_s: float = 0.0,
        sign: Callable[[httpx.Request], httpx.Request] | None = None,
        identity: NodeIdentity | None = None,
    ) -> None:
        self._sign = sign
        self._identity = identity
        self._of_identity: BlobClient | None = None
        self._retry_delay_s = retry_delay_s
        self._away_s = away_s
        self._client: httpx.AsyncClient | None = None
        self._transfers = asyncio.Semaphore(_TRANSFERS)
        self._block_bytes = BLOCK_BYTES
        self._single_put_bytes = SINGLE_PUT_BYTES

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._of_identity is not None:
            await self._of_identity.close()

    def on_behalf(self, reference: object, url: str) -> BlobClient:
        """Return the client for an `identityReference`, else this one. Raises BlobRequestError."""
        if not reference:
            return self
        if self._identity is None or not self._identity.covers(url):
            raise BlobRequestError("denied", "the identity has no access to this storage account")
        if self._of_identity is None:
            self._of_identity = BlobClient(
                retry_delay_s=self._retry_delay_s,
                away_s=self._away_s,
                sign=self._identity.sign,
                identity=self._identity,
            )
        return self._of_identity

    def _local(self, url: str) -> str:
        """Return the local form of an Azure URL of the linked account; others stay unchanged."""
        return url if self._identity is None else self._identity.local(url)

    def linked(self, container: str) -> tuple[BlobClient, str]:
        """Return client and URL of a container in the linked account. Raises BlobRequestError."""
        if self._identity is None:
            raise BlobRequestError("denied", "no storage account is linked to the Batch account")
        url = self._identity.container_url(container)
        return self.on_behalf(container, url), url

    async def download(self, url: str, create: Callable[[], int]) -> str:
        """Download a URL into a file and return its entity tag.

        Each attempt calls `create`, which returns the descriptor of a new file. Raises
        BlobRequestError or LocalWriteError.
        """
        async with self._transfers:
            local = self._local(url)
            return await self._retrying(lambda: self._download_once(local, create))

    async def list_blobs(self, container_url: str, prefix: str) -> list[str]:
        """Return the names of all blobs that start with `prefix`."""
        return [blob.name async for blob in self.blobs(container_url, prefix)]

    async def blobs(self, container_url: str, prefix: str = "") -> AsyncIterator[ListedBlob]:
        """Yield all blobs that start with `prefix`, page by page."""
        marker, local = "", self._local(container_url)
        while True:
            page, marker = await self._list_page(local, prefix, marker)
            for blob in page:
                yield blob
            if not marker:
                return

    async def delete(self, url: str) -> None:
        """Delete a blob if it exists. Raises BlobRequestError."""

        local = self._local(url)

        async def once() -> None:
            answer = await self._http().delete(local, headers={"x-ms-version": API_VERSION})
            if answer.status_code != 404:
                await _check(answer)

        await self._retrying(once)

    async def upload(
        self, url: str, source: Path, headers: Mapping[str, str], *, top: Path
    ) -> Uploaded:
        """Upload a file below `top` as a block blob; no link is followed.

        Raises BlobRequestError or OSError.
        """
        url = self._local(url)
        async with self._transfers:
            with os.fdopen(await asyncio.to_thread(open_below, source, top), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= self._single_put_bytes:
                    own = {"x-ms-blob-type": "BlockBlob", **headers}
                    etag = await self._put(url, file, 0, size, own)
                else:
                    etag = await self._put_blocks(url, file, size, headers)
                return Uploaded(etag, size)

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx  # noqa: PLC0415 - most tasks transfer nothing

            logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs with their SAS
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(TIMEOUT_S),
                auth=self._sign,
                follow_redirects=True,
                headers={"Accept-Encoding": "identity"},  # receive blobs as they are stored
                **client_options(),
            )
        return self._client

    async def _retrying(self, once: Callable[[], Awaitable[_T]]) -> _T:
        import httpx  # noqa: PLC0415

        away_until = time.monotonic() + self._away_s
        attempt = 1
        while True:
            try:
                return await once()
            except httpx.TimeoutException as err:
                failure = BlobRequestError("timeout", f"no answer in time ({type(err).__name__})")
            except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as err:
                raise BlobRequestError("other", f"the URL cannot be used: {err}") from err
            except httpx.TransportError as err:
                failure = BlobRequestError("other", f"{type(err).__name__}: {err}")
                refused = isinstance(err, httpx.ConnectError)
                if refused and err.request.url.host in _LOOPBACK and time.monotonic() < away_until:
                    await asyncio.sleep(self._retry_delay_s)
                    continue
            except _TransientAnswerError as err:
                failure = BlobRequestError("other", err.detail)
                if err.busy and err.host in _LOOPBACK and time.monotonic() < away_until:
                    await asyncio.sleep(self._retry_delay_s)
                    continue
            if attempt == ATTEMPTS:
                raise failure
            await asyncio.sleep(self._retry_delay_s * 2 ** (attempt - 1))
            attempt += 1

    async def _download_once(self, url: str, create: Callable[[], int]) -> str:
        async with self._http().stream("GET", url) as answer:
            await _check(answer)
            await _write(answer.aiter_raw(_CHUNK_BYTES), create)
            return _etag(answer)

    async def _list_page(
        self, container_url: str, prefix: str, marker: str
    ) -> tuple[list[ListedBlob], str]:
        query = f"restype=container&comp=list&maxresults=5000&prefix={quote(prefix, safe='')}"
        if marker:
            query += f"&marker={quote(marker, safe='')}"
        joint = "&" if urlsplit(container_url).query else "?"
        url = f"{container_url}{joint}{query}"
        answer = await self._retrying(lambda: self._send("GET", url))
        return parse_listing(answer.content)

    async def _put_blocks(
        self, url: str, file: BinaryIO, size: int, headers: Mapping[str, str]
    ) -> str:
        joint = "&" if urlsplit(url).query else "?"
        ids: list[str] = []
        for start in range(0, size, self._block_bytes):
            block = base64.b64encode(b"%08d" % len(ids)).decode()
            length = min(self._block_bytes, size - start)
            target = f"{url}{joint}comp=block&blockid={quote(block, safe='')}"
            await self._put(target, file, start, length, {})
            ids.append(block)
        latest = "".join(f"<Latest>{block}</Latest>" for block in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        target = f"{url}{joint}comp=blocklist"
        return _etag(await self._retrying(lambda: self._send("PUT", target, headers, body)))

    async def _put(
        self, url: str, file: BinaryIO, start: int, length: int, headers: Mapping[str, str]
    ) -> str:
        own = {**headers, "Content-Length": str(length)}

        async def once() -> httpx.Response:
            content = _read(file, start, length) if length else b""
            return await self._send("PUT", url, own, content)

        return _etag(await self._retrying(once))

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """Return the answer to a request if it was successful. Raises as `_check`."""
        sent = {"x-ms-version": API_VERSION, **(headers or {})}
        answer = await self._http().request(method, url, content=content, headers=sent)
        await _check(answer)
        return answer


class _TransientAnswerError(Exception):
    def __init__(self, answer: httpx.Response, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.busy = answer.status_code == 503
        self.host = answer.request.url.host


async def _check(answer: httpx.Response) -> None:
    """Raise the error of an unsuccessful status; its code is in a header or the XML body."""
    if answer.is_success:
        return
    await answer.aread()
    code = answer.headers.get("x-ms-error-code") or _error_code(answer.content)
    detail = f"HTTP {answer.status_code}" + (f" {code}" if code else "")
    if answer.status_code in _TRANSIENT:
        raise _TransientAnswerError(answer, detail)
    if answer.status_code in _DENIED or code == "PublicAccessNotPermitted":
        raise BlobRequestError("denied", detail)
    raise BlobRequestError("missing" if answer.status_code == 404 else "other", detail)


def _error_code(body: bytes) -> str:
    try:
        return ET.fromstring(body).findtext("Code") or ""  # noqa: S314 - expat limits entities
    except ET.ParseError:
        return ""


def _etag(answer: httpx.Response) -> str:
    return answer.headers.get("etag", "").strip('"')


def parse_listing(body: bytes) -> tuple[list[ListedBlob], str]:
    """Return the blobs and the next marker of a List Blobs response. Raises BlobRequestError."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat limits entities
    except ET.ParseError as err:
        raise BlobRequestError(
            "other", f"the container did not answer with a listing: {err}"
        ) from err
    blobs: list[ListedBlob] = []
    for element in root.iterfind("Blobs/Blob"):
        name = element.find("Name")
        text = "" if name is None else name.text or ""
        encoded = name is not None and name.get("Encoded") == "true"
        etag = (element.findtext("Properties/Etag") or "").strip('"')
        size = element.findtext("Properties/Content-Length") or "0"
        blobs.append(ListedBlob(unquote(text) if encoded else text, etag, int(size)))
    return blobs, root.findtext("NextMarker") or ""


async def _write(chunks: AsyncIterator[bytes], create: Callable[[], int]) -> None:
    try:
        file = os.fdopen(await asyncio.to_thread(create), "wb")
    except OSError as err:
        raise LocalWriteError(err) from err
    try:
        async for chunk in chunks:
            await asyncio.to_thread(file.write, chunk)
    except OSError as err:
        raise LocalWriteError(err) from err
    finally:
        await asyncio.to_thread(file.close)


async def _read(file: BinaryIO, start: int, length: int) -> AsyncIterator[bytes]:
    """Yield exactly `length` bytes; a file that has become shorter is an error."""
    position = start
    while position < start + length:
        wanted = min(_CHUNK_BYTES, start + length - position)
        chunk = await asyncio.to_thread(os.pread, file.fileno(), wanted, position)
        if not chunk:
            raise BlobRequestError("other", "the file shrank while it was uploaded")
        position += len(chunk)
        yield chunk


API_VERSION = "2020-10-02"  # the newest that every supported Azurite accepts


class BadKeyError(Exception):
    """The key is not base64."""


def signer(account: str, key: str) -> Callable[[httpx.Request], httpx.Request]:
    """Return the `auth` of httpx that signs each request. Raises BadKeyError."""
    try:
        secret_of(key)
    except ValueError as err:
        raise BadKeyError("the account key is not base64") from err

    def signed(request: httpx.Request) -> httpx.Request:
        request.headers.setdefault("x-ms-version", API_VERSION)
        request.headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        headers = {
            name: " ".join(text.split()) if name.startswith("x-ms-") else text
            for name, text in request.headers.items()
        }
        asked = SignedRequest(request.method, path, query, headers)
        signature = sign(strings_to_sign(asked, account)[0], key)
        request.headers["Authorization"] = f"SharedKey {account}:{signature}"
        return request

    return signed


_PORTS = {"http": 80, "https": 443}


class NodeIdentity:
    """The managed identity of nodes, which has access to one account. Raises BadKeyError."""

    def __init__(self, account: str, key: str, blob_endpoint: str | None, seed: str = "") -> None:
        self.account = account
        self.key = key
        self._seed = seed
        self.sign: Callable[[httpx.Request], httpx.Request] = signer(account, key)
        self._base = urlsplit(endpoint_of(account, blob_endpoint))

    def container_url(self, name: str) -> str:
        """Return the URL of a container of the account."""
        return f"{self._base.geturl().rstrip('/')}/{name}"

    def local(self, url: str) -> str:
        """Return the local form of an Azure URL of the account, or any other URL unchanged."""
        try:
            asked = urlsplit(url)
        except ValueError:
            return url
        if asked.hostname != f"{self.account}.blob.core.windows.net":
            return url
        path = f"{self._base.path.rstrip('/')}{asked.path}"
        query = without_protocol(asked.path, asked.query, self.account, self.key, self._seed)
        return urlunsplit((self._base.scheme, self._base.netloc, path, query, ""))

    def covers(self, url: str) -> bool:
        """Return True if a URL belongs to the account's blob service."""
        try:
            asked = urlsplit(self.local(url))
            here = _origin(asked) == _origin(self._base)
        except ValueError:  # an invalid port
            return False
        return here and asked.path.startswith(f"{self._base.path.rstrip('/')}/")


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)


def endpoint_of(account: str, blob_endpoint: str | None) -> str:
    """Return the local endpoint if its path is the account, else the endpoint of Azure."""
    if blob_endpoint is None or urlsplit(blob_endpoint).path.strip("/") != account:
        return f"https://{quote(account, safe='')}.blob.core.windows.net"
    return blob_endpoint.rstrip("/")
