"""An emulator in a thread of the test process, and helpers for tests with it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from starlette.types import ASGIApp

from batch_emulator.domain.account import Limits
from batch_emulator.domain.clock import Clock
from batch_emulator.emulator import Emulator
from batch_emulator.http.app import App
from batch_emulator.server import Server
from tests import plain_http
from tests.contract.recording import Recorder

ACCOUNT = "contract"
KEY = base64.b64encode(b"a key for tests of 32 bytes only").decode()
# A valid machine and a valid pool, as in a request body.
MACHINE: dict[str, Any] = {
    "imageReference": {
        "publisher": "canonical",
        "offer": "ubuntu-24_04-lts",
        "sku": "server",
    },
    "nodeAgentSKUId": "batch.node.ubuntu 24.04",
}
POOL: dict[str, Any] = {"vmSize": "standard_d2s_v3", "virtualMachineConfiguration": MACHINE}
DEADLINE_S = 180.0
POLL_S: Any = 0.05  # declared as int, but the SDK accepts any number
T = TypeVar("T")


@dataclass
class Running:
    """A running emulator and its client."""

    url: str
    emulator: Emulator
    client: BatchClient

    def push(self, seconds: float) -> None:
        """Advance the clock of the emulator."""
        answer = plain_http.post(
            f"{self.url}/_emulator/clock",
            json={"push": f"PT{seconds:g}S"},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        answer.raise_for_status()


@contextmanager
def serving(
    data_dir: Path,
    *,
    boot_s: float = 0.05,
    before: Callable[[Emulator], None] | None = None,
    clock: Clock | None = None,
    settings: Mapping[str, Any] | None = None,
    **limits: Any,
) -> Generator[Running]:
    """Run an emulator on a free port until the block ends.

    `boot_s` counts seconds of the emulator's clock. `before` can change the emulator first.
    """
    limited = Limits(boot_s=boot_s, **limits)
    server = _Recorded(
        data_dir, account=ACCOUNT, key=KEY, limits=limited, clock=clock, **(settings or {})
    )
    server.before = before
    with server:
        assert server.emulator is not None
        yield Running(server.url, server.emulator, client_for(server.url))


class _Recorded(Server):
    """A server that checks every response against the description of the service."""

    before: Callable[[Emulator], None] | None = None

    def application(self, emulator: Emulator) -> ASGIApp:
        if self.before is not None:
            self.before(emulator)
        return Recorder(App(emulator))


def client_for(url: str, key: str = KEY, account: str = ACCOUNT, **options: Any) -> BatchClient:
    """Return a client that does not read the variables for proxies with each request."""
    given = {"retry_total": 0, "use_env_settings": False, **options}
    return BatchClient(url, AzureNamedKeyCredential(account, key), **given)


def eventually(look: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """Poll until the result is truthy, and return it. Fail after the deadline.

    The pause grows with the time waited, so that polling does not slow down the emulator.
    """
    begin = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - begin
        if waited > deadline_s:
            raise AssertionError(f"nothing after {deadline_s} s")
        time.sleep(min(max(0.01, waited / 10), 0.05))  # shorter than the duration of every state


def missing(look: Callable[[], object]) -> bool:
    """Return True if the service answers 404, for which the SDK raises an error even for HEAD."""
    try:
        return not look()
    except ResourceNotFoundError:
        return True


def wire(**body: Any) -> Any:
    """Return a body with the names of the REST API, for which the SDK has no public model."""
    return body


def network_with(endpoints: dict[str, int]) -> models.NetworkConfiguration:
    """Return a network with an endpoint for each port; nodes get ports from 40000 on."""
    nats = [
        models.BatchInboundNatPool(
            name=name,
            protocol="tcp",
            backend_port=port,
            frontend_port_range_start=40_000 + 100 * number,
            frontend_port_range_end=40_099 + 100 * number,
        )
        for number, (name, port) in enumerate(endpoints.items())
    ]
    return models.NetworkConfiguration(
        endpoint_configuration=models.BatchPoolEndpointConfiguration(inbound_nat_pools=nats)
    )


def code_of(error: HttpResponseError) -> str:
    """Return the error code of the service."""
    return str(body_of(error)["code"])


def body_of(error: HttpResponseError) -> dict[str, Any]:
    """Return the body of an error."""
    response: Any = error.response
    response.read()
    return response.json()


def values_of(error: HttpResponseError) -> dict[str, str]:
    """Return the `values` in the body of an error, by key."""
    return {item["key"]: item["value"] for item in body_of(error)["values"]}


class Things:
    """Creates pools, jobs and tasks with unique IDs, and waits for their states."""

    def __init__(self, client: BatchClient) -> None:
        self.client = client

    def id(self, prefix: str = "x") -> str:
        return f"{prefix}-{uuid4().hex[:10]}"

    def pool(self, **options: Any) -> str:
        pool_id = options.pop("id", None) or self.id("pool")
        defaults: dict[str, Any] = {
            "vm_size": "Standard_D2s_v3",
            "virtual_machine_configuration": models.VirtualMachineConfiguration(MACHINE),
        }
        self.client.create_pool(
            models.BatchPoolCreateOptions(id=pool_id, **{**defaults, **options})
        )
        return pool_id

    def job(self, pool_id: str, **options: Any) -> str:
        job_id = options.pop("id", None) or self.id("job")
        self.client.create_job(
            models.BatchJobCreateOptions(
                id=job_id, pool_info=models.BatchPoolInfo(pool_id=pool_id), **options
            )
        )
        return job_id

    def task(self, job_id: str, command: str = "/bin/true", **options: Any) -> str:
        task_id = options.pop("id", None) or self.id("task")
        self.client.create_task(
            job_id, models.BatchTaskCreateOptions(id=task_id, command_line=command, **options)
        )
        return task_id

    def wait_nodes(self, pool_id: str, count: int, *states: str) -> list[models.BatchNode]:
        wanted = states or ("idle", "running")

        def look() -> tuple[list[models.BatchNode]] | None:
            nodes = list(self.client.list_nodes(pool_id))
            ok = len(nodes) == count and all(node.state in wanted for node in nodes)
            return (nodes,) if ok else None

        return eventually(look)[0]

    def wait_task(self, job_id: str, task_id: str, state: str = "completed") -> models.BatchTask:
        def look() -> models.BatchTask | None:
            task = self.client.get_task(job_id, task_id)
            return task if task.state == state else None

        return eventually(look)

    def end_job(self, job_id: str) -> models.BatchJob:
        """Terminate a job and wait for its end."""
        self.client.begin_terminate_job(
            job_id, options=wire(terminateReason="done"), polling_interval=POLL_S
        ).wait()
        return self.wait_job(job_id)

    def wait_job(self, job_id: str, state: str = "completed") -> models.BatchJob:
        def look() -> models.BatchJob | None:
            job = self.client.get_job(job_id)
            return job if job.state == state else None

        return eventually(look)

    def said(self, job_id: str, task_id: str) -> str:
        """Return the output of a task so far, empty before its start."""
        try:
            return self.text(job_id, task_id)
        except (
            ResourceNotFoundError,
            ResourceExistsError,
        ):  # the file or the node does not exist yet
            return ""

    def text(self, job_id: str, task_id: str, name: str = "stdout.txt") -> str:
        return b"".join(self.client.download_task_file(job_id, task_id, name)).decode()
