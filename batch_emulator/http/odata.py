"""List operations: `$filter` and `$select` of the OData subset, and pages with their tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from urllib.parse import quote

from batch_emulator.domain.faults import bad_query
from batch_emulator.domain.model import Json
from batch_emulator.domain.values import parse_time

_Entity = TypeVar("_Entity")


@dataclass(frozen=True, slots=True)
class FieldRule:
    """How a filter may use one property: `kind` is text, number, time or boolean.

    `path` is where an entity has the value, if not under the property's own name.
    """

    kind: str
    operators: frozenset[str]
    path: str = ""


_EQ = frozenset({"eq"})
_EQ_NE = frozenset({"eq", "ne"})
_RANGE = frozenset({"eq", "ne", "ge", "gt", "le", "lt"})
_ID = FieldRule("text", _RANGE | {"startswith"})
_TEXT = FieldRule("text", _EQ_NE)
_STATE = FieldRule("text", _EQ_NE)
_TIME = FieldRule("time", _RANGE)
_NUMBER = FieldRule("number", _RANGE)
_FLAG = FieldRule("boolean", _EQ_NE)

IMAGE_FIELDS: Mapping[str, FieldRule] = {
    "osType": _TEXT,
    "verificationType": _TEXT,
    "nodeAgentSKUId": _TEXT,
}

AGENT_FIELDS: Mapping[str, FieldRule] = {"osType": _TEXT}

POOL_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "allocationState": FieldRule("text", _EQ),
    "allocationStateTransitionTime": _TIME,
    "creationTime": _TIME,
    "enableAutoScale": _FLAG,
    "lastModified": _TIME,
    "vmSize": _TEXT,
    "enableInterNodeCommunication": _FLAG,
}

NODE_FIELDS: Mapping[str, FieldRule] = {
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "lastBootTime": _TIME,
    "allocationTime": _TIME,
    "startTaskInfo/state": FieldRule("text", _EQ),
    "startTaskInfo/result": _TEXT,
    "startTaskInfo/exitCode": _NUMBER,
    "startTaskInfo/startTime": _TIME,
    "startTaskInfo/endTime": _TIME,
}

NODE_COUNT_FIELDS: Mapping[str, FieldRule] = {"poolId": FieldRule("text", _EQ)}

JOB_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "executionInfo/startTime": _TIME,
    "executionInfo/endTime": _TIME,
    "executionInfo/poolId": _ID,
}

SCHEDULE_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "executionInfo/endTime": _TIME,
    "schedule/doNotRunUntil": _TIME,
    "schedule/doNotRunAfter": _TIME,
}

USAGE_FIELDS: Mapping[str, FieldRule] = {
    "poolId": FieldRule("text", (_RANGE | {"startswith"}) - {"ne"}),
}

PREPARATION_FIELDS: Mapping[str, FieldRule] = {
    "poolId": _TEXT,
    "nodeId": _TEXT,
    **{
        f"{info}/{name}": rule
        for info in ("jobPreparationTaskExecutionInfo", "jobReleaseTaskExecutionInfo")
        for name, rule in (
            ("state", FieldRule("text", _EQ)),
            ("startTime", _TIME),
            ("endTime", _TIME),
            ("exitCode", _NUMBER),
            ("result", _TEXT),
        )
    },
}

TASK_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "lastModifiedTime": FieldRule("time", _RANGE, "lastModified"),  # as the docs page spells it
    "executionInfo/startTime": _TIME,
    "executionInfo/endTime": _TIME,
    "executionInfo/exitCode": _NUMBER,
    "executionInfo/result": _TEXT,
}

CERTIFICATE_FIELDS: Mapping[str, FieldRule] = {"state": _STATE, "stateTransitionTime": _TIME}

FILE_FIELDS: Mapping[str, FieldRule] = {"name": FieldRule("text", frozenset({"startswith"}))}


Predicate = Callable[[Mapping[str, Any]], bool]
_Value = str | float | bool | datetime

_MAX_DEPTH = 50
_MAX_CHARS = 32_768
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<time>datetime'(?:[^']|'')*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
    | (?P<word>[A-Za-z_]\w*(?:/[A-Za-z_]\w*)*)
    | (?P<mark>[(),])
    )""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


class FilterError(ValueError):
    """An invalid `$filter`; answered 400 InvalidQueryParameterValue."""


def parse_filter(text: str, fields: Mapping[str, FieldRule]) -> Predicate:
    """Return a test of wire entities (nested dicts) for a filter. Raises FilterError."""
    if not text.strip():
        return lambda _entity: True
    if len(text) > _MAX_CHARS:
        raise FilterError(f"the filter is longer than {_MAX_CHARS} characters")
    return _FilterParser(_tokens(text), fields).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            rest = text[position : position + 20]
            raise FilterError(f"unexpected text at position {position}: {rest!r}")
        kind = str(found.lastgroup)
        tokens.append(_Token(kind, found[kind], found.start(kind)))
        position = found.end()
    tokens.append(_Token("end", "", end))
    return tokens


class _FilterParser:
    def __init__(self, tokens: list[_Token], fields: Mapping[str, FieldRule]) -> None:
        self._tokens = tokens
        self._next = 0
        self._fields = fields

    def parse(self) -> Predicate:
        predicate = self._filter(0)
        self._expect("end", "", "the end of the filter")
        return predicate

    def _filter(self, depth: int) -> Predicate:
        if depth > _MAX_DEPTH:
            raise FilterError(f"the filter nests deeper than {_MAX_DEPTH} parentheses")
        terms = [self._both(depth)]
        while self._take("word", "or"):
            terms.append(self._both(depth))
        return terms[0] if len(terms) == 1 else lambda entity: any(t(entity) for t in terms)

    def _both(self, depth: int) -> Predicate:
        terms = [self._term(depth)]
        while self._take("word", "and"):
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else lambda entity: all(t(entity) for t in terms)

    def _term(self, depth: int) -> Predicate:
        if self._take("mark", "("):
            inner = self._filter(depth + 1)
            self._expect("mark", ")", "')'")
            return inner
        if self._take("word", "startswith"):
            return self._startswith()
        path = self._expect("word", None, "a property")
        op = self._expect("word", None, "an operator")
        if op.text not in _COMPARE:
            raise FilterError(f"{op.text!r} at position {op.position} is not an operator")
        rule = self._rule(path, op.text)
        return _comparison(
            rule.path or path.text, _COMPARE[op.text], self._literal(path.text, rule)
        )

    def _startswith(self) -> Predicate:
        self._expect("mark", "(", "'('")
        path = self._expect("word", None, "a property")
        self._rule(path, "startswith")
        self._expect("mark", ",", "','")
        prefix = _unquoted(self._expect("string", None, "a string").text)
        self._expect("mark", ")", "')'")
        return lambda entity: str(_lookup(entity, path.text, "")).lower().startswith(prefix)

    def _rule(self, path: _Token, op: str) -> FieldRule:
        rule = self._fields.get(path.text)
        if rule is None:
            known = ", ".join(sorted(self._fields)) or "none"
            raise FilterError(f"{path.text!r} cannot be filtered on; properties: {known}")
        if op not in rule.operators:
            allowed = ", ".join(sorted(rule.operators))
            raise FilterError(f"{path.text!r} does not support {op!r}; operators: {allowed}")
        return rule

    def _literal(self, path: str, rule: FieldRule) -> _Value:
        token = self._tokens[self._next]
        value = _value(token)
        if value is None or _kind(value) != rule.kind:
            raise FilterError(
                f"{path!r} is compared with a {rule.kind}, not with {token.text or 'nothing'!r}"
            )
        self._next += 1
        return value

    def _take(self, kind: str, text: str) -> bool:
        token = self._tokens[self._next]
        if token.kind == kind and token.text.lower() == text:
            self._next += 1
            return True
        return False

    def _expect(self, kind: str, text: str | None, what: str) -> _Token:
        token = self._tokens[self._next]
        if token.kind != kind or (text is not None and token.text != text):
            got = repr(token.text) if token.text else "the end"
            raise FilterError(f"expected {what} at position {token.position}, found {got}")
        self._next += 1
        return token


def _value(token: _Token) -> _Value | None:
    if token.kind == "string":
        return _unquoted(token.text)
    if token.kind == "number":
        return float(token.text)
    if token.kind == "time":
        text = _unquoted(token.text[len("datetime") :])
        try:
            return parse_time(text.upper())
        except (ValueError, OverflowError) as err:
            raise FilterError(f"{token.text} is not an ISO 8601 time") from err
    return {"true": True, "false": False}.get(token.text.lower())


def _kind(value: _Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "text"
    return "time" if isinstance(value, datetime) else "number"


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'").lower()


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _lookup(entity: Mapping[str, Any], path: str, default: Any) -> Any:
    value: Any = entity
    for name in path.split("/"):
        if not isinstance(value, Mapping):
            return default
        value = cast("Mapping[str, Any]", value).get(name)
    return default if value is None else value


def _comparison(path: str, compare: Callable[[Any, Any], bool], wanted: _Value) -> Predicate:
    def test(entity: Mapping[str, Any]) -> bool:
        value = _converted(_lookup(entity, path, None), wanted)
        return value is not None and compare(value, wanted)

    return test


def _converted(value: Any, wanted: _Value) -> _Value | None:
    """Return the entity's value in the type of the literal, None if it has none."""
    if value is None:
        return None
    if isinstance(wanted, bool):
        return bool(value)
    if isinstance(wanted, str):
        return str(value).lower()
    try:
        if isinstance(wanted, datetime):
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return _aware(moment)
        return float(value)
    except ValueError:
        return None


MAX_RESULTS = 1000
# The number of rows that are read at a time with a filter, so that memory stays small.
_BATCH = 250

Fetch = Callable[[str, int], Iterable[tuple[str, Json]]]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list request; `after` is the last key of the previous page."""

    matches: Predicate | None
    select: str
    names: frozenset[str] | None
    filter: str
    limit: int
    after: str


def parse(
    query: Mapping[str, str],
    fields: Mapping[str, FieldRule] | None,
    *,
    default: int = MAX_RESULTS,
) -> ListQuery:
    """Parse the query parameters; a skip token outranks them. Raises Fault."""
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
    """Return the names in a $select, None for all. Raises Fault."""
    names = [name.strip() for name in text.split(",")]
    if names == [""] or "*" in names:
        return None
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][\w.]*(/[A-Za-z_]\w*)*", name, re.ASCII):
            raise bad_query("$select", text, f"{name!r} is not the name of a property")
    return frozenset(name.partition("/")[0] for name in names)


def select(entity: Json, names: frozenset[str] | None) -> Json:
    """Return the properties of an entity with the selected names; unknown ones are ignored."""
    if names is None:
        return entity
    return {name: value for name, value in entity.items() if name in names}


def _limit(text: str) -> int:
    """Return the value of `maxresults`; the reason below 1 is recorded, the others are ours."""
    if not re.fullmatch(r"-?[0-9]{1,99}", text):
        raise bad_query("maxresults", text, "MaxResults must be a whole number")
    if int(text) < 1:
        raise bad_query("maxresults", text, "MaxResults cannot be less than 1")
    if int(text) > MAX_RESULTS:
        raise bad_query("maxresults", text, f"MaxResults cannot be greater than {MAX_RESULTS}")
    return int(text)


def _decode(text: str) -> Json:
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(text.encode()))
    except (ValueError, RecursionError) as err:
        raise bad_query("$skiptoken", text, "not a token of this service") from err
    if not isinstance(value, dict):
        raise bad_query("$skiptoken", text, "not a token of this service")
    return cast("Json", value)


async def page(asked: ListQuery, fetch: Fetch, url: str, api_version: str) -> Json:
    """Return one page of the list at `url`; `fetch(after, limit)` returns (key, entity) in order of
    keys.

    Other requests are served between batches, since a filter may have to read a long list to its
    end.
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
                found.append(select(entity, asked.names))
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


def from_entities(entities: Mapping[str, _Entity], render: Callable[[_Entity], Json]) -> Fetch:
    """Return a fetch over entities by key; only those that are read are rendered."""
    known = dict(entities)  # as they are now: a page may be read in several steps
    keys = sorted(known)

    def fetch(after: str, limit: int) -> Iterable[tuple[str, Json]]:
        start = bisect_right(keys, after)
        return [(key, render(known[key])) for key in keys[start : start + limit]]

    return fetch


def from_sorted(entities: Iterable[tuple[str, Json]]) -> Fetch:
    """Return a fetch over entities in memory, sorted by key."""
    ordered = list(entities)

    def fetch(after: str, limit: int) -> Iterable[tuple[str, Json]]:
        return [(key, entity) for key, entity in ordered if key > after][:limit]

    return fetch
