"""Serve the stand-in on a free port, and print the port, as a plugin does.

With `--for-stages`, serve one stand-in for each folder on stdin, and print their ports.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from tests.engine.azure_native.azure import Azure
from tests.engine.azure_native.provider import FOLDER, AzureNative
from tests.engine.listening import serve

FOR_STAGES = "--for-stages"


def main() -> None:
    if sys.argv[1:] == [FOR_STAGES]:
        serve_stages()
    else:
        serve(stand_in(Path(os.environ[FOLDER])))


def serve_stages() -> None:
    """Serve a stand-in for each line of stdin until its end."""
    servers: list[grpc.Server] = []
    for line in sys.stdin:
        server = stand_in(Path(line.rstrip("\n")))
        sys.stdout.write(f"{server.add_insecure_port('127.0.0.1:0')}\n")
        sys.stdout.flush()
        server.start()
        servers.append(server)


def stand_in(folder: Path) -> grpc.Server:
    """Return a server of the resources in this folder."""
    server = grpc.server(
        ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 400 * 1024 * 1024)]
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(AzureNative(Azure(folder)), server)
    return server


if __name__ == "__main__":
    main()
