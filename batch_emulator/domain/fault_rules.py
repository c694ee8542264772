"""Rules for faults on purpose: what requests, machines, capacity and quotas meet, and when.

Programs that use Batch meet busy services, cut connections and broken nodes rarely, and then all at
once. A test writes rules for them, in a file (`--faults`) or with the admin API. `fault_draws.py`
decides which requests and machines a rule hits.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from batch_emulator.domain.faults import FAULTS, Fault, StatedError

MOST_RULES = 100
EVERY = "*"
_LONGEST_S = 366 * 86400.0
_POOL_PATTERN = re.compile(r"[A-Za-z0-9_*?-]+")
_LONGEST_ID = 64


class FaultKind(StrEnum):
    """What a rule does, as its key `fault` spells it."""

    ERROR = "error"
    DELAY = "delay"
    RESET = "reset"
    LOST_ANSWER = "lostAnswer"
    HALF_ANSWER = "halfAnswer"
    TWICE = "twice"
    SLOW_BOOT = "slowBoot"
    NO_BOOT = "noBoot"
    UNUSABLE = "unusable"
    START_TASK = "startTask"
    CAPACITY = "capacity"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class RuleKey:
    """A key of a rule: the type of its value in JSON, and the least and the largest number."""

    help: str
    type: str = "string"
    least: float = 0
    most: float = _LONGEST_S


# In the order of the documentation.
RULE_KEYS: Mapping[str, RuleKey] = {
    "fault": RuleKey("what happens; without it `error` if there is a `code`, else `delay`"),
    "name": RuleKey("the name in the list of rules and in metrics; default `rule-1` and so on"),
    "operation": RuleKey(
        "the operations whose requests are hit: a name, or a pattern with `*`; default `*`"
    ),
    "pool": RuleKey("the pools whose nodes are hit: an ID, or a pattern with `*`; default `*`"),
    "rate": RuleKey("the probability of each to be hit, above 0", "number", 0, 1),
    "every": RuleKey("hit one in this many: with 3 the third, the sixth, ...", "integer", 1, 1e6),
    "count": RuleKey("the most hits, without a limit by default", "integer", 1, 1e6),
    "afterSeconds": RuleKey(
        "seconds of the emulator's clock from the load of the rule until it begins", "number"
    ),
    "untilSeconds": RuleKey("the same until it ends", "number"),
    "code": RuleKey("the error code of an answer, or of an unusable node"),
    "status": RuleKey("the status of an error, by default that of its code", "integer", 400, 599),
    "retryAfterSeconds": RuleKey("the value of `Retry-After`", "number"),
    "delaySeconds": RuleKey(
        "seconds of this machine before an answer; of the emulator's clock for a boot",
        "number", 0, _LONGEST_S,
    ),
    "exitCode": RuleKey("the exit code of a start task, default 1", "integer", 1, 255),
    "nodes": RuleKey("the number of spot nodes for which there is capacity", "integer", 0, 1e6),
    "quota": RuleKey("`dedicatedCores`, `spotCores`, `pools` or `activeJobs`"),
    "limit": RuleKey("the quota as long as the rule holds", "integer", 0, 1e9),
}  # fmt: skip
QUOTAS: Mapping[str, str] = {  # the field of Limits
    "dedicatedCores": "dedicated_cores",
    "spotCores": "spot_cores",
    "pools": "pools",
    "activeJobs": "active_jobs",
}
_LONGEST_DELAY_S = 300.0  # of a request: clients give up before
_ANY = frozenset({"fault", "name", "afterSeconds", "untilSeconds"})
_CHOSEN = _ANY | {"rate", "every", "count"}
_REQUEST = _CHOSEN | {"operation", "delaySeconds"}
_NODE = _CHOSEN | {"pool"}
REQUEST_KINDS = frozenset(
    {
        FaultKind.ERROR,
        FaultKind.DELAY,
        FaultKind.RESET,
        FaultKind.LOST_ANSWER,
        FaultKind.HALF_ANSWER,
        FaultKind.TWICE,
    }
)
KEYS_OF: Mapping[FaultKind, frozenset[str]] = {
    **dict.fromkeys(REQUEST_KINDS, _REQUEST),
    FaultKind.ERROR: _REQUEST | {"code", "status", "retryAfterSeconds"},
    FaultKind.SLOW_BOOT: _NODE | {"delaySeconds"},
    FaultKind.NO_BOOT: _NODE,
    FaultKind.UNUSABLE: _NODE | {"code"},
    FaultKind.START_TASK: _NODE | {"exitCode"},
    FaultKind.CAPACITY: _ANY | {"pool", "nodes"},
    FaultKind.QUOTA: _ANY | {"quota", "limit"},
}
_DELAYS = (FaultKind.DELAY, FaultKind.SLOW_BOOT)
_REQUIRED: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.ERROR: ("code",),
    FaultKind.DELAY: ("delaySeconds",),
    FaultKind.SLOW_BOOT: ("delaySeconds",),
    FaultKind.CAPACITY: ("nodes",),
    FaultKind.QUOTA: ("quota", "limit"),
}


class RuleError(StatedError):
    """A rule that is invalid or can never hit anything; `key` is the wrong one."""

    def __init__(self, what: str, why: str, fix: str, key: str = "rules") -> None:
        super().__init__(what, why, fix)
        self.key = key


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A valid rule. `operations` are those that the pattern of a rule for requests matches."""

    kind: FaultKind
    name: str = ""
    given: str = ""  # its keys as JSON, without the name: they decide its draws
    operation: str = ""
    operations: frozenset[str] = frozenset()
    pool: str = EVERY
    rate: float = 1.0
    every: int = 1
    count: int | None = None
    after_s: float = 0.0
    until_s: float | None = None
    code: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    delay_s: float = 0.0
    exit_code: int = 1
    nodes: int = 0
    quota: str = ""
    limit: int = 0

    @property
    def hits_all(self) -> bool:
        """Return True if it hits everything that it matches, at all times."""
        is_whole = self.rate >= 1 and self.every == 1 and self.count is None
        return is_whole and self.after_s == 0 and self.until_s is None

    def concerns_pool(self, pool_key: str) -> bool:
        """Return True if it is about nodes of the pool."""
        return fnmatchcase(pool_key, self.pool.lower())

    def fault(self) -> Fault:
        """Return the error of the answer."""
        reason = {"Reason": "a fault on purpose, by a rule"}
        code = self.code or "ServerBusy"
        return Fault(code, reason, status=self.status, retry_after_s=self.retry_after_s)

    def document(self) -> dict[str, Any]:
        """Return the rule with the keys of a file."""
        document: dict[str, Any] = {"name": self.name, "fault": self.kind.value}
        document |= json.loads(self.given)
        if self.kind in REQUEST_KINDS:
            document["operation"] = self.operation
        if self.kind is FaultKind.ERROR:
            document["status"] = self.fault().status
        return document


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a file, in order, and the seed of their draws."""

    rules: tuple[FaultRule, ...] = ()
    seed: int | None = None


def load_rules(path: Path, operations: Collection[str]) -> RuleSet:
    """Return the rules of a file: TOML or JSON, by the end of its name. Raises RuleError."""
    kind = path.suffix.lower()
    if kind not in (".toml", ".json"):
        fix = "name it .toml or .json, after its content"
        raise RuleError(f"cannot read {path}", "the end of its name says nothing", fix)
    try:
        text = path.read_text("utf-8")
        document: Any = tomllib.loads(text) if kind == ".toml" else json.loads(text)
    except OSError as err:
        raise RuleError(f"cannot read {path}", err.strerror or str(err), "check the path") from err
    except (ValueError, RecursionError) as err:
        why = f"it is not {kind[1:].upper()}: {err}"
        raise RuleError(f"cannot read {path}", why, "correct that line") from err
    try:
        return parse_rules(document, operations)
    except RuleError as err:
        raise RuleError(f"{path}: {err.what}", err.why, err.fix, err.key) from err


def parse_rules(document: object, operations: Collection[str]) -> RuleSet:
    """Return the rules of a document `{"seed": 7, "rules": [...]}`. Raises RuleError."""
    if not isinstance(document, dict):
        raise RuleError("invalid rules", "an object with `rules` is expected", "add [[rules]]")
    given = cast("dict[str, Any]", document)
    _refuse_unknown("the document", given, {"seed", "rules"})
    seed, rows = given.get("seed"), given.get("rules")
    if seed is not None and type(seed) is not int:
        raise RuleError(f"invalid seed {seed!r}", "a whole number is expected", "use seed = 7")
    if not isinstance(rows, list) or not rows:
        raise RuleError("missing rules", "`rules` is a list of at least one", "add [[rules]]")
    rules: list[FaultRule] = []
    for row in cast("list[Any]", rows):
        rules.append(parse_rule(row, operations, rules))
    _refuse_replaced(rules)
    return RuleSet(tuple(rules), seed)


def parse_rule(
    row: object, operations: Collection[str], before: Sequence[FaultRule], number: int | None = None
) -> FaultRule:
    """Return a rule, after the rules `before` it. `number` is the one of its default name.

    Raises:
        RuleError: it is invalid, or can never hit anything.
    """
    number = len(before) + 1 if number is None else number
    where = f"rule {number}"
    if not isinstance(row, dict):
        raise RuleError(f"invalid {where}", "an object is expected", "see the list of keys")
    given = cast("dict[str, Any]", row)
    if len(before) >= MOST_RULES:
        why = f"{MOST_RULES} rules are the most"
        raise RuleError(f"{where} is one too many", why, "remove some", "rules")
    kind = _kind(where, given)
    _refuse_unknown(where, given, KEYS_OF[kind], kind)
    for key in _REQUIRED.get(kind, ()):
        if given.get(key) in (None, ""):
            why = f"a rule with the fault '{kind}' needs it"
            raise RuleError(f"{where}: missing {key}", why, f"add {key}", key)
    for key, value in given.items():
        _check_value(where, key, value, kind)
    name = str(given.get("name") or f"rule-{number}")
    if name in {rule.name for rule in before}:
        why = "hits are counted by name"
        raise RuleError(f"{where}: the name '{name}' is used twice", why, "rename it", "name")
    rule = _rule(kind, name, given, operations)
    _refuse_empty(where, rule)
    _refuse_hidden(where, rule, before)
    return rule


def _kind(where: str, given: Mapping[str, Any]) -> FaultKind:
    value = given.get("fault", FaultKind.ERROR if given.get("code") else FaultKind.DELAY)
    try:
        return FaultKind(value)
    except ValueError as err:
        fix = f"use {_nearest(str(value), FaultKind)}"
        raise RuleError(
            f"{where}: unknown fault {value!r}", "nothing does this", fix, "fault"
        ) from err


def _nearest(word: str, known: Iterable[str]) -> str:
    known = [str(one) for one in known]
    close = get_close_matches(word, known, n=1)
    return f"'{close[0]}'" if close else f"one of {', '.join(known)}"


def _refuse_unknown(
    where: str, given: Mapping[str, Any], known: Collection[str], kind: FaultKind | None = None
) -> None:
    for key in given:
        if key not in known:
            ordered = [one for one in (*RULE_KEYS, "seed", "rules") if one in known]
            of_kind = "" if kind is None else f" of the fault '{kind}'"
            why = f"it is no key{of_kind}"
            fix = f"use {_nearest(key, ordered)}, or remove it"
            raise RuleError(f"{where}: unknown {key}", why, fix, str(key))


def _check_value(where: str, key: str, value: object, kind: FaultKind) -> None:
    expected = RULE_KEYS[key]
    if expected.type == "string":
        if not isinstance(value, str) or (not value and key != "code"):
            empty = value == ""
            why, fix = ("it is empty", "remove it") if empty else ("a text is expected", "quote it")
            raise RuleError(f"{where}: invalid {key} {value!r}", why, fix, key)
        return
    most = expected.most
    if key == "delaySeconds" and kind in REQUEST_KINDS:
        most = _LONGEST_DELAY_S
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and expected.type == "integer":
        is_number = float(cast("float", value)).is_integer()
    fits = is_number and expected.least <= cast("float", value) <= most
    is_useless = value == 0 and (
        key in ("rate", "every", "count") or (key == "delaySeconds" and kind in _DELAYS)
    )
    if not fits or is_useless:
        noun = "whole number" if expected.type == "integer" else "number"
        is_above = key == "rate" or (is_useless and key == "delaySeconds")
        least = "above 0" if is_above else f"from {expected.least:g}"
        fix = f"use a {noun} {least} to {most:.0f}"
        why = "it is out of range" if is_number else f"a {noun} is expected"
        why = "it would have no effect" if is_useless else why
        raise RuleError(f"{where}: invalid {key} {value!r}", why, fix, key)


def _rule(
    kind: FaultKind, name: str, given: Mapping[str, Any], operations: Collection[str]
) -> FaultRule:
    pattern = str(given.get("operation", EVERY)) if kind in REQUEST_KINDS else ""
    until = given.get("untilSeconds")
    count = given.get("count")
    unnamed = {key: value for key, value in given.items() if key not in ("name", "fault")}
    return FaultRule(
        kind=kind,
        name=name,
        given=json.dumps(unnamed, sort_keys=True),
        operation=pattern,
        operations=frozenset(one for one in operations if fnmatchcase(one, pattern)),
        pool=str(given.get("pool", EVERY)),
        rate=float(given.get("rate", 1)),
        every=int(given.get("every", 1)),
        count=None if count is None else int(count),
        after_s=float(given.get("afterSeconds", 0)),
        until_s=None if until is None else float(until),
        code=str(given.get("code", "")),
        status=None if given.get("status") is None else int(given["status"]),
        retry_after_s=given.get("retryAfterSeconds"),
        delay_s=float(given.get("delaySeconds", 0)),
        exit_code=int(given.get("exitCode", 1)),
        nodes=int(given.get("nodes", 0)),
        quota=str(given.get("quota", "")),
        limit=int(given.get("limit", 0)),
    )


def _refuse_empty(where: str, rule: FaultRule) -> None:
    """Refuse a rule that matches nothing, by itself. Raises RuleError."""
    if rule.rate < 1 and rule.every > 1:
        why = "both say how often the rule hits"
        raise RuleError(f"{where}: rate and every", why, "remove one of them", "rate")
    if rule.until_s is not None and rule.until_s <= rule.after_s:
        why = f"it ends at {rule.until_s:g} s, and begins at {rule.after_s:g} s"
        fix = "use an untilSeconds after afterSeconds"
        raise RuleError(f"{where} never holds", why, fix, "untilSeconds")
    if rule.kind in REQUEST_KINDS and not rule.operations:
        raise RuleError(
            f"{where}: unknown operation '{rule.operation}'",
            "no operation of the service has such a name",
            "use a name such as Task_Add, or a pattern such as Task_*",
            "operation",
        )
    if rule.kind is FaultKind.ERROR and rule.code not in FAULTS and rule.status is None:
        fix = f"use {_nearest(rule.code, FAULTS) if rule.code else 'a code'}, or add a status"
        if len(fix) > 200:
            fix = "use a code such as ServerBusy, or add a status"
        raise RuleError(f"{where}: unknown code '{rule.code}'", "it has no status", fix, "code")
    if rule.kind is FaultKind.QUOTA and rule.quota not in QUOTAS:
        why = "the account has no such quota"
        raise RuleError(
            f"{where}: unknown quota '{rule.quota}'", why, f"use {_nearest(rule.quota, QUOTAS)}",
            "quota",
        )  # fmt: skip
    if len(rule.pool.replace(EVERY, "")) > _LONGEST_ID or not _POOL_PATTERN.fullmatch(rule.pool):
        raise RuleError(
            f"{where}: no pool can match '{rule.pool}'",
            f"IDs of pools have letters, digits, - and _, {_LONGEST_ID} at most",
            "use an ID, or a pattern such as gpus-*",
            "pool",
        )


def _refuse_hidden(where: str, rule: FaultRule, before: Iterable[FaultRule]) -> None:
    """Refuse a rule for requests that an earlier rule hits, all of them. Raises RuleError."""
    for other in before:
        hides = other.hits_all and other.kind in REQUEST_KINDS and rule.kind in REQUEST_KINDS
        if hides and rule.operations <= other.operations:
            raise RuleError(
                f"{where} can never hit a request",
                f"'{other.name}' before it hits each request of '{rule.operation}'",
                f"move it before '{other.name}', or give that a rate, a count or a time",
                "operation",
            )


def _covers(rule: FaultRule, pool: str) -> bool:
    """Return True if a rule is about all pools that a name or pattern in lower case matches."""
    is_name = not any(sign in pool for sign in "*?[")
    return rule.pool.lower() in (EVERY, pool) or (is_name and rule.concerns_pool(pool))


def _refuse_replaced(rules: Sequence[FaultRule]) -> None:
    """Refuse a quota or a capacity that a later rule replaces at all times. Raises RuleError."""
    for number, rule in enumerate(rules, 1):
        if rule.kind not in (FaultKind.CAPACITY, FaultKind.QUOTA):
            continue
        for later in rules[number:]:
            is_same = later.kind is rule.kind and later.quota == rule.quota
            if is_same and later.hits_all and _covers(later, rule.pool.lower()):
                raise RuleError(
                    f"rule {number} never counts",
                    f"'{later.name}' behind it replaces it at all times",
                    f"remove it, or give '{later.name}' a time",
                )
