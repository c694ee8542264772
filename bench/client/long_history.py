"""Commands over the runs of a year, against listing the container once with the SDK.

`make bench ARGS="long_history --runs 50000"` measures the history of the table in
docs/benchmarks.md; the default is smaller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from azure.storage.blob import BlobServiceClient, ContainerClient

from bench.client.synthetic_runs import seed
from bench.report import Ratio
from bench.services import RUNNER, local_services, storage_connection_string

_RUNS = 2000
_POINTS = 1_000_000
_RAW = "SDK lists all blobs"
_LAUNCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def measure() -> Iterator[Ratio]:
    """Yield the wall times of commands, including the start of the process, and their memory."""
    count = int(os.environ.get("BENCH_RUNS", _RUNS))
    with local_services() as env:
        home = Path(env["RUNNER_HOME"])
        subprocess.run([RUNNER, "local", "down"], env=env, check=True, capture_output=True)
        seed(home, count, datetime.now(UTC))
        subprocess.run([RUNNER, "local", "up"], env=env, check=True, capture_output=True)
        service = BlobServiceClient.from_connection_string(storage_connection_string(env))
        container = service.get_container_client("runs")
        raw = _raw_listing(container)
        for name, words, bound_s in (
            ("ps", ("ps",), 1.0),
            ("show @last", ("show", "@last", "-o", "json"), 1.0),
            ("cost --since 30d", ("cost", "--since", "30d", "-o", "json"), 3.0),
            ("ps -a -o json", ("ps", "-a", "-o", "json"), None),
        ):
            took, _ = _run(env, *words)
            met = None if bound_s is None else took < bound_s
            bound = "" if bound_s is None else f"< {bound_s:g} s"
            yield Ratio(f"{name}, {count} runs", "s", took, _RAW, raw, bound, met)
        took, _ = _run(env, "rm", "--older-than", "300d", "--dry-run", "-o", "json")
        name = f"rm --older-than, dry run, {count} runs"
        yield Ratio(name, "s", took, _RAW, raw, "ratio < 1.5", took < 1.5 * raw)
        took, _ = _run(env, "rm", _old_run(env), "--yes", "-o", "json")
        yield Ratio(f"rm RUN, {count} runs", "s", took, _RAW, raw, "< 1 s", took < 1.0)
        _, memory = _run(env, "ps", "-a")
        yield _memory(f"memory of ps -a, {count} runs", memory, 200)
        run_id = _old_run(env)
        _write_points(container, run_id)
        for words in (("show", run_id), ("metrics", run_id)):
            _, memory = _run(env, *words)
            yield _memory(f"memory of {words[0]}, {_POINTS} points", memory, 150)


def _memory(name: str, megabytes: float, most: int) -> Ratio:
    bound = f"< {most} MB"
    _, start = _run(dict(os.environ), "version")
    return Ratio(name, "MB", megabytes, "runner version", start, bound, megabytes < most)


def _run(env: dict[str, str], *words: str) -> tuple[float, float]:
    """Return the seconds and the largest memory in MB of a command that succeeds."""
    # A process begins with the memory of the one that starts it, so a small one does.
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, RUNNER, *words],
        env=env, cwd=tempfile.gettempdir(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    took = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    return took, int(done.stdout) * unit / 1e6


def _raw_listing(container: ContainerClient) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in container.list_blobs())
    if not count:
        raise RuntimeError("no blobs are listed")
    return time.perf_counter() - start


def _old_run(env: dict[str, str]) -> str:
    words = (RUNNER, "ps", "-o", "json", "--status", "succeeded", "-n", "100")
    done = subprocess.run(words, env=env, check=True, capture_output=True)
    return str(json.loads(done.stdout)[-1]["run_id"])


def _write_points(container: ContainerClient, run_id: str) -> None:
    def lines() -> Iterator[bytes]:
        for first in range(0, _POINTS, 10_000):
            part = (
                {"time": "2026-11-29T01:02:03.123456+00:00", "attempt": 1, "step": step,
                 "name": "loss", "value": 1 / (step + 1)}
                for step in range(first, first + 10_000)
            )  # fmt: skip
            yield "".join(f"{json.dumps(one)}\n" for one in part).encode()

    container.upload_blob(f"{run_id}/metrics.jsonl", lines(), overwrite=True)
