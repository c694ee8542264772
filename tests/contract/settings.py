"""Create the entities that the request of each example needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from uuid import uuid4

from tests import plain_http
from tests.contract.description import Example
from tests.contract.server import KEY, POOL, eventually
from tests.contract.stage import Body, NotYet, Parameters, Stage, writable

_EMPTY_ZIP = b"PK\x05\x06" + bytes(18)
_FORMULA = "$TargetDedicatedNodes = 0;"


def prepare(stage: Stage, example: Example) -> Parameters:
    """Create the entities of an example. Return its parameters with the created ids."""
    given = {**example.parameters}
    given.update(_SETTINGS.get(example.stable_name, _nothing)(stage, example, given))
    for name, make in (
        ("poolId", stage.pool),
        ("jobId", stage.job),
        ("jobScheduleId", stage.schedule),
    ):
        if name in given and given[name] == example.parameters.get(name):
            given[name] = make()
    if given.get("taskId") == example.parameters.get("taskId", ""):
        given["taskId"] = stage.task(given["jobId"])
    return given


def _nothing(_stage: Stage, _example: Example, _given: Parameters) -> Parameters:
    return {}


def _shown(example: Example) -> Body:
    """Return the entity in the example's response, or the first one of a list."""
    body = example.responses["200"].get("body", {})
    if isinstance(body, str):
        return {}
    return body["value"][0] if isinstance(body.get("value"), list) else body


def _shown_pool(stage: Stage, example: Example, given: Parameters) -> Parameters:
    pool = writable(_shown(example), "PoolAddParameter")
    pool |= {"targetDedicatedNodes": 0, "targetLowPriorityNodes": 0}
    if pool.get("enableAutoScale"):
        pool = {n: v for n, v in pool.items() if not n.startswith("target")}
    return {"poolId": stage.make("/pools", pool)}


def _shown_job(stage: Stage, example: Example, given: Parameters) -> Parameters:
    body = writable(_shown(example), "JobAddParameter")
    job = stage.job(**{n: v for n, v in body.items() if n != "poolInfo"})
    if "previousState" in json.dumps(example.responses):
        stage.end(job)
    return {"jobId": job}


def _shown_task(stage: Stage, example: Example, given: Parameters) -> Parameters:
    job = stage.job()
    body = writable(_shown(example), "TaskAddParameter")
    if "multiInstanceSettings" in body:
        body.pop("requiredSlots", None)  # the example has both, which the service refuses
    return {"jobId": job, "taskId": stage.task(job, **body)}


def _shown_schedule(stage: Stage, example: Example, given: Parameters) -> Parameters:
    body = example.responses["200"]["body"]
    name = ""
    for shown in reversed(body.get("value", [body])):
        wanted = writable(shown, "JobScheduleAddParameter")
        if "doNotRunUntil" in wanted.get("schedule", {}):
            wanted["schedule"] = {"doNotRunUntil": "2100-01-01T00:00:00Z"}
            stage.schedule(**wanted)
            continue
        name = stage.schedule(**wanted)
        path = f"/jobschedules/{name}"
        eventually(lambda path=path: stage.call("GET", f"{path}/jobs").json()["value"])
        if shown["state"] == "completed":
            _end_schedule(stage, path)
        elif "previousState" in shown:
            assert stage.call("POST", f"{path}/disable").status_code == 204
            assert stage.call("POST", f"{path}/enable").status_code == 204
    return {"jobScheduleId": name}


def _end_schedule(stage: Stage, path: str) -> None:
    assert stage.call("POST", f"{path}/terminate").status_code == 202
    eventually(lambda: stage.call("GET", path).json()["state"] == "completed")


def _scheduled_jobs(stage: Stage, example: Example, given: Parameters) -> Parameters:
    name = stage.schedule()
    path = f"/jobschedules/{name}"
    eventually(lambda: stage.call("GET", f"{path}/jobs").json()["value"])
    _end_schedule(stage, path)
    return {"jobScheduleId": name}


def _logs(stage: Stage, example: Example, given: Parameters) -> Parameters:
    """Replace the container of the example, which may exist, by a URL without a service."""
    [name] = set(given) & {"uploadBatchServiceLogsConfiguration", "content"}
    nowhere = {**given[name], "containerUrl": "http://127.0.0.1:1/account/logs?sig=x"}
    return {**_node(stage, example, given), name: nowhere}


def _node(stage: Stage, example: Example, given: Parameters) -> Parameters:
    start = _shown(example).get("startTask") if "200" in example.responses else None
    # Otherwise the node could be idle before its start task has ended.
    task = {**(start or {}), "commandLine": "/bin/true", "waitForSuccess": True}
    body = {"startTask": task} if start else {}
    pool, node = stage.node(**body)
    return {"poolId": pool, "nodeId": node}


def _extended(stage: Stage, example: Example, given: Parameters) -> Parameters:
    body = example.responses["200"]["body"]
    shown = [item["vmExtension"] for item in body.get("value", [body])]
    extensions = [writable(extension, "VMExtension") for extension in shown]
    machine = {**POOL["virtualMachineConfiguration"], "extensions": extensions}
    pool, node = stage.node(virtualMachineConfiguration=machine)
    return {"poolId": pool, "nodeId": node}


def _user(stage: Stage, example: Example, given: Parameters) -> Parameters:
    found = _node(stage, example, given)
    path = f"/pools/{found['poolId']}/nodes/{found['nodeId']}/users"
    answer = stage.call("POST", path, {"name": given["userName"], "password": "p4ssw0rd"})
    if answer.status_code == 501:
        raise NotYet("ComputeNode_AddUser")
    assert answer.status_code == 201, answer.text
    return found


def _offline(stage: Stage, example: Example, given: Parameters) -> Parameters:
    found = _node(stage, example, given)
    path = f"/pools/{found['poolId']}/nodes/{found['nodeId']}/disablescheduling"
    if stage.call("POST", path).status_code == 501:
        raise NotYet("ComputeNode_DisableScheduling")
    return found


def _remove(stage: Stage, example: Example, given: Parameters) -> Parameters:
    pool, node = stage.node()
    [name] = set(given) & {"nodeRemoveParameter", "content"}
    return {"poolId": pool, name: {**given[name], "nodeList": [node]}}


def _files(stage: Stage, example: Example, given: Parameters) -> Parameters:
    pool, node, job, task = stage.finished("/bin/sh -c 'echo this is a test > testFile.txt'")
    path = str(given.get("filePath", "")).replace("\\", "/")  # our nodes are Linux
    path = path.replace("jobId/", f"{job}/").replace("task1/", f"{task}/")
    found = {"poolId": pool, "nodeId": node, "jobId": job, "taskId": task, "filePath": path}
    return {name: value for name, value in found.items() if name in given}


def _visited(stage: Stage, example: Example, given: Parameters) -> Parameters:
    _, _, job, _ = stage.finished("/bin/true")
    stage.end(job)
    return {"jobId": job}


def _failed(stage: Stage, example: Example, given: Parameters) -> Parameters:
    _, _, job, task = stage.finished("/bin/sh -c 'exit 1'")
    return {"jobId": job, "taskId": task}


def _subtasks(stage: Stage, example: Example, given: Parameters) -> Parameters:
    pool = stage.pool(targetDedicatedNodes=2, enableInterNodeCommunication=True)
    job = stage.job(pool)
    settings = {"numberOfInstances": 2, "coordinationCommandLine": "/bin/true"}
    task = stage.task(job, multiInstanceSettings=settings)
    path = f"/jobs/{job}/tasks/{task}"
    eventually(lambda: stage.call("GET", path).json()["state"] == "completed")
    return {"jobId": job, "taskId": task}


def _disabled(stage: Stage, example: Example, given: Parameters) -> Parameters:
    job = stage.job()
    stage.call("POST", f"/jobs/{job}/disable", {"disableTasks": "requeue"})
    eventually(lambda: stage.call("GET", f"/jobs/{job}").json()["state"] == "disabled")
    return {"jobId": job}


def _autoscaled(stage: Stage, example: Example, given: Parameters) -> Parameters:
    return {"poolId": stage.pool(enableAutoScale=True, autoScaleFormula=_FORMULA)}


def _resizing(stage: Stage, example: Example, given: Parameters) -> Parameters:
    return {"poolId": stage.pool(id="resizing", targetDedicatedNodes=1)}


def _named_anew(stage: Stage, example: Example, given: Parameters) -> Parameters:
    """Replace the ID in the body, and the pool, which does not exist."""
    changed: Parameters = {}
    for name, value in given.items():
        if isinstance(value, dict):
            text = re.sub(r'"poolId": "\w+"', f'"poolId": "{stage.base}"', json.dumps(value))
            changed[name] = json.loads(text)
            if "id" in value:
                changed[name]["id"] = f"{value['id']}-{uuid4().hex[:12]}"
    return changed


def _exit_conditions(stage: Stage, example: Example, given: Parameters) -> Parameters:
    """Create a job with onTaskFailure, without which a task may have no jobAction (REST docs)."""
    if "exitConditions" not in given["task"]:
        return {}
    return {"jobId": stage.job(onTaskFailure="performexitoptionsjobaction")}


def _certificate(stage: Stage, example: Example, given: Parameters) -> Parameters:
    thumbprint = uuid4().hex + "01234567"
    body = {"thumbprintAlgorithm": "sha1", "thumbprint": thumbprint}
    secret = {"certificateFormat": "pfx", "data": "MIIB", "password": "p"}
    answer = stage.call("POST", "/certificates", {**body, **secret})
    if answer.status_code == 501:
        raise NotYet("Certificate_Add")
    assert answer.status_code == 201, answer.text
    canceled = example.stable_name == "Certificate_CancelDeletion"
    if canceled or "deletefailed" in json.dumps(
        example.responses
    ):  # because a node in use cannot be removed
        stage.pool(certificateReferences=[body])
        path = f"/certificates(thumbprintAlgorithm=sha1,thumbprint={thumbprint})"
        assert stage.call("DELETE", path).status_code == 202
    return {"thumbprint": thumbprint} if "thumbprint" in given else {}


def _application(stage: Stage, example: Example, given: Parameters) -> Parameters:
    shown = _shown(example)
    name = f"{shown['id'][:40]}-{uuid4().hex[:12]}"
    url = f"{stage.url}/_emulator/applications/{name}"
    bearer = {"Authorization": f"Bearer {KEY}"}
    made = plain_http.put(f"{url}/versions/v1.0", content=_EMPTY_ZIP, headers=bearer)
    assert made.is_success, made.text
    named = plain_http.put(url, json={"displayName": shown["displayName"]}, headers=bearer)
    assert named.is_success, named.text
    return {"applicationId": name}


_SETTINGS: Mapping[str, Callable[[Stage, Example, Parameters], Parameters]] = {
    "Pool_Get": _shown_pool,
    "Pool_List": _shown_pool,
    "Job_Get": _shown_job,
    "Job_List": _shown_job,
    "Task_Get": _shown_task,
    "Task_List": _shown_task,
    "JobSchedule_Get": _shown_schedule,
    "JobSchedule_List": _shown_schedule,
    "ComputeNode_AddUser": _node,
    "ComputeNode_UpdateUser": _user,
    "ComputeNode_DeleteUser": _user,
    "ComputeNode_EnableScheduling": _offline,
    **dict.fromkeys(
        [
            "ComputeNode_Get",
            "ComputeNode_List",
            "ComputeNode_Reboot",
            "ComputeNode_Reimage",
            "ComputeNode_DisableScheduling",
            "ComputeNode_GetRemoteLoginSettings",
            "ComputeNode_GetRemoteDesktop",
        ],
        _node,
    ),
    "ComputeNode_UploadBatchServiceLogs": _logs,
    "Job_ListFromJobSchedule": _scheduled_jobs,
    "ComputeNodeExtension_List": _extended,
    "ComputeNodeExtension_Get": _extended,
    "Pool_RemoveNodes": _remove,
    **dict.fromkeys(
        [
            "File_ListFromTask",
            "File_GetPropertiesFromTask",
            "File_GetFromTask",
            "File_DeleteFromTask",
            "File_ListFromComputeNode",
            "File_GetPropertiesFromComputeNode",
            "File_GetFromComputeNode",
            "File_DeleteFromComputeNode",
        ],
        _files,
    ),
    "Job_ListPreparationAndReleaseTaskStatus": _visited,
    "Task_Reactivate": _failed,
    "Task_ListSubtasks": _subtasks,
    "Job_Enable": _disabled,
    "Pool_DisableAutoScale": _autoscaled,
    "Pool_EvaluateAutoScale": _autoscaled,
    "Pool_StopResize": _resizing,
    "Application_Get": _application,
    "Application_List": _application,
    "Task_Add": _exit_conditions,
    "Pool_Add": _named_anew,
    "Job_Add": _named_anew,
    "Job_Patch": _named_anew,
    "Job_Update": _named_anew,
    "JobSchedule_Add": _named_anew,
    "JobSchedule_Patch": _named_anew,
    "JobSchedule_Update": _named_anew,
    "Certificate_Get": _certificate,
    "Certificate_List": _certificate,
    "Certificate_Delete": _certificate,
    "Certificate_CancelDeletion": _certificate,
}
