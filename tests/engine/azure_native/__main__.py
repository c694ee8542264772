"""Serve the stand-in on a free port and print it, as a plugin does."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from tests.engine.azure_native.azure import Azure
from tests.engine.azure_native.provider import AzureNative
from tests.engine.listening import serve

FOLDER = "STAND_IN_AZURE"


def main() -> None:
    server = grpc.server(
        ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 400 * 1024 * 1024)]
    )
    azure = Azure(Path(os.environ[FOLDER]))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(AzureNative(azure), server)
    serve(server)


if __name__ == "__main__":
    main()
