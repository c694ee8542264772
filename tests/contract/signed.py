"""Send hand-signed requests, for cases that the SDK never sends."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qsl

import httpx

from tests import plain_http
from tests.contract.server import ACCOUNT, KEY

VERSION = "api-version=2024-02-01.19.0"
_STANDARD = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


def send(
    url: str,
    method: str,
    path: str,
    *,
    query: str = "",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    added: str = "",
    version: str = VERSION,
) -> httpx.Response:
    """Send a signed request; `added` is appended to the query after signing."""
    query = "&".join(part for part in (version, query) if part)
    given = {"ocp-date": format_datetime(datetime.now(UTC), usegmt=True), **(headers or {})}
    empty = "" if method in ("GET", "HEAD") else "0"
    signed = {**given, "content-length": str(len(body)) if body else empty}
    ocp = "".join(f"{n}:{v}\n" for n, v in sorted(given.items()) if n.startswith("ocp-"))
    values = "".join(f"\n{name}:{value}" for name, value in sorted(parse_qsl(query)))
    text = "\n".join(
        [method, *(signed.get(name, "") for name in _STANDARD), f"{ocp}/{ACCOUNT}{path}{values}"]
    )
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    given["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    target = f"{url}{path}?{query}{added}"
    return plain_http.request(method, target, content=body or None, headers=given)
