"""Send requests to the Batch service that the SDK cannot send, or whose response it cannot read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

from runner.azure.auth.credentials import Connection
from runner.azure.faults import ONLY_IDEMPOTENT, service_errors

API_VERSION = "2025-06-01"
_JSON = "application/json; odata=minimalmetadata"


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response; `body` is JSON, text, or None if it is empty."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def code(self) -> str:
        """Return the service's error code, or an empty string."""
        raw: object = self.body
        body = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        return str(body.get("code") or "") if self.status >= HTTPStatus.BAD_REQUEST else ""


def send_raw(
    connection: Connection,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> RawResponse:
    """Send one signed request and return the response, even for an error status.

    Args:
        connection: The account.
        method: The HTTP method.
        path: Path and query below the endpoint; the API version is added if missing.
        body: JSON document to send; None sends no body.
        headers: Additional headers, such as `If-Match`.

    Raises:
        RunnerError: not signed in, or the service cannot be reached.
    """
    if "api-version" not in parse_qs(urlsplit(path).query):
        path += ("&" if "?" in path else "?") + f"api-version={API_VERSION}"
    sent = {"Accept": "application/json", **(headers or {})}
    content = None if body is None else json.dumps(body)
    if content is not None:
        sent["Content-Type"] = _JSON
    request = HttpRequest(
        method, f"{connection.outputs.batch_endpoint}{path}", headers=sent, content=content
    )
    # The SDK logs a trace for every error without a body, such as 304.
    logging.getLogger("azure.batch._utils.model_base").setLevel(logging.ERROR)
    with service_errors(f"sending {method} {urlsplit(path).path}"):
        try:
            response = connection.batch_client().send_request(request, **ONLY_IDEMPOTENT)
        except HttpResponseError as err:
            if err.response is None:
                raise
            response: Any = err.response
    return RawResponse(response.status_code, dict(response.headers), _parse(response.read()))


def _parse(content: bytes) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")
