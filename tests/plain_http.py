"""Requests to the servers of the tests, none of which speaks TLS.

A client of httpx first reads all certificate authorities, which takes 20 ms of processor time.
These clients have none.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import httpx

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TIMEOUT_S = 300.0


def request(method: str, url: str, *, timeout: float = _TIMEOUT_S, **more: Any) -> httpx.Response:
    """Send a request like `httpx.request`, without proxies."""
    with httpx.Client(trust_env=False, timeout=timeout, verify=_NO_AUTHORITIES) as client:
        return client.request(method, url, **more)


get = partial(request, "GET")
post = partial(request, "POST")
put = partial(request, "PUT")
delete = partial(request, "DELETE")
