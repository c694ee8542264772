"""Policy rules for single resources and for a whole stack. A rule calls `report` for a violation.

Properties have the names of the ARM API. Values that a preview does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from infra.policy import pool_rules

Report = Callable[[str], None]
ResourceRule = Callable[[str, Mapping[str, Any], Report], None]


@dataclass(frozen=True, slots=True)
class Declared:
    """One resource of a stack, such as `azure-native:batch:Pool`."""

    resource_type: str
    props: Mapping[str, Any]


StackRule = Callable[[Sequence[Declared], Report], None]

# Our resource types without a property `tags`. A test compares this with the SDK.
UNTAGGABLE = frozenset(
    {
        "authorization:RoleAssignment",
        "consumption:Budget",
        "monitor:DiagnosticSetting",
        "network:Subnet",
        "storage:BlobContainer",
        "storage:BlobServiceProperties",
        "storage:FileServiceProperties",
        "storage:FileShare",
        "storage:ManagementPolicy",
    }
)


def kind_of(resource_type: str) -> str | None:
    """Return `batch:Pool` for azure-native's pool of any API version, None for other providers."""
    package, _, rest = resource_type.partition(":")
    if package != "azure-native":
        return None
    module, _, name = rest.partition(":")
    return f"{module.partition('/')[0]}:{name}"


def no_public_blob_access(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """Blobs need a sign-in, TLS 1.2 and HTTPS."""
    kind = kind_of(resource_type)
    if kind == "storage:StorageAccount":
        if props.get("allowBlobPublicAccess") is not False:
            report("public access to blobs is allowed: set allowBlobPublicAccess to false")
        if props.get("minimumTlsVersion") not in ("TLS1_2", "TLS1_3"):
            report("set minimumTlsVersion to TLS1_2")
        if props.get("enableHttpsTrafficOnly") is False:
            report("plain HTTP is allowed: set enableHttpsTrafficOnly to true")
    if kind == "storage:BlobContainer" and props.get("publicAccess", "None") != "None":
        report(f"the container is public ({props['publicAccess']})")


def entra_only(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """The Batch account and the container registry allow no keys."""
    kind = kind_of(resource_type)
    # Pulumi passes lists as its own class, which is not equal to a list.
    modes = list(cast("Sequence[str]", props.get("allowedAuthenticationModes") or ()))
    if kind == "batch:BatchAccount" and modes != ["AAD"]:
        report("the Batch account allows keys: set allowedAuthenticationModes to [AAD]")
    if kind == "containerregistry:Registry" and props.get("adminUserEnabled") is not False:
        report("the registry has an admin password: set adminUserEnabled to false")


def tagged(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """Resources that support tags have some, for cost reports."""
    kind = kind_of(resource_type)
    if kind is not None and kind not in UNTAGGABLE and not props.get("tags"):
        report("it has no tags")


def pools_scale_to_zero(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """An idle pool has no nodes after two hours, unless its metadata says otherwise."""
    if kind_of(resource_type) == "batch:Pool":
        pool_rules.scales_to_zero(props, report)


def nothing_retired(today: date) -> ResourceRule:
    """Return the rule that no VM size, image or node agent is retired on a day."""

    def rule(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
        if kind_of(resource_type) == "batch:Pool":
            pool_rules.nothing_retired(props, today, report)
        if kind_of(resource_type) == "virtualmachineimages:VirtualMachineImageTemplate":
            profile = cast("Mapping[str, Any]", props.get("vmProfile", {}))
            pool_rules.size_is_current(profile.get("vmSize"), today, report)

    return rule


def budget_present(resources: Sequence[Declared], report: Report) -> None:
    """A stack with pools has a budget with notifications."""
    kinds = [kind_of(found.resource_type) for found in resources]
    if "batch:Pool" not in kinds:
        return
    budgets = [r.props for r in resources if kind_of(r.resource_type) == "consumption:Budget"]
    if not any(budget.get("notifications") for budget in budgets):
        report("the stack has pools but no budget with notifications")


def keys_only_for_the_share(resources: Sequence[Declared], report: Report) -> None:
    """Account keys are disabled unless there is a file share, which needs them for SMB."""
    kinds = {kind_of(found.resource_type) for found in resources}
    for found in resources:
        if kind_of(found.resource_type) != "storage:StorageAccount":
            continue
        if (
            found.props.get("allowSharedKeyAccess") is not False
            and "storage:FileShare" not in kinds
        ):
            report("the storage account allows keys: set allowSharedKeyAccess to false")
