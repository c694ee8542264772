"""HTTP to one container: a kept connection per thread, retries, and auth errors that may pass.

Codes: storage REST docs, "Common REST API error codes" and "Blob service error codes".
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import parse_qs
from xml.etree import ElementTree

from runner.node.storage.identity import Credential, ManagedIdentityCredential, SasCredential
from runner.node.storage.limits import RetryBudget, deadline, read_all, time_for
from runner.protocol.encoding import parse_json

AUTH_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
# Nothing that passes: what was asked is not what this access is for.
_FINAL = frozenset(
    {
        "AccountIsDisabled",
        "AuthorizationProtocolMismatch",
        "AuthorizationResourceTypeMismatch",
        "AuthorizationServiceMismatch",
        "AuthorizationSourceIPMismatch",
        "InsufficientAccountPermissions",
        "KeyBasedAuthenticationNotPermitted",
        "PublicAccessNotPermitted",
    }
)
_NO_PERMISSION = "AuthorizationPermissionMismatch"
_WRONG_SIGNATURE = b"Signature did not match"
# Access that never worked is more likely wrong than late. A role takes up to ten minutes (RBAC
# docs, "Troubleshoot"), some of which a pool's boot takes; a signature works at once, [S] but for
# clocks that differ and for a network rule that is being changed.
NEW_ROLE_S = 300.0
NEW_SAS_S = 60.0

_ROLE = (
    "the node's identity lacks a role on the storage account, such as Storage Blob Data "
    "Contributor, or was given it less than ten minutes ago"
)
_NETWORK = "a network rule of the storage account keeps the node out, or the access was withdrawn"


class AuthErrors:
    """What became of one credential so far. Safe to use from several threads."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._worked = False
        self._is_wrong = False  # said once: the answer to a HEAD has no room for it
        self._since: float | None = None

    def works(self) -> None:
        """Storage let a request in: what it refuses from now on may pass."""
        self._worked, self._is_wrong = True, False

    def may_pass(self, code: str, body: bytes, headers: Mapping[str, str]) -> bool:
        """Whether to try again, as long as patience lasts, what was refused so."""
        if code in _FINAL or self._is_over(headers):
            return False
        has_role = isinstance(self._credential, ManagedIdentityCredential)
        self._is_wrong = self._is_wrong or _WRONG_SIGNATURE in body
        not_meant = code == _NO_PERMISSION and not has_role and not self._is_delegated
        if not_meant or self._is_wrong:
            return False
        if isinstance(self._credential, ManagedIdentityCredential):
            self._credential.refused()
        now = time.monotonic()
        self._since = self._since or now
        return self._worked or now - self._since < (NEW_ROLE_S if has_role else NEW_SAS_S)

    def why(self, code: str, body: bytes, headers: Mapping[str, str]) -> str:
        """What a refusal that lasts most likely means."""
        if (end := self._is_over(headers)) is not None:
            return f"the run's access to storage ended at {end:%Y-%m-%d %H:%M} UTC"
        if self._is_wrong or _WRONG_SIGNATURE in body:
            return "the signature is wrong: the account's key was changed since"
        if code == _NO_PERMISSION and isinstance(self._credential, SasCredential):
            return "the run's access to storage is not for that"
        if code in _FINAL:
            return "the storage account does not allow this kind of access"
        return _ROLE if code == _NO_PERMISSION else _NETWORK

    @property
    def _is_delegated(self) -> bool:
        """Whether a person's rights stand behind the signature, which may change."""
        return "skoid" in parse_qs(self._credential.query())

    def _is_over(self, headers: Mapping[str, str]) -> datetime | None:
        """When the signature ended, by the clock of who refused it."""
        try:
            end = _aware(datetime.fromisoformat(_ending(self._credential).replace("Z", "+00:00")))
            now = _aware(parsedate_to_datetime(headers["date"]))
        except (KeyError, ValueError, TypeError):
            return None
        return end if now >= end else None


def _aware(time: datetime) -> datetime:
    utc = timezone.utc  # noqa: UP017 - the agent runs on 3.10
    return time if time.tzinfo else time.replace(tzinfo=utc)


def _ending(credential: Credential) -> str:
    return parse_qs(credential.query())["se"][0]


logger = logging.getLogger(__name__)

# The newest version the client relies on: append position headers, 4,000 MiB blocks.
STORAGE_VERSION = "2021-12-02"
TIMEOUT_S = 30.0
PIECE_BYTES = 1024 * 1024
# A server closes a connection that was quiet for some seconds (Node's default is five). Using it
# then costs a failed try, so an idle one is dropped before.
IDLE_S = 4.0
# Worth another try: timeouts, throttling, server trouble (REST docs, "Status and error codes").
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})

# Short trouble is nobody's business.
TRIES_BEFORE_NOTICE = 4


class StorageRequestError(Exception):
    """Storage refused; `status` is the HTTP status and `code` the service's error code.

    `why` is what it most likely means, `may_pass` whether it may be otherwise later.
    """

    def __init__(
        self, status: int, code: str, what: str, why: str = "", *, may_pass: bool = False
    ) -> None:
        text = f"{what}: {status} {code}".rstrip()
        super().__init__(f"{text} ({why})" if why else text)
        self.status = status
        self.code = code
        self.may_pass = may_pass


class StorageUnreachableError(StorageRequestError):
    """Storage did not answer properly for as long as we were patient."""

    def __init__(self, status: int, code: str, what: str) -> None:
        super().__init__(status, code, what, may_pass=True)


@dataclass(frozen=True)
class StorageResponse:
    """A response read to its end. `tries` says how often the request was sent.

    Of a refusal, `why` is what it most likely means, `may_pass` whether it may be tried again.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    tries: int
    why: str = ""
    may_pass: bool = False

    @property
    def code(self) -> str:
        """The service's error code, or an empty string."""
        return self.headers.get("x-ms-error-code") or _code_in_body(self.body)


def _code_in_body(body: bytes) -> str:
    """Storage writes XML, Batch JSON."""
    try:
        if body.startswith(b"{"):
            return str(parse_json(body).get("code") or "")
        return ElementTree.fromstring(body).findtext("Code") or ""  # noqa: S314 - our own storage
    except (ElementTree.ParseError, ValueError):
        return ""


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
        self._access = AuthErrors(credential)
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
        insist: bool = True,
    ) -> StorageResponse:
        """Send until the answer is not a passing failure; without `insist` a refusal is none.

        Raises StorageUnreachableError when patience ends; a refusal that lasts is returned.
        """
        what = f"{method} {name or 'container'}"
        last: Exception | str = ""
        refused: StorageResponse | None = None
        tries = 0
        for _ in self._retry_budget.delays():
            tries += 1
            if tries == TRIES_BEFORE_NOTICE:
                logger.warning("%s: no proper answer yet (%s), trying on", what, last)
            try:
                response = self._start(method, name, query or {}, headers or {}, body)
                if _is_cut(method, response):
                    raise ConnectionError("an answer that was cut in its headers")
                answer = StorageResponse(
                    response.status, _lowered(response), read_all(response), tries
                )
            except (OSError, http.client.HTTPException) as err:
                last, refused = err, None
                self.close()
                continue
            if answer.status in AUTH_STATUSES:
                refused = self._explained(answer)
                if not insist or not refused.may_pass:
                    return refused
            elif answer.status not in TRANSIENT_STATUS:
                self._access.works()
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
        """Start reading a blob at `first_byte`, one try only; the caller reads and resumes.

        With `etag`, a blob that has changed is refused with status 412.

        Raises StorageError for a refusal, OSError and HTTPException for passing trouble.
        """
        headers = {"x-ms-range": f"bytes={first_byte}-"} if first_byte else {}
        if etag:
            headers["If-Match"] = etag
        response = self._start("GET", name, {}, headers)
        if response.status in (200, 206):
            self._access.works()
            return response
        answer = StorageResponse(response.status, _lowered(response), read_all(response), 1)
        if answer.status in TRANSIENT_STATUS:
            raise ConnectionError(f"GET {name}: {answer.status}")
        if answer.status in AUTH_STATUSES:
            answer = self._explained(answer)
            if answer.may_pass:
                raise ConnectionError(f"GET {name}: {answer.status} {answer.code} ({answer.why})")
        raise StorageRequestError(answer.status, answer.code, f"GET {name}", answer.why)

    def _explained(self, answer: StorageResponse) -> StorageResponse:
        refusal = (answer.code, answer.body, answer.headers)
        may_pass = self._access.may_pass(*refusal)
        return replace(answer, why=self._access.why(*refusal), may_pass=may_pass)

    def copy_source(self, name: str) -> dict[str, str]:
        """Headers that name a blob as the source of a copy inside of the service.

        A token travels in a header of its own (REST docs, "Put Block From URL").
        """
        host = self._host if self._port is None else f"{self._host}:{self._port}"
        scheme = "https" if self._secure else "http"
        source = {"x-ms-copy-source": f"{scheme}://{host}{self._target(name, {})}"}
        token = self._credential.headers().get("Authorization")
        return {**source, "x-ms-copy-source-authorization": token} if token else source

    def close(self) -> None:
        """Drop this thread's connection."""
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
        with deadline(time_for(len(body)), lambda: connection.sock):
            connection.request(method, target, body=_chunks(body) if body else None, headers=sent)
            return connection.getresponse()

    def _target(self, name: str, query: Mapping[str, str]) -> str:
        path = f"{self._path}/{urllib.parse.quote(name)}" if name else self._path
        both = "&".join(q for q in (urllib.parse.urlencode(query), self._credential.query()) if q)
        return f"{path}?{both}" if both else path

    def _connection(self) -> http.client.HTTPConnection:
        if time.monotonic() - getattr(self._local, "used", 0.0) > IDLE_S:
            self.close()
        self._local.used = time.monotonic()
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = kind(self._host, self._port, timeout=self._timeout_s)
            self._local.connection = connection
        return connection


def _chunks(body: bytes) -> Iterator[memoryview]:
    """The time limit of a socket is for all that is sent at once."""
    view = memoryview(body)
    return (view[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))


def _is_cut(method: str, response: http.client.HTTPResponse) -> bool:
    """Headers that end early look whole; the service always says where a blob ends."""
    is_blob = method == "GET" and response.status == http.client.OK
    return is_blob and response.length is None and not response.chunked


def _lowered(response: http.client.HTTPResponse) -> dict[str, str]:
    return {key.lower(): value for key, value in response.getheaders()}
