"""A run over several nodes as Batch has it: one multi-instance task."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from azure.batch import models

from runner.node.hosts import ROLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from runner.core.plan import RunPlan

# In a container both commands may be run by `docker exec`, which knows no entry point; without one
# it is the same to them.
NO_ENTRY_POINT = "--entrypoint="
# Files for every node lie in the task's shared folder, which is no working directory.
_COORDINATE = "-c 'exec python3 \"$AZ_BATCH_TASK_SHARED_DIR/{agent}\" {role}'"


def is_gang(plan: RunPlan) -> bool:
    """Whether it runs on several nodes at once."""
    return plan.recipe.resources.nodes > 1


def with_shell(arguments: str) -> str:
    """The command line that gives a shell its arguments."""
    return f"/bin/sh {arguments}"


def gang_settings(plan: RunPlan) -> Mapping[str, str]:
    """What lets the nodes of one run know each other: a secret, new with each task."""
    return {TOKEN_VARIABLE: secrets.token_hex(32)} if is_gang(plan) else {}


def to_gang(
    plan: RunPlan, files: Sequence[models.ResourceFile], agent: str
) -> models.MultiInstanceSettings | None:
    """The nodes beside the primary: the agent, and the code, are fetched by each of them."""
    if not is_gang(plan):
        return None
    return models.MultiInstanceSettings(
        number_of_instances=plan.recipe.resources.nodes,
        coordination_command_line=with_shell(_COORDINATE.format(agent=agent, role=ROLE)),
        common_resource_files=list(files),
    )
