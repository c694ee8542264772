"""Pulumi's language host for Python, extended so that it starts policy packs.

The newest host on the Go module proxy is 3.79, which starts every plugin as a program. The current
host starts a policy pack with `python -m pulumi.policy`, as this module does. All other calls are
forwarded to the old host.
"""
# ruff: noqa: N802 - the names are the protocol's

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from tests.engine.listening import serve

_POLICY = (sys.executable, "-u", "-m", "pulumi.policy")
_SERVICE = language_pb2.DESCRIPTOR.services_by_name["LanguageRuntime"]


class PolicyHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Forwards every unary call, and starts policy packs itself."""

    def __init__(self, real: grpc.Channel) -> None:
        stub = language_pb2_grpc.LanguageRuntimeStub(real)
        for method in _SERVICE.methods:
            if not method.server_streaming:
                setattr(self, method.name, _passing(getattr(stub, method.name)))

    def RunPlugin(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Run a policy pack until the engine disconnects."""
        environment = dict(pair.split("=", 1) for pair in request.env)
        process = subprocess.Popen(
            [*_POLICY, *request.args, request.info.program_directory],
            cwd=request.pwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
        )
        context.add_callback(process.kill)
        assert process.stdout is not None
        for line in process.stdout:
            yield language_pb2.RunPluginResponse(stdout=line)
        yield language_pb2.RunPluginResponse(exitcode=process.wait())


def _passing(call: Any) -> Any:
    def passed(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except grpc.RpcError as err:
            context.abort(err.code(), err.details() or "")

    return passed


def main() -> None:
    real, *arguments = sys.argv[1:]
    process = subprocess.Popen([real, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        server = grpc.server(ThreadPoolExecutor(8))
        with grpc.insecure_channel(address) as channel:
            host = PolicyHost(channel)
            language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
            serve(server)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
