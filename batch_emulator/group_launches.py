"""What an instance of a multi-instance task runs, and what it is told about the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batch_emulator.executor.launch import Launch
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.model import Execution, Group, Node, part, parts
from batch_emulator.scheduling.allocation import cores_of

_MASTER_PORT = 6000  # environment variables page: AZ_BATCH_MASTER_NODE


def of(
    execution: Execution, group: Group, layout: NodeLayout, launch: Launch, spent_s: float
) -> Launch:
    """The coordination command, or the task's own one once all are coordinated.

    Common resource files go to the task's folder, the others to the primary's working directory
    before the task's own command [S]. `spent_s` is how much of the maxWallClockTime is over.
    """
    directory = _shared_dir(execution, layout)
    nodes = [member.node for member in group.members]
    environment = {
        **launch.environment,
        **environment_of(nodes, execution.instance),
        "AZ_BATCH_TASK_SHARED_DIR": str(directory),
    }
    if not execution.coordinating:
        limit_s = launch.wall_clock_s
        left_s = None if limit_s is None else max(0.0, limit_s - spent_s)
        return replace(launch, environment=environment, wall_clock_s=left_s, continues=True)
    settings = part(execution.body, "multiInstanceSettings")
    return replace(
        launch,
        command_line=settings["coordinationCommandLine"],
        environment=environment,
        resource_files=tuple(parts(settings, "commonResourceFiles")),
        resource_dir=directory,
        output_files=(),
        holds=True,
    )


def _shared_dir(execution: Execution, layout: NodeLayout) -> Path:
    job, task = execution.job, execution.task
    return layout.task_dir("" if job is None else job.id, "" if task is None else task.id)


def environment_of(nodes: Sequence[Node], instance: int) -> dict[str, str]:
    """Who takes part, the primary first (environment variables page)."""
    addresses = [node.address for node in nodes]
    cores = cores_of(nodes[0].pool.spec["vmSize"])
    listed = " ".join(f"{address} {cores}" for address in addresses)
    return {
        "AZ_BATCH_HOST_LIST": ",".join(addresses),
        "AZ_BATCH_NODE_LIST": ";".join(addresses),
        "AZ_BATCH_MASTER_NODE": f"{addresses[0]}:{_MASTER_PORT}",
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false" if instance else "true",
        "CCP_NODES": f"{len(addresses)} {listed}",
    }
