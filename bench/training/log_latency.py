"""Time from printing a line in the script on the node to its display on the terminal."""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.report import Ratio, percentile
from bench.services import RUNNER, local_services

LINES = 60
SCRIPT = f"""
import random, time
random.seed(7)
for n in range({LINES}):
    print("at", time.time(), flush=True)
    time.sleep(random.uniform(0.02, 0.4))
"""


def measure() -> list[Ratio]:
    """Return p50 and p95. The peer reads the same script through a pipe, without a service."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "chatty.py")
        script.write_text(SCRIPT)
        train = [RUNNER, "train", str(script), "--no-download"]
        with local_services() as env, ThreadPoolExecutor() as pool:  # both mostly sleep
            peer = pool.submit(latencies, ["python3", str(script)], None, folder)
            ours = latencies(train, env, folder)
            pipe = peer.result()
    return [
        Ratio(
            f"line to terminal, p{p}",
            "s",
            percentile(ours, p),
            "plain pipe",
            percentile(pipe, p),
            bound,
            met,
        )
        for p, bound, met in (
            (50, "-", None),
            (95, "<= 1 s", percentile(ours, 95) <= 1.0),
        )
    ]


def latencies(command: list[str], env: dict[str, str] | None, cwd: str) -> list[float]:
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    seen = [
        time.time() - float(line.split()[1]) for line in process.stdout if line.startswith("at ")
    ]
    if process.wait() != 0 or len(seen) != LINES:
        raise RuntimeError(f"{command} exited {process.returncode} after {len(seen)} lines")
    return seen
