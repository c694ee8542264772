"""How a plugin of Pulumi begins and ends: a free port on its first line, and Ctrl-C."""

from __future__ import annotations

import sys
from contextlib import suppress

import grpc


def serve(server: grpc.Server) -> None:
    """Say where the server listens, and serve until the engine says goodbye."""
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        server.wait_for_termination()
