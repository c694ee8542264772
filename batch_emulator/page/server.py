"""The page as an ASGI application: which function answers which address, downloads, and actions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from urllib.parse import parse_qsl, quote, unquote

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.emulator import Emulator
from batch_emulator.page.api_client import ApiClient, ApiError, path_of
from batch_emulator.page.guard import STATIC, Guard, Sessions
from batch_emulator.page.layout import PageRequest, PageView, Show, framed
from batch_emulator.page.markup import clean, el
from batch_emulator.page.masking import SecretMasks
from batch_emulator.page.request_log import RequestLog
from batch_emulator.page.views import control, events, jobs, nodes, pools, requests, schedules
from batch_emulator.page.views import files as file_views
from batch_emulator.page.views import timeline as timelines

log = logging.getLogger(__name__)

_MOST_OF_A_FORM = 256 * 1024
_STATIC_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# the sections and what shows them, by the number of steps below
_VIEWS: Mapping[tuple[str, int], Show] = {
    ("pools", 0): pools.pools,
    ("pools", 1): pools.pool,
    ("nodes", 2): nodes.node,
    ("timeline", 0): timelines.timeline,
    ("jobs", 0): jobs.jobs,
    ("jobs", 1): jobs.job,
    ("jobs", 3): jobs.task,
    ("schedules", 0): schedules.schedules,
    ("schedules", 1): schedules.schedule,
    ("requests", 0): requests.requests,
    ("requests", 1): requests.request,
    ("events", 0): events.events,
    ("control", 0): control.control,
    ("files", 3): file_views.file,
    ("act", 1): control.acting,
}
_SECTION_OF = {"nodes": "pools", "files": "jobs", "act": ""}


class PageServer:
    """Answers the requests of the page's port, and records those of the other ports.

    Args:
        emulator: What is shown.
        api: The application of the Batch account.
        others: The applications of all other ports, whose requests are recorded.
        url: Where the page is.
        on_link: Called with each new link that signs a browser in.
    """

    def __init__(
        self,
        emulator: Emulator,
        api: ASGIApp,
        others: ASGIApp,
        url: str,
        on_link: Callable[[str], object] = lambda _: None,
    ) -> None:
        settings = emulator.settings
        self.log = RequestLog(others, emulator.clock)
        self._emulator = emulator
        self._client = ApiClient(api, self.log, settings)
        storage = settings.storage
        secrets = (settings.key, *((storage.key, storage.seed) if storage else ()))
        self._masks = SecretMasks(secrets)
        self.sessions = Sessions(url, settings.key, on_link)
        port, any_host = int(url.rpartition(":")[2]), settings.exposed
        self.app = Guard(self._answer, self.sessions, port, any_host=any_host)
        emulator.new_page_link = self.sessions.new_link

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path.startswith(STATIC):
            await _static(path.removeprefix(STATIC))(scope, receive, send)
            return
        if path == "/pulse":
            await self._pulse()(scope, receive, send)
            return
        ask = self._request(scope)
        if scope["path"].startswith("/download/"):
            await self._download(ask, receive, send)
            return
        is_post = method == "POST" and path.startswith("/act/")
        if method not in {"GET", "HEAD"} and not is_post:
            await Response(None, 405)(scope, receive, send)
            return
        found = await (self._act(ask, receive) if is_post else self._shown(ask, path))
        answer = self._framed(found, path) if isinstance(found, PageView) else found
        await answer(scope, receive, send)

    def _request(self, scope: Scope) -> PageRequest:
        raw = scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0]
        steps = [unquote(step, errors="surrogateescape") for step in raw.strip("/").split("/")]
        text = scope["query_string"].decode("ascii", "replace")
        given = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
        query = {name: value for name, value in given if name != "done"}
        address = raw + (f"?{text}" if text and "done" not in dict(given) else "")
        return PageRequest(
            self._emulator, self._client, self.log, self._masks, tuple(steps[1:]), query, address
        )

    async def _shown(self, ask: PageRequest, path: str) -> PageView:
        section = path.strip("/").partition("/")[0] or "pools"
        view = _VIEWS.get((section, len(ask.steps)))
        if view is None:
            return PageView("Not found", el("p", "There is no such page."), status=404)
        try:
            return await view(ask)
        except ApiError as err:
            return _failed(err.status, err.code, err.text)
        except Exception:  # the reader gets a page, the log gets the trace
            log.exception("the page %s failed", path)
            return _failed(500, "InternalError", "The log of the emulator has the reason.")

    async def _act(self, ask: PageRequest, receive: Receive) -> PageView | Response:
        content = await _body(receive)
        if content is None:
            return _failed(413, "RequestBodyTooLarge", "The form is too large.")
        pairs = parse_qsl(content.decode("ascii", "replace"), keep_blank_values=True)
        sent = {name: value.replace("\r\n", "\n") for name, value in pairs}
        named = {name: value for name, value in ask.query.items() if name != "sure"}
        given = {**named, **sent}
        try:
            refused = await control.act(ask, given)
        except ApiError as err:
            return _failed(err.status, err.code, err.text)
        if refused is not None:
            return refused
        back = control.back_of(given)
        joint = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{joint}done={quote(ask.steps[0])}", 303)

    def _framed(self, page: PageView, path: str) -> Response:
        section = path.strip("/").partition("/")[0] or "pools"
        section = _SECTION_OF.get(section, section)
        text = framed(page, section, self._emulator.settings.account)
        return HTMLResponse(text.encode("utf-8", "replace"), page.status)

    def _pulse(self) -> Response:
        """Return what changes whenever a page may have changed."""
        newest = {
            "event": self._emulator.account.events.newest,
            "request": self.log.newest,
            "start": self._emulator.started.isoformat(),
        }
        return Response(json.dumps(newest), media_type="application/json")

    async def _download(self, ask: PageRequest, receive: Receive, send: Send) -> None:
        """Pass on a file as an attachment that no browser shows or executes."""
        name = ask.query.get("path", "")
        if len(ask.steps) != 3 or ask.steps[0] not in {"task", "node"}:
            await _plain_failure(send, 404)
            return
        last = clean(name.rpartition("/")[2]).encode("utf-8", "replace")
        kept = {b"etag", b"last-modified", b"content-length"}

        async def as_attachment(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                headers = [pair for pair in message["headers"] if pair[0].lower() in kept]
                disposition = f"attachment; filename*=UTF-8''{quote(last, safe='')}"
                headers += [
                    (b"content-type", b"application/octet-stream"),
                    (b"content-disposition", disposition.encode()),
                ]
                message = {**message, "headers": headers}
            await send(message)

        steps = file_views.root_of(*ask.steps)
        await self._client.stream(path_of(*steps, name), receive, as_attachment)


def _failed(status: int, code: str, text: str) -> PageView:
    what = [el("p", text or code, class_="wrong", role="alert"), el("p", el("code", code))]
    title = "Not found" if status == 404 else "Not possible"
    return PageView(title, el("div", what), status=status, is_moving=True)


def _static(name: str) -> Response:
    kind = _STATIC_TYPES.get(name.rpartition(".")[2])
    if kind is None or "/" in name:
        return Response(None, 404)
    try:
        content = (files("batch_emulator.page") / "static" / name).read_bytes()
    except FileNotFoundError:
        return Response(None, 404)
    return Response(content, media_type=kind, headers={"cache-control": "max-age=60"})


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None if it is too large."""
    content, more = b"", True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)
        if len(content) > _MOST_OF_A_FORM:
            return None
    return content


async def _plain_failure(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})
