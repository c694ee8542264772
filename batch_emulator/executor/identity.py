"""Managed identities of nodes: what an `identityReference` may reach from here.

There is no Entra ID on this machine. Whatever user-assigned identity a client names has access to
the storage account that the emulator was started with, by the account's key, and to nothing
else. [S]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, urlsplit

from batch_emulator.executor.shared_key import signer

if TYPE_CHECKING:
    import httpx

_RESOURCE_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers"
    r"/Microsoft\.ManagedIdentity/userAssignedIdentities/[A-Za-z0-9][A-Za-z0-9_-]{2,127}",
    re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}


def identity_problem(reference: object) -> str | None:
    """The problem with a wire `identityReference`, or None when it names an identity."""
    if isinstance(reference, Mapping):
        given = cast("Mapping[str, Any]", reference)
        if _RESOURCE_ID.fullmatch(str(given.get("resourceId") or "")):
            return None
    return "identityReference/resourceId must be the ARM id of a user-assigned identity"


class Identity:
    """Every identity: the account it has access to. Raises BadKeyError."""

    def __init__(self, account: str, key: str, blob_endpoint: str | None) -> None:
        self.account = account
        self.key = key
        self.sign: Callable[[httpx.Request], httpx.Request] = signer(account, key)
        self._base = urlsplit(endpoint_of(account, blob_endpoint))

    def covers(self, url: str) -> bool:
        """Whether a URL is of the account's blob service."""
        try:
            asked = urlsplit(url)
            here = _origin(asked) == _origin(self._base)
        except ValueError:  # a port that is none
            return False
        return here and asked.path.startswith(f"{self._base.path.rstrip('/')}/")


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)


def endpoint_of(account: str, blob_endpoint: str | None) -> str:
    """The blob service of an account: the endpoint when it is that account's, else Azure's."""
    if blob_endpoint is None or urlsplit(blob_endpoint).path.strip("/") != account:
        return f"https://{quote(account, safe='')}.blob.core.windows.net"
    return blob_endpoint.rstrip("/")
