"""The emulator's own API under `/_emulator`: clock, events, evictions, failures, rules for faults,
Scheduled Events, reset.

`GET /_emulator/health` and `openapi.json` are open, and paths of Scheduled Events have a secret of
the node. Other requests need `Authorization: Bearer <account key>`, because they can end tasks.
Answers are plain JSON; errors have the form of the service's errors.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

from batch_emulator import __version__
from batch_emulator.domain.fault_rules import (
    MOST_RULES,
    RuleError,
    RuleSet,
    parse_rule,
    parse_rules,
)
from batch_emulator.domain.faults import Fault, bad_property, bad_query
from batch_emulator.domain.model import Json, Node
from batch_emulator.domain.transitions import eviction, fault_rules, nodes, pools
from batch_emulator.domain.values import parse_duration, time_text
from batch_emulator.http.call import Call, Reply
from batch_emulator.http.metrics import CONTENT_TYPE, metrics_text
from batch_emulator.http.routes import applications, state
from batch_emulator.http.routes.openapi import AdminRoute, openapi_document
from batch_emulator.http.routes.table import OPERATIONS
from batch_emulator.scheduling.allocation import resize_error

_LONGEST_S = 366 * 86400.0
_JSON = {"Content-Type": "application/json; charset=utf-8"}


def nodes_of(call: Call) -> Reply:
    """Return the nodes of a pool, by number."""
    found = sorted(call.pool().nodes.values(), key=lambda node: node.number)
    return Reply(200, {"value": [_node_view(node) for node in found]})


def _node_view(node: Node) -> Json:
    return {
        "nodeId": node.id,
        "state": node.state.value,
        "spot": not node.dedicated,
        "evictable": eviction.evictable(node),
        "image": node.pool.image,
    }


def evict_node(call: Call) -> Reply:
    """Evict one spot node."""
    node = call.node()
    eviction.require_evictable(node)
    return _evict(call, [node], _eviction_times(call))


def recommend_rebalance(call: Call) -> Reply:
    """Show tasks of a spot node the recommendation to leave it."""
    node = call.node()
    eviction.require_evictable(node)
    eviction.recommend_rebalance(call.emulator.account, node, call.now)
    return Reply(202, {"value": [_evicted(node) | {"eventId": node.rebalance}]})


def evict_some(call: Call) -> Reply:
    """Evict random spot nodes of a pool, all of them if there are fewer."""
    text = call.query.get("count", "1")
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise bad_query("count", text, "a number of nodes from 1 on is expected")
    times = _eviction_times(call)
    pool = call.pool()
    if pool.nodes and all(node.dedicated for node in pool.nodes.values()):
        reason = "the pool has dedicated nodes only; spot nodes are evicted"
        raise Fault("OperationNotValidOnPool", {"PoolId": pool.id, "Reason": reason})
    return _evict(call, eviction.pick(call.emulator.account, pool, int(text)), times)


def _eviction_times(call: Call) -> tuple[float | None, float | None]:
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
    """Make a node unusable: with an error (`code`), or without contact until it recovers."""
    node = call.node()
    if node.state in nodes.WITHOUT_MACHINE:
        raise Fault("OperationInvalidForCurrentState", {"State": node.state.value})
    code, message = call.query.get("code"), call.query.get("message", "requested by the admin API")
    details: list[Json] = []
    error: Json = {"code": code, "message": message, "errorDetails": details}
    errors = [error] if code else []
    nodes.fail(call.emulator.account, node, errors, call.now)
    return Reply(202)


def leave_resize_error(call: Call) -> Reply:
    """Give a pool the error of an earlier resize, which the service keeps until the next one."""
    pool = call.pool()
    code = call.query.get("code") or "AllocationFailed"
    message = call.query.get("message", "requested by the admin API")
    pools.keep_resize_error(call.emulator.account, pool, resize_error(code, message))
    return Reply(202)


# -- the metadata service for tasks


def get_scheduled_events(call: Call) -> Reply:
    """GET /metadata/scheduledevents of a node."""
    refused = _check_metadata_request(call)
    version = call.query.get("api-version", "")
    return refused or Reply(
        200, eviction.scheduled_events(call.node(), version, call.now), dict(_JSON)
    )


def acknowledge(call: Call) -> Reply:
    """POST /metadata/scheduledevents: the named events may start at once."""
    refused = _check_metadata_request(call)
    if refused:
        return refused
    node = call.node()
    wanted = _event_ids(call)
    if wanted is None:
        return _bad_metadata_request('a body {"StartRequests": [{"EventId": ...}]} is expected')
    notice = node.notice
    if notice is None or notice.event_id.lower() not in wanted:
        return _bad_metadata_request("no such event is scheduled")
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


def _check_metadata_request(call: Call) -> Reply | None:
    """Return the answer to a request that the metadata service refuses, else None.

    Raises Fault for callers without the secret of the node.
    """
    params = call.params
    key = call.emulator.settings.key
    expected = eviction.imds_secret(key, params["poolId"], params["nodeId"])
    if not hmac.compare_digest(expected.encode(), params["secret"].encode()):
        raise Fault("AuthenticationFailed", status=403)
    if eviction.blocks_metadata(call.node().pool):
        return Reply(403, {"error": "Forbidden"}, dict(_JSON))
    if call.headers.get("metadata", "").lower() != "true":
        return _bad_metadata_request("Required metadata header not specified")
    if "x-forwarded-for" in call.headers:
        return _bad_metadata_request("X-Forwarded-For is not allowed")
    if not eviction.is_events_version(call.query.get("api-version", ""), call.now):
        versions = list(reversed(eviction.IMDS_VERSIONS))
        body = {"error": "Bad request. api-version was not specified in the request or is invalid"}
        return Reply(400, body | {"newest-versions": versions[:3]}, dict(_JSON))
    return None


def _bad_metadata_request(reason: str) -> Reply:
    return Reply(400, {"error": f"Bad request. {reason}"}, dict(_JSON))


PREFIX = "/_emulator"
_PAGE = 1000
_DIGITS = 18
_POOL = "/pools/{poolId}"
_NODE = "/pools/{poolId}/nodes/{nodeId}"
_EVENTS = eviction.IMDS_PATH + "/{poolId}/{nodeId}/{secret}/metadata/scheduledevents"
_LONGEST_PUSH = timedelta(days=366)


def authenticate(authorization: str, key: str) -> None:
    """Refuse requests without the account key. Raises Fault."""
    if not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        reason = f"{PREFIX} wants 'Authorization: Bearer <account key>'"
        raise Fault("AuthenticationFailed", {"AuthenticationErrorDetail": reason}, status=403)


def health(call: Call) -> Reply:
    """Return whether the emulator can store its state, with `reason` if it accepts no work."""
    emulator = call.emulator
    trouble = emulator.starting or emulator.trouble
    uptime_s = (call.now - emulator.started).total_seconds()
    body = {
        "version": __version__,
        "account": emulator.settings.account,
        "pools": len(emulator.account.pools),
        "jobs": len(emulator.account.jobs),
        "uptime": round(uptime_s, 3),
        "isolation": emulator.isolation.document(),
    }
    if trouble is not None:
        body["reason"] = trouble
    ready = emulator.healthy and emulator.store.blocked is None and emulator.starting is None
    return Reply(200 if ready else 503, body)


def events(call: Call) -> Reply:
    """Return changes of state after a number, oldest first, 1000 at most."""
    text = call.query.get("after", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise bad_query("after", text, "the number of an event is expected")
    found = [event.document() for event in call.emulator.account.events.after(int(text))]
    return Reply(200, {"value": found[:_PAGE]})


def clock(call: Call) -> Reply:
    """Return the emulator's time, and how fast it passes."""
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


def list_rules(call: Call) -> Reply:
    """Return the rules in order, with what each has hit."""
    return Reply(200, call.emulator.account.faults.document(call.now))


def add_rule(call: Call) -> Reply:
    """Load one more rule. Without `rate`, `every`, `count` and times it hits once."""
    account = call.emulator.account
    body: dict[str, Any] = call.json()
    often = {"rate", "every", "count", "afterSeconds", "untilSeconds"}
    if not often & body.keys() and not {"nodes", "quota"} & body.keys():
        body["count"] = 1
    loaded = account.faults.rules
    before = [one.rule for one in loaded if not one.exhausted]
    try:
        rule = parse_rule(body, OPERATIONS, before, account.faults.next_number)
    except RuleError as err:
        raise _refused(err, body.get(err.key, "")) from err
    over = [one for one in loaded if one.exhausted]
    # hits are counted by name, so an exhausted rule of this name goes first
    replaced = next((one for one in over if one.rule.name == rule.name), None)
    if replaced is None and over and len(loaded) >= MOST_RULES:
        replaced = over[0]
    if replaced is not None:
        loaded.remove(replaced)
    fault_rules.add(account, rule, call.now)
    return list_rules(call)


def replace_rules(call: Call) -> Reply:
    """Load the rules of a document instead of all others."""
    try:
        found = parse_rules(call.json(), OPERATIONS)
    except RuleError as err:
        raise _refused(err, "") from err
    fault_rules.load(call.emulator.account, found, call.now)
    return list_rules(call)


def forget_rules(call: Call) -> Reply:
    """Forget all rules. What they did to nodes stays."""
    fault_rules.load(call.emulator.account, RuleSet(), call.now)
    return Reply(204)


def _refused(err: RuleError, value: object) -> Fault:
    return bad_property(err.key, value, str(err))


def openapi(call: Call) -> Reply:
    """Return the OpenAPI document of this emulator."""
    document = openapi_document(ADMIN_ROUTES, call.base_url)
    return _text(json.dumps(document, separators=(",", ":")), _JSON["Content-Type"])


def metrics(call: Call) -> Reply:
    """Return the metrics for Prometheus."""

    return _text(metrics_text(call.emulator, call.now), CONTENT_TYPE)


def _text(text: str, kind: str) -> Reply:
    """Return an answer that is sent as it is, whatever the api-version."""
    content = text.encode()

    async def whole() -> AsyncIterator[bytes]:
        yield content

    headers = {"Content-Type": kind, "Content-Length": str(len(content))}
    return Reply(200, None, headers, whole())


def create_page_link(call: Call) -> Reply:
    """Return a link that signs one browser in to the page, once."""
    if call.emulator.new_page_link is None:
        raise Fault("OperationInvalidForCurrentState", {"Reason": "started without --ui"})
    return Reply(201, {"url": call.emulator.new_page_link()})


async def reset(call: Call) -> Reply:
    """End and delete all jobs, schedules and pools; answered when they are gone."""
    await call.emulator.reset()
    return Reply(204)


_APPLICATION = f"{PREFIX}/applications/{{applicationId}}"
_PACKAGE = f"{_APPLICATION}/versions/{{version}}"

ADMIN_ROUTES: tuple[AdminRoute, ...] = (
    AdminRoute("PUT", _APPLICATION, "create or change an application", applications.put),
    AdminRoute("DELETE", _APPLICATION, "delete an application", applications.delete),
    AdminRoute(
        "PUT",
        _PACKAGE,
        "store a package, the zip file is the body; `?default=true`",
        applications.put_version,
        streamed=True,
    ),
    AdminRoute("DELETE", _PACKAGE, "delete a package", applications.delete_version),
    AdminRoute(
        "GET", f"{PREFIX}/health", "200 when ready and able to store its state", health, open=True
    ),
    AdminRoute("GET", f"{PREFIX}/export", "the account as one file", state.export_account),
    AdminRoute(
        "POST",
        f"{PREFIX}/import",
        "take over an exported account, the body; this one must be empty",
        state.import_account,
        streamed=True,
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}/seed",
        "add pools, jobs and job schedules, all or none; those that exist stay as they are",
        state.seed,
        streamed=True,
    ),
    AdminRoute("GET", f"{PREFIX}/events", "changes of state, `?after=NUMBER`", events),
    AdminRoute("GET", f"{PREFIX}/clock", "the emulator's time", clock),
    AdminRoute("POST", f"{PREFIX}/clock", '`{"push": "PT15M"}` lets time pass', push_clock),
    AdminRoute(
        "GET", f"{PREFIX}{_POOL}/nodes", "nodes, with whether each can be evicted", nodes_of
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_POOL}/evict",
        "evict spot nodes, `?count=N&notice=SECONDS&away=SECONDS`",
        evict_some,
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_NODE}/evict",
        "evict one spot node, `?notice=SECONDS&away=SECONDS`",
        evict_node,
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_NODE}/rebalance",
        "show the tasks of a spot node a SpotRebalanceRecommendation",
        recommend_rebalance,
    ),
    AdminRoute(
        "POST", f"{PREFIX}{_NODE}/fail", "make a node unusable, `?code=DiskFull`", fail_node
    ),
    AdminRoute(
        "POST",
        f"{PREFIX}{_POOL}/resize-error",
        "leave the error of an earlier resize on a pool, `?code=AllocationFailed`",
        leave_resize_error,
    ),
    AdminRoute("GET", _EVENTS, "Scheduled Events of a node", get_scheduled_events, open=True),
    AdminRoute("POST", _EVENTS, "acknowledge an event", acknowledge, open=True),
    AdminRoute("GET", f"{PREFIX}/faults", "rules for faults, with what each has hit", list_rules),
    AdminRoute(
        "POST",
        f"{PREFIX}/faults",
        '`{"operation": "Task_Add", "code": "ServerBusy", "count": 3, "delaySeconds": 1}` adds a '
        "rule; without `rate`, `every`, `count` and times it hits once",
        add_rule,
    ),
    AdminRoute(
        "PUT",
        f"{PREFIX}/faults",
        'replace all rules by `{"seed": 7, "rules": [...]}`',
        replace_rules,
    ),
    AdminRoute("DELETE", f"{PREFIX}/faults", "forget all rules", forget_rules),
    AdminRoute("GET", f"{PREFIX}/metrics", "metrics for Prometheus, which needs the key", metrics),
    AdminRoute(
        "GET",
        f"{PREFIX}/openapi.json",
        "the OpenAPI document of these requests and of the operations of Batch",
        openapi,
        open=True,
    ),
    AdminRoute(
        "POST", f"{PREFIX}/page-links", "a link that signs a browser in once", create_page_link
    ),
    AdminRoute("POST", f"{PREFIX}/reset", "delete all pools, jobs and schedules", reset),
)
