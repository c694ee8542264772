"""`runner metrics`: metrics of runs as tables, terminal charts and image files."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.options import ChartOption, Invocation, PlotOption, RunArgument, on_target
from runner.cli.ui.charts import chart_kind, show_charts, write_chart
from runner.cli.ui.output import Output, OutputFormat
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_size
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from runner.azure.auth.credentials import Connection
    from runner.core.curves import Curve
    from runner.flows.devices import QuantityUse, RunDevices
    from runner.flows.runs.metrics import MetricComparison

_COLUMNS = ("metric", "run", "last", "step", "best", "at_step", "points", "lost", "source")
_POINT_COLUMNS = ("run_id", "metric", "step", "value")
_DEVICE_CHARTS = 6  # in a terminal; a file has all
_DEVICE_COLUMNS = ("node", "device", "mean", "peak", "last")
_DEVICE_POINT_COLUMNS = ("run_id", "node", "time", "attempt", "device", "unit", "value")

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

SystemOption = Annotated[
    bool,
    typer.Option("--system", help="Show the use of GPUs, CPU, memory, disk and network instead."),
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
    system: SystemOption = False,
) -> None:
    """Show the last and best values of a run's metrics, and their curves, or compare runs."""
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.metrics import EXACT_POINTS, compare_metrics

    out = call.out
    kind = chart_kind(plot)
    if system:
        if names or compare or last:
            raise RunnerError(
                "R-METRICS-OPTIONS",
                "--system cannot be combined with NAME, --compare and --last",
                why="it shows all devices of one run",
                fix="remove the other option",
            )
        _show_devices(call, run, plot, kind, chart)
        return
    connection = call.connect()
    found = [find_run(connection, reference) for reference in (run, *(compare or ()))]
    specs = list({spec.run_id: spec for spec in found}.values())
    if len(specs) < len(found):
        out.warning("a run was given more than once; it is shown once")
    compared = compare_metrics(connection, specs, names or (), last, exact_points=EXACT_POINTS)
    if plot is not None:
        title = " and ".join(run.spec.run_id for run in compared.runs)
        write_chart(plot, kind, title, _panels(compared))
    if out.format is OutputFormat.JSON and compared.is_long:
        from runner.views.long_metrics import metrics_pieces

        out.pieces(metrics_pieces(connection, compared))
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


def _show_devices(
    call: Invocation, reference: str, plot: Path | None, kind: str, chart: bool | None
) -> None:
    """Show what a run uses of its nodes."""
    from runner.flows.devices import load_devices
    from runner.flows.runs.documents import find_run
    from runner.views.devices import devices_document

    out, connection = call.out, call.connect()
    found = load_devices(connection, find_run(connection, reference))
    panels = found.panels()
    if plot is not None:
        write_chart(plot, kind, f"devices of {found.spec.run_id}", panels, "seconds")
    if out.format is OutputFormat.JSON:
        out.record(devices_document(found))
    elif out.format is OutputFormat.TSV:
        out.rows(_device_points(found), _DEVICE_POINT_COLUMNS)
    else:
        rows = [_device_row(each) for each in found.uses()]
        columns = _DEVICE_COLUMNS[len(found.nodes) < 2 :]
        what = "has no samples: they start with its command, and take a few seconds"
        out.rows(rows, columns, empty=f"{found.spec.run_id} {what}")
        summary = found.summary
        if summary is not None and summary.gpu_problem:
            out.note(f"GPU not measured all the time: {summary.gpu_problem}")
        if sys.stdout.isatty() if chart is None else chart:
            show_charts(
                out,
                dict(list(panels.items())[:_DEVICE_CHARTS]),
                [f"node {rank}" for rank in range(len(found.nodes))],
            )
    if plot is not None:
        out.note(f"wrote {plot}")


def _device_row(use: QuantityUse) -> dict[str, Any]:
    values = {"mean": use.mean, "peak": use.peak, "last": use.last}
    shown = {name: _amount(value, use.quantity.unit) for name, value in values.items()}
    return {"node": use.rank, "device": use.quantity.title, **shown}


def _amount(value: float, unit: str) -> str:
    if unit == "percent":
        return f"{value:.0f} %"
    if unit == "cores":
        return f"{value:.2f} cores"
    return f"{format_size(round(value))}{unit.removeprefix('bytes')}"


def _device_points(found: RunDevices) -> Iterator[dict[str, Any]]:
    from runner.flows.devices import QUANTITIES

    for rank, samples in enumerate(found.nodes):
        for sample in samples:
            place = {"run_id": found.spec.run_id, "node": rank, "time": sample.time}
            for each in QUANTITIES:
                if (value := each.value(sample)) is not None:
                    about = {"attempt": sample.attempt, "device": each.key, "unit": each.unit}
                    yield {**place, **about, "value": value}


def _points(connection: Connection, compared: MetricComparison) -> Iterator[dict[str, Any]]:
    from runner.flows.runs.metrics import ExactCurves

    with ExitStack() as stack:
        curves = [stack.enter_context(ExactCurves(connection, run)) for run in compared.runs]
        for name in compared.names:
            for run, exact in zip(compared.runs, curves, strict=True):
                for step, value in exact.iterate(name):
                    run_id = run.spec.run_id
                    yield {"run_id": run_id, "metric": name, "step": step, "value": value}


def _show(out: Output, compared: MetricComparison, *, drawn: bool, points: bool) -> None:
    many = len(compared.runs) > 1
    rows = _summary_rows(compared)
    left_out = {name for name in ("lost", "source") if not any(row[name] for row in rows)}
    left_out |= set() if many else {"run"}
    columns = tuple(name for name in _COLUMNS if name not in left_out)
    out.rows(rows, columns, empty=f"{compared.runs[0].spec.run_id} has no metrics")
    if "lost" in columns:
        out.note(
            "lost: values of work that was lost with its node; they count for nothing, and "
            "pictures show them as circles"
        )
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
            "lost": s.lost or None,
            "source": s.source or None,
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
