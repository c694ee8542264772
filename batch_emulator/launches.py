"""Build the launch of an execution: folders, environment, files, limits, container."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from batch_emulator.domain.applications import Certificates
from batch_emulator.domain.eviction_trace import EVICTED_VARIABLE, planned_evictions
from batch_emulator.domain.launch import (
    ContainerMount,
    ContainerSpec,
    ExecutionError,
    LaunchSpec,
    command_launch_failed,
)
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Json,
    MultiInstance,
    Node,
    cores_of,
    part,
    parts,
)
from batch_emulator.domain.transitions import eviction
from batch_emulator.domain.transitions.job_preparation import task_id
from batch_emulator.domain.values import parse_duration
from batch_emulator.executor import task_containers
from batch_emulator.executor.application_packages import PackageInstaller, installed
from batch_emulator.executor.container_options import ContainerOption, OptionsError, parse_options
from batch_emulator.executor.isolation import is_elevated
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_images import NodeImage, NodeImages
from batch_emulator.executor.task_process import split_command
from batch_emulator.folders import is_below, make_real_folder, write_below

log = logging.getLogger(__name__)


class TaskTokens:
    """The valid authentication tokens of tasks.

    They exist in memory only: after a crash their tasks run again and get new ones.
    """

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    def issue(self, execution: str, job: str) -> str:
        """Return a token for the task of an execution, valid for the job of that key."""
        token = secrets.token_urlsafe(32)
        self._given[execution] = (token, job)
        return token

    def revoke(self, execution: str) -> None:
        """Revoke the token of an execution that ended."""
        self._given.pop(execution, None)

    def job_of(self, token: str) -> str | None:
        """Return the key of the job for which a token is valid, or None."""
        presented = token.encode()
        for known, job in self._given.values():
            if hmac.compare_digest(known.encode(), presented):
                return job
        return None


@dataclass(frozen=True, slots=True)
class NodeNames:
    """What tasks need to reach local services by Azure's host names.

    `authorities` are the certificates that tasks trust. `variables` returns the variables of a
    task, given the path of a file with these certificates.
    """

    variables: Callable[[str], Mapping[str, str]]
    authorities: bytes

    def write(self, layout: NodeLayout) -> None:
        """Write the authorities to a node. Raises OSError."""
        make_real_folder(layout.authorities, layout.root.parent)
        layout.authorities.chmod(0o755)
        write_below(self._path(layout), layout.root.parent, self.authorities)
        self._path(layout).chmod(0o644)

    def task_variables(self, layout: NodeLayout) -> Mapping[str, str]:
        """Return the variables of the tasks of a node."""
        return self.variables(str(self._path(layout)))

    def _path(self, layout: NodeLayout) -> Path:
        return layout.authorities / "authorities.pem"


_MASTER_PORT = 6000  # environment variables page: AZ_BATCH_MASTER_NODE


def instance_launch(
    execution: Execution,
    group: MultiInstance,
    layout: NodeLayout,
    launch: LaunchSpec,
    spent_s: float,
) -> LaunchSpec:
    """Return the launch of the coordination command, or of the task's own command after it.

    Common resource files go to the task's folder, the others to the primary's working directory
    before the task's own command [S]. `spent_s` is the part of maxWallClockTime that has passed.
    """
    directory = _shared_dir(execution, layout)
    nodes = [member.node for member in group.members]
    environment = {
        **launch.environment,
        **instance_variables(nodes, execution.instance),
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


def instance_variables(nodes: Sequence[Node], instance: int) -> dict[str, str]:
    """Return the variables about the instances, the primary first (environment variables page)."""
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


_NODE_VARIABLES = ("PATH", "HOME")  # without meaning in a container, unless the user sets them

# sizes with GPUs of NVIDIA or AMD; NP has FPGAs (pages "GPU accelerated" of VM sizes)
_GPU_SIZE = re.compile(r"standard_n[cdgv]", re.IGNORECASE)
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # of Linux, and of WSL


def container_launch(
    execution: Execution, launch: LaunchSpec, layout: NodeLayout, data_dir: Path
) -> LaunchSpec:
    """Return the launch in a container, if the task asks for one. Raises ExecutionError.

    On a container pool tasks must ask for one; start, preparation and release tasks may (docs).
    """
    settings: Json | None = execution.body.get("containerSettings")
    config = task_containers.configuration(execution.node.pool.spec)
    if settings is None:
        if config is not None and execution.kind is ExecutionKind.TASK:
            raise ExecutionError(task_containers.settings_missing())
        return launch
    if config is None:
        raise ExecutionError(
            task_containers.not_supported("The pool has no containerConfiguration")
        )
    mounts = tuple(_container_mounts(execution, settings, launch, layout))
    if layout.authorities.is_dir():
        mounts = (*mounts, ContainerMount(layout.authorities, read_only=True))
    registries = [*parts(config, "containerRegistries"), part(settings, "registry")]
    options = _container_options(settings, execution, launch)
    container = ContainerSpec(
        image=settings["imageName"],
        command=tuple(split_command(launch.command_line)) if launch.command_line.strip() else (),
        run_options=tuple(option.word() for option in options if option.name != "name"),
        name=next((one.value for one in reversed(options) if one.name == "name"), ""),
        environment=_container_environment(execution, launch),
        mounts=mounts,
        working_dir=_container_working_dir(settings, launch, mounts),
        registries=task_containers.registries_of(registries),
        node_root=layout.root,
        data_dir=data_dir,
    )
    return replace(launch, container=container)


def _container_options(
    settings: Json, execution: Execution, launch: LaunchSpec
) -> list[ContainerOption]:
    """Return the options of the container. Raises ExecutionError.

    Without GPUs on this machine, nodes of a VM size that has some run the container without them.
    """
    text = settings.get("containerRunOptions") or ""
    try:
        found = parse_options(text, launch.environment)
    except OptionsError as err:
        raise ExecutionError(
            task_containers.invalid_settings(f"containerRunOptions: {err}")
        ) from err
    has_gpus = any(driver.exists() for driver in _GPU_DRIVERS)
    if has_gpus or not _GPU_SIZE.match(str(execution.node.pool.spec.get("vmSize"))):
        return found
    kept = [option for option in found if not option.wants_gpus]
    if kept != found:
        log.warning("%s runs without GPUs, which this machine does not have", execution.key)
    return kept


def _container_environment(execution: Execution, launch: LaunchSpec) -> dict[str, str]:
    job = execution.job
    settings = [
        *parts(execution.body, "environmentSettings"),
        *([] if job is None else parts(job.spec, "commonEnvironmentSettings")),
    ]
    own = {setting["name"] for setting in settings}
    return {
        name: value
        for name, value in launch.environment.items()
        if name in own or name not in _NODE_VARIABLES
    }


def _container_mounts(
    execution: Execution, settings: Json, launch: LaunchSpec, layout: NodeLayout
) -> Iterable[ContainerMount]:
    """Return all of the node's folders, or those that are listed (containerHostBatchBindMounts)."""
    if "containerHostBatchBindMounts" not in settings:
        yield ContainerMount(layout.root)
        yield from _link_targets(execution, layout, read_only=False)
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
        folders["jobprep"] = layout.task_dir(job.id, task_id(job, ExecutionKind.PREPARATION))
    for entry in parts(settings, "containerHostBatchBindMounts"):
        source, read_only = str(entry.get("source")).lower(), bool(entry.get("isReadOnly"))
        if source in folders:
            make_real_folder(folders[source], layout.root.parent)
            yield ContainerMount(folders[source], read_only)
        if source == "vfsmounts":
            yield from _link_targets(execution, layout, read_only=read_only)


def _link_targets(
    execution: Execution, layout: NodeLayout, *, read_only: bool
) -> Iterable[ContainerMount]:
    """Return the targets of links to mounts of the node, which must exist in the container too."""
    for entry in parts(execution.node.pool.spec, "mountConfiguration"):
        for config in entry.values():
            point = layout.fsmounts / str(part({"": config}, "").get("relativeMountPath") or ".")
            target = Path(os.path.realpath(point))
            # a task can replace the link, but not by one that leads to other folders than these
            if point.is_symlink() and any(is_below(target, one) for one in _shared(layout)):
                yield ContainerMount(target, read_only)


def _shared(layout: NodeLayout) -> Iterable[Path]:
    """Return the folders with shares and exports, beside that of the nodes."""
    nodes = layout.root.parents[2]
    return (nodes.with_name(name) for name in ("shares", "nfs", "cifs"))


def _container_working_dir(
    settings: Json, launch: LaunchSpec, mounts: tuple[ContainerMount, ...]
) -> Path | None:
    """Return the working directory of the task, None for that of the image.

    The image's is used if it is requested, or if the directory of the task is not mounted [S].
    """
    if str(settings.get("workingDirectory")).lower() == "containerimagedefault":
        return None
    seen = any(launch.working_dir.is_relative_to(mount.path) for mount in mounts)
    return launch.working_dir if seen else None


@lru_cache(maxsize=1024)  # each task of a node needs it several times
def _layout(nodes: Path, pool_id: str, node_id: str) -> NodeLayout:
    return NodeLayout(nodes / pool_id / node_id / "tasks")


_RELEASE_LIMIT = timedelta(minutes=15)  # docs: maxWallClockTime of a job release task


class LaunchBuilder:
    """Build launches from the folders and the settings of one emulator."""

    def __init__(  # noqa: PLR0913 - one argument per part of the emulator
        self,
        data_dir: Path,
        account_name: str,
        account_url: str,
        node_path: str | None = None,
        *,
        packages: PackageInstaller,
        certificates: Certificates,
        time_scale: float = 1.0,
        imds: Callable[[str, str], str] | None = None,
        folder: Path | None = None,
        names: NodeNames | None = None,
        images: NodeImages | None = None,
    ) -> None:
        self._images = images or NodeImages()
        self._names = names
        self._time_scale = time_scale
        self._packages = packages
        self._certificates = certificates
        self.tokens = TaskTokens()
        self._imds = imds
        self._data_dir = data_dir
        self.nodes = (folder or data_dir) / "nodes"
        self.trash = (folder or data_dir) / "trash"
        self._node_path = node_path or LINUX_PATH
        self._account_name = account_name
        self._account_url = account_url

    def node_dir(self, pool_id: str, node_id: str) -> Path:
        """Return the folder of a node."""
        return self.layout(pool_id, node_id).root.parent

    def layout(self, pool_id: str, node_id: str) -> NodeLayout:
        """Return the node's folders; its root is `tasks` as on the service's Linux images."""
        return _layout(self.nodes, pool_id.lower(), node_id)

    def build(self, execution: Execution, now: datetime) -> LaunchSpec:
        """Return the launch of an execution whose body is loaded."""
        node = execution.node
        layout = self.layout(node.pool.id, node.id)
        directory = self._task_dir(execution, layout)
        group = None if execution.task is None else execution.task.group
        launch = self._launch(execution, layout, directory)
        if group is not None:
            begun = None if execution.task is None else execution.task.start
            spent_s = 0.0 if begun is None else (now - begun).total_seconds() / self._time_scale
            launch = instance_launch(execution, group, layout, launch, spent_s)
        image = self._image(execution)
        if image is not None:  # of each command: start, preparation, coordination, task, release
            launch = replace(launch, command_line=image.command_line(launch.command_line))
        return container_launch(execution, launch, layout, self._data_dir)

    def _image(self, execution: Execution) -> NodeImage | None:
        """Return the image of the node, None without one or in a container."""
        in_container = bool(execution.body.get("containerSettings"))
        return None if in_container else self._images.of(execution.node.pool.spec)

    def _launch(self, execution: Execution, layout: NodeLayout, directory: Path) -> LaunchSpec:
        body = execution.body
        _require_user(execution)
        environment = self._environment(execution, layout, directory, self._image(execution))
        if body.get("authenticationTokenSettings") and execution.job is not None:
            token = self.tokens.issue(execution.key, execution.job.key)
            environment["AZ_BATCH_AUTHENTICATION_TOKEN"] = token
        return LaunchSpec(
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
            elevated=is_elevated(body, execution.node.pool.spec),
        )

    def _prepare(
        self, execution: Execution, layout: NodeLayout, directory: Path
    ) -> Callable[[], Awaitable[Mapping[str, str]]] | None:
        references = parts(execution.body, "applicationPackageReferences")
        install = self._packages.for_task(references, layout) if references else None
        certificates = parts(execution.node.pool.spec, "certificateReferences")
        if not certificates:
            return install
        who = "starttask" if execution.kind is ExecutionKind.START else "task"

        async def prepare() -> Mapping[str, str]:
            for name, content in self._certificates.files(certificates, who):
                write_below(directory / "certs" / name, layout.root.parent, content, 0o600)
            return {} if install is None else await install()

        return prepare

    def _task_dir(self, execution: Execution, layout: NodeLayout) -> Path:
        job = execution.job
        if job is None:
            return layout.startup
        directory = layout.task_dir(job.id, _id_of_task(execution))
        return directory / str(execution.instance) if execution.instance else directory

    def _wall_clock_s(self, execution: Execution) -> float | None:
        """Return the limit in seconds of real time, which are fewer with a faster clock."""
        limit_s = _wall_clock_s(execution)
        return None if limit_s is None else limit_s / self._time_scale

    def _environment(
        self, execution: Execution, layout: NodeLayout, directory: Path, image: NodeImage | None
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
        elevated = is_elevated(execution.body, node.pool.spec)
        extra = {
            **({} if image is None else image.variables),
            **installed(layout),
            # Our own variables: where servers of the task listen, and what the agent hides.
            "BATCH_EMULATOR_NODE_IP": node.address,
            "BATCH_EMULATOR_NODES_DIR": str(self.nodes),
        }
        if execution.task is not None and planned_evictions(execution.body):
            extra[EVICTED_VARIABLE] = str(execution.task.evicted)
        if self._imds is not None:
            extra[eviction.IMDS_VARIABLE] = self._imds(node.pool.id, node.id)
        if self._names is not None:
            extra |= self._names.task_variables(layout)
        return task_environment(
            facts,
            execution.kind,
            directory,
            **_job_arguments(execution),
            task_settings=parts(execution.body, "environmentSettings"),
            extra=extra,
            node_path=self._path(layout, image, elevated=elevated),
            shares_path=not (elevated and layout.elevated_python.is_dir()),
        )

    def _path(self, layout: NodeLayout, image: NodeImage | None, *, elevated: bool) -> str:
        """Return the PATH of a node. Of an elevated task's, no other task writes a folder."""
        machine = self._node_path if image is None else f"{image.path}:{self._node_path}"
        if not layout.elevated_python.is_dir():
            return f"{layout.python / 'bin'}:{machine}"
        programs = layout.elevated_python / "bin"
        if elevated:
            return f"{programs}:{machine}"
        return f"{layout.python / 'bin'}:{machine}:{programs}"


def _require_user(execution: Execution) -> None:
    """Refuse a user account that neither the pool nor the node has. Raises ExecutionError.

    A task names it before its pool is known, so the service cannot refuse the task [S].
    """
    name = part(execution.body, "userIdentity").get("username")
    node = execution.node
    known = {account["name"] for account in parts(node.pool.spec, "userAccounts")}
    if name and name not in known | node.users.keys():
        why = f"The node has no user account {name!r}"
        raise ExecutionError(command_launch_failed(execution.body["commandLine"], why))


def _job_arguments(execution: Execution) -> dict[str, Any]:
    """Return the arguments of `task_environment` about the job; none for a start task."""
    job = execution.job
    if job is None:
        return {}
    prepared = job.spec.get("jobPreparationTask") is not None
    return {
        "job_id": job.id,
        "task_id": _id_of_task(execution),
        "preparation_task_id": task_id(job, ExecutionKind.PREPARATION) if prepared else None,
        "job_settings": parts(job.spec, "commonEnvironmentSettings"),
    }


def _id_of_task(execution: Execution) -> str:
    if execution.task is not None:
        return execution.task.id
    return "" if execution.job is None else task_id(execution.job, execution.kind)


def _wall_clock_s(execution: Execution) -> float | None:
    text = part(execution.body, "constraints").get("maxWallClockTime")
    if execution.kind is ExecutionKind.RELEASE:
        text = execution.body.get("maxWallClockTime")
        if text is None:
            return _RELEASE_LIMIT.total_seconds()
    limit = None if text is None else parse_duration(text)
    return None if limit is None else limit.total_seconds()


LINUX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about a node that every task on it finds in its environment."""

    account_name: str
    account_url: str
    pool_id: str
    node_id: str
    is_dedicated: bool
    layout: NodeLayout


def task_environment(  # noqa: PLR0913 - one argument per input of the page
    node: NodeFacts,
    kind: ExecutionKind,
    task_dir: Path,
    *,
    job_id: str | None = None,
    task_id: str | None = None,
    preparation_task_id: str | None = None,
    job_settings: Iterable[Mapping[str, Any]] = (),
    task_settings: Iterable[Mapping[str, Any]] = (),
    extra: Mapping[str, str] | None = None,
    node_path: str | None = None,
    shares_path: bool = True,
) -> dict[str, str]:
    """Return the whole environment of a task; settings are wire `{"name", "value"}` objects.

    `extra` are variables of the node itself, such as CUDA_VISIBLE_DEVICES; task settings override
    job settings, which override `extra`. `node_path` is the PATH of the node, by default this
    machine's, since the node is this machine. With `shares_path`, it ends with the shared folder.
    """
    node_path = node_path or os.environ.get("PATH") or LINUX_PATH
    working_dir = task_dir / "wd"
    environment = {
        # The two folders that dumps of real tasks show behind the node's own PATH.
        "PATH": f"{node_path}:{f'{node.layout.shared}:' if shares_path else ''}{working_dir}",
        "HOME": str(working_dir),
        **(extra or {}),
        **_settings(job_settings),
        **_settings(task_settings),
        **_node_variables(node),
        **_task_variables(kind, task_dir),
    }
    if kind is not ExecutionKind.START:
        environment["AZ_BATCH_JOB_ID"] = job_id or ""
        environment["AZ_BATCH_TASK_ID"] = task_id or ""
    if preparation_task_id and job_id and kind in (ExecutionKind.TASK, ExecutionKind.RELEASE):
        prepared = node.layout.task_dir(job_id, preparation_task_id)
        environment["AZ_BATCH_JOB_PREP_DIR"] = str(prepared)
        environment["AZ_BATCH_JOB_PREP_WORKING_DIR"] = str(prepared / "wd")
    return environment


def _node_variables(node: NodeFacts) -> dict[str, str]:
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


def _task_variables(kind: ExecutionKind, task_dir: Path) -> dict[str, str]:
    is_start = kind is ExecutionKind.START
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
