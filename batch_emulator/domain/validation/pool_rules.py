"""Check pools: node targets, autoscale, mounts, start task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePosixPath

from batch_emulator.autoscale.evaluate import check
from batch_emulator.autoscale.values import FormulaError
from batch_emulator.domain.faults import Fault, bad_property, not_implemented
from batch_emulator.domain.model import Json, part, parts
from batch_emulator.domain.validation.properties import (
    MAX_SLOTS,
    check_containers,
    require,
    require_id,
    require_range,
)
from batch_emulator.domain.validation.task_rules import check_packages, check_start_task
from batch_emulator.domain.values import parse_duration

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = timedelta(minutes=5), timedelta(hours=168)  # docs


def check_pool_scaling(body: Json) -> None:
    """Refuse a new pool with formula and targets, or with only one half of autoscale. Raises Fault.

    `resizeTimeout` has no effect on a pool that scales automatically (docs).
    """
    if not body.get("enableAutoScale"):
        for name in ("autoScaleFormula", "autoScaleEvaluationInterval"):
            if name in body:
                raise _invalid_scaling(name, "it requires enableAutoScale")
        return
    require(body, "autoScaleFormula")
    for name in ("targetDedicatedNodes", "targetLowPriorityNodes"):
        if name in body:
            raise _invalid_scaling(name, "the formula sets the targets of this pool")
    check_scaling(body)


def check_scaling(body: Json) -> None:
    """Refuse an interval out of range and an invalid formula. Raises Fault."""
    text = body.get("autoScaleEvaluationInterval")
    interval = None if text is None else parse_duration(text)
    if text is not None and (
        interval is None or not _SHORTEST_INTERVAL <= interval <= _LONGEST_INTERVAL
    ):
        raise bad_property("autoScaleEvaluationInterval", text, "PT5M to P7D is allowed")
    if "autoScaleFormula" in body:
        check_formula(body["autoScaleFormula"])


def check_formula(text: str) -> None:
    """Refuse an invalid formula, with the position of the error. Raises Fault."""
    try:
        check(text)
    except FormulaError as err:
        raise Fault(err.code, {"Message": err.detail(text)}) from err


def _invalid_scaling(name: str, reason: str) -> Fault:
    return Fault("InvalidAutoScalingSettings", {"PropertyName": name, "Reason": reason})


_MOUNT_PROPERTIES = {
    "azureFileShareConfiguration": ("accountName", "azureFileUrl", "accountKey"),
    "azureBlobFileSystemConfiguration": ("accountName", "containerName"),
    "nfsMountConfiguration": ("source",),
    "cifsMountConfiguration": ("username", "source", "password"),
}
_MOUNT_CREDENTIALS = ("accountKey", "sasKey", "identityReference")


def check_mounts(body: Json) -> None:
    """Refuse mounts that no node could make. Raises Fault.

    Overlapping paths are accepted, because an example of the service has them [S].
    """
    mounts = parts(body, "mountConfiguration")
    if len(mounts) > MAX_MOUNTS:
        raise bad_property("mountConfiguration", len(mounts), f"at most {MAX_MOUNTS} mounts")
    for mount in mounts:
        given = [kind for kind in MOUNT_KINDS if mount.get(kind)]
        if len(given) != 1:
            reason = f"exactly one of {', '.join(MOUNT_KINDS)} must be given"
            raise bad_property("mountConfiguration", ", ".join(given), reason)
        _check_mount(given[0], mount[given[0]])


def _check_mount(kind: str, settings: Json) -> None:
    where = f"mountConfiguration/{kind}"
    for name in (*_MOUNT_PROPERTIES[kind], "relativeMountPath"):
        try:
            require(settings, name)
        except Fault as fault:
            fault.values["PropertyName"] = f"{where}/{name}"
            raise
    path = PurePosixPath(settings["relativeMountPath"])
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(path):
        reason = "a relative path without '..' is expected"
        raise bad_property(f"{where}/relativeMountPath", settings["relativeMountPath"], reason)
    if kind == "azureBlobFileSystemConfiguration":
        _check_credentials(where, settings)


def _check_credentials(where: str, settings: Json) -> None:
    if sum(bool(settings.get(name)) for name in _MOUNT_CREDENTIALS) != 1:
        reason = "exactly one of accountKey, sasKey and identityReference must be given"
        raise bad_property(where, "", reason)


MAX_MOUNTS = 10  # quotas page
# the kinds of a mountConfiguration, each with the name of its log on nodes of the service
MOUNT_KINDS: Mapping[str, str] = {
    "azureFileShareConfiguration": "fshare",
    "azureBlobFileSystemConfiguration": "blobfuse",
    "nfsMountConfiguration": "nfs",
    "cifsMountConfiguration": "cifs",
}


_MAX_NODES = 10_000  # [S]: a bound against typing errors, the service has quotas
NOT_IN_POOLS = ("cloudServiceConfiguration",)


def check_pool(body: Json) -> None:
    """Refuse an invalid pool. Raises Fault."""
    require_id(body)
    require(body, "vmSize")
    for name in NOT_IN_POOLS:
        if body.get(name):
            raise not_implemented(f"pool.{name}")
    check_pool_scaling(body)
    check_containers(body)
    machine = part(body, "virtualMachineConfiguration")
    for extension in parts(machine, "extensions"):
        require(extension, "name", "publisher", "type")
    require_range(body, "taskSlotsPerNode", 1, MAX_SLOTS)
    check_targets(body)
    check_mounts(body)
    check_packages(body)
    if "startTask" in body:
        check_start_task(body["startTask"])
        user = part(body["startTask"], "userIdentity").get("username")
        if user and user not in {account["name"] for account in parts(body, "userAccounts")}:
            reason = "the pool has no user account of this name"  # [S]
            raise bad_property("startTask/userIdentity/username", user, reason)


def check_targets(body: Json) -> None:
    """Refuse impossible node targets, timeouts and options. Raises Fault."""
    require_range(body, "targetDedicatedNodes", 0, _MAX_NODES)
    require_range(body, "targetLowPriorityNodes", 0, _MAX_NODES)
    text = body.get("resizeTimeout")
    timeout = None if text is None else parse_duration(text)
    if timeout is not None and timeout.total_seconds() < 300:
        raise bad_property("resizeTimeout", text, "the minimum is PT5M")
