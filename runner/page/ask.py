"""A request of a page or of the API: the services, the parts of the address, and the query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams
from starlette.requests import Request

from runner.page.source import Source
from runner.protocol.errors import RunnerError

_MAX_FORM = 1 << 20


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader wants to see. The address holds the whole view, so that a link shows it again.

    Attributes:
        source: The services of the target.
        path: The address without the query.
        parts: The variable parts of the path, by name.
        query: The query of the address.
        may_act: True if the reader may also change something.
    """

    source: Source
    path: str
    parts: Mapping[str, str]
    query: QueryParams
    may_act: bool = False

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return self.query.get(name, default).strip()

    def texts(self, name: str) -> list[str]:
        """Return all values of the query with a name."""
        return [value.strip() for value in self.query.getlist(name) if value.strip()]

    def number(self, name: str, default: int, *, low: int = 0, high: int = 10**9) -> int:
        """Return a whole number of the query. Raise RunnerError if it is none."""
        text = self.query.get(name, "")
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise RunnerError(
                "R-PAGE-QUERY",
                f"invalid {name}={text[:40]!r} in the address",
                why=f"expected a whole number from {low} to {high}",
                fix=f"remove {name} from the address",
            )
        return value

    @property
    def pairs(self) -> dict[str, Any]:
        """The query, with a list for names that occur more than once."""
        found = {name: self.query.getlist(name) for name in self.query}
        return {name: each if len(each) > 1 else each[0] for name, each in found.items()}


async def read_pairs(request: Request) -> list[tuple[str, str]]:
    """Return the names and values of a form. Raise RunnerError if it is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_FORM:
            raise RunnerError(
                "R-PAGE-QUERY", "the form is too large", fix=f"send at most {_MAX_FORM} bytes"
            )
    return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)


async def read_form(request: Request) -> dict[str, str]:
    """Return the values of a form, the last one of each name."""
    return dict(await read_pairs(request))


Read = Callable[[Ask], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page: its address, its template, what it reads, and how often it is read while shown.

    Attributes:
        path: The route, as Starlette writes it.
        name: The template without `.html`; pages of the navigation have a `label`, too.
        read: Returns the values of the template.
        every_s: Seconds between two updates; 0 for a page that does not change.
        label: The text of the navigation; empty for other pages.
    """

    path: str
    name: str
    read: Read
    every_s: float = 2.0
    label: str = ""
