"""Pools through the official SDK."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.batch import BatchClient, models
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from tests.contract.server import POLL_S, Things, code_of, eventually, serving


def test_new_pool_is_resized_to_its_targets(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1, target_low_priority_nodes=2)
    things.wait_nodes(pool_id, 3)
    pool = client.get_pool(pool_id)
    assert (pool.state, pool.allocation_state) == ("active", "steady")
    assert (pool.current_dedicated_nodes, pool.current_low_priority_nodes) == (1, 2)
    assert pool.resize_errors is None


def test_metadata_and_size_are_shown(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(metadata=[models.BatchMetadataItem(name="a", value="b")])
    pool = client.get_pool(pool_id)
    assert pool.metadata is not None
    assert (pool.metadata[0].name, pool.metadata[0].value) == ("a", "b")
    assert pool.vm_size == "standard_d2s_v3"  # as the service writes it


def test_patch_changes_size_and_slots_of_an_empty_pool_only(
    client: BatchClient, things: Things
) -> None:
    empty, used = things.pool(), things.pool(target_dedicated_nodes=1)
    things.wait_nodes(used, 1)
    update = models.BatchPoolUpdateOptions(vm_size="standard_d4s_v3", task_slots_per_node=2)
    client.update_pool(empty, update)
    pool = client.get_pool(empty)
    assert (pool.vm_size, pool.task_slots_per_node) == ("standard_d4s_v3", 2)
    with pytest.raises(HttpResponseError) as caught:
        client.update_pool(used, update)
    assert code_of(caught.value) == "OperationInvalidForCurrentState"


def test_pool_exists_is_an_error_for_a_missing_pool(client: BatchClient, things: Things) -> None:
    pool_id = things.pool()
    assert client.pool_exists(pool_id) is True
    with pytest.raises(ResourceNotFoundError):
        client.pool_exists("absent")


def test_ids_ignore_case(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(id=things.id("CaseD"))
    assert client.get_pool(pool_id.lower()).id == pool_id
    with pytest.raises(ResourceExistsError) as caught:
        things.pool(id=pool_id.upper())
    assert code_of(caught.value) == "PoolExists"


def test_patch_keeps_omitted_properties_and_replace_clears_them(
    client: BatchClient, things: Things
) -> None:
    pool_id = things.pool(
        start_task=models.BatchStartTask(command_line="/bin/true"),
        metadata=[models.BatchMetadataItem(name="a", value="b")],
    )
    client.update_pool(
        pool_id,
        models.BatchPoolUpdateOptions(metadata=[models.BatchMetadataItem(name="c", value="d")]),
    )
    pool = client.get_pool(pool_id)
    assert pool.start_task is not None
    assert pool.metadata is not None
    assert pool.metadata[0].name == "c"
    client.replace_pool_properties(
        pool_id, models.BatchPoolReplaceOptions(application_package_references=[], metadata=[])
    )
    assert client.get_pool(pool_id).start_task is None


def test_stale_etag_is_refused(client: BatchClient, things: Things) -> None:
    pool_id = things.pool()
    etag = client.get_pool(pool_id).etag
    change = models.BatchPoolUpdateOptions(metadata=[])
    client.update_pool(pool_id, change, etag=etag, match_condition=MatchConditions.IfNotModified)
    with pytest.raises(HttpResponseError) as caught:
        client.update_pool(
            pool_id, change, etag=etag, match_condition=MatchConditions.IfNotModified
        )
    assert caught.value.status_code == 412


def test_resize_adds_and_removes_nodes(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    for count in (3, 0):
        eventually(lambda: client.get_pool(pool_id).allocation_state == "steady")
        client.begin_resize_pool(
            pool_id,
            models.BatchPoolResizeOptions(target_dedicated_nodes=count),
            polling_interval=POLL_S,
        ).wait()
        assert client.get_pool(pool_id).allocation_state == "steady"
        assert len(things.wait_nodes(pool_id, count)) == count


def test_resize_during_resize_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "slow", boot_s=600.0) as running:
        client = running.client
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=1)
        with pytest.raises(HttpResponseError) as caught:
            client.begin_resize_pool(
                pool_id, models.BatchPoolResizeOptions(target_dedicated_nodes=2)
            )
        assert code_of(caught.value) == "PoolBeingResized"
        client.begin_stop_pool_resize(pool_id, polling_interval=POLL_S).wait()
        pool = client.get_pool(pool_id)
        assert pool.allocation_state == "steady"
        assert pool.resize_errors is not None
        assert pool.resize_errors[0].code == "ResizeStopped"


def test_core_quota_limits_nodes_with_a_resize_error(tmp_path: Path) -> None:
    with serving(tmp_path / "small", dedicated_cores=4) as running:
        client = running.client
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=3)
        things.wait_nodes(pool_id, 2)
        eventually(lambda: client.get_pool(pool_id).allocation_state == "steady")
        errors = client.get_pool(pool_id).resize_errors
        assert errors is not None
        assert errors[0].code == "AccountCoreQuotaReached"


def test_deleted_pool_is_gone_with_its_nodes(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=2)
    things.wait_nodes(pool_id, 2)
    client.begin_delete_pool(pool_id, polling_interval=POLL_S).wait()
    with pytest.raises(ResourceNotFoundError) as caught:
        client.get_pool(pool_id)
    assert code_of(caught.value) == "PoolNotFound"


def test_node_counts_cover_every_pool(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_low_priority_nodes=1)
    things.wait_nodes(pool_id, 1)
    [counts] = list(client.list_pool_node_counts(filter=f"poolId eq '{pool_id}'"))
    assert counts.low_priority is not None
    assert counts.dedicated is not None
    assert (counts.low_priority.idle, counts.low_priority.total) == (1, 1)
    assert counts.dedicated.total == 0


def test_lists_are_paged_with_filter_and_select(client: BatchClient, things: Things) -> None:
    prefix = things.id("page")
    for number in range(5):
        things.pool(id=f"{prefix}-{number}")
    pages = client.list_pools(
        filter=f"startswith(id, '{prefix}')", select=["id"], max_results=2
    ).by_page()
    found = [[pool.as_dict() for pool in page] for page in pages]
    assert [len(page) for page in found] == [2, 2, 1]
    ids = [pool["id"] for page in found for pool in page]
    assert ids == [f"{prefix}-{number}" for number in range(5)]
    assert all(set(pool) == {"id"} for page in found for pool in page)


def test_supported_images_name_their_agent(client: BatchClient) -> None:
    images = list(client.list_supported_images(filter="osType eq 'linux'"))
    assert images
    assert all(image.node_agent_sku_id.startswith("batch.node.") for image in images)
