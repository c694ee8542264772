"""Check whether a stack that exists in Azure is the one that this machine's state deploys."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.azure.arm.stacks import find_tags
from runner.core.checks import Check, failed, passed, skipped
from runner.core.settings import Settings
from runner.protocol.errors import RunnerError
from runner_infra.engine.shared_state import backend_variables
from runner_infra.engine.state_folder import load_state, state_backend
from runner_infra.planning.earlier import Earlier, foreign_stack, read_earlier

if TYPE_CHECKING:
    from runner.azure.arm.client import ArmClient
    from runner_infra.config.stack import StackConfig

_GROUPS = "2021-04-01"
_IDENTITIES = "2023-01-31"


def load_earlier(
    settings: Settings, stack: StackConfig, folder: Path, env: Mapping[str, str]
) -> Earlier | None:
    """Return the earlier deployments of a stack, or None if this machine cannot read its state.

    A state in a folder is read without Pulumi, another one with its CLI, if that is installed.
    """
    backend = state_backend(settings.home, {**env, **backend_variables(folder, env)})
    deployment = load_state(backend, settings.stack)
    if deployment is None:
        deployment = _export(settings, folder, env, backend)
    return None if deployment is None else read_earlier(deployment, stack.operators)


def _export(
    settings: Settings, folder: Path, env: Mapping[str, str], backend: str | None
) -> Mapping[str, Any] | None:
    if importlib.util.find_spec("pulumi") is None:
        return None
    from runner.flows.environment.deploy import engine_variables  # noqa: PLC0415
    from runner_infra.engine import automation  # noqa: PLC0415  pulumi takes half a second

    cli = automation.find_cli(settings.home / "pulumi-cli")
    if cli is None:
        return None
    variables = engine_variables(settings, folder, env)
    stack = automation.PulumiStack(folder, settings.stack, cli, variables, backend)
    try:
        return automation.export_state(stack)
    except RunnerError:
        return None


def check_owner(management: ArmClient, stack: StackConfig, earlier: Earlier | None) -> Check | None:
    """Return a check of who deploys the stack; None if it does not exist in Azure."""
    where = f"{management.scope}/resourceGroups/{stack.resource_group}"
    what, version = f"resource group {stack.resource_group}", _GROUPS
    if stack.adopted.resource_group:  # the first resource of a stack in a group of others
        identities = "providers/Microsoft.ManagedIdentity/userAssignedIdentities"
        where = f"{where}/{identities}/{stack.names.nodes_identity}"
        what, version = f"identity {stack.names.nodes_identity}", _IDENTITIES
    try:
        tags = find_tags(management, where, version)
    except RunnerError as err:
        return failed("owner", err)
    if tags is None:
        return None
    if earlier is None:
        why = "the state of Pulumi cannot be read here, which would tell who deploys it"
        return skipped("owner", f"{what} exists; {why}")
    if where.lower() in earlier.resources:
        return passed("owner", f"{what} belongs to this stack and its state")
    return failed("owner", foreign_stack(stack.stack, what, tags))
