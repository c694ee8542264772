"""The credentials of the agent for Azure services, and which auth errors may be retried.

Codes: storage REST docs, "Common REST API error codes" and "Blob service error codes".
"""

from __future__ import annotations

import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from runner.node.storage.retries import read_all
from runner.protocol.codec import parse_json

# Azure VM docs, "How to use managed identities on a VM to acquire an access token".
IMDS_TOKEN_URL = "http://169.254.169.254/metadata/identity/oauth2/token"  # noqa: S105 - an address
IMDS_API_VERSION = "2018-02-01"
# App Service docs, "REST endpoint reference" of managed identities.
IDENTITY_API_VERSION = "2019-08-01"
STORAGE_RESOURCE = "https://storage.azure.com/"
REFRESH_BEFORE_EXPIRY_S = 300.0
# A token that storage refused is renewed at most this often.
RENEW_AFTER_REFUSAL_S = 30.0


class TokenUnavailableError(OSError):
    """The instance metadata service returned no token; the request may be retried."""


class SasCredential:
    """A shared access signature, added to every query string."""

    def __init__(self, sas: str) -> None:
        self._query = sas.lstrip("?")

    def __repr__(self) -> str:
        return "SasCredential(***)"

    def query(self) -> str:
        """Return the signature, without the question mark."""
        return self._query

    def headers(self) -> dict[str, str]:
        """Return no headers, because a SAS belongs to the query string."""
        return {}


class TaskTokenCredential:
    """The token that Batch gives a task for its own job, in a header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "TaskTokenCredential(***)"

    def query(self) -> str:
        """Return an empty query, because the token belongs to a header."""
        return ""

    def headers(self) -> dict[str, str]:
        """Return the Authorization header."""
        return {"Authorization": f"Bearer {self._token}"}


class ManagedIdentityCredential:
    """A bearer token of the node's managed identity, renewed five minutes before it expires.

    The token comes from the metadata service, or from `IDENTITY_ENDPOINT` on hosts that set it
    together with `IDENTITY_HEADER`. `RUNNER_IMDS_TOKEN_URL` overrides both. Safe to use from
    several threads.
    """

    def __init__(
        self,
        client_id: str | None,
        token_url: str | None = None,
        resource: str = STORAGE_RESOURCE,
    ) -> None:
        self._client_id = client_id
        self._resource = resource
        self._version, self._headers = IMDS_API_VERSION, {"Metadata": "true"}
        self._url = token_url or os.environ.get("RUNNER_IMDS_TOKEN_URL", "")
        endpoint, secret = (os.environ.get(f"IDENTITY_{part}") for part in ("ENDPOINT", "HEADER"))
        if not self._url and endpoint and secret:
            self._url, self._version = endpoint, IDENTITY_API_VERSION
            self._headers = {"X-IDENTITY-HEADER": secret}
        self._url = self._url or IMDS_TOKEN_URL
        self._token = ""
        self._renew_at: float | None = None  # now
        self._renewed_at: float | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ManagedIdentityCredential(client_id={self._client_id!r})"

    def query(self) -> str:
        """Return an empty query: the token belongs to a header."""
        return ""

    def headers(self) -> dict[str, str]:
        """Return the Authorization header. Raise TokenUnavailableError."""
        with self._lock:
            if self._renew_at is None or time.monotonic() >= self._renew_at:
                self._renew()
            return {"Authorization": f"Bearer {self._token}"}

    def renew_soon(self) -> None:
        """Renew a refused token early, because a new one may include a new role or signing key."""
        with self._lock:
            if self._renew_at is not None and self._renewed_at is not None:
                soon = max(self._renewed_at + RENEW_AFTER_REFUSAL_S, time.monotonic())
                self._renew_at = min(self._renew_at, soon)

    def _renew(self) -> None:
        query = {"api-version": self._version, "resource": self._resource}
        if self._client_id:
            query["client_id"] = self._client_id
        # Imported here, because tasks with a SAS do not need it.
        from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415

        request = Request(  # noqa: S310 - the metadata service only speaks http
            f"{self._url}?{urllib.parse.urlencode(query)}", headers=self._headers
        )
        # The metadata service must never be reached through a proxy.
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as response:
                answer = parse_json(read_all(response))
            token, lifetime_s = str(answer["access_token"]), _lifetime_s(answer)
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise TokenUnavailableError(f"no token from the metadata service: {err}") from err
        self._token = token
        self._renewed_at = time.monotonic()
        self._renew_at = time.monotonic() + max(lifetime_s - REFRESH_BEFORE_EXPIRY_S, 30.0)


def _lifetime_s(answer: Mapping[str, object]) -> float:
    """Return how long a token is valid. `IDENTITY_ENDPOINT` returns only when it expires."""
    if "expires_in" in answer:
        return float(str(answer["expires_in"]))
    return float(str(answer["expires_on"])) - time.time()


Credential = SasCredential | TaskTokenCredential | ManagedIdentityCredential

AUTH_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
# A retry does not help, because the account never allows this request with this kind of access.
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
_UNKNOWN_SIGNATURE = "AuthorizationFailure"  # of Azurite, also for a kind that it does not know
# How long to retry access that has never worked. A new role takes up to ten minutes to apply (RBAC
# docs, "Troubleshoot"), and a part of that passes while the node boots. A signature works at once,
# [S] except if clocks differ or a network rule is being changed.
NEW_ROLE_S = 300.0
NEW_SAS_S = 60.0

_ROLE = (
    "the identity of the node lacks a role on the storage account, such as Storage Blob Data "
    "Contributor, or was given it less than ten minutes ago"
)
_NO_SCOPES = (
    "the blob service does not know signatures for parts of a container; `runner local up` "
    "restarts an Azurite of an older runner"
)
_NETWORK = "a network rule of the storage account excludes the node, or the access was withdrawn"


class AuthErrors:
    """The history of one credential: which auth errors to retry, and how to explain the others.

    Safe to use from several threads.
    """

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._signed = urllib.parse.parse_qs(credential.query(), keep_blank_values=True)
        self._succeeded = False
        # Stored, because the response to a HEAD has no body with the reason.
        self._signature_is_wrong = False
        self._first_error_at: float | None = None

    def record_success(self) -> None:
        """Record that storage accepted the credential, so later auth errors may be temporary."""
        self._succeeded, self._signature_is_wrong = True, False

    def is_retryable(self, code: str, body: bytes, headers: Mapping[str, str]) -> bool:
        """Return True if this 401 or 403 may be temporary and the request should be retried."""
        if code in _FINAL or self._expiry(headers) or self._is_not_understood(code):
            return False
        has_role = isinstance(self._credential, ManagedIdentityCredential)
        self._signature_is_wrong = self._signature_is_wrong or _WRONG_SIGNATURE in body
        # The permissions of a user who delegated the signature may change.
        not_granted = code == _NO_PERMISSION and not has_role and "skoid" not in self._signed
        if not_granted or self._signature_is_wrong:
            return False
        if isinstance(self._credential, ManagedIdentityCredential):
            self._credential.renew_soon()
        now = time.monotonic()
        self._first_error_at = self._first_error_at or now
        limit_s = NEW_ROLE_S if has_role else NEW_SAS_S
        return self._succeeded or now - self._first_error_at < limit_s

    def explain(self, code: str, body: bytes, headers: Mapping[str, str]) -> str:
        """Return the most likely cause of an auth error that persists."""
        if (end := self._expiry(headers)) is not None:
            return f"the run's access to storage ended at {end:%Y-%m-%d %H:%M} UTC"
        if self._signature_is_wrong or _WRONG_SIGNATURE in body:
            return "the signature is invalid: the account key has changed"
        if self._is_not_understood(code):
            return _NO_SCOPES
        if code == _NO_PERMISSION and isinstance(self._credential, SasCredential):
            return "the run's access to storage does not include this operation"
        if code in _FINAL:
            return "the storage account does not allow this kind of access"
        return _ROLE if code == _NO_PERMISSION else _NETWORK

    def _is_not_understood(self, code: str) -> bool:
        """Return True if an Azurite without scopes.js refused a signature that needs it."""
        return code == _UNKNOWN_SIGNATURE and "scope" in self._signed

    def _expiry(self, headers: Mapping[str, str]) -> datetime | None:
        """Return when the signature expired, by the clock of the service; None if it is valid."""
        try:
            end = _to_aware(datetime.fromisoformat(self._signed["se"][0].replace("Z", "+00:00")))
            now = _to_aware(parsedate_to_datetime(headers["date"]))
        except (KeyError, ValueError, TypeError):
            return None
        return end if now >= end else None


def _to_aware(time: datetime) -> datetime:
    utc = timezone.utc  # noqa: UP017 - the agent runs on 3.10
    return time if time.tzinfo else time.replace(tzinfo=utc)
