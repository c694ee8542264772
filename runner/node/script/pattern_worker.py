"""Searches lines for metrics, in a process of its own: the program that `patterns` starts.

Python's regular expressions hold the interpreter while they search, so that one which backtracks
for hours would hold a thread's whole process. They do look at signals: an expression that takes
too long on a line is stopped, and after a few such lines no longer used. Imports nothing of ours.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from types import FrameType
from typing import Any

TICK_S = 0.05
# Processor time of one expression on one line, so that a busy machine stops none.
LINE_S = 0.5
STRIKES = 3


class SlowPatternError(Exception):
    """An expression took too long on a line."""


class PatternSearch:
    """The expressions that are still used."""

    def __init__(self, patterns: dict[str, str], line_s: float) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._refused: dict[str, str] = {}  # until it is told
        for name, pattern in patterns.items():
            try:
                self._patterns[name] = re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as err:
                self._refused[name] = str(err)
        self._strikes = dict.fromkeys(patterns, 0)
        self._line_s = line_s
        self._now: tuple[int, str] | None = None  # what is being searched
        self._then: tuple[int, str] | None = None  # what was, a tick ago
        self._ticks = 0
        self._lines = 0

    def tick(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        del number, frame
        self._ticks = self._ticks + 1 if self._now == self._then else 0
        self._then = self._now
        if self._now is not None and self._ticks * TICK_S >= self._line_s:
            self._ticks = 0
            raise SlowPatternError

    def search(self, text: str) -> dict[str, Any]:
        """All metrics of some lines, and what has become of the expressions."""
        found: list[tuple[str, float, int | None]] = []
        stopped: list[str] = []
        for line in text.split("\n"):
            self._lines += 1
            for name in tuple(self._patterns):
                try:
                    self._now = (self._lines, name)
                    hit = self._find(name, line)
                    self._now = None
                except SlowPatternError:
                    self._now, hit = None, None
                    if self._is_out(name):
                        stopped.append(name)
                if hit is not None:
                    found.append((name, *hit))
        refused, self._refused = self._refused, {}
        return {"found": found, "stopped": stopped, "refused": refused}

    def _is_out(self, name: str) -> bool:
        self._strikes[name] += 1
        if self._strikes[name] < STRIKES:
            return False
        del self._patterns[name]
        return True

    def _find(self, name: str, line: str) -> tuple[float, int | None] | None:
        pattern = self._patterns[name]
        match = pattern.search(line)
        if match is None:
            return None
        try:
            groups = match.groupdict()
            value = float(groups.get("value") or match[1 if pattern.groups else 0])
            return value, int(groups["step"]) if groups.get("step") else None
        except (TypeError, ValueError):
            return None  # the group matched something that is no number


def main() -> None:
    """A JSON line in, a JSON line out; the first one in holds the arguments of `Search`."""
    search = PatternSearch(*json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGPROF, search.tick)
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(search.search(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
