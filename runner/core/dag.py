"""Tasks that come after tasks: their order, and a picture of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

Edges = Mapping[str, Sequence[str]]


class CyclicError(Exception):
    """Tasks that wait for one another; `path` begins and ends with the same one."""

    def __init__(self, path: Sequence[str]) -> None:
        super().__init__(" -> ".join(path))
        self.path = tuple(path)


def in_order(after: Edges) -> tuple[str, ...]:
    """Every task behind those it comes after; equals as they stand in the file.

    Raises CyclicError. Names that are no task are the caller's to find.
    """
    return tuple(name for level in levels(after) for name in level)


def levels(after: Edges) -> tuple[tuple[str, ...], ...]:
    """The same, those together that may run at the same time."""
    sorter = TopologicalSorter({name: tuple(after[name]) for name in after})
    try:
        sorter.prepare()
    except CycleError as err:
        # graphlib names each task before the one that depends on it: read it as the file does.
        raise CyclicError(list(reversed(err.args[1]))) from err
    place = {name: number for number, name in enumerate(after)}
    found: list[tuple[str, ...]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        found.append(tuple(ready))
        sorter.done(*ready)
    return tuple(found)


_NAMED = 3  # predecessors that one line of the picture names; more say nothing


def draw(after: Edges, notes: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A tree, each task once: below the last of those it comes after, which it names if several."""
    order = in_order(after)
    place = {name: number for number, name in enumerate(order)}
    children: dict[str | None, list[str]] = {}
    for name in order:
        parents = sorted(set(after[name]), key=place.__getitem__)
        children.setdefault(parents[-1] if parents else None, []).append(name)
    lines: list[str] = []
    # Explicit stack: a chain of tasks is as deep as it is long.
    stack = [(name, "", "", "") for name in reversed(children.get(None, []))]
    while stack:
        name, lead, mark, below = stack.pop()
        others = sorted(set(after[name]), key=place.__getitem__)[:-1]
        also = f"  (also after {_few(others)})" if others else ""
        note = (notes or {}).get(name, "")
        lines.append(f"{lead}{mark}{name}{f'  {note}' if note else ''}{also}")
        inner = children.get(name, [])
        for number, child in reversed(list(enumerate(inner))):
            last = number == len(inner) - 1
            stack.append((child, lead + below, "└─ " if last else "├─ ", "   " if last else "│  "))
    return tuple(lines)


def _few(names: Sequence[str]) -> str:
    """`a, b and 97 more`: the last one is named where it alone would be left."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    shown = names[: _NAMED - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"
