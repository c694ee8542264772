"""`kill -9` of clients while they submit and resume sweeps: each trial runs once to its end.

There is no job manager task: the agents decide (docs/decisions/0020). `PROOF_SWEEPS=N` sweeps are
started by a client that is killed, and then resumed by clients that are killed, too, until one is
not needed any more; `PROOF_SEED=N` uses other times.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, new_home, until

SEED = int(os.environ.get("PROOF_SEED", "20261125"))
SWEEPS = int(os.environ.get("PROOF_SWEEPS", "2"))
TRIALS = 12

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 120 * SWEEPS)]


def kill_after(cli: Cli, seconds: float, *words: object) -> None:
    """Start a client, and kill it after a time that was drawn."""
    client = cli.start(*words)
    time.sleep(seconds)
    client.kill()
    client.communicate()


@pytest.fixture
def own_cli(tmp_path: Path) -> Generator[Cli]:
    (tmp_path / "work").mkdir()
    cli = Cli(new_home(tmp_path / "home"), tmp_path / "work")
    cli.ok("local", "up", "--nodes", "2", "--slots", "4")
    yield cli
    cli.run("local", "down")


@pytest.mark.feature(51)
def test_every_trial_runs_once_although_its_clients_are_killed(
    own_cli: Cli, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    (folder := tmp_path / "recipe").mkdir()
    (folder / "train.py").write_text("print('loss: 0.5')")
    start = ("sweep", "start", folder, "-p", f"seed={{range: [1, {TRIALS}]}}", "-e", "killed")
    interrupted, longest_s = 0, 1.5
    while len(sweeps := own_cli.json("sweep", "ls")) < SWEEPS:
        kill_after(own_cli, chance.uniform(0.5, longest_s), *start, "--detach")
        longest_s += 0.5  # until the machine is fast enough to submit anything
        if len(own_cli.json("sweep", "ls")) > len(sweeps):  # else nothing of it was submitted
            newest = own_cli.json("sweep", "ls")[0]["sweep"]
            states = own_cli.json("sweep", "show", newest)["states"]
            interrupted += states.get("lost", 0) > 0
            for _ in range(2):
                kill_after(own_cli, chance.uniform(0.5, 1.5), "sweep", "resume", newest, "--detach")
    told = f"seed {SEED}: {interrupted} of {SWEEPS} sweeps were submitted in part"
    for each in sweeps:

        def is_over(sweep: str = each["sweep"]) -> bool:
            own_cli.run("sweep", "resume", sweep, "--detach")
            return own_cli.json("sweep", "show", sweep)["states"] == {"succeeded": TRIALS}

        until(is_over, every_s=2)
        runs = own_cli.json("ps", "--group", each["sweep"])
        trials = Counter(re.findall(r"-(\d+)-\d{8}-", row["run_id"])[0] for row in runs)
        assert (len(trials), set(trials.values())) == (TRIALS, {1}), told
        assert {row["attempts"] for row in runs} == {1}, told
    ended = Counter(row["state"] for row in own_cli.json("ps", "--all", "-e", "killed"))
    assert ended["succeeded"] == TRIALS * len(sweeps), told
    assert set(ended) <= {"succeeded", "lost"}, told
