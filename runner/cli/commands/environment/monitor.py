"""`runner monitor`: metrics of pools, runs and costs for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.options import StackOption, TargetOption, open_settings
from runner.cli.ui.output import Output

_EVERY_S = 15.0


def monitor(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port.")] = 9464,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit.")] = False,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Serve metrics of pools, nodes, the queue, evictions and costs to Prometheus."""
    from runner.flows.environment.monitor import MetricsSource, collect, open_server, render_metrics
    from runner.flows.runs.costs import CostQuery

    out = Output()
    settings = open_settings(target, stack)
    query = CostQuery(by="pool")
    if once:
        out.text(render_metrics(collect(settings, query)).removesuffix("\n"))
        return
    collect(settings, query)  # an error is reported before the first scrape
    source = MetricsSource(lambda: collect(settings, query), _EVERY_S)
    with open_server(host, port, source) as server:
        out.note(f"metrics: http://{host}:{server.server_port}/metrics, press Ctrl-C to stop")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
