"""A webhook on this machine, which records what it gets and answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import listening, read_body

PATH = "/services/T0/B0/very-secret-part"


@dataclass
class Answer:
    """A response: its status, headers and body, after a pause."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b"ok"
    after_s: float = 0


@dataclass
class Webhook:
    """What was posted, in order; `answers` are used up, the last one stays."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    requests: list[tuple[str, str, dict[str, str]]] = field(
        default_factory=list[tuple[str, str, dict[str, str]]]
    )
    answers: list[Answer] = field(default_factory=lambda: [Answer()])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]


class _Handler(BaseHTTPRequestHandler):
    webhook: Webhook

    def do_POST(self) -> None:
        body = read_body(self)
        with self.webhook.lock:
            self.webhook.bodies.append(json.loads(body))
            self.webhook.requests.append((self.command, self.path, dict(self.headers)))
            answers = self.webhook.answers
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        time.sleep(answer.after_s)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        self.webhook.requests.append((self.command, self.path, dict(self.headers)))
        self.send_error(405)


@contextlib.contextmanager
def serve_webhook() -> Generator[Webhook]:
    """Serve a webhook. Yield it."""
    webhook = Webhook()
    with listening(_Handler, webhook=webhook) as url:
        webhook.url = f"{url}{PATH}"
        yield webhook
