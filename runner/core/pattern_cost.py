"""Regular expressions that backtrack for ever: a repetition whose turns can be cut in many ways.

`(\\w+\\s?)*x` tries every way to cut forty letters into words before it gives up, which takes
longer than anybody waits; `(\\w+,)*x` cannot, as each turn ends with a comma. The node stops such a
search (runner/node/pattern_worker.py); here it is told before anything runs.

It is no analysis: what is refused is slow, what is taken may be. Not found are alternatives that
are alike (`(a|ab|b)*x`, `(\\s+|,)*x`), counts below ten (`(\\d{1,3},?)+x`), repetitions of what may
be empty (`(a?){30}`), those within look-around, and long rows of `.*`, which cost a power of the
length of the line. All those the node stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

_MANY = 10  # turns, from which on it is felt
_SAMPLES = [chr(code) for code in range(256)]
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


def endless_part(pattern: str) -> str | None:
    """What repeats inside of a repetition so that a search may never end, or None.

    None, too, where this Python's parser is not as expected: then the node finds out.
    """
    try:
        parser: Any = import_module("re._parser")
        return _look(parser.parse(pattern), followed=False)
    except (ImportError, AttributeError, TypeError, ValueError, RecursionError):
        return None


def _look(items: Iterable[Any], *, followed: bool) -> str | None:
    """`followed` is whether something comes after them, for want of which they are tried again."""
    listed = _named(items)
    for place, (name, argument) in enumerate(listed):
        after = followed or not all(map(_may_lack, listed[place + 1 :]))
        repeats = name in _REPEATS and argument[1] >= _MANY
        if repeats and after and _is_ambiguous(list(argument[2])):
            return "a repetition that ends with nothing of its own, inside of a repetition"
        for inner in _below(name, argument):
            if found := _look(inner, followed=after or repeats):
                return found
    return None


def _may_lack(item: tuple[str, Any]) -> bool:
    """Whether an item that is not found is no reason to try those before it again."""
    name, argument = item
    if name == "SUBPATTERN":
        return all(map(_may_lack, _named(argument[-1])))
    return name in _REPEATS and argument[0] == 0


def _named(items: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(str(operation), argument) for operation, argument in items]


def _below(name: str, argument: Any) -> list[Any]:
    """The sequences inside of one item."""
    if name in _REPEATS:
        return [argument[2]]
    if name == "SUBPATTERN":
        return [argument[-1]]
    if name == "BRANCH":
        return list(argument[1])
    return []


def _is_ambiguous(body: list[Any]) -> bool:
    """Whether a turn can be two turns: it repeats something that all the rest may be, or lacks."""
    flat = _flat(body)
    for place, (name, argument) in enumerate(flat):
        if name not in _REPEATS or argument[1] < _MANY:
            continue
        letters = _letters(list(argument[2]))
        rest = flat[:place] + flat[place + 1 :]
        if letters and all(_may_be(item, letters) for item in rest):
            return True
    return False


def _flat(body: Iterable[Any]) -> list[tuple[str, Any]]:
    """Groups are only brackets."""
    found: list[tuple[str, Any]] = []
    for name, argument in _named(body):
        found += _flat(argument[-1]) if name == "SUBPATTERN" else [(name, argument)]
    return found


def _may_be(item: tuple[str, Any], letters: frozenset[str]) -> bool:
    """Whether an item matches nothing, or text of these letters."""
    name, argument = item
    if name in _REPEATS:
        return argument[0] == 0 or all(_may_be(inner, letters) for inner in _flat(argument[2]))
    if name == "BRANCH":
        return any(all(_may_be(inner, letters) for inner in _flat(way)) for way in argument[1])
    return bool(_letters([item]) & letters)


def _letters(body: list[Any]) -> frozenset[str]:
    """The single characters a sequence matches, of the first 256; none where it is longer."""
    flat = _flat(body)
    if len(flat) != 1:
        return frozenset()
    name, argument = flat[0]
    if name in _REPEATS and argument[0] <= 1:
        return _letters(list(argument[2]))
    members = {
        "LITERAL": [("LITERAL", argument)],
        "NOT_LITERAL": [("NEGATE", None), ("LITERAL", argument)],
        "ANY": [("NEGATE", None), ("LITERAL", ord("\n"))],
        "IN": argument,
    }.get(name)
    return _of_set(members) if members is not None else frozenset()


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def _of_set(members: Iterable[Any]) -> frozenset[str]:
    found: set[str] = set()
    is_negated = False
    for name, argument in _named(members):
        if name == "NEGATE":
            is_negated = True
        elif name == "LITERAL":
            found.add(chr(argument))
        elif name == "RANGE":
            found |= {letter for letter in _SAMPLES if argument[0] <= ord(letter) <= argument[1]}
        elif name == "CATEGORY":
            category = re.compile(_CATEGORIES[str(argument)])
            found |= {letter for letter in _SAMPLES if category.match(letter)}
    return frozenset(_SAMPLES) - found if is_negated else frozenset(found)
