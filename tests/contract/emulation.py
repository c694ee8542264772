"""An emulator process with one pool of one node, for tests of files, filters and lists."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from tests import plain_http
from tests.contract.recording import ConformancePolicy

POOL = "pool"
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Emulation:
    """A running emulator and a client of the official SDK that talks to it."""

    url: str
    account: str
    key: str
    client: BatchClient

    def connect(self, *, key: str | None = None, **options: Any) -> BatchClient:
        """Return another client, by default with the correct key, and without retries."""
        credential = AzureNamedKeyCredential(self.account, key or self.key)
        return BatchClient(
            self.url, credential, retry_total=0, per_retry_policies=[ConformancePolicy()], **options
        )

    def node_id(self) -> str:
        """Await the idle node of the pool. Return its id."""
        found: list[str] = []

        def ready() -> bool:
            nodes = self.client.list_nodes(POOL)
            found.extend(str(n.id) for n in nodes if n.state in ("idle", "running"))
            return bool(found)

        self.until(ready, "a node takes tasks")
        return found[0]

    def job(self, prefix: str = "job") -> str:
        """Create a job on the pool. Return its id."""
        job_id = f"{prefix}-{uuid4().hex[:8]}"
        self.client.create_job(
            models.BatchJobCreateOptions(id=job_id, pool_info=models.BatchPoolInfo(pool_id=POOL))
        )
        return job_id

    def run(self, job_id: str, task_id: str, command_line: str, **options: Any) -> models.BatchTask:
        """Add a task and await its completion."""
        self.client.create_task(
            job_id,
            models.BatchTaskCreateOptions(id=task_id, command_line=command_line, **options),
        )
        return self.wait(job_id, task_id)

    def wait(self, job_id: str, task_id: str) -> models.BatchTask:
        """Await the completion of the task. Return it."""
        done = models.BatchTaskState.COMPLETED
        self.until(
            lambda: self.client.get_task(job_id, task_id, select=["state"]).state == done,
            f"{task_id} is completed",
        )
        return self.client.get_task(job_id, task_id)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        _until(condition, what)

    def stdout(self, job_id: str, task_id: str) -> str:
        """Return the stdout of a task."""
        return b"".join(self.client.download_task_file(job_id, task_id, "stdout.txt")).decode()


@contextmanager
def emulate(data_dir: Path, *options: str, umask: int = -1) -> Generator[Emulation]:
    """Run an emulator on a data folder until the block ends."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    command = [sys.executable, "-m", "batch_emulator", "--account", "local", "--port", "0"]
    command += ["--data-dir", str(data_dir)]
    command += ["--boot-seconds", "0", "--delete-seconds", "0", *options]
    log = (data_dir.parent / "emulator.log").open("wb")
    process = subprocess.Popen(
        command,
        env={**os.environ, "BATCH_EMULATOR_KEY": key},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        umask=umask,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:2] == ["listening", "on"], words
        _wait_until_ready(words[2])
        credential = AzureNamedKeyCredential("local", key)
        client = BatchClient(
            words[2], credential, retry_total=0, per_retry_policies=[ConformancePolicy()]
        )
        emulation = Emulation(words[2], "local", key, client)
        _create_pool(client)
        yield emulation
    finally:
        process.terminate()
        process.wait(120)
        log.close()


def _wait_until_ready(url: str) -> None:
    def ready() -> bool:
        try:
            return plain_http.get(f"{url}/_emulator/health").status_code == 200
        except httpx.TransportError:
            return False

    _until(ready, "the emulator is ready")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in time: {what}"
        time.sleep(0.02)


def _create_pool(client: BatchClient) -> None:
    image = models.BatchVmImageReference(
        publisher="canonical", offer="0001-com-ubuntu-server-jammy", sku="22_04-lts"
    )
    configuration = models.VirtualMachineConfiguration(
        image_reference=image, node_agent_sku_id="batch.node.ubuntu 22.04"
    )
    client.create_pool(
        models.BatchPoolCreateOptions(
            id=POOL,
            vm_size="standard_d2s_v3",
            virtual_machine_configuration=configuration,
            target_dedicated_nodes=1,
            task_slots_per_node=4,
        )
    )
