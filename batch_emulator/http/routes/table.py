"""The route of every documented operation, by its name in the service's OpenAPI description.

A file path is one segment on the wire (`wd%2Fa.txt`); plain slashes are accepted too. An operation
without a handler answers 501 with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.validation.body_schema import versions_of_route
from batch_emulator.http.call import Handler
from batch_emulator.http.routes import applications, files, jobs, nodes, pools, tasks


class _Route(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


_R = TypeVar("_R", bound=_Route)


class Matcher(Generic[_R]):
    """The routes of one API, by their number of segments."""

    def __init__(self, routes: Iterable[_R]) -> None:
        self._by_length: dict[int, list[tuple[list[str], _R]]] = {}
        for route in routes:
            pattern = route.path.strip("/").split("/")
            self._by_length.setdefault(len(pattern), []).append((pattern, route))

    def find(self, method: str, raw_path: str) -> tuple[_R, Mapping[str, str]]:
        """Return the route and the decoded parameters of the path. Raises Fault."""
        segments = raw_path.strip("/").split("/")
        if "files" in segments[4:5] and len(segments) > 6:
            segments = [*segments[:5], "/".join(segments[5:])]
        found = False
        for pattern, route in self._by_length.get(len(segments), ()):
            params = _parameters(pattern, segments)
            if params is not None:
                found = True
                if route.method == method:
                    return route, params
        if found:
            raise Fault("UnsupportedHttpVerb", {"Verb": method})
        raise Fault("InvalidUri", {"Path": raw_path[:256]})


def _parameters(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for expected, actual in zip(pattern, segments, strict=True):
        head, brace, rest = expected.partition("{")
        if not brace:
            if expected != actual.lower():
                return None
            continue
        name, _, tail = rest.partition("}")
        if not actual.startswith(head) or not actual.endswith(tail) or actual == head + tail:
            return None
        value = actual[len(head) : len(actual) - len(tail)]
        # the bytes of file paths must stay unchanged; in ids, invalid bytes are replaced
        params[name] = unquote(value, errors="surrogateescape" if name == "filePath" else "replace")
    return params


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: method, path with `{parameters}`, name, handler, and api-versions."""

    method: str
    path: str
    operation: str
    handler: Handler | None = None
    since: date = date.min  # the first api-version that has it
    until: date = date.max  # the first that no longer has it


_POOL = "/pools/{poolId}"
_NODE = "/pools/{poolId}/nodes/{nodeId}"
_JOB = "/jobs/{jobId}"
_TASK = "/jobs/{jobId}/tasks/{taskId}"
_SCHEDULE = "/jobschedules/{jobScheduleId}"
_CERTIFICATE = "/certificates({certificate})"
_TASK_FILE = _TASK + "/files/{filePath}"
_NODE_FILE = _NODE + "/files/{filePath}"

_ROUTES: tuple[Route, ...] = (
    Route("GET", "/supportedimages", "Account_ListSupportedImages", pools.supported_images),
    Route("GET", "/nodeagentskus", "Account_ListNodeAgentSkus", pools.node_agent_skus),
    Route("GET", "/nodecounts", "Account_ListPoolNodeCounts", pools.node_counts),
    Route("GET", "/applications", "Application_List", applications.list_all),
    Route("GET", "/applications/{applicationId}", "Application_Get", applications.get),
    Route("GET", "/poolusagemetrics", "Pool_ListUsageMetrics", pools.list_usage_metrics),
    Route("POST", "/certificates", "Certificate_Add", applications.add_certificate),
    Route("GET", "/certificates", "Certificate_List", applications.list_certificates),
    Route("GET", _CERTIFICATE, "Certificate_Get", applications.get_certificate),
    Route("DELETE", _CERTIFICATE, "Certificate_Delete", applications.delete_certificate),
    Route(
        "POST",
        _CERTIFICATE + "/canceldelete",
        "Certificate_CancelDeletion",
        applications.cancel_deletion,
    ),
    # pools
    Route("POST", "/pools", "Pool_Add", pools.add),
    Route("GET", "/pools", "Pool_List", pools.list_all),
    Route("GET", _POOL, "Pool_Get", pools.get),
    Route("HEAD", _POOL, "Pool_Exists", pools.exists),
    Route("PATCH", _POOL, "Pool_Patch", pools.patch),
    Route("DELETE", _POOL, "Pool_Delete", pools.delete),
    Route("POST", _POOL + "/resize", "Pool_Resize", pools.resize),
    Route("POST", _POOL + "/stopresize", "Pool_StopResize", pools.stop_resize),
    Route("POST", _POOL + "/updateproperties", "Pool_UpdateProperties", pools.update_properties),
    Route("POST", _POOL + "/removenodes", "Pool_RemoveNodes", pools.remove_nodes),
    Route("POST", _POOL + "/enableautoscale", "Pool_EnableAutoScale", pools.enable_autoscale),
    Route("POST", _POOL + "/disableautoscale", "Pool_DisableAutoScale", pools.disable_autoscale),
    Route("POST", _POOL + "/evaluateautoscale", "Pool_EvaluateAutoScale", pools.evaluate_autoscale),
    Route("GET", "/lifetimepoolstats", "Pool_GetAllLifetimeStatistics", pools.lifetime_statistics),
    # nodes
    Route("GET", _POOL + "/nodes", "ComputeNode_List", nodes.list_all),
    Route("GET", _NODE, "ComputeNode_Get", nodes.get),
    Route("POST", _NODE + "/reboot", "ComputeNode_Reboot", nodes.reboot),
    Route("POST", _NODE + "/reimage", "ComputeNode_Reimage", nodes.reimage),
    Route("POST", _NODE + "/start", "ComputeNode_Start", nodes.start),
    Route("POST", _NODE + "/deallocate", "ComputeNode_Deallocate", nodes.deallocate),
    Route(
        "POST",
        _NODE + "/disablescheduling",
        "ComputeNode_DisableScheduling",
        nodes.disable_scheduling,
    ),
    Route(
        "POST", _NODE + "/enablescheduling", "ComputeNode_EnableScheduling", nodes.enable_scheduling
    ),
    Route("POST", _NODE + "/users", "ComputeNode_AddUser", nodes.add_user),
    Route("PUT", _NODE + "/users/{userName}", "ComputeNode_UpdateUser", nodes.update_user),
    Route("DELETE", _NODE + "/users/{userName}", "ComputeNode_DeleteUser", nodes.delete_user),
    Route(
        "GET",
        _NODE + "/remoteloginsettings",
        "ComputeNode_GetRemoteLoginSettings",
        nodes.remote_login_settings,
    ),
    Route("GET", _NODE + "/rdp", "ComputeNode_GetRemoteDesktop", nodes.remote_desktop),
    Route(
        "POST",
        _NODE + "/uploadbatchservicelogs",
        "ComputeNode_UploadBatchServiceLogs",
        nodes.upload_service_logs,
    ),
    Route("GET", _NODE + "/extensions", "ComputeNodeExtension_List", nodes.extension_list),
    Route(
        "GET", _NODE + "/extensions/{extensionName}", "ComputeNodeExtension_Get", nodes.extension
    ),
    # jobs
    Route("POST", "/jobs", "Job_Add", jobs.add),
    Route("GET", "/jobs", "Job_List", jobs.list_all),
    Route("GET", _JOB, "Job_Get", jobs.get),
    Route("PATCH", _JOB, "Job_Patch", jobs.patch),
    Route("PUT", _JOB, "Job_Update", jobs.put),
    Route("DELETE", _JOB, "Job_Delete", jobs.delete),
    Route("POST", _JOB + "/disable", "Job_Disable", jobs.disable),
    Route("POST", _JOB + "/enable", "Job_Enable", jobs.enable),
    Route("POST", _JOB + "/terminate", "Job_Terminate", jobs.terminate),
    Route("GET", "/lifetimejobstats", "Job_GetAllLifetimeStatistics", jobs.lifetime_statistics),
    Route("GET", _JOB + "/taskcounts", "Job_GetTaskCounts", jobs.task_counts),
    Route(
        "GET",
        _JOB + "/jobpreparationandreleasetaskstatus",
        "Job_ListPreparationAndReleaseTaskStatus",
        jobs.preparation_status,
    ),
    # tasks
    Route("POST", _JOB + "/tasks", "Task_Add", tasks.add),
    Route("GET", _JOB + "/tasks", "Task_List", tasks.list_all),
    Route("POST", _JOB + "/addtaskcollection", "Task_AddCollection", tasks.add_collection),
    Route("GET", _TASK, "Task_Get", tasks.get),
    Route("PUT", _TASK, "Task_Update", tasks.put),
    Route("DELETE", _TASK, "Task_Delete", tasks.delete),
    Route("POST", _TASK + "/terminate", "Task_Terminate", tasks.terminate),
    Route("POST", _TASK + "/reactivate", "Task_Reactivate", tasks.reactivate),
    Route("GET", _TASK + "/subtasksinfo", "Task_ListSubtasks", tasks.list_subtasks),
    # files
    Route("GET", _TASK + "/files", "File_ListFromTask", files.list_of(files.task_root)),
    Route("HEAD", _TASK_FILE, "File_GetPropertiesFromTask", files.properties_of(files.task_root)),
    Route("GET", _TASK_FILE, "File_GetFromTask", files.get_of(files.task_root)),
    Route("DELETE", _TASK_FILE, "File_DeleteFromTask", files.delete_of(files.task_root)),
    Route("GET", _NODE + "/files", "File_ListFromComputeNode", files.list_of(files.node_root)),
    Route(
        "HEAD",
        _NODE_FILE,
        "File_GetPropertiesFromComputeNode",
        files.properties_of(files.node_root),
    ),
    Route("GET", _NODE_FILE, "File_GetFromComputeNode", files.get_of(files.node_root)),
    Route("DELETE", _NODE_FILE, "File_DeleteFromComputeNode", files.delete_of(files.node_root)),
    # job schedules
    Route("POST", "/jobschedules", "JobSchedule_Add", jobs.add_schedule),
    Route("GET", "/jobschedules", "JobSchedule_List", jobs.list_schedules),
    Route("GET", _SCHEDULE, "JobSchedule_Get", jobs.get_schedule),
    Route("HEAD", _SCHEDULE, "JobSchedule_Exists", jobs.schedule_exists),
    Route("PATCH", _SCHEDULE, "JobSchedule_Patch", jobs.patch_schedule),
    Route("PUT", _SCHEDULE, "JobSchedule_Update", jobs.put_schedule),
    Route("DELETE", _SCHEDULE, "JobSchedule_Delete", jobs.delete_schedule),
    Route("POST", _SCHEDULE + "/disable", "JobSchedule_Disable", jobs.disable_schedule),
    Route("POST", _SCHEDULE + "/enable", "JobSchedule_Enable", jobs.enable_schedule),
    Route("POST", _SCHEDULE + "/terminate", "JobSchedule_Terminate", jobs.terminate_schedule),
    Route("GET", _SCHEDULE + "/jobs", "Job_ListFromJobSchedule", jobs.list_jobs_of_schedule),
)


def _in_versions(route: Route) -> Route:
    """Return the route with the api-versions that have it, according to their SDKs."""
    since, until = versions_of_route(route.method, route.path)
    return replace(route, since=since, until=until)


ROUTES: tuple[Route, ...] = tuple(map(_in_versions, _ROUTES))
OPERATIONS = tuple(route.operation for route in ROUTES if route.handler is not None)
