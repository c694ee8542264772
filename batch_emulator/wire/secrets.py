"""What of a pool is given back: everything but passwords and keys, as in the service."""

from __future__ import annotations

from batch_emulator.model import Json, part, parts
from batch_emulator.wire import extensions
from batch_emulator.wire.containers import public_task
from batch_emulator.wire.mounts import without_secrets

_OF_USERS = ("password", "linuxUserConfiguration")


def public_pool(spec: Json) -> Json:
    """The body of a pool, or of one that a job or a schedule makes, without secrets."""
    shown = dict(spec)
    if "virtualMachineConfiguration" in spec:
        machine = extensions.public(spec["virtualMachineConfiguration"])
        shown["virtualMachineConfiguration"] = _without_registry_passwords(machine)
    if "startTask" in spec:
        shown["startTask"] = public_task(spec["startTask"])
    if "userAccounts" in spec:
        shown["userAccounts"] = [
            {name: value for name, value in user.items() if name not in _OF_USERS}
            for user in spec["userAccounts"]
        ]
    if "mountConfiguration" in spec:
        shown["mountConfiguration"] = without_secrets(spec["mountConfiguration"])
    return shown


def public_job(spec: Json) -> Json:
    """The body of a job, or of one that a schedule makes, without secrets."""
    shown = {**spec, "poolInfo": public_pool_info(part(spec, "poolInfo"))}
    for name in ("jobManagerTask", "jobPreparationTask", "jobReleaseTask"):
        if name in spec:
            shown[name] = public_task(spec[name])
    return shown


def public_pool_info(info: Json) -> Json:
    """A `poolInfo`; the pool of its auto pool specification has the secrets of a pool."""
    auto = part(info, "autoPoolSpecification")
    if not auto.get("pool"):
        return info
    return {**info, "autoPoolSpecification": {**auto, "pool": public_pool(auto["pool"])}}


def with_secrets(spec: Json, before: Json) -> Json:
    """A new body of a job: its auto pool, where it is the one that was shown, as it was given.

    So that what a client got can be sent back with another keepAlive.
    """
    info, old = part(spec, "poolInfo"), part(before, "poolInfo")
    auto = part(info, "autoPoolSpecification")
    shown = part(public_pool_info(old), "autoPoolSpecification")
    if not auto.get("pool") or auto["pool"] != shown.get("pool"):
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
