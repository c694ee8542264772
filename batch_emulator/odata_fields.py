"""What may be filtered on, per list operation (page "OData filters in Azure Batch").

Where two versions of the page differ, the newer, wider one counts: `state` takes `ne` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What a filter may do with one property: `kind` is text, number, time or boolean.

    `path` is where an entity has the value, when that is not the property's own name.
    """

    kind: str
    operators: frozenset[str]
    path: str = ""


_EQ = frozenset({"eq"})
_EQ_NE = frozenset({"eq", "ne"})
_RANGE = frozenset({"eq", "ne", "ge", "gt", "le", "lt"})
_ID = FieldRule("text", _RANGE | {"startswith"})
_TEXT = FieldRule("text", _EQ_NE)
_STATE = FieldRule("text", _EQ_NE)
_TIME = FieldRule("time", _RANGE)
_NUMBER = FieldRule("number", _RANGE)
_FLAG = FieldRule("boolean", _EQ_NE)

IMAGE_FIELDS: Mapping[str, FieldRule] = {
    "osType": _TEXT,
    "verificationType": _TEXT,
    "nodeAgentSKUId": _TEXT,
}

POOL_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "allocationState": FieldRule("text", _EQ),
    "allocationStateTransitionTime": _TIME,
    "creationTime": _TIME,
    "enableAutoScale": _FLAG,
    "lastModified": _TIME,
    "vmSize": _TEXT,
    "enableInterNodeCommunication": _FLAG,
}

NODE_FIELDS: Mapping[str, FieldRule] = {
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "lastBootTime": _TIME,
    "allocationTime": _TIME,
    "startTaskInfo/state": FieldRule("text", _EQ),
    "startTaskInfo/result": _TEXT,
    "startTaskInfo/exitCode": _NUMBER,
    "startTaskInfo/startTime": _TIME,
    "startTaskInfo/endTime": _TIME,
}

NODE_COUNT_FIELDS: Mapping[str, FieldRule] = {"poolId": FieldRule("text", _EQ)}

JOB_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "executionInfo/startTime": _TIME,
    "executionInfo/endTime": _TIME,
    "executionInfo/poolId": _ID,
}

SCHEDULE_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "executionInfo/endTime": _TIME,
    "schedule/doNotRunUntil": _TIME,
    "schedule/doNotRunAfter": _TIME,
}

USAGE_FIELDS: Mapping[str, FieldRule] = {
    "poolId": FieldRule("text", (_RANGE | {"startswith"}) - {"ne"}),
}

PREPARATION_FIELDS: Mapping[str, FieldRule] = {
    "poolId": _TEXT,
    "nodeId": _TEXT,
    **{
        f"{info}/{name}": rule
        for info in ("jobPreparationTaskExecutionInfo", "jobReleaseTaskExecutionInfo")
        for name, rule in (
            ("state", FieldRule("text", _EQ)),
            ("startTime", _TIME),
            ("endTime", _TIME),
            ("exitCode", _NUMBER),
            ("result", _TEXT),
        )
    },
}

TASK_FIELDS: Mapping[str, FieldRule] = {
    "id": _ID,
    "state": _STATE,
    "stateTransitionTime": _TIME,
    "creationTime": _TIME,
    "lastModified": _TIME,
    "lastModifiedTime": FieldRule("time", _RANGE, "lastModified"),  # so spelt on the page only
    "executionInfo/startTime": _TIME,
    "executionInfo/endTime": _TIME,
    "executionInfo/exitCode": _NUMBER,
    "executionInfo/result": _TEXT,
}

CERTIFICATE_FIELDS: Mapping[str, FieldRule] = {"state": _STATE, "stateTransitionTime": _TIME}

FILE_FIELDS: Mapping[str, FieldRule] = {"name": FieldRule("text", frozenset({"startswith"}))}
