"""One server, two ports: the Batch account on one, the shares of its storage on the other."""

from __future__ import annotations

import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from batch_emulator.files_share.app import FilesApp
from batch_emulator.files_share.shares import Shares


class WithFiles:
    """Passes what comes in on the port of the files to the app of the files. ASGI."""

    def __init__(self, batch: ASGIApp, shares: Shares, listener: socket.socket) -> None:
        self._batch = batch
        self._files = FilesApp(shares)
        self._port: int = listener.getsockname()[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI; start and stop are the Batch account's."""
        server = scope.get("server")
        is_for_files = scope["type"] == "http" and server is not None and server[1] == self._port
        await (self._files if is_for_files else self._batch)(scope, receive, send)
