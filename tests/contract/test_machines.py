"""Pools that the service refuses for their machines, and the images that it lists."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain.validation.machine_rules import MachineChoice
from tests.contract.server import (
    MACHINE,
    POOL,
    Running,
    Things,
    code_of,
    serving,
    values_of,
    wire,
)
from tests.contract.signed import send

IN_SUBSCRIPTION = "/subscriptions/0/resourceGroups/g/providers"
SUBNET = f"{IN_SUBSCRIPTION}/Microsoft.Network/virtualNetworks/v/subnets/s"
IMAGE = f"{IN_SUBSCRIPTION}/Microsoft.Compute/galleries/g/images/i"
OF_GALLERY = {**MACHINE, "imageReference": {"virtualMachineImageId": IMAGE}}


def image(publisher: str, offer: str, sku: str, agent: str, **more: Any) -> dict[str, Any]:
    reference = {"publisher": publisher, "offer": offer, "sku": sku}
    return {"imageReference": reference, "nodeAgentSKUId": agent, **more}


def refused(running: Running, body: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Create a pool, which must be refused. Return the code and the values of the error."""
    with pytest.raises(HttpResponseError) as caught:
        running.client.create_pool(wire(**body))
    assert caught.value.status_code == 400
    return code_of(caught.value), values_of(caught.value)


@pytest.mark.parametrize("missing", ["virtualMachineConfiguration", "imageReference"])
def test_pool_without_a_machine_configuration_is_refused(
    running: Running, things: Things, missing: str
) -> None:
    machine = {name: value for name, value in MACHINE.items() if name != missing}
    pool = {"vmSize": POOL["vmSize"], "virtualMachineConfiguration": machine}
    body = {name: value for name, value in pool.items() if name != missing}
    code, values = refused(running, {**body, "id": things.id()})
    assert code == "MissingRequiredProperty"
    assert values["PropertyName"].endswith(missing)


@pytest.mark.parametrize("size", ["small", "Standard_D3s_v3", "Standard_NC4as_T4_v4", "a1"])
def test_unknown_vm_size_is_refused(running: Running, things: Things, size: str) -> None:
    code, values = refused(running, {**POOL, "id": things.id(), "vmSize": size})
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "vmSize")
    assert values["PropertyValue"] == size
    assert "--vm-size" in values["Reason"]


@pytest.mark.parametrize(
    "size", ["Standard_NC8ads_A10_v4", "Standard_ND96ams_A100_v4", "Standard_ND96is_flex_H100_v5"]
)
def test_sizes_with_gpus_are_known(running: Running, things: Things, size: str) -> None:
    pool_id = things.id()
    running.client.create_pool(wire(**{**POOL, "id": pool_id, "vmSize": size}))
    assert running.client.get_pool(pool_id).vm_size == size.lower()


@pytest.mark.parametrize(
    ("machine", "wrong"),
    [
        (image("canonicle", "ubuntu-24_04-lts", "server", "batch.node.ubuntu 24.04"), "image"),
        (image("canonical", "ubuntu-24_04", "server", "batch.node.ubuntu 24.04"), "image"),
        (image("canonical", "ubuntu-24_04-lts", "desktop", "batch.node.ubuntu 24.04"), "image"),
        (image("redhat", "rhel", "9_5", "batch.node.el 9"), "image"),
        (image("canonical", "ubuntu-24_04-lts", "server", "batch.node.ubuntu 22.04"), "agent"),
        (image("microsoft-dsvm", "ubuntu-hpc", "2404", "batch.node.ubuntu 22.04"), "agent"),
        ({**OF_GALLERY, "nodeAgentSKUId": "batch.node.debian 12"}, "agent"),
    ],
)
def test_mismatched_image_and_node_agent_are_refused(
    running: Running, things: Things, machine: dict[str, Any], wrong: str
) -> None:
    body = {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    code, values = refused(running, body)
    assert code == "InvalidPropertyValue"
    assert values["PropertyName"] == {"image": "imageReference", "agent": "nodeAgentSKUId"}[wrong]


def test_unknown_image_is_refused_in_the_words_of_the_service(
    running: Running, things: Things
) -> None:
    machine = image("Canonical", "UbuntuServer", "16.04-LTS", "batch.node.ubuntu 16.04")
    body = {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    _, values = refused(running, body)
    assert values["Reason"] == (
        "The specified imageReference with publisher Canonical offer UbuntuServer sku 16.04-LTS "
        "is not supported."
    )


CONTAINERS = {"containerConfiguration": {"type": "dockerCompatible"}}


def test_image_without_a_container_engine_is_refused_for_containers(
    running: Running, things: Things
) -> None:
    """The values are those of a recorded answer."""
    machine = image(
        "Canonical", "Ubuntu-24_04-LTS", "Server", "batch.node.ubuntu 24.04", **CONTAINERS
    )
    code, values = refused(
        running, {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    )
    assert (code, values) == (
        "InvalidPropertyValue",
        {
            "PropertyName": "containerConfiguration",
            "Reason": "The specified imageReference with publisher Canonical offer "
            "Ubuntu-24_04-LTS sku Server does not support container feature.",
        },
    )


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        ({**OF_GALLERY, "nodeAgentSKUId": "batch.node.ubuntu 24.04"}, "windowsUserConfiguration"),
        ({**OF_GALLERY, "nodeAgentSKUId": "batch.node.windows amd64"}, "linuxUserConfiguration"),
        (
            image("Canonical", "UbuntuServer", "16.04-LTS", "batch.node.ubuntu 16.04"),
            "windowsUserConfiguration",
        ),
        (
            image("MicrosoftWindowsServer", "none", "none", "batch.node.windows amd64"),
            "linuxUserConfiguration",
        ),
    ],
)
def test_user_of_another_operating_system_is_refused(
    running: Running, things: Things, machine: dict[str, Any], kind: str
) -> None:
    """The values are those of a recorded answer. It precedes the look-up of the image."""
    user = {"name": "testaccount", "password": "kt#_gahr!@aGERDXA", kind: {}}
    body = {**POOL, "virtualMachineConfiguration": machine, "userAccounts": [user]}
    code, values = refused(running, {**body, "id": things.id()})
    assert (code, values) == (
        "InvalidPropertyValue",
        {
            "PropertyName": kind,
            "Reason": "The user configuration for user account 'testaccount' has a mismatch with "
            "the OS (Windows/Linux) configuration specified in VirtualMachineConfiguration",
        },
    )


@pytest.mark.parametrize(
    ("size", "most"),
    [
        ("Standard_D2s_v3", 8),
        ("Standard_D3_v2", 16),
        ("Standard_E4-2s_v5", 8),
        ("STANDARD_F1", 4),
        ("Standard_M128s", 256),
    ],
)
def test_task_slots_are_limited_to_four_per_core(
    running: Running, things: Things, size: str, most: int
) -> None:
    pool_id = things.id()
    body = {**POOL, "id": pool_id, "vmSize": size}
    code, values = refused(running, {**body, "taskSlotsPerNode": most + 1})
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "taskSlotsPerNode")
    running.client.create_pool(wire(**body, taskSlotsPerNode=most))
    with pytest.raises(HttpResponseError) as caught:
        running.client.update_pool(pool_id, wire(taskSlotsPerNode=most + 1))
    assert values_of(caught.value)["PropertyName"] == "taskSlotsPerNode"


def test_unknown_size_has_the_highest_slot_limit(strict: Running) -> None:
    pool = {**POOL, "id": "p", "vmSize": "my_size", "taskSlotsPerNode": 256}
    strict.client.create_pool(wire(**pool))
    assert strict.client.get_pool("p").task_slots_per_node == 256


@pytest.mark.parametrize(
    "machine",
    [
        image("Canonical", "Ubuntu-24_04-LTS", "Server", "Batch.Node.Ubuntu 24.04"),
        image("microsoft-dsvm", "ubuntu-hpc", "2204", "batch.node.ubuntu 22.04"),
        image("microsoft-dsvm", "ubuntu-hpc", "2404", "batch.node.ubuntu 24.04"),
        image("microsoft-dsvm", "ubuntu-hpc", "2204-v100", "batch.node.ubuntu 22.04"),
        image("Canonical", "UbuntuServer", "18.04-LTS", "batch.node.ubuntu 18.04"),
        image(
            "MicrosoftWindowsServer",
            "WindowsServer",
            "2022-datacenter",
            "batch.node.windows amd64",
        ),
        OF_GALLERY,
        # with a container engine, or whether there is one is unknown
        image("microsoft-dsvm", "ubuntu-hpc", "2404", "batch.node.ubuntu 24.04", **CONTAINERS),
        {**OF_GALLERY, **CONTAINERS},
    ],
)
def test_images_of_the_service_are_accepted(
    running: Running, things: Things, machine: dict[str, Any]
) -> None:
    pool_id = things.id()
    body = {**POOL, "id": pool_id, "virtualMachineConfiguration": machine}
    running.client.create_pool(wire(**body))
    assert running.client.get_pool(pool_id).state == "active"


def test_image_id_must_have_the_documented_format(running: Running, things: Things) -> None:
    wrong = {"imageReference": {"virtualMachineImageId": IMAGE.replace("galleries", "gallery")}}
    machine = {**MACHINE, **wrong}
    code, values = refused(
        running, {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    )
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "virtualMachineImageId")
    assert values["Reason"].startswith("The specified resource id must be of the format")


def test_customer_managed_key_needs_an_identity(running: Running, things: Things) -> None:
    encryption = {"customerManagedKey": {"keyUrl": "https://v.vault.azure.net/keys/k/1"}}
    machine = {**MACHINE, "diskEncryptionConfiguration": encryption}
    code, values = refused(
        running, {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    )
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "identity")
    assert values["Reason"] == "Pool Identity is required when using CustomerManagedKey."


def test_linux_nodes_encrypt_only_the_temporary_disk(running: Running, things: Things) -> None:
    def pool(*targets: str) -> dict[str, Any]:
        machine = {**MACHINE, "diskEncryptionConfiguration": {"targets": [*targets]}}
        return {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}

    running.client.create_pool(wire(**pool("temporarydisk")))
    code, _ = refused(running, pool("osdisk", "temporarydisk"))
    assert code == "InvalidPropertyValue"


@pytest.mark.parametrize("kind", ["job", "schedule"])
def test_job_with_an_invalid_auto_pool_is_refused(
    client: BatchClient, things: Things, kind: str
) -> None:
    auto = {"poolLifetimeOption": "job", "pool": {**POOL, "vmSize": "small"}}
    job = {"poolInfo": {"autoPoolSpecification": auto}}
    create, body = {
        "job": (client.create_job, job),
        "schedule": (client.create_job_schedule, {"schedule": {}, "jobSpecification": job}),
    }[kind]
    with pytest.raises(HttpResponseError) as caught:
        create(wire(id=things.id(), **body))
    assert values_of(caught.value)["PropertyName"] == "vmSize"


@pytest.fixture
def strict(tmp_path: Path) -> Generator[Running]:
    machines = MachineChoice(sizes=("My_Size",), strict=True)
    with serving(tmp_path / "data", machines=machines) as running:
        yield running


def test_strict_mode_refuses_subnets_and_gallery_images(strict: Running) -> None:
    in_subnet = {**POOL, "id": "p", "networkConfiguration": {"subnetId": SUBNET}}
    code, values = refused(strict, in_subnet)
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "subnetId")
    # the image comes before an unknown node agent, as the SDK for JavaScript tests
    for agent in (OF_GALLERY["nodeAgentSKUId"], "batch.node.ubuntu 16.04"):
        machine = {**OF_GALLERY, "nodeAgentSKUId": agent}
        code, values = refused(strict, {**POOL, "id": "p", "virtualMachineConfiguration": machine})
        assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "virtualMachineImageId")


@pytest.mark.parametrize(
    ("machine", "wrong"),
    [
        (
            image("Canonical", "UbuntuServer", "18.04-LTS", "batch.node.ubuntu 18.04"),
            "imageReference",
        ),
        (image("openlogic", "centos", "7_9", "batch.node.centos 7"), "imageReference"),
    ],
)
def test_strict_mode_refuses_images_whose_support_has_ended(
    strict: Running, machine: dict[str, Any], wrong: str
) -> None:
    code, values = refused(strict, {**POOL, "id": "p", "virtualMachineConfiguration": machine})
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", wrong)


def test_windows_settings_are_refused_for_a_linux_image(running: Running, things: Things) -> None:
    machine = {**MACHINE, "windowsConfiguration": {"enableAutomaticUpdates": False}}
    body = {**POOL, "id": things.id(), "virtualMachineConfiguration": machine}
    code, values = refused(running, body)
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", "windowsConfiguration")


def test_nodes_without_public_addresses_have_no_endpoints(running: Running, things: Things) -> None:
    nat = {
        "name": "ssh",
        "protocol": "tcp",
        "backendPort": 22,
        "frontendPortRangeStart": 40_000,
        "frontendPortRangeEnd": 40_099,
    }
    network = {
        "endpointConfiguration": {"inboundNATPools": [nat]},
        "publicIPAddressConfiguration": {"provision": "noPublicIPAddresses"},
    }
    code, values = refused(running, {**POOL, "id": things.id(), "networkConfiguration": network})
    assert code == "InvalidPropertyValue"
    assert values["PropertyName"].endswith("/inboundNATPools")


def test_subnet_is_accepted_without_strict_mode(running: Running, things: Things) -> None:
    pool_id, network = things.id(), {"subnetId": SUBNET}
    running.client.create_pool(wire(**POOL, id=pool_id, networkConfiguration=network))
    shown = running.client.get_pool(pool_id).network_configuration
    assert shown is not None
    assert shown.subnet_id == SUBNET


def test_option_adds_vm_sizes(strict: Running) -> None:
    strict.client.create_pool(wire(**{**POOL, "id": "mine", "vmSize": "my_size"}))
    assert strict.client.get_pool("mine").vm_size == "my_size"


def test_listed_images_equal_those_of_the_service(client: BatchClient) -> None:
    found = list(client.list_supported_images())
    by_sku = {(i.image_reference.offer, i.image_reference.sku): i for i in found}
    assert len(found) == 59
    assert {image.os_type for image in found} == {"linux", "windows"}
    hpc = by_sku["ubuntu-hpc", "2404"]
    assert (hpc.node_agent_sku_id, hpc.verification_type) == ("batch.node.ubuntu 24.04", "verified")
    assert hpc.capabilities == [
        "DockerCompatible",
        "SupportsRDMAOnly",
        "Generation2VMImage",
        "IntelMPIRuntimeInstalled",
    ]
    assert by_sku["windowsserver", "2016-datacenter"].capabilities is None
    assert not [i for i in found if "UserSubscriptionOnly" in (i.capabilities or ())]


def get(running: Running, path: str, version: str) -> httpx.Response:
    return send(running.url, "GET", path, version=f"api-version={version}")


def test_old_versions_list_node_agents_instead_of_images(running: Running) -> None:
    answer = get(running, "/nodeagentskus", "2018-12-01.8.0")
    assert answer.status_code == 200, answer.text
    agents = {agent["id"]: agent for agent in answer.json()["value"]}
    assert agents["batch.node.windows amd64"]["osType"] == "windows"
    verified = agents["batch.node.ubuntu 24.04"]["verifiedImageReferences"]
    assert {
        "publisher": "microsoft-dsvm",
        "offer": "ubuntu-hpc",
        "sku": "2404",
        "version": "latest",
    } in verified
    assert get(running, "/nodeagentskus", "2019-06-01.9.0").status_code == 400
    assert get(running, "/supportedimages", "2018-12-01.8.0").status_code == 400


@pytest.mark.parametrize(
    ("path", "before", "removed"),
    [
        ("/certificates", "2024-02-01.19.0", "2025-06-01"),
        ("/lifetimepoolstats", "2022-10-01.16.0", "2023-05-01.17.0"),
        ("/lifetimejobstats", "2022-10-01.16.0", "2023-05-01.17.0"),
    ],
)
def test_removed_operation_is_available_in_older_versions(
    running: Running, path: str, before: str, removed: str
) -> None:
    assert get(running, path, before).status_code == 200
    answer = get(running, path, removed)
    assert (answer.status_code, json.loads(answer.text)["code"]) == (400, "InvalidUri")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"vmSize": "small"}, "vmSize"),
        (
            {"virtualMachineConfiguration": {**MACHINE, "nodeAgentSKUId": "batch.node.el 9"}},
            "nodeAgentSKUId",
        ),
    ],
)
def test_changes_of_a_pool_are_checked_like_its_creation(
    running: Running, things: Things, change: dict[str, Any], wrong: str
) -> None:
    pool_id = things.pool()
    with pytest.raises(HttpResponseError) as caught:
        running.client.update_pool(pool_id, wire(**change))
    assert caught.value.status_code == 400
    assert (code_of(caught.value), values_of(caught.value)["PropertyName"]) == (
        "InvalidPropertyValue",
        wrong,
    )
    assert running.client.get_pool(pool_id).vm_size == POOL["vmSize"]


@pytest.mark.slow
def test_entity_with_a_size_accepted_earlier_can_be_changed(
    tmp_path: Path,
) -> None:
    """An emulator with other tables, or with another option, had accepted the size."""
    auto = {"poolLifetimeOption": "job", "pool": {**POOL, "vmSize": "My_Size"}}
    job = {"poolInfo": {"autoPoolSpecification": auto}}
    with serving(tmp_path / "data", machines=MachineChoice(sizes=("My_Size",))) as running:
        running.client.create_pool(wire(**{**POOL, "id": "pool", "vmSize": "My_Size"}))
        running.client.create_job(wire(id="job", **job))
        schedule = {"doNotRunUntil": "2100-01-01T00:00:00Z"}
        running.client.create_job_schedule(
            wire(id="schedule", schedule=schedule, jobSpecification=job)
        )
    with serving(tmp_path / "data") as running:
        client, meta = running.client, [{"name": "a", "value": "b"}]
        client.update_pool("pool", wire(metadata=meta))
        client.update_job("job", wire(priority=7))
        client.replace_job("job", wire(priority=8, **job))
        client.update_job_schedule("schedule", wire(metadata=meta))
        client.replace_job_schedule("schedule", wire(jobSpecification={**job, "priority": 3}))
        assert client.get_job("job").priority == 8
        assert client.get_job_schedule("schedule").job_specification.priority == 3
        changed = {**auto, "pool": {**POOL, "vmSize": "small"}}
        other = {"poolInfo": {"autoPoolSpecification": changed}}
        with pytest.raises(HttpResponseError) as caught:
            client.update_job_schedule("schedule", wire(jobSpecification=other))
        assert values_of(caught.value)["PropertyName"] == "vmSize"


def nat_pool(number: int, *priorities: int, **changes: Any) -> dict[str, Any]:
    """Return a valid endpoint with rules of these priorities."""
    start = 10000 + 100 * number
    rules = [{"priority": one, "access": "deny", "sourceAddressPrefix": "*"} for one in priorities]
    return {
        "name": f"nat{number}",
        "protocol": "tcp",
        "backendPort": 8000 + number,
        "frontendPortRangeStart": start,
        "frontendPortRangeEnd": start + 39,
        "networkSecurityGroupRules": rules,
    } | changes


def with_nat_pools(*nat_pools: dict[str, Any]) -> dict[str, Any]:
    return {"networkConfiguration": {"endpointConfiguration": {"inboundNATPools": [*nat_pools]}}}


@pytest.mark.parametrize(
    ("nat_pools", "wrong"),
    [
        ([nat_pool(n) for n in range(6)], ""),
        ([nat_pool(0, frontendPortRangeStart=0)], "/0/frontendPortRangeStart"),
        ([nat_pool(0, frontendPortRangeEnd=65535)], "/0/frontendPortRangeEnd"),
        ([nat_pool(0, frontendPortRangeEnd=10038)], "/0/frontendPortRangeEnd"),
        ([nat_pool(0, frontendPortRangeEnd=9000)], "/0/frontendPortRangeEnd"),
        ([nat_pool(0, frontendPortRangeStart=55000)], "/0/frontendPortRangeStart"),
        ([nat_pool(0, frontendPortRangeEnd=50000)], "/0/frontendPortRangeEnd"),
        ([nat_pool(0, frontendPortRangeEnd=60000)], "/0/frontendPortRangeEnd"),
        ([nat_pool(0), nat_pool(1, frontendPortRangeStart=10039)], "/1/frontendPortRangeStart"),
        ([nat_pool(0, backendPort=0)], "/0/backendPort"),
        ([nat_pool(0, backendPort=65536)], "/0/backendPort"),
        ([nat_pool(0, backendPort=29877)], "/0/backendPort"),
        ([nat_pool(0), nat_pool(1, backendPort=8000)], "/1/backendPort"),
        ([nat_pool(0, 149)], "/0/networkSecurityGroupRules/0/priority"),
        ([nat_pool(0, 150, 4097)], "/0/networkSecurityGroupRules/1/priority"),
        ([nat_pool(0, 150), nat_pool(1, 150)], "/1/networkSecurityGroupRules/0/priority"),
        ([nat_pool(0, *range(150, 176))], ""),
    ],
)
def test_invalid_endpoint_is_refused(
    running: Running, things: Things, nat_pools: list[dict[str, Any]], wrong: str
) -> None:
    code, values = refused(running, {**POOL, "id": things.id(), **with_nat_pools(*nat_pools)})
    where = "networkConfiguration/endpointConfiguration/inboundNATPools"
    assert (code, values["PropertyName"]) == ("InvalidPropertyValue", f"{where}{wrong}")


def test_endpoints_at_the_bounds_are_accepted(running: Running, things: Things) -> None:
    bounds = [(1, 40), (41, 80), (49960, 49999), (55001, 55040), (65495, 65534)]
    nat_pools = [
        nat_pool(number, 150 + number, frontendPortRangeStart=start, frontendPortRangeEnd=end)
        for number, (start, end) in enumerate(bounds)
    ]
    nat_pools[0]["networkSecurityGroupRules"][0]["priority"] = 4096
    nat_pools[1]["backendPort"] = 65535
    body = {**POOL, "id": things.id(), **with_nat_pools(*nat_pools)}
    running.client.create_pool(wire(**body))
    pool_id = things.pool()
    with pytest.raises(HttpResponseError) as caught:
        running.client.update_pool(pool_id, wire(**with_nat_pools(nat_pool(0, backendPort=29876))))
    assert values_of(caught.value)["PropertyName"].endswith("/backendPort")
