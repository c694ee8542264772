"""Request bodies: JSON, the shape of what we know in it, numbers that clients send as text.

Unknown properties are kept and given back as they came.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, cast

from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json
from batch_emulator.values import parse_duration, parse_time

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DEPTH = 64  # of objects and lists in each other; a body of the service has some ten

_INTEGERS = frozenset(
    [
        "targetDedicatedNodes",
        "targetLowPriorityNodes",
        "taskSlotsPerNode",
        "maxTasksPerNode",
        "priority",
        "maxParallelTasks",
        "maxTaskRetryCount",
        "requiredSlots",
        "numberOfInstances",
        "code",
        "start",
        "end",
        "containerPort",
    ]
)
_BOOLEANS = frozenset(
    [
        "enableAutoScale",
        "enableInterNodeCommunication",
        "waitForSuccess",
        "isReadOnly",
        "usesTaskDependencies",
        "allowUpdates",
        "allowTaskPreemption",
        "rerunOnNodeRebootAfterSuccess",
        "killJobOnCompletion",
        "runExclusive",
        "allowLowPriorityNode",
        "keepAlive",
    ]
)
_DURATIONS = frozenset(
    [
        "resizeTimeout",
        "maxWallClockTime",
        "retentionTime",
        "autoScaleEvaluationInterval",
        "startWindow",
        "recurrenceInterval",
    ]
)
_TIMES = frozenset(["doNotRunUntil", "doNotRunAfter"])
_STRINGS = frozenset(
    [
        "id",
        "applicationId",
        "thumbprint",
        "thumbprintAlgorithm",
        "data",
        "certificateFormat",
        "version",
        "defaultVersion",
        "displayName",
        "vmSize",
        "autoScaleFormula",
        "commandLine",
        "affinityId",
        "poolId",
        "onAllTasksComplete",
        "onTaskFailure",
        "nodeFillType",
        "terminateReason",
        "disableTasks",
        "nodeDeallocationOption",
        "nodeRebootOption",
        "jobAction",
        "dependencyAction",
        "httpUrl",
        "filePath",
        "filePattern",
        "storageContainerUrl",
        "blobPrefix",
        "accountName",
        "accountKey",
        "sasKey",
        "containerName",
        "azureFileUrl",
        "relativeMountPath",
        "mountOptions",
        "blobfuseOptions",
        "source",
        "username",
        "password",
        "coordinationCommandLine",
        "imageName",
        "containerRunOptions",
        "poolLifetimeOption",
        "autoPoolIdPrefix",
    ]
)
_OBJECTS = frozenset(
    [
        "startTask",
        "poolInfo",
        "constraints",
        "jobPreparationTask",
        "jobReleaseTask",
        "jobManagerTask",
        "taskSchedulingPolicy",
        "virtualMachineConfiguration",
        "exitConditions",
        "exitOptions",
        "default",
        "preProcessingError",
        "fileUploadError",
        "affinityInfo",
        "userIdentity",
        "imageReference",
        "autoUser",
        "dependsOn",
        "azureFileShareConfiguration",
        "azureBlobFileSystemConfiguration",
        "nfsMountConfiguration",
        "cifsMountConfiguration",
        "identityReference",
        "authenticationTokenSettings",
        "multiInstanceSettings",
        "containerSettings",
        "containerConfiguration",
        "registry",
        "schedule",
        "jobSpecification",
        "autoPoolSpecification",
        "pool",
    ]
)
_LISTS = frozenset(
    [
        "resourceFiles",
        "commonResourceFiles",
        "containerRegistries",
        "containerHostBatchBindMounts",
        "outputFiles",
        "environmentSettings",
        "commonEnvironmentSettings",
        "exitCodes",
        "exitCodeRanges",
        "metadata",
        "applicationPackageReferences",
        "certificateReferences",
        "userAccounts",
        "mountConfiguration",
        "taskIdRanges",
    ]
)
_FREE = frozenset({"resourceTags"})  # names in it are the user's


def parse(body: bytes, *, optional: bool = False) -> Json:
    """The body as an object, properties checked and coerced, nulls dropped. Raises Fault."""
    if not body.strip():
        if optional:
            return {}
        raise Fault("InvalidRequestBody", {"Reason": "a JSON object is expected"})
    try:
        value = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        if b"\\" in body or not body.isascii():
            # half a surrogate pair is no text; it comes from an escape or from bytes beyond ASCII
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as err:
        raise Fault("InvalidRequestBody", {"Reason": f"not JSON: {err}"}) from err
    if not isinstance(value, dict):
        raise Fault("InvalidRequestBody", {"Reason": "a JSON object is expected"})
    return _object(cast("Json", value), "")


def _finite(text: str) -> float:
    """JSON has no way to write down infinity, which Python makes of 1e999."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def _require_shallow(where: str) -> None:
    if where.count("/") > _MAX_DEPTH:
        raise Fault("InvalidRequestBody", {"Reason": f"nested deeper than {_MAX_DEPTH}"})


def _object(value: Json, where: str) -> Json:
    _require_shallow(where)
    kept: Json = {}
    for name, item in value.items():
        if item is None:
            continue
        kind = _KINDS.get(name)
        coerced = item if kind is None else _coerced(kind, name, item, where)
        if name not in _FREE and isinstance(coerced, (dict, list)):
            coerced = _item(coerced, f"{where}{name}/")
        kept[name] = coerced
    return kept


def _coerced(kind: _Kind, name: str, value: Any, where: str) -> Any:
    coerce, expected = kind
    try:
        return coerce(value)
    except (ValueError, OverflowError) as err:
        shown = "" if coerce is _list else value
        raise bad_property(f"{where}{name}", shown, f"{expected} is expected") from err


def _item(item: Any, where: str) -> Any:
    """What is in an object or list, `where` ending in a slash."""
    if isinstance(item, dict):
        return _object(cast("Json", item), where)
    if isinstance(item, list):
        _require_shallow(where)
        return [
            _object(cast("Json", one), where) if isinstance(one, dict) else _item(one, f"{where}/")
            for one in cast("list[Any]", item)
        ]
    return item


def _integer(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,10}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise ValueError
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError
    return value


def _duration(value: Any) -> str:
    parse_duration(value)
    return value


def _time(value: Any) -> str:
    parse_time(value)
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _nested(value: Any) -> Json:
    if not isinstance(value, dict):
        raise ValueError
    return cast("Json", value)


def _texts(value: Any) -> Json:
    """Names and values are the user's; what is nested deep could not be written or given back."""
    kept = {name: text for name, text in _nested(value).items() if text is not None}
    if not all(isinstance(text, str) for text in kept.values()):
        raise ValueError
    return kept


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(
        isinstance(item, dict) for item in cast("list[Any]", value)
    ):
        raise ValueError
    return cast("list[Any]", value)


_Kind = tuple[Callable[[Any], Any], str]  # raises ValueError or OverflowError; what is expected
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(_INTEGERS, (_integer, "an integer of 32 bits")),
    **dict.fromkeys(_BOOLEANS, (_boolean, "true or false")),
    **dict.fromkeys(_DURATIONS, (_duration, "an ISO 8601 duration")),
    **dict.fromkeys(_TIMES, (_time, "an ISO 8601 time")),
    **dict.fromkeys(_STRINGS, (_string, "text")),
    **dict.fromkeys(_OBJECTS, (_nested, "an object")),
    **dict.fromkeys(_LISTS, (_list, "a list of objects")),
    "resourceTags": (_texts, "an object of texts"),
}


def _value(body: Json, name: str) -> Any:
    """A property of the body, None when it is absent (`a/b` is b of a)."""
    if "/" not in name:
        return body.get(name)
    value: Any = body
    for step in name.split("/"):
        value = cast("Json", value).get(step) if isinstance(value, dict) else None
    return value


def require(body: Json, *names: str) -> None:
    """Refuse a body without these properties (`a/b` is b of a). Raises Fault."""
    for name in names:
        value = _value(body, name)
        if value is None or value == "":
            raise Fault("MissingRequiredProperty", {"PropertyName": name})


def require_id(body: Json) -> None:
    """Refuse an id that is not 1 to 64 of letters, digits, `-` and `_`. Raises Fault."""
    require(body, "id")
    if not ID_PATTERN.fullmatch(body["id"]):
        reason = "1 to 64 characters out of letters, digits, hyphen and underscore"
        raise bad_property("id", body["id"], reason)


def require_range(body: Json, name: str, low: int, high: int, code: str | None = None) -> None:
    """Refuse a number outside the range; an absent one is fine. Raises Fault."""
    value = _value(body, name)
    if value is not None and not low <= value <= high:
        reason = f"{low} to {high} is allowed"
        if code is not None:
            values = {"PropertyName": name, "PropertyValue": str(value), "Reason": reason}
            raise Fault(code, values)
        raise bad_property(name, value, reason)


def require_choice(body: Json, name: str, *choices: str) -> None:
    """Refuse a word that is none of `choices` and bring it to their spelling. Raises Fault."""
    value = body.get(name)
    if value is None:
        return
    if str(value).lower() not in choices:
        raise bad_property(name, value, f"one of {', '.join(choices)}")
    body[name] = str(value).lower()
