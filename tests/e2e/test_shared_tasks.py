"""Sweeps with `trials_per_task`: several trials run one after another in one task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import connect
from runner.azure.batch.jobs import list_tasks
from runner.core.settings import load_settings
from runner.flows.removal import SETTLE_S
from tests.e2e.conftest import Cli, evict_node_of, until

Write = Callable[[str], Path]

# Trial 2 waits for the file `gate`; each trial counts its steps in a checkpoint.
SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int)
n = parser.parse_args().n
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state")
begun = int(state.read_text()) if state.exists() else 0
print("run", os.environ["RUNNER_RUN_ID"], "begins at", begun, flush=True)
state.with_suffix(".part").write_text(str(begun + 1))
state.with_suffix(".part").replace(state)
while n == 2 and not os.path.exists({gate!r}):
    time.sleep(0.05)
print(f"loss: {{abs(n - 3) / 10}}")
pathlib.Path("model.txt").write_text(str(n))
"""


class Gated:
    """A sweep of five trials in two tasks, whose second trial waits for a gate."""

    def __init__(self, cli: Cli, script: Write, tmp_path: Path) -> None:
        self.cli = cli
        self.gate = tmp_path / "gate"
        self.folder = script(SCRIPT.format(gate=str(self.gate)))
        words = ("-p", "n=1,2,3,4,5", "--trials-per-task", "3", "--metric", "loss", "--detach")
        found = cli.json("sweep", "start", self.folder, *words)
        self.sweep, self.job_id = found["sweep"], found["job_id"]
        stem, rest = self.sweep[:-21], self.sweep[-21:]
        self.runs = [f"{stem}-{number}{rest}" for number in range(1, 6)]

    def states(self) -> dict[str, str]:
        """Return the state of each trial, by its number."""
        trials = self.cli.json("sweep", "show", self.sweep)["trials"]
        return {trial["trial"]: trial["state"] for trial in trials}

    def tasks(self) -> dict[str, Any]:
        """Return the tasks of the job of the sweep."""
        settings = load_settings({"target": "local"}, cwd=self.cli.cwd, env=self.cli.env)
        return list_tasks(connect(settings), self.job_id)

    def await_second(self) -> None:
        """Wait until the second trial waits, and the second task has ended."""
        until(
            lambda: (
                self.states()
                == {
                    "1": "succeeded",
                    "2": "running",
                    "3": "queued",
                    "4": "succeeded",
                    "5": "succeeded",
                }
            )
        )

    def await_end(self) -> dict[str, str]:
        """Open the gate, and return the states at the end."""
        self.gate.touch()
        self.cli.run("attach", self.sweep)
        return self.states()


@pytest.fixture
def gated(cli: Cli, script: Write, tmp_path: Path) -> Generator[Gated]:
    gated = Gated(cli, script, tmp_path)
    yield gated
    gated.gate.touch()  # a trial that still waits would occupy a node of the next tests


@pytest.mark.feature(42)
def test_trials_share_tasks_and_keep_their_own_records(gated: Gated) -> None:
    cli, runs = gated.cli, gated.runs
    gated.await_second()
    assert set(gated.tasks()) == {runs[0], runs[3]}
    rows = {row["run_id"]: row for row in cli.json("ps", "--trials", "--group", gated.sweep)}
    assert rows[runs[2]]["state"] == "queued"
    unfinished = cli.json("ps", "--trials", "--status", "queued,running")
    assert set(runs[1:3]) <= {row["run_id"] for row in unfinished}
    assert "before it in its task" in cli.ok("why", runs[2])
    began = time.monotonic()
    refused = cli.run("rm", runs[0], "--yes").stderr
    assert "its task runs other trials of the sweep" in refused
    assert time.monotonic() - began < SETTLE_S, "it waited for the end of the task"
    assert set(gated.await_end().values()) == {"succeeded"}
    for number, run_id in enumerate(runs, start=1):
        found = cli.json("show", run_id)
        outputs = [file["path"] for file in found["result"]["outputs"]]
        assert [each for each in outputs if "gate" not in each] == ["model.txt"]
        assert len(found["attempts"]) == 1
        lines = cli.ok("logs", run_id).splitlines()
        assert lines == [f"run {run_id} begins at 0", f"loss: {abs(number - 3) / 10}"]
    best = cli.json("sweep", "best", gated.sweep, "--register", "shared")
    assert (best["trial"], best["model"]) == ("3", "shared@1")
    assert {row["name"] for row in cli.json("cost", gated.sweep, "--by", "run")["rows"]} == {*runs}
    cli.ok("rm", runs[0], "--yes")


def test_cancelled_trial_of_a_task_ends_alone(gated: Gated) -> None:
    gated.await_second()
    gated.cli.ok("cancel", gated.runs[1])
    assert gated.states()["2"] == "cancelled"
    until(lambda: gated.states()["3"] == "succeeded")
    again = gated.cli.json("retry", gated.runs[1], "--detach")
    gated.gate.touch()
    gated.cli.ok("attach", again["run_id"])
    assert gated.states()["2"] == "succeeded", "the retried run counts as its trial"


def test_trial_that_is_cancelled_before_its_turn_never_starts(gated: Gated) -> None:
    gated.await_second()
    gated.cli.ok("cancel", gated.runs[2])
    states = gated.await_end()
    assert (states["2"], states["3"]) == ("succeeded", "cancelled")
    assert gated.cli.json("show", gated.runs[2])["attempts"] == []


def test_stopped_sweep_continues_with_the_trials_that_did_not_end(gated: Gated) -> None:
    gated.await_second()
    gated.cli.ok("sweep", "stop", gated.sweep)
    states = gated.states()
    assert [states[each] for each in "12345"] == [
        "succeeded", "cancelled", "cancelled", "succeeded", "succeeded",
    ]  # fmt: skip
    gated.gate.touch()
    gated.cli.ok("sweep", "resume", gated.sweep)
    assert set(gated.states().values()) == {"succeeded"}
    assert gated.cli.json("show", gated.runs[2])["state"] == "succeeded", "the same run"


def test_evicted_task_repeats_no_trial_and_resumes_the_interrupted_one(gated: Gated) -> None:
    gated.await_second()
    evict_node_of(gated.cli, gated.runs[1], "--notice", "10")
    until(lambda: gated.cli.ok("logs", gated.runs[1]).count("begins at") == 2)
    assert set(gated.await_end().values()) == {"succeeded"}
    rows = gated.cli.json("sweep", "show", gated.sweep)["trials"]
    assert {row["trial"]: row["attempts"] for row in rows} == dict.fromkeys("1345", 1) | {"2": 2}
    assert {row["trial"]: row["evicted"] for row in rows}["2"] == 1
    assert "begins at 1" in gated.cli.ok("logs", gated.runs[1])


def test_paused_sweep_keeps_the_order_of_its_trials(gated: Gated) -> None:
    gated.await_second()
    paused = gated.cli.json("sweep", "pause", gated.sweep)
    assert [job["runs"] for job in paused["jobs"]] == [2]
    until(lambda: {"2": "paused", "3": "paused"}.items() <= gated.states().items())
    gated.cli.ok("sweep", "unpause", gated.sweep)
    assert set(gated.await_end().values()) == {"succeeded"}


def test_sampler_and_merge_task_work_with_shared_tasks(cli: Cli, script: Write) -> None:
    folder = script(
        "import sys\nprint(f'loss: {abs(float(sys.argv[2]) - 0.5)}')\n"
        "open('own.txt', 'w').write(sys.argv[2])\n"
    )
    merge = "python -c 'import os; print(sorted(os.listdir(os.environ[\"RUNNER_INPUT_TRIALS\"])))'"
    found = cli.json(
        *("sweep", "start", folder, "-p", "lr={uniform: [0, 1]}", "--trials", "4"),
        *("--metric", "loss", "--trials-per-task", "2", "--merge", merge),
    )
    assert found["states"] == {"succeeded": 4}
    assert found["merge"]["state"] == "succeeded"
    merged = cli.ok("logs", found["merge"]["run_id"])
    assert json.loads(merged.splitlines()[-1].replace("'", '"'))[:4] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("recipe", "why"),
    [("resources: {nodes: 2}", "2 nodes"), ("image: python:3.12", "an image")],
)
def test_trials_that_cannot_share_a_task_are_refused(
    cli: Cli, script: Write, recipe: str, why: str
) -> None:
    folder = script("print('loss: 1')")
    start = ("sweep", "start", folder, "-p", "n=1,2", "--trials-per-task", "2", "--dry-run")
    assert "2 in each task" in cli.run(*start).stderr
    (folder / "train.yaml").write_text(f"command: [python, train.py]\n{recipe}\n")
    refused = cli.run(*start)
    assert refused.returncode == 2
    assert f"error[R-SWEEP-TASKS]: sweep: `trials_per_task: 2` with {why}" in refused.stderr
