"""Charts: scales, ticks, thinned curves, and SVG that is well-formed for any text and value."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from runner.core.curves import Curve
from runner.page.charts.axes import Scale, scale_of
from runner.page.charts.gantt import Bar, draw_gantt
from runner.page.charts.lines import draw_lines, thinned
from runner.page.charts.sparklines import draw_spark
from runner.page.memory.points import MetricPoints

HOSTILE = "<script>alert(1)</script>\"'&"


def parsed(svg: str) -> ET.Element:
    """Return the root of an SVG element; raises for text that is not XML."""
    return ET.fromstring(svg)


@pytest.mark.parametrize(
    ("low", "high", "count", "ticks"),
    [
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
        (0, 100, 4, [0, 25, 50, 75, 100]),
        (3, 3, 4, [3]),
        (-0.3, 0.3, 3, [-0.2, 0, 0.2]),
        (0, math.inf, 3, [0]),
    ],
)
def test_ticks_are_round_and_within_the_scale(
    low: float, high: float, count: int, ticks: list[float]
) -> None:
    assert Scale(low, high, 0, 1).ticks(count) == ticks


def test_scale_of_huge_values_has_finite_positions() -> None:
    scale = scale_of([-1.7e308, 1.7e308], 0, 100)
    assert [scale(-1.7e308), scale(0), scale(1.7e308)] == [0, 50, 100]


def test_thinned_curve_keeps_peaks_and_ends() -> None:
    points = [(float(n), 0.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    found = thinned(points, 400)
    assert len(found) <= 1600
    assert (54_321.0, 9.0) in found
    assert (found[0], found[-1]) == (points[0], points[-1])


def test_curve_has_gaps_where_values_are_not_finite() -> None:
    curve = Curve("r", "loss", ((1, 1.0), (2, math.inf), (3, 2.0), (4, 1.5)))
    root = parsed(draw_lines([curve], "loss"))
    (path,) = [each for each in root if "curve" in each.get("class", "")]
    assert path.get("d", "").count("M") == 2
    assert "nan" not in path.get("d", "").lower()


def test_chart_without_finite_values_says_so() -> None:
    assert "no finite values" in draw_lines([Curve("r", "loss", ((1, math.nan),))], "loss")


def test_names_of_others_are_text_in_every_chart() -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    bar = Bar(HOSTILE, "useful", at, at + timedelta(hours=1), HOSTILE, "/runs/x", "command")
    curve = Curve(HOSTILE, HOSTILE, ((1, 1.0), (2, 2.0)))
    for svg in (
        draw_lines([curve, curve], HOSTILE),
        draw_gantt([bar], HOSTILE),
    ):
        root = parsed(svg)
        assert root.get("aria-label") == HOSTILE
        assert not [each for each in root.iter() if each.tag == "script"]


def test_sparkline_names_its_metric_as_text() -> None:
    series = MetricPoints(HOSTILE, (1, 2), (1.0, 3.0), (0.0, 0.0), 2, 3.0, 2, 3.0, 2)
    assert parsed(draw_spark(series)).get("aria-label") == f"{HOSTILE} from 1.0000 to 3.0000"


def test_gantt_of_two_months_has_few_ticks() -> None:
    at = datetime(2026, 10, 1, tzinfo=UTC)
    bars = [Bar("a", "wait", at, at + timedelta(days=60), "")]
    assert 2 <= draw_gantt(bars, "x").count('class="grid"') <= 8


def test_no_chart_has_an_inline_style_or_script() -> None:
    """The policy of the page forbids both."""
    at = datetime(2026, 11, 29, tzinfo=UTC)
    svg = draw_gantt([Bar("a", "wait", at, at + timedelta(seconds=1), "t")], "x")
    svg += draw_lines([Curve("r", "loss", ((1, 1.0),))], "x")
    assert "style=" not in svg
    assert "onload" not in svg
