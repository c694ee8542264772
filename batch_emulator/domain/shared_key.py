"""Shared keys, with which clients sign requests to Batch and to Storage in the same way."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

ALLOWED_SKEW = timedelta(minutes=15)
SIGNED_HEADERS = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The signed parts of a request. Header names are lower-case, path and query as sent."""

    method: str
    raw_path: str
    raw_query: str
    headers: Mapping[str, str]
    client: str = ""  # address
    scheme: str = "http"

    @classmethod
    def of_scope(cls, scope: Mapping[str, Any]) -> SignedRequest:
        """Return the request of an ASGI scope."""
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        return cls(
            scope["method"],
            scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace"),
            scope["query_string"].decode("ascii", "replace"),
            headers,
            (scope.get("client") or ("",))[0],
            # set by the gateway, which terminates TLS
            headers.get("x-forwarded-proto", scope["scheme"]),
        )


def sign(text: str, key: str) -> str:
    """Return the signature of a text; the key is base64. Raises ValueError if it is not."""
    return base64.b64encode(hmac.digest(secret_of(key), text.encode(), hashlib.sha256)).decode()


def is_signature(given: str, text: str, key: str) -> bool:
    """Return True if the text was signed with the key."""
    return hmac.compare_digest(sign(text, key).encode(), given.encode())


@lru_cache(maxsize=16)
def secret_of(key: str) -> bytes:
    """Return the bytes of a key. Raises ValueError if it is not base64."""
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as err:
        raise ValueError("the account key must be base64") from err


def parse_date(text: str) -> datetime | None:
    """Return a date of a header (RFC 1123), aware UTC if it has no zone; None if it is invalid."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
