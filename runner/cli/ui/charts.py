"""Curves as charts in the terminal, and as SVG and HTML files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.ui.terminal import is_terminal
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.cli.ui.output import Output
    from runner.core.curves import Curve

_MARKERS = "*o+x#@%&"
_CHART_SIZE = 72, 10  # columns (without a terminal) and rows, including the frame
_ASCII = str.maketrans("─│┌┐└┘┤┬", "-|++++|+")
_MAX_CHARTS = 6  # maximum number of charts


def show_charts(out: Output, panels: Mapping[str, Sequence[Curve]], legend: Sequence[str]) -> None:
    """Draw a chart of each panel in text, and name the curves if there are several.

    Args:
        out: Where to draw.
        panels: Curves by title. All panels have curves of the same runs in the same order.
        legend: Names of the curves.
    """
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    for name, curves in list(panels.items())[:_MAX_CHARTS]:
        lines = draw_chart(curves, is_utf=is_utf)
        if lines:
            out.text()
            out.text(name)
        for line in lines:
            out.text(line)
        left_out = sum(len(c.points) - len(c.finite) + c.left_out for c in curves)
        if left_out:
            out.text(f"{left_out} values are NaN or infinite")
    if len(panels) > _MAX_CHARTS:
        out.note(f"{len(panels) - _MAX_CHARTS} more metrics; add names to draw others")
    if len(legend) > 1:
        out.text()
        for n, name in enumerate(legend):
            out.text(f"{_MARKERS[n % len(_MARKERS)]} {name}")


def draw_chart(curves: Sequence[Curve], *, is_utf: bool = True) -> list[str]:
    """Return a chart of all finite values as lines of text; empty without finite values.

    A single curve is drawn in Braille patterns if the terminal can show them. Several curves have
    one of `_MARKERS` each, in order.
    """
    import plotext

    from runner.core.curves import Extent

    points = [point for curve in curves for point in curve.finite]
    if not points:
        return []
    extent = Extent(points)
    plot: Any = plotext  # without types
    plot.clear_figure()
    plot.limit_size(False, False)
    columns, rows = _CHART_SIZE
    plot.plotsize(shutil.get_terminal_size().columns if is_terminal(sys.stdout) else columns, rows)
    for number, curve in enumerate(curves):
        marker = "braille" if is_utf and len(curves) == 1 else _MARKERS[number % len(_MARKERS)]
        xs = [extent.x(step) for step, _ in curve.finite]
        plot.plot(xs, [extent.y(value) for _, value in curve.finite], marker=marker)
    # Positions from 0 to 1, because plotext cannot draw the largest and smallest floats.
    for ticks, limits, ends, texts in (
        (plot.xticks, plot.xlim, extent.steps, map(str, extent.steps)),
        (plot.yticks, plot.ylim, extent.values, map(format_metric, extent.values)),
    ):
        limits(0, 1)
        ticks([0.5] if ends[0] == ends[1] else [0, 1], list(texts)[: 1 + (ends[0] != ends[1])])
    text = plot.uncolorize(plot.build())
    return [line.rstrip() for line in (text if is_utf else text.translate(_ASCII)).splitlines()]


def chart_kind(plot: Path | None) -> str:
    """Return the suffix of the chart file. Raise RunnerError if it is not supported."""
    if plot is None:
        return ""
    kind = plot.suffix.lower()
    if kind not in (".svg", ".html") or plot.is_dir():
        folder = not plot.name or plot.is_dir()
        what = "is a folder" if folder else "unknown format"
        raise RunnerError(
            "R-PLOT-FORMAT",
            f"invalid --plot '{plot}': {what}",
            why="the formats are .svg and .html",
            fix=f"--plot {plot / 'metrics.svg' if folder else plot.with_suffix('.svg')}",
        )
    if not plot.parent.is_dir():
        raise _not_written(plot, f"folder {plot.parent} does not exist", "create it")
    return kind


def write_chart(
    plot: Path, kind: str, title: str, panels: Mapping[str, Sequence[Curve]], axis: str = "step"
) -> None:
    """Write the panels to a file whose suffix `chart_kind` returned. Raise R-PLOT-WRITE."""
    from runner.core.curves import draw_html, draw_svg

    write_plot(plot, draw_svg(panels, axis) if kind == ".svg" else draw_html(title, panels, axis))


def write_plot(plot: Path, text: str) -> None:
    """Write the text of a chart. Raise R-PLOT-WRITE."""
    try:
        plot.write_text(text, encoding="utf-8")
    except OSError as err:
        raise _not_written(plot, err.strerror or str(err), "make it writable") from err


def _not_written(plot: Path, why: str, fix: str) -> RunnerError:
    return RunnerError(
        "R-PLOT-WRITE",
        f"cannot write {plot}",
        why=why,
        fix=f"{fix}, or use another file with --plot",
    )
