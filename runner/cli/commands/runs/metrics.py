"""`runner metrics`: metrics of runs as tables, terminal charts and image files."""

from __future__ import annotations

import heapq
import json
import sys
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.options import ChartOption, Invocation, PlotOption, RunArgument, on_target
from runner.cli.ui.charts import chart_kind, show_charts, write_chart
from runner.cli.ui.output import Output, OutputFormat
from runner.protocol.metrics import format_metric, json_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from runner.azure.auth.credentials import Connection
    from runner.core.curves import Curve
    from runner.flows.runs.metrics import MetricComparison, RunMetrics

_COLUMNS = ("metric", "run", "last", "step", "best", "at_step", "points")
_EXACT_POINTS = 100_000  # number of values up to which all are held in memory
_CHUNK = 10_000
_POINT_COLUMNS = ("run_id", "metric", "step", "value")

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Only these metrics.")
]
CompareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        "-c",
        metavar="RUN",
        help="Run to compare with; can be repeated.",
        autocompletion=complete_run,
    ),
]
LastOption = Annotated[
    int | None,
    typer.Option("--last", min=1, metavar="N", help="Print the values of the last N steps."),
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
    kind = chart_kind(plot)
    connection = call.connect()
    found = [find_run(connection, reference) for reference in (run, *(compare or ()))]
    specs = list({spec.run_id: spec for spec in found}.values())
    if len(specs) < len(found):
        out.warning("a run was given more than once; it is shown once")
    compared = compare_metrics(connection, specs, names or (), last, exact_points=_EXACT_POINTS)
    if plot is not None:
        title = " and ".join(run.spec.run_id for run in compared.runs)
        write_chart(plot, kind, title, _panels(compared))
    is_long = any(run.passes for run in compared.runs)
    if out.format is OutputFormat.JSON and is_long:
        out.pieces(_long_document(connection, compared))
    elif out.format is OutputFormat.JSON:
        from runner.views.runs import metrics_document

        out.record(metrics_document(compared))
    elif out.format is OutputFormat.TSV:
        out.rows(_points(connection, compared), _POINT_COLUMNS)
    else:
        drawn = sys.stdout.isatty() if chart is None else chart
        _show(out, compared, drawn=drawn, points=last is not None)
    if plot is not None:
        out.note(f"wrote {plot}")


def _long_document(connection: Connection, compared: MetricComparison) -> Iterator[str]:
    """Yield the same document in pieces, for which the curves are read once for each list."""
    from runner.views.runs import metrics_head

    head = json.dumps(metrics_head(compared), ensure_ascii=False, default=str)
    yield f'{head[:-1]}, "metrics": {{'
    for number, name in enumerate(compared.names):
        yield f'{", " if number else ""}{json.dumps(name, ensure_ascii=False)}: {{"steps": '
        yield from _array(step for step, _ in _aligned(connection, compared, name))
        yield ', "values": {'
        for n, run in enumerate(compared.runs):
            yield f"{', ' if n else ''}{json.dumps(run.spec.run_id)}: "
            values = (found[n] for _, found in _aligned(connection, compared, name))
            yield from _array(None if value is None else json_value(value) for value in values)
        yield "}}"
    yield "}}\n"


def _array(values: Iterator[float | str | None]) -> Iterator[str]:
    start = "["
    while chunk := list(islice(values, _CHUNK)):
        yield start + json.dumps(chunk)[1:-1]
        start = ", "
    yield "[]" if start == "[" else "]"


def _aligned(
    connection: Connection, compared: MetricComparison, name: str
) -> Iterator[tuple[int, list[float | None]]]:
    """Yield each step of any run, with the value of each run or None."""
    from runner.flows.runs.metrics import iterate_curve

    def numbered(n: int, run: RunMetrics) -> Iterator[tuple[int, int, float]]:
        return ((step, n, value) for step, value in iterate_curve(connection, run, name))

    merged = heapq.merge(*(numbered(n, run) for n, run in enumerate(compared.runs)))
    for step, found in groupby(merged, key=lambda each: each[0]):
        values: list[float | None] = [None] * len(compared.runs)
        for _, n, value in found:
            values[n] = value
        yield step, values


def _points(connection: Connection, compared: MetricComparison) -> Iterator[dict[str, Any]]:
    from runner.flows.runs.metrics import iterate_curve

    for name in compared.names:
        for run in compared.runs:
            for step, value in iterate_curve(connection, run, name):
                yield {"run_id": run.spec.run_id, "metric": name, "step": step, "value": value}


def _show(out: Output, compared: MetricComparison, *, drawn: bool, points: bool) -> None:
    many = len(compared.runs) > 1
    rows = _summary_rows(compared)
    columns = _COLUMNS if many else tuple(name for name in _COLUMNS if name != "run")
    out.rows(rows, columns, empty=f"{compared.runs[0].spec.run_id} has no metrics")
    if many:
        _show_params(out, compared)
    if drawn:
        show_charts(out, _panels(compared), [run.spec.run_id for run in compared.runs])
    if points:
        _show_points(out, compared)


def _summary_rows(compared: MetricComparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": name,
            "run": run.spec.run_id,
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
    ids = [run.spec.run_id for run in compared.runs]
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


def _panels(compared: MetricComparison) -> dict[str, Sequence[Curve]]:
    return {name: compared.curves(name) for name in compared.names}


def _show_points(out: Output, compared: MetricComparison) -> None:
    from runner.core.curves import align

    ids = [run.spec.run_id for run in compared.runs]
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
