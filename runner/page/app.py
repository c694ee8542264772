"""All addresses: pages, their updates, logs, actions, the API, and static files.

A page is rendered on the server. `/live/...` is the same page as a stream of updates of its block
`view`. Without scripts a page is complete, and reloading it updates it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from runner.page import rest
from runner.page.access import Access, AccessMiddleware, set_session
from runner.page.actions import Actions
from runner.page.ask import Ask, WebPage, read_form
from runner.page.assets import Assets
from runner.page.live import NO_TROUBLE, Live
from runner.page.pages import ENDPOINTS, PAGES
from runner.page.pages.files import download
from runner.page.pages.log import follow_log
from runner.page.rendering import render
from runner.page.source import Source
from runner.protocol.errors import RunnerError

logger = logging.getLogger(__name__)
_STATUS = {"R-PAGE-QUERY": 400}
_NOT_FOUND = ("-UNKNOWN", "-NONE")
_YEAR_S = 31_536_000


class PageApp:
    """The application of one `runner ui`. `asgi` is its entry."""

    def __init__(self, source: Source, access: Access, assets: Assets | None) -> None:
        """Create the application; without `assets`, it answers programs only."""
        self.source = source
        self.access = access
        self.live = Live()
        self.actions = Actions(source, self._changed)
        routes = [Route("/health", _health), *rest.routes(self.ask, self.actions, ENDPOINTS)]
        self._assets = assets or Assets()
        if assets is not None:
            routes += self._page_routes()
        self._middleware = AccessMiddleware(
            Starlette(
                routes=routes,
                middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
                exception_handlers={RunnerError: self._error, 404: self._missing},
            ),
            access,
        )
        self.asgi = self._middleware

    def _page_routes(self) -> list[Route]:
        routes = [
            Route("/", _home),
            Route("/static/{name}", self._static),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/live/runs/{run_id}/log", self._log),
            Route("/runs/{run_id}/download", self._download),
            *self.actions.routes(self.context),
        ]
        for page in (*PAGES, self.actions.page):
            routes.append(Route(page.path, self._page_of(page)))
            routes.append(Route(f"/live{page.path}", self._updates_of(page)))
        return routes

    def _changed(self) -> None:
        """Show what an action changed at once."""
        self.source.forget_all()
        self.live.wake()

    def ask(self, request: Request, path: str | None = None) -> Ask:
        """Return what a request asks for."""
        return Ask(
            self.source,
            path or request.url.path,
            request.path_params,
            request.query_params,
            may_act=request.state.access == "act",
        )

    def _page_of(self, page: WebPage) -> Any:
        async def answer(request: Request) -> Response:
            ask = self.ask(request)
            context = self.context(request, page) | await page.read(ask)
            return HTMLResponse(render(f"{page.name}.html", None, context))

        return answer

    def _updates_of(self, page: WebPage) -> Any:
        async def answer(request: Request) -> Response:
            ask = self.ask(request, request.url.path.removeprefix("/live"))

            async def update() -> str:
                context = self.context(request, page) | await page.read(ask)
                return NO_TROUBLE + render(f"{page.name}.html", "view", context)

            key = f"{page.name} {request.url.path}?{request.url.query} {ask.may_act}"
            return _stream(self.live.follow(key, update, every_s=page.every_s or 60.0))

        return answer

    async def _download(self, request: Request) -> Response:
        return await download(self.ask(request))

    async def _log(self, request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        return _stream(follow_log(self.ask(request), last))

    def context(self, request: Request, page: WebPage | None = None) -> dict[str, Any]:
        """Return the values that every template has."""
        settings = self.source.settings
        path = request.url.path.removeprefix("/live")
        query = request.url.query
        live = f"/live{path}?{query}" if page and page.every_s else ""
        return {
            "navigation": [each for each in PAGES if each.label],
            "page": page,
            "path": path,
            "query": self.ask(request).pairs,
            "live": live,
            "target": settings.target,
            "stack": settings.stack if settings.target.has_stacks else "",
            "may_act": request.state.access == "act",
            "asset": self._assets.address,
        }

    async def _static(self, request: Request) -> Response:
        found = self._assets.find(request.path_params["name"])
        if found is None:
            return PlainTextResponse("there is no such file\n", 404)
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        answer = Response(
            found.compressed if zipped else found.content, media_type=found.media_type
        )
        answer.headers["vary"] = "accept-encoding"
        if zipped:
            answer.headers["content-encoding"] = "gzip"
        if "v" in request.query_params:
            answer.headers["cache-control"] = f"public, max-age={_YEAR_S}, immutable"
        return answer

    async def _login(self, request: Request) -> Response:
        if request.method == "POST":
            form = await read_form(request)
            session = self.access.sign_in(form.get("password", ""))
            if session is not None:
                cookie = self._middleware.cookie_name(request.scope)
                answer = RedirectResponse("/runs", 303)
                return set_session(answer, cookie, session, secure=self.access.is_secure)
        wrong = request.method == "POST"
        context: dict[str, Any] = {**self.context(request), "wrong": wrong, "navigation": ()}
        return HTMLResponse(render("login.html", None, context), 403 if wrong else 200)

    def _error(self, request: Request, err: Exception) -> Response:
        if not isinstance(err, RunnerError):
            raise err
        status = _STATUS.get(err.code, 404 if err.code.endswith(_NOT_FOUND) else 503)
        if request.url.path.startswith("/api/"):
            return rest.error_answer(err, status)
        context = self.context(request) | {"error": err}
        return HTMLResponse(render("error.html", None, context), status)

    def _missing(self, request: Request, err: Exception) -> Response:
        del err
        path = request.url.path
        fix = "/api/v1/openapi.json lists the addresses" if path.startswith("/api/") else "/runs"
        error = RunnerError("R-PAGE-UNKNOWN", f"there is no page {path}", fix=fix)
        return self._error(request, error)


def _stream(events: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")  # never compressed


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _home(_: Request) -> Response:
    return RedirectResponse("/runs", 307)
