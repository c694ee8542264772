"""Who may see the page and act: a one-time link, a cookie, tokens for programs, and origins.

A page on this port executes commands, so every request needs a session or a token, even from this
machine. The link that `runner ui` prints has a token that is valid once. It is exchanged for a
cookie that scripts cannot read. `Host` is checked against DNS rebinding, `Origin` and
`Sec-Fetch-Site` against requests of other websites (https://fetch.spec.whatwg.org/#origin-header).
Headers of proxies, such as `X-Forwarded-For`, are never used: anybody can send them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.protocol.errors import RunnerError

AccessScope = Literal["read", "act"]

# Nothing but the files of this page runs or loads; `style` attributes do not either.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OPEN = re.compile(r"/static/[\w.-]+|/login|/health")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_SESSIONS = 1000
_SESSION_S = 7 * 24 * 3600.0  # since its last request
_MAX_BODY = 1 << 20
_BODY_S = 30.0


class Guesses:
    """Slows down guesses of a password: each client, and all together.

    After `free` wrong passwords of a client, the next one is looked at after 1, 2, 4 ... seconds,
    at most 60. After 100 of all clients, every one waits a second.
    """

    FREE = 5
    FREE_OF_ALL = 100
    LONGEST_S = 60.0
    _MOST_CLIENTS = 10_000
    _ALL = "all"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: dict[str, tuple[int, float]] = {}  # number, and time of the last one

    def wait_s(self, client: str) -> float:
        """Return the seconds until a password of a client is looked at; 0 for now."""
        return max(
            self._wait_s(_network(client), self.FREE, self.LONGEST_S),
            self._wait_s(self._ALL, self.FREE_OF_ALL, 1.0),
        )

    def _wait_s(self, key: str, free: int, longest_s: float) -> float:
        count, last = self._wrong.get(key, (0, 0.0))
        if count < free:
            return 0.0
        return max(last + min(2.0 ** min(count - free, 10), longest_s) - self._clock(), 0.0)

    def note_wrong(self, client: str) -> None:
        """Remember that a password of a client was wrong."""
        for key in (_network(client), self._ALL):
            count = self._wrong.pop(key, (0, 0.0))[0]
            self._wrong[key] = (count + 1, self._clock())
        while len(self._wrong) > self._MOST_CLIENTS:
            del self._wrong[next(key for key in self._wrong if key != self._ALL)]

    def forget(self, client: str) -> None:
        """Forget the wrong passwords of a client that knew the right one."""
        self._wrong.pop(_network(client), None)


def _network(client: str) -> str:
    """Return the address of a client; of IPv6, its network, because a client has many addresses."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@dataclass(slots=True)
class Access:
    """The tokens of one server, which it forgets when it ends.

    Attributes:
        hosts: Values of `Host` that are accepted, with the port if it is not the usual one.
        read_only: True if nobody may act.
        password: For a server that other machines reach; None on loopback.
        is_secure: True if browsers use https.
        programs_only: True if only tokens of programs are accepted.
        on_link: Called with a new token whenever one was used, so that it can be printed.
        guesses: Wrong passwords.
        clock: Returns seconds.
    """

    hosts: frozenset[str]
    read_only: bool = False
    password: str | None = field(default=None, repr=False)
    is_secure: bool = False
    programs_only: bool = False
    on_link: Callable[[str], object] = lambda _: None
    guesses: Guesses = field(default_factory=Guesses)
    clock: Callable[[], float] = time.monotonic
    link_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    tokens: dict[AccessScope, str] = field(default_factory=dict[AccessScope, str], repr=False)
    _sessions: dict[str, float] = field(default_factory=dict[str, float], repr=False)

    def create_tokens(self) -> Mapping[AccessScope, str]:
        """Create a token of each scope for programs, and return them by scope."""
        scopes: tuple[AccessScope, ...] = ("read",) if self.read_only else ("read", "act")
        self.tokens = {scope: f"runner_{scope}_{secrets.token_urlsafe(24)}" for scope in scopes}
        return self.tokens

    def use_link(self, token: str) -> str | None:
        """Return a new session for the token of a link, which becomes invalid, or None."""
        if self.programs_only or not _is_equal(token, self.link_token):
            return None
        self.link_token = secrets.token_urlsafe(24)
        self.on_link(self.link_token)
        return self._new_session()

    def sign_in(self, password: str, client: str) -> str | None:
        """Return a new session for the right password, or None. Call `guesses.wait_s` before.

        Args:
            password: What somebody entered.
            client: The address of the other end of the connection.
        """
        if self.password is None:
            return None
        if not _is_equal(password, self.password):
            self.guesses.note_wrong(client)
            return None
        self.guesses.forget(client)
        return self._new_session()

    def sign_out(self, headers: Headers, cookie: str) -> None:
        """Forget the session of a request."""
        self._sessions.pop(_session(headers, cookie), None)

    def scope_of(self, headers: Headers, cookie: str) -> AccessScope | None:
        """Return what a request may do, or None if it has neither a session nor a token."""
        given = headers.get("authorization", "")
        if given.lower().startswith("bearer "):
            token = given[7:].strip()
            for scope, known in self.tokens.items():
                if _is_equal(token, known):
                    return scope
            return None
        session, now = _session(headers, cookie), self.clock()
        if now - self._sessions.get(session, -_SESSION_S) >= _SESSION_S:
            self._sessions.pop(session, None)
            return None
        self._sessions[session] = now
        return "read" if self.read_only else "act"

    def _new_session(self) -> str:
        session = secrets.token_urlsafe(24)
        self._sessions[session] = self.clock()
        while len(self._sessions) > _MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda each: self._sessions[each])]
        return session


def _is_equal(given: str, known: str) -> bool:
    """Compare in a time that tells neither content nor length."""
    hashes = [hashlib.sha256(each.encode("utf-8", "replace")).digest() for each in (given, known)]
    return hmac.compare_digest(*hashes)


def _session(headers: Headers, cookie: str) -> str:
    return cookie_parser(headers.get("cookie", "")).get(cookie, "")


def own_path(text: str) -> str:
    """Return a path of this server with its query; `/runs` for a text that is none.

    Browsers read `//host`, `/\\host` and, because they skip a tab, `/<tab>/host` as another host.
    """
    is_own = re.fullmatch(r"/(?![/\\])[^\\\x00-\x20\x7f]*", text)
    return quote(text, safe="/?&=%:;,+@!$'()*~-._[]") if is_own else "/runs"


class AccessMiddleware:
    """Refuse requests without access, and add the headers of every answer. ASGI."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on with `access` in its state: `read` or `act`."""
        if scope["type"] != "http":  # the server offers neither WebSockets nor a lifespan
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._check(scope)
        app: ASGIApp = self._app if refusal is None else refusal
        await app(scope, _bounded(receive), send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused or has a link, else None."""
        headers, path = Headers(scope=scope), scope["path"]
        if headers.get("host", "").lower() not in self._access.hosts:
            named = headers.get("host", "")[:200]
            return _refused(403, f"this server does not answer for host {named!r}")
        changes = scope["method"] not in _SAFE_METHODS
        if _is_foreign(headers, changes=changes, is_secure=self._access.is_secure):
            return _refused(403, "another website sent this request")
        cookie = self.cookie_name(scope)
        query = QueryParams(scope["query_string"])
        if "token" in query and scope["method"] == "GET" and not path.startswith("/api/"):
            return self._exchange(scope, query, cookie)
        found = self._access.scope_of(headers, cookie)
        scope.setdefault("state", {})["access"] = found or "none"
        if found is None and not _OPEN.fullmatch(path):
            return self._sign_in_first(scope)
        if changes and found == "read" and path not in ("/login", "/logout"):
            return _refused(403, "this access may read only")
        return None

    def cookie_name(self, scope: Scope) -> str:
        """Return the name of the cookie: browsers share cookies between the ports of a host.

        Over https, no other host of the domain can set a cookie with the prefix.
        """
        return f"{'__Host-' if self._access.is_secure else ''}runner-{scope['server'][1]}"

    def _exchange(self, scope: Scope, query: QueryParams, cookie: str) -> Response:
        """Return a redirect to the address without the token, which the history would keep."""
        rest = urlencode([pair for pair in query.multi_items() if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # `//host` would be another host
        answer = RedirectResponse(own_path(quote(path) + (f"?{rest}" if rest else "")), 303)
        session = self._access.use_link(query["token"])
        if session is not None:
            return set_session(answer, cookie, session, secure=self._access.is_secure)
        if self._access.scope_of(Headers(scope=scope), cookie) is not None:
            return answer
        return _refused(
            403,
            "this link was used before, or is from an earlier start; "
            "`runner ui` has printed a new one",
        )

    def _sign_in_first(self, scope: Scope) -> Response:
        if self._access.programs_only or scope["path"].startswith("/api/"):
            answer = PlainTextResponse("a token is missing or unknown\n", 401)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        is_page = Headers(scope=scope).get("sec-fetch-mode", "navigate") == "navigate"
        if self._access.password is not None and is_page and scope["method"] == "GET":
            query = scope["query_string"].decode("latin-1")
            wanted = quote(scope["path"]) + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?{urlencode({'next': wanted})}", 303)
        return _refused(
            401, "open the link that `runner ui` printed; it signs this browser in once"
        )


def set_session(answer: Response, cookie: str, session: str, *, secure: bool) -> Response:
    """Add the cookie of a session to an answer, and return the answer.

    It is sent when somebody follows a link to the page from elsewhere, and with no other request
    of another website.
    """
    answer.set_cookie(cookie, session, httponly=True, samesite="lax", secure=secure)
    return answer


def _is_foreign(headers: Headers, *, changes: bool, is_secure: bool) -> bool:
    """Return True if a browser says that another website caused a request.

    Whoever follows a link from another website may read: a whole page, in a tab.
    """
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        follows_link = (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        return changes or not follows_link
    origin = headers.get("origin")
    if origin is None:
        return False
    own = f"{'https' if is_secure else 'http'}://{headers.get('host', '')}"
    return origin.lower() != own.lower()


def _bounded(receive: Receive) -> Receive:
    """Return `receive` for bodies of at most _MAX_BODY bytes that arrive in time."""
    received, is_complete, end = 0, False, time.monotonic() + _BODY_S

    async def receive_part() -> Message:
        nonlocal received, is_complete
        try:
            async with asyncio.timeout(None if is_complete else end - time.monotonic()):
                message = await receive()
        except TimeoutError as err:
            raise RunnerError(
                "R-PAGE-QUERY",
                "the body of the request did not arrive",
                why=f"a request has {_BODY_S:.0f} s to arrive",
                fix="send the request again",
            ) from err
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if received > _MAX_BODY:
            raise RunnerError(
                "R-PAGE-QUERY", "the request is too large", fix=f"send at most {_MAX_BODY} bytes"
            )
        return message

    return receive_part


def _refused(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)
