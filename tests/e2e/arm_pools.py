"""A pool as Resource Manager is told to make it, as the Batch service itself would be told.

Both planes describe one pool. Whatever a test's pool has and this does not know is a KeyError: a
property must not get lost on the way and the test still pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
# Enumerations are written in other capitals: azure-native 3.29 beside azure-batch 15.1.
_ENUMS = {
    "Pool": "pool",
    "Admin": "admin",
    "Pack": "pack",
    "Spread": "spread",
    "DockerCompatible": "dockerCompatible",
    "NoPublicIPAddresses": "nopublicipaddresses",
}
_NAMES = {"nodeAgentSkuId": "nodeAgentSKUId", "inboundNatPools": "inboundNATPools"}
# An identity can be given to a pool through Resource Manager only
# (https://learn.microsoft.com/azure/batch/managed-identity-pools, 2026-11), and so can tags: the
# data plane of 2025-06-01 has no resourceTags (models of azure-batch 15.1).
_MANAGEMENT_ONLY = {"accountName", "resourceGroupName", "identity", "tags"}


def data_plane(pool: Mapping[str, Any]) -> Json:
    """The body of the service's own request for the inputs of a `batch:Pool`."""
    body: Json = {}
    for name, value in pool.items():
        if name not in _MANAGEMENT_ONLY:
            body.update(_KNOWN[name](value))
    return body


def _scale(settings: Json) -> Json:
    ((kind, found),) = settings.items()
    if kind == "autoScale":
        return {
            "enableAutoScale": True,
            "autoScaleFormula": found["formula"],
            "autoScaleEvaluationInterval": found["evaluationInterval"],
        }
    assert found.pop("nodeDeallocationOption") == "TaskCompletion"  # of later resizes only
    return {
        "targetDedicatedNodes": int(found.pop("targetDedicatedNodes")),
        "targetLowPriorityNodes": int(found.pop("targetLowPriorityNodes")),
        **found,
    }


def _same(name: str) -> Callable[[Any], Json]:
    return lambda value: {name: _lowered(value)}


def _lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {_NAMES.get(name, name): _lowered(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_lowered(part) for part in value]
    if isinstance(value, float):
        return int(value)  # Pulumi has one type of number
    return _ENUMS.get(value, value) if isinstance(value, str) else value


_KNOWN: Mapping[str, Callable[[Any], Json]] = {
    "poolName": lambda value: {"id": value},
    "deploymentConfiguration": _lowered,  # {"virtualMachineConfiguration": ...}
    "scaleSettings": _scale,
    "interNodeCommunication": lambda value: {"enableInterNodeCommunication": value == "Enabled"},
    **{
        name: _same(name)
        for name in (
            "vmSize",
            "taskSlotsPerNode",
            "taskSchedulingPolicy",
            "startTask",
            "mountConfiguration",
            "networkConfiguration",
            "metadata",
        )
    },
}
