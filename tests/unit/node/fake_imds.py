"""An instance metadata service with scheduled events that the test sets."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import listening

BELOW = "/_emulator/imds/pool/node/word"


@dataclass
class FakeImds:
    """The state of the service: its clock is `skew_s` ahead; it answers 404 if `name` is None."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    asked: list[str] = field(default_factory=list[str])
    posted: int = 0
    skew_s: float = 0.0
    name: str | None = None
    status: int = 200
    url: str = ""
    versions: tuple[str, ...] = ()  # that are answered; () is every one

    def recommend(self, *names: str, event_id: str = "R-1") -> None:
        self.events.append(
            {
                "EventId": event_id,
                "EventType": "SpotRebalanceRecommendation",
                "Resources": list(names),
                "EventStatus": "Scheduled",
                "NotBefore": "",
            }
        )

    def preempt(self, in_s: float | None, *names: str, event_id: str = "E-1") -> None:
        at = "" if in_s is None else formatdate(time.time() + self.skew_s + in_s, usegmt=True)
        self.events = [
            {
                "EventId": event_id,
                "EventType": "Preempt",
                "ResourceType": "VirtualMachine",
                "Resources": list(names),
                "EventStatus": "Scheduled" if at else "Started",
                "NotBefore": at,
            }
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: FakeImds

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + self.service.skew_s, usegmt=True)

    def do_POST(self) -> None:
        self.service.posted += 1
        self._answer(200, b"")

    def do_GET(self) -> None:
        service = self.service
        service.asked.append(self.path)
        if self.headers.get("Metadata") != "true" or service.status != 200:
            self._answer(service.status if service.status != 200 else 400, b"{}")
        elif self.path.startswith(f"{BELOW}/metadata/scheduledevents?api-version="):
            if service.versions and self.path.rpartition("=")[2] not in service.versions:
                self._answer(400, b'{"error": "Bad request. api-version is invalid"}')
                return
            document = {"DocumentIncarnation": 1, "Events": service.events}
            self._answer(200, json.dumps(document).encode())
        elif service.name is None:
            self._answer(404, b"")
        else:
            self._answer(200, service.name.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serve_fake_imds() -> Generator[FakeImds, None, None]:
    """Serve on a free port of the loopback interface."""
    service = FakeImds()
    with listening(_Handler, service=service) as url:
        service.url = f"{url}{BELOW}"
        yield service
