"""Translate pools that are created through Azure Resource Manager for the Batch service.

A property that is not renamed here passes unchanged. If the Batch service does not know it, it
refuses the pool and names the property, so no property is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from batch_emulator.gateway.sign_in import Json, NamedAccounts, arm_error, resource_id
from batch_emulator.http.bodies import FREE

_API_VERSION = "2024-07-01.20.0"  # the last with all properties of older management APIs
_SAME_SINCE = "2025-06-01"  # from here on, both planes have the same properties
# Names of azure-mgmt-batch 19.0 and azure-native 3.29 that azure-batch 15.1 spells differently.
_NAMES = {
    "nodeAgentSkuId": "nodeAgentSKUId",
    "inboundNatPools": "inboundNATPools",
    "dynamicVnetAssignmentScope": "dynamicVNetAssignmentScope",
    "userName": "username",
}
# Tags and an identity can be given to a pool through Resource Manager only
# (https://learn.microsoft.com/azure/batch/managed-identity-pools, read 2026-11-23).
MANAGEMENT_ONLY = ("identity", "tags")


@dataclass(frozen=True, slots=True)
class WantedPool:
    """The pool of a request to Resource Manager; `body` is for the Batch service."""

    path: str
    document: Json
    body: Json


def api_version(of_management: str) -> str:
    """Return the api-version of the Batch service for one of Resource Manager."""
    return _SAME_SINCE if of_management >= _SAME_SINCE else _API_VERSION


def pool_of(method: str, path: str, account: NamedAccounts, content: bytes) -> WantedPool | None:
    """Return the pool that a request creates, or None for any other request.

    Raises:
        ValueError: the content does not describe a pool.
    """
    batch, _, name = path.rpartition("/pools/")
    if (
        method != "PUT"
        or batch.lower() != resource_id("Microsoft.Batch/batchAccounts", account).lower()
    ):
        return None
    try:
        document: Any = json.loads(content)
        return WantedPool(path, document, to_data_plane(name, document["properties"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as err:
        raise ValueError("The request content was invalid and could not be deserialized.") from err


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


def to_data_plane(pool_id: str, properties: Mapping[str, Any]) -> Json:
    """Return the body with which the Batch service creates a pool of the management plane."""
    body: Json = {"id": pool_id}
    for name, value in properties.items():
        if name == "deploymentConfiguration":  # {"virtualMachineConfiguration": ...}
            body |= _renamed(value)
        elif name == "scaleSettings":
            body |= _scale(value)
        elif name == "interNodeCommunication":
            body["enableInterNodeCommunication"] = str(value).lower() == "enabled"
        elif name == "applicationPackages":
            body["applicationPackageReferences"] = [_package(one) for one in value]
        else:
            body[_NAMES.get(name, name)] = _renamed(value)
    return body


def _package(reference: Mapping[str, Any]) -> Json:
    found: Json = dict(reference)
    return {"applicationId": found.pop("id").rpartition("/")[2], **found}


def _scale(settings: Mapping[str, Any]) -> Json:
    ((kind, given),) = ((kind, given) for kind, given in settings.items() if given is not None)
    found: Json = _renamed(given)
    if kind != "autoScale":
        found.pop("nodeDeallocationOption", None)  # it applies to later resizes only
        return found
    scale = {"enableAutoScale": True, "autoScaleFormula": found.pop("formula")}
    if "evaluationInterval" in found:
        scale["autoScaleEvaluationInterval"] = found.pop("evaluationInterval")
    return {**scale, **found}


def _renamed(value: Any, parent: str = "") -> Any:
    if isinstance(value, dict):
        names = {**_NAMES, "id": "virtualMachineImageId"} if parent == "imageReference" else _NAMES
        return {
            names.get(name, name): part if name in FREE else _renamed(part, name)
            for name, part in cast("Json", value).items()
        }
    if isinstance(value, list):
        return [_renamed(part) for part in cast("list[Any]", value)]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON")
    return int(value) if value.is_integer() else value  # Pulumi has one type of number
