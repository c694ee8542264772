"""`runner export`, `runner tensorboard`, `runner monitor`: show runs and pools in other tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runner.cli import options
from runner.cli.autocomplete import complete_run_or_group
from runner.cli.ui.output import Output
from runner.core.units import format_count, format_names
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings
    from runner.flows.sweeps.groups import RunSet
    from runner.protocol.run_spec import RunSpec

_EVERY_S = 15.0
_MOVE_S = 1.0  # between two steps while a run is being moved
_RUNS_HELP = "Run, sweep, group or experiment: ID, unique prefix, @last, or name."
RunsArgument = Annotated[
    str, typer.Argument(metavar="RUN", help=_RUNS_HELP, autocompletion=complete_run_or_group)
]


@options.on_target
def export(
    call: options.Invocation,
    run: RunsArgument,
    to: Annotated[
        Literal["mlflow", "tensorboard", "otlp"], typer.Option(help="Tool to export to.")
    ],
    uri: Annotated[
        str | None,
        typer.Option(
            help="Tracking URI of MLflow, folder for TensorBoard, or OTLP endpoint.",
            show_default="MLFLOW_TRACKING_URI, ./tensorboard, OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ] = None,
    artifacts: Annotated[
        bool, typer.Option("--artifacts/--no-artifacts", help="Also send the outputs to MLflow.")
    ] = True,
) -> None:
    """Copy runs to MLflow or TensorBoard, or send their events to an OTLP endpoint.

    Repeat the command to update the copy.
    """
    from runner.flows.sweeps.groups import RunSet, find_run_or_set

    out = call.out
    settings, connection = call.open()
    found = find_run_or_set(connection, run)
    send = _exporter(out, settings, connection, to, uri, artifacts=artifacts)
    specs = _specs(connection, found, started=True)
    rows = [{"run_id": spec.run_id, **send(spec)} for spec in specs]
    if not isinstance(found, RunSet):
        out.record(rows[0])
        return
    columns = tuple(rows[0]) if rows else ("run_id",)
    out.rows(rows, columns, empty=f"no run of {found.name} has started", spare=("where",))
    out.note(f"exported {format_count(len(rows), 'run')} of {found.name}")


def _specs(connection: Connection, found: RunSpec | RunSet, *, started: bool) -> list[RunSpec]:
    from runner.flows.sweeps.groups import RunSet, load_specs

    return load_specs(connection, found, started=started) if isinstance(found, RunSet) else [found]


def _exporter(
    out: Output,
    settings: Settings,
    connection: Connection,
    to: str,
    uri: str | None,
    *,
    artifacts: bool,
) -> Callable[[RunSpec], dict[str, Any]]:
    """Return a function that exports a run, and returns what it did."""
    if to == "mlflow":
        from runner.features.export.mlflow import export_to_mlflow

        def to_mlflow(spec: RunSpec) -> dict[str, Any]:
            with out.stages() as view:
                done = export_to_mlflow(
                    connection, spec, settings.home, uri, view.on_progress, artifacts=artifacts
                )
            return {
                "mlflow_run_id": done.id,
                "where": done.where,
                "created": done.created,
                "new_points": done.points,
                "new_files": done.files,
            }

        return to_mlflow
    if to == "tensorboard":
        from runner.features.export.tensorboard import export_to_tensorboard

        def to_tensorboard(spec: RunSpec) -> dict[str, Any]:
            where, points = export_to_tensorboard(connection, spec, uri)
            return {"where": str(where), "points": points}

        return to_tensorboard
    from runner.features.export.otlp import OtlpSender, export_to_otlp

    sender = OtlpSender(uri, settings.target.name)
    return lambda spec: {
        "where": sender.address,
        "events": export_to_otlp(connection, spec, sender),
    }


@options.on_target_as_text
def tensorboard(
    call: options.Invocation,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help=_RUNS_HELP, autocompletion=complete_run_or_group),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on.", show_default="6006, or a free one"
        ),
    ] = None,
) -> None:
    """Show metrics and event files of runs in TensorBoard until Ctrl-C."""
    from runner.features.export.tensorboard import show_runs
    from runner.flows.sweeps.groups import find_run_or_set

    out = call.out
    settings, connection = call.open()
    found = [find_run_or_set(connection, run) for run in runs or ["@last"]]
    specs = {
        spec.run_id: spec for each in found for spec in _specs(connection, each, started=False)
    }
    with show_runs(connection, list(specs.values()), settings.home, port) as shown:
        out.text(shown.url)
        out.note(f"showing {format_names([*specs])}; press Ctrl-C to stop")
        try:
            code = shown.wait()
        except KeyboardInterrupt:
            code = 0
    for problem in shown.problems:
        raise problem
    raise typer.Exit(code)


def monitor(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 9464,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit.")] = False,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also send the events of runs to this OTLP endpoint."),
    ] = None,
    move: Annotated[
        bool,
        typer.Option("--move/--no-move", help="Move runs that name several pools when it is due."),
    ] = True,
    target: options.TargetOption = None,
    stack: options.StackOption = None,
) -> None:
    """Serve metrics of pools, nodes, the queue, evictions and costs to Prometheus."""
    from runner.features.export.prometheus import (
        MetricsSource,
        collect,
        open_server,
        render_metrics,
    )
    from runner.flows.costs.report import CostQuery

    out = Output()
    settings = options.open_settings(target, stack)
    query = CostQuery(by="pool")
    if once:
        out.text(render_metrics(collect(settings, query)).removesuffix("\n"))
        return
    collect(settings, query)  # report errors before the server starts
    source = MetricsSource(lambda: collect(settings, query), _EVERY_S)
    with (
        open_server(host, port, source) as server,
        _sending_events(out, settings, otlp),
        _moving_runs(out, settings, enabled=move),
    ):
        out.note(f"metrics: http://{host}:{server.server_port}/metrics, press Ctrl-C to stop")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@contextmanager
def _moving_runs(out: Output, settings: Settings, *, enabled: bool) -> Generator[None]:
    """Move runs to their next pools when it is due, until the block ends."""
    if not enabled:
        yield
        return
    from runner.flows.runs.moving.fallback import FallbackRound, open_fallbacks

    fallbacks, stop = open_fallbacks(settings), threading.Event()

    def run() -> None:
        told: set[str] = set()
        pause = 0.0
        while not stop.wait(pause):
            pause = _EVERY_S
            try:
                found = fallbacks()
            except RunnerError as err:
                found = FallbackRound(problems=(f"runs are not moved: {err.what}",))
            pause = _MOVE_S if found.moving else _EVERY_S
            for line in found.moved:
                out.note(line)
            for line in {*found.problems, *found.blocked} - told:
                out.warning(line)
            told = {*found.problems, *found.blocked}

    thread = threading.Thread(target=run, name="moves", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_EVERY_S)


@contextmanager
def _sending_events(out: Output, settings: Settings, otlp: str | None) -> Generator[None]:
    """Send events to an endpoint, if there is one, until the block ends."""
    if otlp is None:
        yield
        return
    from runner.features.export.otlp import EventStream, OtlpSender, active_events, ended_runs

    sender = OtlpSender(otlp, settings.target.name)
    events = EventStream(
        lambda ended: active_events(settings, ended), sender.send, ended_runs(settings)
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=events.run, args=(_EVERY_S, stop, out.warning), name="events", daemon=True
    )
    thread.start()
    out.note(f"events: sent to {sender.address}")
    try:
        yield
    finally:
        stop.set()
        thread.join(_EVERY_S)
