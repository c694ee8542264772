"""The request log: a filtered list, and one request with its headers and bodies, masked."""

from __future__ import annotations

from urllib.parse import unquote

from batch_emulator.domain.faults import Fault
from batch_emulator.http.routes.admin import ADMIN_ROUTES, PREFIX
from batch_emulator.http.routes.table import ROUTES, Matcher
from batch_emulator.page.api_client import AGENT
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    choice,
    empty_state,
    facts,
    filters,
    section,
    size_text,
    table,
    text_field,
)
from batch_emulator.page.markup import Child, Markup, badge, el, join, moment, url
from batch_emulator.page.request_log import CapturedBody, LoggedRequest, RawHeaders

_REQUESTS = ("Requests", "/requests")
_OF_A_PAGE = 100
_MOST_SEEN = 400_000  # characters of a body
_STATUSES = (("2", "2xx"), ("3", "3xx"), ("4", "4xx"), ("5", "5xx"), ("0", "no answer"))
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_ROUTES = Matcher(ROUTES)
_ADMIN = Matcher(ADMIN_ROUTES)


def operation_of(method: str, path: str) -> str:
    """Return the name of the operation in the service's description, or of the admin API's."""
    try:
        if path.startswith(f"{PREFIX}/"):
            return f"{PREFIX} {_ADMIN.find(method, path)[0].handler.__name__}"
        return _ROUTES.find(method, path)[0].operation
    except Fault:
        return ""


async def requests(ask: PageRequest) -> PageView:
    """Return the newest requests that pass the filters."""
    before = ask.number("before", ask.log.newest + 1)
    found: list[LoggedRequest] = []
    for each in ask.log:
        if each.number < before and _passes(ask, each):
            found.append(each)
            if len(found) > _OF_A_PAGE:
                break
    rows = [_row(ask, each) for each in found[:_OF_A_PAGE]]
    columns = ("Time", "Method", "Path", "Operation", "Status", "ms#", "Sent#", "Received#")
    more = None
    if len(found) > _OF_A_PAGE:
        older = url("requests", **{**ask.query, "before": str(found[_OF_A_PAGE].number + 1)})
        more = el("p", el("a", "Older requests", href=older, class_="button"))
    kept = f"{size_text(ask.log.weight)} of requests are kept; older ones are dropped."
    body = [_form(ask), table("Requests", columns, rows, empty=_nothing(ask)), more]
    return PageView("Requests", join([body, el("p", kept, class_="note")]))


def _passes(ask: PageRequest, each: LoggedRequest) -> bool:
    query = ask.query
    method, status = query.get("method", ""), query.get("status", "")
    text, operation = query.get("path", "").lower(), query.get("operation", "").lower()
    return (
        (not method or each.method == method)
        and (not status or str(each.status)[0] == status)
        and (not text or text in unquote(f"{each.path}?{each.query}").lower())
        and (not operation or operation in operation_of(each.method, each.path).lower())
        and (query.get("imds", "") == "show" or f"{PREFIX}/imds/" not in each.path)
    )


def _form(ask: PageRequest) -> Markup:
    query = ask.query
    methods = [("", "every method"), *((each, each) for each in _METHODS)]
    statuses = [("", "every status"), *_STATUSES]
    events = [("", "hide"), ("show", "show")]
    return filters(
        url("requests"),
        choice("Method", "method", methods, query.get("method", "")),
        choice("Status", "status", statuses, query.get("status", "")),
        text_field("Path has", "path", query.get("path", "")),
        text_field("Operation has", "operation", query.get("operation", "")),
        choice("Scheduled Events", "imds", events, query.get("imds", "")),
    )


def _nothing(ask: PageRequest) -> Markup:
    if any(ask.query.values()):
        return el("p", "No request passes these filters.", class_="empty")
    settings = ask.emulator.settings
    return empty_state("No request yet. Send one:", f"curl {settings.url}{PREFIX}/health")


def _row(ask: PageRequest, each: LoggedRequest) -> tuple[Child, ...]:
    target = ask.masks.text(unquote(each.path, errors="replace"))
    return (
        moment(each.at, date=False),
        each.method,
        el("a", target, href=url("requests", str(each.number)), class_="path"),
        operation_of(each.method, each.path),
        _status(each),
        f"{each.took_ms:.1f}",
        size_text(each.body.size) if each.body.size else "",
        size_text(each.answer.size) if each.answer.size else "",
    )


def _status(each: LoggedRequest) -> Markup:
    if not each.status:
        return badge("no answer", "bad")
    kind = {2: "good", 3: "plain", 4: "busy", 5: "bad"}.get(each.status // 100, "plain")
    return badge(str(each.status), kind)


async def request(ask: PageRequest) -> PageView:
    """Return one request with its answer."""
    number = ask.steps[0]
    is_number = number.isascii() and number.isdecimal() and len(number) < 19
    found = ask.log.find(int(number)) if is_number else None
    if found is None:
        text = "This request is not kept any more: only the newest ones are."
        return PageView("Request", el("p", text, class_="empty"), (_REQUESTS,), status=404)
    masks = ask.masks
    query = masks.text(unquote(found.query, errors="replace"))
    agent = next((v for n, v in found.headers if n.lower() == b"user-agent"), b"")
    content = [
        facts(
            [
                ("Path", el("code", masks.text(unquote(found.path, errors="replace")))),
                ("Query", el("code", query) if query else None),
                ("Operation", operation_of(found.method, found.path)),
                ("Status", _status(found)),
                ("Time", moment(found.at)),
                ("Took", f"{found.took_ms:.1f} ms"),
                ("Port", str(found.port)),
                ("From", "this page" if agent == AGENT.encode() else None),
            ]
        ),
        section("Request", _headers(ask, found.headers), _body(ask, found.body, found.headers)),
        section("Answer", _headers(ask, found.answered), _body(ask, found.answer, found.answered)),
    ]
    return PageView(f"{found.method} {found.number}", join(content), (_REQUESTS,))


def _headers(ask: PageRequest, headers: RawHeaders) -> Markup:
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return facts((name, ask.masks.header(name, value)) for name, value in pairs)


def _body(ask: PageRequest, body: CapturedBody, headers: RawHeaders) -> Markup | None:
    if not body.size:
        return None
    kind = next((v for n, v in headers if n.lower() == b"content-type"), b"").decode("latin-1")
    is_text = not kind or any(word in kind for word in ("json", "xml", "text", "urlencoded"))
    size = f"{size_text(body.size)} of {kind or 'an unnamed type'}"
    if not is_text:
        return el("p", size, class_="note")
    text = ask.masks.body(body.content)[:_MOST_SEEN]
    cut = f"; the first {size_text(body.kept)} are kept" if body.cut else ""
    shown = el(
        "pre", el("code", text), class_="output", tabindex="0", role="region", aria_label="Body"
    )
    return join([el("p", f"{size}{cut}", class_="note"), shown])
