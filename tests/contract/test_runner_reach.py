"""Access of the runner to nodes, against the emulator: users, addresses and refusals."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.batch import BatchClient, models

from runner.azure.auth.credentials import Connection
from runner.azure.batch.node_users import (
    Address,
    TaskPlace,
    add_user,
    delete_user,
    find_address,
    task_places,
)
from runner.azure.batch.pools import PoolSpec, ensure_pool
from runner.protocol.errors import RunnerError
from tests.contract.server import ACCOUNT, KEY, POOL, Running, Things, network_with, wire
from tests.unit.core.recipe_maker import outputs

SOON = datetime.now(UTC) + timedelta(hours=1)
KEY_TEXT = "ssh-rsa AAAAB3Nza runner"


@pytest.fixture
def connection(running: Running) -> Connection:
    stack = replace(outputs(), batch_account=ACCOUNT, batch_endpoint=running.url)
    return Connection(stack, {"batch": KEY, "storage": KEY})


def test_user_on_the_node_of_a_task_is_added_and_removed_repeatedly(
    connection: Connection, things: Things, client: BatchClient
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    task_id = things.task(job_id, "sleep 60")
    things.wait_task(job_id, task_id, "running")
    [place] = task_places(connection, job_id, task_id)
    assert (place.pool, place.container) == (pool_id, None)
    add_user(connection, place, "runner-1", KEY_TEXT, SOON)
    with pytest.raises(RunnerError):
        add_user(connection, place, "runner-1", KEY_TEXT, SOON)
    delete_user(connection, place, "runner-1")
    delete_user(connection, place, "runner-1")
    assert task_places(connection, job_id, "no-such-task") == ()
    client.terminate_task(job_id, task_id)


def test_address_is_that_of_the_endpoint_for_ssh(connection: Connection, things: Things) -> None:
    network = network_with({"board": 6006, "ssh": 22})
    pool_id = things.pool(target_dedicated_nodes=1, network_configuration=network)
    [node] = things.wait_nodes(pool_id, 1)
    found = find_address(connection, TaskPlace(pool_id, node.id, None))
    assert found == Address("127.0.0.1", 40100)
    plain = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(plain, 1)
    with pytest.raises(RunnerError) as caught:
        find_address(connection, TaskPlace(plain, node.id, None))
    assert caught.value.code == "R-REACH-CLOSED"


def test_nodes_of_a_local_pool_have_an_address(connection: Connection, things: Things) -> None:
    spec = PoolSpec(things.id("pool"), POOL["vmSize"], 1, 1, "/bin/true")
    older = things.pool(id=spec.id)
    assert ensure_pool(connection, spec) == "recreated"
    [node] = things.wait_nodes(older, 1)
    found = find_address(connection, TaskPlace(spec.id, node.id, None))
    assert ipaddress.ip_address(found.host).is_loopback


def test_private_address_is_used_in_a_network_of_the_pool_only(
    connection: Connection, things: Things
) -> None:
    def node_in(**network: str) -> tuple[TaskPlace, str]:
        body = {**network, "publicIPAddressConfiguration": {"provision": "noPublicIPAddresses"}}
        pool_id = things.pool(target_dedicated_nodes=1, network_configuration=wire(**body))
        [node] = things.wait_nodes(pool_id, 1)
        return TaskPlace(pool_id, str(node.id), None), str(node.ip_address)

    network = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v"
    place, private = node_in(subnetId=f"{network}/subnets/nodes")
    assert find_address(connection, place) == Address(private, 22)
    elsewhere, _ = node_in()
    with pytest.raises(RunnerError) as caught:
        find_address(connection, elsewhere)
    assert caught.value.code == "R-REACH-CLOSED"
    assert "has no endpoint for port 22" in caught.value.why


def test_missing_or_unready_node_is_reported(
    connection: Connection, things: Things, client: BatchClient
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    gone = TaskPlace(pool_id, "tvm-gone", None)
    for call in (
        lambda: find_address(connection, gone),
        lambda: add_user(connection, gone, "runner-1", KEY_TEXT, SOON),
    ):
        with pytest.raises(RunnerError) as caught:
            call()
        assert caught.value.code == "R-REACH-NODE"
    delete_user(connection, gone, "runner-1")
    here = TaskPlace(pool_id, node.id, None)
    client.begin_deallocate_node(
        pool_id, node.id, wire(nodeDeallocateOption="requeue"), polling_interval=0
    ).wait()
    with pytest.raises(RunnerError) as caught:
        add_user(connection, here, "runner-1", KEY_TEXT, SOON)
    assert caught.value.code == "R-REACH-NODE"
    delete_user(connection, here, "runner-1")


def test_nodes_of_subtasks_follow_that_of_the_primary(
    connection: Connection, things: Things, client: BatchClient
) -> None:
    pool_id = things.pool(
        target_dedicated_nodes=2, task_slots_per_node=1, enable_inter_node_communication=True
    )
    things.wait_nodes(pool_id, 2)
    job_id = things.job(pool_id)
    settings = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="/bin/true"
    )
    task_id = things.task(job_id, "sleep 60", multi_instance_settings=settings)
    things.wait_task(job_id, task_id, "running")
    first, second = task_places(connection, job_id, task_id)
    assert (first.pool, second.pool) == (pool_id, pool_id)
    assert first.node != second.node
    client.terminate_task(job_id, task_id)
