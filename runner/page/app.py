"""All addresses: pages, their updates, logs, actions, the API, and static files.

A page is rendered on the server. `/live/...` is the same page as a stream of updates of its block
`view`. Without scripts a page is complete, and reloading it updates it.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.page import rest
from runner.page.access import Access, AccessMiddleware, own_path, set_session
from runner.page.ask import Ask, WebPage, read_form
from runner.page.assets import Assets
from runner.page.commands import Commands, who_asks
from runner.page.live import FIX_BUG, NO_TROUBLE, WHY_BUG, Live
from runner.page.pages import ENDPOINTS, PAGES, data, runs
from runner.page.pages.files import download
from runner.page.pages.log import follow_log
from runner.page.rendering import render, render_update, templates
from runner.page.source import Source
from runner.protocol.errors import RunnerError

logger = logging.getLogger(__name__)
_FIRST_TEMPLATES = ("layout.html", "parts.html", "runs.html", "run_rows.html", "spending.html")
_YEAR_S = 31_536_000


class PageApp:
    """The application of one `runner ui`. `asgi` is its entry."""

    def __init__(self, source: Source, access: Access, assets: Assets | None) -> None:
        """Create the application; without `assets`, it answers programs only."""
        self.source = source
        self.access = access
        self.live = Live()
        self.commands = Commands(source, self._changed)
        routes = [Route("/health", _health), *rest.routes(self.ask, self.commands, ENDPOINTS)]
        self._assets = assets or Assets()
        self._has_pages = assets is not None
        if assets is not None:
            routes += self._page_routes()
        app = Starlette(
            routes=routes,
            middleware=[Middleware(_Compressed)],
            exception_handlers={
                RunnerError: self._error,
                HTTPException: self._missing,
                Exception: self._bug,
            },
        )
        app.router.redirect_slashes = False  # the redirect would name the scheme of this server
        self._middleware = AccessMiddleware(_Logged(app), access)
        self.asgi = self._middleware

    async def warm(self) -> None:
        """Read the list of runs once, before anybody asks: it is what most people open first."""
        if not self._has_pages:
            return
        page = runs.PAGE
        with suppress(RunnerError):  # the first request says what is wrong
            await self.source.call(lambda _: [*map(templates().get_template, _FIRST_TEMPLATES)])
            await page.read(Ask(self.source, page.path, {}, QueryParams("")))

    async def close(self) -> None:
        """End what is open: streams, and commands that were started."""
        self.live.close()
        await self.commands.close()

    def _page_routes(self) -> list[Route]:
        routes = [
            Route("/", _home),
            Route("/static/{name}", self._static),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            _stream_route("/live/runs/{run_id}/log", self._log),
            Route("/runs/{run_id}/download", self._download),
            Route("/data/download", self._download_data),
            *self.commands.routes(self.context),
        ]
        for page in (*PAGES, *self.commands.pages):
            routes.append(Route(page.path, self._page_of(page)))
            routes.append(_stream_route(f"/live{page.path}", self._updates_of(page)))
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
                return NO_TROUBLE + render_update(f"{page.name}.html", context)

            key = f"{page.name} {request.url.path}?{request.url.query} {ask.may_act}"
            events = self.live.follow(key, update, every_s=page.every_s or 60.0)
            return self._stream(request, events)

        return answer

    async def _download(self, request: Request) -> Response:
        return await download(self.ask(request))

    async def _download_data(self, request: Request) -> Response:
        return await data.download(self.ask(request))

    async def _log(self, request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        return self._stream(request, follow_log(self.ask(request), last))

    def _stream(self, request: Request, events: AsyncGenerator[bytes]) -> Response:
        """Return events as a stream, which is never compressed."""
        is_program = "authorization" in request.headers
        stream = self.live.until_closed(events, "" if is_program else who_asks(request))
        return StreamingResponse(stream, media_type="text/event-stream")

    def context(self, request: Request, page: WebPage | None = None) -> dict[str, Any]:
        """Return the values that every template has."""
        settings, access = self.source.settings, request.state.access
        path = request.url.path.removeprefix("/live")
        query = request.url.query
        live = f"/live{path}?{query}" if page and page.every_s else ""
        return {
            "navigation": [each for each in PAGES if each.label and access != "none"],
            "page": page,
            "path": path,
            "query": self.ask(request).pairs,
            "live": live,
            "target": settings.target,
            "stack": settings.stack if settings.target.has_stacks else "",
            "may_act": access == "act",
            "asset": self._assets.address,
            "has_password": self.access.password is not None,
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
        access, trouble = self.access, ""
        wanted = own_path(request.query_params.get("next", "/runs"))
        if request.method == "POST":
            form = await read_form(request)
            wanted = own_path(form.get("next", "/runs"))
            client = request.client.host if request.client else ""
            wait_s = access.guesses.wait_s(client)
            if wait_s > 0:
                trouble = f"Too many wrong passwords. Try again in {math.ceil(wait_s)} s."
            elif session := access.sign_in(form.get("password", ""), client):
                cookie = self._middleware.cookie_name(request.scope)
                answer = RedirectResponse(wanted, 303)
                return set_session(answer, cookie, session, secure=access.is_secure)
            else:
                trouble = "The password is wrong."
        values = {"trouble": trouble, "wanted": wanted, "navigation": ()}
        context = self.context(request) | values
        return HTMLResponse(render("login.html", None, context), 403 if trouble else 200)

    async def _logout(self, request: Request) -> Response:
        cookie = self._middleware.cookie_name(request.scope)
        self.access.sign_out(request.headers, cookie)
        return RedirectResponse("/login", 303)

    async def _error(self, request: Request, err: Exception) -> Response:
        if not isinstance(err, RunnerError):
            raise err
        status = rest.status_of(err.code, err.exit_code)
        if request.url.path.startswith("/api/"):
            return rest.error_answer(err, status)
        context = self.context(request) | {"error": err}
        return HTMLResponse(render("error.html", None, context), status)

    async def _missing(self, request: Request, err: Exception) -> Response:
        """Return the answer for an address, or a method, that does not exist."""
        path = request.url.path
        if isinstance(err, HTTPException) and err.status_code == 405:
            what = f"{path} has no method {request.method}"
            return await self._error(request, RunnerError("R-PAGE-METHOD", what, fix=path))
        fix = "/api/v1/openapi.json lists the addresses" if path.startswith("/api/") else "/runs"
        error = RunnerError("R-PAGE-UNKNOWN", f"there is no page {path}", fix=fix)
        return await self._error(request, error)

    async def _bug(self, request: Request, err: Exception) -> Response:
        """Return the answer for an unexpected exception, which `_Logged` prints."""
        error = RunnerError("R-BUG", f"{type(err).__name__}: {err}", why=WHY_BUG, fix=FIX_BUG)
        return await self._error(request, error)


class _Compressed:
    """Compress pages and documents; not downloads, which are large and often compressed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._gzip = GZipMiddleware(app, minimum_size=1000, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_download = scope["path"].endswith("/download")
        await (self._app if is_download else self._gzip)(scope, receive, send)


class _Logged:
    """Print an exception, which Starlette has answered, as one line: the server goes on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as err:
            if isinstance(err.__cause__, RunnerError):  # after the beginning of the answer
                logger.warning("%s %s: %s", scope["method"], scope["path"], err.__cause__)
                return
            frame = traceback.extract_tb(err.__traceback__)[-1]
            logger.error(
                "%s %s: %s: %s, at %s:%s; please send `runner bug-report`",
                scope["method"],
                scope["path"],
                type(err).__name__,
                err,
                frame.filename,
                frame.lineno,
                exc_info=err,
            )


def _stream_route(path: str, endpoint: Any) -> Route:
    """Return a route without HEAD, which would wait for the end of the stream."""
    route = Route(path, endpoint)
    route.methods = {"GET"}
    return route


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _home(_: Request) -> Response:
    return RedirectResponse("/runs", 307)
