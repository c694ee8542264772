"""People on nodes: a user with a key, the address to sign in to, and where a task runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.batch.translate import wire_text
from runner.azure.faults import error_code, service_errors
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection

SSH_PORT = 22
# What the service answers where a node cannot take a user now (BatchErrorCodeStrings of the SDKs).
_NOT_NOW = frozenset(
    {
        *("NodeBeingRebooted", "NodeBeingReimaged", "NodeBeingCreated", "NodeBeingStarted"),
        *("NodeStateUnusable", "NodeNotReady", "OperationInvalidForCurrentState"),
    }
)


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task, or a subtask of it, runs; `container` is its container's id if it has one."""

    pool: str
    node: str
    container: str | None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens for SSH."""

    host: str
    port: int


def task_places(connection: Connection, job_id: str, task_id: str) -> tuple[TaskPlace, ...]:
    """Where a task runs: its own node first, then those of its subtasks."""
    client = connection.batch_client()
    with service_errors(f"looking at task {task_id}"):
        try:
            task = client.get_task(job_id, task_id)
            places = [_place(task.node_info, task.execution_info)]
            if task.multi_instance_settings:
                places += [
                    _place(each.node_info, each) for each in client.list_subtasks(job_id, task_id)
                ]
        except ResourceNotFoundError:
            return ()
    return tuple(place for place in places if place is not None)


def _place(
    node: models.BatchNodeInfo | None,
    info: models.BatchTaskExecutionInfo | models.BatchSubtask | None,
) -> TaskPlace | None:
    if node is None or not node.node_id:
        return None
    container = info.container_info.container_id if info and info.container_info else None
    return TaskPlace(node.pool_id or "", node.node_id, container)


def add_user(
    connection: Connection, place: TaskPlace, name: str, public_key: str, expires: datetime
) -> None:
    """Add an administrator to a node: only one may look into the folders of tasks.

    Linux nodes keep the expiry to the day (docs of BatchNodeUserCreateOptions).
    """
    user = models.BatchNodeUserCreateOptions(
        name=name, is_admin=True, ssh_public_key=public_key, expiry_time=expires
    )
    with service_errors(f"adding a user to node {place.node}"), _node_there(place):
        connection.batch_client().create_node_user(place.pool, place.node, user)


def delete_user(connection: Connection, place: TaskPlace, name: str) -> None:
    """Take a user away; nothing to do where it, or the node, is gone."""
    with service_errors(f"removing a user from node {place.node}"):
        try:
            connection.batch_client().delete_node_user(place.pool, place.node, name)
        except HttpResponseError as err:
            if err.status_code != 404 and error_code(err) not in _NOT_NOW:
                raise


def find_address(connection: Connection, place: TaskPlace) -> Address:
    """Where the node listens: an endpoint of its pool for port 22, or what the service maps itself.

    The service maps nothing for pools made since 30 November 2025, whatever the API version:
    https://learn.microsoft.com/azure/batch/pool-endpoint-configuration (2026-01-12).
    """
    client = connection.batch_client()
    with service_errors(f"looking for the address of node {place.node}"), _node_there(place):
        node = client.get_node(place.pool, place.node)
        endpoints = (
            node.endpoint_configuration.inbound_endpoints if node.endpoint_configuration else []
        )
        for each in endpoints:
            if each.backend_port == SSH_PORT and wire_text(each.protocol) == "tcp":
                return Address(each.public_ip_address or each.public_fqdn, each.frontend_port)
        why = "the service names no address"
        try:
            found = client.get_node_remote_login_settings(place.pool, place.node)
            if found.remote_login_ip_address:
                return Address(found.remote_login_ip_address, found.remote_login_port or SSH_PORT)
        except HttpResponseError as err:
            gone = error_code(err) in {"NodeNotFound", *_NOT_NOW}
            if gone or err.status_code not in {400, 404, 409}:
                raise
            why = error_code(err)
        # A pool without public addresses: whoever is in its network reaches the node itself.
        if node.ip_address:
            return Address(node.ip_address, SSH_PORT)
    raise _closed(place, why)


class _node_there:  # noqa: N801  reads as a statement
    """Tells a node that went away, or cannot be entered now, from other trouble."""

    def __init__(self, place: TaskPlace) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        if not isinstance(err, HttpResponseError):
            return
        code = error_code(err)
        if err.status_code == 404 or code in _NOT_NOW:
            raise _unreachable(self._place, code) from err


def _unreachable(place: TaskPlace, code: str) -> RunnerError:
    return RunnerError(
        "R-REACH-NODE",
        f"node {place.node} cannot be entered now",
        why=f"the service says {code}: it went away, or is being made ready",
        fix=f"runner pool nodes {place.pool}; a run whose node was lost goes on on another one",
        exit_code=ExitCode.CAPACITY,
    )


def _closed(place: TaskPlace, why: str) -> RunnerError:
    return RunnerError(
        "R-REACH-CLOSED",
        f"pool {place.pool!r} lets nobody in from outside",
        why=f"{why}; pools made since 30 November 2025 map no port for SSH by themselves",
        fix="ssh_from: [YOUR ADDRESS/32] at the pool, in Pulumi.<stack>.yaml; then runner up",
        exit_code=ExitCode.PREFLIGHT,
    )
