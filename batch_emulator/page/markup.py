"""HTML as values: text is escaped unless `el` made it, so that no name can become markup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from urllib.parse import quote, urlencode

from batch_emulator.domain.values import parse_time, time_text

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "rect", "line"})


class Markup(str):
    """Text that is HTML already. Only this module makes it from parts, each of them escaped."""

    __slots__ = ()


Child = str | Iterable["Child"] | None
Attribute = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        tag: The name of the element, of HTML or SVG.
        children: Text, which is escaped, other elements, and iterables of both; None is nothing.
        attributes: Values are escaped; None and False leave an attribute out. In names, `_` becomes
            `-`, and one at the end (`class_`) is dropped.
    """
    given = "".join(
        f" {name.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(clean(str(value)))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{given}>" if tag not in {"rect", "line"} else f"<{tag}{given}/>")
    return Markup(f"<{tag}{given}>{join(children)}</{tag}>")


def join(children: Child) -> Markup:
    """Return children as markup: text escaped, elements unchanged."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(clean(children)))
    return Markup("".join(join(child) for child in children))


def clean(text: str) -> str:
    """Return text with control and direction characters replaced: they reorder what is shown."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    code = ord(character)
    return "�" if 0xD800 <= code <= 0xDFFF else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def url(*steps: str, **query: str | None) -> str:
    """Return an address of the page: quoted steps of the path, and the query without empty values.

    A name that ends in `_` loses it: `from_` is `from`.
    """
    path = "/" + "/".join(
        quote(step.encode("utf-8", "surrogateescape"), safe=":") for step in steps
    )
    kept = {name.rstrip("_"): value for name, value in query.items() if value}
    return f"{path}?{urlencode(kept, errors='surrogateescape')}" if kept else path


def moment(when: datetime | str | None, *, date: bool = True) -> Markup:
    """Return a time, which the page shows in the zone of the reader, and in UTC on hover."""
    if not when:
        return el("span", "-", class_="nothing")
    known = parse_time(when) if isinstance(when, str) else when
    shown = f"{known:%Y-%m-%d %H:%M:%S}" if date else f"{known:%H:%M:%S}"
    full = f"{known:%Y-%m-%d %H:%M:%S}.{known.microsecond // 1000:03} UTC"
    return el("time", f"{shown} UTC", datetime=time_text(known), title=full, data_date=date)


def badge(state: str, kind: str | None = None) -> Markup:
    """Return a state with a colour and a mark of its own; the text alone says everything, too."""
    return el("span", state, class_=f"badge {kind or tone_of(state)}")


_TONES: dict[str, frozenset[str]] = {
    "good": frozenset({"active", "idle", "steady", "success", "enabled", "succeeded", "ready"}),
    "busy": frozenset(
        {"running", "preparing", "starting", "creating", "waitingforstarttask", "resizing"}
        | {"rebooting", "reimaging", "enabling", "terminating", "stopping", "disabling"}
        | {"leavingpool", "deleting", "upgradingos", "deallocating"}
    ),
    "bad": frozenset({"unusable", "starttaskfailed", "failure", "failed", "unknown", "preempted"}),
}


def tone_of(state: str) -> str:
    """Return good, busy, bad or plain."""
    return next((tone for tone, states in _TONES.items() if state.lower() in states), "plain")
