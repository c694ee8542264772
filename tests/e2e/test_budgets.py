"""Budgets, with local nodes that are billed at given prices."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.core.home import HomePaths
from tests.e2e.conftest import Cli, show_ended

_BILLED = Path(__file__).with_name("billed.py")
_PRICES = """\
vm_size,location,kind,usd_per_hour,as_of,source
local,local,spot,0.88242,2026-11-20,test
local,local,dedicated,4.775,2026-11-20,test
"""
# Half an hour with its export and margin, boot and 20 minutes until the node is gone: 100 minutes.
_EACH_MICROS = 1_470_700


class Billed:
    """The command, with nodes that cost money."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        cli.ok("local", "up")
        paths = HomePaths(cli.home)
        paths.prices.write_text(_PRICES, encoding="utf-8")
        outputs = json.loads(paths.local_outputs.read_text(encoding="utf-8"))
        outputs["pools"][0]["release_minutes"] = 20
        paths.local_outputs.write_text(json.dumps(outputs), encoding="utf-8")

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        root = str(Path(__file__).parents[2])
        return subprocess.run(
            [sys.executable, str(_BILLED), *map(str, words)],
            env={**self.cli.env, "PYTHONPATH": root},
            cwd=self.cli.cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def json(self, *words: object) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.feature(53)
@pytest.mark.fix("R-BUDGET")
def test_submissions_at_once_cannot_exceed_a_budget(
    own_cli: Cli, script: Callable[[str], Path]
) -> None:
    billed, project = Billed(own_cli), script("import time\ntime.sleep(600)\n")
    (project / "train.yaml").write_text("estimate: 10m\ntimeout: 30m\n", encoding="utf-8")
    train = ("train", project, "--experiment", "capped", "--detach")
    assert billed.run("budget", "set", "2.2", "--experiment", "capped").returncode == 0
    assert billed.run("budget", "set", "100").returncode == 0

    with ThreadPoolExecutor(4) as threads:
        ends = [*threads.map(lambda _: billed.run(*train), range(4))]
    assert sorted(each.returncode for each in ends) == [0, 6, 6, 6]
    refused = next(each.stderr for each in ends if each.returncode)
    assert "error[R-BUDGET]: the budget of experiment capped would be exceeded" in refused
    assert "running at most 1.47 USD, this one at most 1.47 USD: more than 2.20 USD" in refused
    month, capped = billed.json("budget", "ls")
    assert (month["experiment"], capped["experiment"]) == (None, "capped")
    assert capped["running_micros"] == month["running_micros"] == _EACH_MICROS
    assert "R-BUDGET" in billed.run(*train, "--dry-run").stderr

    [fix] = re.findall(r"`runner (budget set [^`]+)`", refused)
    assert billed.run(*shlex.split(fix)).returncode == 0
    assert billed.run(*train).returncode == 0, "what the error names is enough"

    for row in own_cli.json("ps", "--experiment", "capped"):
        own_cli.ok("cancel", row["run_id"])
        show_ended(own_cli, row["run_id"])
    [spent] = billed.json("cost", "--by", "experiment")["rows"]
    month, capped = billed.json("budget", "ls")
    assert 0 < capped["spent_micros"] <= spent["cost_micro_usd"] + 20_000
    assert capped["running_micros"] == 0, "claims end with their runs"
    sweep = ("sweep", "start", project, "-p", "x=1,2,3", "--experiment", "capped", "--detach")
    assert "R-BUDGET" in billed.run(*sweep, "--max-cost", "9").stderr
    other = billed.run("train", project, "--experiment", "other", "--detach")
    assert other.returncode == 0, other.stderr
    assert "R-BUDGET-SCHEDULE" in billed.run("schedule", "create", project, "--every", "1d").stderr
    capped_schedule = billed.run(
        *("schedule", "create", project, "--cron", "0 3 * * 1-5", "--max-cost", "5")
    )
    assert capped_schedule.returncode == 0, capped_schedule.stderr
    month_costs = "costs per month: 1.76 USD expected, at most 4.41 USD: 3 runs"
    assert month_costs in capped_schedule.stderr
    [made] = billed.json("schedule", "ls")
    assert made["until"] is not None, "three runs"
    month, _ = billed.json("budget", "ls")
    assert month["running_micros"] >= 5_000_000
    assert billed.run("budget", "rm").returncode == 0
    assert [each["budget"] for each in billed.json("budget", "ls")] == ["capped"]


@pytest.mark.slow
def test_resumed_trials_of_an_older_sweep_claim_their_own_caps(
    own_cli: Cli, script: Callable[[str], Path]
) -> None:
    billed, project = Billed(own_cli), script("import time\ntime.sleep(600)\n")
    (project / "train.yaml").write_text("estimate: 10m\ntimeout: 30m\n", encoding="utf-8")
    start = ("sweep", "start", project, "-p", "x=1,2,3", "--max-parallel", "1", "--detach")
    done = billed.run(*start, "--experiment", "older", "-o", "json")
    assert done.returncode == 0, done.stderr
    sweep = own_cli.json("sweep", "ls")[0]["sweep"]
    own_cli.ok("sweep", "stop", sweep)
    assert billed.run("budget", "set", "100", "--experiment", "older").returncode == 0
    resumed = billed.run("sweep", "resume", sweep, "--detach")
    assert resumed.returncode == 0, resumed.stderr
    [older] = billed.json("budget", "ls")
    assert older["running_micros"] == 3 * _EACH_MICROS

    own_cli.ok("sweep", "stop", sweep)
