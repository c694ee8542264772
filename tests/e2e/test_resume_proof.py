"""Evictions and kills of real runs: the final weights equal those of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
import pytest

import runner
from runner.azure.faults import SERVICES_DOWN
from runner.core.settings import load_settings
from runner.flows.local.evict import evict
from runner.protocol.errors import RunnerError
from tests.e2e.conftest import KEPT, Cli, until
from tests.proof.killing import TRAINER, starts, uninterrupted

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("PROOF_SEED", "20261121"))
EVICTIONS = int(os.environ.get("PROOF_EVICTIONS", "10"))
STORAGE_KILLS = int(os.environ.get("PROOF_STORAGE_KILLS", "3"))
MNIST_KILLS = int(os.environ.get("PROOF_MNIST_KILLS", "3"))
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
    """Return the output of `runner show` about the run, once it has ended."""

    def over() -> dict[str, Any] | None:
        shown = cli.json("show", run_id)
        return shown if shown["result"] else None

    found = until(over, timeout_s=timeout_s, every_s=1.0)
    assert found is not None
    return found


def evict_now(cli: Cli, node: str, notice_s: float, away_s: float) -> bool:
    """Evict the node. Return True if that was possible."""
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    with suppress(RunnerError):
        evict(settings, node=node, notice_s=notice_s, away_s=away_s)
        return True
    return False


@pytest.mark.feature(33)
def test_run_evicted_many_times_ends_with_the_same_weights(own_cli: Cli, tmp_path: Path) -> None:
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
        until(lambda last=last: starts(proof)[-1:] and starts(proof)[-1][0] > last)
        attempt, _, node = starts(proof)[-1]
        time.sleep(chance.uniform(0, 2))
        if len(evicted) == EVICTIONS - 1:  # on a slow machine, all others may come before a commit
            until(lambda: own_cli.json("files", "ls", run_id, "--checkpoints"))
        notice_s = chance.choice([0, 0, 0.5, 1.0])
        if evict_now(own_cli, node, notice_s, away_s=0.5):
            evicted.append(attempt)
    (proof / "gate").touch()
    shown = ended(own_cli, run_id, timeout_s=600)
    context = f"seed {SEED}: evicted {evicted}, starts {starts(proof)}"
    assert shown["state"] == "succeeded", context
    assert not (proof / "torn").exists(), context
    steps = [step for _, step, _ in starts(proof)]
    assert (steps == sorted(steps), steps[-1] > 0) == (True, True), context
    last = shown["result"]["attempt"]
    assert [each["attempt"] for each in shown["attempts"]] == list(range(1, last + 1)), context
    assert last > EVICTIONS, context
    own_cli.ok("files", "get", run_id, "weights", "--output-dir", tmp_path / "got")
    [weights] = (tmp_path / "got").rglob("weights")
    assert weights.read_bytes() == uninterrupted(tmp_path / "reference", STEPS), context


def mnist_recipe(folder: Path) -> Path:
    """Return the built-in recipe with more retries and a checkpoint every second."""
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
        """Return the names of the saved states."""
        return {path.name for path in self.folder.glob("keras-*")}


def script_of(run_id: str, others: set[int]) -> Script | None:
    """Return the process of the training, once it differs from these."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ() if process.cmdline()[1:2] == ["train.py"] else {}
            if environment.get("RUNNER_RUN_ID") == run_id and process.pid not in others:
                return Script(process, Path(environment["RUNNER_CHECKPOINT_DIR"]))
    return None


def test_killed_mnist_run_ends_with_the_same_weights(
    own_cli: Cli, mnist: Path, tmp_path: Path
) -> None:
    """`PROOF_MNIST_KILLS=N` kills N times; every second kill leaves time to save."""
    chance = random.Random(SEED)
    folder = mnist_recipe(tmp_path / "mnist")
    # Four epochs for each kill, which may come a second and a stall after a new state.
    sets = ("--data", mnist, "--set", "subset=10000", "--set", f"epochs={4 * MNIST_KILLS}")
    own_cli.ok("train", folder, *sets, "--output-dir", tmp_path / "calm")
    run_id = own_cli.json("train", folder, *sets, "--detach")["run_id"]
    killed: set[int] = set()
    for number in islice(cycle((signal.SIGKILL, signal.SIGTERM)), MNIST_KILLS):
        script = until(lambda: script_of(run_id, killed))
        assert script is not None
        before = script.states()
        until(lambda script=script, before=before: script.states() - before)
        time.sleep(chance.uniform(0, 1))
        script.process.send_signal(number)
        killed.add(script.process.pid)
    shown = ended(own_cli, run_id, timeout_s=600)
    context = json.dumps(shown["attempts"])
    assert (shown["state"], len(shown["attempts"])) == ("succeeded", MNIST_KILLS + 1), context
    own_cli.ok("files", "get", run_id, "model.weights.h5", "--output-dir", tmp_path / "killed")
    [calm], [other] = (list((tmp_path / d).rglob("*.weights.h5")) for d in ("calm", "killed"))
    python = next(
        path
        for path in (KEPT / "cache" / "envs").glob("*/bin/python")
        if "." not in path.parents[1].name  # complete, and not being deleted by another worker
        and next(path.parents[1].glob("lib/python*/site-packages/h5py"), None)
    )
    done = subprocess.run(
        [str(python), "-c", _SAME, str(calm), str(other)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), f"{context}\n{done.stderr}"


_LINES = 60
_CHAIN = """
import hashlib, os, time
from pathlib import Path
from runner.hooks import load_state, save_state

attempt = os.environ["RUNNER_ATTEMPT"]
step, value = load_state() or (0, "begin")
with open(os.environ["PROOF_FILE"], "a") as out:
    out.write(f"{attempt} {step}\\n")
line = 0
while step < %d:
    step, value = step + 1, hashlib.sha256(f"{step} {value}".encode()).hexdigest()
    print(f"attempt {attempt} line {line} step {step}", flush=True)
    line += 1
    save_state((step, value))
    time.sleep(0.05)
(Path(os.environ["RUNNER_OUTPUT_DIR"]) / "value").write_text(value)
"""
_CHAIN_RECIPE = """
name: chain
command: [python, train.py]
env: {{PROOF_FILE: "{proof}"}}
outputs: [value]
checkpoints: {{interval: 1s, keep: 2}}
"""


def chain_end() -> str:
    """Return the result of `_CHAIN` without interruption."""
    value = "begin"
    for step in range(_LINES):
        value = hashlib.sha256(f"{step} {value}".encode()).hexdigest()
    return value


def submitted(cli: Cli, folder: Path) -> str:
    """Submit until the services answer, as a person does."""
    while True:
        done = cli.run("train", folder, "--detach", "-o", "json")
        if done.returncode == 0:
            return json.loads(done.stdout)["run_id"]
        assert SERVICES_DOWN in done.stderr, done.stderr


class StorageKiller(threading.Thread):
    """Kills Azurite once, evicts the node of the run in half of the cases, and starts storage."""

    def __init__(self, cli: Cli, chance: random.Random) -> None:
        super().__init__()
        self.cli = cli
        self.after_s = chance.uniform(0, 12)
        self.away_s = chance.choice([0.0, 0.0, chance.uniform(0, 4), chance.uniform(15, 25)])
        self.evicts = chance.choice(["", "", "before", "after"])
        self.error: BaseException | None = None

    def __str__(self) -> str:
        return f"killed after {self.after_s:.2f} s for {self.away_s:.2f} s, evicted {self.evicts}"

    def run(self) -> None:
        try:
            time.sleep(self.after_s)
            if self.evicts == "before":
                self._evict()
            blob = psutil.Process(self.cli.json("local", "status")["blob"]["pid"])
            blob.kill()
            if self.evicts == "after":
                self._evict()
            time.sleep(self.away_s)
            self.cli.ok("local", "up")
        except BaseException as err:
            self.error = err
            raise

    def _evict(self) -> None:
        settings = load_settings({}, cwd=self.cli.cwd, env=self.cli.env)
        with suppress(RunnerError):
            evict(settings, everything=True, notice_s=0, away_s=0.5)


@pytest.mark.timeout(max(1800, 90 * STORAGE_KILLS))
@pytest.mark.feature(35)
def test_runs_succeed_with_equal_weights_despite_killed_storage(
    own_cli: Cli, tmp_path: Path
) -> None:
    own_cli.ok("local", "up", "--nodes", "1", "--slots", "1")
    problems: list[str] = []
    attempts = 0
    for number in range(STORAGE_KILLS):
        chance = random.Random(SEED + 1000 * number)
        (folder := tmp_path / f"recipe{number}").mkdir()
        (folder / "train.py").write_text(_CHAIN % _LINES)
        proof = tmp_path / f"starts{number}"
        (folder / "train.yaml").write_text(_CHAIN_RECIPE.format(proof=proof))
        killer = StorageKiller(own_cli, chance)
        killer.start()
        run_id = submitted(own_cli, folder)
        killer.join()
        assert killer.error is None, killer.error
        own_cli.run("attach", run_id)
        shown = own_cli.json("show", run_id)
        attempts += len(shown["attempts"])
        wrong = problems_of(own_cli, shown, proof, tmp_path / f"got{number}")
        logger.info("run %d: %d attempts so far, %s: %s", number, attempts, killer, wrong)
        if wrong:
            problems.append(f"run {number} ({killer}): {wrong} {json.dumps(shown)}")
    assert not problems, f"seed {SEED}: " + "\n".join(problems)


def last_step(proof: Path) -> int:
    """Return the step from which the last attempt resumed."""
    return int(proof.read_text().splitlines()[-1].split()[1])


def problems_of(cli: Cli, shown: dict[str, Any], proof: Path, folder: Path) -> list[str]:
    """Return the claims that do not hold for a run of `_CHAIN`."""
    run_id = shown["run_id"]
    cli.run("files", "get", run_id, "value", "--output-dir", folder)
    values = [path.read_text() for path in folder.rglob("value")]
    begun = [int(line.split()[0]) for line in proof.read_text().splitlines()]
    numbers = [each["attempt"] for each in shown["attempts"]]
    last = shown["result"]["attempt"] if shown["result"] else 0
    lines: dict[int, list[int]] = defaultdict(list)
    for line in cli.run("logs", run_id).stdout.splitlines():
        words = line.split()
        if words[:1] == ["attempt"]:
            lines[int(words[1])].append(int(words[3]))
    holds = {
        "it succeeded": shown["state"] == "succeeded",
        "the value is that of an uninterrupted run": values == [chain_end()],
        "each attempt is recorded once": numbers == list(range(1, last + 1)),
        "no number was given twice": begun == sorted(set(begun)) and set(begun) <= set(numbers),
        "each line is in the log once, in order": all(
            found == list(range(len(found))) for found in lines.values()
        ),
        "the log of the last attempt is complete": len(lines[last]) == _LINES - last_step(proof),
    }
    return [claim for claim, true in holds.items() if not true]
