"""`kill -9` of an agent that runs several trials, at every step and at random times.

Each trial has one result, and none starts again after it. An interrupted trial resumes as itself,
from its own checkpoint, in the same folder or on another node; the trials after it have not
started. `PROOF_SEED=N` uses other times.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.proof.killing import wrong_lines
from tests.unit.node.agent_task import Task
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs
from tests.unit.node.shared_task import ended, result, submit_trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("PROOF_SEED", "20261129"))
PARTS = int(os.environ.get("PROOF_PARTS", "1"))
TRIALS = 6
STEPS = 12
KILLS = 24

SCRIPT = """
import os, pathlib, time
run_id, attempt = os.environ["RUNNER_RUN_ID"], os.environ["RUNNER_ATTEMPT"]
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state")
home = pathlib.Path(os.environ["HOME"])
owner, _, step = (state.read_text() if state.exists() else f"{run_id} 0").partition(" ")
strange = [p.name for p in home.rglob("of-*") if p.name != "of-" + run_id]
with open(os.environ["JOURNAL"], "a") as journal:
    journal.write(f"{run_id} {attempt} {owner} {step} {len(strange)} {time.time()}\\n")
(home / ("of-" + run_id)).write_text(run_id)
for step in range(int(step) + 1, 13):
    time.sleep(0.05)
    print("step", step, "of attempt", attempt, flush=True)
    state.with_suffix(".part").write_text(f"{run_id} {step}")
    state.with_suffix(".part").replace(state)
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "weights").write_text(f"{run_id} {step}")
"""


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as fake:
        yield fake


@dataclass
class Kills:
    """Starts the task and kills it; `done` counts the kills of each kind."""

    task: Task
    trials: list[str]
    chance: random.Random
    journal: Path
    done: Counter[str] = field(default_factory=Counter[str])
    ended_at: dict[str, float] = field(default_factory=dict[str, float])
    folder: int | None = None  # the task starts again in this folder

    def sent(self, method: str, part: str) -> int:
        """Return the number of such requests since the last start."""
        found = self.task.service.requests[self._seen :]
        return sum(m == method and part in path for m, path, _ in found)

    def begun(self) -> int:
        """Return how often a script has started."""
        return len(self.journal.read_text().splitlines()) if self.journal.exists() else 0

    def start(self) -> subprocess.Popen[str]:
        """Start the task, on another node or in the folder of the last start."""
        self._seen = len(self.task.service.requests)
        self._before = self.begun()
        process = self.task.start(subprocess.DEVNULL, again_in=self.folder)
        if self.folder is None:
            self.folder = len(self.task.processes) - 1
        return process

    def moments(self) -> dict[str, Callable[[], object]]:
        """Return when to kill, by kind."""
        later = self.chance.randrange(1, 3)
        return {
            "as it starts": lambda: True,
            "as it writes run.json": lambda: self.sent("PUT", "/run.json") >= later,
            "as it claims an attempt": lambda: self.sent("PUT", "/start.json") >= later,
            "as the script runs": lambda: self.begun() >= self._before + later,
            "as it commits a checkpoint": lambda: self.sent("PUT", "/checkpoints/") >= later,
            "as it exports": lambda: self.sent("PUT", "/output/") >= later,
            "as it writes an end": lambda: self.sent("PUT", "/end.json") >= later,
            "between two trials": lambda: self.sent("PUT", "/result.json") >= later,
        }

    def kill_once(self) -> None:
        """Kill the task once, unless it has ended before."""
        moments = self.moments()
        name = [*moments][self.done.total() % len(moments)]
        ready, process = moments[name], self.start()
        deadline = time.monotonic() + 30
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(self.chance.choice((0.0, 0.003, self.chance.uniform(0, 0.3))))
        if process.poll() is None:
            if self.chance.random() < 0.2:
                process.terminate()
                time.sleep(self.chance.uniform(0, 0.5))
            self.task.kill(process)
            self.done[name] += 1
        else:
            process.communicate()
        for run_id in ended(self.task, self.trials):
            self.ended_at.setdefault(run_id, time.time())
        if self.chance.random() < 0.5:
            self.folder = None  # the next start is on another node


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.feature(42)
def test_every_trial_of_a_killed_task_ends_once_and_resumes_as_itself(
    service: FakeBlobs, tmp_path: Path, part: int
) -> None:
    seed = SEED + part
    kinds: Counter[str] = Counter()
    rounds = 0
    while kinds.total() < KILLS:  # each round is another task with new trials
        rounds += 1
        service.blobs.clear()
        (folder := tmp_path / f"round-{rounds}").mkdir()
        task, journal = Task(folder, service), folder / "journal"
        trials = submit_trials(
            task,
            SCRIPT,
            [{"n": number} for number in range(TRIALS)],
            env={"JOURNAL": str(journal)},
            checkpoints={"keep": 2, "max_bytes": 1 << 20, "interval_s": 0.1},
            outputs=["weights"],
            metrics={"patterns": {}},
            retries=KILLS,  # each kill may be in the same trial
        )
        kills = Kills(task, trials, random.Random(seed * 1000 + rounds), journal)
        kills.done.update({"": kinds.total()} if kinds else {})
        while len(ended(task, trials)) < TRIALS and kills.done.total() < KILLS:
            kills.kill_once()
        del kills.done[""]
        kinds += kills.done
        process = kills.start()
        process.communicate(timeout=240)
        task.end()
        told = f"seed {seed}, round {rounds}: {dict(kinds)}"
        assert process.returncode == 0, told
        assert problems(task, kills) == [], told
    assert len(kinds) >= 5, kinds


def problems(task: Task, kills: Kills) -> list[str]:
    """Return the claims that do not hold after the kills."""
    trials = kills.trials
    starts = [line.split() for line in kills.journal.read_text().splitlines()]
    found: list[str] = []
    for run_id in trials:
        own = [(int(a), owner, int(step), float(at)) for run, a, owner, step, _, at in starts
               if run == run_id]  # fmt: skip
        outcome = result(task, run_id)
        last = outcome["attempt"]
        claims = [
            name.split("/")[2]
            for name in task.service.blobs
            if name.startswith(f"{run_id}/attempts/") and name.endswith("/start.json")
        ]
        prefix = "" if last == 1 else f"attempts/{last}/"
        weights = task.service.data(f"{run_id}/{prefix}output/weights")
        holds = {
            "it succeeded": outcome["status"] == "succeeded",
            "its outputs are its own": weights == f"{run_id} {STEPS}".encode(),
            "it resumed from its own checkpoint": all(owner == run_id for _, owner, _, _ in own),
            "no attempt began before an earlier one": all(a[2] <= b[2] for a, b in pairwise(own)),
            "its attempts are numbered": sorted(map(int, claims)) == list(range(1, last + 1)),
            "every start belongs to an attempt": {str(a) for a, *_ in own} <= {*claims},
            "it did not start after its result": all(
                at <= kills.ended_at.get(run_id, at) for *_, at in own
            ),
        }
        found += [f"{run_id}: {claim}" for claim, true in holds.items() if not true]
        found += [f"{run_id}: {wrong}" for wrong in wrong_lines(task.service, run_id, STEPS)]
    order = [run for run, *_ in starts]
    if order != sorted(order, key=trials.index):
        found.append(f"a trial began before the one before it had ended: {order}")
    if strange := [line for line in starts if line[4] != "0"]:
        found.append(f"files of other trials: {strange}")
    return found
