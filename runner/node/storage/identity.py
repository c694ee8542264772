"""Who the agent is to Azure Storage: a SAS, or the node's managed identity."""

from __future__ import annotations

import os
import threading
import time
import urllib.parse
import urllib.request

from runner.node.storage.limits import read_all
from runner.protocol.encoding import parse_json

# Azure VM docs, "How to use managed identities on a VM to acquire an access token".
IMDS_TOKEN_URL = "http://169.254.169.254/metadata/identity/oauth2/token"  # noqa: S105 - an address
IMDS_API_VERSION = "2018-02-01"
STORAGE_RESOURCE = "https://storage.azure.com/"
REFRESH_BEFORE_EXPIRY_S = 300.0
# A token that was refused is asked for anew, no more often than this.
RENEW_AFTER_REFUSAL_S = 30.0


class TokenUnavailableError(OSError):
    """The instance metadata service gave no token; worth another try."""


class SasCredential:
    """A shared access signature, added to every query string."""

    def __init__(self, sas: str) -> None:
        self._query = sas.lstrip("?")

    def __repr__(self) -> str:
        return "SasCredential(***)"

    def query(self) -> str:
        """The signature, without the question mark."""
        return self._query

    def headers(self) -> dict[str, str]:
        """Nothing: a SAS lives in the query string."""
        return {}


class TaskTokenCredential:
    """The token that Batch gives a task for its own job, in a header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "TaskTokenCredential(***)"

    def query(self) -> str:
        """Nothing: a token travels in a header."""
        return ""

    def headers(self) -> dict[str, str]:
        """The Authorization header."""
        return {"Authorization": f"Bearer {self._token}"}


class ManagedIdentityCredential:
    """A bearer token of the node's managed identity, renewed five minutes before it expires.

    `RUNNER_IMDS_TOKEN_URL` overrides the address of the metadata service.
    """

    def __init__(
        self,
        client_id: str | None,
        token_url: str | None = None,
        resource: str = STORAGE_RESOURCE,
    ) -> None:
        self._client_id = client_id
        self._resource = resource
        self._url = token_url or os.environ.get("RUNNER_IMDS_TOKEN_URL", IMDS_TOKEN_URL)
        self._token = ""
        self._renew_at = 0.0
        self._renewed = 0.0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ManagedIdentityCredential(client_id={self._client_id!r})"

    def query(self) -> str:
        """Nothing: a token travels in a header."""
        return ""

    def headers(self) -> dict[str, str]:
        """The Authorization header; raises TokenUnavailableError."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._renew()
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self) -> None:
        """The token is not taken: another one may be (a role came, a key was rolled)."""
        with self._lock:
            soon = max(self._renewed + RENEW_AFTER_REFUSAL_S, time.monotonic())
            self._renew_at = min(self._renew_at, soon)

    def _renew(self) -> None:
        query = {"api-version": IMDS_API_VERSION, "resource": self._resource}
        if self._client_id:
            query["client_id"] = self._client_id
        request = urllib.request.Request(  # noqa: S310 - the metadata service only speaks http
            f"{self._url}?{urllib.parse.urlencode(query)}", headers={"Metadata": "true"}
        )
        # The metadata service must never be reached through a proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as response:
                answer = parse_json(read_all(response))
            token, lifetime_s = str(answer["access_token"]), float(answer["expires_in"])
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise TokenUnavailableError(f"no token from the metadata service: {err}") from err
        self._token = token
        self._renewed = time.monotonic()
        self._renew_at = time.monotonic() + max(lifetime_s - REFRESH_BEFORE_EXPIRY_S, 30.0)


Credential = SasCredential | TaskTokenCredential | ManagedIdentityCredential
