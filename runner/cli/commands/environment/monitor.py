"""`runner monitor`: metrics of pools, runs and costs for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import StackOption, TargetOption, open_settings
from runner.cli.ui.output import Output

if TYPE_CHECKING:
    from runner.core.settings import Settings

_EVERY_S = 15.0


def monitor(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")
    ] = 9464,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit.")] = False,
    otlp: Annotated[
        str | None,
        typer.Option(
            "--otlp",
            metavar="URL",
            help="Also send the events of runs to this OTLP endpoint.",
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Serve metrics of pools, nodes, the queue, evictions and costs to Prometheus."""
    from runner.flows.costs.report import CostQuery
    from runner.flows.environment.monitor import MetricsSource, collect, open_server, render_metrics

    out = Output()
    settings = open_settings(target, stack)
    query = CostQuery(by="pool")
    if once:
        out.text(render_metrics(collect(settings, query)).removesuffix("\n"))
        return
    collect(settings, query)  # report errors before the server starts
    source = MetricsSource(lambda: collect(settings, query), _EVERY_S)
    with open_server(host, port, source) as server, _sending_events(out, settings, otlp):
        out.note(f"metrics: http://{host}:{server.server_port}/metrics, press Ctrl-C to stop")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@contextmanager
def _sending_events(out: Output, settings: Settings, otlp: str | None) -> Generator[None]:
    """Send events to an endpoint, if there is one, until the block ends."""
    if otlp is None:
        yield
        return
    from runner.flows.export.otlp import EventStream, OtlpSender, active_events, ended_runs

    sender = OtlpSender(otlp, settings.target)
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
