"""Schedules against real services: runs start without a client."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, show_ended, until

Write = Callable[..., Path]
SCRIPT = """
import os, pathlib, sys
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "who.txt").write_text(os.environ["RUNNER_RUN_ID"])
print("args", sys.argv[1:])
"""


def runs_of(cli: Cli, schedule: str) -> list[str]:
    return cli.json("schedule", "show", schedule)["runs"]


@pytest.mark.slow
@pytest.mark.feature(30)
def test_two_firings_create_two_runs_in_the_list(cli: Cli, script: Write) -> None:
    folder = script(SCRIPT)
    (folder / "train.yaml").write_text("params: {epochs: 3}\noutputs: [who.txt]\n")
    made = cli.json(
        "schedule", "create", folder, "--every", "60", "--name", "often", "--set", "epochs=7"
    )
    assert (made["schedule"], made["state"]) == ("often", "active")
    until(lambda: len(runs_of(cli, "often")) == 2, timeout_s=150)
    first, second = runs_of(cli, "often")[:2]
    assert first != second
    for run_id in (first, second):
        found = show_ended(cli, run_id)
        assert found["state"] == "succeeded"
        assert found["run"]["schedule"] == "often"
        assert found["run"]["params"] == {"epochs": 7}
        assert "'--epochs', '7'" in cli.ok("logs", run_id)
    listed = [row["run_id"] for row in cli.json("ps")]
    assert {first, second} <= set(listed)
    assert cli.json("schedule", "pause", "often")["state"] == "paused"
    [row] = [row for row in cli.json("schedule", "ls") if row["schedule"] == "often"]
    assert row["state"] == "paused"
    triggered = cli.json("schedule", "trigger", "often")["run_id"]
    assert show_ended(cli, triggered)["state"] == "succeeded"
    shown = cli.json("schedule", "show", "often")["firings"]
    states = {
        run["run_id"]: (one["triggered"], run["state"]) for one in shown for run in one["runs"]
    }
    assert states[first] == (False, "succeeded")
    assert states[triggered] == (True, "succeeded")
    text = cli.ok("schedule", "show", "often")
    assert "\nRUN  " in text
    assert f"\n{triggered}  trigger  " in text
    cli.ok("schedule", "resume", "often")
    assert cli.json("schedule", "show", "often")["state"] == "active"
    assert cli.json("schedule", "rm", "often")["state"] == "gone"
    assert "often" not in [row["schedule"] for row in cli.json("schedule", "ls")]
    assert show_ended(cli, first)["state"] == "succeeded", "what ran stays"


@pytest.mark.feature(30)
def test_calendar_is_one_schedule_of_several_job_schedules(cli: Cli, script: Write) -> None:
    """The first of two times, a minute apart, is at most two minutes from now."""
    soon = datetime.now(UTC) + timedelta(seconds=70)
    minutes = f"{soon.minute},{(soon.minute + 1) % 60}"
    cron = ("--cron", f"{minutes} * * * *", "--timezone", "Europe/Berlin")
    cli.ok("schedule", "create", script(SCRIPT), *cron, "--name", "often")
    shown = cli.json("schedule", "show", "often")
    assert len(shown["next_runs"]) == 5
    assert shown["next_runs"][0][-6:] in ("+01:00", "+02:00")
    assert datetime.fromisoformat(shown["next"]) == datetime.fromisoformat(shown["next_runs"][0])
    [row] = [row for row in cli.json("schedule", "ls") if row["schedule"].startswith("often")]
    assert row["state"] == "active", "its parts are no schedules"
    assert cli.json("schedule", "pause", "often")["state"] == "paused"
    assert cli.json("schedule", "show", "often")["state"] == "paused"
    cli.ok("schedule", "resume", "often")
    first, *_ = until(lambda: runs_of(cli, "often"), timeout_s=180)
    assert show_ended(cli, first)["state"] == "succeeded"
    assert cli.json("schedule", "rm", "often")["state"] == "gone"
    assert cli.json("schedule", "ls") == []


def test_removing_a_schedule_cancels_its_active_run(cli: Cli, script: Write) -> None:
    folder = script("import time; time.sleep(600)")
    cli.ok("schedule", "create", folder, "--every", "1d", "--name", "long")
    [run_id] = until(lambda: runs_of(cli, "long"))
    until(lambda: cli.json("show", run_id)["state"] == "running")
    cli.ok("schedule", "rm", "long")
    assert show_ended(cli, run_id)["state"] == "cancelled"
    assert cli.run("schedule", "show", "long").returncode == 2


GRAPH = """
name: graph{name}
schedule: {{every: 1d}}
tasks:
  first: {{recipe: ./project, params: {{code: {code}}}}}
  last: {{recipe: ./project, inputs: {{rows: {{run: first}}}}}}
"""
STEP = """
import os, pathlib, sys
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "said.txt")
rows = os.environ.get("RUNNER_INPUT_ROWS")
before = pathlib.Path(rows, "said.txt").read_text() if rows else "nothing"
out.write_text(os.environ["WORD"][::-1] + " after " + before)
print(out.read_text())
sys.exit(int(sys.argv[sys.argv.index("--code") + 1]))
"""


@pytest.fixture
def graph(script: Write) -> Write:
    def write(name: str, code: int = 0) -> Path:
        folder = script(STEP)
        (folder / "train.yaml").write_text(
            "params: {code: 0}\nsecrets: {WORD: {env: MY_WORD}}\noutputs: [said.txt]\n"
        )
        file = folder.parent / "graph.yaml"
        file.write_text(GRAPH.format(name=name, code=code))
        return file

    return write


def group_of(cli: Cli, schedule: str) -> dict[str, dict[str, Any]]:
    """Return the tasks of the schedule's first group, once all have ended."""

    def look() -> dict[str, dict[str, Any]] | None:
        groups = cli.json("schedule", "show", schedule)["groups"]
        if not groups:
            return None
        tasks = {one["task"]: one for one in cli.json("show", groups[0])["tasks"]}
        over = all(one["state"] in ("succeeded", "failed", "cancelled") for one in tasks.values())
        return tasks if over else None

    return until(look) or {}


@pytest.mark.feature(29)
@pytest.mark.feature(30)
def test_file_with_a_schedule_creates_a_group_at_each_firing(cli: Cli, graph: Write) -> None:
    file = graph("-a")
    made = json.loads(cli.ok("submit", file, "-o", "json", env={"MY_WORD": "hunter2secret"}))
    assert (made["schedule"], made["state"]) == ("graph-a", "active")
    assert made["tasks"] == ["first", "last"]
    tasks = group_of(cli, "graph-a")
    assert {name: one["state"] for name, one in tasks.items()} == {
        "first": "succeeded",
        "last": "succeeded",
    }
    last = tasks["last"]["run_id"]
    assert cli.ok("logs", last).strip() == "terces2retnuh after terces2retnuh after nothing"
    shown = cli.json("schedule", "show", "graph-a")
    [group] = shown["groups"]
    assert {row["run_id"] for row in cli.json("ps", "--group", group)} == set(shown["runs"])
    assert (cli.json("show", last)["run"]["schedule"]) == "graph-a"
    text = cli.ok("schedule", "show", "graph-a")
    assert f"\n{group}  schedule " in text
    assert f"first  succeeded  {tasks['first']['run_id']}\n└─ last  succeeded  {last}" in text
    cli.ok("schedule", "rm", "graph-a")
    assert cli.json("show", last)["state"] == "succeeded"


def test_triggered_group_blocks_after_failures_and_reads_new_secrets(
    cli: Cli, graph: Write
) -> None:
    cli.ok("submit", graph("-b", code=3), env={"MY_WORD": "of-creation"})
    refused = cli.run("schedule", "trigger", "graph-b")
    assert "error[R-SECRET-MISSING]" in refused.stderr
    assert "only to the scheduled tasks" in refused.stderr
    text = cli.ok("schedule", "trigger", "graph-b", "-o", "json", env={"MY_WORD": "of-the-day"})
    group = json.loads(text)["group"]

    def over() -> dict[str, dict[str, Any]] | None:
        tasks = {one["task"]: one for one in cli.json("show", group)["tasks"]}
        final = ("failed", "cancelled")
        return tasks if all(one["state"] in final for one in tasks.values()) else None

    tasks = until(over) or {}
    assert {name: one["state"] for name, one in tasks.items()} == {
        "first": "failed",
        "last": "cancelled",
    }
    assert "yad-eht-fo" in cli.ok("logs", tasks["first"]["run_id"])
    assert group in cli.json("schedule", "show", "graph-b")["groups"]
    cli.ok("schedule", "rm", "graph-b")


def test_schedule_of_a_file_is_created_and_invalid_ones_are_refused(
    cli: Cli, script: Write
) -> None:
    folder = script(SCRIPT)
    file = folder.parent / "nightly.yaml"
    hour = (datetime.now(UTC) + timedelta(hours=12)).hour
    file.write_text(
        f"schedule: {{cron: '0 {hour} * * *', max_runs: 2}}\ntasks:\n  a: {{recipe: ./project}}\n"
    )
    made = cli.json("schedule", "create", file)
    assert (made["schedule"], made["when"]) == ("nightly", f"0 {hour} * * *")
    assert made["next"].endswith(f"{hour:02d}:00:00+00:00")
    assert made["until"]
    assert runs_of(cli, "nightly") == []
    assert "R-SCHEDULE-EXISTS" in cli.run("schedule", "create", file).stderr
    assert "R-SCHEDULE-EXISTS" in cli.run("submit", file).stderr
    cli.ok("schedule", "rm", "nightly")
    for args in (("--cron", "0 3 1 * *"), ("--cron", "@daily", "--timezone", "Europe/Berlin")):
        planned = cli.json("schedule", "create", folder, *args, "--dry-run")
        assert len(planned["next_runs"]) == 5
    assert cli.json("schedule", "ls") == [], "a dry run creates nothing"
    for args, code in (
        (("--cron", "0 3 * * funday"), "R-SCHEDULE-CRON"),
        (("--cron", "0 3 * * *", "--timezone", "Europe/Berln"), "R-SCHEDULE-ZONE"),
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
