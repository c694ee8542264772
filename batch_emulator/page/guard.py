"""Who may see the page: a link that is valid once, a cookie that scripts cannot read, and origins.

Whoever can use the page can execute commands on this machine. Every request therefore needs a
session. The link that is printed at the start has a token, which is exchanged for a cookie. `Host`
is checked against DNS rebinding, `Origin` and `Sec-Fetch-Site` against requests of other websites
(https://www.w3.org/TR/fetch-metadata, read 2026-11-28).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.page.markup import el

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
STATIC = "/static/"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OWN_SITE = frozenset({"same-origin", "none"})
_SESSION_S = 30 * 86400
_MOST_LINKS = 20
_SIGN_IN = (
    "sign in with the link that the emulator printed, or with a new one: "
    "POST /_emulator/page-links of its API\n"
)


class Sessions:
    """The links that were not used yet, and cookies, which are signed with the account's key.

    So a browser stays signed in when the emulator starts again on the same port.
    """

    def __init__(self, url: str, key: str, on_link: Callable[[str], object]) -> None:
        self._url = url
        self._key = hashlib.sha256(b"page session" + key.encode()).digest()
        self._on_link = on_link
        self._tokens: dict[str, None] = {}

    def new_link(self) -> str:
        """Return a link that signs a browser in, once."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = None
        while len(self._tokens) > _MOST_LINKS:
            del self._tokens[next(iter(self._tokens))]
        return f"{self._url}/?token={token}"

    def use_token(self, token: str) -> str | None:
        """Return a new cookie for the token of a link, which becomes invalid, or None."""
        known = next((each for each in self._tokens if _same(each, token)), None)
        if known is None:
            return None
        del self._tokens[known]
        self._on_link(self.new_link())
        text = f"{int(time.time())}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._signature(text)}"

    def knows(self, cookie: str) -> bool:
        """Return True for a cookie of this account that is not too old."""
        text, _, signature = cookie.rpartition(".")
        if not text or not _same(self._signature(text), signature):
            return False
        return time.time() - int(text.partition(".")[0]) < _SESSION_S

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


class Guard:
    """Refuse requests without a session, and add the headers of every answer. ASGI.

    With `any_host`, all hosts are accepted: other machines reach this port. A website that gives
    its name to this address has no cookie, because browsers send one only to the host it is from.
    """

    def __init__(
        self, app: ASGIApp, sessions: Sessions, port: int, *, any_host: bool = False
    ) -> None:
        self._app = app
        self._any_host = any_host
        self._sessions = sessions
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
        self.cookie = f"batch-emulator-{port}"  # browsers share cookies between ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._check(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused or has a token, else None."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not self._any_host and host not in self._hosts:
            return _refused(403, f"this page does not answer for host {host[:64]!r}\n")
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        is_known = self._sessions.knows(session)
        text = scope["query_string"].decode("ascii", "replace")
        found = dict(parse_qsl(text, keep_blank_values=True))
        if "token" in found and scope["method"] == "GET":
            return self._exchange(scope["path"], found, headers, is_known=is_known)
        foreign = _reason_to_refuse(scope["method"], host, headers)
        if foreign:
            return _refused(403, foreign)
        is_open = is_known or scope["path"].startswith(STATIC)
        return None if is_open else _refused(401, _SIGN_IN)

    def _exchange(
        self, path: str, query: dict[str, str], headers: Headers, *, is_known: bool
    ) -> Response:
        cookie = self._sessions.use_token(query.pop("token"))
        if cookie is None and not is_known:
            text = f"this link was used before, or is of another start; {_SIGN_IN}"
            return _refused(403, text)
        rest = urlencode(query)
        address = _without_host(path) + (f"?{rest}" if rest else "")
        return self._signed_in(address, cookie, headers)

    def _signed_in(self, address: str, cookie: str | None, headers: Headers) -> Response:
        """Return the way to the page without its token, with the new cookie if there is one.

        A browser that followed a link of another website would not send it after a redirect.
        """
        answer: Response = RedirectResponse(address, 303)
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            refresh = el("meta", http_equiv="refresh", content=f"0;url={address}")
            answer = HTMLResponse(f"<!doctype html>{refresh}{el('a', 'Continue', href=address)}")
        if cookie is not None:
            answer.set_cookie(
                self.cookie, cookie, max_age=_SESSION_S, httponly=True, samesite="strict"
            )
        return answer


def _reason_to_refuse(method: str, host: str, headers: Headers) -> str | None:
    """Return why a request is refused that another website may have caused, else None."""
    if method not in _SAFE_METHODS and headers.get("origin", "").lower() != f"http://{host}":
        return "another website, or no page at all, sent this request\n"
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        return "another website sent this request\n"
    return None


def _without_host(path: str) -> str:
    return "/" + path.lstrip("/\\")  # `//host` would be another host


def _refused(status: int, text: str) -> Response:
    return PlainTextResponse(text, status)
