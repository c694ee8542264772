"""The emulator as a server of this process: in a thread for tests, or under `__main__`.

One server listens on up to three ports: the Batch account, Azure Files, and the page.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batch_emulator.domain.account import Limits
from batch_emulator.domain.clock import Clock
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.files_share.app import FilesApp
from batch_emulator.http.app import App
from batch_emulator.http.connections import TRANSPORT

log = logging.getLogger(__name__)


class WithPort:
    """Pass requests on another port to an app of its own. ASGI."""

    def __init__(self, app: ASGIApp, other: ASGIApp, listener: socket.socket) -> None:
        self._app = app
        self._other = other
        self._port: int = listener.getsockname()[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI scope. The first app handles startup and shutdown."""
        server = scope.get("server")
        is_for_other = scope["type"] == "http" and server is not None and server[1] == self._port
        await (self._other if is_for_other else self._app)(scope, receive, send)


class ReadyServer(uvicorn.Server):
    """A server that runs a command when it answers requests, and ends if the command fails.

    `exit_code` is that of the command, None without one or while it runs.
    """

    def __init__(self, config: uvicorn.Config, emulator: Emulator, command: str | None) -> None:
        super().__init__(config)
        self._emulator = emulator
        self._command = command
        self._hook: asyncio.Task[None] | None = None
        self.exit_code: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, then start the command."""
        if self._command is not None:
            self._emulator.starting = "the command of --on-ready is running"
        await super().startup(sockets)
        if self._command is not None and self.started:
            self._hook = asyncio.get_running_loop().create_task(self._run(self._command))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the command, then answer no more."""
        if self._hook is not None:
            self._hook.cancel()
            await asyncio.wait({self._hook})
        await super().shutdown(sockets)

    async def _run(self, command: str) -> None:
        variables = {**os.environ, **client_variables(self._emulator.settings)}
        process = await asyncio.create_subprocess_shell(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=variables,
            start_new_session=True,
        )  # fmt: skip
        try:
            self.exit_code = await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        if self.exit_code:
            log.error("the command of --on-ready ended with exit code %d", self.exit_code)
            self.should_exit = True
        else:
            self._emulator.starting = None


def client_variables(settings: EmulatorSettings) -> dict[str, str]:
    """Return the variables in which clients look for endpoints and keys."""
    found = {
        "AZURE_BATCH_ACCOUNT": settings.account,
        "AZURE_BATCH_ACCESS_KEY": settings.key,
        "AZURE_BATCH_ENDPOINT": settings.url,
    }
    if settings.storage is not None:
        found |= {
            "AZURE_STORAGE_ACCOUNT": settings.storage.name,
            "AZURE_STORAGE_KEY": settings.storage.key,
            "AZURE_STORAGE_FILE_ENDPOINT": settings.files_url,
        }
    if settings.blob_endpoint is not None:
        found["AZURE_STORAGE_BLOB_ENDPOINT"] = settings.blob_endpoint
    return found


_STOPS_WITHIN_S = 60.0
_ANSWERS_WITHIN_S = 5  # for requests that are open at shutdown


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only if the protocol is TCP; with it an answer of
    # two segments takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)  # connections are accepted from now on, and answered later
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL at which this machine, and a task, reaches a listening socket."""
    address: str
    address, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _ConnectionProtocol(HttpToolsProtocol):
    """HTTP with its connection in the scope, so that rules for faults can break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][TRANSPORT] = self.transport  # pyright: ignore[reportTypedDictNotRequiredAccess]


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration of every server of the emulator."""
    return uvicorn.Config(
        app,
        http=_ConnectionProtocol,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="on",
        date_header=False,  # both apps send one from their own clock
        timeout_graceful_shutdown=_ANSWERS_WITHIN_S,
    )


def with_files(app: ASGIApp, emulator: Emulator, listeners: list[socket.socket]) -> ASGIApp:
    """Return the app, with Azure Files on another listening socket if there is one."""
    if emulator.shares is None or not listeners:
        return app
    files = FilesApp(emulator.shares, any_host=emulator.settings.exposed)
    return WithPort(app, files, listeners[0])


def with_page(
    api: ASGIApp,
    app: ASGIApp,
    emulator: Emulator,
    listener: socket.socket,
    on_link: Callable[[str], object] = lambda _: None,
) -> ASGIApp:
    """Return `app` with the page on another listening socket; the page asks `api` for everything.

    `on_link` is called with each new link that signs a browser in.
    """
    from batch_emulator.page.server import PageServer  # noqa: PLC0415  only with --ui

    page = PageServer(emulator, api, app, url_of(listener), on_link)
    on_link(page.sessions.new_link())
    return WithPort(page.log, page.app, listener)


class Server:
    """An emulator on a free port of this machine, served by a thread until it is closed.

        with Server() as server:
            client = BatchClient(server.url, AzureNamedKeyCredential(server.account, server.key))

    Without `data_dir`, its state and its nodes are in a temporary folder, which `close` deletes.
    Nodes boot in 50 ms. `settings` are fields of `EmulatorSettings`. With `ui` there is a page too,
    to which `page_link` signs a browser in. Raises the errors of `Emulator`.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        clock: Clock | None = None,
        ui: bool = False,
        **settings: Any,
    ) -> None:
        self._folder = None if data_dir else tempfile.TemporaryDirectory(prefix="batch-emulator-")
        folder = data_dir or Path(self._folder.name if self._folder else "")
        usual = EmulatorSettings(
            data_dir=folder,
            account="test",
            key=base64.b64encode(secrets.token_bytes(32)).decode(),
            limits=Limits(boot_s=0.05),
            kill_grace_s=0.5,
        )
        self._settings = replace(usual, **settings)
        self.account, self.key = self._settings.account, self._settings.key
        self.url = ""
        self.files_url: str | None = None  # of the storage account, if the settings name one
        self.page_link: str | None = None  # the newest one
        self.emulator: Emulator | None = None
        self._clock = clock
        self._has_page = ui
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def application(self, emulator: Emulator) -> ASGIApp:
        """Return the ASGI app, before anything has started. Subclasses may wrap it."""
        return App(emulator)

    def start(self) -> Server:
        """Serve; return when requests are answered."""
        storage = self._settings.storage
        listeners = [bind("127.0.0.1", 0) for _ in range(1 + bool(storage) + self._has_page)]
        self.url = url_of(listeners[0])
        if storage:
            self.files_url = f"{url_of(listeners[1])}/{storage.name}"
        try:
            self.emulator = Emulator(replace(self._settings, url=self.url), self._clock)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        app = self._composed(self.emulator, listeners)
        server = self._server = uvicorn.Server(uvicorn_config(app))
        self._thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=listeners)), daemon=True
        )
        self._thread.start()
        return self

    def _composed(self, emulator: Emulator, listeners: list[socket.socket]) -> ASGIApp:
        api = self.application(emulator)
        app = with_files(api, emulator, listeners[1:])
        if not self._has_page:
            return app

        def remember(link: str) -> None:
            self.page_link = link

        return with_page(api, app, emulator, listeners[-1], remember)

    def close(self) -> None:
        """End everything that runs on its nodes, then the server."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOPS_WITHIN_S)
            if self._thread.is_alive():
                raise RuntimeError(f"the emulator at {self.url} did not stop in time")
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
