"""Evict nodes of the local pools, as Azure evicts spot machines."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlencode

from runner.core.home import HomePaths
from runner.core.settings import Settings
from runner.flows.local.state import POOL_ID, ask_service, ensure_keys, load_state, services_down
from runner.protocol.errors import ExitCode, RunnerError

_ALL = 10**9 - 1
_TIMEOUT_S = 60.0  # seconds on a busy machine; a port without a listener refuses immediately


@dataclass(frozen=True, slots=True)
class Evicted:
    """An evicted node; `not_before` is the time of its eviction, None if that was immediate."""

    pool: str
    node: str
    state: str
    not_before: str | None


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node of a local pool; spot nodes without a pending eviction are `evictable`."""

    id: str
    state: str
    spot: bool
    evictable: bool


def evict(
    settings: Settings,
    *,
    node: str | None = None,
    pool: str | None = None,
    count: int | None = None,
    everything: bool = False,
    notice_s: float | None = None,
    away_s: float | None = None,
) -> tuple[Evicted, ...]:
    """Evict nodes of a local pool and return them.

    Args:
        settings: The settings of the target.
        node: An ID, or a unique prefix of one.
        pool: The pool; None is `local`.
        count: How many spot nodes to evict without `node`; None is one.
        everything: Evict all spot nodes of the pool.
        notice_s: Time between the notice and the eviction; None is the emulator's default.
        away_s: Time until a replacement arrives; None is the emulator's default.

    Raises:
        RunnerError: the options exclude each other, or no such node can be evicted.
    """
    _check(node, count, everything=everything)
    pool = pool or POOL_ID
    emulator = _Emulator(settings)
    path = f"/pools/{quote(pool, safe='')}"
    query: dict[str, Any] = {"notice": notice_s, "away": away_s}
    found = _nodes(emulator, pool)
    if node is not None:
        path += f"/nodes/{quote(_resolve(found, node, pool).id, safe='')}"
    else:
        query["count"] = _ALL if everything else count or 1
    wanted = urlencode({name: value for name, value in query.items() if value is not None})
    answer = emulator.ask("POST", f"{path}/evict?{wanted}", pool)
    evicted = tuple(
        Evicted(item["poolId"], item["nodeId"], item["state"], item.get("notBefore"))
        for item in answer["value"]
    )
    if not evicted:
        raise _none_left(found, pool)
    return evicted


def local_nodes(settings: Settings) -> list[LocalNode]:
    """Return the nodes of the pool `local`."""
    return _nodes(_Emulator(settings), POOL_ID)


def _check(node: str | None, count: int | None, *, everything: bool) -> None:
    given = [name for name, value in ((f"--count {count}", count), ("--all", everything)) if value]
    if node is not None and given:
        raise RunnerError(
            "R-LOCAL-EVICT",
            f"NODE and {given[0].split()[0]} exclude each other",
            fix=f"runner local evict {node}   or   runner local evict {given[0]}",
        )
    if len(given) == 2:
        raise RunnerError(
            "R-LOCAL-EVICT", "--count and --all exclude each other", fix="runner local evict --all"
        )


def _nodes(emulator: _Emulator, pool: str) -> list[LocalNode]:
    answer = emulator.ask("GET", f"/pools/{quote(pool, safe='')}/nodes", pool)
    return [
        LocalNode(item["nodeId"], item["state"], item["spot"], item["evictable"])
        for item in answer["value"]
    ]


def _resolve(found: list[LocalNode], text: str, pool: str) -> LocalNode:
    matching = [node for node in found if node.id.lower().startswith(text.lower())]
    exact = [node for node in matching if node.id.lower() == text.lower()]
    matching = exact or matching
    if len(matching) == 1:
        [node] = matching
        if not node.evictable:
            raise _not_evictable(node)
        return node
    ids = ", ".join(node.id for node in (matching or found)[:5]) or "none"
    raise RunnerError(
        "R-LOCAL-EVICT",
        f"prefix {text!r} matches {len(matching)} nodes of pool {pool!r}"
        if matching
        else f"pool {pool!r} has no node {text!r}",
        why=f"its nodes: {ids}",
        fix="use one of them, or omit NODE to evict any spot node",
    )


def _not_evictable(node: LocalNode) -> RunnerError:
    if not node.spot:
        return RunnerError(
            "R-LOCAL-EVICT",
            f"node {node.id} is dedicated",
            why="only spot nodes are evicted",
            fix="use a spot node, or omit NODE",
        )
    return RunnerError(
        "R-LOCAL-EVICT",
        f"node {node.id} cannot be evicted now",
        why=f"it is {node.state}" if node.state == "preempted" else "its eviction is pending",
        fix="wait for its replacement, then run `runner local evict` again",
        exit_code=ExitCode.CAPACITY,
    )


def _none_left(found: list[LocalNode], pool: str) -> RunnerError:
    if not found:
        why, fix = "it has no nodes", "runner local up --nodes 1"
    elif all(not node.spot for node in found):
        why, fix = "it has only dedicated nodes", "use a pool with spot nodes: --pool POOL"
    else:
        why, fix = "all its spot nodes are being evicted", "wait for a replacement"
    return RunnerError(
        "R-LOCAL-EVICT",
        f"pool {pool!r} has no node to evict",
        why=why,
        fix=fix,
        exit_code=ExitCode.CAPACITY,
    )


class _Emulator:
    """The admin API of the local Batch emulator."""

    def __init__(self, settings: Settings) -> None:
        paths = HomePaths(settings.home)
        state = load_state(paths)
        if state is None or state.batch is None:
            raise services_down()
        self._port = state.batch_port
        self._key = ensure_keys(paths)["batch"]

    def ask(self, method: str, path: str, pool: str) -> dict[str, Any]:
        """Send one request and return the answer. Raise RunnerError."""
        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            reply, content = ask_service(
                self._port, method, f"/_emulator{path}", timeout_s=_TIMEOUT_S, headers=headers
            )
            answer: Any = json.loads(content or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as err:
            raise services_down() from err
        if reply.status >= http.client.BAD_REQUEST or not isinstance(answer, dict):
            raise _refused(answer, reply.status, pool)
        return cast("dict[str, Any]", answer)


def _refused(answer: Any, status: int, pool: str) -> RunnerError:
    body = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    code = str(body.get("code", f"status {status}"))
    items = cast("list[dict[str, Any]]", body.get("values") or [])
    values = {str(item["key"]): str(item["value"]) for item in items}
    if code == "PoolNotFound":
        return RunnerError(
            "R-POOL-MISSING",
            f"local pool {pool!r} not found",
            fix=f"run `runner local up` to create pool {POOL_ID!r}",
        )
    if code == "AuthenticationFailed":
        return RunnerError(
            "R-ACCESS-DENIED",
            "the local Batch emulator uses a different key",
            fix="runner local down && runner local up",
        )
    if code in ("InvalidUri", "UnsupportedHttpVerb"):
        return RunnerError(
            "R-LOCAL-EVICT",
            "the local Batch emulator is older than this command",
            fix="runner local down && runner local up",
            exit_code=ExitCode.PREFLIGHT,
        )
    return RunnerError(
        "R-LOCAL-EVICT",
        "the emulator rejected the eviction",
        why=values.get("Reason", code),
        fix="runner local evict --help",
        exit_code=ExitCode.CAPACITY if status == http.client.CONFLICT else ExitCode.USAGE,
    )
