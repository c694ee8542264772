"""`runner submit` against real services: a graph of tasks, its failures and interruptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.translate import wire_text
from runner.azure.storage.blobs import BlobContainer
from runner.core.progress import ignore_progress
from runner.core.settings import load_settings
from runner.flows.submit.pipeline import SubmissionPlan
from runner.flows.submit.repeat import list_to_retry
from runner.flows.submit.submit_group import finish_interrupted, submit_group
from tests.e2e.conftest import Cli, evict_node_of, until
from tests.e2e.plans import plan_file

FINAL = ("succeeded", "failed", "cancelled", "lost")
# The arguments of a task define its work: wait for a file, write, read its inputs, exit.
WORK = """
import os, pathlib, sys, time
name, gate, code = sys.argv[1:4]
while gate != "-" and not pathlib.Path(gate).exists(): time.sleep(0.05)
found = [
    f"{key.removeprefix('RUNNER_INPUT_').lower()}={(pathlib.Path(value) / 'out.txt').read_text()}"
    for key, value in sorted(os.environ.items()) if key.startswith("RUNNER_INPUT_")
]
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"]) / "out.txt"
out.write_text(f"{name}({','.join(found)})")
sys.exit(int(code))
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        (tmp_path / "work.py").write_text(WORK)
        path = tmp_path / "graph.yaml"
        path.write_text(text)
        return path

    return to_file


@pytest.fixture
def connection(session_home: Path, tmp_path: Path) -> Connection:
    env = {"RUNNER_HOME": str(session_home), "HOME": "/"}
    return connect(load_settings({}, cwd=tmp_path, env=env))


def task(name: str, gate: object = "-", code: int = 0, **more: str) -> str:
    keys = "".join(f", {key}: {value}" for key, value in more.items())
    return f"  {name}: {{command: [python, work.py, {name}, {gate}, '{code}']{keys}}}\n"


def tasks(cli: Cli, group: str) -> dict[str, dict[str, Any]]:
    return {found["task"]: found for found in cli.json("show", group)["tasks"]}


def ended(cli: Cli, group: str) -> dict[str, dict[str, Any]]:
    def look() -> dict[str, dict[str, Any]] | None:
        found = tasks(cli, group)
        return found if all(one["state"] in FINAL for one in found.values()) else None

    return until(look) or {}


def job_state(connection: Connection, job_id: str) -> str:
    return wire_text(connection.batch_client().get_job(job_id).state)


@pytest.mark.smoke
@pytest.mark.feature(29)
def test_merge_task_reads_outputs_of_its_predecessors_and_the_job_ends(
    cli: Cli, write: Write, connection: Connection, tmp_path: Path
) -> None:
    text = (
        "priority: 3\ntasks:\n"
        + task("prepare")
        + task("left", inputs="{base: {run: prepare}}")
        + task("right", inputs="{base: {run: prepare}}", after="[prepare]")
        + task("merge", inputs="{a: {run: left}, b: {run: right}}")
    )
    done = cli.run("submit", write(text), "-o", "json")
    assert done.returncode == 0, done.stderr
    group = done.stderr.split("group ")[1].split()[0]
    shown = cli.json("show", group)
    assert f"runner ps --group {group}" in cli.run("metrics", group).stderr
    states = {one["task"]: one["state"] for one in shown["tasks"]}
    assert states == dict.fromkeys(("prepare", "left", "right", "merge"), "succeeded")
    runs = {one["task"]: one["run_id"] for one in shown["tasks"]}
    cli.ok("files", "get", runs["merge"], "--output-dir", tmp_path / "got")
    [merged] = (tmp_path / "got").rglob("out.txt")
    assert merged.read_text() == "merge(a=left(base=prepare()),b=right(base=prepare()))"
    until(lambda: job_state(connection, shown["job_id"]) == "completed")
    job = connection.batch_client().get_job(shown["job_id"])
    assert job.priority == 3
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "AllTasksCompleted"
    listed = cli.json("ps", "--group", shown["group"])
    assert {row["run_id"] for row in listed} == set(runs.values())
    assert cli.json("show", runs["merge"])["run"]["group"] == shown["group"]


def test_failure_blocks_only_later_tasks(cli: Cli, write: Write, connection: Connection) -> None:
    text = (
        "tasks:\n"
        + task("bad", code=4)
        + task("after-bad", after="[bad]")
        + task("deeper", after="[after-bad]")
        + task("aside")
        + task("known-bad", code=5, on_failure="satisfy")
        + task("anyway", after="[known-bad, aside]")
    )
    done = cli.run("submit", write(text), "-o", "json")
    assert done.returncode == 1
    group = done.stderr.split("group ")[1].split()[0]
    found = tasks(cli, group)
    assert {name: one["state"] for name, one in found.items()} == {
        "bad": "failed",
        "after-bad": "cancelled",
        "deeper": "cancelled",
        "aside": "succeeded",
        "known-bad": "failed",
        "anyway": "succeeded",
    }
    assert found["after-bad"]["reason"] == f"blocked by {found['bad']['run_id']}, which failed"
    by = found["after-bad"]["run_id"]
    assert found["deeper"]["reason"] == f"blocked by {by}, which was cancelled"
    text = cli.ok("show", group)
    assert "├─ after-bad" in text or "└─ after-bad" in text
    until(lambda: job_state(connection, group) == "completed")


class Killed(BaseException):
    """Ends the program like a SIGKILL: nothing of ours is run any more."""


LATER = timedelta(minutes=20)
PAIR = "tasks:\n" + task("a") + task("b", after="[a]")


def killed_while_submitting(
    cli: Cli, path: Path, connection: Connection, at: str, patch: pytest.MonkeyPatch
) -> SubmissionPlan:
    """Submit, and be killed where the function `at` is called."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    settings = load_settings({}, cwd=path.parent, env={"RUNNER_HOME": str(cli.home), "HOME": "/"})
    plan = plan_file(connection, settings, path)
    with patch.context() as context:
        context.setattr(f"runner.flows.submit.submit_group.{at}", die)
        with pytest.raises(Killed):
            submit_group(connection, plan, ignore_progress)
    return plan


@pytest.mark.parametrize(
    "point", ["add_tasks", pytest.param("close_when_done", marks=pytest.mark.slow)]
)
def test_group_of_a_killed_submission_is_listed_and_can_be_cancelled(
    cli: Cli, write: Write, connection: Connection, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plan = killed_while_submitting(cli, write(PAIR), connection, point, monkeypatch)
    group_id = plan.run_group.group_id
    left = "lost" if point == "add_tasks" else "succeeded"
    until(lambda: {one["state"] for one in tasks(cli, group_id).values()} == {left})
    assert job_state(connection, group_id) == "active"
    cli.ok("cancel", group_id)
    until(lambda: job_state(connection, group_id) == "completed")


def test_cancelling_a_group_ends_every_task_and_its_job(
    cli: Cli, write: Write, connection: Connection, tmp_path: Path
) -> None:
    text = (
        "tasks:\n"
        + task("quick")
        + task("slow", gate=tmp_path / "never", after="[quick]")
        + task("last", after="[slow]")
    )
    made = cli.run("submit", write(text), "-d", "-o", "json")
    group = json.loads(made.stdout)["group"]
    assert made.stderr.count(" upload ") == 1, "all tasks have the same code"
    until(lambda: tasks(cli, group)["slow"]["state"] == "running")
    waiting = tasks(cli, group)["last"]
    assert waiting["state"] == "queued"
    assert waiting["reason"] == f"after {tasks(cli, group)['slow']['run_id']}"
    rows = {row["task"]: row for row in cli.json("cancel", group)}
    assert [rows[name]["changed"] for name in ("quick", "slow", "last")] == [False, True, True]
    found = ended(cli, group)
    assert {name: one["state"] for name, one in found.items()} == {
        "quick": "succeeded",
        "slow": "cancelled",
        "last": "cancelled",
    }
    until(lambda: job_state(connection, group) == "completed")
    again = {row["task"]: row["changed"] for row in cli.json("cancel", group)}
    assert not any(again.values())


@pytest.mark.slow
def test_evicted_task_runs_again_before_its_successors(
    cli: Cli, write: Write, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    text = "tasks:\n" + task("first", gate=gate) + task("second", inputs="{a: {run: first}}")
    group = cli.json("submit", write(text), "-d")["group"]
    until(lambda: tasks(cli, group)["first"]["state"] == "running")
    first = tasks(cli, group)["first"]["run_id"]
    evict_node_of(cli, first, "--notice", "0")
    until(lambda: len(cli.json("show", first)["attempts"]) == 2)
    assert tasks(cli, group)["second"]["state"] == "queued"
    gate.touch()
    found = ended(cli, group)
    assert {one["state"] for one in found.values()} == {"succeeded"}
    assert len(cli.json("show", first)["attempts"]) == 2


def notes(connection: Connection) -> list[str]:
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    return [blob.name for blob in runs.list("submitting/")]


def test_next_command_closes_the_job_of_a_killed_submission(
    cli: Cli, write: Write, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = killed_while_submitting(cli, write(PAIR), connection, "close_when_done", monkeypatch)
    job_id = plan.run_group.job_id
    finish_interrupted(connection)
    job = connection.batch_client().get_job(job_id)
    assert wire_text(job.all_tasks_complete_mode) == "noaction", "it may go on this very moment"
    finish_interrupted(connection, datetime.now(UTC) + LATER)
    assert notes(connection) == []
    found = ended(cli, plan.run_group.group_id)
    assert {one["state"] for one in found.values()} == {"succeeded"}
    until(lambda: job_state(connection, job_id) == "completed")


def test_next_command_ends_the_job_of_a_submission_without_tasks(
    cli: Cli, write: Write, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = killed_while_submitting(cli, write(PAIR), connection, "add_tasks", monkeypatch)
    finish_interrupted(connection, datetime.now(UTC) + LATER)
    found = tasks(cli, plan.run_group.group_id)
    assert {one["state"] for one in found.values()} == {"lost"}, "no task was ever added"
    until(lambda: job_state(connection, plan.run_group.job_id) == "completed")
    assert notes(connection) == []
    ids = plan.run_group.runs
    lost = [row.run_id for row in list_to_retry(connection, None)]
    assert [run_id for run_id in lost if run_id in ids.values()] == [ids["a"], ids["b"]], (
        "what waits is repeated behind what it waits for, or it would be refused"
    )


def test_job_of_a_killed_submission_without_a_group_is_deleted(
    cli: Cli, write: Write, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = killed_while_submitting(cli, write(PAIR), connection, "group_blob", monkeypatch)
    group_id = plan.run_group.group_id
    for reference in (group_id, group_id[:-3]):
        done = cli.run("show", reference)
        assert done.returncode == 2
        assert f"the submission of {group_id} has not added its tasks" in done.stderr
    finish_interrupted(connection, datetime.now(UTC) + LATER)
    until(lambda: not list_jobs(connection, plan.run_group.job_id))
    assert notes(connection) == []


def test_next_command_completes_a_removal_that_a_second_ctrl_c_interrupted(
    cli: Cli, write: Write, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    settings = load_settings({}, cwd=write(PAIR).parent, env={**cli.env, "HOME": "/"})
    plan = plan_file(connection, settings, write(PAIR))
    with monkeypatch.context() as patch:
        patch.setattr("runner.flows.submit.submit_group.add_tasks", press)
        patch.setattr("runner.flows.submit.submit_group.delete_job", press)
        with pytest.raises(KeyboardInterrupt):
            submit_group(connection, plan, ignore_progress)
    assert job_state(connection, plan.run_group.job_id) == "active"
    finish_interrupted(connection, datetime.now(UTC) + LATER)
    until(lambda: job_state(connection, plan.run_group.job_id) == "completed")
    assert notes(connection) == []


def test_unreadable_interrupted_group_blocks_no_command(connection: Connection) -> None:
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    group_id = "newer-20261121-143005-k3f9"
    begun = {"format": 1, "group_id": group_id, "begun": "2026-11-21T14:30:05+00:00"}
    runs.create(f"submitting/{group_id}.json", begun)
    runs.create(f"groups/{group_id}.json", {"format": 99})
    try:
        finish_interrupted(connection, datetime.now(UTC) + LATER)
        assert f"submitting/{group_id}.json" in notes(connection)
    finally:
        runs.delete(f"submitting/{group_id}.json")
        runs.delete(f"groups/{group_id}.json")


def list_jobs(connection: Connection, job_id: str) -> list[str]:
    return [str(job.id) for job in connection.batch_client().list_jobs() if job.id == job_id]


def test_dry_run_prints_the_graph_and_starts_nothing(cli: Cli, write: Write) -> None:
    path = write("tasks:\n" + task("a") + task("b", after="[a]", params="{n: 1}"))
    before = len(cli.json("ps", "-a"))
    text = cli.ok("submit", path, "--dry-run", "--set", "b.n=7")
    lines = text.splitlines()
    assert lines[0] == "a  python work.py a - 0"
    assert lines[1] == "└─ b  python work.py b - 0 --n 7"
    document = cli.json("submit", path, "--dry-run", "--priority", "9")
    assert document["priority"] == 9
    assert document["runs"]["b"]["after"] == [document["tasks"]["a"]["run_id"]]
    assert len(cli.json("ps", "-a")) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tasks:\n  a: {command: x, after: [b]}\n  b: {command: x, after: [a]}", "a -> b -> a"),
        ("tasks:\n  a: {command: x, afer: [b]}", "graph.yaml:2: tasks.a.afer: unknown key"),
        ("", "tasks: missing"),
    ],
)
def test_invalid_file_is_refused_before_anything_starts(
    cli: Cli, write: Write, text: str, said: str
) -> None:
    done = cli.run("submit", write(text))
    assert done.returncode == 2
    assert said in done.stderr.replace("b -> a -> b", "a -> b -> a")
    assert cli.run("submit", "gone.yaml").returncode == 2


def test_missing_groups_and_runs_have_different_errors(cli: Cli, write: Write) -> None:
    group = cli.json("submit", write("name: alone\ntasks:\n" + task("a")), "-d")["group"]
    run_id = tasks(cli, group)["a"]["run_id"]
    assert cli.json("show", run_id)["run_id"] == run_id
    assert cli.run("show", "nothing-like-it").returncode == 2
    assert "R-RUN-UNKNOWN" in cli.run("cancel", "nothing-like-it").stderr
    assert "R-GROUP-UNKNOWN" in cli.run("ps", "--group", "nothing-like-it").stderr
    assert cli.json("show", group[:-2])["group"] == group, "a unique beginning, as for runs"
    mistyped = f"{group[:-1]}{'a' if group[-1] != 'a' else 'b'}"
    assert f"did you mean {group}?" in cli.run("show", mistyped).stderr
    assert f"runner ps --group {group}" in cli.run("metrics", group[:-2]).stderr
    ended(cli, group)
