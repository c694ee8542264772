"""The credential of a person or machine at Azure."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken, TokenCredential

STORAGE_SCOPE = "https://storage.azure.com/.default"
_LEFT_S = 300  # azure-core's clients ask for another token from here on


def default_credential() -> TokenCredential:
    """`az login`, a managed identity, or the AZURE_ variables; nothing is sent yet."""
    import logging  # noqa: PLC0415  with the first request

    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  0.4 s

    # It warns with fifteen lines of its own where nobody is signed in; we say it in three.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return KeptTokens(DefaultAzureCredential())


class KeptTokens:
    """A credential that asks another one only when it has to, and from one thread at a time.

    DefaultAzureCredential starts `az` for each token (azure-identity's AzureCliCredential keeps
    none): about a second for each client, and one for each thread of a client that has none yet.
    """

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential
        self._lock = Lock()
        self._kept: dict[object, AccessToken] = {}

    def get_token(self, *scopes: str, claims: str | None = None, **options: Any) -> AccessToken:
        """See `TokenCredential.get_token`; with `claims` the service has refused what is kept."""
        key = (scopes, *sorted(options.items()))
        with self._lock:
            token = self._kept.get(key)
            if claims is not None or token is None or token.expires_on - time.time() < _LEFT_S:
                token = self._credential.get_token(*scopes, claims=claims, **options)
                self._kept[key] = token
            return token
