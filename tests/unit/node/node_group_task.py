"""A run over several nodes, started as by Batch: coordination commands, then the primary."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.processes import alive
from tests.unit.node.agent_task import RUN, Task, compiled_agent


class NodeGroupTask(Task):
    """A task on several nodes, which are folders; `addresses` begin with that of the primary."""

    addresses: list[str]
    token: str

    def end(self) -> None:
        """End the task and the workers, which are not children of this process."""
        super().end()
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def start_node_group(self, nodes: int) -> subprocess.Popen[str]:
        """Run every coordination command, then start the application command."""
        net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.addresses = [f"{net}.{number + 1}" for number in range(nodes)]
        self.token = secrets.token_hex(16)
        for rank in range(nodes):
            done = subprocess.run(
                [sys.executable, str(self.folder_of(rank) / "runner-agent.pyz"), "join"],
                env=self._environment(rank),
                cwd=self.work_dir(rank),
                capture_output=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return self._start_primary()

    def _start_primary(self) -> subprocess.Popen[str]:
        (self.work_dir(0) / "code.tar.gz").write_bytes(self.code)
        process = subprocess.Popen(
            [sys.executable, str(self.folder_of(0) / "runner-agent.pyz")],
            env=self._environment(0),
            cwd=self.work_dir(0),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def run_node_group(self, nodes: int) -> int:
        process = self.start_node_group(nodes)
        self.output, _ = process.communicate(timeout=300)
        return process.returncode

    def work_dir(self, rank: int) -> Path:
        folder = self.folder_of(rank)
        return (folder / str(rank) if rank else folder) / "wd"

    def worker_log(self, rank: int) -> str:
        return (self.work_dir(rank) / "runner-worker.txt").read_text()

    def worker_of(self, script_pid: int) -> int:
        """Return the process id of a node's agent by that of its script."""
        return psutil.Process(script_pid).ppid()

    def lose_node(self, script_pid: int) -> None:
        """Kill worker and supervisor, as an eviction does."""
        worker = self.worker_of(script_pid)
        for pid in (psutil.Process(worker).ppid(), worker):
            os.kill(pid, signal.SIGKILL)

    def folder_of(self, rank: int) -> Path:
        """Return `AZ_BATCH_TASK_SHARED_DIR` of one node, with the common resource files."""
        folder = self.folder / f"node-{rank}" / "task"
        if not folder.exists():
            (folder / str(rank) / "wd" if rank else folder / "wd").mkdir(parents=True)
            (folder / "runner-agent.pyz").write_bytes(compiled_agent())
            (folder / "code.tar.gz").write_bytes(self.code)
        return folder

    def _environment(self, rank: int) -> dict[str, str]:
        place = {"url": self.service.url, "sas": "sv=1&sig=secret-signature"}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.work_dir(rank)),
            "RUNNER_RUN_ID": RUN,
            "RUNNER_STORAGE": json.dumps({"runs": place, "data": place}),
            "RUNNER_NODES_TOKEN": self.token,
            "AZ_BATCH_NODE_SHARED_DIR": str(self.shared),
            "AZ_BATCH_TASK_SHARED_DIR": str(self.folder_of(rank)),
            "AZ_BATCH_TASK_WORKING_DIR": str(self.work_dir(rank)),
            "AZ_BATCH_NODE_ID": f"tvm-{rank}",
            "AZ_BATCH_NODE_IS_DEDICATED": "true",
            "AZ_BATCH_HOST_LIST": ",".join(self.addresses),
            "AZ_BATCH_MASTER_NODE": f"{self.addresses[0]}:6000",
            "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false" if rank else "true",
            "BATCH_EMULATOR_NODE_IP": self.addresses[rank],
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.settings,
        }

    def pids(self, count: int) -> dict[int, int] | None:
        """Return the scripts' process ids by rank, or None until all have written them."""
        files = {path.name: path.read_text() for path in self.shared.glob("pid-*")}
        found = {int(name[4:]): int(text) for name, text in files.items() if text}
        return found if len(found) == count else None

    def all_gone(self, pids: dict[int, int]) -> bool:
        return not any(alive(pid) for pid in pids.values())


def lines_of(task: Task, rank: int) -> list[dict[str, Any]]:
    """Return the events of one node's first attempt."""
    return task.lines(f"nodes/{rank}/attempts/1/events.jsonl")
