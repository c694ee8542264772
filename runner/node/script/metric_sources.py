"""Recognise a value that two sources report: a script prints what it also gives to a tracker.

Two values are the same if their names have the same words, apart from those that trackers add
(`loss`, `train/loss`), and if one is the other one rounded. The source that is read first keeps it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator
from itertools import combinations, islice

MAX_PENDING = 4096  # values of a name that wait for the same one of another source
MAX_ALL_PENDING = 64 * MAX_PENDING  # of all names, which then have equal shares
_LEAST_PENDING = 16
_MAX_COMPARED = 64
_MAX_WORDS = 8  # of a name whose parts are looked up: there are 256
_RELATIVE = 1e-6  # trackers store numbers of 32 bits
_CERTAIN = 0.005  # a relative difference that is no accident, if names are only similar
_WORDS = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|[0-9]+")
_SAME = {
    "validation": "val", "valid": "val", "dev": "val", "accuracy": "acc", "testing": "test",
    "evaluation": "eval", "losses": "loss", "evaluate": "eval",
}  # fmt: skip
_ADDED = frozenset({"train", "training", "epoch", "step", "avg", "average", "mean"})


def words_of(name: str) -> frozenset[str]:
    """Return the words that say which metric a name means: `Loss/train` is `{"loss"}`."""
    found = frozenset(_SAME.get(word, word) for word in words_in(name))
    return found - _ADDED or found


def words_in(name: str) -> frozenset[str]:
    """Return all words of a name, however it is spelled."""
    words: list[str] = _WORDS.findall(name)
    return frozenset(word.lower() for word in words)


def precision_of(value: float) -> float:
    """Return by how much a printed value may differ from the exact one: half of its last digit."""
    mantissa, _, exponent = repr(value).partition("e")
    _, _, decimals = mantissa.rstrip("0").partition(".")
    try:
        return 0.5 * 10.0 ** (int(exponent or 0) - len(decimals))
    except OverflowError:
        return 0.0


class _Pending:
    """The values of one name in one source that no other source reported so far."""

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.words = words_of(name)
        self.similar: list[_Pending] = []  # of other sources; those with the same words first
        self.same_count = 0  # of those
        self._widest = 0.0  # the largest precision
        self._order: deque[tuple[float, float]] = deque()
        self._sorted: list[tuple[float, float]] = []  # values with their precision
        self._others: Counter[str] = Counter()  # NaN and infinities

    def add(self, value: float, precision: float, limit: int) -> None:
        if not math.isfinite(value):
            self._others[str(value)] += 1
            return
        while len(self._order) >= limit:
            self._remove(self._order[0])
        self._widest = max(self._widest, precision)
        self._order.append((value, precision))
        insort(self._sorted, (value, precision))

    def take(self, value: float, precision: float, *, is_same: bool) -> bool:
        """Remove a value that is the same one rounded. Return False if there is none.

        If the names are only similar, rounded values need enough digits to be no accident.
        """
        if not math.isfinite(value):
            known = self._others[str(value)] > 0
            self._others[str(value)] -= known
            return known
        precision = max(precision, abs(value) * _RELATIVE)
        window = max(precision, self._widest) * (1 + 1e-9)
        at = bisect_left(self._sorted, (value - window, 0.0))
        for each in islice(self._sorted, at, at + _MAX_COMPARED):
            if each[0] > value + window:
                return False
            allowed = max(precision, each[1])
            is_certain = is_same or allowed <= _CERTAIN * abs(value)
            if is_certain and abs(each[0] - value) <= allowed * (1 + 1e-9):
                self._remove(each)
                return True
        return False

    def _remove(self, pair: tuple[float, float]) -> None:
        self._order.remove(pair)
        del self._sorted[bisect_left(self._sorted, pair)]


class _PendingNames:
    """Finds pending names whose words are a part of others, without a look at all of them."""

    def __init__(self) -> None:
        self._by_words: dict[frozenset[str], list[_Pending]] = {}
        self._by_word: dict[str, list[_Pending]] = {}

    def add(self, pending: _Pending) -> None:
        self._by_words.setdefault(pending.words, []).append(pending)
        for word in pending.words:
            self._by_word.setdefault(word, []).append(pending)

    def find_similar(self, own: _Pending) -> list[_Pending]:
        """Return the names of other sources with the same words first, then with more or fewer."""
        words = own.words
        found = [*self._by_words.get(words, ())]
        found += self._find_parts(words)
        # A name with all these words has the rarest one, too.
        lists = [self._by_word.get(word, []) for word in words]
        rarest = min(lists, key=len) if lists else [p for ps in self._by_words.values() for p in ps]
        found += [each for each in rarest if words < each.words]
        return [each for each in found if each.source != own.source]

    def _find_parts(self, words: frozenset[str]) -> Iterator[_Pending]:
        """Yield the names whose words are a part of these."""
        if len(words) > _MAX_WORDS:  # there are fewer names than parts
            for others, found in self._by_words.items():
                if others < words:
                    yield from found
            return
        for count in range(len(words)):
            for part in combinations(sorted(words), count):
                yield from self._by_words.get(frozenset(part), ())


class RepeatedValues:
    """Finds values that another source has reported."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._names = _PendingNames()

    def is_repeated(
        self, source: str, name: str, value: float, precision: float, *, by_name: bool = False
    ) -> bool:
        """Return True if another source reported this value; each one counts only once.

        Args:
            source: where the value was found.
            name: the name of the metric there.
            value: the value.
            precision: how much it may differ from the exact value, because it is rounded.
            by_name: compare only values of exactly this name.
        """
        key = (source, name)
        own = self._pending.get(key) or self._add(key)
        compared = (each for each in own.similar if not by_name or each.name == name)
        if any(each.take(value, precision, is_same=each.words == own.words) for each in compared):
            return True
        share = max(MAX_ALL_PENDING // len(self._pending), _LEAST_PENDING)
        own.add(value, precision, min(share, MAX_PENDING))
        return False

    def _add(self, key: tuple[str, str]) -> _Pending:
        """Add a name, also to the similar names of the others."""
        own = self._pending[key] = _Pending(*key)
        own.similar = self._names.find_similar(own)
        for each in own.similar:
            if each.words == own.words:
                each.similar.insert(each.same_count, own)
                each.same_count += 1
            else:
                each.similar.append(own)
        own.same_count = sum(each.words == own.words for each in own.similar)
        self._names.add(own)
        return own
