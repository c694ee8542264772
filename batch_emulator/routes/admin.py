"""The emulator's own API under `/_emulator`: what no Batch account has and a test bench needs.

`GET /_emulator/health` is open. Everything else wants `Authorization: Bearer <account key>`, since
it may end tasks; answers are plain JSON, errors the service's error body.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import timedelta

from batch_emulator import __version__, metadata
from batch_emulator.call import Call, Handler, Reply
from batch_emulator.faults import Fault, bad_property, bad_query
from batch_emulator.routes import applications, evictions
from batch_emulator.values import parse_duration, time_text

PREFIX = "/_emulator"
_PAGE = 1000
_DIGITS = 18
_POOL = "/pools/{poolId}"
_NODE = "/pools/{poolId}/nodes/{nodeId}"
_EVENTS = metadata.PATH + "/{poolId}/{nodeId}/{secret}/metadata/scheduledevents"
_LONGEST_PUSH = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One request of the admin API and who answers it; `open` ones need no key."""

    method: str
    path: str
    summary: str
    handler: Handler
    open: bool = False
    streamed: bool = False  # the body may be large: the handler reads `call.stream`


def authenticate(authorization: str, key: str) -> None:
    """Refuse who does not present the account key. Raises Fault."""
    if not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        reason = f"{PREFIX} wants 'Authorization: Bearer <account key>'"
        raise Fault("AuthenticationFailed", {"AuthenticationErrorDetail": reason}, status=403)


def health(call: Call) -> Reply:
    """Whether the emulator can keep its state."""
    emulator = call.emulator
    uptime_s = (call.now - emulator.started).total_seconds()
    body = {
        "version": __version__,
        "account": emulator.settings.account,
        "pools": len(emulator.account.pools),
        "jobs": len(emulator.account.jobs),
        "uptime": round(uptime_s, 3),
    }
    return Reply(200 if emulator.healthy else 503, body)


def events(call: Call) -> Reply:
    """Changes of state after a number, oldest first, 1000 at most."""
    text = call.query.get("after", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise bad_query("after", text, "the number of an event is expected")
    found = [event.document() for event in call.emulator.account.events.after(int(text))]
    return Reply(200, {"value": found[:_PAGE]})


def clock(call: Call) -> Reply:
    """The emulator's time, and how fast it passes."""
    return Reply(
        200, {"now": time_text(call.emulator.clock.now()), "scale": call.emulator.clock.scale}
    )


async def push_clock(call: Call) -> Reply:
    """Let time pass at once: nodes boot, formulas are evaluated, limits expire."""
    text = call.json().get("push")
    try:
        passed = parse_duration(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        passed = None
    if passed is None or not timedelta() <= passed <= _LONGEST_PUSH:
        reason = "an ISO 8601 duration of at most P366D is expected, such as PT15M"
        raise bad_property("push", text, reason)
    await call.emulator.loop.push_clock(passed)
    return clock(call)


async def reset(call: Call) -> Reply:
    """End and forget all jobs, schedules and pools; answered when nothing of them is left."""
    await call.emulator.reset()
    return Reply(204)


_APPLICATION = f"{PREFIX}/applications/{{applicationId}}"
_PACKAGE = f"{_APPLICATION}/versions/{{version}}"

ADMIN_ROUTES: tuple[AdminRoute, ...] = (
    AdminRoute("PUT", _APPLICATION, "make or change an application", applications.put),
    AdminRoute("DELETE", _APPLICATION, "delete an application", applications.delete),
    AdminRoute(
        "PUT",
        _PACKAGE,
        "store a package, the zip file is the body; `?default=true`",
        applications.put_version,
        streamed=True,
    ),
    AdminRoute("DELETE", _PACKAGE, "delete a package", applications.delete_version),
    AdminRoute("GET", f"{PREFIX}/health", "ready, and able to keep its state", health, open=True),
    AdminRoute("GET", f"{PREFIX}/events", "changes of state, `?after=NUMBER`", events),
    AdminRoute("GET", f"{PREFIX}/clock", "the emulator's time", clock),
    AdminRoute("POST", f"{PREFIX}/clock", '`{"push": "PT15M"}` lets time pass', push_clock),
    AdminRoute(
        "GET", f"{PREFIX}{_POOL}/nodes", "nodes, and which can be evicted", evictions.nodes_of
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_POOL}/evict",
        "evict spot nodes, `?count=N&notice=SECONDS&away=SECONDS`",
        evictions.evict_some,
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_NODE}/evict",
        "evict one spot node, `?notice=SECONDS&away=SECONDS`",
        evictions.evict_node,
    ),
    AdminRoute(
        "POST", f"{PREFIX}{_NODE}/fail", "make it unusable, `?code=DiskFull`", evictions.fail_node
    ),
    AdminRoute("GET", _EVENTS, "Scheduled Events of a node", evictions.scheduled_events, open=True),
    AdminRoute("POST", _EVENTS, "acknowledge an event", evictions.acknowledge, open=True),
    AdminRoute("POST", f"{PREFIX}/reset", "forget all pools, jobs and schedules", reset),
)
