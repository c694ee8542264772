"""Basic checks of properties: required, in range, a choice, an id, a URL, a relative path."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, part, parts

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_SLOTS = 256  # docs: taskSlotsPerNode, the smaller of 4 x cores and 256
MAX_INT32 = 2**31 - 1


def _property(body: Json, name: str) -> Any:
    """Return a property of the body, None if absent (`a/b` is b of a)."""
    *outer, last = name.split("/")
    for step in outer:
        body = part(body, step)
    return body.get(last)


def require(body: Json, *names: str) -> None:
    """Refuse a body without these properties (`a/b` is b of a). Raises Fault."""
    for name in names:
        value = _property(body, name)
        if value is None or value == "":
            raise Fault("MissingRequiredProperty", {"PropertyName": name})


def require_id(body: Json) -> None:
    """Refuse an id that is not 1 to 64 of letters, digits, `-` and `_`. Raises Fault."""
    require(body, "id")
    if not ID_PATTERN.fullmatch(body["id"]):
        reason = "1 to 64 characters out of letters, digits, hyphen and underscore"
        raise bad_property("id", body["id"], reason)


def require_range(body: Json, name: str, low: int, high: int, code: str | None = None) -> None:
    """Refuse a number outside the range; it may be absent. Raises Fault."""
    value = _property(body, name)
    if value is not None and not low <= value <= high:
        reason = f"{low} to {high} is allowed"
        if code is not None:
            values = {"PropertyName": name, "PropertyValue": str(value), "Reason": reason}
            raise Fault(code, values)
        raise bad_property(name, value, reason)


def check_containers(pool: Json) -> None:
    """Refuse a container configuration unknown to the service. Raises Fault."""
    machine = part(pool, "virtualMachineConfiguration")
    if "containerConfiguration" not in machine:
        return
    config = part(machine, "containerConfiguration")
    require(config, "type")
    where = "containerConfiguration/containerImageNames"
    for image in config.get("containerImageNames", ()):
        _check_image(where, image)
    for registry in parts(config, "containerRegistries"):
        _check_registry(registry, "pool.containerConfiguration.containerRegistries")


def check_command(task: Json, where: str) -> None:
    """Refuse a task without a command, and invalid container settings. Raises Fault.

    In a container an empty command line runs the image's own (container workloads page).
    """
    if "containerSettings" not in task:
        require(task, "commandLine")
        return
    if task.get("commandLine") != "":
        require(task, "commandLine")
    settings = part(task, "containerSettings")
    require(settings, "imageName")
    _check_image("containerSettings/imageName", settings["imageName"])
    for entry in parts(settings, "containerHostBatchBindMounts"):
        require(entry, "source")
    _check_registry(part(settings, "registry"), f"{where}.containerSettings.registry")


def _check_image(name: str, image: str) -> None:
    """Refuse an image that begins with a dash, which the engine would read as an option."""
    if not image or image.startswith("-") or any(c.isspace() or not c.isprintable() for c in image):
        raise bad_property(name, image, "not the name of an image")


def _check_registry(registry: Json, where: str) -> None:
    if registry.get("identityReference") and registry.get("username"):
        reason = "an identity is used instead of username and password"  # docs
        raise bad_property(f"{where}/identityReference", registry["username"], reason)
    if str(registry.get("registryServer") or "").startswith("-"):
        raise bad_property(f"{where}/registryServer", registry["registryServer"], "not a server")


_IDENTITY_RESOURCE_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers"
    r"/Microsoft\.ManagedIdentity/userAssignedIdentities/[A-Za-z0-9][A-Za-z0-9_-]{2,127}",
    re.IGNORECASE,
)


def identity_problem(reference: Json) -> str | None:
    """Return the problem with a wire `identityReference`, or None if it names an identity."""
    if _IDENTITY_RESOURCE_ID.fullmatch(reference.get("resourceId") or ""):
        return None
    return "identityReference/resourceId must be the ARM id of a user-assigned identity"


def is_http_url(url: str) -> bool:
    """Return True if a client can connect to the URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid brackets, or a port above 65535
        return False


def safe_parts(path: str) -> tuple[str, ...] | None:
    """Return the parts of a relative path, None if it is absolute or contains `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        return None
    return pure.parts
