"""What the emulator does with each property of each request body, for the coverage page.

A property acts (the emulator does what the service documents, or checks and shows it as the
service would), is stored and shown without effect, or is refused. Every property of the schema is
named here once, so that a new one cannot be accepted and silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.features.selftest.conformance import Conformance, ConformanceStatement

SCHEMA = (
    Path(__file__).parents[1] / "batch_emulator" / "domain" / "validation" / "request_schema.json"
)
_WHOLE = "*"

# type -> the properties that have an effect, or all
ACTING: Mapping[str, str] = {
    "AutoUserSpecification": "elevationLevel",
    "UserAccount": "name elevationLevel",
    "UserIdentity": "username autoUser",
    **dict.fromkeys(
        (
            "AffinityInformation",
            "ApplicationPackageReference",
            "AuthenticationTokenSettings",
            "AutoPoolSpecification",
            "AzureBlobFileSystemConfiguration",
            "BatchNodeDeallocateOptions",
            "ComputeNodeIdentityReference",
            "ContainerConfiguration",
            "ContainerHostBatchBindMountEntry",
            "EnvironmentSetting",
            "ExitCodeMapping",
            "ExitCodeRangeMapping",
            "ExitConditions",
            "ExitOptions",
            "HttpHeader",
            "JobConstraints",
            "JobDisableParameter",
            "JobScheduleAddParameter",
            "JobSchedulePatchParameter",
            "JobScheduleUpdateParameter",
            "JobTerminateParameter",
            "JobUpdateParameter",
            "MetadataItem",
            "MountConfiguration",
            "MultiInstanceSettings",
            "NodeDisableSchedulingParameter",
            "NodeRebootParameter",
            "NodeReimageParameter",
            "NodeRemoveParameter",
            "OutputFile",
            "OutputFileBlobContainerDestination",
            "OutputFileDestination",
            "OutputFileUploadOptions",
            "PoolEnableAutoScaleParameter",
            "PoolEvaluateAutoScaleParameter",
            "PoolInformation",
            "PoolResizeParameter",
            "Schedule",
            "TaskAddCollectionParameter",
            "TaskConstraints",
            "TaskContainerSettings",
            "TaskDependencies",
            "TaskIdRange",
            "TaskUpdateParameter",
            "UploadBatchServiceLogsConfiguration",
        ),
        _WHOLE,
    ),
    "AzureFileShareConfiguration": "accountName azureFileUrl accountKey relativeMountPath",
    "CIFSMountConfiguration": "username source relativeMountPath password",
    "NFSMountConfiguration": "source relativeMountPath",
    "CertificateAddParameter": "thumbprint thumbprintAlgorithm data certificateFormat password",
    "CertificateReference": "thumbprint thumbprintAlgorithm visibility",
    "ComputeNodeUser": "name expiryTime",
    "ContainerRegistry": "username password registryServer identityReference",
    "ImageReference": "publisher offer sku version",
    "InboundNATPool": "name protocol backendPort frontendPortRangeStart",
    "JobAddParameter": (
        "id displayName priority maxParallelTasks allowTaskPreemption constraints jobManagerTask "
        "jobPreparationTask jobReleaseTask commonEnvironmentSettings poolInfo onAllTasksComplete "
        "onTaskFailure metadata usesTaskDependencies"
    ),
    "JobManagerTask": (
        "id displayName commandLine containerSettings resourceFiles outputFiles "
        "environmentSettings constraints requiredSlots killJobOnCompletion runExclusive "
        "applicationPackageReferences authenticationTokenSettings allowLowPriorityNode"
    ),
    "JobPatchParameter": (
        "priority maxParallelTasks allowTaskPreemption onAllTasksComplete constraints poolInfo "
        "metadata"
    ),
    "JobPreparationTask": (
        "id commandLine containerSettings resourceFiles environmentSettings constraints "
        "waitForSuccess rerunOnNodeRebootAfterSuccess"
    ),
    "JobReleaseTask": (
        "id commandLine containerSettings resourceFiles environmentSettings maxWallClockTime"
    ),
    "JobSpecification": (
        "priority allowTaskPreemption maxParallelTasks displayName usesTaskDependencies "
        "onAllTasksComplete onTaskFailure constraints jobManagerTask jobPreparationTask "
        "jobReleaseTask commonEnvironmentSettings poolInfo metadata"
    ),
    "NetworkConfiguration": "endpointConfiguration publicIPAddressConfiguration",
    "NodeUpdateUserParameter": "expiryTime",
    "PoolAddParameter": (
        "id displayName vmSize virtualMachineConfiguration resizeTimeout targetDedicatedNodes "
        "targetLowPriorityNodes enableAutoScale autoScaleFormula autoScaleEvaluationInterval "
        "enableInterNodeCommunication networkConfiguration startTask certificateReferences "
        "applicationPackageReferences taskSlotsPerNode taskSchedulingPolicy metadata "
        "mountConfiguration targetNodeCommunicationMode maxTasksPerNode"
    ),
    "PoolEndpointConfiguration": "inboundNATPools",
    "PoolPatchParameter": (
        "startTask certificateReferences applicationPackageReferences metadata "
        "targetNodeCommunicationMode displayName vmSize enableInterNodeCommunication "
        "virtualMachineConfiguration taskSlotsPerNode taskSchedulingPolicy networkConfiguration "
        "mountConfiguration"
    ),
    "PoolSpecification": (
        "displayName vmSize virtualMachineConfiguration taskSlotsPerNode taskSchedulingPolicy "
        "resizeTimeout targetDedicatedNodes targetLowPriorityNodes enableAutoScale "
        "autoScaleFormula autoScaleEvaluationInterval enableInterNodeCommunication "
        "networkConfiguration startTask certificateReferences applicationPackageReferences "
        "metadata mountConfiguration targetNodeCommunicationMode maxTasksPerNode"
    ),
    "PoolUpdatePropertiesParameter": (
        "startTask certificateReferences applicationPackageReferences metadata "
        "targetNodeCommunicationMode"
    ),
    "PublicIPAddressConfiguration": "ipFamilies",
    "ResourceFile": (
        "autoStorageContainerName storageContainerUrl httpUrl blobPrefix filePath fileMode "
        "identityReference"
    ),
    "StartTask": (
        "commandLine containerSettings resourceFiles environmentSettings maxTaskRetryCount "
        "waitForSuccess"
    ),
    "TaskAddParameter": (
        "id displayName commandLine containerSettings exitConditions resourceFiles outputFiles "
        "environmentSettings affinityInfo constraints requiredSlots multiInstanceSettings "
        "dependsOn applicationPackageReferences authenticationTokenSettings"
    ),
    "TaskSchedulingPolicy": "nodeFillType",
    "VirtualMachineConfiguration": "imageReference nodeAgentSKUId containerConfiguration",
}

_DISKS = "a node is a folder of this machine, with the disk and the image of this machine"
_USERS = "must exist; the emulator chooses the user of a task; only `elevationLevel` has an effect"
_NETWORK = "nodes have loopback addresses; there is no virtual network"
_UPGRADES = "nodes are never upgraded"
_EXTENSIONS = "shown as provisioned, never run"
_OPTIONS = "a mount is a folder of this machine"

# type -> the properties that are stored and shown without effect ("*": all others), and why
STORED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "BatchPoolIdentityReference",
            "BatchVmDiskSecurityProfile",
            "DataDisk",
            "DiffDiskSettings",
            "DiskCustomerManagedKey",
            "DiskEncryptionConfiguration",
            "DiskEncryptionSetParameters",
            "ManagedDisk",
            "NodePlacementConfiguration",
            "OSDisk",
            "SecurityProfile",
            "ServiceArtifactReference",
            "UefiSettings",
            "VirtualMachineConfiguration",
            "WindowsConfiguration",
        ),
        (_WHOLE, _DISKS),
    ),
    **dict.fromkeys(
        (
            "AutoUserSpecification",
            "JobManagerTask",
            "JobPreparationTask",
            "LinuxUserConfiguration",
            "StartTask",
            "TaskAddParameter",
            "UserAccount",
            "UserIdentity",
            "WindowsUserConfiguration",
        ),
        (_WHOLE, _USERS),
    ),
    **dict.fromkeys(
        (
            "IPTag",
            "InboundNATPool",
            "JobAddParameter",
            "JobNetworkConfiguration",
            "JobPatchParameter",
            "JobSpecification",
            "NetworkConfiguration",
            "NetworkSecurityGroupRule",
            "PublicIPAddressConfiguration",
        ),
        (_WHOLE, _NETWORK),
    ),
    **dict.fromkeys(
        ("AutomaticOSUpgradePolicy", "RollingUpgradePolicy", "UpgradePolicy"), (_WHOLE, _UPGRADES)
    ),
    "VMExtension": (_WHOLE, _EXTENSIONS),
    **dict.fromkeys(
        ("ComputeNodeUser", "NodeUpdateUserParameter"),
        (_WHOLE, "nodes are folders, to which nobody signs in"),
    ),
    **dict.fromkeys(
        ("AzureFileShareConfiguration", "CIFSMountConfiguration", "NFSMountConfiguration"),
        ("mountOptions", _OPTIONS),
    ),
    "CertificateReference": ("storeLocation storeName", "only Windows nodes have stores"),
    "HostEndpointSettings": (_WHOLE, "nodes have no metadata security protocol"),
    "ProxyAgentSettings": (_WHOLE, "nodes have no metadata security protocol"),
    "ImageReference": (_WHOLE, _DISKS),
    "PoolAddParameter": (
        "applicationLicenses userAccounts upgradePolicy resourceTags",
        f"{_USERS}; {_UPGRADES}; nothing has licenses or tags",
    ),
    "PoolPatchParameter": (
        "userAccounts upgradePolicy resourceTags",
        f"{_USERS}; {_UPGRADES}; nothing has tags",
    ),
    "PoolSpecification": (
        "applicationLicenses userAccounts upgradePolicy resourceTags",
        f"{_USERS}; {_UPGRADES}; nothing has licenses or tags",
    ),
    "JobReleaseTask": (
        "userIdentity retentionTime",
        f"userIdentity: {_USERS}; retentionTime: the directory stays as long as its job and node",
    ),
    "TaskSchedulingPolicy": ("jobDefaultOrder", "tasks start in the order in which they came"),
}

# type -> the properties that are refused, with the error code
REFUSED: Mapping[str, tuple[str, str]] = {
    "CloudServiceConfiguration": (_WHOLE, "`NotImplemented`: nodes are Linux; retired in 2024"),
    "PoolAddParameter": ("cloudServiceConfiguration", "`NotImplemented`"),
    "PoolSpecification": ("cloudServiceConfiguration", "`NotImplemented`"),
    "ResourceFile": (
        "blobSource",
        "`InvalidPropertyValue`: use httpUrl, which api-versions since 2018-12-01 have",
    ),
}


def statuses(type_name: str, names: list[str]) -> Mapping[str, str]:
    """Return the status of each property of a type.

    An entry for a property outranks the entry for all others (`*`).

    Raises:
        ValueError: no table has a status for a property.
    """
    found: dict[str, str] = {}
    acting = ACTING.get(type_name, "")
    for name in names:
        if name in acting.split():
            found[name] = "acts"
        for word, table in (("refused", REFUSED), ("stored", STORED)):
            listed, why = table.get(type_name, ("", ""))
            if name in listed.split():
                found[name] = f"{word}: {why}"
    for name in names:
        if name in found:
            continue
        if acting == _WHOLE:
            found[name] = "acts"
        elif (others := REFUSED.get(type_name, ("", "")))[0] == _WHOLE:
            found[name] = f"refused: {others[1]}"
        elif (others := STORED.get(type_name, ("", "")))[0] == _WHOLE:
            found[name] = f"stored: {others[1]}"
        else:
            raise ValueError(
                f"no status for {type_name}.{name}: add it to ACTING, STORED or REFUSED"
            )
    return found


_HEAD = """\
# Properties of request bodies

Every property that any api-version since 2018-03-01 knows, by type. A body with any other one is
refused: 400 `InvalidRequestBody`. *same*: the emulator does what the service documents. *stored*:
checked, and returned by later requests (except secrets), without effect. *refused*: answered with
the code. The source is the documentation. *since* is the first api-version that knows a
property, *until* the first that does not.

| operation | body |
|---|---|"""


def statements() -> list[ConformanceStatement]:
    """Return the statement about every property of every type."""
    return [
        _statement(type_name, name, said)
        for type_name, properties in _schema()["types"].items()
        for name, said in statuses(type_name, list(properties)).items()
    ]


def _statement(type_name: str, name: str, said: str) -> ConformanceStatement:
    verdict, how = (Conformance.SAME, "") if said == "acts" else (Conformance.DIFFERS, said)
    return ConformanceStatement(f"{type_name}.{name}", verdict, "documentation", how)


def differing(operation: str) -> list[str]:
    """Return the properties of an operation's body that are stored without effect or refused."""
    type_name = _schema()["operations"].get(operation)
    if type_name is None:
        return []
    names = list(_schema()["types"][type_name])
    return [name for name, said in statuses(type_name, names).items() if said != "acts"]


def _schema() -> Mapping[str, Any]:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def section() -> Iterator[str]:
    """Return the lines of the page."""
    schema = _schema()
    yield _HEAD
    for operation, name in schema["operations"].items():
        yield f"| {operation} | {name} |"
    yield "\n| type | property | since | until | |\n|---|---|---|---|---|"
    for type_name, properties in schema["types"].items():
        found = statuses(type_name, list(properties))
        for name, one in properties.items():
            since, until = one.get("since", ""), one.get("until", "")
            said = _statement(type_name, name, found[name]).cells()[1]
            yield f"| {type_name} | {name} | {since} | {until} | {said} |"
    yield ""
