"""Repeat requests to Batch and storage that fail, and convert what remains to RunnerError.

The rule for every request of the clients that `credentials` creates:

- A request without a response is sent again, whatever its method. Each request names an ID or a
  condition, so the service executes it only once.
- The service may have executed a request whose response was lost. It then rejects the repeated
  request: the entity exists already, is gone, or does not meet the condition any more. The caller
  counts this as success if `was_repeated` is True and the service has the wanted state. Requests
  that set a state need only the second check.
- A response that is incomplete, or from another program such as a proxy, counts as no response.
- A request has up to six tries with pauses of random length. A request to Batch is not tried again
  later than two minutes after the first try.

An error that remains becomes a RunnerError, by a table of error codes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Container, Generator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    IncompleteReadError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.policies import RetryPolicy

from runner.core.azure.clouds import sign_in_step
from runner.core.units import format_duration
from runner.protocol.errors import FaultText, RunnerError

RETRIES = 5  # after the first try
_BATCH_BUDGET_S = 120
_BATCH_PAUSE_S = 0.2  # doubled with every retry
_JITTER = (0.5, 1.5)
# By default, azure-core does not repeat PATCH and POST.
_METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
# Options of a request whose caller needs every response unchanged.
ONLY_IDEMPOTENT: dict[str, Any] = {
    "retry_on_methods": _METHODS - {"PATCH", "POST"},
    "raw_response_hook": lambda _: None,  # pyright: ignore[reportUnknownLambdaType]
}
_REQUEST_ID = "request-id"  # a header of every response (API description)
_TRIES = "runner_tries"
T = TypeVar("T")
SIGN_IN = "R-AZURE-SIGN-IN"
SIGNING_IN = "signing in"  # what a request for a token alone does
SERVICES_DOWN = "R-SERVICES-DOWN"
_SERVICE_BUSY = "R-SERVICE-BUSY"
STORAGE_FULL = "R-STORAGE-FULL"
_FULL_STORAGE = "the disk of "  # prefix of the reason of local services; see journal.js
# Codes of errors that callers may retry. It is unknown whether the service executed the request.
TRANSIENT_CODES = frozenset({SERVICES_DOWN, _SERVICE_BUSY, STORAGE_FULL})


_CLOCK_TOLERANCE = timedelta(minutes=5)
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_PORTS = {"http": 80, "https": 443}
_PROBES = 3  # an unreliable connection may break these requests, too
_PROBE_TIMEOUT_S = 1.0


class JitteredRetries(RetryPolicy[Any, Any]):
    """The retry policy of azure-core, with pauses of random length."""

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Return the pause in seconds; the first retry has none."""
        return super().get_backoff_time(settings) * random.uniform(*_JITTER)  # noqa: S311


class BatchRetries(JitteredRetries):
    """The retry policy of clients of Batch, for all methods."""

    def __init__(self) -> None:
        super().__init__(
            retry_total=RETRIES,
            retry_connect=2,
            retry_read=RETRIES,
            retry_backoff_factor=_BATCH_PAUSE_S,
            timeout=_BATCH_BUDGET_S,
        )

    def configure_retries(self, options: dict[str, Any]) -> dict[str, Any]:
        """See `RetryPolicy`; a request may exclude methods, see `ONLY_IDEMPOTENT`."""
        options.setdefault("retry_on_methods", _METHODS)
        return super().configure_retries(options)


class InvalidResponseError(ServiceResponseError):
    """A success response that is not from Batch. It is unknown whether Batch got the request."""


def check_response(response: Any) -> None:
    """Raise InvalidResponseError if a response cannot be from Batch.

    This is the `raw_response_hook` of Batch clients; its errors are retried.
    """
    http = response.http_response
    is_success = http.status_code // 100 == HTTPStatus.OK // 100
    if response.context.options.get("stream", True) or not is_success:
        return
    if why := _why_invalid(http.request.method, http.headers, http.content):
        raise InvalidResponseError(f"the response with status {http.status_code} {why}")


def _why_invalid(method: str, headers: Any, body: bytes) -> str:
    """Return the problem of a successful response, or an empty string."""
    if body:
        try:
            return "" if isinstance(json.loads(body), dict) else "is not an object"
        except (ValueError, RecursionError):
            kind = headers.get("Content-Type", "").partition(";")[0]
            return "is not complete" if kind.endswith("json") else f"is {kind or 'no JSON'}"
    if _REQUEST_ID not in headers:
        return "is not from Batch"
    return "is empty" if method == "GET" else ""


def count_try(request: Any) -> None:
    """Count a try of a request. This is the `raw_request_hook` of clients."""
    sent = request.http_request
    setattr(sent, _TRIES, getattr(sent, _TRIES, 0) + 1)


def was_repeated(err: BaseException) -> bool:
    """Return True if the rejected request was sent before, so the service may have executed it."""
    response: Any = getattr(err, "response", None)
    return getattr(getattr(response, "request", None), _TRIES, 1) > 1


_ACCESS = FaultText(
    "R-ACCESS-DENIED",
    "the service rejected the sign-in",
    "run `runner local down && runner local up` (local) or `az login` (Azure)",
)
_QUOTA = FaultText(
    "R-QUOTA",
    "the Batch account has reached its quota of active jobs",
    "run `runner cancel RUN`, which also ends the job of the run, or request a higher quota",
)
_BUSY = FaultText(_SERVICE_BUSY, "the service is overloaded", "try again in a minute")
_NO_STORE = FaultText(
    "R-CONTAINER-MISSING",
    "a storage container does not exist",
    "run `runner local up` (local) or `runner up` (Azure)",
)
_LARGE = FaultText(
    "R-TASK-TOO-LARGE",
    "the task is larger than Batch accepts",
    "pass fewer or shorter arguments and parameters",
)

_JOB_ENDED = FaultText(
    "R-JOB-ENDED", "the job ended while the run was submitted", "run the same command again"
)
_FULL = FaultText(
    STORAGE_FULL,
    "the disk of the local services is full",
    "free space on that disk, for example with `runner local prune`, and run the command again",
)

_TABLE: dict[str, FaultText] = {
    "AuthenticationFailed": _ACCESS,
    "InvalidAuthenticationInfo": _ACCESS,
    "AuthorizationFailure": _ACCESS,
    "AuthorizationPermissionMismatch": _ACCESS,
    "InsufficientAccountPermissions": _ACCESS,
    "PermissionDenied": _ACCESS,
    "Forbidden": _ACCESS,
    "AccountIsDisabled": _ACCESS._replace(what="the account is disabled"),
    "ActiveJobAndScheduleQuotaReached": _QUOTA,
    "JobQuotaReached": _QUOTA,
    "PoolQuotaReached": _QUOTA._replace(
        what="the Batch account has reached its quota of pools",
        fix="delete a pool with `runner pool rm POOL`, or request a higher quota",
    ),
    "AccountCoreQuotaReached": _QUOTA._replace(
        what="the Batch account has reached its core quota",
        fix="shrink a pool with `runner pool resize POOL 0`, or request a higher quota",
    ),
    "TooManyRequests": _BUSY,
    "ServerBusy": _BUSY,
    "OperationTimedOut": _BUSY,
    "InternalError": _BUSY._replace(what="the service reported an internal error"),
    "ContainerNotFound": _NO_STORE,
    "ContainerBeingDeleted": _NO_STORE,
    "RequestBodyTooLarge": _LARGE,
    "RequestEntityTooLarge": _LARGE,
    "PoolNotFound": FaultText(
        "R-POOL-MISSING",
        "the pool does not exist",
        "run `runner local up` (local) or `runner up` (Azure)",
    ),
    "PoolBeingDeleted": FaultText(
        "R-POOL-DELETED", "the pool is being deleted", "use another pool with --pool"
    ),
    "JobCompleted": _JOB_ENDED,
    "JobBeingTerminated": _JOB_ENDED,
    "InsufficientSpace": _FULL,
}


def error_code(err: BaseException) -> str:
    """Return the service's code of an SDK error such as `JobNotFound`, or an empty string."""
    storage: Any = getattr(err, "error_code", None)
    if storage:
        return str(getattr(storage, "value", storage))
    batch: Any = getattr(getattr(err, "model", None), "code", None)
    if batch:
        return str(batch)
    odata: Any = getattr(getattr(err, "error", None), "code", None)
    return str(odata or "")


@contextmanager
def service_errors(doing: str) -> Generator[None]:
    """Raise SDK errors of the block as RunnerError; `doing` completes "while ..."."""
    try:
        yield
    except AzureError as err:
        raise to_runner_error(err, doing) from err


def read_or_none(doing: str, read: Callable[[], T]) -> T | None:
    """Return the result of a read, or None if the entity does not exist; see `service_errors`."""
    with service_errors(doing):
        try:
            return read()
        except ResourceNotFoundError:
            return None


def succeeds(doing: str, request: Callable[[], object], unless: Container[str]) -> bool:
    """Send a request. Return False if the service rejects it with one of the codes `unless`."""
    with service_errors(doing):
        try:
            request()
        except HttpResponseError as err:
            if error_code(err) not in unless:
                raise
            return False
        return True


_BEING_DELETED = frozenset({"PoolBeingDeleted", "JobBeingDeleted", "JobScheduleBeingDeleted"})
_FREE_POLL_S = 0.1
_FREE_LONGEST_POLL_S = 2.0


def create_when_free(create: Callable[[], object], timeout_s: float, still: RunnerError) -> None:
    """Create an entity. While the service still deletes one of the same ID, wait and try again.

    Args:
        create: sends the request.
        timeout_s: how long to wait in seconds.
        still: the error if the other entity is not gone by then.

    Raises:
        HttpResponseError: the request is rejected for another reason.
    """
    deadline, pause_s = time.monotonic() + timeout_s, _FREE_POLL_S
    while True:
        try:
            create()
        except HttpResponseError as err:
            if error_code(err) not in _BEING_DELETED:
                raise
            if time.monotonic() >= deadline:
                raise still from err
        else:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _FREE_LONGEST_POLL_S)


def to_runner_error(err: AzureError, doing: str) -> RunnerError:
    """Return the RunnerError for an SDK error. The code of the error decides, never its text."""
    code = error_code(err)
    reasons = _local_reasons(err)
    why = f"while {doing}: {', '.join((code or type(err).__name__, *reasons))}"
    is_full = any(reason.startswith(_FULL_STORAGE) for reason in reasons)
    fault = _FULL if is_full else _TABLE.get(code)
    if fault is None and isinstance(err, ClientAuthenticationError):
        if err.response is None:  # no token was sent
            return not_signed_in(err, doing)
        fault = _ACCESS
    if fault is _ACCESS and (difference := _clock_difference(err)):
        return _wrong_clock(difference, why)
    if fault is not None:
        return fault.error(why)
    # The SDK wraps the error of an interrupted download in an HttpResponseError.
    broken = err.inner_exception if isinstance(err.inner_exception, AzureError) else err
    if isinstance(broken, InvalidResponseError):
        return RunnerError(
            SERVICES_DOWN,
            "received a response that is not from Batch",
            why=f"while {doing}: {broken.message}",
            fix="check the proxy (HTTPS_PROXY) and the network, and run the same command again",
        )
    if isinstance(broken, ServiceResponseError | IncompleteReadError | ServiceRequestError):
        return _connection_error(broken, doing, err)
    return RunnerError(
        "R-SERVICE",
        f"the service rejected the request: {code or _status(err)}",
        why=f"while {doing}: {first_line(err)}",
        fix="run `runner local status`, or add --debug to see the whole response",
    )


# What the chain of credentials says about `az`, in a line of its own.
_OF_AZ = "AzureCliCredential: "


def not_signed_in(err: ClientAuthenticationError, doing: str) -> RunnerError:
    """Return the error for a credential that has no token, so that no request was sent."""
    why = _why_not_signed_in(str(err.message or err))
    return RunnerError(
        SIGN_IN,
        "not signed in to Azure",
        why=why if doing == SIGNING_IN else f"while {doing}: {why}",
        fix=f"{sign_in_step(os.environ)}, or set ARM_CLIENT_ID, ARM_TENANT_ID and "
        "ARM_CLIENT_SECRET",
    )


def _why_not_signed_in(message: str) -> str:
    """Return one line of a credential's message; that of a chain of credentials is about `az`."""
    lines = [line.strip() for line in message.strip().splitlines()]
    if found := [line.removeprefix(_OF_AZ) for line in lines if line.startswith(_OF_AZ)]:
        return f"neither variables nor `az` sign in: {found[0]}"
    return lines[0] if lines else "no credential has a token"


def _local_reasons(err: BaseException) -> list[str]:
    """Return the reasons that local services add to an error code, such as a full disk."""
    values: Any = getattr(getattr(err, "model", None), "error_values", None) or ()
    reasons = [str(value.value) for value in values if value.key == "Reason"]
    line: str = getattr(err, "reason", None) or ""
    if line.startswith(_FULL_STORAGE):
        reasons.append(line)
    return reasons


def _clock_difference(err: AzureError) -> timedelta | None:
    """Return how far the clock of this machine is ahead, negative if behind; None if correct.

    Services reject signatures and tokens from another time; Batch and storage allow 15 minutes.
    """
    headers: Any = getattr(getattr(err, "response", None), "headers", None) or {}
    try:
        theirs = parsedate_to_datetime(headers["Date"])
    except (KeyError, ValueError, TypeError):
        return None
    ahead = datetime.now(UTC) - theirs.replace(tzinfo=theirs.tzinfo or UTC)
    return ahead if abs(ahead) > _CLOCK_TOLERANCE else None


def _wrong_clock(ahead: timedelta, why: str) -> RunnerError:
    side = "ahead" if ahead > timedelta() else "behind"
    difference = format_duration(60 * round(abs(ahead) / timedelta(minutes=1)))
    return RunnerError(
        "R-CLOCK",
        f"the clock of this machine is {difference} {side}",
        why=f"{why}; the service rejects requests with a wrong time",
        fix="correct the clock, for example with `sudo timedatectl set-ntp true`, and try again",
    )


def _connection_error(broken: AzureError, doing: str, err: AzureError) -> RunnerError:
    what, fix = "the connection to the services was lost", "run the same command again"
    address = _address(broken)
    if address is None or address[0] not in _THIS_MACHINE:
        fix = "check the network, and run the same command again"
        if isinstance(broken, ServiceRequestError):
            what = "cannot connect to the services"
    elif not _is_reachable(address):
        what, fix = "the local services are not running", "runner local up"
    return RunnerError(SERVICES_DOWN, what, why=f"while {doing}: {first_line(err)}", fix=fix)


def _address(err: AzureError) -> tuple[str, int] | None:
    """Return host and port of a request without a response, or None if the SDK has neither."""
    inner: Any = err.inner_exception
    if (connection := getattr(inner, "conn", None)) is not None:  # of urllib3: not established
        return str(connection.host), int(connection.port)
    if (request := getattr(inner, "request", None)) is not None:
        url = urlsplit(str(request.url))
        return str(url.hostname), url.port or _PORTS[url.scheme]
    return None


def _is_reachable(address: tuple[str, int]) -> bool:
    """Return True if a service on this machine responds at all."""
    for _ in range(_PROBES):
        connection = HTTPConnection(*address, timeout=_PROBE_TIMEOUT_S)
        with suppress(OSError, HTTPException), closing(connection):
            connection.request("GET", "/")
            connection.getresponse()
            return True
    return False


def _status(err: AzureError) -> str:
    status = err.status_code if isinstance(err, HttpResponseError) else None
    return f"HTTP {status}" if status else type(err).__name__


def first_line(err: AzureError) -> str:
    """Return the first line of what an SDK error says, or its class if it says nothing."""
    message = str(err.message or err).strip().splitlines()
    return message[0][:200] if message else type(err).__name__
