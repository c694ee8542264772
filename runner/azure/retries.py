"""Repeat requests to Batch and storage, and recognise requests that succeeded without a response.

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
"""

from __future__ import annotations

import json
import random
from http import HTTPStatus
from typing import Any

from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.policies import RetryPolicy

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
