"""Shared key authentication of the Batch service: signature and date of every request.

Source: "Authenticate requests to the Azure Batch service" and the official clients (reference 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import parse_qsl

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.shared_key import (
    ALLOWED_SKEW,
    SIGNED_HEADERS,
    SignedRequest,
    is_signature,
    parse_date,
    sign,
)

_MESSAGE = (
    "Server failed to authenticate the request. Make sure the value of Authorization header is "
    "formed correctly including the signature."
)


class AuthFault(Fault):
    """The request is not authenticated; `detail` is the reason, for the error body."""

    def __init__(self, detail: str) -> None:
        values = {"AuthenticationErrorDetail": detail}
        super().__init__("AuthenticationFailed", values, message=_MESSAGE, status=403)
        self.args = (detail,)


def verify(request: SignedRequest, account: str, key: str, now: datetime) -> None:
    """Check signature and date of a request.

    Args:
        request: what the client sent.
        account: the name of the account.
        key: base64.
        now: aware UTC.

    Raises:
        AuthFault: answered 403.
    """
    given_account, given = _authorization(request.headers)
    if given_account != account:
        raise AuthFault(f"The account '{given_account}' is not the account of this endpoint.")
    _check_date(request.headers, now)
    texts = _strings_to_sign(request, account)
    if not any(is_signature(given, text, key) for text in texts):
        raise AuthFault(
            f"The MAC signature found in the HTTP request '{given}' is not the same as any "
            f"computed signature. Server used following string to sign: '{texts[0]}'."
        )


def signature_of(request: SignedRequest, account: str, key: str) -> str:
    """Return the signature that a client would send."""
    return sign(_strings_to_sign(request, account)[0], key)


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
    moment = parse_date(text)
    if moment is None:
        raise AuthFault(f"The date '{text}' is not in RFC 1123 format.")
    if abs(now - moment) > ALLOWED_SKEW:
        raise AuthFault(
            f"Request date header too old or too new: '{text}', the server's time is "
            f"'{now:%a, %d %b %Y %H:%M:%S} GMT'."
        )


def _strings_to_sign(request: SignedRequest, account: str) -> list[str]:
    """Return the strings that may have been signed, the most likely first.

    Clients differ in harmless points: an absent body signs as `0` or as nothing, and query names
    are lower-case, as the documentation says, or not, as in the SDK for Python, which leaves out
    parameters with a blank value, too. Those for Java and JavaScript sign them (`$filter:`).
    """
    method, headers = request.method.upper(), request.headers
    length = headers.get("content-length") or "0"
    if method in ("GET", "HEAD"):
        lengths = ["", length]
    else:
        lengths = [length, ""] if length == "0" else [length]
    ocp = "".join(f"{n}:{v}\n" for n, v in sorted(headers.items()) if n.startswith("ocp-") and v)
    sent = query_of(request.raw_query)
    filled = {name: value for name, value in sent.items() if value}
    signed_queries = (filled, _lowered(filled), sent, _lowered(sent))
    texts: list[str] = []
    for query in signed_queries[: 4 if len(filled) < len(sent) else 2]:
        tail = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        for one in lengths:
            signed = {**headers, "content-length": one}
            standard = [signed.get(name, "") for name in SIGNED_HEADERS]
            text = "\n".join([method, *standard, f"{ocp}/{account}{request.raw_path}{tail}"])
            if text not in texts:
                texts.append(text)
    return texts


def _lowered(query: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in query.items()}
