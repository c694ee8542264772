"""Metrics as curves: one value a step, several runs aligned by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.core.metrics import MetricPoint


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run: (step, value), by step; values may be NaN or infinite."""

    run_id: str
    name: str
    points: tuple[tuple[int, float], ...]

    @property
    def finite(self) -> tuple[tuple[int, float], ...]:
        """What can be drawn."""
        return tuple(point for point in self.points if math.isfinite(point[1]))


def to_curves(run_id: str, points: Iterable[MetricPoint], last: int | None = None) -> list[Curve]:
    """Curves in order of first appearance; `last` keeps so many steps of each.

    Of a step that was reported twice, as after an eviction, the later value counts. Values without
    a step are counted, from 1.
    """
    values: dict[str, dict[int, float]] = {}
    for point in points:
        seen = values.setdefault(point.name, {})
        seen[_step(point, seen)] = point.value
    return [
        Curve(run_id, name, tuple(sorted(seen.items()))[-last if last else 0 :])
        for name, seen in values.items()
    ]


def align(curves: Sequence[Curve]) -> list[tuple[int, tuple[float | None, ...]]]:
    """One row for every step of any curve, with the value of each; None where it has none."""
    by_step = [dict(curve.points) for curve in curves]
    steps = {step for values in by_step for step in values}
    return [(step, tuple(values.get(step) for values in by_step)) for step in sorted(steps)]


def differing(params: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Parameters that are not the same in all runs: a value for each, None where it has none."""
    names = list(dict.fromkeys(name for each in params for name in each))
    found = {name: tuple(each.get(name) for each in params) for name in names}
    return {
        name: values
        for name, values in found.items()
        if any(value != values[0] or type(value) is not type(values[0]) for value in values)
    }


def _step(point: MetricPoint, seen: Mapping[int, float]) -> int:
    return max(seen, default=0) + 1 if point.step is None else point.step
