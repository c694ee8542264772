"""A Pulumi plugin: prints its port, and stops on Ctrl-C or when the engine is gone."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import grpc

_LINGER_S = 30  # Azure completes the requests of a killed engine, and so does the fake provider


def serve(server: grpc.Server) -> None:
    """Print the port of the server, and serve until the engine cancels or ends."""
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
