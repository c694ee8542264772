"""Container settings of tasks and pools: what is allowed, and what of them is given back."""

from __future__ import annotations

from typing import Any, cast

from batch_emulator.faults import bad_property, not_implemented
from batch_emulator.model import Json, part, parts
from batch_emulator.wire.bodies import require

_TYPES = ("dockerCompatible", "criCompatible")
_FOLDERS = ("Shared", "Startup", "VfsMounts", "Task", "JobPrep", "Applications")
_WORKING_DIRECTORIES = ("taskWorkingDirectory", "containerImageDefault")


def check_containers(pool: Json) -> None:
    """Refuse a container configuration that the service does not know. Raises Fault."""
    machine = part(pool, "virtualMachineConfiguration")
    if "containerConfiguration" not in machine:
        return
    config = part(machine, "containerConfiguration")
    require(config, "type")
    _check_word(config, "type", _TYPES)
    where = "containerConfiguration/containerImageNames"
    images: Any = config.get("containerImageNames", [])
    if not isinstance(images, list):
        raise bad_property(where, images, "a list is expected")
    for image in cast("list[object]", images):
        _check_image(where, image)
    for registry in parts(config, "containerRegistries"):
        _check_registry(registry, "pool.containerConfiguration.containerRegistries")


def check_command(task: Json, where: str) -> None:
    """Refuse a task without a command, and container settings that cannot be. Raises Fault.

    In a container an empty command line stands for the image's own (container workloads page).
    """
    if "containerSettings" not in task:
        require(task, "commandLine")
        return
    if task.get("commandLine") != "":
        require(task, "commandLine")
    settings = part(task, "containerSettings")
    require(settings, "imageName")
    _check_image("containerSettings/imageName", settings["imageName"])
    _check_word(settings, "workingDirectory", _WORKING_DIRECTORIES)
    for entry in parts(settings, "containerHostBatchBindMounts"):
        require(entry, "source")
        _check_word(entry, "source", _FOLDERS)
    _check_registry(part(settings, "registry"), f"{where}.containerSettings.registry")


def _check_word(body: Json, name: str, choices: tuple[str, ...]) -> None:
    value = body.get(name)
    if value is not None and str(value).lower() not in [choice.lower() for choice in choices]:
        raise bad_property(name, value, f"one of {', '.join(choices)}")


def _check_image(name: str, image: object) -> None:
    """An image that begins with a dash would be an option of the engine."""
    text = image if isinstance(image, str) else ""
    if not text or text.startswith("-") or any(c.isspace() or not c.isprintable() for c in text):
        raise bad_property(name, image, "not the name of an image")


def _check_registry(registry: Json, where: str) -> None:
    if registry.get("identityReference"):
        raise not_implemented(f"{where}.identityReference")
    if str(registry.get("registryServer") or "").startswith("-"):
        raise bad_property(f"{where}/registryServer", registry["registryServer"], "not a server")


def public_task(task: Json) -> Json:
    """A task of any kind without the password of its registry."""
    settings = part(task, "containerSettings")
    if "registry" not in settings:
        return task
    shown = {**settings, "registry": _public(part(settings, "registry"))}
    return {**task, "containerSettings": shown}


def _public(registry: Json) -> Json:
    return {name: value for name, value in registry.items() if name != "password"}
