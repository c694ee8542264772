"""The state of the stack: read for `pulumi up`, and compared with what exists in Azure.

`runner up` has read the state before it starts the program.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi_azure_native import managedidentity, resources

from runner.protocol.errors import RunnerError
from runner_infra.config.stack import StackConfig
from runner_infra.planning.earlier import Earlier, foreign_stack

_TIMEOUT_S = 60.0
# Codes of Resource Manager for "not found", in the text of the provider's error.
_ABSENT = re.compile(
    r'Code="?(ResourceGroupNotFound|ResourceNotFound|ParentResourceNotFound|NotFound)\b'
)


def export_own_state(folder: Path, stack: str) -> Mapping[str, Any]:
    """Return the field `deployment` of the stack's state; empty if it was never deployed.

    Raises:
        RunnerError: R-PULUMI-STATE, it cannot be read. Without it, the program would remove the
            roles of everybody who deployed before.
    """
    cli = shutil.which("pulumi")
    if cli is None:
        raise _unread("the program `pulumi` is not in PATH")
    words = [cli, "--non-interactive", "stack", "export", "--stack", stack]
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return json.loads(done.stdout).get("deployment") or {}
    except subprocess.CalledProcessError as err:
        said = str(err.stderr or err).strip().splitlines() or [str(err)]
        raise _unread(said[-1]) from err
    except (OSError, ValueError, subprocess.TimeoutExpired) as err:
        raise _unread(str(err)) from err


def _unread(why: str) -> RunnerError:
    return RunnerError(
        "R-PULUMI-STATE",
        "the program cannot read the state of its stack",
        why=why,
        fix="add the Pulumi CLI to PATH, or deploy with runner, which reads it",
    )


@dataclass(frozen=True, slots=True)
class _FirstResource:
    what: str
    arm_id: str
    tags: Mapping[str, str]


def refuse_foreign(config: StackConfig, earlier: Earlier) -> None:
    """Raise RunnerError if the stack exists in Azure, but not in this state of Pulumi.

    The first resource of the stack decides: its group, or the identity of the nodes in an adopted
    group. If the provider may not read it, the engine finds out.

    Raises:
        RunnerError: R-STACK-FOREIGN.
    """
    where = f"/subscriptions/{config.subscription_id}/resourceGroups/{config.resource_group}"
    name = config.names.nodes_identity
    adopted = config.adopted.resource_group is not None
    identities = f"{where}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/"
    own_id = f"{identities}{name}" if adopted else where
    if own_id.lower() in earlier.resources:
        return
    found = _find_identity(config.resource_group, name) if adopted else _find_group(config)
    if found is not None:
        raise foreign_stack(config.stack, found.what, found.tags)


def _find_group(config: StackConfig) -> _FirstResource | None:
    try:
        found = resources.get_resource_group(resource_group_name=config.resource_group)
    except Exception as err:  # noqa: BLE001  the SDK raises Exception
        return _absent(err)
    return _FirstResource(
        f"resource group {config.resource_group}", str(found.id), found.tags or {}
    )


def _find_identity(group: str, name: str) -> _FirstResource | None:
    try:
        found = managedidentity.get_user_assigned_identity(
            resource_group_name=group, resource_name=name
        )
    except Exception as err:  # noqa: BLE001  the SDK raises Exception
        return _absent(err)
    return _FirstResource(f"identity {name} in {group}", str(found.id), found.tags or {})


def _absent(err: Exception) -> None:
    """Log an error other than "not found": what may not be read is left to the engine."""
    if not _ABSENT.search(str(err)):
        pulumi.log.debug(f"cannot tell whether the stack exists: {err}")
