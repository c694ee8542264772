"""Curves of the size of a word."""

from __future__ import annotations

import math

from markupsafe import Markup

from runner.page.charts.axes import scale_of
from runner.page.memory.points import MetricPoints, pick_shape
from runner.page.memory.run_facts import RunFacts
from runner.page.memory.run_table import RunEntry
from runner.protocol.metrics import choose_shown, format_metric

_COLUMNS = 20
_WIDTH, _HEIGHT = 80, 19


def draw_spark(series: MetricPoints | None) -> Markup:
    """Return the curve of a metric without axes; empty with fewer than two finite values."""
    if series is None:
        return Markup("")
    places = [n for n, value in enumerate(series.values) if math.isfinite(value)]
    if len(places) < 2:
        return Markup("")
    steps = [series.steps[n] for n in places]
    values = [series.values[n] for n in places]
    picked = pick_shape(steps, values, _COLUMNS, ends=False)
    xs = scale_of(steps, 1, _WIDTH - 1)
    ys = scale_of(values, _HEIGHT - 2, 2)
    path = "L".join(f"{xs(steps[n]):g} {ys(values[n]):g}" for n in picked)
    label = f"{series.name} from {format_metric(values[0])} to {format_metric(values[-1])}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<path class="curve c0" d="M{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, label, path)


def main_points(entry: RunEntry, facts: RunFacts | None) -> MetricPoints | None:
    """Return the metric of a run that lists show, or None if it is not known."""
    if facts is None:
        return None
    if entry.metric is not None:
        return facts.series.get(entry.metric)
    return facts.series.get(choose_shown(facts.series, entry.params) or "")
