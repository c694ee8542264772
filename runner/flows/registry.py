"""The stack's container registry, where `images/build.sh --push` puts what it builds."""

from __future__ import annotations

from runner.contract import StackOutputs
from runner.core.errors import ExitCode, RunnerError


def registry_server(outputs: StackOutputs, stack: str) -> str:
    """The host of the registry. Raises RunnerError where the stack has none."""
    if outputs.registry_server:
        return outputs.registry_server
    raise RunnerError(
        "R-REGISTRY-NONE",
        f"stack {stack!r} has no container registry",
        why="its outputs name none: runner:registry is off, or not deployed yet",
        fix=f"set runner:registry: true in Pulumi.{stack}.yaml, then runner up --stack {stack}",
        exit_code=ExitCode.PREFLIGHT,
    )
