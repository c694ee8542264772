"""Pages of lists: maxresults, $filter, $select, and the link to the next page that carries them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from batch_emulator.faults import bad_query
from batch_emulator.model import Json
from batch_emulator.odata import FieldRule, FilterError, Predicate, parse_filter, parse_select

MAX_RESULTS = 1000
# Reads this many rows between looks at the filter, so that a page never holds the whole table.
_BATCH = 250

Fetch = Callable[[str, int], Iterable[tuple[str, Json]]]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a list request asks for; `after` is the key that the last page ended with."""

    matches: Predicate | None
    select: str
    names: frozenset[str] | None
    filter: str
    limit: int
    after: str

    def shown(self, entity: Json) -> Json:
        """The selected properties."""
        if self.names is None:
            return entity
        return {name: value for name, value in entity.items() if name in self.names}


def parse(
    query: Mapping[str, str],
    fields: Mapping[str, FieldRule] | None,
    *,
    default: int = MAX_RESULTS,
) -> ListQuery:
    """Read the query parameters; a skip token outranks them. Raises Fault."""
    token = _decode(query["$skiptoken"]) if "$skiptoken" in query else {}
    text = str(token.get("filter", query.get("$filter", "")))
    select = str(token.get("select", query.get("$select", "")))
    try:
        matches = parse_filter(text, fields or {}) if text else None
    except FilterError as err:
        raise bad_query("$filter", text, str(err)) from err
    return ListQuery(
        matches=matches,
        select=select,
        names=selected(select),
        filter=text,
        limit=_limit(str(token.get("max", query.get("maxresults", default)))),
        after=str(token.get("after", "")),
    )


def selected(text: str) -> frozenset[str] | None:
    """The names in a $select, None when everything is wanted. Raises Fault."""
    try:
        return parse_select(text) if text else None
    except FilterError as err:
        raise bad_query("$select", text, str(err)) from err


def _limit(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_RESULTS:
        raise bad_query("maxresults", text, f"1 to {MAX_RESULTS} is allowed")
    return int(text)


def _decode(text: str) -> Json:
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(text.encode()))
    except ValueError as err:
        raise bad_query("$skiptoken", text, "not a token of this service") from err
    if not isinstance(value, dict):
        raise bad_query("$skiptoken", text, "not a token of this service")
    return cast("Json", value)


async def page(asked: ListQuery, fetch: Fetch, url: str, api_version: str) -> Json:
    """One page of the list at `url`; `fetch(after, limit)` gives (key, entity) in order of keys.

    Between batches everybody else has a turn: a filter may have to look at a whole long list.
    """
    found: list[Json] = []
    after = asked.after
    while len(found) < asked.limit:
        limit = asked.limit + 1 - len(found) if asked.matches is None else _BATCH
        batch = list(fetch(after, limit))
        for key, entity in batch:
            if len(found) == asked.limit:
                return _with_link(asked, found, after, url, api_version)
            if asked.matches is None or asked.matches(entity):
                found.append(asked.shown(entity))
            after = key
        if len(batch) < limit:
            return {"value": found}
        await asyncio.sleep(0)
    more = next(iter(fetch(after, 1)), None)
    return {"value": found} if more is None else _with_link(asked, found, after, url, api_version)


def _with_link(asked: ListQuery, found: list[Json], after: str, url: str, version: str) -> Json:
    token = {"after": after, "max": asked.limit}
    if asked.filter:
        token["filter"] = asked.filter
    if asked.select:
        token["select"] = asked.select
    text = base64.urlsafe_b64encode(json.dumps(token).encode()).decode()
    link = f"{url}?api-version={quote(version)}&$skiptoken={quote(text)}"
    return {"value": found, "odata.nextLink": link}


def from_sorted(entities: Iterable[tuple[str, Json]]) -> Fetch:
    """A fetch over entities in memory, sorted by key."""
    ordered = list(entities)

    def fetch(after: str, limit: int) -> Iterable[tuple[str, Json]]:
        return [(key, entity) for key, entity in ordered if key > after][:limit]

    return fetch
