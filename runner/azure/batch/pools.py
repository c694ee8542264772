"""Pools and their nodes: create the local ones, list, describe and resize all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.auth.credentials import Connection
from runner.azure.batch.node_users import SSH_PORT
from runner.azure.batch.raw import send_raw
from runner.azure.batch.translate import wire_text
from runner.azure.faults import (
    create_when_free,
    error_code,
    read_or_none,
    service_errors,
    succeeds,
    was_repeated,
)
from runner.core.units import format_duration
from runner.protocol.errors import RunnerError

_DELETE_TIMEOUT_S = 60.0
_LOG_LINES = 8
_LOG_BYTES = 16_384
# The REST documentation has one of the two names, the SDK the other one (read 2026-11-21).
FORMULA_CODES = frozenset(
    {
        "AutoScalingFormulaSyntaxError",
        "AutoScalingFormulaTooLong",
        "AutoScaleFormulaTooLong",
        "InvalidAutoScalingSettings",
    }
)
# Azure does not charge for these: a preempted node has no machine.
# https://learn.microsoft.com/azure/batch/batch-spot-vms (read 2026-11-21)
FREE_STATES = frozenset({"preempted", "deallocated"})
_KEY_ID = "runner-share-key"
_SSH_PORTS = (40_000, 44_999)  # one for each node, from a range in which nodes do not listen
BROKEN_STATES = frozenset({"starttaskfailed", "unusable"})
# A spot node that is evicted may be unusable, without an error, before it is preempted
# (MicrosoftDocs/azure-docs pull request 128508, read 2026-11-29). How long is our estimate.
_EVICTION_TAKES = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class ShareMount:
    """A file share that nodes mount at `path` below AZ_BATCH_NODE_MOUNTS_DIR; `key` is a secret."""

    account: str
    url: str
    path: str
    key: str = field(repr=False)

    @property
    def key_id(self) -> str:
        """A hash that changes with the key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The configuration of a local pool. `start_command` prepares each node."""

    id: str
    vm_size: str
    spot_nodes: int
    slots_per_node: int
    start_command: str
    start_env: tuple[tuple[str, str], ...] = ()
    share: ShareMount | None = None
    containers: bool = False  # every task needs an image
    inter_node: bool = False  # inter-node communication, so that a task may use several nodes


def ensure_pool(connection: Connection, spec: PoolSpec) -> str:
    """Create the pool, or change it to `spec`.

    If slots or mounts differ, the pool is deleted and created again, because the service cannot
    change them while the pool has nodes. Its running tasks are requeued.

    Returns:
        `created`, `resized`, `recreated` or `kept`.
    """
    with service_errors(f"creating pool {spec.id!r}"):
        return _create_or_change(connection.batch_client(), spec)


def list_supported_images(
    connection: Connection,
) -> Mapping[tuple[str, str, str, str], date | None]:
    """Return the end of life of each image that the account accepts; None if none is announced.

    Keys are publisher, offer, SKU and node agent SKU, in lower case.
    """
    with service_errors("listing the supported images"):
        return {
            _image_key(found): found.batch_support_end_of_life.date()
            if found.batch_support_end_of_life
            else None
            for found in connection.batch_client().list_supported_images()
        }


def _image_key(found: models.BatchSupportedImage) -> tuple[str, str, str, str]:
    image = found.image_reference
    words = (image.publisher, image.offer, image.sku, found.node_agent_sku_id)
    publisher, offer, sku, agent = (str(word or "").lower() for word in words)
    return publisher, offer, sku, agent


def _create_or_change(client: BatchClient, spec: PoolSpec) -> str:
    pool = _find(client, spec.id)
    if pool is not None and wire_text(pool.state) == "deleting":  # by `runner pool rm`
        pool = None
    if pool is not None and _same_nodes(pool, spec):
        return _change(client, pool, spec)
    if pool is not None:
        _delete(client, spec.id)
    still = RunnerError(
        "R-POOL-DELETE",
        f"pool {spec.id!r} was not deleted within {format_duration(_DELETE_TIMEOUT_S)}",
        fix="wait a minute, then run the command again",
    )
    try:
        create_when_free(lambda: _create(client, spec), _DELETE_TIMEOUT_S, still)
    except HttpResponseError as err:
        if error_code(err) != "PoolExists" or not was_repeated(err):
            raise
        there = _find(client, spec.id)
        if there is None or not (_same_nodes(there, spec) and _same_start(there, spec)):
            raise
    return "created" if pool is None else "recreated"


def _find(client: BatchClient, pool_id: str) -> models.BatchPool | None:
    try:
        return client.get_pool(pool_id)
    except ResourceNotFoundError:
        return None


def _change(client: BatchClient, pool: models.BatchPool, spec: PoolSpec) -> str:
    if not _same_start(pool, spec):
        # Running nodes keep the old start task; nodes that boot later use the new one.
        client.update_pool(spec.id, models.BatchPoolUpdateOptions(start_task=_start_task(spec)))
    if pool.enable_auto_scale:  # the service resizes only pools without a formula
        client.disable_pool_auto_scale(spec.id)
    elif pool.target_low_priority_nodes == spec.spot_nodes:
        return "kept"
    if pool.allocation_state == "resizing":
        _stop_resize(client, spec.id)
    targets = models.BatchPoolResizeOptions(
        target_dedicated_nodes=0, target_low_priority_nodes=spec.spot_nodes
    )
    _resize(client, spec.id, targets)
    return "resized"


def _stop_resize(client: BatchClient, pool_id: str) -> None:
    """Stop a resize, and wait until the pool is steady."""
    try:
        client.begin_stop_pool_resize(pool_id, polling_interval=1).wait(_DELETE_TIMEOUT_S)
    except HttpResponseError:
        # The resize ended by itself, or an earlier request without a response stopped it.
        if (pool := _find(client, pool_id)) is None or pool.allocation_state != "steady":
            raise


def _resize(client: BatchClient, pool_id: str, targets: models.BatchPoolResizeOptions) -> None:
    """Start a resize. If the response of an earlier request was lost, its resize counts."""
    try:
        client.begin_resize_pool(pool_id, targets, polling_interval=1)
    except HttpResponseError as err:
        pool = _find(client, pool_id) if was_repeated(err) else None
        if pool is None or (pool.target_dedicated_nodes, pool.target_low_priority_nodes) != (
            targets.target_dedicated_nodes,
            targets.target_low_priority_nodes,
        ):
            raise


def _delete(client: BatchClient, pool_id: str) -> None:
    """Start to delete a pool, unless it is being deleted or does not exist."""
    try:
        client.begin_delete_pool(pool_id, polling_interval=1)
    except HttpResponseError as err:
        if err.status_code != HTTPStatus.NOT_FOUND and error_code(err) != "PoolBeingDeleted":
            raise


def _same_nodes(pool: models.BatchPool, spec: PoolSpec) -> bool:
    """Return True if the pool has the properties of `spec` that cannot be changed.

    The service does not return the key of a mount, so the pool's metadata contains a hash of it.
    """
    metadata = {item.name: item.value for item in pool.metadata or ()}
    if spec.share and metadata.get(_KEY_ID, spec.share.key_id) != spec.share.key_id:
        return False
    shares = [mount.azure_file_share_configuration for mount in pool.mount_configuration or ()]
    mounted = [(share.azure_file_url, share.relative_mount_path) for share in shares if share]
    wanted = [(spec.share.url, spec.share.path)] if spec.share else []
    inter_node = bool(pool.enable_inter_node_communication)
    if not _accepts_ssh(pool):  # created by an older version of runner
        return False
    same = (pool.task_slots_per_node, inter_node) == (spec.slots_per_node, spec.inter_node)
    return same and mounted == wanted


def _accepts_ssh(pool: models.BatchPool) -> bool:
    network = pool.network_configuration
    endpoints = network.endpoint_configuration if network else None
    return endpoints is not None and any(
        each.backend_port == SSH_PORT for each in endpoints.inbound_nat_pools
    )


def _same_start(pool: models.BatchPool, spec: PoolSpec) -> bool:
    start = pool.start_task
    if start is None or start.command_line != spec.start_command:
        return False
    settings = tuple((item.name, item.value) for item in start.environment_settings or ())
    return settings == spec.start_env


def _create(client: BatchClient, spec: PoolSpec) -> None:
    publisher, offer, sku = "canonical", "ubuntu-24_04-lts", "server"
    containers = None
    if spec.containers:  # the service rejects an image without a container engine
        publisher, offer, sku = "microsoft-dsvm", "ubuntu-hpc", "2404"
        containers = models.BatchContainerConfiguration(type="dockerCompatible")
    image = models.BatchVmImageReference(
        publisher=publisher, offer=offer, sku=sku, version="latest"
    )
    client.create_pool(
        models.BatchPoolCreateOptions(
            id=spec.id,
            vm_size=spec.vm_size,
            virtual_machine_configuration=models.VirtualMachineConfiguration(
                image_reference=image,
                node_agent_sku_id="batch.node.ubuntu 24.04",
                container_configuration=containers,
            ),
            target_dedicated_nodes=0,
            target_low_priority_nodes=spec.spot_nodes,
            task_slots_per_node=spec.slots_per_node,
            enable_inter_node_communication=spec.inter_node,
            start_task=_start_task(spec),
            network_configuration=_network(),
            mount_configuration=[_to_mount(spec.share)] if spec.share else None,
            metadata=[models.BatchMetadataItem(name=_KEY_ID, value=spec.share.key_id)]
            if spec.share
            else None,
        )
    )


def _network() -> models.NetworkConfiguration:
    """Return a network with an endpoint for SSH, which `runner ssh` requires."""
    ssh = models.BatchInboundNatPool(
        name="ssh",
        protocol="tcp",
        backend_port=SSH_PORT,
        frontend_port_range_start=_SSH_PORTS[0],
        frontend_port_range_end=_SSH_PORTS[1],
    )
    return models.NetworkConfiguration(
        endpoint_configuration=models.BatchPoolEndpointConfiguration(inbound_nat_pools=[ssh])
    )


def _to_mount(share: ShareMount) -> models.MountConfiguration:
    return models.MountConfiguration(
        azure_file_share_configuration=models.AzureFileShareConfiguration(
            account_name=share.account,
            azure_file_url=share.url,
            account_key=share.key,
            relative_mount_path=share.path,
        )
    )


def _start_task(spec: PoolSpec) -> models.BatchStartTask:
    return models.BatchStartTask(
        command_line=spec.start_command,
        environment_settings=[
            models.EnvironmentSetting(name=n, value=v) for n, v in spec.start_env
        ],
        wait_for_success=True,
        max_task_retry_count=1,
    )


_STATES = (
    *("creating", "deallocated", "deallocating", "idle", "leaving_pool", "offline", "preempted"),
    *("rebooting", "reimaging", "running", "start_task_failed", "starting", "unknown", "unusable"),
    *("upgrading_os", "waiting_for_start_task"),
)


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """An error that the service reports for a pool or a node."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolAutoscale:
    """The autoscale formula of a pool and its last evaluation, with the variables that it set."""

    formula: str
    interval_s: float
    evaluated: datetime | None
    results: Mapping[str, str]
    error: PoolProblem | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool; `spot` includes preempted nodes, as in the service.

    `since` is the start of its allocation state. `containers` is True if every task needs an image.
    `is_prepared` is True if its start task is that of runner, which installs what runs need.
    """

    id: str
    vm_size: str
    state: str
    allocation: str
    slots: int
    spot: int
    spot_target: int
    dedicated: int
    dedicated_target: int
    autoscale: PoolAutoscale | None
    resize_errors: tuple[PoolProblem, ...]
    image: str
    node_agent: str
    mounts: tuple[str, ...]
    inter_node: bool
    since: datetime | None = None
    containers: bool = False
    is_prepared: bool = True


@dataclass(frozen=True, slots=True)
class NodeTask:
    """One of the newest tasks of a node."""

    job_id: str
    task_id: str
    started: datetime | None
    ended: datetime | None
    succeeded: bool
    rank: int = 0  # of the node in a run over several


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `trouble` is why it is unusable, and `exit_code` is from its start task.

    `may_be_evicted`: it is unusable, but as a spot node is at the beginning of its eviction.
    """

    id: str
    state: str
    spot: bool
    running_tasks: int
    tasks_run: int
    since: datetime | None
    trouble: PoolProblem | None
    exit_code: int | None
    allocated: datetime | None = None
    booted: datetime | None = None
    recent: tuple[NodeTask, ...] = ()
    may_be_evicted: bool = False

    @property
    def is_broken(self) -> bool:
        """True if it cannot run tasks until somebody corrects or replaces it."""
        return self.state in BROKEN_STATES and not self.may_be_evicted

    @property
    def problem(self) -> str:
        """Why the node cannot run tasks; empty if the service reports no error."""
        found = self.trouble
        text = ": ".join(part for part in (found.code, found.message) if part) if found else ""
        if self.state == "starttaskfailed" and self.exit_code is not None:
            repeats = found is not None and found.code == "FailureExitCode"
            more = f"; {text}" if text and not repeats else ""
            return f"start task exited with {self.exit_code}{more}"
        return text


def list_pools(connection: Connection) -> tuple[PoolView, ...]:
    """Return all pools of the account in the order of the service."""
    with service_errors("listing the pools"):
        return tuple(_to_pool_view(pool) for pool in connection.batch_client().list_pools())


def find_pool(connection: Connection, pool_id: str) -> PoolView | None:
    """Return one pool, or None if it does not exist."""
    client = connection.batch_client()
    pool = read_or_none(f"reading pool {pool_id!r}", lambda: client.get_pool(pool_id))
    return None if pool is None else _to_pool_view(pool)


def count_node_states(connection: Connection) -> Mapping[str, Mapping[bool, Mapping[str, int]]]:
    """Return the number of nodes by pool, by spot (True) or dedicated, and by state."""
    with service_errors("counting the nodes"):
        found = list(connection.batch_client().list_pool_node_counts())
    return {
        each.pool_id: {True: _to_counts(each.low_priority), False: _to_counts(each.dedicated)}
        for each in found
    }


def list_pool_nodes(connection: Connection, pool_id: str) -> tuple[NodeView, ...]:
    """Return the nodes of a pool; empty if it does not exist."""
    with service_errors(f"listing the nodes of pool {pool_id!r}"):
        try:
            return tuple(
                _to_node_view(node) for node in connection.batch_client().list_nodes(pool_id)
            )
        except HttpResponseError as err:
            if error_code(err) not in {"PoolNotFound", "PoolBeingDeleted"}:
                raise
            return ()


def read_node_file(connection: Connection, pool_id: str, node_id: str, path: str) -> bytes | None:
    """Return a file of a node, or None if the file or the node does not exist."""
    client = connection.batch_client()
    with service_errors(f"reading {path} of node {node_id}"):
        try:
            found = client.list_node_files(pool_id, node_id, recursive=True)
            if path not in {file.name for file in found}:
                return None
            return b"".join(client.download_node_file(pool_id, node_id, path))
        except HttpResponseError as err:
            # 404: no such node; 409: its files cannot be read in its state (NodeNotReady)
            if err.status_code in {404, 409}:
                return None
            raise


def start_task_log(connection: Connection, pool_id: str, node: NodeView) -> tuple[str, ...]:
    """Return the last lines of the start task's output; empty unless the node is unusable."""
    if not node.is_broken:
        return ()
    for name in ("startup/stderr.txt", "startup/stdout.txt"):
        content = read_node_file(connection, pool_id, node.id, name)
        if content and content.strip():
            text = content[-_LOG_BYTES:].decode(errors="replace")
            return tuple(text.rstrip().splitlines()[-_LOG_LINES:])
    return ()


def resize_pool(connection: Connection, pool_id: str, *, spot: int, dedicated: int) -> None:
    """Set both targets of a pool without a formula; removed nodes finish their tasks first."""
    options = models.BatchPoolResizeOptions(
        target_dedicated_nodes=dedicated,
        target_low_priority_nodes=spot,
        node_deallocation_option=models.BatchNodeDeallocationOption.TASK_COMPLETION,
    )
    with service_errors(f"resizing pool {pool_id!r}"):
        _resize(connection.batch_client(), pool_id, options)


def set_scheduling(connection: Connection, pool_id: str, node_id: str, *, enabled: bool) -> bool:
    """Enable or disable scheduling on a node; running tasks continue. Return False if unchanged.

    Raises:
        RunnerError: the node does not exist, or its state does not allow the change.
    """
    client = connection.batch_client()
    after_tasks = models.BatchNodeDisableSchedulingOptions(
        node_disable_scheduling_option=models.BatchNodeDisableSchedulingOption.TASK_COMPLETION
    )
    what = f"{'enabling' if enabled else 'disabling'} scheduling on node {node_id!r}"
    change = partial(client.disable_node_scheduling, pool_id, node_id, after_tasks)
    if enabled:
        change = partial(client.enable_node_scheduling, pool_id, node_id)
    return succeeds(what, change, {"NodeAlreadyInTargetSchedulingState"})


def restart_node(connection: Connection, pool_id: str, node_id: str) -> None:
    """Reboot a node at once; its tasks return to the queue, as after an eviction.

    Azure does not evict on request, and rejects the removal of nodes from a pool with autoscale.

    Raises:
        RunnerError: R-NODE-RESTART, the service refused it.
    """
    path = f"/pools/{pool_id}/nodes/{node_id}/reboot"
    answer = send_raw(connection, "POST", path, {"nodeRebootOption": "requeue"})
    if answer.code:
        raise RunnerError(
            "R-NODE-RESTART",
            f"cannot restart node {node_id}",
            why=f"the service answered {answer.status} {answer.code}",
            fix="run the same command again: the node may have been evicted at this moment",
        )


def delete_pool(connection: Connection, pool_id: str) -> None:
    """Start to delete a pool with its nodes, if it exists."""
    with service_errors(f"deleting pool {pool_id!r}"):
        _delete(connection.batch_client(), pool_id)


def evaluate_formula(connection: Connection, pool_id: str, formula: str) -> PoolAutoscale:
    """Evaluate a formula on a pool that has a formula, without applying it.

    An invalid formula is an error of the result, like a failed evaluation.
    """
    options = models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula=formula)
    with service_errors(f"evaluating a formula on pool {pool_id!r}"):
        try:
            run = connection.batch_client().evaluate_pool_auto_scale(pool_id, options)
        except HttpResponseError as err:
            if error_code(err) not in FORMULA_CODES:
                raise
            refused: Any = getattr(err, "model", None)
            details = [str(each.value) for each in refused.error_values or () if each.value]
            problem = PoolProblem(error_code(err), "; ".join(details) or err.message)
            return PoolAutoscale(formula, 0, None, {}, problem)
    return _to_evaluation(formula, 0, run)


def enable_autoscale(
    connection: Connection, pool_id: str, formula: str, interval: timedelta | None
) -> None:
    """Set the formula of a pool. If `interval` is None, keep the evaluation interval."""
    options = models.BatchPoolEnableAutoScaleOptions(
        auto_scale_formula=formula, auto_scale_evaluation_interval=interval
    )
    with service_errors(f"setting the formula of pool {pool_id!r}"):
        connection.batch_client().enable_pool_auto_scale(pool_id, options)


def disable_autoscale(connection: Connection, pool_id: str) -> None:
    """Disable autoscale; the targets stay as they are."""
    with service_errors(f"disabling autoscale of pool {pool_id!r}"):
        connection.batch_client().disable_pool_auto_scale(pool_id)


def _to_pool_view(pool: models.BatchPool) -> PoolView:
    machine = pool.virtual_machine_configuration
    return PoolView(
        id=pool.id,
        vm_size=pool.vm_size,
        state=wire_text(pool.state),
        allocation=wire_text(pool.allocation_state),
        slots=pool.task_slots_per_node or 1,
        spot=pool.current_low_priority_nodes or 0,
        spot_target=pool.target_low_priority_nodes or 0,
        dedicated=pool.current_dedicated_nodes or 0,
        dedicated_target=pool.target_dedicated_nodes or 0,
        autoscale=_to_autoscale(pool) if pool.enable_auto_scale else None,
        resize_errors=tuple(_to_problem(each) for each in pool.resize_errors or ()),
        image=_describe_image(machine.image_reference) if machine else "",
        node_agent=machine.node_agent_sku_id if machine else "",
        mounts=tuple(_describe_mount(each) for each in pool.mount_configuration or ()),
        inter_node=bool(pool.enable_inter_node_communication),
        since=pool.allocation_state_transition_time,
        containers=bool(machine and machine.container_configuration),
        is_prepared=_is_prepared(pool.start_task),
    )


# Variables of our start tasks: of the pools of a stack, and of local ones.
_SETUP_VARIABLES = frozenset({"RUNNER_NODE_SETUP", "RUNNER_NODE_UV"})


def _is_prepared(start: models.BatchStartTask | None) -> bool:
    settings = (start.environment_settings or ()) if start is not None else ()
    return any(item.name in _SETUP_VARIABLES for item in settings)


def _to_autoscale(pool: models.BatchPool) -> PoolAutoscale:
    interval = pool.auto_scale_evaluation_interval
    interval_s = interval.total_seconds() if interval else 900.0
    return _to_evaluation(pool.auto_scale_formula or "", interval_s, pool.auto_scale_run)


def _to_evaluation(
    formula: str, interval_s: float, run: models.AutoScaleRun | None
) -> PoolAutoscale:
    settings = (each.partition("=") for each in (run.results or "").split(";")) if run else ()
    return PoolAutoscale(
        formula=formula,
        interval_s=interval_s,
        evaluated=run.timestamp if run else None,
        results={name.strip(): value.strip() for name, _, value in settings if name.strip()},
        error=_to_problem(run.error) if run and run.error else None,
    )


def _to_problem(error: Any) -> PoolProblem:
    """Return the message and details of a ResizeError, AutoScaleRunError or BatchNodeError."""
    details: Iterable[Any] = (
        getattr(error, "error_values", None) or getattr(error, "error_details", None) or ()
    )
    texts = [str(error.message or "").strip()]
    texts += [f"{each.name}: {each.value}" for each in details if each.name and each.value]
    return PoolProblem(str(error.code or ""), "; ".join(part for part in texts if part))


def _describe_image(image: models.BatchVmImageReference) -> str:
    gallery = image.virtual_machine_image_id or image.shared_gallery_image_id
    if gallery:
        return gallery.rsplit("/galleries/", 1)[-1]
    return ":".join(
        str(part) for part in (image.publisher, image.offer, image.sku, image.version) if part
    )


def _describe_mount(mount: models.MountConfiguration) -> str:
    """Return path and source of a mount such as `fsmounts/data: blob data`, without its key."""
    if blob := mount.azure_blob_file_system_configuration:
        return f"{blob.relative_mount_path}: blob {blob.container_name}"
    if share := mount.azure_file_share_configuration:
        return f"{share.relative_mount_path}: share {share.azure_file_url}"
    if nfs := mount.nfs_mount_configuration:
        return f"{nfs.relative_mount_path}: nfs {nfs.source}"
    if cifs := mount.cifs_mount_configuration:
        return f"{cifs.relative_mount_path}: cifs {cifs.source}"
    return "unknown"


def _to_counts(counts: models.BatchNodeCounts | None) -> Mapping[str, int]:
    found = {name: int(getattr(counts, name, 0) or 0) for name in _STATES} if counts else {}
    return {name.replace("_", ""): count for name, count in found.items() if count}


def _to_node_view(node: models.BatchNode) -> NodeView:
    info = node.start_task_info
    failure = info.failure_info if info else None
    errors = [_to_problem(error) for error in node.errors or ()]
    if failure is not None:
        errors.append(PoolProblem(str(failure.code or ""), str(failure.message or "").strip()))
    return NodeView(
        id=str(node.id),
        state=wire_text(node.state),
        spot=not node.is_dedicated,
        running_tasks=node.running_tasks_count or 0,
        tasks_run=node.total_tasks_run or 0,
        since=node.state_transition_time,
        trouble=errors[0] if errors else None,
        exit_code=info.exit_code if info else None,
        allocated=node.allocation_time,
        booted=node.last_boot_time,
        recent=tuple(_to_node_task(task) for task in node.recent_tasks or ()),
        may_be_evicted=not errors and _may_be_evicted(node, node.state_transition_time),
    )


def _may_be_evicted(node: models.BatchNode, since: datetime | None) -> bool:
    is_lost = not node.is_dedicated and wire_text(node.state) == "unusable"
    return is_lost and since is not None and datetime.now(UTC) - since < _EVICTION_TAKES


def _to_node_task(task: models.BatchTaskInfo) -> NodeTask:
    info = task.execution_info
    result = wire_text(info.result) if info and info.result else ""
    return NodeTask(
        job_id=str(task.job_id or ""),
        task_id=str(task.task_id or ""),
        started=info.start_time if info else None,
        ended=info.end_time if info else None,
        succeeded=result == "success",
        rank=task.subtask_id or 0,
    )
