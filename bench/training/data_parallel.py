"""Data-parallel MNIST on two nodes of one core each against one node, through `launcher: mpi`.

The two nodes share this machine, so the result is the speed-up with two cores. Communication of the
nodes and other processes keep it below 2. The script measures the times, which exclude the
preparation of the nodes.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.report import Ratio
from bench.services import RUNNER, local_services
from bench.training.digits import find_digits, title

ROUNDS = 2
MIN_SPEEDUP = 1.6
SCRIPT = """
import gzip, os, pathlib, time
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
data = pathlib.Path(os.environ["RUNNER_INPUT_DIGITS"])
def read(name, offset):
    raw = gzip.decompress((data / name).read_bytes())
    return np.frombuffer(raw, np.uint8, offset=offset)
images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32) / 255
labels = read("train-labels-idx1-ubyte.gz", 8)
# A smaller data set is repeated, so that an epoch has as many steps as with MNIST.
images, labels = np.resize(images, (60000, 784)), np.resize(labels, 60000)
rng = np.random.default_rng(0)
shapes = [(784, 512), (512,), (512, 10), (10,)]
w = [rng.normal(0, (2 / s[0]) ** 0.5, s) if len(s) > 1 else np.zeros(s) for s in shapes]
w = [each.astype(np.float32) for each in w]
BATCH, EPOCHS = 3000, 3
def step(x, y):
    hidden = np.maximum(x @ w[0] + w[1], 0)
    logits = hidden @ w[2] + w[3]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= BATCH
    back = (p @ w[2].T) * (hidden > 0)
    return [x.T @ back, back.sum(0), hidden.T @ p, p.sum(0)]
world.Barrier()
begin, cpu, exchange = time.perf_counter(), time.process_time(), 0.0
for epoch in range(EPOCHS):
    order = np.random.default_rng(epoch).permutation(len(images))
    for first in range(0, len(order), BATCH):
        mine = order[first : first + BATCH][world.rank :: world.size]
        for weight, gradient in zip(w, step(images[mine], labels[mine])):
            total = np.empty_like(gradient)
            asked = time.perf_counter()
            world.Allreduce(np.ascontiguousarray(gradient), total)
            exchange += time.perf_counter() - asked
            weight -= 0.5 * total
took = time.perf_counter() - begin
core = world.allreduce((time.process_time() - cpu) / took) / world.size
if world.rank == 0:
    hidden = np.maximum(images[:5000] @ w[0] + w[1], 0)
    right = ((hidden @ w[2] + w[3]).argmax(1) == labels[:5000]).mean()
    print(f"took={took:.4f} accuracy={right:.4f} processes={world.size}",
          f"exchange={exchange / took:.3f} core={core:.3f}", flush=True)
"""
RECIPE = """\
command: python train.py
launcher: mpi
env: {OMP_NUM_THREADS: "1", OPENBLAS_NUM_THREADS: "1"}
inputs: {digits: DATA}
"""


def measure() -> list[Ratio]:
    """Return the speed-up; runs on two nodes and on one node alternate."""
    digits = find_digits()
    took: dict[int, list[float]] = {2: [], 1: []}
    why = ""
    with tempfile.TemporaryDirectory() as folder, local_services(nodes=2) as env:
        Path(folder, "train.py").write_text(SCRIPT)
        Path(folder, "requirements.txt").write_text("openmpi\nmpi4py\nnumpy\n")
        Path(folder, "train.yaml").write_text(
            RECIPE.replace("DATA", json.dumps(str(digits.folder)))
        )
        for _ in range(ROUNDS):
            for nodes, seconds in took.items():
                seconds_of_run, shares = _train(env, folder, nodes)
                seconds.append(seconds_of_run)
                why = shares if nodes > 1 else why
    ours, peer = statistics.median(took[1]), statistics.median(took[2])
    return [
        Ratio(f"data-parallel {title(digits)} on one node, against two", "s", ours,
              f"two nodes, {why}", peer, f">= {MIN_SPEEDUP}x", ours / peer >= MIN_SPEEDUP)
    ]  # fmt: skip


def _train(env: dict[str, str], folder: str, nodes: int) -> tuple[float, str]:
    """Return the seconds of the training loop, and their shares. The training must succeed."""
    train = [RUNNER, "train", ".", "--nodes", str(nodes), "--no-download", "-o", "json"]
    done = subprocess.run(train, env=env, cwd=folder, check=True, capture_output=True, text=True)
    run_id = str(json.loads(done.stdout)["run_id"])
    log = subprocess.run(
        [RUNNER, "logs", run_id], env=env, check=True, capture_output=True, text=True
    ).stdout
    found = re.search(
        r"took=([\d.]+) accuracy=([\d.]+) processes=(\d+) exchange=([\d.]+) core=([\d.]+)", log
    )
    if found is None or int(found[3]) != nodes or float(found[2]) < 0.9:
        raise RuntimeError(f"the training on {nodes} nodes printed {log!r}")
    exchange, core = (f"{100 * float(found[number]):.0f} %" for number in (4, 5))
    return float(found[1]), f"{exchange} exchange, {core} of a core each"
