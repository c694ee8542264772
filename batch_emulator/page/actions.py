"""What a page can change: requests of the emulator's API, each with the command that sends it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlencode

from batch_emulator.domain.model import Json
from batch_emulator.emulator import EmulatorSettings
from batch_emulator.http.routes.admin import PREFIX
from batch_emulator.page.api_client import VERSION
from batch_emulator.page.layout import PageRequest
from batch_emulator.page.markup import Markup, el, url


@dataclass(frozen=True, slots=True)
class ActionField:
    """A value that a person can give an action.

    Attributes:
        name: The parameter or property of the request.
        label: What it means.
        default: The value at first; empty leaves it out.
        kind: How it is written in the body.
        options: The values to choose from, if there are few.
        flag: The option of `az batch` that sets it.
    """

    name: str
    label: str
    default: str = ""
    kind: Literal["text", "number", "lines", "list"] = "text"
    options: tuple[str, ...] = ()
    flag: str = ""


@dataclass(frozen=True, slots=True)
class PageAction:
    """A request that changes something.

    Attributes:
        title: The text of its button.
        method: The method of the request.
        path: Its path, with `{names}` of what it changes.
        fields: Values that a person can give.
        cli: The command of the Azure CLI that does the same, without options of `fields`; or, where
            the CLI has none, a call of the SDK with `{names}` of values too.
        loses: What cannot be undone, empty if nothing is lost.
        headers: Further headers of the request.
    """

    title: str
    method: str
    path: str
    fields: tuple[ActionField, ...] = ()
    cli: str = ""
    loses: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_admin(self) -> bool:
        """Return True for a request of the emulator's own API."""
        return self.path.startswith(PREFIX)

    def filled_path(self, given: Mapping[str, str]) -> str:
        """Return the path with quoted names. Raises KeyError."""
        return self.path.format(
            **{name: quote(given[name], safe=":") for name in self.names},
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in the path: of what the action changes."""
        return tuple(part.partition("}")[0] for part in self.path.split("{")[1:])

    @property
    def has_body(self) -> bool:
        """Return True if values are properties of a body and not parameters of the query."""
        return not self.is_admin or self.path in {f"{PREFIX}/clock", f"{PREFIX}/faults"}

    def body(self, given: Mapping[str, str]) -> Json | None:
        """Return the body of the request, or None. Raises ValueError for a text as a number."""
        if not self.has_body or not self.fields:
            return None
        found = ((each, given.get(each.name, each.default).strip()) for each in self.fields)
        return {each.name: _value(each, text) for each, text in found if text}

    def query(self, given: Mapping[str, str]) -> dict[str, str | None]:
        """Return the parameters of the query."""
        if self.has_body:
            return {}
        return {
            each.name: given.get(each.name, each.default).strip() or None for each in self.fields
        }

    def request_text(self, given: Mapping[str, str]) -> str:
        """Return the request as it is sent: its first line and its body. Raises ValueError."""
        query = {name: value for name, value in self.query(given).items() if value}
        query = query if self.is_admin else {"api-version": VERSION}
        head = f"{self.method} {self.filled_path(given)}{'?' if query else ''}{urlencode(query)}"
        body = self.body(given)
        return head if body is None else f"{head}\n\n{json.dumps(body, indent=2)}"

    def command(self, given: Mapping[str, str], settings: EmulatorSettings) -> str:
        """Return what does the same: `curl`, `az batch` or the SDK. Raises ValueError, KeyError."""
        if self.cli.startswith("client."):
            values = {each.name: given.get(each.name, each.default) for each in self.fields}
            values |= {name: given[name] for name in self.names}
            return self.cli.format(**{name: json.dumps(text) for name, text in values.items()})
        if not self.is_admin:
            words = self.cli.format(**{name: shlex.quote(given[name]) for name in self.names})
            options = [
                f" {each.flag} {shlex.quote(text)}"
                for each in self.fields
                if each.flag and (text := given.get(each.name, each.default).strip())
            ]
            return f"{words}{''.join(options)}{connection(settings)}"
        query = {name: value for name, value in self.query(given).items() if value}
        target = f"{settings.url}{self.filled_path(given)}{'?' if query else ''}{urlencode(query)}"
        body = self.body(given)
        data = "" if body is None else f" \\\n  -d {shlex.quote(json.dumps(body))}"
        return (
            f'curl -X {self.method} -H "Authorization: Bearer $BATCH_EMULATOR_KEY"{data} \\\n'
            f"  {shlex.quote(target)}"
        )


def _value(given: ActionField, text: str) -> str | int | float | list[str]:
    if given.kind == "list":
        return text.split()
    if given.kind != "number":
        return text
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{given.label}: {text!r} is not a number") from None


def connection(settings: EmulatorSettings) -> str:
    """Return the options with which `az batch` finds the emulator."""
    return (
        f' \\\n  --account-name {settings.account} --account-key "$BATCH_EMULATOR_KEY"'
        f" \\\n  --account-endpoint {settings.url}"
    )


def link(ask: PageRequest, name: str, *, back: str = "", **given: str | None) -> Markup:
    """Return the button of an action, which comes back to this page or to `back`."""
    action = ACTIONS[name]
    address = url("act", name, **given, back=back or ask.address)
    return el("a", action.title, class_="button danger" if action.loses else "button", href=address)


_POOL, _NODE = "/pools/{pool}", "/pools/{pool}/nodes/{node}"
_JOB, _TASK = "/jobs/{job}", "/jobs/{job}/tasks/{task}"
_SCHEDULE = "/jobschedules/{schedule}"
_ON_POOL, _ON_NODE = "--pool-id {pool}", "--pool-id {pool} --node-id {node}"
_ON_JOB, _ON_TASK = "--job-id {job}", "--job-id {job} --task-id {task}"
_ON_SCHEDULE = "--job-schedule-id {schedule}"
_NOTICE = ActionField("notice", "Seconds of notice", "", "number")
_AWAY = ActionField("away", "Seconds until it returns", "", "number")
_RUNNING = ("requeue", "terminate", "taskcompletion", "retaineddata")
_NODE_LOSES = "Processes on the node are killed and its folder is deleted; its tasks run again."

ACTIONS: Mapping[str, PageAction] = {
    "evict-some": PageAction(
        "Evict spot nodes",
        "POST",
        f"{PREFIX}{_POOL}/evict",
        (ActionField("count", "Number of nodes", "1", "number"), _NOTICE, _AWAY),
        loses=_NODE_LOSES,
    ),
    "evict": PageAction(
        "Evict", "POST", f"{PREFIX}{_NODE}/evict", (_NOTICE, _AWAY), loses=_NODE_LOSES
    ),
    "fail-node": PageAction(
        "Make unusable",
        "POST",
        f"{PREFIX}{_NODE}/fail",
        (
            ActionField("code", "Error code; none for a node without contact", "DiskFull"),
            ActionField("message", "Message", "requested on the page"),
        ),
        loses="Tasks on the node end and run again elsewhere.",
    ),
    "resize-error": PageAction(
        "Leave a resize error",
        "POST",
        f"{PREFIX}{_POOL}/resize-error",
        (
            ActionField("code", "Error code", "AllocationFailed"),
            ActionField("message", "Message", "requested on the page"),
        ),
    ),
    "push-clock": PageAction(
        "Push the clock",
        "POST",
        f"{PREFIX}/clock",
        (ActionField("push", "Duration, ISO 8601", "PT15M"),),
        loses="The clock never runs backwards: limits, schedules and retention times expire.",
    ),
    "plan-fault": PageAction(
        "Plan a fault",
        "POST",
        f"{PREFIX}/faults",
        (
            ActionField("operation", "Operation, such as Task_Add; * for each", "*"),
            ActionField("code", "Error code; none for a delay alone", "ServerBusy"),
            ActionField("count", "Number of requests", "1", "number"),
            ActionField("delaySeconds", "Seconds before the answer", "", "number"),
            ActionField("retryAfterSeconds", "Retry-After, in seconds", "", "number"),
        ),
    ),
    "forget-faults": PageAction("Forget all rules for faults", "DELETE", f"{PREFIX}/faults"),
    "reset": PageAction(
        "Delete everything",
        "POST",
        f"{PREFIX}/reset",
        loses="All pools, jobs, schedules and tasks end and are deleted, with their files.",
    ),
    "resize": PageAction(
        "Resize",
        "POST",
        f"{_POOL}/resize",
        (
            ActionField(
                "targetDedicatedNodes", "Dedicated nodes", "", "number", (),
                "--target-dedicated-nodes",
            ),
            ActionField(
                "targetLowPriorityNodes", "Spot nodes", "", "number", (),
                "--target-low-priority-nodes",
            ),
            ActionField(
                "nodeDeallocationOption", "Tasks on nodes that leave", "requeue", "text", _RUNNING,
                "--node-deallocation-option",
            ),
        ),
        f"az batch pool resize {_ON_POOL}",
    ),
    "stop-resize": PageAction(
        "Stop the resize", "POST", f"{_POOL}/stopresize", (),
        f"az batch pool resize {_ON_POOL} --abort",
    ),
    "enable-autoscale": PageAction(
        "Set a formula",
        "POST",
        f"{_POOL}/enableautoscale",
        (
            ActionField(
                "autoScaleFormula", "Formula", "", "lines", (), "--auto-scale-formula"
            ),
            ActionField(
                "autoScaleEvaluationInterval", "Interval, ISO 8601", "", "text", (),
                "--auto-scale-evaluation-interval",
            ),
        ),
        f"az batch pool autoscale enable {_ON_POOL}",
    ),
    "disable-autoscale": PageAction(
        "Disable the formula", "POST", f"{_POOL}/disableautoscale", (),
        f"az batch pool autoscale disable {_ON_POOL}",
    ),
    "delete-pool": PageAction(
        "Delete", "DELETE", _POOL, (), f"az batch pool delete --yes {_ON_POOL}",
        loses="The pool and its nodes are deleted, with the files on them; its tasks run again in "
        "another pool, or wait.",
    ),
    "reboot": PageAction(
        "Reboot",
        "POST",
        f"{_NODE}/reboot",
        (
            ActionField(
                "nodeRebootOption", "Tasks on it", "requeue", "text", _RUNNING,
                "--node-reboot-option",
            ),
        ),
        f"az batch node reboot {_ON_NODE}",
    ),
    "reimage": PageAction(
        "Reimage",
        "POST",
        f"{_NODE}/reimage",
        (ActionField("nodeReimageOption", "Tasks on it", "requeue", "text", _RUNNING),),
        "client.begin_reimage_node({pool}, {node}, "
        '{{"nodeReimageOption": {nodeReimageOption}}})  # the CLI has no such command',
        loses="The files on the node are deleted.",
    ),
    "disable-node": PageAction(
        "Take offline",
        "POST",
        f"{_NODE}/disablescheduling",
        (
            ActionField(
                "nodeDisableSchedulingOption", "Tasks on it", "requeue", "text", _RUNNING[:3],
                "--node-disable-scheduling-option",
            ),
        ),
        f"az batch node scheduling disable {_ON_NODE}",
    ),
    "enable-node": PageAction(
        "Bring online", "POST", f"{_NODE}/enablescheduling", (),
        f"az batch node scheduling enable {_ON_NODE}",
    ),
    "remove-node": PageAction(
        "Remove",
        "POST",
        f"{_POOL}/removenodes",
        (
            ActionField("nodeList", "Nodes", "", "list", (), "--node-list"),
            ActionField(
                "nodeDeallocationOption", "Tasks on it", "requeue", "text", _RUNNING,
                "--node-deallocation-option",
            ),
        ),
        f"az batch node delete {_ON_POOL}",
        loses="The node leaves the pool, and its files are deleted.",
    ),
    "terminate-job": PageAction(
        "Terminate",
        "POST",
        f"{_JOB}/terminate",
        (ActionField("terminateReason", "Reason", "", "text", (), "--terminate-reason"),),
        f"az batch job stop {_ON_JOB}",
        loses="Its tasks end; a terminated job never runs again.",
    ),
    "disable-job": PageAction(
        "Disable",
        "POST",
        f"{_JOB}/disable",
        (
            ActionField(
                "disableTasks", "Running tasks", "requeue", "text",
                ("requeue", "terminate", "wait"), "--disable-tasks",
            ),
        ),
        f"az batch job disable {_ON_JOB}",
    ),
    "enable-job": PageAction(
        "Enable", "POST", f"{_JOB}/enable", (), f"az batch job enable {_ON_JOB}"
    ),
    "delete-job": PageAction(
        "Delete", "DELETE", _JOB, (), f"az batch job delete --yes {_ON_JOB}",
        loses="The job and its tasks end and are deleted, with their files.",
    ),
    "terminate-task": PageAction(
        "Terminate", "POST", f"{_TASK}/terminate", (), f"az batch task stop {_ON_TASK}",
        loses="Its process is ended, and the task fails.",
    ),
    "reactivate-task": PageAction(
        "Run again", "POST", f"{_TASK}/reactivate", (), f"az batch task reactivate {_ON_TASK}"
    ),
    "delete-task": PageAction(
        "Delete", "DELETE", _TASK, (), f"az batch task delete --yes {_ON_TASK}",
        loses="The task ends and is deleted, with its files.",
    ),
    "terminate-schedule": PageAction(
        "Terminate", "POST", f"{_SCHEDULE}/terminate", (),
        f"az batch job-schedule stop {_ON_SCHEDULE}",
        loses="Its job ends; a terminated schedule never runs again.",
    ),
    "disable-schedule": PageAction(
        "Disable", "POST", f"{_SCHEDULE}/disable", (),
        f"az batch job-schedule disable {_ON_SCHEDULE}",
    ),
    "enable-schedule": PageAction(
        "Enable", "POST", f"{_SCHEDULE}/enable", (), f"az batch job-schedule enable {_ON_SCHEDULE}"
    ),
    "delete-schedule": PageAction(
        "Delete", "DELETE", _SCHEDULE, (), f"az batch job-schedule delete --yes {_ON_SCHEDULE}",
        loses="The schedule and its jobs are deleted, with the files of their tasks.",
    ),
}  # fmt: skip
