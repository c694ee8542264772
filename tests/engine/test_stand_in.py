"""The stand-in refuses the requests that Azure refuses, on which the engine tests depend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.azure_native.azure import Azure, AzureError
from tests.engine.azure_native.immutable import changed_paths, replacing
from tests.unit.infra.good_resources import GOOD, GROUP_ID, NODES, POOL, STORAGE


@pytest.fixture
def azure(tmp_path: Path) -> Azure:
    """Return a fake Azure with a group, a storage account and an identity."""
    found = Azure(tmp_path)
    for kind in ("resources:ResourceGroup", "storage:StorageAccount"):
        create(found, kind)
    create(found, "managedidentity:UserAssignedIdentity")
    return found


def create(azure: Azure, kind: str, **changes: Any) -> str:
    return azure.create(f"azure-native:{kind}", {**GOOD[kind], **changes})[0]


def test_resource_needs_its_parent(azure: Azure) -> None:
    with pytest.raises(AzureError, match=r"ParentResourceNotFound.*batchAccounts/runnerdev"):
        create(azure, "batch:Pool")


def test_resource_needs_the_resources_in_its_inputs(azure: Azure) -> None:
    azure.delete(NODES)
    with pytest.raises(AzureError, match=r"NotFound.*userAssignedIdentities/runner-nodes"):
        create(azure, "batch:BatchAccount")


def test_role_assignment_needs_its_scope(azure: Azure) -> None:
    create(azure, "authorization:RoleAssignment")
    azure.delete(STORAGE)
    with pytest.raises(AzureError, match=r"NotFound.*storageAccounts/runnerdata"):
        create(azure, "authorization:RoleAssignment")


def test_existing_resource_is_not_created_again(azure: Azure) -> None:
    with pytest.raises(AzureError, match="cannot create already existing"):
        create(azure, "storage:StorageAccount")


def test_pool_accepts_a_new_formula_but_no_new_size(azure: Azure) -> None:
    create(azure, "batch:BatchAccount")
    own = {key: value for key, value in POOL.items() if key != "networkConfiguration"}
    machine = {"imageReference": {"publisher": "p", "offer": "o", "sku": "s"}}
    own["deploymentConfiguration"] = {"virtualMachineConfiguration": machine}
    pool, _ = azure.create("azure-native:batch:Pool", own)
    scale = {"autoScale": {"formula": "$TargetDedicatedNodes=0;"}}

    azure.update("azure-native:batch:Pool", pool, {**own, "scaleSettings": scale})
    with pytest.raises(AzureError, match=r"PropertyCannotBeUpdated.*vmSize"):
        azure.update("azure-native:batch:Pool", pool, {**own, "vmSize": "Standard_NC6"})

    found = azure.get(pool)
    assert found is not None
    assert found["inputs"]["scaleSettings"] == scale


@pytest.mark.parametrize(
    "empty",
    [
        {"mountConfiguration": []},
        {"userAccounts": []},
        {"displayName": ""},
        {"networkConfiguration": {"publicIPAddressConfiguration": {"ipAddressIds": []}}},
    ],
)
def test_pool_update_with_an_unchanged_empty_value_is_refused(
    azure: Azure, empty: dict[str, Any]
) -> None:
    create(azure, "batch:BatchAccount")
    machine = {"virtualMachineConfiguration": {"imageReference": {"publisher": "p"}}}
    own = {**POOL, "deploymentConfiguration": machine}
    del own["networkConfiguration"]
    pool, _ = azure.create("azure-native:batch:Pool", {**own, **empty})
    with pytest.raises(AzureError, match=f"PropertyCannotBeUpdated.*{next(iter(empty))}"):
        azure.update("azure-native:batch:Pool", pool, {**own, **empty, "metadata": []})


def test_resent_input_is_refused_once_the_switch_is_set(azure: Azure) -> None:
    create(azure, "batch:BatchAccount")
    machine = {"virtualMachineConfiguration": {"imageReference": {"publisher": "p"}}}
    network = {"publicIPAddressConfiguration": {"provision": "BatchManaged"}}
    own = {**POOL, "deploymentConfiguration": machine, "networkConfiguration": network}
    pool, _ = azure.create("azure-native:batch:Pool", own)
    azure.update("azure-native:batch:Pool", pool, {**own, "taskSlotsPerNode": 1})
    azure.refuse_resent("batch:Pool", "networkConfiguration")
    with pytest.raises(AzureError, match=r"PropertyCannotBeUpdated.*networkConfiguration"):
        azure.update("azure-native:batch:Pool", pool, own)


def test_used_resource_is_kept_until_its_group_is_deleted(azure: Azure) -> None:
    create(azure, "network:PublicIPAddress")
    create(azure, "network:NatGateway")
    address = f"{GROUP_ID}/providers/Microsoft.Network/publicIPAddresses/runner"

    with pytest.raises(AzureError, match="PublicIPAddressCannotBeDeleted"):
        azure.delete(address)
    azure.delete(GROUP_ID)

    assert azure.ids() == set()


def test_planned_failure_occurs_the_planned_number_of_times(azure: Azure) -> None:
    azure.fail("create", "runnerdev", "Throttled", times=2)
    for _ in range(2):
        with pytest.raises(AzureError, match="Throttled"):
            create(azure, "batch:BatchAccount")
    assert create(azure, "batch:BatchAccount") in azure.ids()


def test_changes_of_names_parents_and_locations_replace_resources() -> None:
    assert replacing("batch:Pool") == {"resourceGroupName", "location", "accountName", "poolName"}
    assert {"scope", "principalId"} <= replacing("authorization:RoleAssignment")
    assert "location" in replacing("batch:BatchAccount")


def test_changed_paths_descend_into_maps_only() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": 1}
    new = {"a": {"b": 2, "c": [1, 2]}, "e": 1}
    assert changed_paths(old, new) == [
        ("a.b", "update"),
        ("a.c", "update"),
        ("d", "delete"),
        ("e", "add"),
    ]
