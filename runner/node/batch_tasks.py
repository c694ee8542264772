"""Tasks that the agent adds to its own job, over Batch's REST interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast
from urllib.parse import quote

from runner.node.documents import parse_json
from runner.node.identity import Credential
from runner.node.patience import Patience
from runner.node.transport import Transport

logger = logging.getLogger(__name__)

API_VERSION = "2025-06-01"
BATCH_RESOURCE = "https://batch.core.windows.net/"
CHUNK = 100  # the service refuses more in one request (REST docs, "Create Task Collection")
_HEADERS = {"Content-Type": "application/json; odata=minimalmetadata"}
_TOO_LARGE = frozenset({"RequestBodyTooLarge", "RequestEntityTooLarge"})


class RefusedError(Exception):
    """The service refused tasks for good; `code` is its error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class JobTasks:
    """Adds tasks to one job of the account at `url`."""

    def __init__(self, url: str, job_id: str, credential: Credential, patience: Patience) -> None:
        self._transport = Transport(
            f"{url.rstrip('/')}/jobs/{quote(job_id, safe=':')}", credential, patience
        )
        self._patience = patience

    def add(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Add every task; one that is there already counts as added.

        Raises RefusedError, StorageUnreachableError when the service does not answer.
        """
        pending = list(bodies)
        for start in range(0, len(pending), CHUNK):
            self._add_chunk(pending[start : start + CHUNK])

    def _add_chunk(self, chunk: Sequence[dict[str, Any]]) -> None:
        for _ in self._patience.delays():
            again = set(self._send(chunk))
            chunk = [body for body in chunk if body["id"] in again]
            if not chunk:
                return
        raise RefusedError("ServerError", f"{len(chunk)} tasks were not taken")

    def _send(self, chunk: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Ids of tasks that met an error of the server, to be sent again."""
        answer = self._transport.send(
            "POST",
            "addtaskcollection",
            query={"api-version": API_VERSION},
            headers=_HEADERS,
            body=json.dumps({"value": list(chunk)}).encode(),
        )
        if answer.status != 200:
            error = _error(answer.body)
            code = str(error.get("code") or answer.status)
            if (answer.status == 413 or code in _TOO_LARGE) and len(chunk) > 1:
                half = len(chunk) // 2
                yield from self._send(chunk[:half])
                yield from self._send(chunk[half:])
                return
            raise RefusedError(code, _message(error))
        for result in parse_json(answer.body)["value"]:
            status = str(result["status"]).lower()
            error: dict[str, Any] = result.get("error") or {}
            if status == "servererror":
                yield result["taskId"]
            elif status != "success" and error.get("code") != "TaskExists":
                code = str(error.get("code") or status)
                raise RefusedError(code, f"task {result['taskId']}: {_message(error)}")


def _error(body: bytes) -> dict[str, Any]:
    try:
        raw: Any = parse_json(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _message(error: dict[str, Any]) -> str:
    message: Any = error.get("message")
    if isinstance(message, dict):
        message = cast("dict[str, Any]", message).get("value")
    text = str(message or "")
    return text.splitlines()[0] if text else ""
