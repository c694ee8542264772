"""The errors that the service answers: code, status and message, in one table.

Codes are those of the service's error code list (BatchErrorCodeStrings); where the docs give no
text, the wording is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import ceil

FAULTS: Mapping[str, tuple[int, str]] = {
    # requests
    "InvalidRequestBody": (400, "The specified request body is not syntactically valid."),
    "InvalidPropertyValue": (
        400,
        "The value provided for one of the properties in the request body is invalid.",
    ),
    "MissingRequiredProperty": (
        400,
        "A required property was not specified in the request body.",
    ),
    "InvalidQueryParameterValue": (
        400,
        "The value for one of the query parameters specified in the request URI is invalid.",
    ),
    "InvalidHeaderValue": (
        400,
        "The value for one of the HTTP headers is not in the correct format.",
    ),
    "MissingRequiredQueryParameter": (
        400,
        "A query parameter that's mandatory for this request is not specified.",
    ),
    "MultipleConditionHeadersNotSupported": (
        400,
        "Multiple condition headers are not supported.",
    ),
    "UnsupportedRequestVersion": (400, "The version specified in the request is not supported."),
    "InsufficientAccountPermissions": (
        403,
        "The credentials do not have sufficient permissions to execute this operation.",
    ),
    "InvalidUri": (400, "The requested URI does not represent any resource on the server."),
    "OutOfRangeQueryParameterValue": (
        400,
        "A query parameter specified in the request URI is outside the permissible range.",
    ),
    "OutOfRangeInput": (400, "One of the request inputs is out of range."),
    "InvalidConstraintValue": (400, "The value provided for one of the constraints is invalid."),
    "OutOfRangePriority": (400, "Priority value specified is out of range."),
    "ResourceNotFound": (404, "The specified resource does not exist."),
    "UnsupportedHttpVerb": (405, "The resource doesn't support the specified HTTP verb."),
    "ConditionNotMet": (
        412,
        "The condition specified using HTTP conditional header(s) is not met.",
    ),
    "RequestBodyTooLarge": (
        413,
        "The size of the request body exceeds the maximum size permitted.",
    ),
    "ServerBusy": (
        503,
        "The server is currently unable to receive requests. Please retry your request.",
    ),
    "InternalError": (500, "Server encountered an internal error. Please try again."),
    "NotImplemented": (501, "This emulator does not implement the requested operation."),
    # pools and nodes
    "PoolNotFound": (404, "The specified pool does not exist."),
    "PoolExists": (409, "The specified pool already exists."),
    "PoolQuotaReached": (409, "Pool quota for the account has been reached."),
    "PoolBeingDeleted": (409, "The specified pool is being deleted."),
    "PoolBeingResized": (409, "The specified pool is being resized."),
    "InvalidAutoScalingSettings": (400, "The specified auto-scaling settings are not valid."),
    "AutoScalingFormulaSyntaxError": (
        400,
        "The specified auto-scaling formula has a syntax error.",
    ),
    "AutoScaleFormulaTooLong": (
        400,
        "The specified auto-scaling formula exceeds the maximum length of 8192 characters.",
    ),
    "TooManyEnableAutoScaleRequests": (
        503,
        "Enable AutoScale requests for the same pool must be separated by at least 30 seconds.",
    ),
    "OperationInvalidForCurrentState": (
        409,
        "The specified operation is not valid for the current state of the resource.",
    ),
    "NodeNotFound": (404, "The specified node does not exist."),
    "NodeBeingRebooted": (409, "The specified node is being rebooted."),
    "NodeBeingReimaged": (409, "The specified node is being reimaged."),
    "NodeBeingCreated": (409, "The specified node is being created."),
    "NodeBeingStarted": (409, "The specified node is being started."),
    "NodeAlreadyInTargetSchedulingState": (
        409,
        "The specified node is already in the target scheduling state.",
    ),
    "OperationNotValidOnNode": (409, "The specified operation is not valid on the node."),
    "OperationNotValidOnPool": (409, "The specified operation is not valid on the pool."),
    "NodeUserNotFound": (404, "The specified node user does not exist."),
    "NodeUserExists": (409, "The specified node user already exists."),
    "ActiveJobAndScheduleQuotaReached": (
        409,
        "Active job and schedule quota for the account has been reached.",
    ),
    "NodeStateUnusable": (409, "Operation cannot be performed on a node in unusable state."),
    # applications
    "ApplicationNotFound": (404, "The specified application does not exist."),
    "InvalidApplicationPackageReferences": (
        409,
        "One or more application package references could not be satisfied.",
    ),
    # certificates
    "CertificateNotFound": (404, "The specified certificate does not exist."),
    "CertificateExists": (409, "The specified certificate already exists."),
    "CertificateStateActive": (409, "The specified certificate is in active state."),
    "InvalidCertificateReferences": (
        409,
        "One or more of the specified certificates do not exist in the account.",
    ),
    # jobs
    "JobNotFound": (404, "The specified job does not exist."),
    "JobExists": (409, "The specified job already exists."),
    "JobBeingDeleted": (409, "The specified job is being deleted."),
    "JobBeingTerminated": (409, "The specified job is being terminated."),
    "JobCompleted": (409, "The specified job is already in a completed state."),
    "JobNotActive": (409, "The specified job is not in active state."),
    "JobNotDisabled": (409, "The specified job is not disabled."),
    "JobPreparationTaskNotSpecified": (
        409,
        "The specified job does not have a job preparation task.",
    ),
    "JobScheduleWithSameIdExists": (
        409,
        "A job schedule with the specified job id exists; the two cannot have the same id.",
    ),
    # job schedules
    "JobScheduleNotFound": (404, "The specified job schedule does not exist."),
    "JobScheduleExists": (409, "The specified job schedule already exists."),
    "JobScheduleBeingTerminated": (409, "The specified job schedule is being terminated."),
    "JobScheduleBeingDeleted": (
        409,
        "The specified job schedule has been marked for deletion and is being reclaimed.",
    ),
    "JobScheduleCompleted": (409, "The specified job schedule is already in completed state."),
    "JobWithSameIdExists": (
        409,
        "A job with the specified job schedule id exists; the two cannot have the same id.",
    ),
    # tasks
    "TaskNotFound": (404, "The specified task does not exist."),
    "TaskExists": (409, "The specified task already exists."),
    "TaskCompleted": (409, "The specified task is already in completed state."),
    "TaskNotCompleted": (409, "The specified task is not completed."),
    "TaskSucceeded": (409, "The specified task completed with success and cannot be reactivated."),
    "TaskDependenciesNotSpecifiedOnJob": (
        400,
        "usesTaskDependencies must be set to true on the job to use task dependencies.",
    ),
    "TaskDependencyListTooLong": (
        400,
        "The list of tasks that the task depends on is too long to be stored.",
    ),
    "TaskDependencyRangesTooLong": (
        400,
        "The list of ranges that the task depends on is too long to be stored.",
    ),
    "TaskIdSameAsJobPreparationTask": (
        409,
        "The specified task id is the same as that of the job's preparation task.",
    ),
    "TaskIdSameAsJobReleaseTask": (
        409,
        "The specified task id is the same as that of the job's release task.",
    ),
    # files
    "FileNotFound": (404, "The specified file does not exist."),
    "TaskFilesUnavailable": (409, "The files of the specified task are unavailable."),
    "TaskFilesCleanedup": (
        409,
        "The files of the specified task were cleaned up from the node.",
    ),
    "NodeFilesUnavailable": (409, "The files of the specified node are unavailable."),
}


class Fault(Exception):  # noqa: N818 - the service's word for an error answer
    """An error answer; its `values` in the body are the wrong value and the allowed ones."""

    def __init__(
        self,
        code: str,
        values: Mapping[str, str] | None = None,
        *,
        message: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        default_status, default_message = FAULTS.get(code, (400, code))
        super().__init__(code)
        self.code = code
        self.status = status or default_status
        self.message = message or default_message
        self.values = dict(values or {})
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Return headers of the answer, in addition to the common ones."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(ceil(self.retry_after_s))}


def bad_property(name: str, value: object, reason: str) -> Fault:
    """Return the Fault for an invalid property of the body."""
    return Fault(
        "InvalidPropertyValue",
        {"PropertyName": name, "PropertyValue": str(value)[:256], "Reason": reason},
    )


def bad_query(name: str, value: object, reason: str) -> Fault:
    """Return the Fault for an invalid query parameter."""
    return Fault(
        "InvalidQueryParameterValue",
        {
            "QueryParameterName": name,
            "QueryParameterValue": str(value)[:256],
            "Reason": reason,
        },
    )


_ROOM_EXPECTED_S = 5.0


def no_room(reason: str) -> Fault:
    """Return the Fault of a request that cannot be stored now. Clients try again [S].

    Source of the code: "Batch status and error codes", learn.microsoft.com, read 2026-11-23.
    """
    return Fault("ServerBusy", {"Reason": reason}, retry_after_s=_ROOM_EXPECTED_S)


def not_implemented(operation: str) -> Fault:
    """Return the Fault for a documented operation or property that is not emulated yet."""
    return Fault("NotImplemented", {"Operation": operation})


def error_body(fault: Fault, request_id: str, now: datetime, base_url: str) -> dict[str, object]:
    """Return the wire form; its message ends with the lines RequestId and Time, as the service's
    does.
    """
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    body: dict[str, object] = {
        "odata.metadata": f"{base_url}/$metadata#Microsoft.Azure.Batch.Protocol.Entities."
        "Container.errors/@Element",
        "code": fault.code,
        "message": {
            "lang": "en-US",
            "value": f"{fault.message}\nRequestId:{request_id}\nTime:{time}",
        },
    }
    if fault.values:
        body["values"] = [{"key": key, "value": value} for key, value in fault.values.items()]
    return body
