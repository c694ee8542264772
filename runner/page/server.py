"""Serve the page on a port until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from runner.page.app import PageApp
from runner.protocol.errors import RunnerError

_ANSWERS_WITHIN_S = 2  # for streams that are open at the end
_TRIES = 20


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one, None 8899 or the next free port.

    Raises:
        RunnerError: R-PAGE-PORT, the port is in use or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(8899, 8899 + _TRIES) if port is None else (port,)
    problem: OSError | None = None
    for each in ports:
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, each))
            listener.listen(128)
        except OSError as err:
            listener.close()
            problem = err
        else:
            return listener
    raise RunnerError(
        "R-PAGE-PORT",
        f"cannot listen on {host}, port {port if port is not None else ports[0]}",
        why=problem.strerror if problem and problem.strerror else str(problem),
        fix="runner ui --port 0",
    )


def serve(app: PageApp, listener: socket.socket, on_ready: Callable[[], object]) -> None:
    """Serve until Ctrl-C. `on_ready` is called once requests are answered."""
    config = uvicorn.Config(
        app.asgi,
        access_log=False,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_ANSWERS_WITHIN_S,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        on_ready()
        await serving

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
