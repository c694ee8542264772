"""An in-memory service with the operation of Batch that a job manager task needs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import listening, read_body


@dataclass
class FakeBatch:
    """The received tasks by ID, and the faults of the service.

    Each request takes one of `answers`: a status with an error code; "lose", which executes the
    request and loses the answer; or bytes, which are the answer to the executed request. `refuse`
    maps a task ID to an error code. Tasks in `busy` are refused once.
    """

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    answers: deque[tuple[int, str] | str | bytes] = field(default_factory=deque)
    refuse: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the response for one task."""
        task_id = task["id"]
        if task_id in self.busy:
            self.busy.discard(task_id)
            return {"status": "servererror", "taskId": task_id, "error": {"code": "ServerBusy"}}
        code = self.refuse.get(task_id) or ("TaskExists" if task_id in self.tasks else "")
        if code:
            message = {"lang": "en-US", "value": f"said {code}\nRequestId:1"}
            return {
                "status": "clienterror",
                "taskId": task_id,
                "error": {"code": code, "message": message},
            }
        self.tasks[task_id] = task
        return {"status": "Success", "taskId": task_id}


class _Handler(BaseHTTPRequestHandler):
    batch: FakeBatch
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(read_body(self))
        tasks = body["value"]
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.batch.requests.append((self.path, headers, len(tasks)))
        answer = self.batch.answers.popleft() if self.batch.answers else None
        if isinstance(answer, tuple):
            status, code = answer
            self._send(status, {"code": code, "message": {"value": f"said {code}"}})
            return
        with self.batch.lock:  # only one of two clients may add the same task
            results = [self.batch.add(task) for task in tasks]
        if answer == "lose":
            self.close_connection = True
            return
        self._send(200, answer if isinstance(answer, bytes) else {"value": results})

    def _send(self, status: int, body: dict[str, Any] | bytes) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def serve_fake_batch() -> Generator[FakeBatch]:
    """Run the service during the block."""
    batch = FakeBatch()
    with listening(_Handler, batch=batch) as url:
        batch.url = url
        yield batch
