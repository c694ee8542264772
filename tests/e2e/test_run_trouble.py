"""Runs with NaN metrics, expired access, remaining child processes and large logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from runner.azure.auth.credentials import connect
from runner.core.planning.plan import RunPlan
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.settings import load_settings
from runner.flows.submit.submit_run import submit_run
from tests.e2e.conftest import Cli
from tests.e2e.plans import plan_recipe
from tests.processes import alive

Write = Callable[..., Path]

NOT_A_NUMBER = """
import json, os
with open(os.environ["RUNNER_METRICS_FILE"], "a") as f:
    for step, loss in enumerate([0.5, float("nan"), float("inf"), float("nan")]):
        print(json.dumps({"step": step, "loss": loss, "good": 1.0}), file=f)
"""

FORKING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("pid.part", "w") as out:
            out.write(str(os.getpid()))
        os.rename("pid.part", os.environ["RUNNER_OUTPUT_DIR"] + "/pid.txt")
        time.sleep(600)
    os._exit(0)
while not os.path.exists(os.environ["RUNNER_OUTPUT_DIR"] + "/pid.txt"):
    time.sleep(0.01)
print("the parent is done")
"""

# Every tenth line could have a metric, and none is the title of a table.
TALKATIVE = """
import sys
line = b"the loss and what else a script prints.\\n"
other = b"a script prints this much in most lines\\n"
for _ in range(1000):
    sys.stdout.buffer.write((line + other * 9) * 100)
print("the last line")
"""


def test_non_finite_metrics_are_shown_and_written_as_json(cli: Cli, script: Write) -> None:
    done = cli.run("train", script(NOT_A_NUMBER), "--no-download")
    assert done.returncode == 0, done.stderr
    run = cli.json("show", "@last")  # parses: JSON has no NaN
    loss = next(metric for metric in run["metrics"] if metric["name"] == "loss")
    assert (loss["last"], loss["best"], loss["best_step"]) == ("NaN", 0.5, 0)
    for text in (done.stderr, cli.ok("show", "@last")):
        assert "nan" in text.lower()
        [said] = [line for line in text.splitlines() if "not finite" in line]
        assert "loss: the script diverged" in said
        assert "good" not in said
    for verb in (["ps", "-a"], ["metrics", "@last"]):
        cli.ok(*verb)
        json.loads(cli.ok(*verb, "-o", "json"), parse_constant=pytest.fail)


def test_child_processes_end_with_the_script(cli: Cli, script: Write) -> None:
    done = cli.run("train", script(FORKING))
    assert done.returncode == 0, done.stderr
    assert "the parent is done" in done.stdout
    (pid,) = (cli.cwd / "outputs").glob("*/pid.txt")
    assert not alive(int(pid.read_text()))


@pytest.mark.slow
def test_forty_megabytes_of_log_arrive_complete(cli: Cli, script: Write) -> None:
    run_id = cli.json("train", script(TALKATIVE), "--detach")["run_id"]
    cli.ok("attach", run_id, "--tail", "3")
    log = cli.ok("logs", run_id)
    assert (log.count("the loss"), log.count("most lines")) == (100_000, 900_000)
    assert log.rstrip().endswith("the last line")


def test_expired_access_is_reported_with_a_fix(
    cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    connection = connect(settings)
    recipe = load_recipe(str(script("print(1)")), cwd=cli.cwd)
    plan = plan_recipe(connection, settings, recipe)
    past = timedelta(minutes=-5)
    monkeypatch.setattr(RunPlan, "access_lifetime", property(lambda _: past))
    run_id = submit_run(connection, plan, ignore_progress).run_id
    done = cli.run("attach", run_id)
    assert done.returncode == 1
    shown = cli.ok("show", run_id)
    for text in (done.stderr, shown):
        assert "BlobAccessDenied: storage denied the node access to the code" in text
        assert "submit the run again" in text
    assert cli.json("show", run_id)["state"] == "failed"
