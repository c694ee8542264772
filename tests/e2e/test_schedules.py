"""Schedules against real services: runs begin with no client there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, until

Write = Callable[..., Path]
SCRIPT = """
import os, pathlib, sys
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "who.txt").write_text(os.environ["RUNNER_RUN_ID"])
print("args", sys.argv[1:])
"""


def runs_of(cli: Cli, schedule: str) -> list[str]:
    return cli.json("schedule", "show", schedule)["runs"]


def ended(cli: Cli, run_id: str) -> dict[str, Any]:
    final = ("succeeded", "failed", "cancelled", "lost")

    def look() -> dict[str, Any] | None:
        found = cli.json("show", run_id)
        return found if found["state"] in final else None

    return until(look) or {}


@pytest.mark.slow
@pytest.mark.feature(30)
def test_two_firings_make_two_runs_that_are_listed_like_any_other(
    own_cli: Cli, script: Write
) -> None:
    folder = script(SCRIPT)
    (folder / "train.yaml").write_text("params: {epochs: 3}\noutputs: [who.txt]\n")
    made = own_cli.json(
        "schedule", "create", folder, "--every", "60", "--name", "often", "--set", "epochs=7"
    )
    assert (made["schedule"], made["state"]) == ("often", "active")
    until(lambda: len(runs_of(own_cli, "often")) == 2, timeout_s=150)
    first, second = runs_of(own_cli, "often")[:2]
    assert first != second
    for run_id in (first, second):
        found = ended(own_cli, run_id)
        assert found["state"] == "succeeded"
        assert found["run"]["schedule"] == "often"
        assert found["run"]["params"] == {"epochs": 7}
        assert "'--epochs', '7'" in own_cli.ok("logs", run_id)
    listed = [row["run_id"] for row in own_cli.json("ps")]
    assert {first, second} <= set(listed)
    own_cli.ok("schedule", "pause", "often")
    [row] = own_cli.json("schedule", "ls")
    assert row["state"] == "paused"
    triggered = own_cli.json("schedule", "trigger", "often")["run_id"]
    assert ended(own_cli, triggered)["state"] == "succeeded"
    own_cli.ok("schedule", "resume", "often")
    assert own_cli.json("schedule", "ls")[0]["state"] == "active"
    own_cli.ok("schedule", "rm", "often")
    assert own_cli.json("schedule", "ls") == []
    assert ended(own_cli, first)["state"] == "succeeded", "what ran stays"


def test_removing_a_schedule_cancels_the_run_that_goes_on(cli: Cli, script: Write) -> None:
    folder = script("import time; time.sleep(600)")
    cli.ok("schedule", "create", folder, "--every", "1d", "--name", "long")
    [run_id] = until(lambda: runs_of(cli, "long"))
    until(lambda: cli.json("show", run_id)["state"] == "running")
    cli.ok("schedule", "rm", "long")
    assert ended(cli, run_id)["state"] == "cancelled"
    assert cli.run("schedule", "show", "long").returncode == 2


def test_schedule_in_a_file_and_what_is_refused(cli: Cli, script: Write) -> None:
    folder = script(SCRIPT)
    file = folder.parent / "nightly.yaml"
    file.write_text(
        "schedule: {cron: '0 3 * * *', max_runs: 2}\ntasks:\n  a: {recipe: ./project}\n"
    )
    made = cli.json("schedule", "create", file)
    assert (made["schedule"], made["when"]) == ("nightly", "0 3 * * *")
    assert made["next"].endswith("03:00:00+00:00")
    assert made["until"]
    assert runs_of(cli, "nightly") == []
    assert "R-SCHEDULE-EXISTS" in cli.run("schedule", "create", file).stderr
    assert "R-SUBMIT-SCHEDULE" in cli.run("submit", file).stderr
    cli.ok("schedule", "rm", "nightly")
    for args, code in (
        (("--cron", "0 3 1 * *"), "R-SCHEDULE-CRON"),
        (("--cron", "0 0 31 2 *"), "R-SCHEDULE-NEVER"),
        (("--cron", "0 3 * * *", "--until", "2020-01-01"), "R-SCHEDULE-NEVER"),
        (("--cron", "0 3 * * *", "--every", "1h"), "R-SCHEDULE"),
        (("--every", "5s"), "R-FLAG-VALUE"),
        ((), "R-SCHEDULE"),
    ):
        refused = cli.run("schedule", "create", folder, *args)
        assert refused.returncode == 2
        assert f"error[{code}]" in refused.stderr
    assert cli.json("schedule", "ls") == []
    assert "R-SCHEDULE-UNKNOWN" in cli.run("schedule", "pause", "nothing").stderr
