"""What others changed in the resources of a stack, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner_infra.engine.steps import Change, ResourceDrift

_SHOWN_LENGTH = 40  # characters of a value in a sentence
_PROPERTIES: Mapping[str, str] = {
    "allowBlobPublicAccess": "public access to blobs",
    "allowSharedKeyAccess": "access with account keys",
    "deploymentConfiguration": "image",
    "enableHttpsTrafficOnly": "restriction to HTTPS",
    "isHnsEnabled": "hierarchical namespace",
    "minimumTlsVersion": "minimum TLS version",
    "networkRuleSet": "firewall",
    "publicNetworkAccess": "access from public networks",
    "scaleSettings.autoScale.evaluationInterval": "interval of the autoscale formula",
    "scaleSettings.autoScale.formula": "autoscale formula",
    "scaleSettings.fixedScale.targetDedicatedNodes": "number of dedicated nodes",
    "scaleSettings.fixedScale.targetLowPriorityNodes": "number of spot nodes",
    "vmSize": "VM size",
}
_ABSENT: tuple[Any, ...] = (None, "", {}, [])
_ACTIONS = {
    "create": "creates it again",
    "update": "sets it back",
    "replace": "replaces it",
    "delete": "deletes it",
}


@dataclass(frozen=True, slots=True)
class FoundDrift:
    """One change that others made.

    Attributes:
        type: The type of the resource, such as `batch:Pool`.
        name: Its name in Pulumi.
        text: The change in words.
        property: The path of the property; empty if the resource was deleted.
        deployed: Its value in the last deployment.
        now: Its value in Azure.
        then: What `runner up` does about it.
    """

    type: str
    name: str
    text: str
    property: str
    deployed: Any
    now: Any
    then: str


def describe_drift(drift: Sequence[ResourceDrift], changes: Sequence[Change]) -> list[FoundDrift]:
    """Return a row for every change that others made, with what `changes` do about it."""
    by_urn = {change.urn: change for change in changes}
    return [row for each in drift for row in _rows(each, by_urn.get(each.urn))]


def _rows(drift: ResourceDrift, change: Change | None) -> Iterator[FoundDrift]:
    kind = drift.type.removeprefix("azure-native:")
    then = _ACTIONS.get(change.op, change.op) if change else "leaves it"
    if drift.deleted:
        yield FoundDrift(kind, drift.name, "was deleted", "", None, None, then)
    for path, deployed, now in drift.properties:
        text = _sentence(path, deployed, now)
        yield FoundDrift(kind, drift.name, text, path, deployed, now, then)


def _sentence(path: str, deployed: Any, now: Any) -> str:
    what = _words(path)
    if isinstance(deployed, bool) or isinstance(now, bool):
        return f"{what} was switched {'on' if now else 'off'}"
    if deployed in _ABSENT and now not in _ABSENT:
        return f"{what} was added{_value(now, ': ')}"
    if now in _ABSENT and deployed not in _ABSENT:
        return f"{what} was removed{_value(deployed, ': ')}"
    before, after = _value(deployed, " from "), _value(now, " to ")
    return f"{what} was changed{before}{after}" if before and after else f"{what} was changed"


def _value(value: Any, before: str) -> str:
    """Return a value that is short enough for a sentence, after `before`; else nothing."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(_whole(value))
    return f"{before}{text}" if text and len(text) <= _SHOWN_LENGTH and "\n" not in text else ""


def _whole(value: Any) -> Any:
    """Return a whole number as an integer: the engine has floating-point numbers only."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _words(path: str) -> str:
    """Return the name of a property in words, such as `access tier` for `accessTier`."""
    for known in (path, path.partition(".")[0]):
        if known in _PROPERTIES:
            return _PROPERTIES[known]
    if path.startswith("tags."):
        return f"tag {path.removeprefix('tags.')}"
    last = path.rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", last).lower()
