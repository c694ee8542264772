"""`runner why` about a failed run and its pool, against the imports that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import Ratio
from bench.services import RUNNER, local_services

ROUNDS = 5
BOUND_S = 2.0  # beyond the import
_IMPORTS = "import typer, azure.batch, azure.batch.models, azure.storage.blob"


def measure() -> list[Ratio]:
    """Return medians of interleaved rounds, including the start of the process."""
    run: list[float] = []
    pool: list[float] = []
    peer: list[float] = []
    with local_services() as env, tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("print('epoch 1')\nprint(1 / 0)\n", encoding="utf-8")
        subprocess.run(
            [RUNNER, "train", folder], env=env, cwd=folder, check=False, capture_output=True
        )
        for _ in range(ROUNDS):
            run.append(_why(env, folder, "@last", "ScriptError"))
            pool.append(_why(env, folder, "local", None))
            peer.append(_timed([sys.executable, "-c", _IMPORTS], env, folder)[0])
    return [_ratio("why, a failed run", run, peer), _ratio("why, a pool", pool, peer)]


def _ratio(name: str, ours: list[float], peer: list[float]) -> Ratio:
    mine, theirs = sorted(ours)[ROUNDS // 2], sorted(peer)[ROUNDS // 2]
    met = mine - theirs < BOUND_S
    return Ratio(name, "s", mine, "importing the SDKs", theirs, f"< {BOUND_S:g} s more", met)


def _why(env: dict[str, str], folder: str, subject: str, cause: str | None) -> float:
    took, said = _timed([RUNNER, "why", subject, "-o", "json"], env, folder)
    found: dict[str, Any] = json.loads(said)
    if found["cause"] != cause:
        raise RuntimeError(f"why {subject} says {found['cause']}, not {cause}")
    return took


def _timed(words: list[str], env: dict[str, str], folder: str) -> tuple[float, bytes]:
    start = time.perf_counter()
    done = subprocess.run(words, env=env, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start, done.stdout
