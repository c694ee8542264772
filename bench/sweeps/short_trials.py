"""Short trials: 1,000 that do nothing, in tasks of their own and in shared tasks.

The peer is Optuna with subprocesses, or one subprocess per trial without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.report import Ratio
from bench.services import RUNNER, local_services

TRIALS = int(os.environ.get("BENCH_SHORT_TRIALS", "1000"))
SEPARATE = 100  # trials in tasks of their own
PER_TASK = 50
SLOTS = 2
BOUND_S = 0.06
SCRIPT = "import sys\nprint('loss: 0.5')\n"


def measure() -> Iterator[Ratio]:
    """Yield the seconds per trial, from the start of the client to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        with local_services(nodes=1, slots=SLOTS) as env:
            _sweep(env, folder, SLOTS, 1)  # builds the environment of the node
            separate = _sweep(env, folder, SEPARATE, 1)
            shared = _sweep(env, folder, TRIALS, PER_TASK)
        peer_name, peer = _peer(folder)
    busy = f"load {os.getloadavg()[0]:.1f}"
    what = f"a trial of {TRIALS:,} that do nothing, {PER_TASK} in a task, {busy}"
    yield Ratio(
        what, "s", shared, f"a task for each of {SEPARATE}", separate,
        f"<= {BOUND_S} s", shared <= BOUND_S,
    )  # fmt: skip
    yield Ratio(what, "s", shared, peer_name, peer, "", None)


def _sweep(env: dict[str, str], folder: Path, trials: int, per_task: int) -> float:
    """Return the seconds per trial of a sweep. Raise RuntimeError unless each ran once."""
    words = [RUNNER, "sweep", "start", "train.py", "-p", f"n={{range: [1, {trials}]}}"]
    words += ["--trials-per-task", str(per_task), "-o", "json"]
    start = time.perf_counter()
    done = subprocess.run(words, env=env, cwd=folder, check=True, capture_output=True)
    took = time.perf_counter() - start
    found = json.loads(done.stdout)["trials"]
    if len(found) != trials or {each["attempts"] for each in found} != {1}:
        raise RuntimeError("a trial did not run once")
    return took / trials


def _peer(folder: Path) -> tuple[str, float]:
    """Return the peer, and its seconds per trial."""

    def run(number: int) -> float:
        command = [sys.executable, "train.py", "--n", str(number)]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return float(done.stdout.rpartition(" ")[2])

    start = time.perf_counter()
    if importlib.util.find_spec("optuna") is None:
        with ThreadPoolExecutor(SLOTS) as pool:
            list(pool.map(run, range(SEPARATE)))
        return f"{SLOTS} subprocesses at once", (time.perf_counter() - start) / SEPARATE
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    def objective(trial: Any) -> float:
        return run(trial.suggest_int("n", 0, SEPARATE))

    study.optimize(objective, n_trials=SEPARATE, n_jobs=SLOTS)
    return f"Optuna, {SLOTS} subprocesses", (time.perf_counter() - start) / SEPARATE
