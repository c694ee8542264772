"""Evictions and failures on demand, and the Scheduled Events that a node's tasks read."""

from __future__ import annotations

import hmac
import math
from typing import Any, cast

from batch_emulator import metadata
from batch_emulator.call import Call, Reply
from batch_emulator.faults import Fault, bad_query
from batch_emulator.model import Json, Node
from batch_emulator.transitions import eviction, nodes
from batch_emulator.values import time_text

_LONGEST_S = 366 * 86400.0
_JSON = {"Content-Type": "application/json; charset=utf-8"}


def nodes_of(call: Call) -> Reply:
    """The nodes of a pool, by number."""
    found = sorted(call.pool().nodes.values(), key=lambda node: node.number)
    return Reply(200, {"value": [_shown(node) for node in found]})


def _shown(node: Node) -> Json:
    return {
        "nodeId": node.id,
        "state": node.state.value,
        "spot": not node.dedicated,
        "evictable": eviction.evictable(node),
    }


def evict_node(call: Call) -> Reply:
    """Evict one spot node."""
    node = call.node()
    eviction.require_evictable(node)
    return _evict(call, [node], _times(call))


def evict_some(call: Call) -> Reply:
    """Evict spot nodes of a pool, chosen by chance, as many as there are if need be."""
    text = call.query.get("count", "1")
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise bad_query("count", text, "a number of nodes from 1 on is expected")
    times = _times(call)
    pool = call.pool()
    if pool.nodes and all(node.dedicated for node in pool.nodes.values()):
        reason = "the pool has dedicated nodes only; spot nodes are evicted"
        raise Fault("OperationNotValidOnPool", {"PoolId": pool.id, "Reason": reason})
    return _evict(call, eviction.pick(call.emulator.account, pool, int(text)), times)


def _times(call: Call) -> tuple[float | None, float | None]:
    return _seconds(call, "notice"), _seconds(call, "away")


def _evict(call: Call, found: list[Node], times: tuple[float | None, float | None]) -> Reply:
    account = call.emulator.account
    notice_s, away_s = times
    for node in found:
        eviction.evict(account, node, call.now, why="admin", notice_s=notice_s, away_s=away_s)
    return Reply(202, {"value": [_evicted(node) for node in found]})


def _evicted(node: Node) -> Json:
    body: Json = {"poolId": node.pool.id, "nodeId": node.id, "state": node.state.value}
    if node.notice is not None:
        body["eventId"] = node.notice.event_id
        body["notBefore"] = time_text(node.notice.not_before)
    return body


def _seconds(call: Call, name: str) -> float | None:
    text = call.query.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_S:
        raise bad_query(name, text, "a number of seconds from 0 on is expected")
    return seconds


def fail_node(call: Call) -> Reply:
    """Make a node unusable: with the error of a `code`, or without contact until it recovers."""
    node = call.node()
    if node.state in nodes.WITHOUT_MACHINE:
        raise Fault("OperationInvalidForCurrentState", {"State": node.state.value})
    code, message = call.query.get("code"), call.query.get("message", "asked for")
    details: list[Json] = []
    error: Json = {"code": code, "message": message, "errorDetails": details}
    errors = [error] if code else []
    nodes.fail(call.emulator.account, node, errors, call.now)
    return Reply(202)


# -- what tasks see


def scheduled_events(call: Call) -> Reply:
    """GET /metadata/scheduledevents of a node."""
    refused = _check(call)
    return refused or Reply(200, metadata.document(call.node()), dict(_JSON))


def acknowledge(call: Call) -> Reply:
    """POST /metadata/scheduledevents: the events named may start at once."""
    refused = _check(call)
    if refused:
        return refused
    node = call.node()
    wanted = _event_ids(call)
    if wanted is None:
        return _bad('a body {"StartRequests": [{"EventId": ...}]} is expected')
    notice = node.notice
    if notice is None or notice.event_id.lower() not in wanted:
        return _bad("no such event is scheduled")
    eviction.preempt(call.emulator.account, node, call.now, "acknowledged")
    return Reply(200)


def _event_ids(call: Call) -> set[str] | None:
    try:
        requests: Any = call.json().get("StartRequests")
    except Fault:
        return None
    if not isinstance(requests, list):
        return None
    found = [cast("Json", r) for r in cast("list[Any]", requests) if isinstance(r, dict)]
    return {str(request.get("EventId", "")).lower() for request in found}


def _check(call: Call) -> Reply | None:
    """Refuse what the metadata service refuses. Raises Fault for who is no task of the node."""
    params = call.params
    key = call.emulator.settings.key
    expected = metadata.secret(key, params["poolId"], params["nodeId"])
    if not hmac.compare_digest(expected.encode(), params["secret"].encode()):
        raise Fault("AuthenticationFailed", status=403)
    if call.headers.get("metadata", "").lower() != "true":
        return _bad("Required metadata header not specified")
    if "x-forwarded-for" in call.headers:
        return _bad("X-Forwarded-For is not allowed")
    if call.query.get("api-version") not in metadata.VERSIONS:
        versions = list(reversed(metadata.VERSIONS))
        body = {"error": "Bad request. api-version was not specified in the request or is invalid"}
        return Reply(400, body | {"newest-versions": versions[:3]}, dict(_JSON))
    return None


def _bad(reason: str) -> Reply:
    return Reply(400, {"error": f"Bad request. {reason}"}, dict(_JSON))
