"""Tokens: asked for once, by one thread at a time, and of the tenant that storage names."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from azure.core.credentials import AccessToken, TokenCredential
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import HttpTransport

from runner.azure.auth.credentials import STORAGE_SCOPE, CachedTokens
from runner.azure.storage.blob_requests import BlobRequests
from runner.azure.storage.storage_sign_in import StorageSignIn

CHALLENGE = (
    "Bearer authorization_uri=https://login.microsoftonline.com/their-tenant/oauth2/authorize "
    "resource_id=https://storage.azure.com"
)


class _Az:
    """A credential that counts how often it was asked."""

    def __init__(self, lifetime_s: float = 3600) -> None:
        self.asked: list[dict[str, Any]] = []
        self.inside = 0
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        assert self._lock.acquire(blocking=False), "two threads ask at once"
        self.asked.append({"scopes": scopes, **options})
        self._lock.release()
        tenant = options.get("tenant_id", "home")
        return AccessToken(f"{tenant}-{len(self.asked)}", int(time.time() + self._lifetime_s))


def kept(az: _Az) -> CachedTokens:
    return CachedTokens(cast("TokenCredential", az))


def test_many_threads_and_clients_make_one_token() -> None:
    az = _Az()
    tokens = kept(az)
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: tokens.get_token(STORAGE_SCOPE).token, range(100)))
    assert found == {"home-1"}
    assert tokens.get_token("https://batch.core.windows.net//.default").token == "home-2"


def test_a_token_that_ends_soon_or_is_refused_is_replaced() -> None:
    az = _Az(lifetime_s=200)
    tokens = kept(az)
    assert [tokens.get_token("s").token for _ in range(2)] == ["home-1", "home-2"]
    az = _Az()
    tokens = kept(az)
    assert tokens.get_token("s").token == "home-1"
    assert tokens.get_token("s", claims="c").token == "home-2"
    assert tokens.get_token("s").token == "home-2"
    assert az.asked[1]["claims"] == "c"


class _Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.status_code = status
        self.headers = headers
        self.reason = ""
        self.content = body

    def iter_raw(self) -> list[bytes]:
        return [self.content]

    def read(self) -> bytes:
        return self.content

    def close(self) -> None:
        return None


class _Storage:
    """A transport that lets in only tokens of one tenant, and says which."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def send(self, request: Any, **_: object) -> _Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        if not token.startswith("their-tenant"):
            return _Response(401, {"WWW-Authenticate": CHALLENGE})
        return _Response(206, {}, b"content")

    def __enter__(self) -> _Storage:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_a_guest_is_signed_in_to_the_tenant_of_the_account() -> None:
    storage, az = _Storage(), _Az()
    transport = cast("HttpTransport[Any, Any]", storage)
    requests = BlobRequests("https://a/c", transport, StorageSignIn(kept(az)))
    assert [requests.get("x", "1", 0, 7) for _ in range(3)] == [b"content"] * 3
    assert storage.tokens == ["home-1", "their-tenant-2", "their-tenant-2", "their-tenant-2"]


def test_no_token_goes_out_without_tls() -> None:
    storage = _Storage()
    transport = cast("HttpTransport[Any, Any]", storage)
    requests = BlobRequests("http://a/c", transport, StorageSignIn(kept(_Az())))
    with pytest.raises(ServiceRequestError):
        requests.get("x", "1", 0, 7)
    assert storage.tokens == []
