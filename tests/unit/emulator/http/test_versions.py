"""Names of older clients, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.http import versions

OLD, FIRST_WITH_SLOTS = {"api-version": "2020-03-01.11.0"}, {"api-version": "2020-09-01.12.0"}
POOL: dict[str, Any] = {"id": "p", "taskSlotsPerNode": 4, "resourceTags": {"taskSlotsPerNode": "x"}}


def test_old_clients_see_task_slots_as_max_tasks_per_node() -> None:
    old = {"id": "p", "maxTasksPerNode": 4, "resourceTags": {"taskSlotsPerNode": "x"}}
    assert versions.to_client_names(POOL, OLD) == old
    assert versions.to_current_names(old, OLD) == POOL
    assert versions.to_client_names({"value": [POOL]}, OLD) == {"value": [old]}


@pytest.mark.parametrize("name", ["settings", "protectedSettings"])
def test_settings_of_an_extension_keep_the_names_of_their_author(name: str) -> None:
    settings = {"taskSlotsPerNode": 4, "ipv6Address": "x", "disks": [{"lun": 1, "managedDisk": 2}]}
    pool = {"virtualMachineConfiguration": {"extensions": [{"name": "e", name: settings}]}}
    assert versions.without_unknown_names(pool, {"api-version": "2024-02-01.19.0"}) == pool
    assert versions.to_client_names(pool, OLD) == pool
    assert versions.to_current_names(pool, OLD) == pool


def test_pool_of_a_job_is_translated() -> None:
    body = {"poolInfo": {"autoPoolSpecification": {"pool": {"maxTasksPerNode": 2}}}}
    inner = versions.to_current_names(body, OLD)["poolInfo"]["autoPoolSpecification"]["pool"]
    assert inner == {"taskSlotsPerNode": 2}


def test_old_clients_get_task_counts_without_slots() -> None:
    both = {"odata.metadata": "m", "taskCounts": {"active": 1}, "taskSlotCounts": {"active": 4}}
    assert versions.to_client_names(both, OLD) == {"odata.metadata": "m", "active": 1}


def test_old_clients_get_no_slot_properties() -> None:
    assert versions.to_client_names({"id": "t", "requiredSlots": 1}, OLD) == {"id": "t"}
    assert versions.to_client_names({"id": "n", "runningTaskSlotsCount": 1}, OLD) == {"id": "n"}


def test_selection_accepts_old_names() -> None:
    query = {**OLD, "$select": "id, maxTasksPerNode"}
    assert versions.selection_in_current_names(query)["$select"] == "id,taskSlotsPerNode"


@pytest.mark.parametrize("version", ["2020-09-01.12.0", "2024-02-01.19.0", "2025-06-01"])
def test_newer_clients_get_current_names(version: str) -> None:
    query = {"api-version": version, "$select": "maxTasksPerNode"}
    assert versions.to_client_names(POOL, query) is POOL
    assert versions.to_current_names(POOL, query) is POOL
    assert versions.selection_in_current_names(query) is query


@pytest.mark.parametrize(
    "version",
    [
        "",
        "1",
        "2017-09-01.6.0",
        "2020-13-45",
        "2021-02-29.1.0",
        "2025-06-01;",
        "²020-01-01",
        "9" * 99,
    ],
)
def test_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(Fault) as caught:
        versions.check_version({"api-version": version})
    assert caught.value.code == "UnsupportedRequestVersion"


def test_missing_version_is_refused() -> None:
    with pytest.raises(Fault) as caught:
        versions.check_version({})
    assert caught.value.code == "MissingRequiredQueryParameter"


@pytest.mark.parametrize(
    ("version", "old"),
    [("2018-08-01.7.0", True), ("2019-08-01.10.0", True), ("2027-01-01-preview", False)],
)
def test_every_other_version_is_accepted(version: str, old: bool) -> None:
    query = {"api-version": version}
    versions.check_version(query)
    assert versions.is_old_client(query) is old
