"""`runner metrics`: metrics of runs as tables, terminal charts and pictures."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.options import Invocation, RunArgument, on_target
from runner.cli.ui.output import Output, OutputFormat
from runner.cli.ui.terminal import is_terminal
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.core.curves import Curve
    from runner.flows.runs.metrics import MetricComparison

_COLUMNS = ("metric", "run", "last", "step", "best", "at_step", "points")
_POINT_COLUMNS = ("run_id", "metric", "step", "value")
_MARKERS = "*o+x#@%&"
_CHART_SIZE = 72, 10  # columns (without a terminal) and rows, with the frame
_ASCII = str.maketrans("─│┌┐└┘┤┬", "-|++++|+")
_MANY = 6  # charts at most

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Only these metrics.", show_default=False)
]
CompareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        "-c",
        metavar="RUN",
        help="Run to compare with; can be repeated.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
LastOption = Annotated[
    int | None, typer.Option("--last", min=1, help="Only the last steps, with all values.")
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="Write a chart to FILE.svg or FILE.html.", show_default=False),
]
ChartOption = Annotated[
    bool | None,
    typer.Option("--chart/--no-chart", help="Draw charts in text.", show_default="on a terminal"),
]


@on_target
def metrics(
    call: Invocation,
    run: RunArgument = "@last",
    names: NamesArgument = None,
    compare: CompareOption = None,
    last: LastOption = None,
    plot: PlotOption = None,
    chart: ChartOption = None,
) -> None:
    """Show the last and best values of a run's metrics, and their curves, or compare runs."""
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.metrics import compare_metrics

    out = call.out
    kind = _plot_kind(plot)
    connection = call.connect()
    found = [find_run(connection, reference) for reference in (run, *(compare or ()))]
    records = list({record.run_id: record for record in found}.values())
    if len(records) < len(found):
        out.warning("a run was named more than once; it is shown once")
    compared = compare_metrics(connection, records, names or (), last)
    if plot is not None:
        _write_plot(plot, kind, compared)
    if out.format is OutputFormat.JSON:
        out.record(_document(compared))
    elif out.format is OutputFormat.TSV:
        out.rows(_points(compared), _POINT_COLUMNS)
    else:
        drawn = sys.stdout.isatty() if chart is None else chart
        _show(out, compared, drawn=drawn, points=last is not None)
    if plot is not None:
        out.note(f"wrote {plot}")


def _document(compared: MetricComparison) -> dict[str, Any]:
    from runner.core.curves import align

    aligned: dict[str, Any] = {}
    for name in compared.names:
        rows = align(compared.curves(name))
        aligned[name] = {
            "steps": [step for step, _ in rows],
            "values": {
                run.record.run_id: [values[n] for _, values in rows]
                for n, run in enumerate(compared.runs)
            },
        }
    return {
        "runs": [
            {
                "run_id": run.record.run_id,
                "params": dict(run.record.params),
                "metrics": {
                    s.name: {
                        "last": s.last, "last_step": s.last_step, "best": s.best,
                        "best_step": s.best_step, "count": s.count,
                    }
                    for s in run.summaries
                },
            }
            for run in compared.runs
        ],
        "differing_params": {name: list(values) for name, values in compared.params.items()},
        "metrics": aligned,
    }  # fmt: skip


def _points(compared: MetricComparison) -> list[dict[str, Any]]:
    return [
        {"run_id": curve.run_id, "metric": name, "step": step, "value": value}
        for name in compared.names
        for curve in compared.curves(name)
        for step, value in curve.points
    ]


def _show(out: Output, compared: MetricComparison, *, drawn: bool, points: bool) -> None:
    many = len(compared.runs) > 1
    rows = _summary_rows(compared)
    columns = _COLUMNS if many else tuple(name for name in _COLUMNS if name != "run")
    out.rows(rows, columns, empty=f"{compared.runs[0].record.run_id} has no metrics")
    if many:
        _show_params(out, compared)
    if drawn:
        _draw(out, compared)
    if points:
        _show_points(out, compared)


def _summary_rows(compared: MetricComparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": name,
            "run": run.record.run_id,
            "last": format_metric(s.last),
            "step": s.last_step,
            "best": "none" if s.best is None else format_metric(s.best),
            "at_step": s.best_step,
            "points": s.count,
        }
        for name in compared.names
        for run in compared.runs
        for s in run.summaries
        if s.name == name
    ]


def _show_params(out: Output, compared: MetricComparison) -> None:
    ids = [run.record.run_id for run in compared.runs]
    out.text()
    if not compared.params:
        out.text("the parameters are equal")
        return
    rows: list[dict[str, Any]] = [
        {"parameter": name, **{run_id: _value(v) for run_id, v in zip(ids, values, strict=True)}}
        for name, values in compared.params.items()
    ]
    out.rows(rows, ("parameter", *ids))


def _value(value: object) -> str:
    return "-" if value is None else str(value)


def _draw(out: Output, compared: MetricComparison) -> None:
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    for name in compared.names[:_MANY]:
        curves = compared.curves(name)
        lines = draw_chart(curves, is_utf=is_utf)
        if lines:
            out.text()
            out.text(name)
        for line in lines:
            out.text(line)
        left_out = sum(len(curve.points) - len(curve.finite) for curve in curves)
        if left_out:
            out.text(f"{left_out} values are NaN or infinite")
    if len(compared.names) > _MANY:
        out.note(f"{len(compared.names) - _MANY} more metrics; add names to draw others")
    if len(compared.runs) > 1:
        out.text()
        for n, run in enumerate(compared.runs):
            out.text(f"{_MARKERS[n % len(_MARKERS)]} {run.record.run_id}")


def draw_chart(curves: Sequence[Curve], *, is_utf: bool = True) -> list[str]:
    """Return a chart of all finite values as lines of text; none if there are no finite values.

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
    # Positions from 0 to 1 instead of values: plotext cannot draw the largest and smallest floats.
    for ticks, limits, ends, texts in (
        (plot.xticks, plot.xlim, extent.steps, map(str, extent.steps)),
        (plot.yticks, plot.ylim, extent.values, map(format_metric, extent.values)),
    ):
        limits(0, 1)
        ticks([0.5] if ends[0] == ends[1] else [0, 1], list(texts)[: 1 + (ends[0] != ends[1])])
    text = plot.uncolorize(plot.build())
    return [line.rstrip() for line in (text if is_utf else text.translate(_ASCII)).splitlines()]


def _show_points(out: Output, compared: MetricComparison) -> None:
    from runner.core.curves import align

    ids = [run.record.run_id for run in compared.runs]
    for name in compared.names:
        rows: list[dict[str, Any]] = [
            {
                "step": step,
                **{
                    i: None if v is None else format_metric(v)
                    for i, v in zip(ids, values, strict=True)
                },
            }
            for step, values in align(compared.curves(name))
        ]
        out.text()
        out.text(name)
        out.rows(rows, ("step", *ids))


def _plot_kind(plot: Path | None) -> str:
    """Return the suffix of the file, checked before any request."""
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


def _write_plot(plot: Path, kind: str, compared: MetricComparison) -> None:
    from runner.core.curves import draw_html, draw_svg

    panels = {name: compared.curves(name) for name in compared.names}
    title = " and ".join(run.record.run_id for run in compared.runs)
    text = draw_svg(panels) if kind == ".svg" else draw_html(title, panels)
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
        exit_code=ExitCode.PREFLIGHT,
    )
