"""Feature rows 42 to 44, sweeps: `runner sweep` over real services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, until

Write = Callable[..., Path]

# A stranger's script: its parameters are options of argparse, and it prints its loss.
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--momentum", type=float, default=0.0)
args = parser.parse_args()
print(f"loss: {abs(args.lr - 0.01) + args.momentum:.4f}")
open("model.txt", "w").write(str(args.lr))
"""


@pytest.mark.smoke
@pytest.mark.feature(42)
def test_script_trains_with_every_combination_and_the_best_model_is_registered(
    cli: Cli, script: Write
) -> None:
    folder = script(SCRIPT)
    found = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.01", "-p", "momentum=[0.0, 0.5]")
    assert found["states"] == {"succeeded": 4}
    assert found["metric"] == "loss"
    assert [(trial["params"], trial["value"]) for trial in found["trials"]] == [
        ({"lr": 0.01, "momentum": 0.0}, 0.0),
        ({"lr": 0.1, "momentum": 0.0}, 0.09),
        ({"lr": 0.01, "momentum": 0.5}, 0.5),
        ({"lr": 0.1, "momentum": 0.5}, 0.59),
    ]
    [listed] = cli.json("sweep", "ls")
    assert (listed["sweep"], listed["trials"]) == (found["sweep"], 4)
    best = cli.json("sweep", "best", "@last", "--register", "swept")
    assert (best["run_id"], best["model"]) == (found["trials"][0]["run_id"], "swept@1")
    assert "model.txt" in cli.ok("models", "show", "swept@1")


@pytest.mark.feature(43)
@pytest.mark.feature(44)
def test_draws_and_generators_are_shown_before_anything_is_started(cli: Cli, script: Write) -> None:
    folder = script(SCRIPT)
    (folder / "train.yaml").write_text(
        "sweep: {params: {lr: {loguniform: [0.001, 0.1]}}, trials: 12, seed: 3}\n"
    )
    first, again = (cli.json("sweep", "start", folder, "--dry-run")["tasks"] for _ in range(2))
    drawn = [task["trial"]["lr"] for task in first.values()]
    assert drawn == [task["trial"]["lr"] for task in again.values()]
    assert len(set(drawn)) == 12
    assert all(0.001 <= rate <= 0.1 for rate in drawn)
    (folder / "train.yaml").write_text("sweep: {generator: 'trials.py:make', repeat: 2}\n")
    (folder / "trials.py").write_text(
        "print('noise')\ndef make():\n    for n in (1, 2):\n        yield {'lr': 10.0 ** -n}\n"
    )
    document = cli.json("sweep", "start", folder, "--dry-run")
    assert [task["trial"] for task in document["tasks"].values()] == [
        {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.01}, {"lr": 0.01},
    ]  # fmt: skip
    commands = [run["command"] for run in document["runs"].values()]
    assert commands[0][-2:] == ["--lr", "0.1"]


@pytest.mark.feature(42)
def test_stopped_sweep_cancels_the_trials_that_have_not_ended(cli: Cli, script: Write) -> None:
    folder = script("import time; time.sleep(600)")
    started = cli.json("sweep", "start", folder, "-p", "seed=1,2,3", "--detach")
    sweep = started["sweep"]
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("running"))
    assert cli.json("sweep", "stop", sweep)["cancelled"] == ["1", "2", "3"]
    until(lambda: cli.json("sweep", "show", sweep)["states"] == {"cancelled": 3})
    failed = cli.run("sweep", "best", sweep)
    assert failed.returncode == 1
    assert "error[R-SWEEP-BEST]" in failed.stderr
    assert "3 cancelled" in failed.stderr
