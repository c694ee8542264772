"""How requests to Batch and storage are repeated, and how a caller recognises what it did itself.

The rule for every request of the clients that `credentials` creates:

- A request without an answer is sent again, whatever its method. It names what it changes by an
  ID or by a condition, so that the service executes it once.
- The service may have executed the request whose answer was lost. It then refuses the repeated
  one: what it creates exists, what it deletes is gone, its condition is not met any more. The
  caller checks `was_repeated`, and that the service has what was to be written; both together are
  a success. Requests that set a state need only the second check.
- The budget of a request is six tries with pauses of random length. No try of a request to Batch
  begins later than two minutes after the first one.
"""

from __future__ import annotations

import random
from typing import Any

from azure.core.pipeline.policies import RetryPolicy

RETRIES = 5  # after the first try
_BATCH_BUDGET_S = 120
_BATCH_PAUSE_S = 0.2  # doubled with every further retry
_JITTER = (0.5, 1.5)
# azure-core repeats only the others by itself.
_METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
# For requests whose every answer is wanted as it is.
ONLY_IDEMPOTENT: dict[str, Any] = {"retry_on_methods": _METHODS - {"PATCH", "POST"}}
_TRIES = "runner_tries"


class BatchRetries(RetryPolicy[Any, Any]):
    """The retry policy of azure-core for all methods, with pauses of random length."""

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

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Return the pause in seconds; the first retry has none."""
        return super().get_backoff_time(settings) * random.uniform(*_JITTER)  # noqa: S311


def count_try(request: Any) -> None:
    """Count a try of a request: the `raw_request_hook` of clients, called for each one."""
    sent = request.http_request
    setattr(sent, _TRIES, getattr(sent, _TRIES, 0) + 1)


def was_repeated(err: BaseException) -> bool:
    """Return True if the refused request was sent before: the service may have executed it."""
    response: Any = getattr(err, "response", None)
    return getattr(getattr(response, "request", None), _TRIES, 1) > 1
