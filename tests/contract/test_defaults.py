"""The service's defaults and canonical values in responses about pools, jobs and tasks."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient, models

from batch_emulator.files_share.shares import StorageAccount
from tests.contract.server import POOL, Running, Things, eventually, serving
from tests.contract.signed import send
from tests.unit.emulator.blob_store import BlobStore, serve

FOREVER = "P10675199DT2H48M5.4775807S"
USER = {"autoUser": {"scope": "pool", "elevationLevel": "nonadmin"}}
CONSTRAINTS = {"maxWallClockTime": FOREVER, "retentionTime": "P7D", "maxTaskRetryCount": 0}
BEFORE, NEWEST = "2024-02-01.19.0", "2025-06-01"


def call(
    running: Running, method: str, path: str, body: Any = None, version: str = NEWEST
) -> httpx.Response:
    content = b"" if body is None else json.dumps(body).encode()
    return send(running.url, method, path, body=content, version=f"api-version={version}")


def shown_pool(running: Running, things: Things, version: str = NEWEST, **body: Any) -> Any:
    """Return a new pool as the service shows it."""
    pool_id = things.id("pool")
    answer = call(running, "POST", "/pools", {**POOL, "id": pool_id, **body}, version)
    assert answer.status_code == 201, answer.text
    return call(running, "GET", f"/pools/{pool_id}", version=version).json()


def shown_job(running: Running, things: Things, **body: Any) -> Any:
    job_id = things.id("job")
    whole = {"id": job_id, "poolInfo": {"poolId": "none"}, **body}
    answer = call(running, "POST", "/jobs", whole)
    assert answer.status_code == 201, answer.text
    return call(running, "GET", f"/jobs/{job_id}").json()


def test_pool_has_the_defaults_of_the_service(running: Running, things: Things) -> None:
    shown = shown_pool(running, things, vmSize="STANDARD_D2s_v3")
    assert shown["vmSize"] == "standard_d2s_v3"
    assert shown["taskSchedulingPolicy"] == {"nodeFillType": "Spread", "jobDefaultOrder": "none"}
    assert shown["virtualMachineConfiguration"]["imageReference"]["version"] == "latest"
    assert (shown["resizeTimeout"], shown["taskSlotsPerNode"]) == ("PT15M", 1)
    assert (shown["enableAutoScale"], shown["enableInterNodeCommunication"]) == (False, False)


def test_user_account_without_an_elevation_level_is_not_elevated(
    running: Running, things: Things
) -> None:
    """The first two are the user accounts of a recorded answer."""
    users = [{"name": "one"}, {"name": "two", "elevationLevel": "admin"}]
    given = [{"password": "kt#_gahr!@aGERDXA", **user} for user in users]
    expected = [{"elevationLevel": "nonadmin", **user} for user in users]
    assert shown_pool(running, things, userAccounts=given)["userAccounts"] == expected
    pool = {**POOL, "userAccounts": given}
    auto = {"poolLifetimeOption": "job", "pool": pool}
    job = shown_job(running, things, poolInfo={"autoPoolSpecification": auto})
    shown = job["poolInfo"]["autoPoolSpecification"]["pool"]
    assert shown["userAccounts"] == expected


def test_user_of_a_linux_pool_is_returned_without_its_private_key(
    running: Running, things: Things
) -> None:
    """The user account of a recorded answer; the key is a secret (docs)."""
    user = {"name": "test-user", "elevationLevel": "admin"}
    linux = {"uid": 5, "gid": 5}
    given = {**user, "password": "p", "linuxUserConfiguration": {**linux, "sshPrivateKey": "k"}}
    shown = shown_pool(running, things, userAccounts=[given])
    assert shown["userAccounts"] == [{**user, "linuxUserConfiguration": linux}]


def test_update_of_properties_resets_the_communication_mode(
    running: Running, things: Things
) -> None:
    """It is shown although the request had none (recorded)."""
    for mode in ({}, {"targetNodeCommunicationMode": "classic"}):
        pool = shown_pool(running, things, BEFORE, **mode)
        assert pool.get("targetNodeCommunicationMode") == mode.get("targetNodeCommunicationMode")
        path, empty = f"/pools/{pool['id']}", {name: [] for name in LISTS}
        assert call(running, "POST", f"{path}/updateproperties", empty, BEFORE).status_code == 204
        assert call(running, "GET", path, version=BEFORE).json()["targetNodeCommunicationMode"] == (
            "default"
        )
        chosen = {**empty, "targetNodeCommunicationMode": "simplified"}
        assert call(running, "POST", f"{path}/updateproperties", chosen, BEFORE).status_code == 204
        assert call(running, "GET", path, version=BEFORE).json()["targetNodeCommunicationMode"] == (
            "simplified"
        )


def test_id_of_an_application_is_returned_in_lower_case(running: Running, things: Things) -> None:
    """Recorded of a task; a resource id, which pools may have, stays as it is [S]."""
    packages = [{"applicationId": "MSMPI"}, {"applicationId": "Blender", "version": "2.7A"}]
    expected = [{"applicationId": "msmpi"}, {"applicationId": "blender", "version": "2.7A"}]
    task: dict[str, Any] = {"id": "t", "commandLine": "true"}
    task["applicationPackageReferences"] = packages
    job = shown_job(running, things, jobManagerTask={**task, "id": "m"})
    assert job["jobManagerTask"]["applicationPackageReferences"] == expected
    tasks = f"/jobs/{job['id']}/tasks"
    assert call(running, "POST", tasks, task).status_code == 201
    assert call(running, "GET", f"{tasks}/t").json()["applicationPackageReferences"] == expected
    [*_, listed] = call(running, "GET", tasks).json()["value"]
    assert listed["applicationPackageReferences"] == expected
    resource = {"applicationId": "/subscriptions/0/resourceGroups/G/applications/App"}
    pool = {**POOL, "applicationPackageReferences": [*packages, resource]}
    auto = {"poolLifetimeOption": "job", "pool": pool}
    job = shown_job(running, things, poolInfo={"autoPoolSpecification": auto})
    shown = job["poolInfo"]["autoPoolSpecification"]["pool"]
    assert shown["applicationPackageReferences"] == [*expected, resource]


LISTS = ("metadata", "applicationPackageReferences", "certificateReferences")


def test_empty_lists_are_absent_except_certificates_that_were_sent(
    running: Running, things: Things
) -> None:
    start = {"commandLine": "/bin/true", "resourceFiles": [], "environmentSettings": []}
    sent = {name: list[Any]() for name in LISTS}
    unset = shown_pool(running, things, BEFORE)
    shown = shown_pool(running, things, BEFORE, startTask=start, **sent)
    assert not {*LISTS} & {*unset}
    assert {*LISTS} & {*shown} == {"certificateReferences"}
    assert not {"resourceFiles", "environmentSettings"} & {*shown["startTask"]}
    manager = {"id": "m", "commandLine": "/bin/true", "resourceFiles": []}
    job = shown_job(running, things, metadata=[], jobManagerTask=manager)
    assert "metadata" not in job
    assert "resourceFiles" not in job["jobManagerTask"]
    task = {"id": "t", "commandLine": "/bin/true", "environmentSettings": []}
    assert call(running, "POST", f"/jobs/{job['id']}/tasks", task).status_code == 201
    answer = call(running, "GET", f"/jobs/{job['id']}/tasks/t")
    assert "environmentSettings" not in answer.json()
    assert "dataserviceid" not in answer.headers


def test_properties_of_nodes_are_absent_before_they_are_known(
    running: Running, things: Things, pool: str
) -> None:
    mode = "currentNodeCommunicationMode"
    empty = shown_pool(running, things, BEFORE, targetNodeCommunicationMode="default")
    assert mode not in empty
    assert empty["targetNodeCommunicationMode"] == "default"
    [node] = things.wait_nodes(pool, 1)
    fresh = shown_pool(running, things, targetDedicatedNodes=1)["id"]
    assert "recentTasks" not in node_of(running, fresh)
    found = call(running, "GET", f"/pools/{pool}", version=BEFORE).json()
    assert found[mode] == "simplified"
    assert call(running, "GET", f"/pools/{pool}/nodes/{node.id}").json()["nodeAgentInfo"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("PT10M00S", "PT10M"),
        ("PT90M", "PT1H30M"),
        ("PT600.500S", "PT10M0.5S"),
        ("P3Y6M4DT12H30M5S", "P1279DT12H30M5S"),
    ],
)
def test_durations_are_normalised(running: Running, things: Things, given: str, shown: str) -> None:
    assert shown_pool(running, things, resizeTimeout=given)["resizeTimeout"] == shown
    job = shown_job(running, things, constraints={"maxWallClockTime": given})
    assert job["constraints"]["maxWallClockTime"] == shown
    task = {"id": "t", "commandLine": "x", "constraints": {"retentionTime": given}}
    assert call(running, "POST", f"/jobs/{job['id']}/tasks", task).status_code == 201
    found = call(running, "GET", f"/jobs/{job['id']}/tasks/t").json()
    assert found["constraints"] == {**CONSTRAINTS, "retentionTime": shown}


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "1D", "-PT5M", "P1W", "P99999999D"])
def test_other_durations_are_refused(running: Running, things: Things, text: str) -> None:
    body = {**POOL, "id": things.id(), "resizeTimeout": text}
    assert call(running, "POST", "/pools", body).status_code == 400


def test_disks_and_network_get_defaults(running: Running, things: Things) -> None:
    machine = {
        **POOL["virtualMachineConfiguration"],
        "osDisk": {"caching": "readwrite", "diskSizeGB": 50},
        "dataDisks": [{"lun": 1, "diskSizeGB": 50}],
        "nodePlacementConfiguration": {"policy": "zonal"},
        "securityProfile": {"securityType": "trustedLaunch", "encryptionAtHost": True},
    }
    nat: dict[str, Any] = {
        "name": "web",
        "protocol": "tcp",
        "backendPort": 80,
        "frontendPortRangeStart": 15000,
        "frontendPortRangeEnd": 15100,
        "networkSecurityGroupRules": [
            {"priority": 150, "access": "allow", "sourceAddressPrefix": "*"}
        ],
    }
    network = {
        "endpointConfiguration": {"inboundNATPools": [nat]},
        "publicIPAddressConfiguration": {
            "provision": "batchmanaged",
            "ipFamilies": ["IPv6", "IPv4"],
        },
    }
    body: dict[str, Any] = {"virtualMachineConfiguration": machine}
    body["networkConfiguration"] = network
    shown = shown_pool(running, things, **body)
    made = shown["virtualMachineConfiguration"]
    assert made["osDisk"] == {
        "caching": "ReadWrite",
        "diskSizeGB": 50,
        "ephemeralOSDiskSettings": {},
        "managedDisk": {"storageAccountType": "standard_lrs"},
    }
    disk = {"lun": 1, "diskSizeGB": 50, "caching": "none"}
    assert made["dataDisks"] == [{**disk, "managedDisk": {"storageAccountType": "standard_lrs"}}]
    assert made["nodePlacementConfiguration"] == {"policy": "Zonal"}
    assert made["securityProfile"]["securityType"] == "trustedlaunch"
    addresses = {"provision": "BatchManaged", "ipFamilies": ["IPv4", "IPv6"]}
    rules = [{**nat["networkSecurityGroupRules"][0], "sourcePortRanges": ["*"]}]
    assert shown["networkConfiguration"] == {
        "dynamicVNetAssignmentScope": "none",
        "enableAcceleratedNetworking": False,
        "endpointConfiguration": {"inboundNATPools": [{**nat, "networkSecurityGroupRules": rules}]},
        "publicIPAddressConfiguration": addresses,
    }


def test_data_disk_of_an_older_version_names_its_storage_itself(
    running: Running, things: Things
) -> None:
    machine = {
        **POOL["virtualMachineConfiguration"],
        "dataDisks": [{"lun": 1, "diskSizeGB": 50, "storageAccountType": "Premium_LRS"}],
    }
    body = {"virtualMachineConfiguration": machine}
    [disk] = shown_pool(running, things, BEFORE, **body)["virtualMachineConfiguration"]["dataDisks"]
    assert disk == {
        "lun": 1,
        "diskSizeGB": 50,
        "caching": "none",
        "storageAccountType": "premium_lrs",
    }


WINDOWS: dict[str, Any] = {
    "imageReference": {
        "publisher": "microsoftwindowsserver",
        "offer": "windowsserver",
        "sku": "2022-datacenter",
    },
    "nodeAgentSKUId": "batch.node.windows amd64",
}


def test_user_accounts_get_the_defaults_of_their_system(running: Running, things: Things) -> None:
    """Recorded for Windows, with a user of Linux that a change adds (.NET SDK, 2025-09)."""
    password = {"password": "Password1234!"}
    pool = shown_pool(running, things, virtualMachineConfiguration=WINDOWS)
    users: list[dict[str, Any]] = [
        {"name": "plain", **password},
        {"name": "high", "elevationLevel": "admin", **password},
        {"name": "linux", "linuxUserConfiguration": {"sshPrivateKey": "AAAA=="}, **password},
        {"name": "seen", "windowsUserConfiguration": {"loginMode": "interactive"}, **password},
    ]
    answer = call(running, "PATCH", f"/pools/{pool['id']}", {"userAccounts": users})
    assert answer.status_code == 200, answer.text
    batch = {"windowsUserConfiguration": {"loginMode": "batch"}}
    assert call(running, "GET", f"/pools/{pool['id']}").json()["userAccounts"] == [
        {"name": "plain", "elevationLevel": "nonadmin", **batch},
        {"name": "high", "elevationLevel": "admin", **batch},
        {"name": "linux", "elevationLevel": "nonadmin", **batch},
        {
            "name": "seen",
            "elevationLevel": "nonadmin",
            "windowsUserConfiguration": {"loginMode": "interactive"},
        },
    ]
    linux = shown_pool(running, things, userAccounts=users[:1])
    assert linux["userAccounts"] == [{"name": "plain", "elevationLevel": "nonadmin"}]


def test_manager_preparation_and_release_tasks_get_defaults(
    running: Running, things: Things
) -> None:
    task = {"commandLine": "/bin/true"}
    job = shown_job(
        running,
        things,
        jobManagerTask={"id": "m", **task},
        jobPreparationTask=task,
        jobReleaseTask=task,
    )
    assert job["jobManagerTask"] == {
        "id": "m",
        **task,
        "constraints": CONSTRAINTS,
        "userIdentity": USER,
        "requiredSlots": 1,
        "killJobOnCompletion": True,
        "runExclusive": True,
        "allowLowPriorityNode": True,
    }
    assert job["jobPreparationTask"] == {
        "id": "jobpreparation",
        **task,
        "constraints": CONSTRAINTS,
        "userIdentity": USER,
        "waitForSuccess": True,
        "rerunOnNodeRebootAfterSuccess": True,
    }
    assert job["jobReleaseTask"] == {
        "id": "jobrelease",
        **task,
        "maxWallClockTime": "PT15M",
        "retentionTime": "P7D",
        "userIdentity": USER,
    }


def test_auto_pool_specification_gets_defaults(running: Running, things: Things) -> None:
    pool: dict[str, Any] = {
        **POOL,
        "startTask": {"commandLine": "/bin/true"},
        "targetDedicatedNodes": 0,
    }
    auto = {"poolLifetimeOption": "job", "pool": {**pool, "vmSize": "STANDARD_D1_v2"}}
    job = shown_job(running, things, poolInfo={"autoPoolSpecification": auto})
    found = job["poolInfo"]["autoPoolSpecification"]
    assert found["keepAlive"] is False
    machine = pool["virtualMachineConfiguration"]
    image = {**machine["imageReference"], "version": "latest"}
    assert found["pool"] == {
        "vmSize": "standard_d1_v2",
        "taskSlotsPerNode": 1,
        "taskSchedulingPolicy": {"nodeFillType": "Spread", "jobDefaultOrder": "none"},
        "resizeTimeout": "PT15M",
        "targetDedicatedNodes": 0,
        "targetLowPriorityNodes": 0,
        "enableAutoScale": False,
        "enableInterNodeCommunication": False,
        "virtualMachineConfiguration": {**machine, "imageReference": image},
        "startTask": {
            "commandLine": "/bin/true",
            "userIdentity": USER,
            "maxTaskRetryCount": 0,
            "waitForSuccess": True,
        },
    }


def test_autoscaling_auto_pool_has_no_targets(running: Running, things: Things) -> None:
    formula = {"enableAutoScale": True, "autoScaleFormula": "$TargetDedicatedNodes = 0;"}
    auto = {"poolLifetimeOption": "job", "pool": {**POOL, **formula}}
    job = shown_job(running, things, poolInfo={"autoPoolSpecification": auto})
    pool = job["poolInfo"]["autoPoolSpecification"]["pool"]
    assert pool["autoScaleEvaluationInterval"] == "PT15M"
    assert "targetDedicatedNodes" not in pool


def test_returned_auto_pool_can_be_sent_back(running: Running, things: Things) -> None:
    user = {"name": "ann", "password": "never shown"}
    pool = {**POOL, "vmSize": "STANDARD_D1_v2", "userAccounts": [user]}
    auto = {"poolLifetimeOption": "job", "pool": pool}
    job = shown_job(running, things, poolInfo={"autoPoolSpecification": auto})
    changed = job["poolInfo"]
    changed["autoPoolSpecification"]["keepAlive"] = True
    answer = call(running, "PATCH", f"/jobs/{job['id']}", {"poolInfo": changed})
    assert answer.status_code == 200, answer.text


def test_schedule_shows_times_without_needless_zeros(running: Running, things: Things) -> None:
    name = things.id("schedule")
    times = {"doNotRunUntil": "2100-08-18T00:00:00.0000000Z", "recurrenceInterval": "PT60M"}
    job = {"poolInfo": {"poolId": "none"}}
    body = {"id": name, "schedule": times, "jobSpecification": job}
    assert call(running, "POST", "/jobschedules", body).status_code == 201
    shown = call(running, "GET", f"/jobschedules/{name}").json()
    assert shown["schedule"] == {
        "doNotRunUntil": "2100-08-18T00:00:00Z",
        "recurrenceInterval": "PT1H",
    }


def test_enum_values_are_returned_in_the_spelling_of_the_service(
    running: Running, things: Things
) -> None:
    rule = {"priority": 150, "access": "ALLOW", "sourceAddressPrefix": "*"}
    nat_pool = {
        "name": "nat",
        "protocol": "TCP",
        "backendPort": 80,
        "frontendPortRangeStart": 10000,
        "frontendPortRangeEnd": 10100,
        "networkSecurityGroupRules": [rule],
    }
    shown = shown_pool(
        running,
        things,
        taskSchedulingPolicy={"nodeFillType": "PACK", "jobDefaultOrder": "CreationTime"},
        startTask={
            "commandLine": "x",
            "userIdentity": {"autoUser": {"scope": "Task", "elevationLevel": "NonAdmin"}},
        },
        upgradePolicy={"mode": "Automatic"},
        networkConfiguration={
            "endpointConfiguration": {"inboundNATPools": [nat_pool]},
            "publicIPAddressConfiguration": {"ipFamilies": ["ipv4"]},
        },
        virtualMachineConfiguration={
            "imageReference": {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2404"},
            "nodeAgentSKUId": "batch.node.ubuntu 24.04",
            "containerConfiguration": {"type": "DockerCompatible"},
        },
    )
    assert shown["taskSchedulingPolicy"] == {
        "nodeFillType": "Pack",
        "jobDefaultOrder": "creationtime",
    }
    user = {"autoUser": {"scope": "task", "elevationLevel": "nonadmin"}}
    assert shown["startTask"]["userIdentity"] == user
    assert shown["upgradePolicy"]["mode"] == "automatic"
    network = shown["networkConfiguration"]
    [nat] = network["endpointConfiguration"]["inboundNATPools"]
    assert (nat["protocol"], nat["networkSecurityGroupRules"][0]["access"]) == ("tcp", "allow")
    assert network["publicIPAddressConfiguration"]["ipFamilies"] == ["IPv4"]
    machine = shown["virtualMachineConfiguration"]
    assert machine["containerConfiguration"]["type"] == "dockerCompatible"


def test_upload_condition_has_the_case_of_the_service(running: Running, things: Things) -> None:
    job = shown_job(running, things)["id"]
    output = {
        "filePattern": "*",
        "destination": {"container": {"containerUrl": "http://127.0.0.1:1/a/c?sig=x"}},
        "uploadOptions": {"uploadCondition": "tasksuccess"},
    }
    task = {"id": "t", "commandLine": "x", "outputFiles": [output]}
    assert call(running, "POST", f"/jobs/{job}/tasks", task).status_code == 201
    [shown] = call(running, "GET", f"/jobs/{job}/tasks/t").json()["outputFiles"]
    assert shown["uploadOptions"] == {"uploadCondition": "TaskSuccess"}


def test_failure_has_the_category_of_the_service(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task = things.wait_task(job_id, things.task(job_id, "/bin/false"))
    assert task.execution_info is not None
    assert task.execution_info.failure_info is not None
    assert task.execution_info.failure_info.category == "UserError"


def node_of(running: Running, pool_id: str, version: str = NEWEST) -> Any:
    """Return the only node of a pool, once it is idle."""

    def idle() -> Any:
        found = call(running, "GET", f"/pools/{pool_id}/nodes", version=version).json()["value"]
        return found[0] if found and found[0]["state"] == "idle" else None

    return eventually(idle)


def test_node_shows_its_size_and_the_exact_version_of_its_image(
    running: Running, things: Things
) -> None:
    pool = shown_pool(running, things, vmSize="STANDARD_D2S_V3", targetDedicatedNodes=1)
    node = node_of(running, pool["id"])
    assert node["vmSize"] == "standard_d2s_v3"
    image = node["virtualMachineInfo"]["imageReference"]
    assert (image["version"], image["exactVersion"]) == ("latest", "latest")
    assert "endpointConfiguration" not in node
    assert "ipv6Address" not in node


def test_node_of_an_older_version_has_an_endpoint_for_ssh(running: Running, things: Things) -> None:
    nat: dict[str, Any] = {
        "name": "web",
        "protocol": "tcp",
        "backendPort": 80,
        "frontendPortRangeStart": 15000,
        "frontendPortRangeEnd": 15100,
    }
    network = {"endpointConfiguration": {"inboundNATPools": [nat]}}
    pool = shown_pool(running, things, BEFORE, targetDedicatedNodes=1, networkConfiguration=network)
    endpoints = node_of(running, pool["id"])["endpointConfiguration"]["inboundEndpoints"]
    found = [(e["name"], e["protocol"], e["frontendPort"], e["backendPort"]) for e in endpoints]
    assert found == [("web.0", "tcp", 15000, 80), ("SSHRule.0", "tcp", 50000, 22)]
    node = f"/pools/{pool['id']}/nodes/{node_of(running, pool['id'])['id']}"
    login = send(running.url, "GET", f"{node}/remoteloginsettings").json()
    assert (login["remoteLoginIPAddress"], login["remoteLoginPort"]) == ("127.0.0.1", 50000)


def test_extensions_of_a_node_include_the_agent(
    running: Running, things: Things, client: BatchClient
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    [found] = client.list_node_extensions(pool_id, node.id)
    assert found.provisioning_state == "Succeeded"
    shown = client.get_node_extension(pool_id, node.id, "batchNodeExtension").vm_extension
    assert shown is not None
    assert (shown.name, shown.publisher) == ("batchNodeExtension", "Microsoft.Azure.Extensions")
    assert shown.enable_automatic_upgrade is False


KEY = "c3RvcmFnZSBrZXk="


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.key = KEY
        store.containers["inputs"] = {"in/a.txt": b"hello", "other": b"no"}
        yield store


@pytest.fixture
def linked(tmp_path: Path, blobs: BlobStore) -> Generator[Running]:
    """Yield an emulator with a linked storage account."""
    settings = {
        "blob_endpoint": f"{blobs.url}/account",
        "storage": StorageAccount("account", KEY),
    }
    with serving(tmp_path / "data", settings=settings) as running:
        yield running


LINKED_FILE = models.ResourceFile(
    auto_storage_container_name="inputs", blob_prefix="in/", file_path="d"
)


def test_files_come_from_the_linked_storage_account(linked: Running) -> None:
    things = Things(linked.client)
    job_id = things.job(things.pool(target_dedicated_nodes=1))
    task_id = things.task(job_id, "/bin/sh -c 'cat d/in/a.txt'", resource_files=[LINKED_FILE])
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id) == "hello"


def test_auto_storage_files_are_refused_without_a_linked_account(
    running: Running, things: Things
) -> None:
    job_id = shown_job(running, things)["id"]
    files = [{"autoStorageContainerName": "inputs"}]
    task = {"id": "t", "commandLine": "x", "resourceFiles": files}
    answer = call(running, "POST", f"/jobs/{job_id}/tasks", task)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")


@pytest.mark.parametrize(
    "task",
    [
        {"commandLine": "/bin/echo autoStorageContainerName"},
        {"commandLine": "x", "environmentSettings": [{"name": "autoStorageContainerName"}]},
        {
            "commandLine": "x",
            "resourceFiles": [
                {"httpUrl": "http://h/f", "filePath": "f", "autoStorageContainerName": None}
            ],
        },
    ],
)
def test_auto_storage_name_in_other_properties_is_accepted(
    running: Running, things: Things, task: dict[str, Any]
) -> None:
    job_id = shown_job(running, things)["id"]
    answer = call(running, "POST", f"/jobs/{job_id}/tasks", {"id": "t", **task})
    assert answer.status_code == 201, answer.text


def test_auto_storage_files_are_refused_in_every_place_and_spelling(
    running: Running, things: Things
) -> None:
    job_id = shown_job(running, things)["id"]
    file = {"autoStorageContainerName": "inputs"}
    settings = {"coordinationCommandLine": "x", "commonResourceFiles": [file]}
    parallel = {"id": "t", "commandLine": "x", "multiInstanceSettings": settings}
    path = f"/jobs/{job_id}/tasks"
    answers = [call(running, "POST", path, parallel)]
    escaped = json.dumps({"id": "t", "commandLine": "x", "resourceFiles": [file]})
    escaped = escaped.replace("autoStorage", "\\u0061utoStorage")
    answers.append(send(running.url, "POST", path, body=escaped.encode()))
    start = {"startTask": {"commandLine": "x", "resourceFiles": [file]}}
    answers.append(call(running, "POST", "/pools", {**POOL, "id": things.id(), **start}))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")
        values = {item["key"]: item["value"] for item in answer.json()["values"]}
        assert values["PropertyName"] == "resourceFiles/autoStorageContainerName"
    many = call(running, "POST", f"/jobs/{job_id}/addtaskcollection", {"value": [parallel]})
    [added] = many.json()["value"]
    assert (added["status"], added["error"]["code"]) == ("clienterror", "InvalidPropertyValue")
