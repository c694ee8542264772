"""How a plugin of Pulumi begins and ends: a free port on its first line, Ctrl-C, no engine."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import grpc

_LINGER_S = 30  # Azure finishes what a killed engine has asked for, and so does its stand-in


def serve(server: grpc.Server) -> None:
    """Say where the server listens, and serve until the engine says goodbye or is gone."""
    engine = os.getppid()
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        while server.wait_for_termination(timeout=1):
            if os.getppid() != engine:
                time.sleep(_LINGER_S)
                return
