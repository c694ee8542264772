"""Signing requests to the blob service with the key of the storage account.

Source: "Authorize with Shared Key" of the storage services' REST API, versions from 2015-02-21 on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    import httpx

API_VERSION = "2020-10-02"  # the newest that every supported Azurite knows
_SIGNED = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


class BadKeyError(Exception):
    """The key is no base64."""


def signer(account: str, key: str) -> Callable[[httpx.Request], httpx.Request]:
    """What signs a request of httpx (its `auth`), each time it is sent. Raises BadKeyError."""
    try:
        secret = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError) as err:
        raise BadKeyError("the account key is no base64") from err

    def sign(request: httpx.Request) -> httpx.Request:
        request.headers.setdefault("x-ms-version", API_VERSION)
        request.headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        text = _string_to_sign(account, request)
        digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        request.headers["Authorization"] = f"SharedKey {account}:{signature}"
        return request

    return sign


def _string_to_sign(account: str, request: httpx.Request) -> str:
    headers = request.headers
    values = [headers.get(name, "") for name in _SIGNED]
    length = _SIGNED.index("Content-Length")
    if values[length] == "0":
        values[length] = ""
    own = sorted((name, text) for name, text in headers.items() if name.startswith("x-ms-"))
    canonical = "".join(f"{name}:{' '.join(text.split())}\n" for name, text in own)
    return "\n".join([request.method, *values, canonical]) + _resource(account, request)


def _resource(account: str, request: httpx.Request) -> str:
    path = request.url.raw_path.partition(b"?")[0].decode("ascii")
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(request.url.query.decode("ascii"), keep_blank_values=True):
        query.setdefault(name.lower(), []).append(value)
    lines = (f"\n{name}:{','.join(sorted(values))}" for name, values in sorted(query.items()))
    return f"/{account}{path}{''.join(lines)}"
