"""Adding tasks in collections of 100, against the same server software that only echoes JSON.

One measurement uses `create_tasks` of the SDK, as users do. The other sends requests that were
signed in advance, so that it measures only the server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from email.utils import formatdate
from urllib.parse import urlsplit

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from bench.emulator.task_rate import pool_of
from bench.report import Ratio
from bench.services import Emulator, emulator

REQUESTS = 200
TASKS_EACH = 100
SDK_TASKS = 10_000
ROUNDS = 5  # a round takes half a second and varies by a third
CONNECTIONS = 4
_VERSION = "2025-06-01"
_JSON = "application/json; odata=minimalmetadata"


def measure() -> list[Ratio]:
    """Return accepted or echoed tasks per second; for `create_tasks`, the best round."""
    bodies = [_body(n) for n in range(REQUESTS)]
    with echo() as url, emulator() as service:
        raw_peer = _rate(url, [_request(url, "/echo", body, {}) for body in bodies])
        job_id = _job(service)
        path = f"/jobs/{job_id}/addtaskcollection"
        raw = _rate(service.endpoint, [_signed(service, path, body) for body in bodies])
        peer = Emulator(url, "echo", base64.b64encode(b"of nobody").decode())
        rounds = [(_sdk_rate(peer, "job", n), _sdk_rate(service, job_id, n)) for n in range(ROUNDS)]
    sdk_peer, sdk = (max(rates) for rates in zip(*rounds, strict=True))
    return [
        Ratio(
            "10,000 tasks by create_tasks", "tasks/s", sdk, "the same to a JSON echo", sdk_peer,
            ">= 0.6x", sdk >= 0.6 * sdk_peer,
        ),
        Ratio(
            "20,000 tasks, requests made before", "tasks/s", raw, "JSON echo of them", raw_peer,
            "(figure)", None,
        ),
    ]  # fmt: skip


def _sdk_rate(service: Emulator, job_id: str, number: int) -> float:
    client = BatchClient(service.endpoint, AzureNamedKeyCredential(service.account, service.key))
    tasks = [
        models.BatchTaskCreateOptions(id=f"sdk{number}-{n}", command_line="/bin/true")
        for n in range(SDK_TASKS)
    ]
    start = time.perf_counter()
    client.create_tasks(job_id, tasks)
    return SDK_TASKS / (time.perf_counter() - start)


def _body(number: int) -> bytes:
    tasks = [
        {"id": f"t{number}-{n}", "commandLine": "/bin/true", "requiredSlots": 1}
        for n in range(TASKS_EACH)
    ]
    return json.dumps({"value": tasks}).encode()


def _job(service: Emulator) -> str:
    client = BatchClient(service.endpoint, AzureNamedKeyCredential(service.account, service.key))
    # The pool has no nodes, so no task starts: only adding tasks is timed.
    client.create_pool(pool_of("empty", nodes=0, slots=1))
    client.create_job(
        models.BatchJobCreateOptions(id="job", pool_info=models.BatchPoolInfo(pool_id="empty"))
    )
    return "job"


def _signed(service: Emulator, path: str, body: bytes) -> bytes:
    date = formatdate(usegmt=True)
    headers = {"ocp-date": date, "content-type": _JSON}
    standard = ["POST", "", "", str(len(body)), "", _JSON, "", "", "", "", "", ""]
    text = "\n".join(
        [*standard, f"ocp-date:{date}\n/{service.account}{path}\napi-version:{_VERSION}"]
    )
    key = base64.b64decode(service.key)
    mac = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    headers["authorization"] = f"SharedKey {service.account}:{mac}"
    return _request(service.endpoint, f"{path}?api-version={_VERSION}", body, headers)


def _request(url: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(url).netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def _rate(url: str, requests: Sequence[bytes]) -> float:
    return asyncio.run(_send_all(url, requests))


async def _send_all(url: str, requests: Sequence[bytes]) -> float:
    address = urlsplit(url)
    start = time.perf_counter()
    await asyncio.gather(
        *(_send(address.port or 80, requests[n::CONNECTIONS]) for n in range(CONNECTIONS))
    )
    return len(requests) * TASKS_EACH / (time.perf_counter() - start)


async def _send(port: int, requests: Sequence[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if not head.startswith("http/1.1 200"):
            raise RuntimeError(head)
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        await reader.readexactly(length)
    writer.close()


@contextlib.contextmanager
def echo() -> Generator[str]:
    """Start a server that parses JSON and returns it. Yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.emulator.echo"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(timeout=30)
