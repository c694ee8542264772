"""A run over several nodes as Batch has it: one multi-instance task."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from azure.batch import models

from runner.core.plan import RunPlan
from runner.node.hosts import ROLE, TOKEN_VARIABLE

# Files for every node lie in the task's shared folder, which is no working directory.
_COORDINATE = f"-c 'exec python3 \"$AZ_BATCH_TASK_SHARED_DIR/{{agent}}\" {ROLE}'"


def gang_settings(plan: RunPlan) -> Mapping[str, str]:
    """What lets the nodes of one run know each other: a secret, new with each task."""
    if plan.recipe.resources.nodes == 1:
        return {}
    return {TOKEN_VARIABLE: secrets.token_hex(32)}


def to_gang(
    plan: RunPlan, files: Sequence[models.ResourceFile], agent: str
) -> models.MultiInstanceSettings | None:
    """The nodes beside the primary: the agent, and the code, are fetched by each of them."""
    nodes = plan.recipe.resources.nodes
    if nodes == 1:
        return None
    command = _COORDINATE.format(agent=agent)
    if plan.recipe.image is None:  # else the shell is the container's entry point
        command = f"/bin/sh {command}"
    return models.MultiInstanceSettings(
        number_of_instances=nodes,
        coordination_command_line=command,
        common_resource_files=list(files),
    )
