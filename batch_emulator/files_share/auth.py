"""Shared key authentication of Azure Storage: signature and date of every request.

Source: "Authorize with Shared Key" (learn.microsoft.com), and the official SDKs where they differ.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl

from batch_emulator.files_share.faults import Fault
from batch_emulator.files_share.shares import StorageAccount

ALLOWED_SKEW = timedelta(minutes=15)

_STANDARD_HEADERS = (
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
class Request:
    """What is signed of a request. Header names are lower-case, path and query as sent."""

    method: str
    raw_path: str
    raw_query: str
    headers: Mapping[str, str]
    client: str
    scheme: str = "http"


def verify_shared_key(request: Request, account: StorageAccount, now: datetime) -> None:
    """Check signature and date. Raises Fault."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        raise Fault("InvalidAuthenticationInfo", {"AuthenticationErrorDetail": "no tokens here"})
    name, _, given = credentials.strip().partition(":")
    if scheme.lower() != "sharedkey" or not given:
        raise _failed("The Authorization header must read 'SharedKey <account>:<signature>'.")
    if name != account.name:
        raise _failed(f"The account '{name[:64]}' is not the account of this endpoint.")
    _check_date(request.headers, now)
    texts = _strings_to_sign(request, account.name)
    if not any(is_signature(given, text, account) for text in texts):
        raise _failed(
            f"The MAC signature found in the HTTP request '{given[:128]}' is not the same as any "
            f"computed signature. Server used following string to sign: '{texts[0]}'."
        )


def is_signature(given: str, text: str, account: StorageAccount) -> bool:
    """Whether the text was signed with the account's key."""
    digest = hmac.digest(base64.b64decode(account.key), text.encode(), hashlib.sha256)
    return hmac.compare_digest(base64.b64encode(digest), given.encode())


def query_of(raw_query: str) -> dict[str, str]:
    """The parameters by lower-case name; values of one that is repeated, sorted, with commas."""
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(raw_query, keep_blank_values=True):
        found.setdefault(name.lower(), []).append(value)
    return {name: ",".join(sorted(values)) for name, values in found.items()}


def _failed(detail: str) -> Fault:
    return Fault("AuthenticationFailed", {"AuthenticationErrorDetail": detail})


def _check_date(headers: Mapping[str, str], now: datetime) -> None:
    text = headers.get("x-ms-date") or headers.get("date")
    if not text:
        raise _failed("Neither x-ms-date nor Date is set.")
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError) as err:
        raise _failed(f"The date '{text[:64]}' is not in RFC 1123 format.") from err
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if abs(now - moment) > ALLOWED_SKEW:
        raise _failed(f"Request date header too old or too new: '{text[:64]}'.")


def _strings_to_sign(request: Request, account: str) -> list[str]:
    """What may have been signed, the documented form first.

    Clients differ in harmless points: the Python SDK sorts the headers as the service does
    (hyphens do not count) where the page says lexicographically, and others sign `0` for an
    absent body as versions before 2015-02-21 did.
    """
    headers = request.headers
    length = headers.get("content-length", "")
    query = query_of(request.raw_query)
    tail = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    resource = f"/{account}{request.raw_path}{tail}"
    own = [(name, value) for name, value in headers.items() if name.startswith("x-ms-")]
    texts: list[str] = []
    orders: tuple[Callable[[tuple[str, str]], object], ...] = (_plain, _hyphens_aside)
    for order in orders:
        lines = "".join(f"{name}:{value}\n" for name, value in sorted(own, key=order))
        for sent in dict.fromkeys(("" if length in ("", "0") else length, length)):
            signed = {**headers, "content-length": sent}
            if "x-ms-date" in headers:
                signed["date"] = ""
            standard = [signed.get(name, "") for name in _STANDARD_HEADERS]
            texts.append("\n".join([request.method, *standard, lines + resource]))
    return list(dict.fromkeys(texts))


def _plain(header: tuple[str, str]) -> str:
    return header[0]


def _hyphens_aside(header: tuple[str, str]) -> tuple[str, str]:
    """Order of the service: hyphens weigh nothing, an underscore less than digits and letters."""
    return header[0].replace("-", "").replace("_", "\x01"), header[0]
