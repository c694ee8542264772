"""What older clients send and expect: one place that translates, in both directions.

Inside and from api-version 2020-09-01.12.0 on names are today's. Before it a pool had
`maxTasksPerNode` where it now has `taskSlotsPerNode`, tasks had no `requiredSlots`, nodes no
`runningTaskSlotsCount`, and task counts were not counted in slots. All else that changed since 2018
was added, and a client skips what it does not know. Source: the models of azure-batch 9.0
(2020-03-01.11.0) and 10.0 (2020-09-01.12.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any, cast

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Json

_VERSION = re.compile(r"(20\d\d-\d\d-\d\d)(\.\d{1,4}\.\d{1,4})?(-preview)?", re.ASCII)
_OLDEST = date(2018, 1, 1)
_SLOTS_SINCE = date(2020, 9, 1)

_OLD_NAMES = {"taskSlotsPerNode": "maxTasksPerNode"}
_NEW_NAMES = {old: new for new, old in _OLD_NAMES.items()}
_UNKNOWN_THEN = frozenset({"requiredSlots", "runningTaskSlotsCount"})
_FREE = frozenset({"resourceTags"})  # names in it are the user's


def check(query: Mapping[str, str]) -> None:
    """Refuse a request without an api-version, or with one that cannot be. Raises Fault."""
    text = query.get("api-version")
    if text is None:
        raise Fault("MissingRequiredQueryParameter", {"QueryParameterName": "api-version"})
    day = _day(text)
    if day is None or day < _OLDEST:
        raise Fault("UnsupportedRequestVersion", {"QueryParameterValue": text[:64]})


def _day(text: str) -> date | None:
    match = _VERSION.fullmatch(text)
    try:
        return None if match is None else date.fromisoformat(match[1])
    except ValueError:
        return None


def is_old(query: Mapping[str, str]) -> bool:
    """Whether the client speaks the names from before slots."""
    day = _day(query.get("api-version", ""))
    return day is not None and day < _SLOTS_SINCE


def selection(query: Mapping[str, str]) -> Mapping[str, str]:
    """The query with today's names in `$select`."""
    text = query.get("$select")
    if text is None or not is_old(query):
        return query
    names = (_NEW_NAMES.get(name.strip(), name) for name in text.split(","))
    return {**query, "$select": ",".join(names)}


def incoming(body: Json, query: Mapping[str, str]) -> Json:
    """A request body in today's names."""
    return _renamed(body, _NEW_NAMES, frozenset()) if is_old(query) else body


def outgoing(body: Json, query: Mapping[str, str]) -> Json:
    """An answer in the names that the client knows."""
    if not is_old(query):
        return body
    if "taskSlotCounts" in body:
        metadata = {name: value for name, value in body.items() if name.startswith("odata.")}
        return {**metadata, **body.get("taskCounts", {})}
    return _renamed(body, _OLD_NAMES, _UNKNOWN_THEN)


def _renamed(value: Any, names: Mapping[str, str], without: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, names, without) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        names.get(name, name): item if name in _FREE else _renamed(item, names, without)
        for name, item in cast("Json", value).items()
        if name not in without
    }
