"""Check how the requests of clients are signed, and sign them again for the local services.

The paths of the local storage services begin with the account, so a shared key signature of a
client does not fit. A SAS does not include the host, so the local service checks it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import urlsplit

from batch_emulator.domain.shared_key import SignedRequest, is_signature, sign
from batch_emulator.executor.blob_sas import read_signature
from batch_emulator.files_share.auth import strings_to_sign
from batch_emulator.gateway.services import LocalServices
from batch_emulator.gateway.sign_in import Tokens
from batch_emulator.http.auth import signature_of

_COPY_LIMIT = timedelta(hours=1)  # validity of the SAS for a copy source that came with a token


class RefusedError(Exception):
    """The request is answered here, as the service refuses it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(slots=True)
class StorageRequest:
    """A request for Storage; header names are lower-case, and the target is as sent."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        """Return the target without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """Return the query of the target."""
        return self.target.partition("?")[2]


@dataclass(frozen=True, slots=True)
class Signatures:
    """Checks and signs the requests of a client for one host. Header names are lower-case."""

    services: LocalServices
    tokens: Tokens
    host: str

    def has_token(self, headers: dict[str, str]) -> bool:
        """Return True if the request has a valid token of this gateway."""
        return self._is_token(headers.get("authorization", ""), self.host)

    def require_own_token(self, headers: dict[str, str]) -> bool:
        """Return as `has_token`. Raises RefusedError for any other token."""
        is_token = headers.get("authorization", "").lower().startswith("bearer ")
        if is_token and not self.has_token(headers):
            raise RefusedError(401, "InvalidAuthenticationInfo", "The access token is invalid.")
        return is_token

    def _is_token(self, authorization: str, host: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        audiences = self.services.audiences(host)
        return scheme.lower() == "bearer" and self.tokens.is_valid(token.strip(), audiences)

    def sign_for_batch(
        self, headers: dict[str, str], method: str, path_and_query: tuple[str, str]
    ) -> None:
        """Sign a request for the Batch service with the account's key."""
        headers["ocp-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        account = self.services.account
        request = SignedRequest(method, *path_and_query, headers)
        signed = signature_of(request, account.name, account.batch_key)
        headers["authorization"] = f"SharedKey {account.name}:{signed}"

    def needs_signature(self, request: StorageRequest) -> bool:
        """Return True for a valid shared key or token, which the local service does not accept.

        Raises RefusedError if it is invalid.
        """
        account = self.services.account
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "sharedkey":
            return self.require_own_token(request.headers)
        name, _, signature = given.strip().partition(":")
        if name != account.name or not any(
            is_signature(signature, text, account.storage_key) for text in self._texts(request, "")
        ):
            message = "The MAC signature found in the HTTP request is not the same."
            raise RefusedError(403, "AuthenticationFailed", message)
        return True

    def rewrite(self, request: StorageRequest, prefix: str, *, needs_signature: bool) -> None:
        """Rewrite headers and target for the local service, except the prefix of its paths."""
        account, headers = self.services.account, request.headers
        if not needs_signature:
            self._rewrite_copy_source(headers)
            headers["x-forwarded-proto"] = "https"  # our Azure Files then accepts a SAS for HTTPS
            known = account.without_protocol(request.path, request.query)
            request.target = f"{request.path}?{known}" if known else request.path
            return
        if not headers.get("authorization", "").lower().startswith("sharedkey"):
            headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        if "x-ms-date" in headers:  # Azurite expects Date in the signature nevertheless
            headers.pop("date", None)
        self._rewrite_copy_source(headers)
        text = self._texts(request, prefix)[0]
        headers["authorization"] = f"SharedKey {account.name}:{sign(text, account.storage_key)}"

    def _texts(self, request: StorageRequest, prefix: str) -> list[str]:
        path = prefix + request.path
        signed = SignedRequest(request.method, path, request.query, request.headers)
        return strings_to_sign(signed, self.services.account.name)

    def rewrite_batch(self, headers: dict[str, str], body: bytes, prefix: str) -> bytes:
        """Return the body of a Blob Batch, whose requests are signed, for the local service.

        Source: https://learn.microsoft.com/rest/api/storageservices/blob-batch, read 2026-11-28.
        """
        _, _, boundary = headers.get("content-type", "").partition("boundary=")
        mark = b"--" + boundary.strip().encode()
        first, *parts = body.split(mark)
        body = mark.join([first, *(self._rewrite_part(part, prefix) for part in parts)])
        if "content-length" in headers:
            headers["content-length"] = str(len(body))
        return body

    def _rewrite_part(self, part: bytes, prefix: str) -> bytes:
        """Return a part of a batch for the local service, unchanged if it is invalid."""
        try:
            about, content, rest = part.split(b"\r\n\r\n", 2)
            line, *lines = content.decode("latin-1").split("\r\n")
            method, target, version = line.split(" ")
            pairs = [each.partition(":") for each in lines]
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            request = StorageRequest(method, target, headers)
            with contextlib.suppress(RefusedError):
                self.rewrite(request, prefix, needs_signature=self.needs_signature(request))
        except ValueError:
            return part
        lines = [f"{name}: {value}" for name, value in request.headers.items()]
        written = "\r\n".join([f"{method} {prefix}{request.target} {version}", *lines])
        return b"\r\n\r\n".join([about, written.encode("latin-1"), rest])

    def _rewrite_copy_source(self, headers: dict[str, str]) -> None:
        """Replace the source of a copy by its local URL, with a SAS if it came with a token."""
        source = headers.get("x-ms-copy-source", "")
        split = urlsplit(source)
        host = split.hostname or ""
        local = self.services.url_of(host)
        if not source or local is None:
            return
        account = self.services.account
        query = account.without_protocol(split.path, split.query)
        authorization = headers.pop("x-ms-copy-source-authorization", "")
        if authorization:
            if not self._is_token(authorization, host):
                message = "The token of the copy source is invalid."
                raise RefusedError(401, "CannotVerifyCopySource", message)
            expiry = f"{datetime.now(UTC) + _COPY_LIMIT:%Y-%m-%dT%H:%M:%SZ}"
            signature = read_signature(split.path, expiry, account.name, account.storage_key)
            query = f"{query}&{signature}" if query else signature
        headers["x-ms-copy-source"] = f"{local}{split.path}{'?' if query else ''}{query}"
