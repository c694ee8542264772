"""`runner ui`: show runs, sweeps, pools and bills in a browser."""

from __future__ import annotations

import os
import webbrowser
from typing import Annotated

import typer

from runner.cli import options
from runner.cli.ui.output import Output
from runner.protocol.errors import RunnerError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ui(
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on.", show_default="8899, or a free one"
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; others than this machine need a password."),
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, and change nothing.")
    ] = False,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="Answer programs only, and print their tokens.")
    ] = False,
    target: options.TargetOption = None,
    stack: options.StackOption = None,
    team: options.TeamOption = None,
) -> None:
    """Show runs, sweeps, pools and bills in a browser, and act there, until Ctrl-C."""
    from runner.flows.extras import load_extra

    load_extra("ui", "jinja2")
    from runner.core.home import HomePaths
    from runner.page.access import Access
    from runner.page.app import PageApp
    from runner.page.assets import ensure_assets
    from runner.page.server import bind, serve
    from runner.page.source import Source

    out = Output()
    settings = options.open_settings(target, stack, team=team)
    password = os.environ.get("RUNNER_UI_PASSWORD")
    if host not in _LOOPBACK and not password:
        raise RunnerError(
            "R-PAGE-PASSWORD",
            f"--host {host} needs a password",
            why="everybody who reaches this port could start commands with your rights",
            fix="set RUNNER_UI_PASSWORD, or remove --host",
        )
    with out.stages() as view:
        assets = None if api_only else ensure_assets(HomePaths(settings.home), view.on_progress)
    listener = bind(host, port)
    number = listener.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    hosts = {f"{name}:{number}" for name in ("127.0.0.1", "localhost", "[::1]", host)}

    def show_link(token: str) -> None:
        out.note(f"another browser: {address}/?token={token}")

    access = Access(
        frozenset(hosts),
        read_only=read_only,
        password=password if host not in _LOOPBACK else None,
        on_link=show_link,
    )
    app = PageApp(Source(settings), access, assets)
    link = f"{address}/?token={access.link_token}"

    def on_ready() -> None:
        if api_only:
            out.record({"address": f"{address}/api/v1", **access.create_tokens()})
            return
        out.text(link)
        out.note("press Ctrl-C to stop")
        if not no_open:
            webbrowser.open(link)

    serve(app, listener, on_ready)
