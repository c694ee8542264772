"""Evictions and kills of real runs: the weights at the end are those of a run nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import runner
from runner.core.settings import load_settings
from runner.flows.local.evict import evict
from runner.protocol.errors import RunnerError
from tests.e2e.conftest import KEPT, Cli, until
from tests.proof.killing import TRAINER, starts, uninterrupted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("PROOF_SEED", "20261121"))
EVICTIONS = 50
STEPS = 1500
_RECIPE = """
name: proof
command: [python, train.py, hook, "{steps}", "0.02"]
env: {{PROOF_DIR: "{proof}"}}
outputs: [weights]
checkpoints: {{interval: 1s, keep: 3}}
"""
_SAME = """
import sys, h5py, numpy
def arrays(path):
    found = {}
    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = numpy.array(item)
    with h5py.File(path) as source:
        source.visititems(visit)
    return found
one, other = arrays(sys.argv[1]), arrays(sys.argv[2])
assert len(one) > 10 and one.keys() == other.keys(), (one.keys(), other.keys())
print([name for name in one if one[name].tobytes() != other[name].tobytes()])
"""


def ended(cli: Cli, run_id: str, timeout_s: float) -> dict[str, Any]:
    """The run as `runner show` tells it, once it is over."""

    def over() -> dict[str, Any] | None:
        shown = cli.json("show", run_id)
        return shown if shown["result"] else None

    found = until(over, timeout_s=timeout_s, every_s=1.0)
    assert found is not None
    return found


def evict_now(cli: Cli, node: str, notice_s: float, away_s: float) -> bool:
    """Whether the node could be evicted."""
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    with suppress(RunnerError):
        evict(settings, node=node, notice_s=notice_s, away_s=away_s)
        return True
    return False


@pytest.mark.feature(33)
def test_a_run_whose_node_is_evicted_fifty_times_ends_with_the_same_weights(
    own_cli: Cli, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    (proof := tmp_path / "proof").mkdir()
    (folder := tmp_path / "recipe").mkdir()
    shutil.copyfile(TRAINER, folder / "train.py")
    (folder / "train.yaml").write_text(_RECIPE.format(steps=STEPS, proof=proof))
    own_cli.ok("local", "up", "--nodes", "2", "--slots", "1")
    run_id = own_cli.json("train", folder, "--detach")["run_id"]
    evicted: list[int] = []
    while len(evicted) < EVICTIONS:
        last = evicted[-1] if evicted else 0
        until(lambda last=last: starts(proof)[-1:] and starts(proof)[-1][0] > last, timeout_s=90)
        attempt, _, node = starts(proof)[-1]
        time.sleep(chance.uniform(0, 2))
        notice_s = chance.choice([0, 0, 0.5, 1.0])
        if evict_now(own_cli, node, notice_s, away_s=0.5):
            evicted.append(attempt)
    (proof / "gate").touch()
    shown = ended(own_cli, run_id, timeout_s=180)
    told = f"seed {SEED}: evicted {evicted}, starts {starts(proof)}"
    assert shown["state"] == "succeeded", told
    assert not (proof / "torn").exists(), told
    steps = [step for _, step, _ in starts(proof)]
    assert (steps == sorted(steps), steps[-1] > 0) == (True, True), told
    last = shown["result"]["attempt"]
    assert [each["attempt"] for each in shown["attempts"]] == list(range(1, last + 1)), told
    assert last > EVICTIONS, told
    own_cli.ok("files", "get", run_id, "weights", "--output-dir", tmp_path / "got")
    [weights] = (tmp_path / "got").rglob("weights")
    assert weights.read_bytes() == uninterrupted(tmp_path / "reference", STEPS), told


def mnist_recipe(folder: Path) -> Path:
    """The built-in one, that may be killed and looks after itself every second."""
    source = Path(runner.__file__).parent / "recipes" / "mnist"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "train.yaml").open("a") as out:
        out.write("\nretries: 20\ncheckpoints: {interval: 1s}\n")
    return folder


@dataclass(frozen=True)
class Script:
    """The training's process, and where it saves."""

    process: psutil.Process
    folder: Path

    def states(self) -> set[str]:
        """Names of what is saved."""
        return {path.name for path in self.folder.glob("keras-*")}


def script_of(run_id: str, others: set[int]) -> Script | None:
    """The training that runs, another process than these."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ() if process.cmdline()[1:2] == ["train.py"] else {}
            if environment.get("RUNNER_RUN_ID") == run_id and process.pid not in others:
                return Script(process, Path(environment["RUNNER_CHECKPOINT_DIR"]))
    return None


def test_mnist_killed_in_the_middle_ends_with_the_same_weights(
    own_cli: Cli, mnist: Path, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    folder = mnist_recipe(tmp_path / "mnist")
    sets = ("--data", mnist, "--set", "subset=20000", "--set", "epochs=10")
    own_cli.ok("train", folder, *sets, "--output-dir", tmp_path / "calm")
    run_id = own_cli.json("train", folder, *sets, "--detach")["run_id"]
    killed: set[int] = set()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        script = until(lambda: script_of(run_id, killed), timeout_s=120)
        assert script is not None
        before = script.states()
        until(lambda script=script, before=before: script.states() - before, timeout_s=120)
        time.sleep(chance.uniform(0, 2))
        script.process.send_signal(number)
        killed.add(script.process.pid)
    shown = ended(own_cli, run_id, timeout_s=240)
    told = json.dumps(shown["attempts"])
    assert (shown["state"], len(shown["attempts"])) == ("succeeded", 6), told
    own_cli.ok("files", "get", run_id, "model.weights.h5", "--output-dir", tmp_path / "killed")
    [calm], [other] = (list((tmp_path / d).rglob("*.weights.h5")) for d in ("calm", "killed"))
    python = next(
        path
        for path in (KEPT / "cache" / "envs").glob("*/bin/python")
        if next(path.parents[1].glob("lib/python*/site-packages/h5py"), None)
    )
    done = subprocess.run(
        [str(python), "-c", _SAME, str(calm), str(other)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), f"{told}\n{done.stderr}"
