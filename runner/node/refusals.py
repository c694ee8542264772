"""Which refusals of storage may pass, for how long to try, and what to say of those that do not.

Codes: storage REST docs, "Common REST API error codes" and "Blob service error codes".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import parse_qs

from runner.node.identity import Credential, ManagedIdentityCredential, SasCredential

STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
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


class Access:
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
