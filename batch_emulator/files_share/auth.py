"""Authentication of Azure Storage: shared keys and shared access signatures, with stored access
policies.

Source: "Authorize with Shared Key" (learn.microsoft.com), and the official SDKs where they
differ.

Source: "Create an account SAS", "Create a service SAS", "Define a stored access policy".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote

from batch_emulator.domain.shared_key import (
    ALLOWED_SKEW,
    SIGNED_HEADERS,
    SignedRequest,
    is_signature,
    parse_date,
)
from batch_emulator.files_share.faults import FilesFault
from batch_emulator.files_share.shares import Shares, StorageAccount


def verify_shared_key(request: SignedRequest, account: StorageAccount, now: datetime) -> None:
    """Check signature and date. Raises Fault."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        raise FilesFault(
            "InvalidAuthenticationInfo", {"AuthenticationErrorDetail": "tokens are not supported"}
        )
    name, _, given = credentials.strip().partition(":")
    if scheme.lower() != "sharedkey" or not given:
        raise _failed("The Authorization header must read 'SharedKey <account>:<signature>'.")
    if name != account.name:
        raise _failed(f"The account '{name[:64]}' is not the account of this endpoint.")
    _check_date(request.headers, now)
    texts = strings_to_sign(request, account.name)
    if not any(is_signature(given, text, account.key) for text in texts):
        raise _failed(
            f"The MAC signature found in the HTTP request '{given[:128]}' is not the same as any "
            f"computed signature. Server used following string to sign: '{texts[0]}'."
        )


def query_of(raw_query: str) -> dict[str, str]:
    """Return the parameters by lower-case name; repeated values are sorted and joined by commas."""
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(raw_query, keep_blank_values=True):
        found.setdefault(name.lower(), []).append(value)
    return {name: ",".join(sorted(values)) for name, values in found.items()}


def _failed(detail: str) -> FilesFault:
    return FilesFault("AuthenticationFailed", {"AuthenticationErrorDetail": detail})


def _check_date(headers: Mapping[str, str], now: datetime) -> None:
    text = headers.get("x-ms-date") or headers.get("date")
    if not text:
        raise _failed("Neither x-ms-date nor Date is set.")
    moment = parse_date(text)
    if moment is None:
        raise _failed(f"The date '{text[:64]}' is not in RFC 1123 format.")
    if abs(now - moment) > ALLOWED_SKEW:
        raise _failed(f"Request date header too old or too new: '{text[:64]}'.")


def strings_to_sign(request: SignedRequest, account: str) -> list[str]:
    """Return the strings that may have been signed, the documented form first.

    Clients differ in harmless points: the Python SDK sorts headers as the service does (without
    hyphens), while the page says lexicographically. Others sign `0` for an absent body, as versions
    before 2015-02-21 did.
    """
    headers = request.headers
    length = headers.get("content-length", "")
    query = query_of(request.raw_query)
    tail = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    resource = f"/{account}{request.raw_path}{tail}"
    own = [(name, value) for name, value in headers.items() if name.startswith("x-ms-")]
    texts: list[str] = []
    orders: tuple[Callable[[tuple[str, str]], object], ...] = (_plain, _without_hyphens)
    for order in orders:
        lines = "".join(f"{name}:{value}\n" for name, value in sorted(own, key=order))
        for sent in dict.fromkeys(("" if length in ("", "0") else length, length)):
            signed = {**headers, "content-length": sent}
            if "x-ms-date" in headers:
                signed["date"] = ""
            standard = [signed.get(name, "") for name in SIGNED_HEADERS]
            texts.append("\n".join([request.method, *standard, lines + resource]))
    return list(dict.fromkeys(texts))


def _plain(header: tuple[str, str]) -> str:
    return header[0]


def _without_hyphens(header: tuple[str, str]) -> tuple[str, str]:
    """Return the sort key of the service: no hyphens, underscores before digits and letters."""
    return header[0].replace("-", "").replace("_", "\x01"), header[0]


_OLDEST_VERSION = "2015-04-05"
_VERSION_WITH_SCOPE = "2020-12-06"
_SAS_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d{1,7})?)?(?:Z|\+00:00))?"
)
_OVERRIDES = {
    "rscc": "Cache-Control",
    "rscd": "Content-Disposition",
    "rsce": "Content-Encoding",
    "rscl": "Content-Language",
    "rsct": "Content-Type",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a SAS; `resource_types` is None for the SAS of a share or file."""

    permissions: str
    resource_types: str | None
    overrides: Mapping[str, str]
    whole_share: bool  # not only one file


def verify_sas(request: SignedRequest, shares: Shares, now: datetime) -> Grant:
    """Check a signature in the query. Raises Fault."""
    query = query_of(request.raw_query)
    if query.get("sv", "") < _OLDEST_VERSION:
        raise _failed(f"sv must be {_OLDEST_VERSION} or later.")
    if "ss" in query or "srt" in query:
        _check_signature(query, [_account_text(query, shares.account.name)], shares)
        if "f" not in query.get("ss", ""):
            raise FilesFault("AuthorizationServiceMismatch")
        fields = query
    else:
        _check_signature(query, _service_texts(request, query, shares.account.name), shares)
        fields = _with_policy(request, query, shares)
    _check_times(fields, now)
    _check_origin(query, request)
    overrides = {header: query[name] for name, header in _OVERRIDES.items() if query.get(name)}
    if any(not value.isprintable() for value in overrides.values()):
        raise FilesFault("InvalidQueryParameterValue")  # line ends must not get into headers
    types = query.get("srt", "") if fields is query and "ss" in query else None
    return Grant(fields.get("sp", ""), types, overrides, query.get("sr") != "f")


def _check_signature(query: Mapping[str, str], texts: list[str], shares: Shares) -> None:
    given = query.get("sig", "")
    if not any(is_signature(given, text, shares.account.key) for text in texts):
        raise _failed(
            f"Signature did not match. String to sign used was {texts[0] if texts else ''}"
        )


def _account_text(query: Mapping[str, str], account: str) -> str:
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    if query.get("sv", "") >= _VERSION_WITH_SCOPE:
        names.append("ses")
    return "".join(f"{value}\n" for value in (account, *(query.get(name, "") for name in names)))


def _service_texts(request: SignedRequest, query: Mapping[str, str], account: str) -> list[str]:
    try:
        path = unquote(request.raw_path, errors="strict").removeprefix(f"/{account}/")
    except UnicodeDecodeError as err:
        raise FilesFault("InvalidUri") from err
    share = path.partition("/")[0]
    resources = {"s": share, "f": path}
    if query.get("sr") not in resources:
        raise _failed("sr must be s or f.")
    canonical = f"/file/{account}/{resources[query['sr']]}"
    before = [query.get(name, "") for name in ("sp", "st", "se")]
    names = ("si", "sip", "spr", "sv", "rscc", "rscd", "rsce", "rscl", "rsct")
    after = [query.get(name, "") for name in names]
    return ["\n".join([*before, canonical, *after])]


def _with_policy(
    request: SignedRequest, query: Mapping[str, str], shares: Shares
) -> Mapping[str, str]:
    """Return the fields, with those of the stored policy; none may be in both places."""
    if not query.get("si"):
        return query
    share = shares.get(
        unquote(request.raw_path).removeprefix(f"/{shares.account.name}/").partition("/")[0]
    )
    policy = next((p for p in share.policies if p["id"] == query["si"]), None) if share else None
    if policy is None:
        raise _failed(f"There is no stored access policy '{query['si'][:64]}'.")
    fields = dict(query)
    for field, key in (("sp", "permission"), ("st", "start"), ("se", "expiry")):
        if policy.get(key):
            if query.get(field):
                raise _failed(f"{field} stands both in the signature and in its policy.")
            fields[field] = policy[key]
    return fields


def _check_times(fields: Mapping[str, str], now: datetime) -> None:
    start, expiry = fields.get("st", ""), fields.get("se", "")
    if not expiry:
        raise _failed("se is required.")
    if not fields.get("sp"):
        raise _failed("sp is required.")
    begins = parse_sas_time(start) if start else None
    if now >= parse_sas_time(expiry) or (begins is not None and now < begins):
        raise _failed(
            "Signature not valid in the specified time frame: "
            f"Start [{start}] - Expiry [{expiry}] - Current [{now:%a, %d %b %Y %H:%M:%S} GMT]"
        )


def parse_sas_time(text: str) -> datetime:
    """Return a time of a SAS, UTC. Raises Fault."""
    match = _SAS_TIME.fullmatch(text)
    try:
        numbers = [int(part) for part in match.groups(default="0")] if match else []
        return datetime(*numbers[:3], *numbers[3:], tzinfo=UTC)
    except (ValueError, TypeError) as err:
        raise _failed(f"'{text[:64]}' is not a time.") from err


def _check_origin(query: Mapping[str, str], request: SignedRequest) -> None:
    protocol = query.get("spr", "")
    if protocol and request.scheme not in protocol.split(","):
        raise FilesFault("AuthorizationProtocolMismatch")
    allowed = query.get("sip", "")
    if not allowed:
        return
    first, _, last = allowed.partition("-")
    try:
        low, high = ipaddress.ip_address(first), ipaddress.ip_address(last or first)
        client = ipaddress.ip_address(request.client)
        inside = low.version == client.version and int(low) <= int(client) <= int(high)
    except ValueError:
        inside = False
    if not inside:
        raise FilesFault("AuthorizationSourceIPMismatch", {"SourceIP": request.client})
