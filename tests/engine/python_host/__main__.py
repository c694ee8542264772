"""LanguageRuntime, as far as preview, up, destroy and policy packs ask.

Pulumi's own host is a Go module that the module proxy does not give out. Programs are started by
`pulumi-language-python-exec`, which comes with Pulumi's SDK; policy packs by `pulumi.policy`.
"""
# ruff: noqa: N802 - the names are the protocol's

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from tests.engine.listening import serve

_POLICY = (sys.executable, "-u", "-m", "pulumi.policy")
_SHOWN_ALREADY = 32  # the script's exit code for an error that it has reported itself


class PythonHost(language_pb2_grpc.LanguageRuntimeServicer):
    """One engine's host."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def Handshake(self, request: Any, context: Any) -> Any:
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=importlib.metadata.version("pulumi"))

    def About(self, request: Any, context: Any) -> Any:
        return language_pb2.AboutResponse(executable=sys.executable, version=sys.version.split()[0])

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:
        """The providers that installed packages say they need."""
        return language_pb2.GetRequiredPackagesResponse(packages=list(_providers()))

    def Run(self, request: Any, context: Any) -> Any:
        info = request.info
        script = shutil.which("pulumi-language-python-exec")
        assert script is not None
        options = {
            "--monitor": request.monitor_address,
            "--engine": self._engine,
            "--project": request.project,
            "--stack": request.stack,
            "--organization": request.organization,
            "--root_directory": info.root_directory,
            "--pwd": request.pwd,
            "--dry_run": str(request.dryRun).lower(),
            "--parallel": str(request.parallel),
        }
        words = [word for pair in options.items() if pair[1] for word in pair]
        program = str(Path(info.program_directory, info.entry_point))
        ended = subprocess.run(
            [sys.executable, "-u", script, *words, program, *request.args],
            env={
                **os.environ,
                "PULUMI_CONFIG": json.dumps(dict(request.config)),
                "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
            },
            check=False,
        )
        if ended.returncode == _SHOWN_ALREADY:
            return language_pb2.RunResponse(bail=True)
        failed = f"the program exited with {ended.returncode}" if ended.returncode else ""
        return language_pb2.RunResponse(error=failed)

    def RunPlugin(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """A policy pack, until the engine hangs up."""
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


def _providers() -> Iterator[plugin_pb2.PackageDependency]:
    for found in importlib.metadata.distributions():
        module = found.metadata["Name"].replace("-", "_")
        spec = find_spec(module) if module.startswith("pulumi_") else None
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder, "pulumi-plugin.json")
            said: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
            if said.get("resource"):
                yield plugin_pb2.PackageDependency(
                    name=said["name"], kind="resource", version=said["version"]
                )


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    engine = next(word for word in reversed(sys.argv) if not word.startswith("-"))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(PythonHost(engine), server)
    serve(server)


if __name__ == "__main__":
    main()
