"""From containerSettings to what the executor runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from batch_emulator.executor import containers
from batch_emulator.executor.container import Container, Mount
from batch_emulator.executor.launch import ExecutionError, Launch
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.process import split_command
from batch_emulator.model import Execution, Json, Kind, part, parts
from batch_emulator.transitions.preparation import task_id

_OF_THE_NODE = ("PATH", "HOME")  # mean nothing in a container, unless the user sets them

# what the emulator finds its containers by [S]
_OURS = ("--name", "--label", "--label-file", "-l", "--cidfile", "--pod")


def of(execution: Execution, launch: Launch, layout: NodeLayout, data_dir: Path) -> Launch:
    """The launch in a container, if the task asks for one. Raises ExecutionError.

    On a container pool tasks must ask for one; start, preparation and release tasks may (docs).
    """
    settings: Json | None = execution.body.get("containerSettings")
    config = containers.configuration(execution.node.pool.spec)
    if settings is None:
        if config is not None and execution.kind is Kind.TASK:
            raise ExecutionError(containers.settings_missing())
        return launch
    if config is None:
        raise ExecutionError(containers.not_supported("The pool has no containerConfiguration"))
    mounts = tuple(_mounts(execution, settings, launch, layout))
    registries = [*parts(config, "containerRegistries"), part(settings, "registry")]
    container = Container(
        image=settings["imageName"],
        command=tuple(split_command(launch.command_line)) if launch.command_line.strip() else (),
        run_options=_options(settings),
        environment=_environment(execution, launch),
        mounts=mounts,
        working_dir=_working_dir(settings, launch, mounts),
        registries=containers.registries_of(registries),
        node_root=layout.root,
        data_dir=data_dir,
    )
    return replace(launch, container=container)


def _options(settings: Json) -> tuple[str, ...]:
    try:
        options = tuple(shlex.split(settings.get("containerRunOptions") or ""))
    except ValueError as err:
        raise ExecutionError(containers.invalid_settings(f"containerRunOptions: {err}")) from err
    for option in options:
        if option.split("=")[0] in _OURS:
            why = f"containerRunOptions: {option} is set by the service"
            raise ExecutionError(containers.invalid_settings(why))
    return options


def _environment(execution: Execution, launch: Launch) -> dict[str, str]:
    job = execution.job
    settings = [
        *parts(execution.body, "environmentSettings"),
        *([] if job is None else parts(job.spec, "commonEnvironmentSettings")),
    ]
    own = {setting["name"] for setting in settings}
    return {
        name: value
        for name, value in launch.environment.items()
        if name in own or name not in _OF_THE_NODE
    }


def _mounts(
    execution: Execution, settings: Json, launch: Launch, layout: NodeLayout
) -> Iterable[Mount]:
    """All of the node's folders, or those that are listed (containerHostBatchBindMounts)."""
    if "containerHostBatchBindMounts" not in settings:
        yield Mount(layout.root)
        yield from _linked(execution, layout, read_only=False)
        return
    job = execution.job
    folders = {
        "shared": layout.shared,
        "startup": layout.startup,
        "vfsmounts": layout.fsmounts,
        "task": launch.resource_dir or launch.task_dir,  # a subtask's is below the shared one
        "applications": layout.applications,
    }
    if job is not None and "jobPreparationTask" in job.spec:
        folders["jobprep"] = layout.task_dir(job.id, task_id(job, Kind.PREPARATION))
    for entry in parts(settings, "containerHostBatchBindMounts"):
        source, read_only = str(entry.get("source")).lower(), bool(entry.get("isReadOnly"))
        if source in folders:
            folders[source].mkdir(parents=True, exist_ok=True)
            yield Mount(folders[source], read_only)
        if source == "vfsmounts":
            yield from _linked(execution, layout, read_only=read_only)


def _linked(execution: Execution, layout: NodeLayout, *, read_only: bool) -> Iterable[Mount]:
    """What is mounted on the node lies elsewhere; the links to it must lead there inside too."""
    for entry in parts(execution.node.pool.spec, "mountConfiguration"):
        for config in entry.values():
            point = layout.fsmounts / str(part({"": config}, "").get("relativeMountPath") or ".")
            if point.is_symlink():
                yield Mount(Path(os.path.realpath(point)), read_only)


def _working_dir(settings: Json, launch: Launch, mounts: tuple[Mount, ...]) -> Path | None:
    """The task's own, unless the image's is asked for or the container does not see it [S]."""
    if str(settings.get("workingDirectory")).lower() == "containerimagedefault":
        return None
    seen = any(launch.working_dir.is_relative_to(mount.path) for mount in mounts)
    return launch.working_dir if seen else None
