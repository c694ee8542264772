"""Time from the last prepared node to the last started script, against a run on one node."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from bench.report import Ratio
from bench.services import RUNNER, local_services, storage_connection_string

NODES = 4
ROUNDS = 3
SCRIPT = "import time; print(time.time())\n"


def measure() -> list[Ratio]:
    """Return the medians of alternating runs on several nodes and on one, without the first."""
    took: dict[int, list[float]] = {NODES: [], 1: []}
    with tempfile.TemporaryDirectory() as folder, local_services(nodes=NODES) as env:
        Path(folder, "train.py").write_text(SCRIPT)
        storage = BlobServiceClient.from_connection_string(storage_connection_string(env))
        for number in range(ROUNDS + 1):
            for nodes, seconds in took.items():
                started_s = _start_s(storage, _run(env, folder, nodes), nodes)
                if number:
                    seconds.append(started_s)
    ours, peer = statistics.median(took[NODES]), statistics.median(took[1])
    return [
        Ratio(f"{NODES} nodes prepared, script runs on all", "s", ours, "on one node", peer,
              "<= 1 s more", ours <= peer + 1.0)
    ]  # fmt: skip


def _run(env: dict[str, str], folder: str, nodes: int) -> str:
    command = [RUNNER, "train", "train.py", "--nodes", str(nodes), "--no-download", "-o", "json"]
    done = subprocess.run(command, env=env, cwd=folder, check=True, capture_output=True, text=True)
    return str(json.loads(done.stdout)["run_id"])


def _start_s(storage: BlobServiceClient, run_id: str, nodes: int) -> float:
    """Return the seconds from the last ready environment to the first line of the last script."""
    prepared: list[float] = []
    began: list[float] = []
    for rank in range(nodes):
        own = f"{run_id}/nodes/{rank}/" if rank else f"{run_id}/"
        log = own + ("stdout.txt" if rank else "logs/stdout.txt")
        began.append(float(_read(storage, log)))
        lines = _read(storage, f"{own}attempts/1/events.jsonl").splitlines()
        ends = [e for e in map(json.loads, lines) if e["stage"] == "environment"]
        prepared.append(datetime.fromisoformat(ends[-1]["time"]).timestamp())
    return max(began) - max(prepared)


def _read(storage: BlobServiceClient, name: str) -> str:
    return storage.get_blob_client("runs", name).download_blob().readall().decode()
