"""VM extensions as nodes show them: what the pool names, said to be provisioned, never run [S]."""

from __future__ import annotations

from batch_emulator.model import Json, Node, part, parts

_SECRETS = ("protectedSettings", "protectedSettingsFromKeyVault")


def public(machine: Json) -> Json:
    """A virtualMachineConfiguration without the protected settings of its extensions."""
    if "extensions" not in machine:
        return machine
    shown = [
        {name: value for name, value in extension.items() if name not in _SECRETS}
        for extension in parts(machine, "extensions")
    ]
    return {**machine, "extensions": shown}


def of_node(node: Node) -> dict[str, Json]:
    """The extensions of a node that has booted, by key of their names."""
    if node.booted is None:
        return {}
    machine = public(part(node.pool.spec, "virtualMachineConfiguration"))
    return {str(e["name"]).lower(): _view(e) for e in parts(machine, "extensions")}


def _view(extension: Json) -> Json:
    status = {
        "code": "ProvisioningState/succeeded",
        "level": "Info",
        "displayStatus": "Provisioning succeeded",
        "message": "The emulator runs no extensions",
    }
    return {
        "provisioningState": "Succeeded",
        "vmExtension": extension,
        "instanceView": {"name": extension["name"], "statuses": [status]},
    }
