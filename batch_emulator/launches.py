"""From an execution to what the executor runs: folders, environment, files, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from batch_emulator import container_launches, group_launches, metadata
from batch_emulator.certificates import Certificates
from batch_emulator.executor.environment import (
    LINUX_PATH,
    NodeFacts,
    TaskKind,
    task_environment,
)
from batch_emulator.executor.launch import Launch
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.packages import Packages, installed
from batch_emulator.model import Execution, Json, Kind, parts
from batch_emulator.tokens import Tokens
from batch_emulator.transitions.preparation import task_id
from batch_emulator.values import parse_duration

_RELEASE_LIMIT = timedelta(minutes=15)  # docs: maxWallClockTime of a job release task


class Launches:
    """Knows where nodes lie and what they are told about the account."""

    def __init__(
        self,
        data_dir: Path,
        account_name: str,
        account_url: str,
        node_path: str | None = None,
        *,
        packages: Packages,
        certificates: Certificates,
        time_scale: float = 1.0,
        imds: Callable[[str, str], str] | None = None,
    ) -> None:
        self._time_scale = time_scale
        self._packages = packages
        self._certificates = certificates
        self.tokens = Tokens()
        self._imds = imds
        self._data_dir = data_dir
        self.nodes = data_dir / "nodes"
        self.trash = data_dir / "trash"
        self._node_path = node_path or LINUX_PATH
        self._account_name = account_name
        self._account_url = account_url

    def node_dir(self, pool_id: str, node_id: str) -> Path:
        """The folder that is a node."""
        return self.nodes / pool_id.lower() / node_id

    def layout(self, pool_id: str, node_id: str) -> NodeLayout:
        """The node's folders; its root is `tasks` as on the service's Linux images."""
        return NodeLayout(self.node_dir(pool_id, node_id) / "tasks")

    def of(self, execution: Execution, now: datetime) -> Launch:
        """The launch of an execution whose body is loaded."""
        node = execution.node
        layout = self.layout(node.pool.id, node.id)
        directory = self._task_dir(execution, layout)
        group = None if execution.task is None else execution.task.group
        launch = self._launch(execution, layout, directory)
        if group is not None:
            begun = None if execution.task is None else execution.task.start
            spent_s = 0.0 if begun is None else (now - begun).total_seconds() / self._time_scale
            launch = group_launches.of(execution, group, layout, launch, spent_s)
        return container_launches.of(execution, launch, layout, self._data_dir)

    def _launch(self, execution: Execution, layout: NodeLayout, directory: Path) -> Launch:
        body = execution.body
        environment = self._environment(execution, layout, directory)
        if body.get("authenticationTokenSettings") and execution.job is not None:
            token = self.tokens.issue(execution.key, execution.job.key)
            environment["AZ_BATCH_AUTHENTICATION_TOKEN"] = token
        return Launch(
            key=execution.key,
            root_dir=layout.root,
            task_dir=directory,
            working_dir=directory / "wd",
            command_line=body["commandLine"],
            environment=environment,
            resource_files=tuple(body.get("resourceFiles") or ()),
            output_files=tuple(body.get("outputFiles") or ()),
            wall_clock_s=self._wall_clock_s(execution),
            prepare=self._prepare(execution, layout, directory),
        )

    def _prepare(
        self, execution: Execution, layout: NodeLayout, directory: Path
    ) -> Callable[[], Awaitable[Mapping[str, str]]] | None:
        references = parts(execution.body, "applicationPackageReferences")
        install = self._packages.for_task(references, layout) if references else None
        certificates = parts(execution.node.pool.spec, "certificateReferences")
        if not certificates:
            return install
        who = "starttask" if execution.kind is Kind.START else "task"

        async def prepare() -> Mapping[str, str]:
            self._certificates.write(certificates, who, directory / "certs")
            return {} if install is None else await install()

        return prepare

    def _task_dir(self, execution: Execution, layout: NodeLayout) -> Path:
        job = execution.job
        if job is None:
            return layout.startup
        directory = layout.task_dir(job.id, _own_id(execution))
        return directory / str(execution.instance) if execution.instance else directory

    def _wall_clock_s(self, execution: Execution) -> float | None:
        """In seconds of the machine: on a faster clock the limit is sooner over."""
        limit_s = _wall_clock_s(execution)
        return None if limit_s is None else limit_s / self._time_scale

    def _environment(
        self, execution: Execution, layout: NodeLayout, directory: Path
    ) -> dict[str, str]:
        node = execution.node
        facts = NodeFacts(
            account_name=self._account_name,
            account_url=self._account_url,
            pool_id=node.pool.id,
            node_id=node.id,
            is_dedicated=node.dedicated,
            layout=layout,
        )
        settings: list[Json] = execution.body.get("environmentSettings") or []
        kind = TaskKind(execution.kind.value)
        extra = {
            **installed(layout),
            "BATCH_EMULATOR_NODE_IP": node.address,
        }  # ours: where a server listens
        if self._imds is not None:
            extra[metadata.VARIABLE] = self._imds(node.pool.id, node.id)
        return task_environment(
            facts,
            kind,
            directory,
            **_of_job(execution),
            task_settings=settings,
            extra=extra,
            node_path=self._node_path,
        )


def _of_job(execution: Execution) -> dict[str, Any]:
    """What the environment says of the job; nothing for a start task."""
    job = execution.job
    if job is None:
        return {}
    prepared = job.spec.get("jobPreparationTask") is not None
    return {
        "job_id": job.id,
        "task_id": _own_id(execution),
        "preparation_task_id": task_id(job, Kind.PREPARATION) if prepared else None,
        "job_settings": job.spec.get("commonEnvironmentSettings") or [],
    }


def _own_id(execution: Execution) -> str:
    if execution.task is not None:
        return execution.task.id
    return "" if execution.job is None else task_id(execution.job, execution.kind)


def _wall_clock_s(execution: Execution) -> float | None:
    constraints: dict[str, Any] = execution.body.get("constraints") or {}
    text = constraints.get("maxWallClockTime")
    if execution.kind is Kind.RELEASE:
        text = execution.body.get("maxWallClockTime")
        if text is None:
            return _RELEASE_LIMIT.total_seconds()
    limit = None if text is None else parse_duration(text)
    return None if limit is None else limit.total_seconds()
