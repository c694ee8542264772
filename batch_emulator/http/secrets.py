"""Remove passwords and keys from pools, jobs and tasks before they are returned, as the service
does.

VM extensions are shown as provisioned and never run [S].
"""

from __future__ import annotations

from typing import Any

from batch_emulator.domain.model import Json, Node, part, parts
from batch_emulator.http import defaults

_EXTENSION_SECRETS = ("protectedSettings", "protectedSettingsFromKeyVault")


def public_machine(machine: Json) -> Json:
    """Return a virtualMachineConfiguration without the protected settings of its extensions."""
    if "extensions" not in machine:
        return machine
    shown = [
        {name: value for name, value in extension.items() if name not in _EXTENSION_SECRETS}
        for extension in parts(machine, "extensions")
    ]
    return {**machine, "extensions": shown}


# the extension that installs the service's agent on every node (example and recorded answers)
_AGENT_EXTENSION: Json = {
    "name": "batchNodeExtension",
    "publisher": "Microsoft.Azure.Extensions",
    "type": "CustomScript",
    "typeHandlerVersion": "2.0",
    "autoUpgradeMinorVersion": True,
}


def extensions_of_node(node: Node) -> dict[str, Json]:
    """Return the extensions of a node that has booted, by key of their names."""
    if node.booted is None:
        return {}
    machine = public_machine(part(node.pool.spec, "virtualMachineConfiguration"))
    found = [*parts(machine, "extensions"), _AGENT_EXTENSION]
    return {str(e["name"]).lower(): _extension_view(e) for e in found}


def _extension_view(extension: Json) -> Json:
    status = {
        "code": "ProvisioningState/succeeded",
        "level": "Info",
        "displayStatus": "Provisioning succeeded",
        "message": "The emulator runs no extensions",
    }
    return {
        "provisioningState": "Succeeded",
        "vmExtension": {"enableAutomaticUpgrade": False, **extension},
        "instanceView": {"name": extension["name"], "statuses": [status]},
    }


_USER_SECRETS = ("password", "linuxUserConfiguration")


def public_pool(spec: Json) -> Json:
    """Return the body of a pool, or of a pool specification, without secrets."""
    shown = dict(spec)
    if "virtualMachineConfiguration" in spec:
        machine = public_machine(spec["virtualMachineConfiguration"])
        shown["virtualMachineConfiguration"] = _without_registry_passwords(machine)
    if "startTask" in spec:
        shown["startTask"] = public_task(spec["startTask"])
    if "userAccounts" in spec:
        shown["userAccounts"] = [
            {name: value for name, value in user.items() if name not in _USER_SECRETS}
            for user in spec["userAccounts"]
        ]
    if "mountConfiguration" in spec:
        shown["mountConfiguration"] = public_mounts(spec["mountConfiguration"])
    return shown


def public_job(spec: Json) -> Json:
    """Return the body of a job, or of a job specification, without secrets."""
    shown = {**spec, "poolInfo": public_pool_info(part(spec, "poolInfo"))}
    for name in ("jobManagerTask", "jobPreparationTask", "jobReleaseTask"):
        if name in spec:
            shown[name] = public_task(spec[name])
    return shown


def public_pool_info(info: Json) -> Json:
    """Return a `poolInfo` without the secrets of its auto pool specification."""
    auto = part(info, "autoPoolSpecification")
    if not auto.get("pool"):
        return info
    return {**info, "autoPoolSpecification": {**auto, "pool": public_pool(auto["pool"])}}


def with_secrets(spec: Json, before: Json) -> Json:
    """Return a new body of a job; an auto pool equal to the one shown gets its secrets back.

    This lets a client send back a job that it has read, with another keepAlive.
    """
    info, old = part(spec, "poolInfo"), part(before, "poolInfo")
    auto = part(info, "autoPoolSpecification")
    shown = part(public_pool_info(old), "autoPoolSpecification")
    if not auto.get("pool") or not shown.get("pool"):
        return spec
    if defaults.pool_specification(auto["pool"]) != defaults.pool_specification(shown["pool"]):
        return spec
    given = {**auto, "pool": old["autoPoolSpecification"]["pool"]}
    return {**spec, "poolInfo": {**info, "autoPoolSpecification": given}}


def _without_registry_passwords(machine: Json) -> Json:
    containers = part(machine, "containerConfiguration")
    if not containers.get("containerRegistries"):
        return machine
    registries = [
        {name: value for name, value in registry.items() if name != "password"}
        for registry in parts(containers, "containerRegistries")
    ]
    public = {**containers, "containerRegistries": registries}
    return {**machine, "containerConfiguration": public}


def public_task(task: Json) -> Json:
    """Return a task of any kind without the password of its registry."""
    settings = part(task, "containerSettings")
    if "registry" not in settings:
        return task
    shown = {**settings, "registry": _public_registry(part(settings, "registry"))}
    return {**task, "containerSettings": shown}


def _public_registry(registry: Json) -> Json:
    return {name: value for name, value in registry.items() if name != "password"}


_MOUNT_SECRETS = ("accountKey", "sasKey", "password")


def public_mounts(mounts: list[Json]) -> list[Json]:
    """Return the mounts of a pool without keys, which the service never returns."""
    return [{kind: _public_mount(settings) for kind, settings in mount.items()} for mount in mounts]


def _public_mount(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    shown: Json = {name: value for name, value in settings.items() if name not in _MOUNT_SECRETS}  # pyright: ignore[reportUnknownVariableType]
    return shown
