"""The contract scenario: requests as data, in order, both valid and invalid.

In paths and bodies, `{pool}`, `{work}`, `{job}` and `{stray}` are names of one execution, `{until}`
is the time at which its node is removed, and other placeholders are values that a step has kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VM_SIZE = "Standard_NC4as_T4_v3"
_MACHINE: dict[str, Any] = {
    "imageReference": {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204"},
    "nodeAgentSKUId": "batch.node.ubuntu 22.04",
}
_SIZED: dict[str, Any] = {"vmSize": VM_SIZE, "virtualMachineConfiguration": _MACHINE}
# The formula removes the node at a fixed time, even if this machine has been switched off.
_WORK = '$TargetLowPriorityNodes = time() < time("{until}") ? 1 : 0;'


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        until: Repeat the request until the value at a path of the answer (`value.0.state`, or
            `status`) is one of these.
        keep: Values to keep, as path by name: `etag` is the header, others are in the body.
        on_node: True if the request needs the node of the scenario.
    """

    name: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    until: tuple[str, tuple[str, ...]] | None = None
    keep: Mapping[str, str] = field(default_factory=dict[str, str])
    on_node: bool = False


def scenario() -> tuple[Request, ...]:
    """Return all steps. The caller deletes `CREATED` afterwards."""
    return (*_ACCOUNT, *_POOLS, *_AUTOSCALE, *_JOBS, *_TASKS, *_NODES, *_FILES, *_ENDS)


# The resources that the scenario creates: kind, name, and the path to delete it.
CREATED = (
    ("job", "job", "/jobs/{job}"),
    ("job", "stray", "/jobs/{stray}"),
    ("pool", "pool", "/pools/{pool}"),
    ("pool", "work", "/pools/{work}"),
)


def _new_pool(**changes: Any) -> dict[str, Any]:
    return {"id": "{pool}", **_SIZED, **changes}


def _refused_pool(name: str, **changes: Any) -> Request:
    return Request(f"pool with {name}", "POST", "/pools", _new_pool(**changes))


_ACCOUNT = (
    Request("supported images", "GET", "/supportedimages?maxresults=1"),
    Request("unknown api-version", "GET", "/pools?api-version=1999-01-01.0.0"),
    Request("invalid filter", "GET", "/pools?$filter=colour eq 'red'"),
    Request("missing pool", "GET", "/pools/{pool}"),
)
_POOLS = (
    _refused_pool("an unknown property", targetDedicatedNode=4),
    _refused_pool("an unknown enum value", taskSchedulingPolicy={"nodeFillType": "diagonal"}),
    _refused_pool("a text for a number", targetDedicatedNodes="two"),
    _refused_pool("an invalid id", id="a b"),
    _refused_pool("an unknown VM size", vmSize="standard_x1_v9"),
    _refused_pool(
        "another node agent",
        virtualMachineConfiguration={**_MACHINE, "nodeAgentSKUId": "batch.node.windows amd64"},
    ),
    Request("pool without VM size", "POST", "/pools", {"id": "{pool}"}),
    Request("pool is created", "POST", "/pools", _new_pool(displayName="runner selftest")),
    Request("same pool again", "POST", "/pools", _new_pool()),
    Request(
        "pool is steady", "GET", "/pools/{pool}",
        until=("allocationState", ("steady",)), keep={"etag": "etag"},
    ),
    Request("pool with $select", "GET", "/pools/{pool}?$select=id,state,vmSize"),
    Request("pool exists", "HEAD", "/pools/{pool}"),
    Request("pools by filter", "GET", "/pools?$filter=startswith(id,'{pool}')"),
    Request(
        "patch of another ETag", "PATCH", "/pools/{pool}", {"metadata": []},
        headers={"If-Match": '"0x0"'},
    ),
    Request(
        "patch of its ETag", "PATCH", "/pools/{pool}",
        {"metadata": [{"name": "by", "value": "selftest"}]}, headers={"If-Match": "{etag}"},
    ),
    Request("pool is not modified", "GET", "/pools/{pool}", headers={"If-None-Match": "*"}),
    Request(
        "resize with a short timeout", "POST", "/pools/{pool}/resize",
        {"targetDedicatedNodes": 0, "resizeTimeout": "PT1M"},
    ),
    Request("resize", "POST", "/pools/{pool}/resize", {"targetDedicatedNodes": 0}),
    Request(
        "pool is steady again", "GET", "/pools/{pool}", until=("allocationState", ("steady",))
    ),
    Request("stop of no resize", "POST", "/pools/{pool}/stopresize"),
)  # fmt: skip
_AUTOSCALE = (
    Request(
        "formula of a fixed pool", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;"},
    ),
    Request("disable no autoscale", "POST", "/pools/{pool}/disableautoscale"),
    Request(
        "autoscale at a short interval", "POST", "/pools/{pool}/enableautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;", "autoScaleEvaluationInterval": "PT1M"},
    ),
    Request(
        "autoscale is enabled", "POST", "/pools/{pool}/enableautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;"},
    ),
    Request(
        "formula is evaluated", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = min(2, 1 + 3) * 0; $x = time();"},
    ),
    Request(
        "formula with an error", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = (1;"},
    ),
    Request(
        "resize of a pool with autoscale", "POST", "/pools/{pool}/resize",
        {"targetDedicatedNodes": 0},
    ),
    Request("autoscale is disabled", "POST", "/pools/{pool}/disableautoscale"),
    Request(
        "pool with a formula is created", "POST", "/pools",
        {
            "id": "{work}", **_SIZED, "enableAutoScale": True, "autoScaleFormula": _WORK,
            "autoScaleEvaluationInterval": "PT5M",
        },
    ),
    Request(
        "node is ready", "GET", "/pools/{work}/nodes", keep={"node": "value.0.id"}, on_node=True,
        until=("value.0.state", ("idle",)),
    ),
)  # fmt: skip
_JOBS = (
    Request(
        "job of a missing pool", "POST", "/jobs", {"id": "{stray}", "poolInfo": {"poolId": "-"}}
    ),
    Request(
        "job with an unknown property", "POST", "/jobs",
        {"id": "{job}", "poolInfo": {"poolId": "{work}"}, "color": "red"},
    ),
    Request("job without pool", "POST", "/jobs", {"id": "{job}"}),
    Request(
        "job is created", "POST", "/jobs",
        {
            "id": "{job}", "poolInfo": {"poolId": "{work}"}, "usesTaskDependencies": True,
            "constraints": {"maxWallClockTime": "PT1H"},
        },
    ),
    Request("same job again", "POST", "/jobs", {"id": "{job}", "poolInfo": {"poolId": "{work}"}}),
    Request("job", "GET", "/jobs/{job}"),
    Request("missing job", "GET", "/jobs/{job}-x"),
    Request("priority out of range", "PATCH", "/jobs/{job}", {"priority": 2000}),
    Request("text for a priority", "PATCH", "/jobs/{job}", {"priority": "high"}),
    Request("priority is changed", "PATCH", "/jobs/{job}", {"priority": 10}),
    Request(
        "schedule of a short interval", "POST", "/jobschedules",
        {
            "id": "{job}-x", "schedule": {"recurrenceInterval": "PT10S"},
            "jobSpecification": {"poolInfo": {"poolId": "{work}"}},
        },
    ),
)  # fmt: skip


def _task(task_id: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": task_id, "commandLine": command, **more}


_FIRST, _SECOND, _ADD = "/jobs/{job}/tasks/first", "/jobs/{job}/tasks/second", "/jobs/{job}/tasks"
_TASKS = (
    Request("task without command", "POST", _ADD, {"id": "x"}),
    Request("task with an unknown property", "POST", _ADD, _task("x", "true", retries=3)),
    Request("task with a wrong dependency", "POST", _ADD, _task("x", "true", dependsOn=["first"])),
    Request("task of a missing job", "POST", "/jobs/{job}-x/tasks", _task("x", "true")),
    Request("task is added", "POST", _ADD, _task("first", "/bin/sh -c 'echo selftest'")),
    Request("same task again", "POST", _ADD, _task("first", "true")),
    Request(
        "task with a dependency", "POST", _ADD,
        _task("second", "/bin/sh -c 'exit 3'", dependsOn={"taskIds": ["first"]}),
    ),
    Request(
        "collection with an existing task", "POST", "/jobs/{job}/addtaskcollection",
        {"value": [_task("third", "true"), _task("first", "true")]},
    ),
    Request("tasks with $select", "GET", f"{_ADD}?$select=id,commandLine"),
)  # fmt: skip
_NODES = (
    Request("first task completes", "GET", _FIRST, until=("state", ("completed",)), on_node=True),
    Request(
        "failing task completes", "GET", _SECOND, until=("state", ("completed",)), on_node=True
    ),
    Request(
        "third task completes", "GET", f"{_ADD}/third", until=("state", ("completed",)),
        on_node=True,
    ),
    Request(
        "node is idle again", "GET", "/pools/{work}/nodes/{node}", until=("state", ("idle",)),
        on_node=True,
    ),
    Request("missing node", "GET", "/pools/{work}/nodes/{pool}", on_node=True),
    Request("task counts", "GET", "/jobs/{job}/taskcounts", on_node=True),
    Request("tasks by state", "GET", f"{_ADD}?$filter=state eq 'completed'", on_node=True),
    Request("node counts", "GET", "/nodecounts?$filter=poolId eq '{work}'", on_node=True),
    Request(
        "nodes removed from a pool with autoscale", "POST", "/pools/{work}/removenodes",
        {"nodeList": ["{node}"]}, on_node=True,
    ),
    Request(
        "unknown option of a reboot", "POST", "/pools/{work}/nodes/{node}/reboot",
        {"nodeRebootOption": "now"}, on_node=True,
    ),
    Request("user without name", "POST", "/pools/{work}/nodes/{node}/users", {}, on_node=True),
)  # fmt: skip
_FILES = (
    Request("files of a task", "GET", f"{_FIRST}/files?recursive=true", on_node=True),
    Request("properties of a file", "HEAD", f"{_FIRST}/files/stdout.txt", on_node=True),
    Request("file", "GET", f"{_FIRST}/files/stdout.txt", on_node=True),
    Request(
        "range of a file", "GET", f"{_FIRST}/files/stdout.txt", on_node=True,
        headers={"ocp-range": "bytes=0-3"},
    ),
    Request("missing file", "GET", f"{_FIRST}/files/none.txt", on_node=True),
)  # fmt: skip
_ENDS = (
    Request("end of a completed task", "POST", f"{_FIRST}/terminate", on_node=True),
    Request("repetition of a succeeded task", "POST", f"{_FIRST}/reactivate", on_node=True),
    Request("task is deleted", "DELETE", f"{_ADD}/third", on_node=True),
    Request("deleted task", "GET", f"{_ADD}/third", on_node=True, until=("status", ("404",))),
    Request(
        "unknown option of disabling", "POST", "/jobs/{job}/disable", {"disableTasks": "pause"}
    ),
    Request("job is being disabled", "POST", "/jobs/{job}/disable", {"disableTasks": "requeue"}),
    Request("job is disabled", "GET", "/jobs/{job}", until=("state", ("disabled",))),
    Request("job is enabled", "POST", "/jobs/{job}/enable"),
    Request("job is being ended", "POST", "/jobs/{job}/terminate", {"terminateReason": "selftest"}),
    Request("job is completed", "GET", "/jobs/{job}", until=("state", ("completed",))),
    Request("task of a completed job", "POST", _ADD, _task("x", "true")),
)  # fmt: skip
