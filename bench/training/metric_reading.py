"""The time of a run whose metrics are read, against the same run without reading."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from bench.report import Ratio
from bench.services import RUNNER, local_services

RUNS = 5  # of each kind, in turn; the fastest counts
STEPS = 2000
MOST = 1.03
# Each step computes for some milliseconds, prints its values and a progress bar, and writes the
# values to a CSV file and to an event file of TensorBoard.
SCRIPT = """
import hashlib, os, struct, sys, time

STEPS = {steps}


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def event(tag, value, step):
    varint = bytes([step & 127 | 128, step >> 7])
    summary = field(1, field(1, tag.encode()) + bytes([21]) + struct.pack("<f", value))
    content = bytes([16]) + varint + field(5, summary)
    size = struct.pack("<Q", len(content))
    return size + struct.pack("<I", masked_crc(size)) + content + bytes(4)


block = bytes(1 << 20)
os.makedirs("logs", exist_ok=True)
began = time.perf_counter()
with open("logs/metrics.csv", "w", buffering=1) as table, open(
    "logs/events.out.tfevents.1", "wb", buffering=0
) as events:
    table.write("step,train_loss,train_acc,lr\\n")
    for step in range(STEPS):
        for _ in range(8):
            hashlib.sha256(block).digest()
        loss, acc = 1 / (step + 1), step / STEPS
        print(f"step {{step}}/{{STEPS}} - train loss: {{loss:.5f}}, acc: {{acc:.4f}}, lr: 0.1")
        share = f"{{step * 100 // STEPS}}%|##| {{step}}/{{STEPS}} [00:01<00:02, 9it/s, "
        bar = f"{{share}}loss={{loss:.4f}}]"
        print(bar, end="\\r", file=sys.stderr, flush=True)
        table.write(f"{{step}},{{loss}},{{acc}},0.1\\n")
        for name in ("loss/a", "loss/b", "accuracy/c", "lr"):
            events.write(event(name, loss, step))
print("computed for", time.perf_counter() - began, "s")
"""
# The agent reads no metrics of a script that names its metrics file.
WITHOUT = "# This script does not write to RUNNER_METRICS_FILE.\n"


def measure() -> list[Ratio]:
    """Return the times that the runs took on their node, from their start to their result."""
    with tempfile.TemporaryDirectory() as folder, local_services() as env:
        text = SCRIPT.format(steps=STEPS)
        scripts = {True: Path(folder, "reading.py"), False: Path(folder, "without.py")}
        scripts[True].write_text(text)
        scripts[False].write_text(WITHOUT + text)
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(RUNS):
            for reads, script in scripts.items():
                took_s, metrics = _run(script, env)
                if (metrics > 0) != reads:
                    raise RuntimeError(f"{script.name} has {metrics} metrics")
                found[reads].append(took_s)
    ours, peer = min(found[True]), min(found[False])
    return [
        Ratio(
            "run whose metrics are read from output and files",
            "s",
            ours,
            "the same run without reading",
            peer,
            f"<= {MOST}x",
            ours <= MOST * peer,
        )
    ]


def _run(script: Path, env: dict[str, str]) -> tuple[float, int]:
    """Return how long a run took on its node in seconds, and the number of its metrics."""
    subprocess.run(
        [RUNNER, "train", str(script), "--no-download"], env=env, check=True, capture_output=True
    )
    text = subprocess.run(
        [RUNNER, "show", "@last", "-o", "json"], env=env, check=True, capture_output=True
    ).stdout
    shown = json.loads(text)
    [attempt] = shown["attempts"]
    return float(attempt["took_s"]), len(shown["metrics"])
