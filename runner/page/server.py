"""Serve the page on a port until Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.page.app import PageApp
from runner.protocol.errors import RunnerError

_ANSWERS_WITHIN_S = 1  # for answers that are not complete at the end
_HEADERS_WITHIN_S = 20.0
_MOST_CONNECTIONS = 500
_TRIES = 20
_SWITCH_S = 0.001  # so that pages do not wait for threads that compute
_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
        fix="choose another port with --port; --port 0 takes a free one",
    )


def names_of(host: str, port: int) -> frozenset[str]:
    """Return the values of `Host` with which browsers reach a listening socket.

    An address such as 0.0.0.0 has those of all interfaces, and the names of this machine.
    """
    names = {"127.0.0.1", "localhost", "::1", host}
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared only
        addresses = psutil.net_if_addrs().values()
        names |= {each.address.partition("%")[0] for found in addresses for each in found}
        names |= {socket.gethostname(), socket.getfqdn()}
    shown = {f"[{name}]" if ":" in name else name for name in names}
    return frozenset(f"{name.lower()}:{port}" for name in shown)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files with which the server answers over TLS."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Raise RunnerError if they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as err:  # an SSLError is an OSError
            raise RunnerError(
                "R-PAGE-TLS",
                f"cannot use the certificate {self.cert} with the key {self.key}",
                why=str(err),
                fix="give two PEM files that belong together; the key without a passphrase",
            ) from err


class _Protocol(H11Protocol):
    """HTTP that closes a connection which sends no complete header in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.loop.call_later(_HEADERS_WITHIN_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()


class _Server(uvicorn.Server):
    """A server whose streams and commands end with it."""

    def __init__(self, config: uvicorn.Config, app: PageApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.close()
        await super().shutdown(sockets)


def _share_memory_of_threads() -> None:
    """Let all threads allocate from one arena: each of glibc's many keeps what it has freed."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def serve(
    app: PageApp,
    listener: socket.socket,
    on_ready: Callable[[], object],
    certificate: Certificate | None = None,
    *,
    debug: bool = False,
) -> None:
    """Serve until Ctrl-C. `on_ready` is called once requests are answered; `debug` logs traces."""
    _log_to_stderr(debug=debug)
    config = uvicorn.Config(
        app.asgi,
        access_log=False,
        log_config=None,
        lifespan="off",
        ws="none",
        http=_Protocol,
        server_header=False,
        proxy_headers=False,  # anybody can send them
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_ANSWERS_WITHIN_S,
        ssl_certfile=certificate.cert if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    server = _Server(config, app)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        sys.setswitchinterval(_SWITCH_S)
        _share_memory_of_threads()
        on_ready()
        warming = asyncio.create_task(app.warm())
        await serving
        warming.cancel()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
    _end_if_threads_wait()


def _end_if_threads_wait() -> None:
    """Exit at once if threads still wait for services that do not answer; Python awaits them."""
    mine = threading.current_thread()
    if any(each is not mine and not each.daemon for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Lines(logging.Formatter):
    """Lines that a person reads: without traces, unless asked for, and without controls."""

    def __init__(self, *, debug: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record. Others choose names, which may have sequences."""
        if not self._debug:
            record.exc_info = record.exc_text = record.stack_info = None
        return _CONTROLS.sub("\ufffd", super().format(record))


def _log_to_stderr(*, debug: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(debug=debug))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Its warnings are about invalid requests, which anybody can send.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
