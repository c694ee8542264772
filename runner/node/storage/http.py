"""HTTP requests to one container: persistent connections (one per thread) and retries."""

from __future__ import annotations

import base64
import functools
import http.client
import logging
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.node.storage.auth import AUTH_STATUSES, AuthErrors, Credential
from runner.node.storage.retries import RetryBudget, deadline, read_all, transfer_limit_s
from runner.protocol.codec import parse_json
from runner.protocol.host import whole_response_class
from runner.protocol.paths import blob_name

logger = logging.getLogger(__name__)

# The newest version the client relies on: append position headers, 4,000 MiB blocks.
STORAGE_VERSION = "2021-12-02"
TIMEOUT_S = 30.0
PIECE_BYTES = 1024 * 1024
# Servers close connections that are idle for some seconds (Node's default is five). A request on a
# closed connection fails, so the client closes idle connections first.
IDLE_S = 4.0
# Timeouts, throttling and server errors (REST docs, "Status and error codes").
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})

# The first failed tries are not logged.
TRIES_BEFORE_WARNING = 4


class StorageRequestError(Exception):
    """Storage refused a request.

    `status` is the HTTP status, `code` the service's error code. `is_retryable` is True if the same
    request may succeed later. The text ends with `why`, the most likely cause.
    """

    def __init__(
        self, status: int, code: str, what: str, why: str = "", *, is_retryable: bool = False
    ) -> None:
        text = f"{what}: {status} {code}".rstrip()
        super().__init__(f"{text} ({why})" if why else text)
        self.status = status
        self.code = code
        self.is_retryable = is_retryable


class StorageUnreachableError(StorageRequestError):
    """Storage sent no proper answer within the retry budget."""

    def __init__(self, status: int, code: str, what: str) -> None:
        super().__init__(status, code, what, is_retryable=True)


@dataclass(frozen=True)
class StorageResponse:
    """A complete response. `tries` is how often the request was sent.

    For an auth error, `why` is the likely cause, and `is_retryable` is True if it may be temporary.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    tries: int
    why: str = ""
    is_retryable: bool = False

    @property
    def code(self) -> str:
        """The service's error code; empty if there is none."""
        return self.headers.get("x-ms-error-code") or _code_in_body(self.body)


def _code_in_body(body: bytes) -> str:
    """Parse the code of an error body: XML of storage, JSON of Batch."""
    from xml.etree import ElementTree  # noqa: PLC0415  storage sends a header, too

    try:
        if body.startswith(b"{"):
            return str(parse_json(body).get("code") or "")
        return ElementTree.fromstring(body).findtext("Code") or ""  # noqa: S314 - our own storage
    except (ElementTree.ParseError, ValueError):
        return ""


class _HttpConnection(http.client.HTTPConnection):
    response_class = whole_response_class()


class _HttpsConnection(http.client.HTTPSConnection):
    response_class = whole_response_class()


class Transport:
    """Sends requests below one container URL. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        credential: Credential,
        retry_budget: RetryBudget,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not a container URL: {parts.scheme}://{parts.netloc}{parts.path}")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._credential = credential
        self._auth_errors = AuthErrors(credential)
        self._retry_budget = retry_budget
        self._timeout_s = timeout_s
        self._local = threading.local()

    def send(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        retry_auth_errors: bool = True,
        retry_s: float | None = None,
    ) -> StorageResponse:
        """Send the request, and retry it after temporary failures.

        Args:
            method: the HTTP method.
            name: the blob's name; empty for the container.
            query: the query without the credential.
            headers: the headers without those of the credential.
            body: the whole body.
            retry_auth_errors: retry 401 and 403 that may be temporary.
            retry_s: the time for retries, if it is not that of the retry budget.

        Returns:
            The response. It may be an error, for example an auth error that persists.

        Raises:
            StorageUnreachableError: there was no valid answer within the retry budget.
        """
        what = f"{method} {name or 'container'}"
        last: Exception | str = ""
        refused: StorageResponse | None = None
        tries = 0
        for _ in self._retry_budget.tries(retry_s):
            tries += 1
            if tries == TRIES_BEFORE_WARNING:
                logger.warning("%s: no proper answer yet (%s), retrying", what, last)
            try:
                response = self._start(method, name, query or {}, headers or {}, body)
                if _is_without_length(method, response):
                    raise ConnectionError("an answer without its length")
                answer = StorageResponse(
                    response.status, _lowered(response), read_all(response), tries
                )
            except (OSError, http.client.HTTPException) as err:
                last, refused = err, None
                self.close()
                continue
            if answer.status in AUTH_STATUSES:
                refused = self._explain(answer)
                if not retry_auth_errors or not refused.is_retryable:
                    return refused
            elif answer.status not in TRANSIENT_STATUS:
                self._auth_errors.record_success()
                return answer
            else:
                refused = None
            last = f"{answer.status} {answer.code}"
        if refused is not None:
            return refused
        raise StorageUnreachableError(0, "", f"{what}: no proper answer ({last})") from (
            last if isinstance(last, Exception) else None
        )

    def open(
        self, name: str, first_byte: int = 0, etag: str | None = None
    ) -> http.client.HTTPResponse:
        """Start to read a blob at `first_byte`. The caller reads the response, and retries.

        With `etag`, a changed blob causes an error with status 412.

        Raises:
            StorageRequestError: storage refused the request.
            OSError, HTTPException: a temporary failure.
        """
        headers = {"x-ms-range": f"bytes={first_byte}-"} if first_byte else {}
        if etag:
            headers["If-Match"] = etag
        response = self._start("GET", name, {}, headers)
        if _is_without_length("GET", response):
            raise ConnectionError(f"GET {name}: an answer without its length")
        if response.status in (200, 206):
            self._auth_errors.record_success()
            return response
        answer = StorageResponse(response.status, _lowered(response), read_all(response), 1)
        if answer.status in TRANSIENT_STATUS:
            raise ConnectionError(f"GET {name}: {answer.status}")
        if answer.status in AUTH_STATUSES:
            answer = self._explain(answer)
            if answer.is_retryable:
                raise ConnectionError(f"GET {name}: {answer.status} {answer.code} ({answer.why})")
        raise StorageRequestError(answer.status, answer.code, f"GET {name}", answer.why)

    def _explain(self, answer: StorageResponse) -> StorageResponse:
        error = (answer.code, answer.body, answer.headers)
        is_retryable = self._auth_errors.is_retryable(*error)
        return replace(answer, why=self._auth_errors.explain(*error), is_retryable=is_retryable)

    def copy_source(self, name: str) -> dict[str, str]:
        """Return the headers for a blob that is the source of a copy within the service.

        A token needs a separate header (REST docs, "Put Block From URL").
        """
        host = self._host if self._port is None else f"{self._host}:{self._port}"
        scheme = "https" if self._secure else "http"
        source = {"x-ms-copy-source": f"{scheme}://{host}{self._target(name, {})}"}
        token = self._credential.headers().get("Authorization")
        return {**source, "x-ms-copy-source-authorization": token} if token else source

    def close(self) -> None:
        """Close this thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _start(
        self,
        method: str,
        name: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> http.client.HTTPResponse:
        connection = self._connection()
        sent = {
            "x-ms-version": STORAGE_VERSION,
            **self._credential.headers(),
            **headers,
        }
        if method == "PUT" or body:
            sent["Content-Length"] = str(len(body))
        target = self._target(name, query)
        with deadline(transfer_limit_s(len(body)), lambda: connection.sock):
            connection.request(method, target, body=_chunks(body) if body else None, headers=sent)
            return connection.getresponse()

    def _target(self, name: str, query: Mapping[str, str]) -> str:
        path = f"{self._path}/{urllib.parse.quote(blob_name(name))}" if name else self._path
        both = "&".join(q for q in (urllib.parse.urlencode(query), self._credential.query()) if q)
        return f"{path}?{both}" if both else path

    def _connection(self) -> http.client.HTTPConnection:
        now = time.monotonic()
        if now - getattr(self._local, "used", now) > IDLE_S:
            self.close()
        self._local.used = now
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        return connection

    def _connect(self) -> http.client.HTTPConnection:
        """Return a new connection, through the proxy for HTTPS if the environment sets one."""
        if not self._secure:
            return _HttpConnection(self._host, self._port, timeout=self._timeout_s)
        via = _proxy_for(self._host)
        if via is None:
            return _HttpsConnection(self._host, self._port, timeout=self._timeout_s)
        connection = _HttpsConnection(via.hostname or "", via.port or 80, timeout=self._timeout_s)
        headers: dict[str, str] = {}
        if via.username:
            pair = urllib.parse.unquote(f"{via.username}:{via.password or ''}").encode()
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        connection.set_tunnel(self._host, self._port, headers)
        return connection


def _proxy_for(host: str) -> urllib.parse.SplitResult | None:
    """Return the URL of the proxy for a host, or None."""
    import urllib.request  # noqa: PLC0415  loopback needs no proxy

    proxy = urllib.request.getproxies().get("https", "")
    return None if not proxy or urllib.request.proxy_bypass(host) else _parse_proxy(proxy)


@functools.cache
def _parse_proxy(proxy: str) -> urllib.parse.SplitResult | None:
    try:
        via = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if via.scheme == "http" and via.hostname and via.port != 0:
            return via
    except ValueError:  # the port is invalid
        pass
    logger.warning("HTTPS_PROXY is not the URL of an HTTP proxy, so requests to storage bypass it")
    return None


def _chunks(body: bytes) -> Iterator[memoryview]:
    """Split the body, because a socket's timeout applies to all bytes sent in one call."""
    view = memoryview(body)
    return (view[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))


def _is_without_length(method: str, response: http.client.HTTPResponse) -> bool:
    """Return True if a proxy has removed the length: nothing could tell a part from the whole."""
    if response.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
        return False
    if method == "HEAD":
        return response.getheader("Content-Length") is None
    return method == "GET" and response.length is None and not response.chunked


def _lowered(response: http.client.HTTPResponse) -> dict[str, str]:
    return {key.lower(): value for key, value in response.getheaders()}
