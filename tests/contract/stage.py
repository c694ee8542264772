"""Creates the entities in an emulator that an example of the service needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx

from tests.contract.description import STABLE, description
from tests.contract.server import POOL, Running, eventually
from tests.contract.signed import send

Body = dict[str, Any]
Parameters = dict[str, Any]


class NotYet(Exception):  # noqa: N818 - nothing is wrong
    """The stage needs an operation for which the emulator returns 501."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Stage:
    """Creates the entities of an example with unique ids, and sends its request."""

    def __init__(self, running: Running) -> None:
        self.url = running.url
        self.base = self.pool()

    def call(self, method: str, path: str, body: Body | None = None, **more: Any) -> httpx.Response:
        """Send a signed request."""
        text = b"" if body is None else json.dumps(body).encode()
        return send(self.url, method, path, body=text, **more)

    def make(self, path: str, body: Body) -> str:
        """Create an entity, which must be accepted. Return its id."""
        body = {**body, "id": f"{body.get('id', 'x')[:40]}-{uuid4().hex[:12]}"}
        answer = self.call("POST", path, body)
        if answer.status_code == 501:
            raise NotYet({v["key"]: v["value"] for v in answer.json()["values"]}["Operation"])
        assert answer.status_code == 201, f"{path}: {answer.text}"
        return body["id"]

    def pool(self, **body: Any) -> str:
        """Create a pool without nodes. Return its id."""
        return self.make("/pools", {**POOL, "id": "pool", **body})

    def node(self, **body: Any) -> tuple[str, str]:
        """Create a pool and await its node. Return both ids."""
        pool = self.pool(targetDedicatedNodes=1, **body)

        def idle() -> str | None:
            nodes = self.call("GET", f"/pools/{pool}/nodes").json()["value"]
            return next((n["id"] for n in nodes if n["state"] == "idle"), None)

        return pool, eventually(idle)

    def job(self, pool: str = "", **body: Any) -> str:
        """Create a job on a pool without nodes, or on the given one. Return its id."""
        body = {"id": "job", **body, "poolInfo": {"poolId": pool or self.base}}
        return self.make("/jobs", body)

    def task(self, job: str, **body: Any) -> str:
        """Add a task. Return its id."""
        return self.make(f"/jobs/{job}/tasks", {"id": "task", "commandLine": "/bin/true", **body})

    def end(self, job: str) -> None:
        """Terminate a job and wait until it is completed."""
        assert self.call("POST", f"/jobs/{job}/terminate").status_code == 202
        eventually(lambda: self.call("GET", f"/jobs/{job}").json()["state"] == "completed")

    def finished(self, command: str) -> tuple[str, str, str, str]:
        """Run a task to completion. Return the ids of pool, node, job and task."""
        pool, node = self.node()
        around = {"commandLine": "/bin/true"}
        job = self.job(pool, jobPreparationTask=around, jobReleaseTask=around)
        task = self.task(job, commandLine=command)
        path = f"/jobs/{job}/tasks/{task}"
        eventually(lambda: self.call("GET", path).json()["state"] == "completed")
        return pool, node, job, task

    def schedule(self, **body: Any) -> str:
        """Create a job schedule. Return its id."""
        specification = {"poolInfo": {"poolId": self.base}}
        return self.make(
            "/jobschedules",
            {"id": "s", "schedule": {}, **body, "jobSpecification": specification},
        )


def writable(shown: Body, definition: str) -> Body:
    """Return the properties of a shown entity that a client could have sent to create it."""
    document = description(STABLE)
    return _writable(shown, document.document["definitions"][definition])


def _writable(shown: Any, schema: Mapping[str, Any]) -> Any:
    schema = description(STABLE).definition(schema)
    if isinstance(shown, list):
        return [_writable(item, schema["items"]) for item in shown]
    if schema.get("type") == "object" and isinstance(shown, str):
        return json.loads(shown)  # settings of extensions in some examples
    if not isinstance(shown, dict) or "properties" not in schema:
        return shown
    known = schema["properties"]
    return {
        name: _writable(item, known[name])
        for name, item in shown.items()
        if name in known and not known[name].get("readOnly")
    }
