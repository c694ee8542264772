"""The worker process of `metrics`: searches lines for metrics with the recipe's expressions.

A regular expression holds the interpreter lock while it searches, so one that backtracks for hours
would block the agent. In this process, a timer signal stops an expression that takes too long on a
line. After a few such lines, the expression is switched off. The agent runs this module's source as
`python -c`, so it imports only the standard library.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from types import FrameType
from typing import Any

TICK_S = 0.05
# The limit of one expression on one line, in CPU time, so that a busy machine has no effect.
LINE_S = 0.5
MAX_SLOW_LINES = 3


class SlowPatternError(Exception):
    """An expression took too long on a line."""


class PatternSearch:
    """Searches lines with the expressions that are not switched off.

    Args:
        patterns: the expressions by the name of the metric.
        line_s: the CPU time limit of one expression on one line.
    """

    def __init__(self, patterns: dict[str, str], line_s: float) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._refused: dict[str, str] = {}  # invalid expressions, until the next answer
        for name, pattern in patterns.items():
            try:
                self._patterns[name] = re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as err:
                self._refused[name] = str(err)
        self._slow_lines = dict.fromkeys(patterns, 0)
        self._line_s = line_s
        self._current: tuple[int, str] | None = None  # line and name of the current search
        self._last_tick: tuple[int, str] | None = None  # the value of `_current` at the last tick
        self._ticks = 0
        self._lines = 0

    def tick(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: stop a search that takes too long."""
        del number, frame
        self._ticks = self._ticks + 1 if self._current == self._last_tick else 0
        self._last_tick = self._current
        if self._current is not None and self._ticks * TICK_S >= self._line_s:
            self._ticks = 0
            raise SlowPatternError

    def search(self, text: str) -> dict[str, Any]:
        """Return the metrics in the lines of `text`, and expressions that are now switched off.

        `refused` has invalid expressions with the reason, `stopped` those that were too slow.
        """
        found: list[tuple[str, float, int | None]] = []
        stopped: list[str] = []
        for line in text.split("\n"):
            self._lines += 1
            for name in tuple(self._patterns):
                try:
                    self._current = (self._lines, name)
                    hit = self._find(name, line)
                    self._current = None
                except SlowPatternError:
                    self._current, hit = None, None
                    if self._count_slow_line(name):
                        stopped.append(name)
                if hit is not None:
                    found.append((name, *hit))
        refused, self._refused = self._refused, {}
        return {"found": found, "stopped": stopped, "refused": refused}

    def _count_slow_line(self, name: str) -> bool:
        """Return True if the expression is now switched off."""
        self._slow_lines[name] += 1
        if self._slow_lines[name] < MAX_SLOW_LINES:
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
            return None  # the group is not a number


def main() -> None:
    """Answer each JSON line with a JSON line.

    The first line has the arguments of `PatternSearch`, and gets no answer.
    """
    search = PatternSearch(*json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGPROF, search.tick)
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(search.search(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
