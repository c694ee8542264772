"""Who may see the page and act: a one-time link, a cookie, tokens for programs, and origins.

A page on this port executes commands, so every request needs a session or a token, even from this
machine. The link that `runner ui` prints has a token that is valid once. It is exchanged for a
cookie that scripts cannot read. `Host` is checked against DNS rebinding, `Origin` and
`Sec-Fetch-Site` against requests of other websites (https://fetch.spec.whatwg.org/#origin-header).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OPEN_PATHS = ("/static/", "/login", "/health")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_SESSIONS = 1000


@dataclass(slots=True)
class Access:
    """The tokens of one server, which it forgets when it ends.

    Attributes:
        hosts: Values of `Host` that are accepted, with the port if it is not the usual one.
        read_only: True if nobody may act.
        password: For a server on another host than this machine; None on loopback.
        on_link: Called with a new token whenever one was used, so that it can be printed.
    """

    hosts: frozenset[str]
    read_only: bool = False
    password: str | None = None
    is_secure: bool = False
    on_link: Callable[[str], object] = lambda _: None
    link_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tokens: dict[AccessScope, str] = field(default_factory=dict[AccessScope, str])
    _sessions: dict[str, None] = field(default_factory=dict[str, None])

    def create_tokens(self) -> Mapping[AccessScope, str]:
        """Create a token of each scope for programs, and return them by scope."""
        scopes: tuple[AccessScope, ...] = ("read",) if self.read_only else ("read", "act")
        self.tokens = {scope: f"runner_{scope}_{secrets.token_urlsafe(24)}" for scope in scopes}
        return self.tokens

    def use_link(self, token: str) -> str | None:
        """Return a new session for the token of a link, which becomes invalid, or None."""
        if not hmac.compare_digest(token.encode(), self.link_token.encode()):
            return None
        self.link_token = secrets.token_urlsafe(24)
        self.on_link(self.link_token)
        return self._new_session()

    def sign_in(self, password: str) -> str | None:
        """Return a new session for the right password, or None."""
        if self.password is None:
            return None
        is_right = hmac.compare_digest(password.encode(), self.password.encode())
        return self._new_session() if is_right else None

    def scope_of(self, headers: Headers, cookie: str) -> AccessScope | None:
        """Return what a request may do, or None if it has neither a session nor a token."""
        given = headers.get("authorization", "")
        if given.lower().startswith("bearer "):
            token = given[7:].strip().encode()
            for scope, known in self.tokens.items():
                if hmac.compare_digest(token, known.encode()):
                    return scope
            return None
        session = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        if session in self._sessions:
            return "read" if self.read_only else "act"
        return None

    def _new_session(self) -> str:
        session = secrets.token_urlsafe(24)
        self._sessions[session] = None
        while len(self._sessions) > _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session


class AccessMiddleware:
    """Refuse requests without access, and add the headers of every answer. ASGI."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on with `access` in its state: `read` or `act`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
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
        await app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused or has a link, else None."""
        headers, path = Headers(scope=scope), scope["path"]
        if headers.get("host", "").lower() not in self._access.hosts:
            return _refused(403, f"this server does not answer for host {headers.get('host')!r}")
        cookie = self.cookie_name(scope)
        token = QueryParams(scope["query_string"]).get("token")
        if token is not None and scope["method"] == "GET" and not path.startswith("/api/"):
            return self._exchange(scope, token, cookie)
        found = self._access.scope_of(headers, cookie)
        scope.setdefault("state", {})["access"] = found or "none"
        changes = scope["method"] not in _SAFE_METHODS
        if changes and _is_foreign(headers):
            return _refused(403, "another website sent this request")
        if found is None and not path.startswith(_OPEN_PATHS):
            return self._sign_in_first(path)
        if changes and found == "read":
            return _refused(403, "this access may read only")
        return None

    def cookie_name(self, scope: Scope) -> str:
        """Return the name of the cookie: browsers share cookies between the ports of a host."""
        return f"runner-{scope['server'][1]}"

    def _exchange(self, scope: Scope, token: str, cookie: str) -> Response:
        rest = "&".join(
            part for part in scope["query_string"].decode().split("&") if part[:6] != "token="
        )
        session = self._access.use_link(token)
        if session is None:
            if self._access.scope_of(Headers(scope=scope), cookie) is None:
                return _refused(
                    403,
                    "this link was used before, or is from an earlier start; "
                    "`runner ui` has printed a new one",
                )
            session = cookie_parser(Headers(scope=scope)["cookie"])[cookie]
        path = "/" + scope["path"].lstrip("/\\")  # `//host` would be another host
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        return set_session(answer, cookie, session, secure=self._access.is_secure)

    def _sign_in_first(self, path: str) -> Response:
        if path.startswith("/api/"):
            answer = PlainTextResponse("a token is missing or unknown\n", 401)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        if self._access.password is not None:
            return RedirectResponse("/login", 303)
        return _refused(
            401, "open the link that `runner ui` printed; it signs this browser in once"
        )


def set_session(answer: Response, cookie: str, session: str, *, secure: bool) -> Response:
    """Add the cookie of a session to an answer, and return the answer."""
    answer.set_cookie(cookie, session, httponly=True, samesite="strict", secure=secure)
    return answer


def _is_foreign(headers: Headers) -> bool:
    """Return True if a browser says that another website caused a request."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    parts = urlsplit(origin)
    return parts.netloc.lower() != headers.get("host", "").lower() or not parts.netloc


def _refused(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)
