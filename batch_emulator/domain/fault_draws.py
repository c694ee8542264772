"""Which requests and machines the rules for faults hit: counters, seeded draws and what was hit.

The n-th request that matches a rule, and the n-th machine of a pool that matches it, are decided by
the seed, the text of the rule and n alone. So neither other rules nor the time between requests
changes a draw; requests that arrive at the same time are numbered as they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from batch_emulator.domain.chance import chance_key, draw_uniform
from batch_emulator.domain.fault_rules import (
    QUOTAS,
    REQUEST_KINDS,
    FaultKind,
    FaultRule,
    RuleSet,
)
from batch_emulator.domain.values import time_text

_KEPT_HITS = 20  # of each rule
_MACHINE_KINDS = frozenset(
    {FaultKind.SLOW_BOOT, FaultKind.NO_BOOT, FaultKind.UNUSABLE, FaultKind.START_TASK}
)


@dataclass(eq=False, slots=True)
class LoadedRule:
    """A rule since its load; `matched` counts requests and machines, `hits` those that it hit."""

    rule: FaultRule
    since: datetime
    key: int
    matched: int = 0
    hits: int = 0
    machines: dict[str, int] = field(default_factory=dict[str, int])  # matched, by pool
    newest: deque[tuple[datetime, str]] = field(
        default_factory=lambda: deque[tuple[datetime, str]](maxlen=_KEPT_HITS)
    )

    @property
    def exhausted(self) -> bool:
        """Return True if it has hit as often as it may."""
        return self.rule.count is not None and self.hits >= self.rule.count

    @property
    def times(self) -> Iterator[datetime]:
        """Yield when it begins and ends."""
        yield self.since + timedelta(seconds=self.rule.after_s)
        if self.rule.until_s is not None:
            yield self.since + timedelta(seconds=self.rule.until_s)

    def holds(self, now: datetime) -> bool:
        """Return True from its beginning until its end or its last hit."""
        begin, *end = self.times
        return begin <= now and not (end and end[0] <= now) and not self.exhausted

    def draw(self, key: int, number: int) -> bool:
        """Return True if it hits the n-th match, from 1 on; `key` is the one of its draws."""
        self.matched += 1
        if self.rule.every > 1:
            return number % self.rule.every == 0
        return self.rule.rate >= 1 or draw_uniform(key, 0, number) <= self.rule.rate

    def hit(self, what: str, now: datetime) -> None:
        """Record a hit."""
        self.hits += 1
        self.newest.append((now, what))

    def document(self, now: datetime) -> dict[str, object]:
        """Return the rule and what it hit, as JSON shows it."""
        document: dict[str, object] = self.rule.document()
        if self.rule.count is not None:
            document["count"] = self.rule.count - self.hits
        newest = [{"at": time_text(at), "what": what} for at, what in reversed(self.newest)]
        return document | {
            "holds": self.holds(now),
            "matched": self.matched,
            "hits": self.hits,
            "newest": newest,
        }


class FaultDraws:
    """The loaded rules of one account. They are not stored: a restart loads the file again.

    `root` is the seed if the rules have none.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._loaded = 0
        self._requests: list[LoadedRule] = []
        self.seed = root
        self.rules: list[LoadedRule] = []

    def replace(self, found: RuleSet, now: datetime) -> None:
        """Load rules instead of all earlier ones; their times count from `now`."""
        self.seed = self._root if found.seed is None else found.seed
        self._loaded = 0
        self.rules = []
        for rule in found.rules:
            self.add(rule, now)
        self._sort()

    def add(self, rule: FaultRule, now: datetime) -> None:
        """Load a rule after the others."""
        same = sum(other.rule.given == rule.given for other in self.rules)
        key = chance_key(self.seed, "fault", rule.kind, rule.given, str(same))
        self.rules.append(LoadedRule(rule, now, key))
        self._loaded += 1
        self._sort()

    def _sort(self) -> None:
        self._requests = [one for one in self.rules if one.rule.kind in REQUEST_KINDS]

    @property
    def next_number(self) -> int:
        """Return the number of the next rule, for its name."""
        return self._loaded + 1

    def of_request(self, operation: str, path: str, now: datetime) -> FaultRule | None:
        """Return the first rule that hits a request, counted, or None.

        All rules that match it count it, so that the draws of one do not depend on another.
        """
        found: LoadedRule | None = None
        for loaded in self._requests:
            matches = operation in loaded.rule.operations and loaded.holds(now)
            if matches and loaded.draw(loaded.key, loaded.matched + 1) and found is None:
                found = loaded
        if found is None:
            return None
        found.hit(f"{operation} {path}", now)
        return found.rule

    def of_machine(self, pool_key: str, node: str, now: datetime) -> tuple[FaultRule, ...]:
        """Return the rules that hit a new machine of a pool, counted. Machines count by pool."""
        found: list[FaultRule] = []
        for loaded in self.rules:
            rule = loaded.rule
            if rule.kind in _MACHINE_KINDS and rule.concerns_pool(pool_key) and loaded.holds(now):
                number = loaded.machines[pool_key] = loaded.machines.get(pool_key, 0) + 1
                if loaded.draw(chance_key(loaded.key, pool_key), number):
                    loaded.hit(node, now)
                    found.append(rule)
        return tuple(found)

    def quotas(self, now: datetime) -> dict[str, int]:
        """Return the quotas that rules set now, by their field of Limits; the last rule counts."""
        found: dict[str, int] = {}
        for loaded in self.rules:
            if loaded.rule.kind is FaultKind.QUOTA and loaded.holds(now):
                found[QUOTAS[loaded.rule.quota]] = loaded.rule.limit
                if not loaded.hits:  # it has begun
                    loaded.matched += 1
                    loaded.hit(loaded.rule.quota, now)
        return found

    def capacity(self, pool_key: str, now: datetime) -> LoadedRule | None:
        """Return the last rule about the capacity of a pool that holds now, or None."""
        found = (
            one
            for one in reversed(self.rules)
            if one.rule.kind is FaultKind.CAPACITY
            and one.rule.concerns_pool(pool_key)
            and one.holds(now)
        )
        return next(found, None)

    def times_after(self, now: datetime) -> set[datetime]:
        """Return when rules about capacity and quotas begin or end."""
        timed = (FaultKind.CAPACITY, FaultKind.QUOTA)
        found = {at for one in self.rules if one.rule.kind in timed for at in one.times}
        return {at for at in found if at > now}

    def document(self, now: datetime) -> dict[str, object]:
        """Return all rules, in order, with what they hit."""
        return {"seed": self.seed, "value": [one.document(now) for one in self.rules]}
