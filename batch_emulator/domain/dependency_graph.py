"""The dependencies of the tasks of one job, by the key of their id.

A waiting task watches one parent that is not satisfied yet, picked at random. It is checked again
only after the end of that parent, so a completion costs as much as it changes: a task that depends
on N others is checked about log N times. Ranges stay intervals, however long they are. Thousands of
tasks may watch the same parent; `free` checks some at a time.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

_NUMBER = re.compile(r"-?[0-9]+")
_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class TaskDependencies:
    """The dependencies of a task: keys of ids, and inclusive ranges of ids that are integers."""

    ids: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


class IntegerRanges:
    """A set of integers as sorted runs without gaps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # inclusive

    def __contains__(self, number: int) -> bool:
        """Return True if the number is in the set."""
        return self.next_missing(number) != number

    def next_missing(self, number: int) -> int:
        """Return the smallest integer from `number` on that is not in the set."""
        index = bisect_right(self._starts, number) - 1
        inside = index >= 0 and number <= self._ends[index]
        return self._ends[index] + 1 if inside else number

    def add(self, number: int) -> None:
        """Add a number, and join its neighbours."""
        if number in self:
            return
        index = bisect_left(self._starts, number)
        before = index > 0 and self._ends[index - 1] == number - 1
        after = index < len(self._starts) and self._starts[index] == number + 1
        if before and after:
            self._ends[index - 1] = self._ends.pop(index)
            del self._starts[index]
        elif before:
            self._ends[index - 1] = number
        elif after:
            self._starts[index] = number
        else:
            self._starts.insert(index, number)
            self._ends.insert(index, number)

    def remove(self, number: int) -> None:
        """Remove a number, and split its run."""
        if number not in self:
            return
        index = bisect_right(self._starts, number) - 1
        start, end = self._starts[index], self._ends[index]
        rest = [(a, b) for a, b in ((start, number - 1), (number + 1, end)) if a <= b]
        self._starts[index : index + 1] = [a for a, _ in rest]
        self._ends[index : index + 1] = [b for _, b in rest]


@dataclass(slots=True, eq=False)
class _TaskGroup:
    """Tasks with exactly the same dependencies."""

    needs: TaskDependencies
    tasks: dict[str, None] = field(default_factory=dict[str, None])
    watched: str | int | None = None  # the parent that it waits for; None: to be checked


class DependencyGraph:
    """The tasks of a job that wait for others, and the tasks that satisfy dependencies."""

    def __init__(self) -> None:
        self._satisfied: set[str] = set()
        self._numbers = IntegerRanges()
        self._groups: dict[TaskDependencies, _TaskGroup] = {}
        self._group_of: dict[str, _TaskGroup] = {}
        self._watching: dict[str | int, dict[_TaskGroup, None]] = {}
        self._unchecked: dict[_TaskGroup, None] = {}  # their parent is satisfied
        self._random = random.Random(0)  # noqa: S311 - the choice does not change results

    @property
    def has_unchecked(self) -> bool:
        """Return True if `free` has something to check."""
        return bool(self._unchecked)

    @property
    def waiting(self) -> int:
        """Return the number of waiting tasks."""
        return len(self._group_of)

    def add(self, task: str, needs: TaskDependencies) -> bool:
        """Add the dependencies of a new task. Return True if it has to wait."""
        group = self._groups.get(needs)
        if group is None:
            unmet = self._unmet(needs)
            if unmet is None:
                return False
            group = self._groups[needs] = _TaskGroup(needs)
            self._watch(group, unmet)
        group.tasks[task] = None
        self._group_of[task] = group
        return True

    def forget(self, task: str) -> None:
        """Remove a waiting task that was deleted or ended."""
        group = self._group_of.pop(task, None)
        if group is not None:
            del group.tasks[task]
            if not group.tasks:
                self._drop(group)

    def satisfy(self, task: str) -> None:
        """Record a completed parent; `free` then returns the tasks that it unblocks."""
        number = _number(task)
        self._satisfied.add(task)
        groups = self._watching.pop(task, {})
        if number is not None:
            self._numbers.add(number)
            groups |= self._watching.pop(number, {})
        for group in groups:
            group.watched = None
        self._unchecked |= groups

    def free(self, limit: int) -> list[str]:
        """Return tasks that no longer wait, after checking at most `limit` tasks or groups."""
        freed: list[str] = []
        while self._unchecked and limit > 0:
            group = next(iter(self._unchecked))
            unmet = self._unmet(group.needs)
            if unmet is not None:
                del self._unchecked[group]
                self._watch(group, unmet)
                limit -= 1
                continue
            for child in list(islice(group.tasks, limit)):
                self.forget(child)
                freed.append(child)
                limit -= 1
        return freed

    def _watch(self, group: _TaskGroup, parent: str | int) -> None:
        group.watched = parent
        self._watching.setdefault(parent, {})[group] = None

    def _drop(self, group: _TaskGroup) -> None:
        del self._groups[group.needs]
        if group.watched is None:
            del self._unchecked[group]
            return
        watchers = self._watching[group.watched]
        del watchers[group]
        if not watchers:
            del self._watching[group.watched]

    def revoke(self, task: str) -> None:
        """Forget a completed parent that runs again or was deleted: tasks wait for it again."""
        if task not in self._satisfied:
            return
        self._satisfied.discard(task)
        number = _number(task)
        if number is not None and self._satisfied.isdisjoint(_spellings(number)):
            self._numbers.remove(number)

    def restore(self, satisfied: Iterable[str]) -> None:
        """Set the satisfied tasks of a job that is read from disk, before any task waits."""
        for task in satisfied:
            self.satisfy(task)

    def _unmet(self, needs: TaskDependencies) -> str | int | None:
        count = len(needs.ids)
        first = self._random.randrange(count) if count else 0
        for index in range(count):
            task = needs.ids[(first + index) % count]
            if task not in self._satisfied:
                return task
        for start, end in needs.ranges:
            for number in (self._random.randint(start, end), start):
                missing = self._numbers.next_missing(number)
                if missing <= end:
                    return missing
        return None


def _number(task: str) -> int | None:
    """Return the integer of an id, None if it is not one.

    `4`, `04` and `004` are the same member of a range (docs: task id ranges).
    """
    return int(task) if _NUMBER.fullmatch(task) else None


def _spellings(number: int) -> Iterable[str]:
    signs = ("", "-") if number == 0 else ("-",) if number < 0 else ("",)
    digits = str(abs(number))
    for sign in signs:
        for zeros in range(_LONGEST_ID - len(digits) - len(sign) + 1):
            yield f"{sign}{'0' * zeros}{digits}"
