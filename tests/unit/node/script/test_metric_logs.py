"""Recall and false names of the metrics that are read from logs of training programs.

The logs are in the style of published programs. Those in `held_out` were written before, and are of
other programs than, those in `tuned`, with which the search was developed. Beside a log, a file has
the expected values: `NAME = VALUE …`, with alternatives as `NAME|NAME`; the values of a line with
`?` at its end may be found or not.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.node.script.metrics import MetricLog
from runner.node.script.printed import PrintedMetrics
from runner.node.script.shipper import LineQueue

LOGS = Path(__file__).parent / "metric_logs"
MIN_RECALL = 0.90
MAX_FALSE_NAMES = 0.02


@dataclass(frozen=True)
class Expected:
    """A line of a file of expected values."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    is_optional: bool


@dataclass
class Counts:
    """What was found in logs, in numbers and by log."""

    values: int = 0
    found_values: int = 0
    names: int = 0
    false_names: int = 0
    false_values: int = 0
    problems: list[str] = field(default_factory=list[str])

    @property
    def recall(self) -> float:
        return self.found_values / self.values

    @property
    def false_share(self) -> float:
        return self.false_names / self.names


def read_log(path: Path) -> dict[str, list[str]]:
    queue = LineQueue()
    printed = PrintedMetrics(MetricLog(1, queue))
    printed.feed(path.read_bytes())
    printed.finish()
    found: dict[str, list[str]] = {}
    for line in queue.peek().splitlines():
        point = json.loads(line)
        found.setdefault(point["name"], []).append(spelled(point["value"]))
    return found


def spelled(value: object) -> str:
    """Return one text for each number."""
    return f"{float(str(value)):.6g}"


def read_expected(path: Path) -> Iterator[Expected]:
    for line in path.read_text().splitlines():
        names, _, values = line.partition(" = ")
        texts = values.split()
        is_optional = texts[-1] == "?"
        numbers = tuple(spelled(text) for text in texts if text != "?")
        yield Expected(tuple(names.split("|")), numbers, is_optional)


def count(half: str) -> Counts:
    counts = Counts()
    for log in sorted((LOGS / half).glob("*.log")):
        found = read_log(log)
        counts.names += len(found)
        known: set[str] = set()
        for expected in read_expected(log.with_suffix(".expected")):
            known.update(expected.names)
            left = Counter(value for name in expected.names for value in found.get(name, ()))
            counts.false_values += sum((left - Counter(expected.values)).values())
            if expected.is_optional:
                continue
            hits = sum((left & Counter(expected.values)).values())
            counts.values += len(expected.values)
            counts.found_values += hits
            if hits < len(expected.values):
                counts.problems.append(f"{log.stem}: {expected.names} has {sorted(left)}")
        false = sorted(found.keys() - known)
        counts.false_names += len(false)
        counts.problems += [f"{log.stem}: {name} is no metric: {found[name]}" for name in false]
    return counts


@pytest.mark.feature(46)
@pytest.mark.parametrize("half", ["tuned", "held_out"])
def test_metrics_of_published_programs_are_found_in_logs(half: str) -> None:
    counts = count(half)
    sys.stdout.write(
        f"{half}: {len(list((LOGS / half).glob('*.log')))} logs, recall {counts.recall:.1%} of "
        f"{counts.values} values, {counts.false_names} of {counts.names} names are false "
        f"({counts.false_share:.1%}), {counts.false_values} values beside those expected\n"
    )
    details = "\n".join(counts.problems) if half == "tuned" else "see the counts"
    assert counts.recall >= MIN_RECALL, details
    assert counts.false_share <= MAX_FALSE_NAMES, details
