"""A run and its task, which starts the packed agent as Batch does."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from runner.flows.submit.agent_archive import pack, read_sources
from tests.unit.node.fake_blob import FakeBlobs
from tests.unit.node.fake_uv import install_fake_uv

RUN = "mnist-1"


# Batch gives an agent a few seconds to end, which is too short on a busy machine: these agents have
# a minute, as has a webhook. The end-to-end tests use the real limits.
UNHURRIED = {
    "runner/node/agent/main.py": {"SHUTDOWN_S = 4.5": "SHUTDOWN_S = 60.0"},
    "runner/node/script/command.py": {"TERMINATION_GRACE_S = 3.0": "TERMINATION_GRACE_S = 30.0"},
    "runner/node/agent/records.py": {"FINAL_FLUSH_S = 1.0": "FINAL_FLUSH_S = 30.0"},
    "runner/node/agent/join.py": {"FINAL_FLUSH_S = 10.0": "FINAL_FLUSH_S = 60.0"},
    "runner/protocol/notifying/webhooks.py": {
        "TRY_S = 5.0": "TRY_S = 60.0",
        "LIMIT_S = 10.0": "LIMIT_S = 60.0",
    },
}


@functools.cache
def compiled_agent() -> bytes:
    """Return the packed agent with longer limits for its end."""
    return pack({name: _unhurried(name, source) for name, source in read_sources().items()})


def _unhurried(name: str, source: bytes) -> bytes:
    for seconds, more in UNHURRIED.get(name, {}).items():
        assert seconds.encode() in source, name
        source = source.replace(seconds.encode(), more.encode())
    return source


def hurried_agent() -> bytes:
    """Return the packed agent with its real limits."""
    return pack(read_sources())


class Task:
    """A run and the task that executes it."""

    def __init__(self, folder: Path, service: FakeBlobs) -> None:
        self.folder = folder
        self.service = service
        self.shared = folder / "shared"
        self.processes: list[subprocess.Popen[str]] = []
        self.secrets: dict[str, dict[str, str]] = {}
        self.settings: dict[str, str] = {}
        self.before_agent: Callable[[], object] = lambda: None  # called when its files exist
        self.agent: Callable[[], bytes] = compiled_agent
        install_fake_uv(self.shared)

    def end(self) -> None:
        """Kill all processes that the task started."""
        for process in self.processes:
            process.kill()
            process.communicate()

    def submit(self, script: str, **changes: Any) -> None:
        code = io.BytesIO()
        with tarfile.open(fileobj=code, mode="w:gz") as tar:
            info = tarfile.TarInfo("train.py")
            info.size = len(script.encode())
            tar.addfile(info, io.BytesIO(script.encode()))
        self.code = code.getvalue()
        run: dict[str, Any] = {
            "format": 1,
            "run_id": RUN,
            "code": {"sha256": hashlib.sha256(self.code).hexdigest()},
            "command": ["python", "train.py"],
            "params": {"epochs": 5},
            "env": {"MY_SETTING": "1"},
            "requirements": None,
            "python": None,
            "data": None,
            "outputs": [],
            "metrics": {"patterns": {"loss": "loss=([0-9.]+)"}},
            "timeout_s": None,
            "retries": 0,
            "a field of a later version": True,
        }
        self.service.put(f"{RUN}/run.json", json.dumps({**run, **changes}).encode())

    def start(
        self, stdout: int | TextIO = subprocess.PIPE, *, again_in: int | None = None
    ) -> subprocess.Popen[str]:
        """Start the task in a new folder, as on another node, or in that of an earlier start."""
        work_dir = self.start_folder(len(self.processes) if again_in is None else again_in)
        environment = self.environment(work_dir)
        self.before_agent()
        process = subprocess.Popen(
            [sys.executable, "runner-agent.pyz"],
            cwd=work_dir,
            env=environment,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_folder(self, number: int) -> Path:
        """Return the folder of a start of the task, with its files."""
        work_dir = self.folder / f"task-{number}" / "wd"
        work_dir.mkdir(parents=True, exist_ok=True)
        # Atomically, because a running agent in the folder still reads these files.
        for name, data in (("runner-agent.pyz", self.agent()), ("code.tar.gz", self.code)):
            (part := work_dir / f"{name}.part").write_bytes(data)
            part.replace(work_dir / name)
        (work_dir.parent.parent / "mounts").mkdir(exist_ok=True)
        return work_dir

    def environment(self, work_dir: Path) -> dict[str, str]:
        """Return the variables that Batch sets for the task."""
        place = {"url": self.service.url, "sas": "sv=1&sig=secret-signature"}
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(work_dir),
            "RUNNER_RUN_ID": RUN,
            "RUNNER_STORAGE": json.dumps({"runs": place, "data": place, "inputs": {"runs": place}}),
            "AZ_BATCH_NODE_MOUNTS_DIR": str(self.folder / "mounts"),
            "AZ_BATCH_NODE_SHARED_DIR": str(self.shared),
            "AZ_BATCH_TASK_WORKING_DIR": str(work_dir),
            "AZ_BATCH_NODE_ID": "tvm-1",
            "AZ_BATCH_POOL_ID": "local",
            "AZ_BATCH_NODE_IS_DEDICATED": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.settings,
        }
        if self.secrets:
            environment["RUNNER_SECRETS"] = json.dumps(self.secrets)
        return environment

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill the task, and wait until storage has processed all of its requests."""
        process.kill()
        process.wait()
        deadline = time.monotonic() + 120
        while self.service.connected:
            assert time.monotonic() < deadline, "somebody else is connected"
            time.sleep(0.005)

    def run(self, again_in: int | None = None) -> int:
        process = self.start(again_in=again_in)
        self.output, _ = process.communicate(timeout=300)
        return process.returncode

    def json(self, name: str) -> dict[str, Any]:
        return json.loads(self.service.data(f"{RUN}/{name}"))

    def has(self, name: str) -> bool:
        return f"{RUN}/{name}" in self.service.blobs

    def text(self, name: str) -> str:
        return self.service.text(f"{RUN}/{name}") if self.has(name) else ""

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(name).splitlines()]
