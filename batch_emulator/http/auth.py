"""Shared key authentication of the Batch service: signature and date of every request.

Source: "Authenticate requests to the Azure Batch service" and the official clients (reference 6).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import parse_qsl

ALLOWED_SKEW = timedelta(minutes=15)

_CODE = "AuthenticationFailed"
_MESSAGE = (
    "Server failed to authenticate the request. Make sure the value of Authorization header is "
    "formed correctly including the signature."
)
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


class AuthFault(Exception):  # noqa: N818 - the service calls what it answers a fault
    """The request is not authenticated; `detail` is the reason, for the error body."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.code = _CODE
        self.message = _MESSAGE
        self.detail = detail


def verify(  # noqa: PLR0917 - the parts of a request
    method: str,
    raw_path: str,
    raw_query: str,
    headers: Mapping[str, str],
    account: str,
    key: str,
    now: datetime,
) -> None:
    """Check signature and date of a request.

    Args:
        headers: with lower-case names.
        key: base64.
        now: aware UTC.

    Raises:
        AuthFault: answered 403.
    """
    given_account, given = _authorization(headers)
    if given_account != account:
        raise AuthFault(f"The account '{given_account}' is not the account of this endpoint.")
    _check_date(headers, now)
    texts = _strings_to_sign(method, raw_path, raw_query, headers, account)
    secret = _decoded(key)
    for text in texts:
        if hmac.compare_digest(_sign(secret, text).encode(), given.encode()):
            return
    raise AuthFault(
        f"The MAC signature found in the HTTP request '{given}' is not the same as any computed "
        f"signature. Server used following string to sign: '{texts[0]}'."
    )


def signature_of(
    method: str, path_and_query: tuple[str, str], headers: Mapping[str, str], account: str, key: str
) -> str:
    """Return the signature that a client would send; header names are in lower case."""
    raw_path, raw_query = path_and_query
    texts = _strings_to_sign(method, raw_path, raw_query, headers, account)
    return _sign(_decoded(key), texts[0])


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token that a request has instead of a signature, or None."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def query_of(raw_query: str) -> dict[str, str]:
    """Return the parameters of a query, with the first value, which is the signed one, of each."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(raw_query, keep_blank_values=True):
        query.setdefault(name, value)
    return query


def _authorization(headers: Mapping[str, str]) -> tuple[str, str]:
    value = headers.get("authorization", "")
    if not value:
        raise AuthFault("The Authorization header is missing.")
    scheme, _, credentials = value.partition(" ")
    if scheme.lower() == "bearer":
        raise AuthFault(
            "Only tokens of running tasks are accepted: sign requests with the shared key."
        )
    account, colon, signature = credentials.strip().partition(":")
    if scheme.lower() != "sharedkey" or not (account and colon and signature):
        raise AuthFault("The Authorization header must read 'SharedKey <account>:<signature>'.")
    return account, signature


def _check_date(headers: Mapping[str, str], now: datetime) -> None:
    """Check the date; `ocp-date` outranks `Date`, which browsers and proxies may set."""
    text = headers.get("ocp-date") or headers.get("date")
    if not text:
        raise AuthFault("Neither ocp-date nor Date is set.")
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError) as err:
        raise AuthFault(f"The date '{text}' is not in RFC 1123 format.") from err
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if abs(now - moment) > ALLOWED_SKEW:
        raise AuthFault(
            f"Request date header too old or too new: '{text}', the server's time is "
            f"'{now:%a, %d %b %Y %H:%M:%S} GMT'."
        )


def _strings_to_sign(
    method: str, raw_path: str, raw_query: str, headers: Mapping[str, str], account: str
) -> list[str]:
    """Return the strings that may have been signed, the most likely first.

    Clients differ in two harmless points: an absent body signs as `0` or as nothing, and query
    names are lower-case, as the documentation says, or not, as in the SDK.
    """
    length = headers.get("content-length") or "0"
    if method.upper() in ("GET", "HEAD"):
        lengths = ["", length]
    else:
        lengths = [length, ""] if length == "0" else [length]
    ocp = "".join(f"{n}:{v}\n" for n, v in sorted(headers.items()) if n.startswith("ocp-") and v)
    values = {name: value for name, value in query_of(raw_query).items() if value}
    lowered = {name.lower(): value for name, value in values.items()}
    texts: list[str] = []
    for query in (values, lowered):
        tail = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        for one in lengths:
            signed = {**headers, "content-length": one}
            standard = [signed.get(name, "") for name in _STANDARD_HEADERS]
            text = "\n".join([method.upper(), *standard, f"{ocp}/{account}{raw_path}{tail}"])
            if text not in texts:
                texts.append(text)
    return texts


def _sign(secret: bytes, text: str) -> str:
    return base64.b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).decode()


@lru_cache(maxsize=4)
def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as err:
        raise ValueError("the account key must be base64") from err
