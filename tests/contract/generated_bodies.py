"""Request bodies made up from the service's description by seed: valid ones, and ones with one
mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from typing import Any, cast

from tests.contract.description import STABLE, Description, Operation, description

Json = dict[str, Any]
Schema = Mapping[str, Any]
_TEXTS = {"date-time": "2031-02-03T04:05:06Z", "duration": "PT10M"}
_DEEPEST = 6


@dataclass(frozen=True)
class Body:
    """A body for an operation, with the kind of mistake in it, if any."""

    operation: Operation
    content: Json
    mistake: str = ""

    def __str__(self) -> str:
        return f"{self.operation.name} {self.mistake}: {self.content}"


def valid_bodies(count: int, seed: int) -> list[Body]:
    """Bodies of all operations in turn."""
    chance = random.Random(seed)
    found = description(STABLE)
    operations = cycle(_operations_with_bodies())
    return [
        Body(operation, _value(found, schema, chance, 0))
        for operation, schema in islice(operations, count)
    ]


def wrong_bodies(count: int, seed: int) -> list[Body]:
    """Bodies with one mistake each, of all kinds in turn."""
    chance, found = random.Random(seed), description(STABLE)
    wrong: list[Body] = []
    for kind, mistake in islice(cycle(_MISTAKES.items()), count):
        while len(wrong) == 0 or wrong[-1].mistake != kind:  # not every body has room for each
            operation, schema = chance.choice(_operations_with_bodies())
            content = _value(found, schema, chance, 0)
            spots = list(_objects(found, content, schema))
            chance.shuffle(spots)
            if any(mistake(spot, chance) for spot in spots):
                wrong.append(Body(operation, content, kind))
    return wrong


@cache
def _operations_with_bodies() -> tuple[tuple[Operation, Schema], ...]:
    return tuple(
        (operation, parameter["schema"])
        for operation in description(STABLE).operations
        for parameter in operation.parameters
        if parameter["in"] == "body"
    )


def _value(found: Description, schema: Schema, chance: random.Random, depth: int) -> Any:
    schema = found.definition(schema)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        count = chance.randrange(3) if depth < _DEEPEST else 0
        return [_value(found, schema["items"], chance, depth + 1) for _ in range(count)]
    if kind == "integer":
        return chance.randint(schema.get("minimum", 1), schema.get("maximum", 9))
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "string":
        return _TEXTS.get(schema.get("format", ""), f"t{chance.randrange(10**6)}")
    required = schema.get("required", ())
    often = 0.4 if depth < _DEEPEST else 0.0
    return {
        name: _value(found, one, chance, depth + 1)
        for name, one in schema.get("properties", {}).items()
        if name in required or (not one.get("readOnly") and chance.random() < often)
    }


@dataclass(frozen=True)
class _Spot:
    """An object in a body, and its schema with resolved properties."""

    content: Json
    properties: Mapping[str, Schema]
    required: tuple[str, ...]


def _objects(found: Description, value: Any, schema: Schema) -> Iterator[_Spot]:
    schema = found.definition(schema)
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _objects(found, item, schema["items"])
    elif isinstance(value, dict) and "properties" in schema:
        content = cast("Json", value)
        known = {name: found.definition(one) for name, one in schema["properties"].items()}
        yield _Spot(content, known, tuple(schema.get("required", ())))
        for name, item in content.items():
            yield from _objects(found, item, schema["properties"][name])


def _unknown(spot: _Spot, chance: random.Random) -> bool:
    spot.content[f"unknown{chance.randrange(100)}"] = chance.choice((1, "x", None, {}, []))
    return True


def _misspelt(spot: _Spot, chance: random.Random) -> bool:
    names = [name for name in spot.content if name not in spot.required]
    if not names:
        return False
    name = chance.choice(names)
    at = chance.randrange(len(name))
    other = chance.choice((name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:]))
    other = chance.choice((other, name.swapcase()))
    if other in spot.properties:
        return False
    spot.content[other] = spot.content.pop(name)
    return True


def _mistyped(spot: _Spot, chance: random.Random) -> bool:
    if not spot.content:
        return False
    name = chance.choice(list(spot.content))
    schema = spot.properties[name]
    wrong: tuple[Any, ...] = {
        "integer": ("many", 1.5, True, 2**31, "", "0x1"),
        "boolean": ("maybe", 1, 0, ""),
        "array": ({}, "x", 1),
        "string": (1, True, 1.5),
    }.get(schema.get("type", "object"), ("x", 1, [], False))
    if schema.get("format") in _TEXTS:
        wrong += ("tomorrow", "")
    spot.content[name] = chance.choice(wrong)
    return True


def _missing(spot: _Spot, chance: random.Random) -> bool:
    names = [name for name in spot.required if name in spot.content]
    if not names:
        return False
    name = chance.choice(names)
    if chance.random() < 0.5:
        spot.content[name] = None
    else:
        del spot.content[name]
    return True


def _bad_word(spot: _Spot, chance: random.Random) -> bool:
    names = [name for name in spot.content if "enum" in spot.properties[name]]
    if not names:
        return False
    name = chance.choice(names)
    spot.content[name] = chance.choice(("", f"{spot.content[name]}s", "unknown"))
    return True


def _too_deep(spot: _Spot, chance: random.Random) -> bool:
    if not spot.content:
        return False
    name = chance.choice(list(spot.content))
    if "properties" not in spot.properties[name] and spot.properties[name].get("type") == "object":
        return False  # its content is the user's
    spot.content[name] = chance.choice(({"value": spot.content[name]}, [[spot.content[name]]]))
    return True


def _too_shallow(spot: _Spot, chance: random.Random) -> bool:
    """Move what is in an object beside it."""
    names = [
        name
        for name, item in spot.content.items()
        if isinstance(item, dict) and any(key not in spot.properties for key in item)
    ]
    if not names:
        return False
    spot.content.update(spot.content.pop(chance.choice(names)))
    return True


_MISTAKES: Mapping[str, Callable[[_Spot, random.Random], bool]] = {
    "unknown property": _unknown,
    "misspelt property": _misspelt,
    "value of another type": _mistyped,
    "missing required property": _missing,
    "unknown word of an enumeration": _bad_word,
    "nested too deep": _too_deep,
    "not nested": _too_shallow,
}
