"""The oracle finds every defect that is seeded, where it is, and finds nothing in what is right."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest
from pulumi.runtime import rpc

from tests.unit.infra.good_resources import GOOD, POOL, TEMPLATE
from tests.unit.infra.oracle import Violation, args_class, plain, validate

DELETE = object()
_SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}
_PART = re.compile(r"\['([^']*)'\]|\[(\d+)\]|([^.\[\]]+)")
_MACHINE = "deploymentConfiguration.virtualMachineConfiguration"

# (type, path that is changed, new value, kind of the violation, path that it names)
_Seed = tuple[str, str, Any, str, str]
SCHEMA_DEFECTS: list[_Seed] = [
    ("batch:Pool", "vmSizee", "Standard_NC4as_T4_v3", "unknown-key", "vmSizee"),
    ("batch:Pool", "accountName", DELETE, "missing", "accountName"),
    ("batch:Pool", "interNodeCommunication", "Disabledd", "enum", "interNodeCommunication"),
    ("batch:Pool", "interNodeCommunication", True, "enum", "interNodeCommunication"),
    ("batch:Pool", "taskSlotsPerNode", "4", "type", "taskSlotsPerNode"),
    ("batch:Pool", "taskSlotsPerNode", 1.5, "type", "taskSlotsPerNode"),
    ("batch:Pool", "taskSlotsPerNode", True, "type", "taskSlotsPerNode"),
    ("batch:Pool", "vmSize", 4, "type", "vmSize"),
    ("batch:Pool", "tags", ["a"], "type", "tags"),
    ("batch:Pool", "tags['stack']", 1.0, "type", "tags['stack']"),
    ("batch:Pool", "metadata", {"a": "b"}, "type", "metadata"),
    ("batch:Pool", "metadata[0].value", DELETE, "missing", "metadata[0].value"),
    ("batch:Pool", "metadata[0].valeu", "x", "unknown-key", "metadata[0].valeu"),
    (
        "batch:Pool",
        "scaleSettings.autoScale.formulaa",
        "x=1;",
        "unknown-key",
        "scaleSettings.autoScale.formulaa",
    ),
    (
        "batch:Pool",
        "scaleSettings.autoScale.formula",
        DELETE,
        "missing",
        "scaleSettings.autoScale.formula",
    ),
    (
        "batch:Pool",
        f"{_MACHINE}.nodeAgentSkuId",
        DELETE,
        "missing",
        f"{_MACHINE}.nodeAgentSkuId",
    ),
    (
        "batch:Pool",
        f"{_MACHINE}.securityProfile.securityType",
        "TrustedLaunch",
        "enum",
        f"{_MACHINE}.securityProfile.securityType",
    ),
    ("batch:Pool", "identity.type", "SystemAssigned", "enum", "identity.type"),
    ("batch:Pool", "startTask.waitForSuccess", "true", "type", "startTask.waitForSuccess"),
    (
        "batch:Pool",
        "startTask.environmentSettings[0].value",
        5,
        "type",
        "startTask.environmentSettings[0].value",
    ),
    (
        "batch:Pool",
        "startTask.userIdentity.autoUser.scope",
        "pool",
        "enum",
        "startTask.userIdentity.autoUser.scope",
    ),
    (
        "batch:Pool",
        "mountConfiguration[0].azureBlobFileSystemConfiguration.containerName",
        DELETE,
        "missing",
        "mountConfiguration[0].azureBlobFileSystemConfiguration.containerName",
    ),
    ("storage:StorageAccount", "sku", DELETE, "missing", "sku"),
    ("storage:StorageAccount", "sku", "Standard_LRS", "type", "sku"),
    ("storage:StorageAccount", "sku.name", "Standard_LSR", "enum", "sku.name"),
    ("storage:StorageAccount", "kind", "StorageV3", "enum", "kind"),
    ("storage:StorageAccount", "allowBlobPublicAccess", "false", "type", "allowBlobPublicAccess"),
    ("storage:StorageAccount", "allowSharedKeyAcess", False, "unknown-key", "allowSharedKeyAcess"),
    ("storage:StorageAccount", "minimumTlsVersion", "TLS1_9", "enum", "minimumTlsVersion"),
    ("storage:BlobContainer", "publicAccess", "None ", "enum", "publicAccess"),
    ("storage:BlobContainer", "accountName", DELETE, "missing", "accountName"),
    ("storage:ManagementPolicy", "policy.rules[0].name", DELETE, "missing", "policy.rules[0].name"),
    (
        "storage:ManagementPolicy",
        "policy.rules[0].definition.actions.baseBlob.delete.daysAfterCreated",
        30,
        "unknown-key",
        "policy.rules[0].definition.actions.baseBlob.delete.daysAfterCreated",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "customize[0].scriptUrl",
        "https://x",
        "unknown-key",
        "customize[0].scriptUrl",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "customize[0].type",
        "shell",
        "discriminator",
        "customize[0].type",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "customize[0].type",
        DELETE,
        "missing",
        "customize[0].type",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "customize[1].inline",
        "echo",
        "type",
        "customize[1].inline",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "source.type",
        "PlatformImag",
        "discriminator",
        "source.type",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "distribute[0].type",
        "SharedGallery",
        "discriminator",
        "distribute[0].type",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "distribute[0].galleryImageId",
        DELETE,
        "missing",
        "distribute[0].galleryImageId",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "validate.inVMValidations[0].type",
        "Bash",
        "discriminator",
        "validate.inVMValidations[0].type",
    ),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "identity",
        DELETE,
        "missing",
        "identity",
    ),
    ("compute:GalleryImage", "osType", "linux", "enum", "osType"),
    ("compute:GalleryImage", "osState", DELETE, "missing", "osState"),
    ("compute:GalleryImage", "hyperVGeneration", "Gen2", "enum", "hyperVGeneration"),
    ("compute:GalleryImage", "identifier.offer", DELETE, "missing", "identifier.offer"),
    ("compute:GalleryImage", "features[0].vlaue", "x", "unknown-key", "features[0].vlaue"),
    ("authorization:RoleAssignment", "principalId", DELETE, "missing", "principalId"),
    ("authorization:RoleAssignment", "principalType", "ManagedIdentity", "enum", "principalType"),
    ("authorization:RoleAssignment", "roleDefinition", "x", "unknown-key", "roleDefinition"),
    ("consumption:Budget", "amount", "100", "type", "amount"),
    ("consumption:Budget", "category", "Costs", "enum", "category"),
    ("consumption:Budget", "timeGrain", "monthly", "enum", "timeGrain"),
    ("consumption:Budget", "timePeriod.startDate", DELETE, "missing", "timePeriod.startDate"),
    (
        "consumption:Budget",
        "notifications['at80'].operator",
        ">=",
        "enum",
        "notifications['at80'].operator",
    ),
    (
        "consumption:Budget",
        "notifications['at80'].contactEmails",
        "a@example.com",
        "type",
        "notifications['at80'].contactEmails",
    ),
    ("batch:BatchAccount", "allowedAuthenticationModes[0]", "Entra", "enum", ""),
    ("batch:BatchAccount", "autoStorage.storageAccountId", DELETE, "missing", ""),
    ("batch:BatchAccount", "poolAllocationMode", "batchService", "enum", "poolAllocationMode"),
    ("monitor:MetricAlert", "criteria.allOf[0].operator", "Greater", "enum", ""),
    ("monitor:MetricAlert", "severity", "high", "type", "severity"),
    ("network:Subnet", "natGateway.idd", "x", "unknown-key", "natGateway.idd"),
]
_TEMPLATE = "virtualmachineimages:VirtualMachineImageTemplate"
SEMANTIC_DEFECTS: list[_Seed] = [
    ("storage:StorageAccount", "accountName", "Runner_Data", "name", "accountName"),
    ("storage:StorageAccount", "accountName", "ab", "name", "accountName"),
    ("storage:StorageAccount", "accountName", "a" * 25, "name", "accountName"),
    ("storage:BlobContainer", "containerName", "runs--old", "name", "containerName"),
    ("storage:BlobContainer", "containerName", "Runs", "name", "containerName"),
    ("storage:FileShare", "shareQuota", 0, "range", "shareQuota"),
    ("batch:BatchAccount", "accountName", "runner-dev", "name", "accountName"),
    ("batch:BatchAccount", "location", "westeurop", "location", "location"),
    ("batch:BatchAccount", "autoStorage.storageAccountId", "runnerdata", "arm-id", ""),
    ("batch:BatchAccount", "autoStorage.nodeIdentityReference.resourceId", "nodes", "arm-id", ""),
    ("batch:Pool", "poolName", "a pool", "name", "poolName"),
    ("batch:Pool", "poolName", "p" * 65, "name", "poolName"),
    ("batch:Pool", "scaleSettings.autoScale.evaluationInterval", "5 minutes", "duration", ""),
    ("batch:Pool", "scaleSettings.autoScale.evaluationInterval", "PT", "duration", ""),
    ("batch:Pool", "scaleSettings.autoScale.evaluationInterval", "PT4M", "range", ""),
    ("batch:Pool", "scaleSettings.autoScale.formula", "$TargetLowPriority=", "formula", ""),
    ("batch:Pool", "scaleSettings.fixedScale", {"resizeTimeout": "PT15M"}, "choice", ""),
    ("batch:Pool", "taskSlotsPerNode", 257, "range", "taskSlotsPerNode"),
    ("batch:Pool", f"{_MACHINE}.imageReference.publisher", "canonical", "choice", ""),
    ("batch:Pool", f"{_MACHINE}.imageReference.id", "gpu-image", "arm-id", ""),
    ("batch:Pool", f"{_MACHINE}.nodeAgentSkuId", "ubuntu 24.04", "name", ""),
    ("batch:Pool", "identity.userAssignedIdentities[0]", "nodes", "arm-id", ""),
    ("batch:Pool", "identity.userAssignedIdentities", [], "missing", ""),
    ("batch:Pool", "networkConfiguration.subnetId", "subnet", "arm-id", ""),
    (
        "batch:Pool",
        "mountConfiguration[0].azureBlobFileSystemConfiguration.relativeMountPath",
        "/data",
        "name",
        "",
    ),
    (
        "batch:Pool",
        "mountConfiguration[0].azureBlobFileSystemConfiguration.accountKey",
        "key",
        "choice",
        "mountConfiguration[0].azureBlobFileSystemConfiguration",
    ),
    (
        "batch:Pool",
        "mountConfiguration[0].nfsMountConfiguration",
        {"source": "host:/export", "relativeMountPath": "nfs"},
        "choice",
        "mountConfiguration[0]",
    ),
    ("managedidentity:UserAssignedIdentity", "resourceName", "-a", "name", "resourceName"),
    ("compute:Gallery", "galleryName", "runner-gallery", "name", "galleryName"),
    ("compute:GalleryImage", "hyperVGeneration", "V1", "choice", "hyperVGeneration"),
    ("compute:GalleryImage", "endOfLifeDate", "next year", "date", "endOfLifeDate"),
    ("compute:GalleryImage", "location", "moon", "location", "location"),
    (_TEMPLATE, "buildTimeoutInMinutes", 961, "range", "buildTimeoutInMinutes"),
    (_TEMPLATE, "distribute", [], "missing", "distribute"),
    (_TEMPLATE, "distribute[0].runOutputName", "out put", "name", ""),
    (_TEMPLATE, "distribute[0].galleryImageId", "/galleries/x", "arm-id", ""),
    (_TEMPLATE, "distribute[0].targetRegions[0].name", "atlantis", "location", ""),
    (_TEMPLATE, "customize[1].sha256Checksum", "abc", "name", "customize[1].sha256Checksum"),
    (_TEMPLATE, "customize[1].scriptUri", "https://x/y.sh", "choice", "customize[1]"),
    (_TEMPLATE, "identity.userAssignedIdentities[0]", "builder", "arm-id", ""),
    ("authorization:RoleAssignment", "principalId", "me", "guid", "principalId"),
    ("authorization:RoleAssignment", "roleAssignmentName", "reader", "name", "roleAssignmentName"),
    ("authorization:RoleAssignment", "roleDefinitionId", "Reader", "arm-id", "roleDefinitionId"),
    ("authorization:RoleAssignment", "scope", "runner-dev", "arm-id", "scope"),
    ("consumption:Budget", "amount", 0, "range", "amount"),
    ("consumption:Budget", "timePeriod.startDate", "2026-11-15T00:00:00Z", "date", ""),
    ("consumption:Budget", "timePeriod.startDate", "November", "date", ""),
    ("consumption:Budget", "timePeriod.endDate", "2020-01-01T00:00:00Z", "date", ""),
    ("consumption:Budget", "notifications['at80'].threshold", 8000, "range", ""),
    ("consumption:Budget", "notifications['at80'].contactRoles", DELETE, "missing", ""),
    ("consumption:Budget", "scope", "", "arm-id", "scope"),
    ("operationalinsights:Workspace", "retentionInDays", 7, "range", "retentionInDays"),
    ("monitor:MetricAlert", "windowSize", "5m", "duration", "windowSize"),
    ("monitor:MetricAlert", "evaluationFrequency", "PT2M", "range", "evaluationFrequency"),
    ("monitor:MetricAlert", "windowSize", "PT1M", "range", "windowSize"),
    ("monitor:MetricAlert", "scopes[0]", "account", "arm-id", "scopes[0]"),
    ("network:VirtualNetwork", "addressSpace.addressPrefixes[0]", "10.20.0.1/16", "address", ""),
    ("network:Subnet", "addressPrefix", "10.20/20", "address", "addressPrefix"),
    ("network:Subnet", "natGateway.id", "nat", "arm-id", "natGateway.id"),
    ("resources:ResourceGroup", "location", "europe", "location", "location"),
    ("resources:ResourceGroup", "resourceGroupName", "ends.", "name", "resourceGroupName"),
    ("resources:ResourceGroup", "tags['a/b']", "x", "name", "tags.a/b"),
]


def changed(inputs: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy in which one path is set, or removed if `value` is DELETE."""
    result = copy.deepcopy(dict(inputs))
    parts = [named or (int(no) if no else key) for named, no, key in _PART.findall(path)]
    place: Any = result
    for part in parts[:-1]:
        place = place[part]
    if value is DELETE:
        del place[parts[-1]]
    else:
        place[parts[-1]] = value
    return result


def violations(kind: str, inputs: Mapping[str, Any]) -> list[Violation]:
    return validate(f"azure-native:{kind}", "seeded", inputs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOOD)
def test_valid_resource_has_no_violation(kind: str) -> None:
    assert violations(kind, GOOD[kind]) == []


@pytest.mark.parametrize(
    "seed", SCHEMA_DEFECTS + SEMANTIC_DEFECTS, ids=lambda s: f"{s[0]}-{s[1]}-{s[3]}"
)
def test_seeded_defect_is_the_only_violation_found(seed: _Seed) -> None:
    kind, path, value, expected, named = seed

    found = violations(kind, changed(GOOD[kind], path, value))

    assert [v.kind for v in found] == [expected]
    where = named or found[0].path
    assert found[0].path == where
    assert path.startswith(found[0].path.split("[")[0].split(".")[0])


@pytest.mark.parametrize("kind", GOOD)
def test_every_missing_required_input_is_found(kind: str) -> None:
    resource = args_class(f"azure-native:{kind}")
    assert resource is not None
    empty = {v.path for v in violations(kind, {}) if v.kind == "missing"}

    for path in empty:
        found = violations(kind, changed(GOOD[kind], path, DELETE))
        assert Violation("missing", path, found[0].message) in found
    assert empty <= set(GOOD[kind])


@pytest.mark.parametrize("kind", GOOD)
def test_every_misspelt_input_is_found(kind: str) -> None:
    for key in GOOD[kind]:
        inputs = {f"{k}x" if k == key else k: v for k, v in GOOD[kind].items()}
        assert "unknown-key" in {v.kind for v in violations(kind, inputs)}, key


def test_unknown_type_is_found() -> None:
    assert [v.kind for v in violations("batch:Poool", POOL)] == ["unknown-type"]
    assert [v.kind for v in violations("batsh:Pool", POOL)] == ["unknown-type"]


def test_resources_of_other_providers_pass() -> None:
    assert validate("random:index:RandomId", "x", {"anything": 1}) == []
    assert validate("runner:infra:GpuPool", "x", {}) == []


def test_contents_of_secrets_are_checked() -> None:
    start = {**POOL["startTask"], "commandLine": 5}
    secret = {**_SECRET, "value": start}

    found = violations("batch:Pool", {**POOL, "startTask": secret})

    assert [(v.kind, v.path) for v in found] == [("type", "startTask.commandLine")]
    assert plain({"a": {**_SECRET, "value": "key"}}) == {"a": "key"}


@pytest.mark.parametrize("kind", GOOD)
def test_unknown_values_are_valid_for_every_input(kind: str) -> None:
    for key in GOOD[kind]:
        assert violations(kind, {**GOOD[kind], key: rpc.UNKNOWN}) == []


def test_floats_are_valid_for_integers() -> None:
    assert violations("batch:Pool", {**POOL, "taskSlotsPerNode": 2.0}) == []


def test_violation_has_path_reason_and_suggestion() -> None:
    (found,) = violations("batch:Pool", changed(POOL, "startTask.comandLine", "x"))

    assert str(found) == (
        "startTask.comandLine: StartTaskArgs has no 'comandLine'; meant 'commandLine'?"
        " [unknown-key]"
    )


def test_invalid_discriminator_lists_the_valid_ones() -> None:
    (found,) = violations(_TEMPLATE, changed(TEMPLATE, "customize[0].type", "shell"))

    assert "'Shell'" in found.message or "Shell" in found.message
    assert "'shell' is none of" in found.message
