"""The contract scenario: requests as data, in order, from valid ones to wrong bodies.

`{pool}`, `{work}`, `{job}`, `{stray}` and `{until}` in paths and bodies are names of one execution;
others are values that a step has kept.
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
# The node is removed at a fixed time, even if this machine stops before.
_WORK = '$TargetLowPriorityNodes = time() < time("{until}") ? 1 : 0;'


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        until: Repeat it until a value of the answer (`value.0.state`; `status` is the status) is
            one of these.
        keep: Names for values of the answer: `etag` of the header, or a path in the body.
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


def scenario() -> tuple[Ask, ...]:
    """Return all steps. The caller deletes `CREATED` afterwards."""
    return (*_ACCOUNT, *_POOLS, *_AUTOSCALE, *_JOBS, *_TASKS, *_NODES, *_FILES, *_ENDS)


# What the scenario creates: kind, name, and the path that deletes it.
CREATED = (
    ("job", "job", "/jobs/{job}"),
    ("job", "stray", "/jobs/{stray}"),
    ("pool", "pool", "/pools/{pool}"),
    ("pool", "work", "/pools/{work}"),
)


def _new_pool(**changes: Any) -> dict[str, Any]:
    return {"id": "{pool}", **_SIZED, **changes}


def _refused_pool(name: str, **changes: Any) -> Ask:
    return Ask(f"pool with {name}", "POST", "/pools", _new_pool(**changes))


_ACCOUNT = (
    Ask("supported images", "GET", "/supportedimages?maxresults=1"),
    Ask("unknown api-version", "GET", "/pools?api-version=1999-01-01.0.0"),
    Ask("invalid filter", "GET", "/pools?$filter=colour eq 'red'"),
    Ask("missing pool", "GET", "/pools/{pool}"),
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
    Ask("pool without VM size", "POST", "/pools", {"id": "{pool}"}),
    Ask("pool is created", "POST", "/pools", _new_pool(displayName="runner selftest")),
    Ask("same pool again", "POST", "/pools", _new_pool()),
    Ask(
        "pool is steady", "GET", "/pools/{pool}",
        until=("allocationState", ("steady",)), keep={"etag": "etag"},
    ),
    Ask("pool with $select", "GET", "/pools/{pool}?$select=id,state,vmSize"),
    Ask("pool exists", "HEAD", "/pools/{pool}"),
    Ask("pools by filter", "GET", "/pools?$filter=startswith(id,'{pool}')"),
    Ask(
        "patch of another ETag", "PATCH", "/pools/{pool}", {"metadata": []},
        headers={"If-Match": '"0x0"'},
    ),
    Ask(
        "patch of its ETag", "PATCH", "/pools/{pool}",
        {"metadata": [{"name": "by", "value": "selftest"}]}, headers={"If-Match": "{etag}"},
    ),
    Ask("pool is not modified", "GET", "/pools/{pool}", headers={"If-None-Match": "*"}),
    Ask(
        "resize with a short timeout", "POST", "/pools/{pool}/resize",
        {"targetDedicatedNodes": 0, "resizeTimeout": "PT1M"},
    ),
    Ask("resize", "POST", "/pools/{pool}/resize", {"targetDedicatedNodes": 0}),
    Ask(
        "pool is steady again", "GET", "/pools/{pool}", until=("allocationState", ("steady",))
    ),
    Ask("stop of no resize", "POST", "/pools/{pool}/stopresize"),
)  # fmt: skip
_AUTOSCALE = (
    Ask(
        "formula of a fixed pool", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;"},
    ),
    Ask("disable no autoscale", "POST", "/pools/{pool}/disableautoscale"),
    Ask(
        "autoscale at a short interval", "POST", "/pools/{pool}/enableautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;", "autoScaleEvaluationInterval": "PT1M"},
    ),
    Ask(
        "autoscale is enabled", "POST", "/pools/{pool}/enableautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = 0;"},
    ),
    Ask(
        "formula is evaluated", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = min(2, 1 + 3) * 0; $x = time();"},
    ),
    Ask(
        "formula with an error", "POST", "/pools/{pool}/evaluateautoscale",
        {"autoScaleFormula": "$TargetDedicatedNodes = (1;"},
    ),
    Ask(
        "resize of a pool with autoscale", "POST", "/pools/{pool}/resize",
        {"targetDedicatedNodes": 0},
    ),
    Ask("autoscale is disabled", "POST", "/pools/{pool}/disableautoscale"),
    Ask(
        "pool with a formula is created", "POST", "/pools",
        {
            "id": "{work}", **_SIZED, "enableAutoScale": True, "autoScaleFormula": _WORK,
            "autoScaleEvaluationInterval": "PT5M",
        },
    ),
    Ask(
        "node is ready", "GET", "/pools/{work}/nodes", keep={"node": "value.0.id"}, on_node=True,
        until=("value.0.state", ("idle",)),
    ),
)  # fmt: skip
_JOBS = (
    Ask("job of a missing pool", "POST", "/jobs", {"id": "{stray}", "poolInfo": {"poolId": "-"}}),
    Ask(
        "job with an unknown property", "POST", "/jobs",
        {"id": "{job}", "poolInfo": {"poolId": "{work}"}, "color": "red"},
    ),
    Ask("job without pool", "POST", "/jobs", {"id": "{job}"}),
    Ask(
        "job is created", "POST", "/jobs",
        {
            "id": "{job}", "poolInfo": {"poolId": "{work}"}, "usesTaskDependencies": True,
            "constraints": {"maxWallClockTime": "PT1H"},
        },
    ),
    Ask("same job again", "POST", "/jobs", {"id": "{job}", "poolInfo": {"poolId": "{work}"}}),
    Ask("job", "GET", "/jobs/{job}"),
    Ask("missing job", "GET", "/jobs/{job}-x"),
    Ask("priority out of range", "PATCH", "/jobs/{job}", {"priority": 2000}),
    Ask("text for a priority", "PATCH", "/jobs/{job}", {"priority": "high"}),
    Ask("priority is changed", "PATCH", "/jobs/{job}", {"priority": 10}),
    Ask(
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
    Ask("task without command", "POST", _ADD, {"id": "x"}),
    Ask("task with an unknown property", "POST", _ADD, _task("x", "true", retries=3)),
    Ask("task with a wrong dependency", "POST", _ADD, _task("x", "true", dependsOn=["first"])),
    Ask("task of a missing job", "POST", "/jobs/{job}-x/tasks", _task("x", "true")),
    Ask("task is added", "POST", _ADD, _task("first", "/bin/sh -c 'echo selftest'")),
    Ask("same task again", "POST", _ADD, _task("first", "true")),
    Ask(
        "task with a dependency", "POST", _ADD,
        _task("second", "/bin/sh -c 'exit 3'", dependsOn={"taskIds": ["first"]}),
    ),
    Ask(
        "collection with an existing task", "POST", "/jobs/{job}/addtaskcollection",
        {"value": [_task("third", "true"), _task("first", "true")]},
    ),
    Ask("tasks with $select", "GET", f"{_ADD}?$select=id,commandLine"),
)  # fmt: skip
_NODES = (
    Ask("first task completes", "GET", _FIRST, until=("state", ("completed",)), on_node=True),
    Ask("failing task completes", "GET", _SECOND, until=("state", ("completed",)), on_node=True),
    Ask(
        "third task completes", "GET", f"{_ADD}/third", until=("state", ("completed",)),
        on_node=True,
    ),
    Ask(
        "node is idle again", "GET", "/pools/{work}/nodes/{node}", until=("state", ("idle",)),
        on_node=True,
    ),
    Ask("missing node", "GET", "/pools/{work}/nodes/{pool}", on_node=True),
    Ask("task counts", "GET", "/jobs/{job}/taskcounts", on_node=True),
    Ask("tasks by state", "GET", f"{_ADD}?$filter=state eq 'completed'", on_node=True),
    Ask("node counts", "GET", "/nodecounts?$filter=poolId eq '{work}'", on_node=True),
    Ask(
        "nodes removed from a pool with autoscale", "POST", "/pools/{work}/removenodes",
        {"nodeList": ["{node}"]}, on_node=True,
    ),
    Ask(
        "unknown option of a reboot", "POST", "/pools/{work}/nodes/{node}/reboot",
        {"nodeRebootOption": "now"}, on_node=True,
    ),
    Ask("user without name", "POST", "/pools/{work}/nodes/{node}/users", {}, on_node=True),
)  # fmt: skip
_FILES = (
    Ask("files of a task", "GET", f"{_FIRST}/files?recursive=true", on_node=True),
    Ask("properties of a file", "HEAD", f"{_FIRST}/files/stdout.txt", on_node=True),
    Ask("file", "GET", f"{_FIRST}/files/stdout.txt", on_node=True),
    Ask(
        "range of a file", "GET", f"{_FIRST}/files/stdout.txt", on_node=True,
        headers={"ocp-range": "bytes=0-3"},
    ),
    Ask("missing file", "GET", f"{_FIRST}/files/none.txt", on_node=True),
)  # fmt: skip
_ENDS = (
    Ask("end of a completed task", "POST", f"{_FIRST}/terminate", on_node=True),
    Ask("repetition of a succeeded task", "POST", f"{_FIRST}/reactivate", on_node=True),
    Ask("task is deleted", "DELETE", f"{_ADD}/third", on_node=True),
    Ask("deleted task", "GET", f"{_ADD}/third", on_node=True, until=("status", ("404",))),
    Ask(
        "unknown option of disabling", "POST", "/jobs/{job}/disable", {"disableTasks": "pause"}
    ),
    Ask("job is being disabled", "POST", "/jobs/{job}/disable", {"disableTasks": "requeue"}),
    Ask("job is disabled", "GET", "/jobs/{job}", until=("state", ("disabled",))),
    Ask("job is enabled", "POST", "/jobs/{job}/enable"),
    Ask("job is being ended", "POST", "/jobs/{job}/terminate", {"terminateReason": "selftest"}),
    Ask("job is completed", "GET", "/jobs/{job}", until=("state", ("completed",))),
    Ask("task of a completed job", "POST", _ADD, _task("x", "true")),
)  # fmt: skip
