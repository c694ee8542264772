"""One pass over the values of a metric finds the same as all values in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core import point_summary
from runner.core.point_summary import MetricPass, NewestSteps, Sketch, merge_parts
from runner.protocol.metrics import MetricPoint, summarize_metrics
from tests.unit.core.test_curves import to_curves

_VALUES = st.floats(width=32) | st.integers(-3, 3).map(float)
_POINTS = st.lists(st.tuples(st.none() | st.integers(-5, 30), _VALUES), min_size=1, max_size=60)


def points_of(values: Sequence[tuple[int | None, float]]) -> list[MetricPoint]:
    return [MetricPoint("", 1, step, "loss", value) for step, value in values]


def passed(values: Sequence[tuple[int | None, float]], last: int | None = None) -> MetricPass:
    found = MetricPass("loss", None, last)
    for position, (step, value) in enumerate(values):
        found.add(step, value, position)
    return found


@given(_POINTS)
def test_summary_is_that_of_all_values(values: list[tuple[int | None, float]]) -> None:
    assert repr([passed(values).summary()]) == repr(summarize_metrics(points_of(values), {}))


@given(_POINTS, st.integers(1, 9))
def test_newest_steps_are_those_of_the_curve(
    values: list[tuple[int | None, float]], last: int
) -> None:
    (curve,) = to_curves("r", points_of(values), last)
    newest = passed(values, last).newest
    assert newest is not None
    assert repr(newest.points()) == repr(curve.points)


@given(_POINTS)
def test_merged_parts_are_the_curve(values: list[tuple[int | None, float]]) -> None:
    """The parts are found by the pass, and cut here as the reader of the file does."""
    found = passed(values)
    (curve,) = to_curves("r", points_of(values))
    ends = [*(part.begin for part in found.parts[1:]), len(values)]
    parts: list[list[tuple[int, float]]] = []
    for part, end in zip(found.parts, ends, strict=True):
        top, steps = part.top, list[tuple[int, float]]()
        for step, value in values[part.begin : end]:
            at = point_summary.next_step(top) if step is None else step
            top = at if top is None else max(top, at)
            steps.append((at, value))
        parts.append(steps)
    assert repr(tuple(merge_parts(parts))) == repr(curve.points)


@given(_POINTS)
def test_sketch_of_few_values_has_their_extremes(values: list[tuple[int | None, float]]) -> None:
    found = passed(sorted(values, key=lambda each: each[0] or 0))
    points, left_out = found.sketch()
    (curve,) = to_curves("r", points_of(sorted(values, key=lambda each: each[0] or 0)))
    finite = [value for _, value in curve.finite]
    assert [step for step, _ in points] == sorted(step for step, _ in points)
    if finite and not left_out:
        assert {step for step, _ in points} <= {step for step, _ in curve.points}


def test_sketch_keeps_peaks_of_many_values_in_few_buckets() -> None:
    sketch = Sketch()
    for step in range(300_000):
        sketch.add(step, 5.0 if step == 123_456 else -7.0 if step == 200_001 else math.sin(step))
    points = list(sketch.points())
    assert len(points) <= 2 * 2048
    assert (123_456, 5.0) in points
    assert (200_001, -7.0) in points
    assert points == sorted(points)


def test_steps_without_an_order_are_sketched_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_summary, "MOST_PARTS", 4)
    found = passed([(step * 7919 % 1009, float(step)) for step in range(1009)])
    assert found.is_unordered
    assert len(found.sketch()[0]) == 1009


def test_later_attempt_replaces_the_steps_that_it_repeats_in_a_sketch() -> None:
    found = passed([*((n, 1.0) for n in range(10)), *((n, 2.0) for n in range(5, 8))])
    assert dict(found.sketch()[0]) == {
        **dict.fromkeys(range(5), 1.0), 5: 2.0, 6: 2.0, 7: 2.0, 8: 1.0, 9: 1.0,
    }  # fmt: skip


def test_values_that_cannot_be_drawn_are_counted() -> None:
    found = passed([(1, math.nan), (2, 1.0), (3, math.inf)])
    assert found.sketch() == (((2, 1.0),), 2)
    assert found.summary().best == 1.0


def test_newest_step_that_is_reported_again_has_the_later_value() -> None:
    newest = NewestSteps(2)
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 4.0), (1, 5.0)):
        newest.add(step, value)
    assert newest.points() == ((2, 4.0), (3, 3.0))
