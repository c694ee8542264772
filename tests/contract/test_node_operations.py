"""Operations on nodes through the official SDK."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests.contract.server import (
    POLL_S,
    Running,
    Things,
    code_of,
    eventually,
    network_with,
    wire,
)
from tests.unit.emulator import blob_store

# the SDK allows to leave out these bodies, but then fails
DEALLOCATE = wire(nodeDeallocateOption="requeue")
DISABLE = wire(nodeDisableSchedulingOption="requeue")


def refused(error: pytest.ExceptionInfo[HttpResponseError]) -> tuple[int | None, str]:
    return error.value.status_code, code_of(error.value)


@pytest.fixture
def node(things: Things) -> tuple[str, str]:
    """Return a new pool with one idle node, for one test."""
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    return pool_id, str(node.id)


def test_reimaged_node_has_an_empty_disk(
    client: BatchClient, things: Things, node: tuple[str, str], running: Running
) -> None:
    job_id = things.job(node[0])
    command = "/bin/sh -c 'touch $AZ_BATCH_NODE_SHARED_DIR/left'"
    task = things.wait_task(job_id, things.task(job_id, command))
    assert task.execution_info is not None
    assert task.execution_info.exit_code == 0
    shared = running.emulator.launches.layout(*node).shared
    assert (shared / "left").exists()
    client.begin_reimage_node(*node, wire(nodeReimageOption="requeue"), polling_interval=POLL_S)
    things.wait_nodes(node[0], 1, "idle")
    assert eventually(lambda: shared.is_dir() and not list(shared.iterdir()))


def test_deallocated_node_is_listed_and_can_be_started(
    client: BatchClient, things: Things, node: tuple[str, str]
) -> None:
    client.begin_deallocate_node(*node, DEALLOCATE, polling_interval=POLL_S).wait()
    things.wait_nodes(node[0], 1, "deallocated")
    [counts] = client.list_pool_node_counts(filter=f"poolId eq '{node[0]}'")
    assert counts.dedicated is not None
    assert (counts.dedicated.deallocated, counts.dedicated.total) == (1, 1)
    with pytest.raises(HttpResponseError) as caught:
        client.begin_deallocate_node(*node, DEALLOCATE)
    assert refused(caught) == (409, "OperationInvalidForCurrentState")
    client.begin_start_node(*node, polling_interval=POLL_S).wait()
    [found] = things.wait_nodes(node[0], 1, "idle")
    assert found.id == node[1]


def test_scheduling_is_disabled_and_enabled_once(
    client: BatchClient, things: Things, node: tuple[str, str]
) -> None:
    client.disable_node_scheduling(*node, DISABLE)
    [found] = things.wait_nodes(node[0], 1, "offline")
    assert found.scheduling_state == "disabled"
    with pytest.raises(HttpResponseError) as caught:
        client.disable_node_scheduling(*node, DISABLE)
    assert refused(caught) == (409, "NodeAlreadyInTargetSchedulingState")
    client.enable_node_scheduling(*node)
    things.wait_nodes(node[0], 1, "idle")
    with pytest.raises(HttpResponseError) as caught:
        client.enable_node_scheduling(*node)
    assert refused(caught) == (409, "NodeAlreadyInTargetSchedulingState")


def test_removed_node_lowers_the_target(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=2)
    first, second = things.wait_nodes(pool_id, 2)
    poller = client.begin_remove_nodes(
        pool_id, models.BatchNodeRemoveOptions(node_ids=[first.id]), polling_interval=POLL_S
    )
    poller.wait()
    pool = client.get_pool(pool_id)
    assert (pool.target_dedicated_nodes, pool.current_dedicated_nodes) == (1, 1)
    assert [node.id for node in client.list_nodes(pool_id)] == [second.id]
    with pytest.raises(HttpResponseError) as caught:
        client.begin_remove_nodes(pool_id, models.BatchNodeRemoveOptions(node_ids=["tvm-no"]))
    assert refused(caught) == (404, "NodeNotFound")


def test_users_are_added_changed_and_deleted(client: BatchClient, node: tuple[str, str]) -> None:
    user = models.BatchNodeUserCreateOptions(name="ann", is_admin=True, password="s3cret-word")
    client.create_node_user(*node, user)
    with pytest.raises(HttpResponseError) as caught:
        client.create_node_user(*node, user)
    assert refused(caught) == (409, "NodeUserExists")
    client.replace_node_user(*node, "ann", models.BatchNodeUserReplaceOptions(password="other"))
    client.delete_node_user(*node, "ann")
    with pytest.raises(HttpResponseError) as caught:
        client.delete_node_user(*node, "ann")
    assert refused(caught) == (404, "NodeUserNotFound")


def test_passwords_of_users_are_not_on_disk(
    client: BatchClient, node: tuple[str, str], running: Running
) -> None:
    user = models.BatchNodeUserCreateOptions(name="bob", password="never-written-down")
    client.create_node_user(*node, user)
    folder = running.emulator.settings.data_dir
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not any(b"never-written-down" in path.read_bytes() for path in files)


def test_node_without_an_endpoint_has_no_remote_login_settings(
    client: BatchClient, node: tuple[str, str]
) -> None:
    with pytest.raises(HttpResponseError) as caught:
        client.get_node_remote_login_settings(*node)
    assert refused(caught) == (409, "OperationNotValidOnNode")


def test_node_shows_the_endpoints_of_the_nat_pools(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=2, network_configuration=network_with({"ssh": 22}))
    ports: dict[str, int] = {}
    for node in things.wait_nodes(pool_id, 2):
        shown = client.get_node(pool_id, node.id).endpoint_configuration
        assert shown is not None
        [endpoint] = shown.inbound_endpoints
        assert (endpoint.protocol, endpoint.backend_port) == ("tcp", 22)
        assert endpoint.public_ip_address == "127.0.0.1"
        ports[endpoint.name] = endpoint.frontend_port
        login = client.get_node_remote_login_settings(pool_id, node.id)
        assert login.remote_login_ip_address == endpoint.public_ip_address
        assert login.remote_login_port == endpoint.frontend_port
    assert ports == {"ssh.0": 40000, "ssh.1": 40001}


def test_extensions_of_the_pool_are_shown_without_their_secrets(
    client: BatchClient, things: Things
) -> None:
    machine = models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(
            publisher="canonical", offer="ubuntu-24_04-lts", sku="server"
        ),
        node_agent_sku_id="batch.node.ubuntu 24.04",
        extensions=[
            models.VMExtension(
                name="Watch",
                publisher="p",
                type="t",
                settings={"a": "b"},
                protected_settings={"key": "hush"},
            )
        ],
    )
    pool_id = things.pool(target_dedicated_nodes=1, virtual_machine_configuration=machine)
    [node] = things.wait_nodes(pool_id, 1)
    agent, found = client.list_node_extensions(pool_id, node.id)
    assert agent.vm_extension is not None
    assert agent.vm_extension.name == "batchNodeExtension"
    one = client.get_node_extension(pool_id, node.id, "watch")
    assert found.as_dict().items() <= one.as_dict().items()
    assert one.instance_view is not None
    assert one.instance_view.statuses is not None
    assert one.instance_view.statuses[0].code == "ProvisioningState/succeeded"
    assert "hush" not in str(one.as_dict()) + str(client.get_pool(pool_id).as_dict())
    with pytest.raises(HttpResponseError) as caught:
        client.get_node_extension(pool_id, node.id, "none")
    assert caught.value.status_code == 404


def test_logs_of_a_node_are_uploaded_to_the_container(client: BatchClient, things: Things) -> None:
    task = models.BatchStartTask(command_line="/bin/sh -c 'echo hello'")
    pool_id = things.pool(target_dedicated_nodes=1, start_task=task)
    [node] = things.wait_nodes(pool_id, 1)
    long_ago, never = datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    with blob_store.serve() as store:
        logs = store.containers.setdefault("logs", {})
        options = models.UploadBatchServiceLogsOptions(
            container_url=store.container_url("logs"), start_time=long_ago
        )
        found = client.upload_node_logs(pool_id, node.id, options)
        folder = found.virtual_directory_name
        assert folder.split("/")[1:3] == [pool_id, node.id]
        eventually(lambda: len(logs) == found.number_of_files_uploaded)
        assert {name.removeprefix(f"{folder}/") for name in logs} == {
            "agent.log",
            "startup/stderr.txt",
            "startup/stdout.txt",
        }
        assert logs[f"{folder}/startup/stdout.txt"] == b"hello\n"
        assert b'"waitingforstarttask"' in logs[f"{folder}/agent.log"]
        options.start_time = never  # the log of the agent is still written
        assert client.upload_node_logs(pool_id, node.id, options).number_of_files_uploaded == 1
        options.container_url, options.start_time = store.container_url("none"), long_ago
        assert client.upload_node_logs(pool_id, node.id, options).number_of_files_uploaded == 3
