"""The cost of checkpoints during training, and the time to resume after an eviction."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.report import Ratio
from bench.services import RUNNER, local_services

SIZE_MB = 50
EVERY_S = 10.0
PERIOD_S = 3.0  # short, so that the average evens out other load of the machine
PAIRS = 7
# Periods with and without checkpoints alternate in one process. Both write weights of the same
# size, but only weights in the checkpoint folder are committed. Each period does as much work as
# it can; other load of the machine affects adjacent periods equally.
TRAINING = f"""
import json, os, time
folders = [os.environ["RUNNER_CHECKPOINT_DIR"], os.environ["RUNNER_CHECKPOINT_DIR"] + ".other"]
os.makedirs(folders[1], exist_ok=True)
weights = bytearray(os.urandom({SIZE_MB} * 10**6))
done = []
until = time.perf_counter()
for period in range(2 * {PAIRS} + 2):
    until += {PERIOD_S}
    began, work = time.perf_counter(), 0
    weights[:8] = period.to_bytes(8, "big")
    path = os.path.join(folders[period % 2], "weights")
    with open(path + ".new", "wb") as out:
        out.write(weights)
    os.replace(path + ".new", path)
    while time.perf_counter() < until:
        sum(range(20_000))
        work += 1
    done.append(work / (time.perf_counter() - began))
with open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], "done.json"), "w") as out:
    json.dump(done[2:], out)  # the first two are for warming up
"""
RECIPE = "checkpoints: {interval: 1s}\n"  # short, so that each changed folder is committed
# A script that counts, and prints when it continues.
COUNTING = """
import os, time
path = os.path.join(os.environ["RUNNER_CHECKPOINT_DIR"], "counter")
number = int(open(path).read()) if os.path.exists(path) else 0
print("from", number, time.time(), flush=True)
until = time.time() + (3 if number else 60)
while time.time() < until:
    number += 1
    open(path + ".new", "w").write(str(number))
    os.replace(path + ".new", path)
    time.sleep(0.1)
"""

# Including bytecode, these are as many files and folders as in the environment of
# `runner train mnist` (Keras, JAX, NumPy, SciPy: 8,695 files in 1,055 folders).
FOLDERS = 520
MODULES_EACH = 8
MODULE = "import math\n\ndef area(radius):\n    return math.pi * radius ** 2\n"


def measure() -> Iterator[Ratio]:
    """Yield the cost of a checkpoint every ten seconds, and the time to resume."""
    with tempfile.TemporaryDirectory() as folder, local_services() as env:
        lost_s = _lost_by_commit(Path(folder, "cost"), env)
        yield Ratio(
            f"training time with {SIZE_MB} MB checkpoints every 10 s", "s", EVERY_S + lost_s,
            "without", EVERY_S, "<= 1.03x", lost_s / EVERY_S <= 0.03,
        )  # fmt: skip
        bare_s = _resumed_after(Path(folder, "evicted"), env)
        yield Ratio(
            "training goes on after the evicted node is idle, no requirements", "s", bare_s,
            "bound", 5.0, "<= 5 s", bare_s <= 5.0,
        )  # fmt: skip
        packed_s = _resumed_after(Path(folder, "packages"), env, packages=True)
        yield Ratio(
            "the same, warm environment of 8,700 files", "s", packed_s,
            "bound", 5.0, "<= 5 s", packed_s <= 5.0,
        )  # fmt: skip


def _lost_by_commit(folder: Path, env: dict[str, str]) -> float:
    """Return the seconds of training that one commit costs."""
    _write(folder, TRAINING)
    result = json.loads(_runner(["train", str(folder), "-o", "json"], env, folder))
    done: list[float] = json.loads(Path(result["output_dir"], "done.json").read_text())
    committed = result["checkpoint"]["committed"]
    if committed < PAIRS * 3 // 4:
        raise RuntimeError(f"only {committed} of {PAIRS + 1} checkpoints were committed in time")
    pairs = zip(done[::2], done[1::2], strict=True)
    return statistics.median(1 - with_ / without for with_, without in pairs) * PERIOD_S


def _resumed_after(folder: Path, env: dict[str, str], *, packages: bool = False) -> float:
    """Return the seconds from the idle node to the resumed script, in an existing environment."""
    _write(folder, f"import bench_many.part1.module1\n{COUNTING}" if packages else COUNTING)
    if packages:
        (folder / "requirements.txt").write_text(f"./{_write_wheel(folder)}\n")
        with (folder / "train.yaml").open("a") as recipe:
            recipe.write("requirements: requirements.txt\n")
    training = subprocess.Popen(
        [RUNNER, "train", str(folder), "--no-download"],
        env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert training.stdout is not None
    resumed_at = 0.0
    for line in training.stdout:
        word, _, rest = line.partition(" ")
        if word == "from" and rest.startswith("0 "):
            time.sleep(3)  # long enough for some checkpoints
            words = ["local", "evict", "--notice", "0", "--away", "2"]
            _runner(words, env, folder)
        elif word == "from":
            resumed_at = float(rest.split()[1])
    if training.wait() != 0 or not resumed_at:
        raise RuntimeError("the run did not go on after the eviction")
    return resumed_at - max(at for at in _idle_times(env, folder) if at < resumed_at)


def _idle_times(env: dict[str, str], cwd: Path) -> list[float]:
    """Return the times when nodes became idle, in seconds since the epoch."""
    exports = _runner(["local", "env"], env, cwd).splitlines()
    words = [shlex.split(line)[-1].partition("=") for line in exports if "=" in line]
    values = {name: value for name, _, value in words}
    request = urllib.request.Request(
        f"{values['AZURE_BATCH_ENDPOINT']}/_emulator/events",
        headers={"Authorization": f"Bearer {values['AZURE_BATCH_ACCESS_KEY']}"},
    )
    with urllib.request.urlopen(request) as answer:
        events: list[dict[str, Any]] = json.load(answer)["value"]
    return [
        datetime.fromisoformat(event["at"]).timestamp()
        for event in events
        if (event["kind"], event["value"]) == ("node.state", "idle")
    ]


def _write(folder: Path, script: str) -> None:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    (folder / "train.yaml").write_text(RECIPE)


def _write_wheel(folder: Path) -> str:
    """Write a wheel of many small modules, so that no network is needed. Return its file name."""
    name, tag = "bench_many-1.0", "py3-none-any"
    about = f"{name}.dist-info"
    files = {
        f"bench_many/part{part}/{module}.py": MODULE
        for part in range(FOLDERS)
        for module in ("__init__", *(f"module{number}" for number in range(1, MODULES_EACH)))
    }
    files["bench_many/__init__.py"] = ""
    files[f"{about}/METADATA"] = "Metadata-Version: 2.1\nName: bench-many\nVersion: 1.0\n"
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    wheel = folder / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel.name


def _runner(words: list[str], env: dict[str, str], cwd: Path) -> str:
    command = [RUNNER, *words]
    return subprocess.run(
        command, env=env, cwd=cwd, check=True, capture_output=True, text=True
    ).stdout
