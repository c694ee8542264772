"""Mount configurations of pools: what is allowed in them, and what of them is given back."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from batch_emulator.executor.mounts import KINDS, MAX_MOUNTS
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json, parts
from batch_emulator.wire.bodies import require

_REQUIRED = {
    "azureFileShareConfiguration": ("accountName", "azureFileUrl", "accountKey"),
    "azureBlobFileSystemConfiguration": ("accountName", "containerName"),
    "nfsMountConfiguration": ("source",),
    "cifsMountConfiguration": ("username", "source", "password"),
}
_CREDENTIALS = ("accountKey", "sasKey", "identityReference")
_SECRETS = ("accountKey", "sasKey", "password")


def check_mounts(body: Json) -> None:
    """Refuse mounts that no node could make. Raises Fault.

    Paths that overlap are left to the nodes: an example of the service's own has such. [S]
    """
    mounts = parts(body, "mountConfiguration")
    if len(mounts) > MAX_MOUNTS:
        raise bad_property("mountConfiguration", len(mounts), f"at most {MAX_MOUNTS} mounts")
    for mount in mounts:
        given = [kind for kind in KINDS if mount.get(kind)]
        if len(given) != 1:
            reason = f"exactly one of {', '.join(KINDS)} must be given"
            raise bad_property("mountConfiguration", ", ".join(given), reason)
        _check_one(given[0], mount[given[0]])


def _check_one(kind: str, settings: Json) -> None:
    where = f"mountConfiguration/{kind}"
    for name in (*_REQUIRED[kind], "relativeMountPath"):
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
    if sum(bool(settings.get(name)) for name in _CREDENTIALS) != 1:
        reason = "exactly one of accountKey, sasKey and identityReference must be given"
        raise bad_property(where, "", reason)


def without_secrets(mounts: list[Json]) -> list[Json]:
    """The mounts of a pool as they are shown: without keys, which the service never gives back."""
    return [{kind: _public(settings) for kind, settings in mount.items()} for mount in mounts]


def _public(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    shown: Json = {name: value for name, value in settings.items() if name not in _SECRETS}  # pyright: ignore[reportUnknownVariableType]
    return shown
