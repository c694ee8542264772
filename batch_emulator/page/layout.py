"""What every page has: its frame, and the parts that pages are made of."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from batch_emulator.domain.model import Json
from batch_emulator.emulator import Emulator
from batch_emulator.page.api_client import ApiClient
from batch_emulator.page.markup import Child, Markup, el, join, moment, url
from batch_emulator.page.masking import SecretMasks
from batch_emulator.page.request_log import RequestLog

TITLE = "Batch emulator"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)
_SECTIONS = (
    ("pools", "Pools"),
    ("timeline", "Timeline"),
    ("jobs", "Jobs"),
    ("schedules", "Schedules"),
    ("requests", "Requests"),
    ("events", "Events"),
    ("control", "Clock and faults"),
)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of a page: the steps of its path after the section, and its query."""

    emulator: Emulator
    client: ApiClient
    log: RequestLog
    masks: SecretMasks
    steps: tuple[str, ...]
    query: Mapping[str, str]
    address: str

    def number(self, name: str, default: int = 0) -> int:
        """Return a number of the query, or the default."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else default


@dataclass(frozen=True, slots=True)
class PageView:
    """A page before it has its frame.

    Attributes:
        title: What the page is about.
        body: Its content.
        trail: The pages above it, as names and addresses.
        is_moving: True if it changes with time, and not only with events.
        status: The HTTP status.
    """

    title: str
    body: Markup
    trail: Sequence[tuple[str, str]] = field(default_factory=tuple)
    is_moving: bool = False
    status: int = 200


def framed(page: PageView, section: str, account: str) -> Markup:
    """Return the whole document of a page."""
    links = [
        el(
            "a",
            text,
            href=url(name),
            aria_current="page" if name == section else None,
        )
        for name, text in _SECTIONS
    ]
    trail = [el("li", el("a", name, href=address)) for name, address in page.trail]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{page.title} · {TITLE}"),
        el("link", rel="icon", href="/static/icon.svg"),
        el("link", rel="stylesheet", href="/static/page.css"),
        # before the first picture, so that no time changes its width afterwards
        el("script", src="/static/page.js", defer=True, blocking="render"),
    )
    view = el(
        "main",
        el("nav", el("ol", trail), aria_label="Above this page", class_="trail") if trail else None,
        el("h1", page.title),
        page.body,
        id="view",
        tabindex="-1",
        data_moving=page.is_moving,
    )
    body = el(
        "body",
        el("a", "Skip to the content", href="#view", class_="skip"),
        el(
            "header",
            el("a", TITLE, " ", el("small", account), href="/", class_="home"),
            el("nav", links, aria_label="Sections"),
        ),
        el("p", id="trouble", role="alert", hidden=True),
        view,
        el("div", id="live", role="status", class_="unseen"),
    )
    return Markup("<!doctype html>" + el("html", head, body, lang="en"))


def table(
    label: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    empty: Child = None,
) -> Markup:
    """Return a table that scrolls sideways where it is too wide, or `empty` if it has no rows.

    The first cell of a row is its header. A column whose name ends in `#` is of numbers.
    """
    found = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            [
                el("td", cell, class_="number" if column.endswith("#") else None)
                for column, cell in zip(columns[1:], row[1:], strict=True)
            ],
        )
        for row in rows
    ]
    if not found:
        return empty if isinstance(empty, Markup) else el("p", empty or "none", class_="empty")
    heads = [
        el("th", c.rstrip("#"), scope="col", class_="number" if c.endswith("#") else None)
        for c in columns
    ]
    inner = el("table", el("thead", el("tr", heads)), el("tbody", found))
    return el("div", inner, class_="wide", role="region", aria_label=label, tabindex="0")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return names with their values, without those that are None or empty."""
    found = [
        el("div", el("dt", name), el("dd", value))
        for name, value in pairs
        if value not in (None, "")
    ]
    return el("dl", found, class_="facts")


def section(title: str, *content: Child) -> Markup:
    """Return a section with a heading."""
    return el("section", el("h2", title), content)


def buttons(*actions: Child) -> Markup:
    """Return a row of actions."""
    return el("p", actions, class_="actions")


def command(text: str) -> Markup:
    """Return a command with a button that copies it, which a script shows."""
    copy = el("button", "Copy", type="button", class_="copy", hidden=True)
    return el("div", el("pre", el("code", text), tabindex="0"), copy, class_="command")


def empty_state(sentence: str, *commands: str) -> Markup:
    """Return what a page says when there is nothing, with the commands that change that."""
    return el("div", el("p", sentence), [command(each) for each in commands], class_="empty")


def tree(value: Any) -> Markup:
    """Return a JSON value as nested lists of names and values."""
    if isinstance(value, dict):
        return facts((str(name), tree(each)) for name, each in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list):
        return el("ol", [el("li", tree(each)) for each in value], class_="values")  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bool) or value is None:
        return el("code", str(value).lower())
    text = str(value)
    return moment(text) if _TIME.fullmatch(text) else join(text)


def errors(found: Iterable[Mapping[str, Any]]) -> Markup | None:
    """Return errors of the service, or None if there are none."""
    items = [
        el(
            "li",
            el("strong", str(error.get("code", ""))),
            f" {error.get('message', '')}",
            [
                f" · {detail.get('name')}: {detail.get('value')}"
                for detail in error.get("details")
                or error.get("errorDetails")
                or error.get("values")
                or ()
            ],
        )
        for error in found
    ]
    return el("ul", items, class_="errors") if items else None


def token_of(answer: Json) -> str | None:
    """Return the token with which a list goes on, or None at its end."""
    link = answer.get("odata.nextLink")
    return None if link is None else parse_qs(urlsplit(str(link)).query)["$skiptoken"][0]


def next_page(answer: Json, address: str) -> Markup | None:
    """Return the link to the next page of a list, or None on the last one."""
    token = token_of(answer)
    if token is None:
        return None
    joint = "&" if "?" in address else "?"
    more = url(next=token).removeprefix("/?")
    return el("p", el("a", "Next page", href=f"{address}{joint}{more}", class_="button"))


def filters(action: str, *fields: Child) -> Markup:
    """Return a form that changes the query of the page."""
    shown = el("button", "Show", type="submit")
    return el("form", fields, shown, action=action, method="get", class_="filters", role="search")


def choice(label: str, name: str, options: Iterable[tuple[str, str]], chosen: str) -> Markup:
    """Return a labelled list of options: value and text."""
    items = [el("option", text, value=value, selected=value == chosen) for value, text in options]
    return el("label", el("span", label), el("select", items, name=name))


def text_field(label: str, name: str, value: str, **more: str) -> Markup:
    """Return a labelled field for text."""
    entry = el("input", name=name, value=value, **{"type": "text", "autocomplete": "off", **more})
    return el("label", el("span", label), entry)


def size_text(size: int) -> str:
    """Return a number of bytes in a unit that people read."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration_text(seconds: float) -> str:
    """Return a duration such as 1 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left, found = int(seconds), list[str]()
    for name, length in units:
        if left >= length and len(found) < 2:
            found.append(f"{left // length} {name}")
            left %= length
    return " ".join(found)


Show = Callable[[PageRequest], Awaitable[PageView]]
