"""`runner ps -a` with 1,000 runs in the container, against listing it with the SDK."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from azure.storage.blob import BlobServiceClient, ContainerClient

from bench.report import Ratio
from bench.services import RUNNER, local_services, storage_connection_string
from runner.protocol.results import index_blob, index_metadata

RUNS = 1000
GOING_ON = 20  # of them: submitted, without a task any more
ROUNDS = 3
BOUND_S = 2.0


def measure() -> list[Ratio]:
    """Process start included; the median of rounds that take turns.

    The peer does less: it reads which runs there are and nothing about any.
    """
    ours: list[float] = []
    plain: list[float] = []
    peer: list[float] = []
    with local_services() as env:
        service = BlobServiceClient.from_connection_string(storage_connection_string(env))
        container = service.get_container_client("runs")
        _fill(container)
        for _ in range(ROUNDS):
            plain.append(_ps(env, "ps", rows=20))
            ours.append(_ps(env, "ps", "-a", rows=RUNS))
            peer.append(_raw_listing(container))
    return [
        _ratio(f"ps -a, {RUNS} runs", ours, peer),
        _ratio(f"ps, {RUNS} runs", plain, peer),
    ]


def _ratio(name: str, ours: list[float], peer: list[float]) -> Ratio:
    mine, theirs = sorted(ours)[ROUNDS // 2], sorted(peer)[ROUNDS // 2]
    bound = f"< {BOUND_S:g} s"
    return Ratio(name, "s", mine, "SDK lists all blobs", theirs, bound, mine < BOUND_S)


def _ps(env: dict[str, str], *words: str, rows: int) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [RUNNER, *words, "-o", "json"], env=env, cwd=tempfile.gettempdir(), check=True,
        capture_output=True,
    )  # fmt: skip
    took = time.perf_counter() - start
    found = json.loads(done.stdout)
    if len(found) != rows or any(row["state"] not in ("succeeded", "lost") for row in found):
        raise RuntimeError(f"ps shows {len(found)} runs, not all as they are")
    return took


def _raw_listing(container: ContainerClient) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in container.list_blobs())
    took = time.perf_counter() - start
    if count < RUNS:
        raise RuntimeError(f"{count} blobs are listed")
    return took


def _fill(container: ContainerClient) -> None:
    """The blobs of real runs, as client and agent write them."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(_make_run, container), range(RUNS)))


def _make_run(container: ContainerClient, number: int) -> None:
    created = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=number)
    run_id = f"mnist-{created:%Y%m%d-%H%M%S}-{number % 10}abc"
    run, result = _run(run_id, created), _result(run_id, created)
    over = number < RUNS - GOING_ON
    documents: dict[str, Any] = {
        "run.json": run,
        "attempts/1/start.json": {"attempt": 1, "node": "tvm-1", "started": result["started"]},
        "attempts/1/events.jsonl": {"stage": "command", "state": "end"},
        "logs/stdout.txt": "epoch 1/8",
        "metrics.jsonl": {"name": "loss", "value": 0.1, "step": 1},
    }
    if over:
        documents |= {"result.json": result, "output/model.keras": "model"}
    for name, document in documents.items():
        container.upload_blob(f"{run_id}/{name}", json.dumps(document))
    metadata = index_metadata(run, result if over else None)
    container.upload_blob(index_blob(run_id), b"", metadata=metadata)


def _run(run_id: str, created: datetime) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "experiment": "mnist",
        "created": created.isoformat(),
        "recipe": {"name": "mnist", "description": "digits", "source": "builtin"},
        "command": ["python", "train.py"],
        "params": {"epochs": 8, "batch_size": 128, "learning_rate": 0.004, "seed": 0},
        "metrics": {"patterns": {}, "primary": "test_accuracy", "goal": "max"},
        "batch": {"account": "local", "pool": "local", "vm_size": "local", "spot": True,
                  "job_id": "mnist_gone", "task_id": run_id},
    }  # fmt: skip


def _result(run_id: str, created: datetime) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "status": "succeeded",
        "attempt": 1,
        "evicted": 0,
        "exit_code": 0,
        "started": created.isoformat(),
        "ended": (created + timedelta(seconds=61)).isoformat(),
        "metrics": {"test_accuracy": 0.9912, "test_loss": 0.031, "loss": 0.02},
        "output": "output/",
        "outputs": [{"path": "model.keras", "size_bytes": 7, "sha256": "0" * 64}],
    }
