"""A credential that records its requests."""

from __future__ import annotations

import threading
import time
from typing import Any

from azure.core.credentials import AccessToken


class FakeCredential:
    """Returns tokens `TENANT-N`, in which N counts all requests. Fails if threads overlap."""

    def __init__(self, lifetime_s: float = 3600) -> None:
        self.requests: list[dict[str, Any]] = []
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        assert self._lock.acquire(blocking=False), "two threads ask at once"
        self.requests.append({"scopes": scopes, **options})
        self._lock.release()
        tenant = options.get("tenant_id", "home")
        return AccessToken(f"{tenant}-{len(self.requests)}", int(time.time() + self._lifetime_s))
