"""Decide which cloud of Azure a command uses.

The setting `cloud` of the stack's file decides. Without it: ARM_ENVIRONMENT, then
AZURE_AUTHORITY_HOST, then the cloud that `az cloud set` selected, which `az cloud show` prints.
"""

from __future__ import annotations

import configparser
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from runner.protocol.azure.clouds import CLOUDS, PUBLIC, Cloud, cloud_at, cloud_of_region
from runner.protocol.errors import ExitCode, RunnerError

__all__ = [
    "CLOUDS",
    "INSTALL_AZ",
    "PUBLIC",
    "Cloud",
    "az_cloud",
    "check_az",
    "cloud_at",
    "cloud_named",
    "cloud_of_region",
    "find_cloud",
    "invalid_endpoint",
    "sign_in_step",
    "with_az",
    "with_cloud",
]

INSTALL_AZ = "https://learn.microsoft.com/cli/azure/install-azure-cli"
# azure-native reads both, the first one first (its installation-configuration page).
_VARIABLES = ("ARM_ENVIRONMENT", "AZURE_ENVIRONMENT")
AUTHORITY = "AZURE_AUTHORITY_HOST"
# Of Pulumi's blob backend (go-cloud, azureblob): the domain of `azblob://` state.
STATE_DOMAIN = "AZURE_STORAGE_DOMAIN"


class _CloudVariable(NamedTuple):
    """A cloud and the variable that names it."""

    cloud: Cloud
    origin: str
    value: str


def cloud_named(name: str) -> Cloud | None:
    """Return the cloud with this name in a setting, in ARM_ENVIRONMENT or in `az`; else None."""
    wanted = name.lower()
    for cloud in CLOUDS:
        if wanted in (cloud.name, cloud.provider_name, cloud.az_name.lower()):
            return cloud
    return None


def find_cloud(env: Mapping[str, str], given: str | None = None) -> Cloud:
    """Return the cloud of a command; a variable that contradicts the setting is an error.

    Args:
        env: the variables of the command.
        given: the setting `cloud`, or None if it is not set.

    Raises:
        RunnerError: R-AZURE-ENDPOINT, a variable names an unknown cloud; R-CLOUD-CONFLICT.
    """
    named = list(_from_variables(env))
    chosen = cloud_named(given) if given else None
    if chosen is None:
        chosen = named[0].cloud if named else az_cloud(env) or PUBLIC
    for found in named:
        if found.cloud is not chosen:
            against = "the stack" if given else named[0].origin
            raise RunnerError(
                "R-CLOUD-CONFLICT",
                f"{found.origin} is {found.value}, but {against} selects cloud {chosen.name!r}",
                why=f"it selects cloud {found.cloud.name!r}; a sign-in is valid in one cloud",
                fix=f"unset {found.origin}, or correct the setting `runner:cloud`",
            )
    return chosen


def with_cloud(env: Mapping[str, str], cloud: Cloud) -> dict[str, str]:
    """Return the variables with which other programs use a cloud.

    They are those of azure-native, the Azure SDKs and Pulumi's blob backend. Set variables stay,
    and the public cloud, the default of all of them, adds none.
    """
    if cloud is PUBLIC:
        return dict(env)
    added = {
        "ARM_ENVIRONMENT": cloud.provider_name,
        AUTHORITY: cloud.authority,
        STATE_DOMAIN: cloud.storage_blob_domain,
    }
    return {**env, **{name: value for name, value in added.items() if not env.get(name)}}


def az_cloud(env: Mapping[str, str]) -> Cloud | None:
    """Return the cloud that the Azure CLI uses, as `az cloud show` prints it; None if unknown.

    It is read from the configuration of `az`, which takes a second to start: AZURE_CLOUD_NAME, or
    `name` in section `cloud` of the file `config`.
    """
    name = env.get("AZURE_CLOUD_NAME")
    home = env.get("HOME") or env.get("USERPROFILE")
    folder = env.get("AZURE_CONFIG_DIR") or (f"{home}/.azure" if home else None)
    if not name and folder:
        parsed = configparser.ConfigParser(interpolation=None)
        try:
            parsed.read_string((Path(folder) / "config").read_text(encoding="utf-8"))
        except (OSError, ValueError, configparser.Error):
            return None
        name = parsed.get("cloud", "name", fallback=None)
    return cloud_named(name) if name else None


def sign_in_step(env: Mapping[str, str]) -> str:
    """Return how to sign in as a person: `az login`, after its installation if `az` is missing."""
    return with_az("run `az login`", env)


def with_az(fix: str, env: Mapping[str, str]) -> str:
    """Return a fix that begins with a command of `az`; if `az` is missing, with its installation.

    Other fixes are returned unchanged.
    """
    command = f"run `{fix}`" if fix.startswith("az ") else fix
    if not command.startswith("run `az ") or shutil.which("az", path=env.get("PATH")):
        return fix
    return f"install the Azure CLI ({INSTALL_AZ}) and {command}"


def check_az(env: Mapping[str, str], cloud: Cloud) -> None:
    """Raise RunnerError R-CLOUD-AZ if `az` is signed in to another cloud."""
    used = az_cloud(env)
    if used is not None and used is not cloud:
        raise RunnerError(
            "R-CLOUD-AZ",
            f"the Azure CLI uses {used.az_name}, and the stack is in {cloud.az_name}",
            why=f"`az login` signs in to one cloud; the setting `runner:cloud` is {cloud.name!r}",
            fix=f"az cloud set --name {cloud.az_name} && az login",
            exit_code=ExitCode.ACCESS,
        )


def _from_variables(env: Mapping[str, str]) -> Iterator[_CloudVariable]:
    """Yield the clouds that variables name. Raise RunnerError for an unknown one.

    An unknown authority host is not an error: it may be a server of a test, or a custom cloud.
    """
    for name in _VARIABLES:
        if value := env.get(name):
            cloud = cloud_named(value)
            if cloud is None:
                known = ", ".join(cloud.provider_name for cloud in CLOUDS)
                raise invalid_endpoint(name, value, f"one of {known}")
            yield _CloudVariable(cloud, name, value)
            break
    if value := env.get(AUTHORITY):
        cloud = cloud_at(value)
        if cloud is not None:
            yield _CloudVariable(cloud, AUTHORITY, value)


def invalid_endpoint(variable: str, value: str, allowed: str) -> RunnerError:
    """Return the error for a variable that has no valid endpoint or cloud."""
    return RunnerError(
        "R-AZURE-ENDPOINT",
        f"invalid {variable} {value!r}",
        why=f"allowed: {allowed}",
        fix=f"unset {variable}, or correct it",
    )
