"""`runner ui`: show runs in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from runner.cli import options
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.page.server import Certificate

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PASSWORD = "RUNNER_UI_PASSWORD"  # noqa: S105  a name
_LEAST_PASSWORD = 12
_SCHEMES = {"http": 80, "https": 443}


def ui(
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on.", show_default="8899, or a free one"
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; one that other machines reach needs a password, and "
            "--tls-cert or --url."
        ),
    ] = "127.0.0.1",
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) with which to answer over TLS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key (PEM) of the certificate.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Address that browsers use, behind a proxy: https://runs.example.org"),
    ] = None,
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
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show runs in a browser, and act there, until Ctrl-C."""
    from runner.flows.extras import load_extra

    for module in ("jinja2", "starlette", "uvicorn"):
        load_extra("ui", module)
    from runner.core.home import HomePaths
    from runner.page.access import Access
    from runner.page.app import PageApp
    from runner.page.assets import ensure_assets
    from runner.page.server import bind, names_of, serve
    from runner.page.source import Source

    out = Output(output)
    settings = options.open_settings(target, stack, team=team)
    certificate = _certificate(tls_cert, tls_key)
    if url is not None:
        url = _checked_url(url)
    is_reachable = host not in _LOOPBACK or (url is not None and not _is_loopback(url))
    if host not in _LOOPBACK and certificate is None and url is None:
        raise RunnerError(
            "R-PAGE-TLS",
            f"--host {host} needs TLS",
            why="everybody on the way could read the password and what the page shows",
            fix="--tls-cert and --tls-key, or --url https://... of a proxy",
        )
    password = _take_password(out) if is_reachable and not api_only else None
    with out.stages() as view:
        assets = None if api_only else ensure_assets(HomePaths(settings.home), view.on_progress)
    listener = bind(host, port)
    number = listener.getsockname()[1]
    scheme = "http" if certificate is None else "https"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{number}"
    hosts = names_of(host, number)
    if url is not None:
        hosts, address = frozenset({urlsplit(url).netloc}), url

    def show_link(token: str) -> None:
        out.note(f"another browser: {address}/?token={token}")

    access = Access(
        hosts,
        read_only=read_only,
        password=password,
        is_secure=address.startswith("https:"),
        programs_only=api_only,
        on_link=show_link,
    )
    app = PageApp(Source(settings), access, assets)
    link = f"{address}/?token={access.link_token}"

    def on_ready() -> None:
        if api_only:
            out.record({"address": f"{address}/api/v1", **access.create_tokens()})
            return
        if out.as_text:
            out.text(link)
        else:
            out.record({"address": address, "link": link})
        out.note("press Ctrl-C to stop")
        if not no_open and _has_display():
            webbrowser.open(link)

    debug = "--debug" in sys.argv or os.environ.get("RUNNER_DEBUG", "") not in ("", "0")
    serve(app, listener, on_ready, certificate, debug=debug)


def _certificate(cert: Path | None, key: Path | None) -> Certificate | None:
    from runner.page.server import Certificate

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise RunnerError(
            "R-PAGE-TLS", "TLS needs --tls-cert and --tls-key", fix="give both, or none"
        )
    found = Certificate(cert, key)
    found.check()
    return found


def _checked_url(url: str) -> str:
    """Return scheme, host and port as browsers send them. Raise RunnerError for other text."""
    try:
        parts = urlsplit(url.lower())
        number, name = parts.port, parts.hostname or ""
    except ValueError:
        number, name, parts = None, "", urlsplit("")
    is_plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if not name or parts.scheme not in _SCHEMES or not is_plain:
        raise RunnerError(
            "R-PAGE-URL",
            f"invalid --url {url!r}",
            why="expected scheme, host and port, without a path",
            fix="--url https://runs.example.org",
        )
    shown = f"[{name}]" if ":" in name else name
    given = "" if number in (None, _SCHEMES[parts.scheme]) else f":{number}"
    found = f"{parts.scheme}://{shown}{given}"
    if parts.scheme == "http" and not _is_loopback(found):
        raise RunnerError(
            "R-PAGE-TLS",
            f"--url {url} is not https",
            why="everybody on the way could read the password and what the page shows",
            fix=f"let the proxy answer at https://{shown}",
        )
    return found


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def _take_password(out: Output) -> str:
    """Return the password that others need. Commands that the page starts do not inherit it."""
    password = os.environ.pop(_PASSWORD, "")
    if not password and sys.stdin.isatty():
        password = out.ask_password("Password for the page")
    if len(password) < _LEAST_PASSWORD:
        raise RunnerError(
            "R-PAGE-PASSWORD",
            "a page that other machines reach needs a password"
            if not password
            else "the password of the page is too short",
            why="everybody who reaches this port could start commands with your rights",
            fix=f"set {_PASSWORD} to at least {_LEAST_PASSWORD} characters, or remove --host "
            "and --url",
        )
    return password


def _has_display() -> bool:
    """Return False where opening a browser would start one in this terminal, or nothing."""
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
