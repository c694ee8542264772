"""Environment variables of tasks (environment variables page of the docs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from batch_emulator.executor.layout import NodeLayout


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
    node_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
) -> dict[str, str]:
    """The whole environment of a task; settings are wire `{"name", "value"}` objects.

    `extra` are variables of the node itself, such as CUDA_VISIBLE_DEVICES; task settings override
    job settings, which override `extra`. `node_path` is the PATH of the node.
    """
    raise NotImplementedError
