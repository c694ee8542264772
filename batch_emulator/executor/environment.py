"""Environment variables of tasks (environment variables page of the docs, reference 2.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from batch_emulator.executor.layout import NodeLayout

LINUX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TaskKind(Enum):
    """Which variables a task sees depends on what it is."""

    START = "start"
    PREPARATION = "preparation"
    RELEASE = "release"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What every task of a node is told about it."""

    account_name: str
    account_url: str
    pool_id: str
    node_id: str
    is_dedicated: bool
    layout: NodeLayout


def task_environment(  # noqa: PLR0913 - one argument per thing the page names
    node: NodeFacts,
    kind: TaskKind,
    task_dir: Path,
    *,
    job_id: str | None = None,
    task_id: str | None = None,
    preparation_task_id: str | None = None,
    job_settings: Iterable[Mapping[str, Any]] = (),
    task_settings: Iterable[Mapping[str, Any]] = (),
    extra: Mapping[str, str] | None = None,
    node_path: str | None = None,
) -> dict[str, str]:
    """The whole environment of a task; settings are wire `{"name", "value"}` objects.

    `extra` are variables of the node itself, such as CUDA_VISIBLE_DEVICES; task settings override
    job settings, which override `extra`. `node_path` is the PATH of the node: this machine's when
    it is not given, for the node is this machine.
    """
    node_path = node_path or os.environ.get("PATH") or LINUX_PATH
    working_dir = task_dir / "wd"
    environment = {
        # The two folders that dumps of real tasks show behind the node's own PATH.
        "PATH": f"{node_path}:{node.layout.shared}:{working_dir}",
        "HOME": str(working_dir),
        **(extra or {}),
        **_settings(job_settings),
        **_settings(task_settings),
        **_of_node(node),
        **_of_task(kind, task_dir),
    }
    if kind is not TaskKind.START:
        environment["AZ_BATCH_JOB_ID"] = job_id or ""
        environment["AZ_BATCH_TASK_ID"] = task_id or ""
    if preparation_task_id and job_id and kind in (TaskKind.TASK, TaskKind.RELEASE):
        prepared = node.layout.task_dir(job_id, preparation_task_id)
        environment["AZ_BATCH_JOB_PREP_DIR"] = str(prepared)
        environment["AZ_BATCH_JOB_PREP_WORKING_DIR"] = str(prepared / "wd")
    return environment


def _of_node(node: NodeFacts) -> dict[str, str]:
    return {
        "AZ_BATCH_ACCOUNT_NAME": node.account_name,
        "AZ_BATCH_ACCOUNT_URL": node.account_url,
        "AZ_BATCH_POOL_ID": node.pool_id,
        "AZ_BATCH_NODE_ID": node.node_id,
        "AZ_BATCH_NODE_IS_DEDICATED": "true" if node.is_dedicated else "false",
        "AZ_BATCH_NODE_ROOT_DIR": str(node.layout.root),
        "AZ_BATCH_NODE_SHARED_DIR": str(node.layout.shared),
        "AZ_BATCH_NODE_STARTUP_DIR": str(node.layout.startup),
        "AZ_BATCH_NODE_MOUNTS_DIR": str(node.layout.fsmounts),
    }


def _of_task(kind: TaskKind, task_dir: Path) -> dict[str, str]:
    is_start = kind is TaskKind.START
    return {
        "AZ_BATCH_TASK_DIR": str(task_dir),
        "AZ_BATCH_TASK_WORKING_DIR": str(task_dir / "wd"),
        "AZ_BATCH_CERTIFICATES_DIR": str(task_dir / "certs"),
        "AZ_BATCH_TASK_RESERVED_EPHEMERAL_DISK_SPACE_BYTES": "0",  # [S]: nothing is reserved here
        "AZ_BATCH_TASK_USER": "_azbatchtask_start" if is_start else "_azbatch",
        "AZ_BATCH_TASK_USER_IDENTITY": "TaskNonAdmin" if is_start else "PoolNonAdmin",
    }


def _settings(settings: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {str(one["name"]): str(one.get("value") or "") for one in settings}
