"""The rules of single resources, of pools, and of a stack as a whole; `report` is called with
each violation.

Properties have their names of the API. Values that a preview does not know yet are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from batch_emulator.autoscale.values import FormulaError
from runner.core.pricing.machines import OS_END_OF_LIFE, machine
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import GIVEN_SIZE, SCENARIO
from runner_infra.config.stack import BUDGET_TAG
from runner_infra.planning.own_formula import WEEK, evaluate_idle

Report = Callable[[str], None]
_TARGETS = ("targetDedicatedNodes", "targetLowPriorityNodes")


def _part(props: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object, empty if it is absent."""
    return cast("Mapping[str, Any]", props.get(name) or {})


def _check_formula(formula: str, scenario: str | None, report: Report) -> None:
    """Evaluate the idle pool every third hour of a week; office hours may keep nodes at times."""
    try:
        seen = [(at, evaluate_idle(formula, at)) for at in WEEK]
    except FormulaError as err:
        report(f"the formula is invalid: {err.detail(formula)}")
        return
    failed = [result.problem for _, result in seen if result.problem is not None]
    if failed:
        report(f"the evaluation of the formula fails: {failed[0].detail}")
    kept = [(at, result.dedicated + result.spot) for at, result in seen]
    kept = [(at, nodes) for at, nodes in kept if nodes]
    if kept and (scenario != "office_hours" or len(kept) == len(WEEK)):
        at, nodes = kept[0]
        when = "always" if len(kept) == len(WEEK) else f"on {at:%A} at {at:%H:%M} UTC"
        report(f"the pool keeps {nodes} nodes when idle ({when}): the formula must scale to zero")


def nothing_retired_in_pool(props: Mapping[str, Any], today: date, report: Report) -> None:
    """Report a retired VM size, node agent or managed image."""
    if _metadata(props, GIVEN_SIZE) is None:
        size_is_current(props.get("vmSize"), today, report)
    virtual = _part(_part(props, "deploymentConfiguration"), "virtualMachineConfiguration")
    agent = virtual.get("nodeAgentSkuId")
    end = OS_END_OF_LIFE.get(agent.lower()) if isinstance(agent, str) else None
    if end is not None and end <= today:
        report(f"Batch stopped supporting {agent} on {end}")
    image = str(_part(virtual, "imageReference").get("id", ""))
    if "/providers/microsoft.compute/images/" in image.lower():
        report("Azure retired managed images on 2026-03-31: use a gallery image")


def size_is_current(vm_size: object, today: date, report: Report) -> None:
    """Report a VM size that is unknown or retired."""
    if not isinstance(vm_size, str):
        return
    try:
        machine(vm_size, today)
    except RunnerError as err:
        report(str(err))


def _scenario(props: Mapping[str, Any]) -> str | None:
    return _metadata(props, SCENARIO)


def _metadata(props: Mapping[str, Any], name: str) -> str | None:
    for item in cast("Sequence[Mapping[str, Any]]", props.get("metadata") or ()):
        if item.get("name") == name:
            return cast("str | None", item.get("value"))
    return None


def _to_int(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


ResourceRule = Callable[[str, Mapping[str, Any], Report], None]


@dataclass(frozen=True, slots=True)
class DeclaredResource:
    """One resource of a stack, such as `azure-native:batch:Pool`."""

    resource_type: str
    props: Mapping[str, Any]


StackRule = Callable[[Sequence[DeclaredResource], Report], None]

# Our resource types without a property `tags`. A test compares this with the SDK.
UNTAGGABLE = frozenset(
    {
        "authorization:RoleAssignment",
        "consumption:Budget",
        "costmanagement:Export",
        "monitor:DiagnosticSetting",
        "network:PrivateDnsZoneGroup",
        "network:Subnet",
        "storage:BlobContainer",
        "storage:BlobServiceProperties",
        "storage:FileServiceProperties",
        "storage:FileShare",
        "storage:ManagementPolicy",
    }
)


def to_kind(resource_type: str) -> str | None:
    """Return `batch:Pool` for azure-native's pool of any API version, None for other providers."""
    package, _, rest = resource_type.partition(":")
    if package != "azure-native":
        return None
    module, _, name = rest.partition(":")
    return f"{module.partition('/')[0]}:{name}"


def no_public_blob_access(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """Blobs need a sign-in, TLS 1.2 and HTTPS."""
    kind = to_kind(resource_type)
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
    kind = to_kind(resource_type)
    # Pulumi passes lists as its own class, which is not equal to `list`.
    modes = list(cast("Sequence[str]", props.get("allowedAuthenticationModes") or ()))
    if kind == "batch:BatchAccount" and modes != ["AAD"]:
        report("the Batch account allows keys: set allowedAuthenticationModes to [AAD]")
    if kind == "containerregistry:Registry" and props.get("adminUserEnabled") is not False:
        report("the registry has an admin password: set adminUserEnabled to false")


def tagged(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """Resources that support tags have some, for cost reports."""
    kind = to_kind(resource_type)
    if kind is not None and kind not in UNTAGGABLE and not props.get("tags"):
        report("the resource has no tags")


def pools_scale_to_zero(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
    """An idle pool has no nodes after two hours, unless its metadata says otherwise."""
    if to_kind(resource_type) != "batch:Pool":
        return
    scenario = _scenario(props)
    if scenario == "fixed":
        return
    scale = _part(props, "scaleSettings")
    nodes = sum(_to_int(_part(scale, "fixedScale").get(key)) for key in _TARGETS)
    if nodes:
        report(
            f"the pool keeps {nodes} nodes: use a formula, or set {SCENARIO}=fixed in its metadata"
        )
    formula = _part(scale, "autoScale").get("formula")
    if isinstance(formula, str):
        _check_formula(formula, scenario, report)


def nothing_retired(today: date) -> ResourceRule:
    """Return the rule that no VM size, image or node agent is retired on a day."""

    def rule(resource_type: str, props: Mapping[str, Any], report: Report) -> None:
        if to_kind(resource_type) == "batch:Pool":
            nothing_retired_in_pool(props, today, report)
        if to_kind(resource_type) == "virtualmachineimages:VirtualMachineImageTemplate":
            size_is_current(_part(props, "vmProfile").get("vmSize"), today, report)

    return rule


def budget_present(resources: Sequence[DeclaredResource], report: Report) -> None:
    """A stack with pools has a budget with notifications, unless its group is tagged otherwise."""
    kinds = [to_kind(found.resource_type) for found in resources]
    if "batch:Pool" not in kinds or any(_without_budget(found) for found in resources):
        return
    budgets = [r.props for r in resources if to_kind(r.resource_type) == "consumption:Budget"]
    if not any(budget.get("notifications") for budget in budgets):
        report("the stack has pools but no budget with notifications")


# If the group is adopted, the identities have the tag of the stack.
_MARKED_TYPES = ("resources:ResourceGroup", "managedidentity:UserAssignedIdentity")


def _without_budget(found: DeclaredResource) -> bool:
    is_marked = _part(found.props, "tags").get(BUDGET_TAG) == "off"
    return to_kind(found.resource_type) in _MARKED_TYPES and is_marked


def keys_only_for_the_share(resources: Sequence[DeclaredResource], report: Report) -> None:
    """Account keys are disabled unless there is a file share, which needs them for SMB."""
    kinds = {to_kind(found.resource_type) for found in resources}
    for found in resources if "storage:FileShare" not in kinds else ():
        is_account = to_kind(found.resource_type) == "storage:StorageAccount"
        if is_account and found.props.get("allowSharedKeyAccess") is not False:
            report("the storage account allows keys: set allowSharedKeyAccess to false")
