"""Remove passwords and keys from pools, jobs and tasks before they are returned, as the service
does.

VM extensions are shown as provisioned and never run [S].
"""

from __future__ import annotations

from batch_emulator.domain.model import Json, Node, part, parts
from batch_emulator.http import defaults
from batch_emulator.http.bodies import renamed

# The properties with these names are secrets wherever they are, except in what is the user's.
# The uid and gid of a Linux user are returned (recorded in the tests of the SDK for Java, 2024).
SECRET_PROPERTIES = frozenset(
    {
        "accountKey",
        "password",
        "protectedSettings",
        "protectedSettingsFromKeyVault",
        "sasKey",
        "sshPrivateKey",
    }
)


def without_secrets(body: Json) -> Json:
    """Return the body of a pool, of a job or of any kind of task without secrets."""
    return renamed(body, {}, without=SECRET_PROPERTIES)


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
    machine = without_secrets(part(node.pool.spec, "virtualMachineConfiguration"))
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


def with_secrets(spec: Json, before: Json) -> Json:
    """Return a new body of a job; an auto pool equal to the one shown gets its secrets back.

    This lets a client send back a job that it has read, with another keepAlive.
    """
    info, old = part(spec, "poolInfo"), part(before, "poolInfo")
    auto = part(info, "autoPoolSpecification")
    shown = part(without_secrets(old), "autoPoolSpecification")
    if not auto.get("pool") or not shown.get("pool"):
        return spec
    if defaults.pool_specification(auto["pool"]) != defaults.pool_specification(shown["pool"]):
        return spec
    given = {**auto, "pool": old["autoPoolSpecification"]["pool"]}
    return {**spec, "poolInfo": {**info, "autoPoolSpecification": given}}
