"""Curves of metrics: counted values, alignment of runs, and drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.etree import ElementTree

import pytest

from runner.core.curves import Curve, GrowingCurves, align, differing, draw_html, draw_svg
from runner.protocol.metrics import MetricPoint, summarize_metrics

_TEXT, _LINE = "{http://www.w3.org/2000/svg}text", "{http://www.w3.org/2000/svg}polyline"


def point(name: str, value: float, step: int | None, attempt: int = 1) -> MetricPoint:
    return MetricPoint("", attempt, step, name, value)


def to_curves(run_id: str, points: Iterable[MetricPoint], last: int | None = None) -> list[Curve]:
    """Return the curves of values in the order of their report."""
    found = GrowingCurves()
    for each in points:
        found.add(each)
    return found.curves(run_id, last)


def test_later_value_of_a_repeated_step_counts() -> None:
    points = [point("loss", 3, 1), point("loss", 2, 2), point("loss", 2.5, 2, 2)]
    (curve,) = to_curves("a", points)
    assert curve.points == ((1, 3), (2, 2.5))


def test_values_without_a_step_are_counted() -> None:
    (curve,) = to_curves("a", [point("loss", value, None) for value in (3, 2, 1)])
    assert curve.points == ((1, 3), (2, 2), (3, 1))


def test_last_keeps_that_many_steps_of_each_metric() -> None:
    points = [point(name, step, step) for step in range(10) for name in ("a", "b")]
    assert [c.points for c in to_curves("r", points, 2)] == [((8, 8), (9, 9))] * 2


def test_runs_are_aligned_by_step() -> None:
    one, two = Curve("one", "loss", ((1, 1.0), (3, 3.0))), Curve("two", "loss", ((3, 30.0),))
    assert align([one, two]) == [(1, (1.0, None)), (3, (3.0, 30.0))]


def test_parameters_differ_by_value_or_type() -> None:
    found = differing([{"lr": 0.1, "epochs": 1, "seed": 1}, {"lr": 0.2, "epochs": 1, "seed": True}])
    assert found == {"lr": (0.1, 0.2), "seed": (1, True)}
    assert differing([{"a": 1}, {}]) == {"a": (1, None)}
    assert differing([{"batch-size": 8, "lr": 0.1}, {"batch_size": "8", "lr": "1e-1"}]) == {}
    assert differing([{"batch-size": 8}, {"batch_size": 16}]) == {"batch-size": (8, 16)}


def test_not_a_number_is_last_but_never_best() -> None:
    points = [point("acc", 0.5, 1), point("acc", math.inf, 2), point("acc", math.nan, 3)]
    (summary,) = summarize_metrics(points, {})
    assert math.isnan(summary.last)
    assert (summary.last_step, summary.best, summary.best_step) == (3, 0.5, 1)


@pytest.mark.parametrize(
    "values",
    [
        *((math.nan, math.inf), (), (1e308, -1e308), (5.0,), (math.nan, 1.0), (1e-320, 0.0)),
        *((1e300, 1.0), (1.0, 1.0 + 1e-15), (-3.0, -2.5), (0.0, 1e-299)),
    ],
)
def test_pictures_are_drawn_for_all_values(values: tuple[float, ...]) -> None:
    curve = Curve("run <&>", "loss <&>", tuple(enumerate(values)))
    finite = sum(map(math.isfinite, values))
    svg = draw_svg({"loss <&>": [curve], "other": [Curve("run <&>", "other", ())]})
    root = ElementTree.fromstring(svg)
    assert "nan" not in svg.replace("finite", "")
    drawn = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(drawn) == (1 if finite else 0)
    assert "&lt;&amp;&gt;" in draw_html("run <&>", {"loss <&>": [curve]})


def test_picture_of_a_metric_with_control_characters_is_xml() -> None:
    svg = draw_svg({"a\x00\x1b\n<": [Curve("run", "a", ((1, 2.0),))]})
    assert "\ufffd" in "".join(ElementTree.fromstring(svg).itertext())


def test_axes_of_the_picture_have_round_values() -> None:
    curve = Curve("a", "loss", ((3, 0.2343), (987, 1.5088)))
    words = [text.text for text in ElementTree.fromstring(draw_svg({"loss": [curve]})).iter(_TEXT)]
    assert words[:5] == ["loss", "a", "0.5", "1", "1.5"]
    assert words[5:] == ["200", "400", "600", "800", "step"]


def test_steps_of_a_short_run_are_whole_numbers() -> None:
    curve = Curve("a", "loss", ((1, 0.0), (3, 4.0)))
    words = [text.text for text in ElementTree.fromstring(draw_svg({"loss": [curve]})).iter(_TEXT)]
    assert words[-4:] == ["1", "2", "3", "step"]


def test_ninth_run_has_another_line_than_the_first() -> None:
    curves = [Curve(f"r{n}", "loss", ((1, 0.0), (2, float(n)))) for n in range(17)]
    lines = ElementTree.fromstring(draw_svg({"loss": curves})).iter(_LINE)
    drawn = {(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}
    assert len(drawn) == len(curves)
