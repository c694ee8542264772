"""Rules of Azure for whole resources: exclusive keys, ranges, dates, formulas, addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from pulumi.runtime import rpc

from batch_emulator.autoscale.evaluate import check
from batch_emulator.autoscale.values import FormulaError

Found = tuple[str, str, str]
_Values = Mapping[str, Any]
_SECONDS = {"W": 604_800, "D": 86_400, "H": 3600, "M": 60, "S": 1}


def contents(kind: str, values: _Values) -> Iterator[Found]:
    """Yield the violations of rules about a whole resource."""
    rule = _RULES.get(kind)
    if rule is not None:
        yield from rule(values)
    yield from _tags(values)


def _tags(values: _Values) -> Iterator[Found]:
    """Check the tags of a resource.

    learn.microsoft.com/azure/azure-resource-manager/management/tag-resources (2022-03-15)
    """
    tags = _object(values, "tags")
    if len(tags) > 50:
        yield "range", "tags", f"{len(tags)} tags, 50 are allowed"
    for key, value in tags.items():
        if not 1 <= len(key) <= 512 or re.search(r"[<>%&\\?/]", key):
            yield "name", f"tags.{key}", f"{key!r} is no tag: up to 512 characters without <>%&\\?/"
        if isinstance(value, str) and len(value) > 256:
            yield "range", f"tags.{key}", f"a value of {len(value)} characters, 256 are allowed"


def _pool(values: _Values) -> Iterator[Found]:
    """Check a pool.

    https://learn.microsoft.com/rest/api/batchmanagement/pool/create (2024-07-01)
    """
    yield from _exactly_one(values, "scaleSettings", ("autoScale", "fixedScale"))
    scale = _object(values, "scaleSettings")
    yield from _auto_scale(_object(scale, "autoScale"))
    fixed = _object(scale, "fixedScale")
    yield from _span(fixed, "resizeTimeout", "scaleSettings.fixedScale", 300, 604_800)
    yield from _range(values, "taskSlotsPerNode", 1, 256)
    yield from _machine(
        _object(_object(values, "deploymentConfiguration"), "virtualMachineConfiguration")
    )
    mounts = _list(values, "mountConfiguration")
    if len(mounts) > 10:
        yield "range", "mountConfiguration", f"{len(mounts)} mounts, a node takes 10"
    for number, mount in enumerate(mounts):
        yield from _mount(mount, f"mountConfiguration[{number}]")
    identity = _object(values, "identity")
    if identity.get("type") == "UserAssigned" and not identity.get("userAssignedIdentities"):
        yield "missing", "identity.userAssignedIdentities", "UserAssigned without an identity"
    start = _object(values, "startTask")
    if start.get("commandLine") == "":
        yield "missing", "startTask.commandLine", "a start task needs a command line"
    yield from _range(start, "maxTaskRetryCount", -1, 1000, "startTask")


def _auto_scale(settings: _Values) -> Iterator[Found]:
    at = "scaleSettings.autoScale"
    yield from _span(settings, "evaluationInterval", at, 300, 604_800)
    formula = settings.get("formula")
    if isinstance(formula, str) and formula != rpc.UNKNOWN:
        try:
            check(formula)
        except FormulaError as err:
            yield "formula", f"{at}.formula", err.detail(formula)


def _machine(machine: _Values) -> Iterator[Found]:
    at = "deploymentConfiguration.virtualMachineConfiguration"
    image = _object(machine, "imageReference")
    named = [key for key in ("publisher", "offer", "sku") if key in image]
    if image and ("id" in image) == bool(named):
        yield "choice", f"{at}.imageReference", "give either id, or publisher, offer and sku"
    elif named and len(named) < 3:
        yield "missing", f"{at}.imageReference", "publisher, offer and sku go together"
    agent = machine.get("nodeAgentSkuId", rpc.UNKNOWN)
    if agent != rpc.UNKNOWN and not re.fullmatch(r"batch\.node\.[a-z]+( [\w.]+)?", str(agent)):
        yield (
            "name",
            f"{at}.nodeAgentSkuId",
            f"{agent!r} is no node agent such as batch.node.ubuntu 24.04",
        )


def _mount(mount: Any, at: str) -> Iterator[Found]:
    """Check an entry, which has one file system.

    learn.microsoft.com/azure/batch/virtual-file-mount (2021-11-11)
    """
    if not isinstance(mount, Mapping):
        return
    entry = cast("_Values", mount)
    kinds = [key for key in entry if key.endswith("Configuration")]
    if len(kinds) != 1:
        yield "choice", at, f"an entry mounts one thing, this one {len(kinds)}"
    for kind in kinds:
        inner = _object(entry, kind)
        path = inner.get("relativeMountPath")
        if isinstance(path, str) and (path.startswith("/") or ".." in path.split("/")):
            yield (
                "name",
                f"{at}.{kind}.relativeMountPath",
                f"{path!r} is not below the mounts folder",
            )
        if kind == "azureBlobFileSystemConfiguration":
            given = [k for k in ("identityReference", "accountKey", "sasKey") if k in inner]
            if len(given) != 1:
                yield "choice", f"{at}.{kind}", "give one of identityReference, accountKey, sasKey"


def _budget(values: _Values) -> Iterator[Found]:
    """Check a budget's notifications (azure-native 3.29), each of which needs a recipient."""
    amount = values.get("amount")
    if isinstance(amount, int | float) and amount <= 0:
        yield "range", "amount", f"{amount} is no amount"
    period = _object(values, "timePeriod")
    start, end = (_moment(period.get(key)) for key in ("startDate", "endDate"))
    for key, moment in (("startDate", start), ("endDate", end)):
        if key in period and period[key] != rpc.UNKNOWN and moment is None:
            yield (
                "date",
                f"timePeriod.{key}",
                f"{period[key]!r} is no time such as 2026-11-01T00:00:00Z",
            )
    if start is not None and start.day != 1 and values.get("timeGrain") == "Monthly":
        yield "date", "timePeriod.startDate", "a monthly budget begins on the first of a month"
    if start is not None and end is not None and start >= end:
        yield "date", "timePeriod.endDate", "it ends before it begins"
    notifications = _object(values, "notifications")
    if len(notifications) > 5:
        yield "range", "notifications", f"{len(notifications)} notifications, 5 are allowed"
    for name in notifications:
        yield from _notification(_object(notifications, name), f"notifications[{name!r}]")


def _notification(notice: _Values, at: str) -> Iterator[Found]:
    threshold = notice.get("threshold")
    if isinstance(threshold, int | float) and not 0 < threshold <= 1000:
        yield "range", f"{at}.threshold", f"{threshold} is not within 0 and 1000 percent"
    if not any(notice.get(key) for key in ("contactEmails", "contactRoles", "contactGroups")):
        yield "missing", at, "nobody would be told: give emails, roles or groups"


def _template(values: _Values) -> Iterator[Found]:
    """Check that names are unique, and limits, which are ours if the descriptions have none."""
    yield from _range(values, "buildTimeoutInMinutes", 0, 960)
    if values.get("distribute") == []:
        yield "missing", "distribute", "a template must distribute its image"
    for number, target in enumerate(_list(values, "distribute")):
        name = target.get("runOutputName") if isinstance(target, Mapping) else None
        if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9-_.]{1,64}", name):
            yield "name", f"distribute[{number}].runOutputName", f"{name!r} is no output's name"
    for number, step in enumerate(_list(values, "customize")):
        if isinstance(step, Mapping):
            yield from _step(cast("_Values", step), f"customize[{number}]")
    inside = _list(_object(values, "validate"), "inVMValidations")
    for number, step in enumerate(inside):
        if isinstance(step, Mapping):
            yield from _step(cast("_Values", step), f"validate.inVMValidations[{number}]")


def _step(step: _Values, at: str) -> Iterator[Found]:
    if step.get("type") in ("Shell", "PowerShell"):
        if ("inline" in step) == ("scriptUri" in step):
            yield "choice", at, "give either inline or scriptUri"
        checksum = step.get("sha256Checksum")
        if isinstance(checksum, str) and checksum and not re.fullmatch(r"[0-9a-f]{64}", checksum):
            yield "name", f"{at}.sha256Checksum", f"{checksum!r} is no SHA-256"
    if step.get("type") == "File" and step.get("destination") == "":
        yield "missing", f"{at}.destination", "a file needs a destination"


def _gallery_image(values: _Values) -> Iterator[Found]:
    """Check that trusted launch has generation 2, and the image is generalized, as Batch requires.

    https://learn.microsoft.com/azure/virtual-machines/trusted-launch-portal,
    https://learn.microsoft.com/azure/batch/batch-sig-images (2024-03-04)
    """
    features = [f for f in _list(values, "features") if isinstance(f, Mapping)]
    trusted = any(
        f.get("name") == "SecurityType" and "Trusted" in f.get("value", "") for f in features
    )
    if trusted and values.get("hyperVGeneration") == "V1":
        yield "choice", "hyperVGeneration", "trusted launch needs V2"
    end = values.get("endOfLifeDate")
    if end is not None and end != rpc.UNKNOWN and _moment(end) is None:
        yield "date", "endOfLifeDate", f"{end!r} is no time such as 2027-06-30T00:00:00Z"


def _share(values: _Values) -> Iterator[Found]:
    yield from _range(values, "shareQuota", 1, 102_400)


def _workspace(values: _Values) -> Iterator[Found]:
    yield from _range(values, "retentionInDays", 30, 730)


def _network(values: _Values) -> Iterator[Found]:
    for number, prefix in enumerate(_list(_object(values, "addressSpace"), "addressPrefixes")):
        yield from _cidr(prefix, f"addressSpace.addressPrefixes[{number}]")


def _subnet(values: _Values) -> Iterator[Found]:
    yield from _cidr(values.get("addressPrefix"), "addressPrefix")
    for number, prefix in enumerate(_list(values, "addressPrefixes")):
        yield from _cidr(prefix, f"addressPrefixes[{number}]")


def _alert(values: _Values) -> Iterator[Found]:
    """Check the severity (azure-native 3.29), and the time steps that the portal offers."""
    yield from _range(values, "severity", 0, 4)
    window, every = _seconds(values.get("windowSize")), _seconds(values.get("evaluationFrequency"))
    if every is not None and every not in (60, 300, 900, 1800, 3600):
        yield "range", "evaluationFrequency", "one of PT1M, PT5M, PT15M, PT30M, PT1H"
    if window is not None and every is not None and window < every:
        yield "range", "windowSize", "a window is at least as long as the time between evaluations"


_RULES: dict[str, Callable[[_Values], Iterator[Found]]] = {
    "batch:Pool": _pool,
    "consumption:Budget": _budget,
    "virtualmachineimages:VirtualMachineImageTemplate": _template,
    "compute:GalleryImage": _gallery_image,
    "storage:FileShare": _share,
    "operationalinsights:Workspace": _workspace,
    "network:VirtualNetwork": _network,
    "network:Subnet": _subnet,
    "monitor:MetricAlert": _alert,
}


def _exactly_one(values: _Values, key: str, of: tuple[str, ...]) -> Iterator[Found]:
    if key in values and isinstance(values[key], Mapping):
        given = [name for name in of if name in values[key]]
        if len(given) != 1:
            yield "choice", key, f"give one of {' and '.join(of)}, not {len(given)}"


def _range(values: _Values, key: str, low: int, high: int, at: str = "") -> Iterator[Found]:
    number = values.get(key)
    if isinstance(number, int | float) and not low <= number <= high:
        yield "range", f"{at}.{key}" if at else key, f"{number} is not within {low} and {high}"


def _span(values: _Values, key: str, at: str, low: int, high: int) -> Iterator[Found]:
    seconds = _seconds(values.get(key))
    if seconds is not None and not low <= seconds <= high:
        yield "range", f"{at}.{key}", f"{values[key]} is not within {low} and {high} seconds"


def _seconds(text: Any) -> float | None:
    """Return the seconds of an ISO duration, or None for another text, which `_text` reports."""
    if not isinstance(text, str) or not text.startswith("P"):
        return None
    date, _, time = text[1:].partition("T")
    parts = [*re.findall(r"(\d+)([WD])", date), *re.findall(r"([\d.]+)([HMS])", time)]
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else None


def _cidr(prefix: Any, at: str) -> Iterator[Found]:
    if not isinstance(prefix, str) or prefix == rpc.UNKNOWN:
        return
    try:
        ipaddress.ip_network(prefix)
    except ValueError as err:
        yield "address", at, str(err)


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _object(values: _Values, key: str) -> _Values:
    found = values.get(key)
    return cast("_Values", found) if isinstance(found, Mapping) else {}


def _list(values: _Values, key: str) -> list[Any]:
    found = values.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []
