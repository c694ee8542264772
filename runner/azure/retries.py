"""How requests to Batch and storage are repeated, and how a caller recognises what it did itself.

The rule for every request of the clients that `credentials` creates:

- A request without an answer is sent again, whatever its method. It names what it changes by an
  ID or by a condition, so that the service executes it once.
- The service may have executed the request whose answer was lost. It then refuses the repeated
  one: what it creates exists, what it deletes is gone, its condition is not met any more. The
  caller checks `was_repeated`, and that the service has what was to be written; both together are
  a success. Requests that set a state need only the second check.
- An answer that is cut short, or comes from another program such as a proxy, counts as none.
- The budget of a request is six tries with pauses of random length. No try of a request to Batch
  begins later than two minutes after the first one.
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
_BATCH_PAUSE_S = 0.2  # doubled with every further retry
_JITTER = (0.5, 1.5)
# azure-core repeats only the others by itself.
_METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
# For requests whose every answer is wanted as it is.
ONLY_IDEMPOTENT: dict[str, Any] = {
    "retry_on_methods": _METHODS - {"PATCH", "POST"},
    "raw_response_hook": lambda _: None,  # pyright: ignore[reportUnknownLambdaType]
}
_REQUEST_ID = "request-id"  # a header of each answer (API description, headers of all responses)
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


class InvalidAnswerError(ServiceResponseError):
    """A success that Batch cannot have sent: nobody knows whether it executed the request."""


def check_answer(response: Any) -> None:
    """Raise InvalidAnswerError if Batch cannot have sent an answer.

    It is the `raw_response_hook` of clients of Batch: what it raises is retried.
    """
    answer = response.http_response
    is_success = answer.status_code // 100 == HTTPStatus.OK // 100
    if response.context.options.get("stream", True) or not is_success:
        return
    if why := _why_invalid(answer.request.method, answer.headers, answer.content):
        raise InvalidAnswerError(f"the answer with status {answer.status_code} {why}")


def _why_invalid(method: str, headers: Any, body: bytes) -> str:
    """Return what is wrong with a successful answer, or nothing."""
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
    """Count a try of a request: the `raw_request_hook` of clients, called for each one."""
    sent = request.http_request
    setattr(sent, _TRIES, getattr(sent, _TRIES, 0) + 1)


def was_repeated(err: BaseException) -> bool:
    """Return True if the refused request was sent before: the service may have executed it."""
    response: Any = getattr(err, "response", None)
    return getattr(getattr(response, "request", None), _TRIES, 1) > 1
