"""Recognise a value that two sources report: a script prints what it also gives to a tracker.

Two values are the same if their names have the same words, apart from those that trackers add
(`loss`, `train/loss`), and if one is the other one rounded. The source that is read first keeps it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import combinations, islice

MAX_KEPT = 4096  # values of a name that another source may report
MAX_ALL_KEPT = 64 * MAX_KEPT  # of all names, which then have equal shares
_LEAST_KEPT = 16
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


class _Offered:
    """The values of a name that one other source has not reported so far."""

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        self._sorted = sorted(pairs)  # values with their precision
        self._others: Counter[str] = Counter()  # NaN and infinities that the source reported

    def add(self, pair: tuple[float, float]) -> None:
        insort(self._sorted, pair)

    def remove(self, pair: tuple[float, float]) -> None:
        """Remove a value unless the source has taken it."""
        at = bisect_left(self._sorted, pair)
        if at < len(self._sorted) and self._sorted[at] == pair:
            del self._sorted[at]

    def take(self, value: float, precision: float, window: float, least: float) -> bool:
        """Remove the nearest value that is the same one rounded. Return False if there is none.

        `window` is how far it may be away, and `least` the precision that it needs.
        """
        for at in islice(self._nearest(value), _MAX_COMPARED):
            found, own = self._sorted[at]
            away = abs(found - value)
            if away > window:
                return False
            allowed = max(precision, own)
            if allowed <= least and away <= allowed * (1 + 1e-9):
                del self._sorted[at]
                return True
        return False

    def _nearest(self, value: float) -> Iterator[int]:
        """Yield the places of the values, from the nearest one outwards."""
        after = bisect_left(self._sorted, (value, 0.0))
        before = after - 1
        while before >= 0 or after < len(self._sorted):
            is_after = before < 0 or (
                after < len(self._sorted)
                and self._sorted[after][0] - value < value - self._sorted[before][0]
            )
            if is_after:
                yield after
                after += 1
            else:
                yield before
                before -= 1

    def take_other(self, value: str, count: int) -> bool:
        """Take NaN or an infinity, of which the name has `count`."""
        known = self._others[value] < count
        self._others[value] += known
        return known


class _Reported:
    """The values of one name that its source was the first to report.

    Each other source may report each value once more.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.words = words_of(name)
        self.similar: list[_Reported] = []  # of other sources; those with the same words first
        self.same_count = 0  # of those
        self._widest = 0.0  # the largest precision
        self._order: deque[tuple[float, float]] = deque()
        self._others: Counter[str] = Counter()  # NaN and infinities
        self._offered: dict[str, _Offered] = {}  # to each source that compared

    def add(self, value: float, precision: float, limit: int) -> None:
        if not math.isfinite(value):
            self._others[str(value)] += 1
            return
        while len(self._order) >= limit:
            oldest = self._order.popleft()
            for offered in self._offered.values():
                offered.remove(oldest)
        self._widest = max(self._widest, precision)
        self._order.append((value, precision))
        for offered in self._offered.values():
            offered.add((value, precision))

    def take(self, source: str, value: float, precision: float, *, is_same: bool) -> bool:
        """Return True if the value is one of these that `source` has not reported, rounded.

        If the names are only similar, rounded values need enough digits to be no accident.
        """
        offered = self._offered.get(source)
        if offered is None:
            offered = self._offered[source] = _Offered(self._order)
        if not math.isfinite(value):
            return offered.take_other(str(value), self._others[str(value)])
        precision = max(precision, abs(value) * _RELATIVE)
        window = max(precision, self._widest) * (1 + 1e-9)
        least = math.inf if is_same else _CERTAIN * abs(value)
        return offered.take(value, precision, window, least)


class _SimilarNames:
    """Finds names whose words are a part of others, without a look at all of them."""

    def __init__(self) -> None:
        self._by_words: dict[frozenset[str], list[_Reported]] = {}
        self._by_word: dict[str, list[_Reported]] = {}

    def add(self, name: _Reported) -> None:
        self._by_words.setdefault(name.words, []).append(name)
        for word in name.words:
            self._by_word.setdefault(word, []).append(name)

    def find_similar(self, own: _Reported) -> list[_Reported]:
        """Return the names of other sources with the same words first, then with more or fewer."""
        words = own.words
        found = [*self._by_words.get(words, ())]
        found += self._find_parts(words)
        # A name with all these words has the rarest one, too.
        lists = [self._by_word.get(word, []) for word in words]
        rarest = min(lists, key=len) if lists else [p for ps in self._by_words.values() for p in ps]
        found += [each for each in rarest if words < each.words]
        return [each for each in found if each.source != own.source]

    def _find_parts(self, words: frozenset[str]) -> Iterator[_Reported]:
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
        self._reported: dict[tuple[str, str], _Reported] = {}
        self._names = _SimilarNames()

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
        own = self._reported.get(key) or self._add(key)
        compared = (each for each in own.similar if not by_name or each.name == name)
        if any(
            each.take(source, value, precision, is_same=each.words == own.words)
            for each in compared
        ):
            return True
        share = max(MAX_ALL_KEPT // len(self._reported), _LEAST_KEPT)
        own.add(value, precision, min(share, MAX_KEPT))
        return False

    def _add(self, key: tuple[str, str]) -> _Reported:
        """Add a name, also to the similar names of the others."""
        own = self._reported[key] = _Reported(*key)
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
