"""Request bodies: JSON, the shape of known properties, numbers that clients send as text, identity
references.

Unknown properties are stored and returned unchanged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from batch_emulator.domain.faults import Fault, bad_property, not_implemented
from batch_emulator.domain.model import Json
from batch_emulator.domain.validation.properties import (
    identity_problem,
)
from batch_emulator.domain.values import parse_duration, parse_time

_IDENTITY_NAME = "identityReference"
# bodies with none of these need no look: the name may be escaped, or in another encoding
_IDENTITY_MARKS = (_IDENTITY_NAME.encode(), b"\\u", b"\0")


def may_name_identities(text: bytes) -> bool:
    """Return True if the text of a body may have identity references."""
    return any(mark in text for mark in _IDENTITY_MARKS)


def check_identities(body: Json, *, known: bool) -> None:
    """Refuse identities without a storage account (`known`) and wrong references. Raises Fault."""
    for where, reference in _identity_references(body, ""):
        problem = identity_problem(reference)
        if not known:
            raise not_implemented(where)
        if problem is not None:
            raise bad_property(where, reference, problem)


def _identity_references(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _identity_references(item, where)
    elif isinstance(value, dict):
        for name, item in cast("Json", value).items():
            place = f"{where}/{name}" if where else name
            if name == _IDENTITY_NAME and item is not None:
                yield place, item
            elif name != _IDENTITY_NAME:
                yield from _identity_references(item, place)


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
    """Return the body as an object, with properties checked and coerced, and without nulls. Raises
    Fault.
    """
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
    """Refuse infinity, which Python makes of 1e999 and JSON cannot express."""
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
        kind = _COERCIONS.get(name)
        coerced = item if kind is None else _coerced(kind, name, item, where)
        if name not in _FREE and isinstance(coerced, (dict, list)):
            coerced = _item(coerced, f"{where}{name}/")
        kept[name] = coerced
    return kept


def _coerced(kind: _Coercion, name: str, value: Any, where: str) -> Any:
    coerce, expected = kind
    try:
        return coerce(value)
    except (ValueError, OverflowError) as err:
        shown = "" if coerce is _list else value
        raise bad_property(f"{where}{name}", shown, f"{expected} is expected") from err


def _item(item: Any, where: str) -> Any:
    """Coerce a value of an object or list; `where` ends in a slash."""
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
    """Check texts of the user; what is nested too deep could not be written or returned."""
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


_Coercion = tuple[Callable[[Any], Any], str]  # raises ValueError or OverflowError; what is expected


_COERCIONS: dict[str, _Coercion] = {
    **dict.fromkeys(_INTEGERS, (_integer, "an integer of 32 bits")),
    **dict.fromkeys(_BOOLEANS, (_boolean, "true or false")),
    **dict.fromkeys(_DURATIONS, (_duration, "an ISO 8601 duration")),
    **dict.fromkeys(_TIMES, (_time, "an ISO 8601 time")),
    **dict.fromkeys(_STRINGS, (_string, "text")),
    **dict.fromkeys(_OBJECTS, (_nested, "an object")),
    **dict.fromkeys(_LISTS, (_list, "a list of objects")),
    "resourceTags": (_texts, "an object of texts"),
}
