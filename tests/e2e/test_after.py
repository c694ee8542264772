"""Runs that come after runs, against real services."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from runner.azure.auth.credentials import connect
from runner.core.settings import load_settings
from tests.e2e.conftest import Cli, show_ended, write_whole

Write = Callable[..., Path]
# The first run waits until the test tells it how to end.
GATED = """
import pathlib, sys, time
gate = pathlib.Path(sys.argv[1])
while not gate.exists(): time.sleep(0.05)
sys.exit(int(gate.read_text()))
"""


def row(cli: Cli, run_id: str) -> dict[str, Any]:
    [found] = [row for row in cli.json("ps", "-a") if row["run_id"] == run_id]
    return found


def ended(cli: Cli, run_id: str) -> dict[str, Any]:
    show_ended(cli, run_id)
    return row(cli, run_id)


@dataclass(frozen=True)
class Gated:
    """A script whose runs end when the gate is opened, with the exit code that it is given."""

    cli: Cli
    folder: Path
    gate: Path

    def train(self, *args: object) -> str:
        named = ("-e", self.gate.name, "-o", "json", "--", self.gate)
        return json.loads(self.cli.ok("train", self.folder, "-d", *args, *named))["run_id"]

    def open(self, code: int = 0) -> None:
        write_whole(self.gate, str(code))


Make = Callable[[str], Gated]


@pytest.fixture
def gated(cli: Cli, script: Write, tmp_path: Path) -> Make:
    return lambda name: Gated(cli, script(GATED), tmp_path / name)


@pytest.mark.feature(29)
def test_run_starts_after_its_predecessor_succeeded(cli: Cli, gated: Make) -> None:
    runs = gated("good")
    first = runs.train()
    second = runs.train("--after", first)
    waiting = row(cli, second)
    assert (waiting["state"], waiting["reason"]) == ("queued", f"after {first}")
    runs.open()
    assert ended(cli, second)["state"] == "succeeded"
    shown = [cli.json("show", run) for run in (first, second)]
    assert shown[1]["run"]["after"] == [first]
    assert shown[1]["run"]["batch"]["job_id"] == shown[0]["run"]["batch"]["job_id"]
    assert shown[1]["attempts"][0]["started"] >= shown[0]["result"]["ended"]
    third = runs.train("--after", second, "--priority", 5)
    assert ended(cli, third)["state"] == "succeeded", "what has ended may be in any job"


def test_runs_after_a_failed_run_are_blocked(cli: Cli, gated: Make) -> None:
    runs = gated("bad")
    first = runs.train()
    second = runs.train("--after", first)
    third = runs.train("--after", second, "--retries", 2)
    runs.open(3)
    assert ended(cli, first)["state"] == "failed"
    for run, before, how in ((second, first, "failed"), (third, second, "was cancelled")):
        found = ended(cli, run)
        assert (found["state"], found["reason"]) == (
            "cancelled",
            f"blocked by {before}, which {how}",
        )
    check_retries(cli, runs, first, second, third)
    refused = cli.run("train", runs.folder, "--after", first, "--", runs.gate)
    assert refused.returncode == 3
    assert "R-AFTER-FAILED" in refused.stderr
    assert cli.run("train", runs.folder, "--after", "no-such-run").returncode == 2


def check_retries(cli: Cli, runs: Gated, first: str, second: str, third: str) -> None:
    """What was blocked waits again: for what takes the place of the run that failed."""
    refused = cli.run("retry", third)
    assert refused.returncode == 3
    assert f"fix: runner retry {second}, then runner retry {third}" in refused.stderr
    runs.gate.unlink()
    again = cli.json("retry", first, "-d")["run_id"]
    waits = cli.json("retry", second, "-d")["run_id"]
    assert row(cli, waits)["reason"] == f"after {again}"
    last = cli.json("retry", third, "-d")["run_id"]
    runs.open()
    assert ended(cli, last)["state"] == "succeeded"
    assert cli.json("show", last)["run"]["after"] == [waits]


def test_cancelled_predecessor_blocks_the_run(cli: Cli, gated: Make) -> None:
    runs = gated("never")
    first = runs.train()
    second = runs.train("--after", first)
    cli.ok("cancel", first)
    found = ended(cli, second)
    assert found["reason"] == f"blocked by {first}, which was cancelled"


def test_cancelling_an_experiment_keeps_runs_of_others(cli: Cli, gated: Make) -> None:
    runs, others = gated("given-up"), gated("wanted")
    first, other = runs.train(), others.train()
    second = runs.train("--after", first)
    rows = cli.json("cancel", "--experiment", "given-up")
    assert {row["run_id"]: row["state"] for row in rows} == {
        first: "cancelled",
        second: "cancelled",
    }
    assert not row(cli, other)["ended"]
    others.open()
    assert ended(cli, other)["state"] == "succeeded"
    assert cli.json("cancel", "--experiment", "given-up") == []
    assert "expected one run, one group, --experiment or --pool" in cli.run("cancel").stderr


def test_after_with_runs_of_two_jobs_is_refused(cli: Cli, gated: Make) -> None:
    runs, others = gated("one"), gated("two")
    first, second = runs.train(), others.train()
    refused = cli.run("train", runs.folder, "--after", first, "--after", second, "--", runs.gate)
    assert refused.returncode == 2
    assert f"{first} is in job one_local, {second} in job two_local" in refused.stderr
    refused = cli.run("train", runs.folder, "--after", first, "--priority", "9", "--", runs.gate)
    assert "R-AFTER-JOB" in refused.stderr
    wait = f"wait with `runner attach {first}`, then run this command again"
    assert f"fix: --priority 0, or {wait}" in refused.stderr
    (runs.folder / "train.yaml").write_text("image: python:3.12")
    refused = cli.run("train", runs.folder, "--after", first, "--dry-run")
    assert f"{first} is on pool local, this run on pool local-containers" in refused.stderr
    assert f"fix: {wait}" in refused.stderr, "that pool takes no containers"
    for each in (runs, others):
        each.open()
    for run in (first, second):
        ended(cli, run)


def test_unsuitable_pool_is_refused_unless_it_is_named(cli: Cli, script: Write) -> None:
    folder = script("print('fine')")
    (folder / "train.yaml").write_text("resources: {gpus: 1}\npriority: 3\n")
    refused = cli.run("train", folder)
    assert refused.returncode == 3
    assert "local has no GPUs (1 needed)" in refused.stderr
    done = cli.run("train", folder, "--pool", "local", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "warning: pool local does not satisfy `resources`" in done.stderr
    assert cli.ok("train", folder, "--gpus", "0")
    assert cli.json("show")["run"]["batch"]["job_id"].startswith("project_local_p3")


def test_run_of_a_disabled_job_shows_the_command_that_enables_it(cli: Cli, gated: Make) -> None:
    runs = gated("paused")
    first = runs.train()
    waiting = [runs.train("--after", first) for _ in range(4)]  # ps lists their job
    job_id = cli.json("show", first)["run"]["batch"]["job_id"]
    batch = connect(load_settings({}, cwd=cli.cwd, env=cli.env)).batch_client()
    paused = models.BatchJobDisableOptions(disable_tasks=models.DisableBatchJobOption.WAIT)
    batch.begin_disable_job(job_id, paused)
    enable = f'eval "$(runner local env)"; az batch job enable --job-id {job_id}'
    reason = f"its job {job_id} is disabled: {enable}"
    assert {row(cli, run_id)["reason"] for run_id in waiting} == {reason}
    assert cli.json("show", waiting[0])["reason"] == reason
    batch.begin_enable_job(job_id, polling_interval=0).result()
    assert row(cli, waiting[0])["reason"] == f"after {first}"
    runs.open()
    assert {ended(cli, run_id)["state"] for run_id in waiting} == {"succeeded"}
