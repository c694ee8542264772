"""Leases of shares and files: who may change or delete them.

Source: "Lease File" and "Lease Share" (learn.microsoft.com). Leases of files are always infinite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from batch_emulator.files_share.faults import FilesFault, bad_header
from batch_emulator.files_share.shares import Lease

_NS = 10**9
_DURATIONS = range(15, 61)
_BREAKS = range(61)
_LIVE = ("leased", "breaking")


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """The result of an action: the lease and the answer."""

    lease: Lease | None
    status: int
    headers: Mapping[str, str]


def act(
    lease: Lease | None, headers: Mapping[str, str], now_ns: int, *, share: bool
) -> LeaseOutcome:
    """Carry out x-ms-lease-action. Raises Fault."""
    action = headers.get("x-ms-lease-action", "").lower()
    now = current(lease, now_ns)
    if action == "acquire":
        return _acquire(now, headers, now_ns, share=share)
    if action == "break":
        return _broken(now, headers, now_ns, share=share)
    if action not in ("change", "release") and not (share and action == "renew"):
        raise bad_header("x-ms-lease-action", action)
    if now is None:
        raise FilesFault("LeaseNotPresentWithLeaseOperation")
    given = _id(headers, "x-ms-lease-id", required=True)
    proposed = _id(headers, "x-ms-proposed-lease-id", required=action == "change")
    if given != now.id and not (action == "change" and proposed == now.id):
        raise FilesFault("LeaseIdMismatchWithLeaseOperation")
    if action == "release":
        return LeaseOutcome(None, 200, {})
    if now.state in ("breaking", "broken"):
        raise FilesFault("LeaseIsBrokenAndCannotBeRenewed")
    if action == "change":
        changed = replace(now, id=proposed)
    else:
        changed = replace(now, state="leased", until_ns=_until(now.duration_s, now_ns))
    return LeaseOutcome(changed, 200, {"x-ms-lease-id": changed.id})


def current(lease: Lease | None, now_ns: int) -> Lease | None:
    """Return the lease in its state at this time."""
    if lease is None or lease.until_ns is None or now_ns < lease.until_ns:
        return lease
    ended = {"leased": "expired", "breaking": "broken"}
    return replace(lease, state=ended.get(lease.state, lease.state))


def state_headers(lease: Lease | None, now_ns: int) -> dict[str, str]:
    """Return state, status and duration of the lease as headers of the properties."""
    now = current(lease, now_ns)
    if now is None:
        return {"x-ms-lease-state": "available", "x-ms-lease-status": "unlocked"}
    live = now.state in _LIVE
    found = {"x-ms-lease-state": now.state, "x-ms-lease-status": "locked" if live else "unlocked"}
    if now.state == "leased":
        found["x-ms-lease-duration"] = "infinite" if now.duration_s == -1 else "fixed"
    return found


def check(lease: Lease | None, given: str, now_ns: int, *, kind: str, writing: bool) -> None:
    """Check that a request may change a leased File or Share (`kind`). Raises Fault."""
    now = current(lease, now_ns)
    live = now is not None and now.state in _LIVE
    if not given:
        if live and writing:
            raise FilesFault("LeaseIdMissing")
        return
    if now is None:
        raise FilesFault(f"LeaseNotPresentWith{kind}Operation")
    if given.lower() != now.id:
        raise FilesFault(f"LeaseIdMismatchWith{kind}Operation")
    if not live:
        raise FilesFault("LeaseLost")


def _acquire(
    now: Lease | None, headers: Mapping[str, str], now_ns: int, *, share: bool
) -> LeaseOutcome:
    proposed = _id(headers, "x-ms-proposed-lease-id") or str(uuid4())
    if now is not None and now.state in _LIVE and (now.id != proposed or now.state == "breaking"):
        raise FilesFault("LeaseAlreadyPresent")
    text = headers.get("x-ms-lease-duration", "" if share else "-1")
    fixed = share and text.isdecimal() and int(text[:4]) in _DURATIONS
    if text != "-1" and not fixed:
        raise bad_header("x-ms-lease-duration", text)
    lease = Lease(proposed, int(text), _until(int(text), now_ns))
    return LeaseOutcome(lease, 201, {"x-ms-lease-id": proposed})


def _broken(
    now: Lease | None, headers: Mapping[str, str], now_ns: int, *, share: bool
) -> LeaseOutcome:
    if now is None:
        raise FilesFault("LeaseNotPresentWithLeaseOperation")
    if headers.get("x-ms-lease-id") and _id(headers, "x-ms-lease-id") != now.id:
        raise FilesFault("LeaseIdMismatchWithLeaseOperation")
    text = headers.get("x-ms-lease-break-period", "")
    if text and not (share and text.isdecimal() and int(text[:4]) in _BREAKS):
        raise bad_header("x-ms-lease-break-period", text)
    left_s = 0
    if now.state in _LIVE and share:
        remaining_s = max(0, (now.until_ns - now_ns) // _NS) if now.until_ns else None
        wanted = [n for n in (int(text) if text else None, remaining_s) if n is not None]
        left_s = min(wanted, default=0)
    broken = replace(now, state="breaking" if left_s else "broken", until_ns=now_ns + left_s * _NS)
    return LeaseOutcome(broken, 202, {"x-ms-lease-time": str(left_s), "x-ms-lease-id": now.id})


def _until(duration_s: int, now_ns: int) -> int | None:
    return None if duration_s == -1 else now_ns + duration_s * _NS


def _id(headers: Mapping[str, str], name: str, *, required: bool = False) -> str:
    text = headers.get(name, "")
    if not text:
        if required:
            raise FilesFault("MissingRequiredHeader", {"HeaderName": name})
        return ""
    if not re.fullmatch(r"[0-9A-Fa-f{}()-]{32,38}", text):
        raise bad_header(name, text)
    try:
        return str(UUID(text))
    except ValueError as err:
        raise bad_header(name, text) from err
