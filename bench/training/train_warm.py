"""A warm `runner train mnist` against the bare script in the environment that the node built."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from bench.report import Ratio
from bench.services import RUNNER, local_services
from bench.training.digits import find_digits, title

SUBSET = 8000
RECIPE = Path(__file__).parents[2] / "runner" / "recipes" / "mnist"


def measure() -> list[Ratio]:
    """Return the times of alternating runs, after one that builds the environment."""
    digits = find_digits()
    with tempfile.TemporaryDirectory() as folder, local_services() as env:
        train = [RUNNER, "train", "mnist", "--set", f"subset={SUBSET}", "-o", "json"]
        train += ["--data", str(digits.folder)]
        _timed([*train, "--set", "epochs=1"], env, folder)
        python = _environment_python(Path(env["RUNNER_HOME"]))
        ours: list[float] = []
        peer: list[float] = []
        for _ in range(2):
            ours.append(_timed(train, env, folder))
            peer.append(_bare(python, digits.folder, folder))
    best, bare = min(ours), min(peer)
    return [
        Ratio(f"train mnist, warm (subset={SUBSET} of {title(digits)})", "s", best,
              "python train.py", bare, "<= 1.15x + 3 s", best <= 1.15 * bare + 3.0)
    ]  # fmt: skip


def _environment_python(home: Path) -> Path:
    found = sorted(home.glob("**/envs/*/bin/python"))
    if len(found) != 1:
        raise RuntimeError(f"expected the one environment of the node, found {found}")
    return found[0]


def _bare(python: Path, data: Path, folder: str) -> float:
    out = Path(tempfile.mkdtemp(dir=folder))
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RUNNER_")},
        "RUNNER_DATA_DIR": str(data),
        "RUNNER_OUTPUT_DIR": str(out),
        "RUNNER_METRICS_FILE": str(out / "metrics.jsonl"),
    }
    script = [str(python), str(RECIPE / "train.py"), "--subset", str(SUBSET)]
    return _timed(script, env, folder)


def _timed(command: list[str], env: dict[str, str], cwd: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=env, cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - start
