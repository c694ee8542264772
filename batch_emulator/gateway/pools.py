"""Pools that are created through Azure Resource Manager, as the Batch service describes them.

Both planes describe one pool. A property that is not renamed here passes unchanged, and the Batch
service refuses it by its name if it has none of that name: nothing gets lost on the way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from batch_emulator.gateway.sign_in import Json, NamedAccounts, arm_error, resource_id

API_VERSION = "2024-07-01.20.0"  # the last with all that the management plane has
# Enumerations are written in other capitals: azure-native 3.29 and azure-mgmt-batch 17.3 beside
# azure-batch 15.1.
_ENUMS = {
    "Pool": "pool",
    "Admin": "admin",
    "Pack": "pack",
    "Spread": "spread",
    "DockerCompatible": "dockerCompatible",
    "NoPublicIPAddresses": "nopublicipaddresses",
}
_NAMES = {"nodeAgentSkuId": "nodeAgentSKUId", "inboundNatPools": "inboundNATPools"}
# Tags and an identity can be given to a pool through Resource Manager only
# (https://learn.microsoft.com/azure/batch/managed-identity-pools, read 2026-11-23).
MANAGEMENT_ONLY = ("identity", "tags")


@dataclass(frozen=True, slots=True)
class WantedPool:
    """A pool that a request of Resource Manager asks for; `body` is for the Batch service."""

    path: str
    document: Json
    body: Json


def pool_of(method: str, path: str, account: NamedAccounts, content: bytes) -> WantedPool | None:
    """Return the pool that a request asks for, or None if it is another request."""
    batch, _, name = path.rpartition("/pools/")
    if (
        method != "PUT"
        or batch.lower() != resource_id("Microsoft.Batch/batchAccounts", account).lower()
    ):
        return None
    try:
        document: Any = json.loads(content)
        return WantedPool(path, document, data_plane(name, document["properties"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return WantedPool(path, {}, {})  # which the service refuses


def arm_answer(pool: WantedPool, status: int, answer: Json) -> tuple[int, Json]:
    """Return the answer of Resource Manager from that of the Batch service."""
    if status != 201:
        text = str(cast("Json", answer.get("message") or {}).get("value", ""))
        return arm_error(status, str(answer.get("code", status)), text.partition("\n")[0])
    name = pool.path.rpartition("/")[2]
    kind = "Microsoft.Batch/batchAccounts/pools"
    state = {"provisioningState": "Succeeded", "allocationState": "Resizing"}
    properties = {**pool.document["properties"], **state}
    kept = {part: pool.document[part] for part in MANAGEMENT_ONLY if part in pool.document}
    return 200, {"id": pool.path, "name": name, "type": kind, **kept, "properties": properties}


def data_plane(pool_id: str, properties: Mapping[str, Any]) -> Json:
    """Return the body with which the Batch service makes a pool of the management plane."""
    body: Json = {"id": pool_id}
    for name, value in properties.items():
        if name == "deploymentConfiguration":  # {"virtualMachineConfiguration": ...}
            body |= _renamed(value)
        elif name == "scaleSettings":
            body |= _scale(value)
        elif name == "interNodeCommunication":
            body["enableInterNodeCommunication"] = value == "Enabled"
        else:
            body[_NAMES.get(name, name)] = _renamed(value)
    return body


def _scale(settings: Mapping[str, Any]) -> Json:
    ((kind, given),) = settings.items()
    found: Json = _renamed(given)
    if kind != "autoScale":
        found.pop("nodeDeallocationOption", None)  # of later resizes only
        return found
    scale = {"enableAutoScale": True, "autoScaleFormula": found.pop("formula")}
    if "evaluationInterval" in found:
        scale["autoScaleEvaluationInterval"] = found.pop("evaluationInterval")
    return {**scale, **found}


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        parts = cast("Json", value)
        return {_NAMES.get(name, name): _renamed(part) for name, part in parts.items()}
    if isinstance(value, list):
        return [_renamed(part) for part in cast("list[Any]", value)]
    if isinstance(value, float):
        return int(value)  # Pulumi has one type of number
    return _ENUMS.get(value, value) if isinstance(value, str) else value
