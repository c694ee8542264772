"""SSH access to nodes: users with a key, the address of a node, and the node of a task."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.batch.translate import wire_text
from runner.azure.faults import error_code, service_errors, was_repeated
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from azure.batch import BatchClient

    from runner.azure.auth.credentials import Connection

SSH_PORT = 22
# Error codes of a node that cannot add a user at present (BatchErrorCodeStrings of the SDKs).
_UNAVAILABLE_CODES = frozenset(
    {
        *("NodeBeingRebooted", "NodeBeingReimaged", "NodeBeingCreated", "NodeBeingStarted"),
        *("NodeStateUnusable", "NodeNotReady", "OperationInvalidForCurrentState"),
    }
)


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The node of a task or subtask; `container` is the ID of its container, or None.

    `folder` is that of the task below the root of the node, as the service reports it.
    """

    pool: str
    node: str
    container: str | None
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a node for SSH. `booted` is the time of its last start, or empty."""

    host: str
    port: int
    booted: str = field(default="", compare=False)


def task_places(connection: Connection, job_id: str, task_id: str) -> tuple[TaskPlace, ...]:
    """Return the node of a task, then those of its subtasks."""
    client = connection.batch_client()
    with service_errors(f"reading task {task_id}"):
        try:
            task = client.get_task(job_id, task_id)
            places = [_to_place(task.node_info, task.execution_info)]
            if task.multi_instance_settings:
                places += [
                    _to_place(each.node_info, each)
                    for each in client.list_subtasks(job_id, task_id)
                ]
        except ResourceNotFoundError:
            return ()
    return tuple(place for place in places if place is not None)


def _to_place(
    node: models.BatchNodeInfo | None,
    info: models.BatchTaskExecutionInfo | models.BatchSubtask | None,
) -> TaskPlace | None:
    if node is None or not node.node_id:
        return None
    container = info.container_info.container_id if info and info.container_info else None
    folder = (node.task_root_directory or "").strip("/")
    return TaskPlace(node.pool_id or "", node.node_id, container, folder)


def add_user(
    connection: Connection, place: TaskPlace, name: str, public_key: str, expires: datetime
) -> None:
    """Add an administrator to a node, because other users cannot enter the folders of tasks.

    The rights are used for one thing, to become the user of the task (runner/flows/shell.py).
    Linux nodes round `expires` to the day (docs of BatchNodeUserCreateOptions).

    Raises:
        RunnerError: the node does not exist, or cannot add a user at present.
    """
    user = models.BatchNodeUserCreateOptions(
        name=name, is_admin=True, ssh_public_key=public_key, expiry_time=expires
    )
    with service_errors(f"adding a user to node {place.node}"), _node_required(place):
        try:
            connection.batch_client().create_node_user(place.pool, place.node, user)
        except HttpResponseError as err:
            # The service does not return users, but the random name is unique.
            if error_code(err) != "NodeUserExists" or not was_repeated(err):
                raise


def delete_user(connection: Connection, place: TaskPlace, name: str) -> None:
    """Delete a user, if it and the node exist."""
    with service_errors(f"removing a user from node {place.node}"):
        try:
            connection.batch_client().delete_node_user(place.pool, place.node, name)
        except HttpResponseError as err:
            if err.status_code != 404 and error_code(err) not in _UNAVAILABLE_CODES:
                raise


def find_address(connection: Connection, place: TaskPlace) -> Address:
    """Return the address of a node: an endpoint for port 22, or its private one in a subnet.

    The node lists the endpoints that its pool declares, and in older pools the one that the service
    added for SSH. The remote login settings are not read, because the answer for a node without an
    endpoint is not documented (docs/decisions/0022-nodes-without-an-endpoint-for-ssh.md).

    Raises:
        RunnerError: the node does not exist, accepts no users at present, or has no endpoint.
    """
    client = connection.batch_client()
    with service_errors(f"reading the address of node {place.node}"), _node_required(place):
        node = client.get_node(place.pool, place.node)
        booted = node.last_boot_time.isoformat() if node.last_boot_time else ""
        endpoints = (
            node.endpoint_configuration.inbound_endpoints if node.endpoint_configuration else []
        )
        for each in endpoints:
            if each.backend_port == SSH_PORT and wire_text(each.protocol) == "tcp":
                return Address(
                    each.public_ip_address or each.public_fqdn, each.frontend_port, booted
                )
        # Every node has a private address, but only a subnet is reachable from another network.
        if node.ip_address and _is_in_subnet(client, place.pool):
            return Address(node.ip_address, SSH_PORT, booted)
    raise _closed_error(place)


def _is_in_subnet(client: BatchClient, pool_id: str) -> bool:
    """Return True if the pool is in a subnet, which a VPN or another machine can reach."""
    network = client.get_pool(pool_id, select=["networkConfiguration"]).network_configuration
    return network is not None and bool(network.subnet_id)


@contextmanager
def _node_required(place: TaskPlace) -> Generator[None]:
    """Raise RunnerError if the node does not exist or accepts no users at present."""
    try:
        yield
    except HttpResponseError as err:
        code = error_code(err)
        if err.status_code != 404 and code not in _UNAVAILABLE_CODES:
            raise
        raise RunnerError(
            "R-REACH-NODE",
            f"cannot sign in to node {place.node} now",
            why=f"{code}: the node was removed or is starting",
            fix=f"run `runner pool nodes {place.pool}`; the run of a lost node continues elsewhere",
        ) from err


def _closed_error(place: TaskPlace) -> RunnerError:
    return RunnerError(
        "R-REACH-CLOSED",
        f"pool {place.pool!r} accepts no connections from outside",
        why=f"node {place.node} has no endpoint for port {SSH_PORT}; Azure Batch adds none since "
        "30 November 2025",
        fix="set `ssh_from: [YOUR_IP/32]` for the pool in the stack's file, then run `runner up`",
    )
