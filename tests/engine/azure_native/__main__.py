"""Serve the stand-in on a free port and print it, as a plugin does."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from tests.engine.azure_native.azure import Azure
from tests.engine.azure_native.provider import AzureNative

FOLDER = "STAND_IN_AZURE"


def main() -> None:
    server = grpc.server(
        ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 400 * 1024 * 1024)]
    )
    azure = Azure(Path(os.environ[FOLDER]))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(AzureNative(azure), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # how the engine says goodbye
        server.wait_for_termination()


if __name__ == "__main__":
    main()
