"""`runner ps -a` and the ledger with 1,000 runs, against listing the container with the SDK."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from azure.storage.blob import BlobServiceClient, ContainerClient

from bench.report import Ratio
from bench.services import RUNNER, local_services, storage_connection_string
from runner.azure.auth.credentials import connect
from runner.core.settings import load_settings
from runner.flows.costs.report import CostQuery, report_costs
from runner.protocol.results import index_blob, index_metadata
from runner.protocol.usage import load_usage, usage_to_json

RUNS = 1000
UNFINISHED = 20  # runs without a result whose task no longer exists
ROUNDS = 3
BOUND_S = 2.0
LEDGER_BOUND_S = 1.0


def measure() -> list[Ratio]:
    """Return the medians of alternating rounds, including the start of the process.

    The peer does less: it lists the blobs, and reads none of them.
    """
    ours: list[float] = []
    plain: list[float] = []
    peer: list[float] = []
    ledger: list[float] = []
    with local_services() as env:
        service = BlobServiceClient.from_connection_string(storage_connection_string(env))
        container = service.get_container_client("runs")
        _fill(container)
        for _ in range(ROUNDS):
            plain.append(_ps(env, "ps", rows=20))
            ours.append(_ps(env, "ps", "-a", rows=RUNS))
            peer.append(_raw_listing(container))
            ledger.append(_ledger(env))
    return [
        _ratio(f"ps -a, {RUNS} runs", ours, peer),
        _ratio(f"ps, {RUNS} runs", plain, peer),
        _ratio(f"the ledger of {RUNS} runs, without process start", ledger, peer, LEDGER_BOUND_S),
    ]


def _ratio(name: str, ours: list[float], peer: list[float], bound_s: float = BOUND_S) -> Ratio:
    mine, theirs = sorted(ours)[ROUNDS // 2], sorted(peer)[ROUNDS // 2]
    bound = f"< {bound_s:g} s"
    return Ratio(name, "s", mine, "SDK lists all blobs", theirs, bound, mine < bound_s)


def _ledger(env: dict[str, str]) -> float:
    """Collect and price all runs, as `runner cost` does."""
    home = Path(env["RUNNER_HOME"])
    connection = connect(load_settings({"target": "local"}, cwd=home, env=env))
    query = CostQuery(vm_size="Standard_NC16as_T4_v3", region="swedencentral")
    start = time.perf_counter()
    report = report_costs(connection, query, home)
    took = time.perf_counter() - start
    over = RUNS - UNFINISHED
    if report.total.ms["useful"] != over * 61_000 or report.total.total_micro is None:
        raise RuntimeError(f"the ledger has {report.total}")
    return took


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
    """Write the blobs of runs, as client and agent do."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(_make_run, container), range(RUNS)))


def _make_run(container: ContainerClient, number: int) -> None:
    created = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=number)
    run_id = f"mnist-{created:%Y%m%d-%H%M%S}-{number % 10}abc"
    run, result = run_document(run_id, created), result_document(run_id, created)
    over = number < RUNS - UNFINISHED
    documents: dict[str, Any] = {
        "run.json": run,
        "attempts/1/start.json": {
            "attempt": 1,
            "node": f"tvm-{number}",
            "started": result["started"],
            "node_times": {"created": result["started"]},
        },
        "attempts/1/events.jsonl": {
            "stage": "command",
            "state": "start",
            "time": result["started"],
        },
        "logs/stdout.txt": "epoch 1/8",
        "metrics.jsonl": {"name": "loss", "value": 0.1, "step": 1},
    }
    if over:
        documents |= {"result.json": result, "output/model.keras": "model"}
    for name, document in documents.items():
        container.upload_blob(f"{run_id}/{name}", json.dumps(document))
    found = {f"{run_id}/{name}": json.dumps(each).encode() for name, each in documents.items()}
    usage = load_usage(found.get, run_id, nodes=1, status="succeeded", ended=result["ended"])
    metadata = index_metadata(run, result if over else None, usage_to_json(usage) if over else None)
    container.upload_blob(index_blob(run_id), b"", metadata=metadata)


def run_document(run_id: str, created: datetime) -> dict[str, Any]:
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


def result_document(run_id: str, created: datetime) -> dict[str, Any]:
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
