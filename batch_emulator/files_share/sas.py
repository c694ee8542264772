"""Shared access signatures: of the account, of a share, of a file, with stored access policies.

Source: "Create an account SAS", "Create a service SAS", "Define a stored access policy".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote

from batch_emulator.files_share.auth import Request, is_signature, query_of
from batch_emulator.files_share.faults import Fault
from batch_emulator.files_share.shares import Shares

_OLDEST_VERSION = "2015-04-05"
_VERSION_WITH_SCOPE = "2020-12-06"
_TIME = re.compile(
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
    """What a signature allows; `resource_types` is None for one of a share or file."""

    permissions: str
    resource_types: str | None
    overrides: Mapping[str, str]
    whole_share: bool  # not of one file only


def verify_sas(request: Request, shares: Shares, now: datetime) -> Grant:
    """Check a signature in the query. Raises Fault."""
    query = query_of(request.raw_query)
    if query.get("sv", "") < _OLDEST_VERSION:
        raise _failed(f"sv must be {_OLDEST_VERSION} or later.")
    if "ss" in query or "srt" in query:
        _check_signature(query, [_account_text(query, shares.account.name)], shares)
        if "f" not in query.get("ss", ""):
            raise Fault("AuthorizationServiceMismatch")
        fields = query
    else:
        _check_signature(query, _service_texts(request, query, shares.account.name), shares)
        fields = _with_policy(request, query, shares)
    _check_times(fields, now)
    _check_origin(query, request)
    overrides = {header: query[name] for name, header in _OVERRIDES.items() if query.get(name)}
    if any(not value.isprintable() for value in overrides.values()):
        raise Fault("InvalidQueryParameterValue")  # no line ends into headers
    types = query.get("srt", "") if fields is query and "ss" in query else None
    return Grant(fields.get("sp", ""), types, overrides, query.get("sr") != "f")


def _failed(detail: str) -> Fault:
    return Fault("AuthenticationFailed", {"AuthenticationErrorDetail": detail})


def _check_signature(query: Mapping[str, str], texts: list[str], shares: Shares) -> None:
    given = query.get("sig", "")
    if not any(is_signature(given, text, shares.account) for text in texts):
        raise _failed(
            f"Signature did not match. String to sign used was {texts[0] if texts else ''}"
        )


def _account_text(query: Mapping[str, str], account: str) -> str:
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    if query.get("sv", "") >= _VERSION_WITH_SCOPE:
        names.append("ses")
    return "".join(f"{value}\n" for value in (account, *(query.get(name, "") for name in names)))


def _service_texts(request: Request, query: Mapping[str, str], account: str) -> list[str]:
    try:
        path = unquote(request.raw_path, errors="strict").removeprefix(f"/{account}/")
    except UnicodeDecodeError as err:
        raise Fault("InvalidUri") from err
    share = path.partition("/")[0]
    resources = {"s": share, "f": path}
    if query.get("sr") not in resources:
        raise _failed("sr must be s or f.")
    canonical = f"/file/{account}/{resources[query['sr']]}"
    before = [query.get(name, "") for name in ("sp", "st", "se")]
    names = ("si", "sip", "spr", "sv", "rscc", "rscd", "rsce", "rscl", "rsct")
    after = [query.get(name, "") for name in names]
    return ["\n".join([*before, canonical, *after])]


def _with_policy(request: Request, query: Mapping[str, str], shares: Shares) -> Mapping[str, str]:
    """The fields, some of them from the stored policy; each may stand in one place only."""
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
    begins = parse_time(start) if start else None
    if now >= parse_time(expiry) or (begins is not None and now < begins):
        raise _failed(
            "Signature not valid in the specified time frame: "
            f"Start [{start}] - Expiry [{expiry}] - Current [{now:%a, %d %b %Y %H:%M:%S} GMT]"
        )


def parse_time(text: str) -> datetime:
    """A time of a signature, UTC. Raises Fault."""
    match = _TIME.fullmatch(text)
    try:
        numbers = [int(part) for part in match.groups(default="0")] if match else []
        return datetime(*numbers[:3], *numbers[3:], tzinfo=UTC)
    except (ValueError, TypeError) as err:
        raise _failed(f"'{text[:64]}' is not a time.") from err


def _check_origin(query: Mapping[str, str], request: Request) -> None:
    protocol = query.get("spr", "")
    if protocol and request.scheme not in protocol.split(","):
        raise Fault("AuthorizationProtocolMismatch")
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
        raise Fault("AuthorizationSourceIPMismatch", {"SourceIP": request.client})
