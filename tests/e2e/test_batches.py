"""Batches of work: jobs that are paused and moved to another pool, and pools that are drained."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

import runner
from runner.azure.batch.translate import wire_text
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.flows.runs.moving import job_steps
from tests.e2e.conftest import Cli, new_home, until

Write = Callable[..., Path]
OTHER = "other"  # a pool that is not in the outputs, like one that `az batch pool create` made

# A script without our hooks: it continues from its file, and ends in the other pool only.
SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state.txt")
print("starts at", state.read_text() if state.exists() else "0", flush=True)
if not state.exists():
    state.with_suffix(".new").write_text("7")
    state.with_suffix(".new").rename(state)
while os.environ["AZ_BATCH_POOL_ID"] != "other":
    time.sleep(0.1)
print(f"loss: {args.lr}", flush=True)
open("model.txt", "w").write(str(args.lr))
"""

COUNT = """
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--csv")
number, licence = open(parser.parse_args().csv).read().split()
if number == "2" and not pathlib.Path(licence).exists():
    sys.exit("no licence")
open("sum.txt", "w").write(number)
"""
MERGE = """
import glob, sys
sums = [int(open(each).read()) for each in glob.glob(sys.argv[1] + "/*/sum.txt")]
print(f"{len(sums)} files, total {sum(sums)}")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("batches")
    cli = Cli(new_home(folder / "home"), folder)
    cli.ok("local", "up", "--nodes", "2", "--slots", "1")
    create_pool(batch_of(cli), OTHER, nodes=2)
    yield cli.home
    cli.ok("local", "down")


def batch_of(cli: Cli) -> BatchClient:
    paths = HomePaths(cli.home)
    outputs = parse_stack_outputs(paths.local_outputs.read_text())
    key = json.loads(paths.keys.read_text())["batch"]
    return BatchClient(outputs.batch_endpoint, AzureNamedKeyCredential(outputs.batch_account, key))


def create_pool(batch: BatchClient, pool_id: str, nodes: int, start: str | None = "") -> None:
    """Create a pool with another command of its start task, by default that of the local pool.

    With None, it has no start task.
    """
    local = batch.get_pool("local")
    settings = local.start_task.environment_settings if local.start_task else None
    other = models.BatchStartTask(
        command_line=start or "", environment_settings=settings, wait_for_success=True
    )
    batch.create_pool(
        models.BatchPoolCreateOptions(
            id=pool_id,
            vm_size="Standard_D2s_v3",
            virtual_machine_configuration=local.virtual_machine_configuration,
            target_low_priority_nodes=nodes,
            start_task=None if start is None else other if start else local.start_task,
        )
    )


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    return Cli(home, tmp_path)


def states(cli: Cli, sweep: str) -> dict[str, int]:
    return cli.json("sweep", "show", sweep)["states"]


@pytest.mark.feature(41)
def test_sweep_moves_to_another_pool_although_the_client_is_killed(cli: Cli, script: Write) -> None:
    started = cli.json("sweep", "start", script(SCRIPT), "-p", "lr=0.1,0.2,0.3", "--detach")
    sweep, move = started["sweep"], ("sweep", "move", started["sweep"], "--to", OTHER)
    until(lambda: states(cli, sweep).get("running") == 2)
    running = [row["run_id"] for row in cli.json("ps", "--group", sweep) if row["attempts"]]
    for run_id in running:  # a trial that is moved before its first checkpoint starts at 0 again
        until(lambda run_id=run_id: cli.json("show", run_id)["checkpoints"])
        until(lambda run_id=run_id: cli.ok("logs", run_id) == "starts at 0\n")
    chance = random.Random(16)
    for _ in range(3):
        process = cli.start(*move)
        time.sleep(chance.uniform(0.6, 1.8))  # the time of the kill is random
        process.kill()
        process.communicate()
    done = cli.run(*move)
    # A client may have moved all trials before it was killed.
    assert done.returncode == 0 or "R-JOB-ENDED" in done.stderr, done.stderr
    until(lambda: states(cli, sweep) == {"succeeded": 3})
    rows = {row["run_id"]: row for row in cli.json("ps", "--group", sweep)}
    assert {row["pool"] for row in rows.values()} == {OTHER}
    assert [row["evicted"] for row in rows.values()] == [0, 0, 0]
    outputs = [cli.ok("logs", run_id) for run_id in rows]
    assert sorted(each.count("loss:") for each in outputs) == [1, 1, 1]
    resumed = [each for each in outputs if each.startswith("starts at 0\nstarts at 7\n")]
    assert len(resumed) == 2
    assert cli.json("sweep", "ls")[0]["pool"] == OTHER
    costs = cli.json("cost", "show", "--by", "pool", "--spot-price", "1")["rows"]
    assert {row["name"] for row in costs} == {"local", OTHER}
    ended = cli.run(*move)
    assert ended.returncode == 3
    assert "R-JOB-ENDED" in ended.stderr


def test_trials_that_share_a_task_move_to_another_pool(cli: Cli, script: Write) -> None:
    words = ("-p", "lr=0.1,0.2,0.3", "--trials-per-task", "3", "--detach")
    sweep = cli.json("sweep", "start", script(SCRIPT), *words)["sweep"]
    until(lambda: states(cli, sweep) == {"queued": 2, "running": 1})
    [first] = [row["run_id"] for row in cli.json("ps", "--group", sweep) if row["attempts"]]
    until(lambda: cli.json("show", first)["checkpoints"])
    moved = cli.json("sweep", "move", sweep, "--to", OTHER)
    assert [job["runs"] for job in moved["jobs"]] == [3]
    until(lambda: states(cli, sweep) == {"succeeded": 3})
    rows = {row["run_id"]: row for row in cli.json("ps", "--group", sweep)}
    assert {(row["pool"], row["evicted"]) for row in rows.values()} == {(OTHER, 0)}
    assert {run_id: row["attempts"] for run_id, row in rows.items()} == {
        run_id: 2 if run_id == first else 1 for run_id in rows
    }
    assert "starts at 7" in cli.ok("logs", first)


@pytest.mark.feature(41)
def test_pool_is_drained_and_used_again_and_nothing_is_lost(cli: Cli, script: Write) -> None:
    started = cli.json("sweep", "start", script(SCRIPT), "-p", "lr=0.4,0.5,0.6", "--detach")
    sweep = started["sweep"]
    until(lambda: states(cli, sweep).get("running") == 2)

    def row() -> dict[str, Any]:
        return cli.json("ps", "--group", sweep)[0]

    assert cli.json("sweep", "pause", sweep)["jobs"][0]["paused"] is True
    assert row()["reason"].endswith(f"is paused: runner sweep unpause {sweep}")
    for subject in (row()["run_id"], sweep):
        why = cli.json("why", subject)
        assert (why["state"], why["command"]) == ("paused", f"runner sweep unpause {sweep}")
    for pool, code in (("othr", "R-POOL-UNKNOWN"), ("local", "R-POOL-SAME")):
        refused = cli.run("pool", "drain", "local", "--to", pool)
        assert code in refused.stderr
    drained = cli.json("pool", "drain", "local", "--to", OTHER)
    assert (len(drained["nodes"]), drained["jobs"][0]["paused"]) == (2, True)
    assert {each["state"] for each in cli.json("pool", "nodes", "local")} == {"offline"}
    assert (row()["state"], row()["pool"]) == ("queued", OTHER)
    cli.ok("sweep", "unpause", sweep)
    until(lambda: states(cli, sweep) == {"succeeded": 3})
    assert len(cli.json("pool", "enable", "local")["nodes"]) == 2
    until(lambda: {each["state"] for each in cli.json("pool", "nodes", "local")} == {"idle"})


def test_client_killed_before_it_enables_the_job_has_recorded_the_pool(
    home: Path, cli: Cli, script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials may end before another client completes the move."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("RUNNER_HOME", str(home))
    monkeypatch.setenv("RUNNER_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    sweep = runner.sweep(script(SCRIPT), {"lr": [0.3]})
    with monkeypatch.context() as killed:
        killed.setattr(job_steps, "enable_job", kill)
        with pytest.raises(KeyboardInterrupt):
            sweep.move(OTHER)
    assert cli.json("sweep", "ls")[0]["pool"] == OTHER
    assert cli.json("ps", "--group", sweep.id)[0]["pool"] == OTHER
    sweep.move(OTHER).wait(timeout_s=120, check=True)


GATED = """
import os, pathlib, sys, time
while not pathlib.Path("{gate}").exists():
    time.sleep(0.1)
print(os.environ["AZ_BATCH_POOL_ID"])
"""


def test_end_of_a_drain_continues_only_the_jobs_that_it_disabled(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    folder, batch = script(GATED.format(gate=tmp_path / "gate")), batch_of(cli)
    names = ("drained", "paused", "disabled")
    runs = {name: cli.json("train", folder, "-e", name, "--detach") for name in names}

    def jobs() -> dict[str, str]:
        return {name: wire_text(batch.get_job(run["job_id"]).state) for name, run in runs.items()}

    cli.ok("sweep", "pause", "paused")
    requeue = models.BatchJobDisableOptions(disable_tasks="requeue")
    batch.begin_disable_job(runs["disabled"]["job_id"], requeue, polling_interval=0).result()
    before = {"drained": "active", "paused": "disabled", "disabled": "disabled"}
    assert jobs() == before
    cli.ok("pool", "drain", "local", "--running", "requeue")
    assert set(jobs().values()) == {"disabled"}
    cli.ok("pool", "enable", "local")
    assert jobs() == before
    cli.ok("sweep", "unpause", "paused")
    batch.begin_enable_job(runs["disabled"]["job_id"], polling_interval=0).result()
    (tmp_path / "gate").touch()
    until(
        lambda: all(
            cli.json("show", run["run_id"])["state"] == "succeeded" for run in runs.values()
        )
    )


@pytest.mark.fix("R-JOB-MOVED", "R-POOL-FIT")
def test_printed_commands_complete_a_move(cli: Cli, script: Write, tmp_path: Path) -> None:
    folder = script(GATED.format(gate=tmp_path / "gate"))
    started = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.2,0.3", "--detach")
    sweep = started["sweep"]
    until(lambda: states(cli, sweep).get("running") == 2)
    move = ("sweep", "move", sweep, "--running", "wait", "--to")
    batch = batch_of(cli)
    create_pool(batch, "third", nodes=0)
    first = cli.start(*move, "third")
    until(lambda: batch.get_job(started["job_id"]).state == "disabling")
    second = cli.start(*move, OTHER)
    refused = first.communicate(timeout=180)[1]
    second.kill()
    second.communicate()
    assert "error[R-JOB-MOVED]" in refused, refused
    fix = refused.partition("  fix: ")[2].partition("\n")[0]
    again = cli.start(*shlex.split(fix)[1:])
    (tmp_path / "gate").touch()
    assert again.wait(180) == 0, again.communicate()
    until(lambda: states(cli, sweep) == {"succeeded": 3})
    assert OTHER in {row["pool"] for row in cli.json("ps", "--group", sweep)}

    (folder / "train.yaml").write_text("resources: {memory: 64GiB}\n")
    (tmp_path / "gate").unlink()
    heavy = cli.json("train", folder, "-e", "heavy", "--detach")["run_id"]
    refused = cli.run("sweep", "move", "heavy", "--to", OTHER).stderr
    assert "error[R-POOL-FIT]" in refused, refused
    assert "fix: use another pool: runner pool ls" in refused
    cli.ok("pool", "ls")
    cli.ok("cancel", heavy)


def test_pool_that_somebody_else_made_is_refused_before_anything_moves(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    create_pool(batch_of(cli), "plain", nodes=1, start=None)
    folder = script(GATED.format(gate=tmp_path / "gate"))
    started = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.2", "--detach")
    sweep = started["sweep"]
    until(lambda: states(cli, sweep) == {"running": 2})
    for words in (("sweep", "move", sweep), ("pool", "drain", "local")):
        refused = cli.run(*words, "--to", "plain").stderr
        assert "error[R-POOL-FIT]" in refused
        assert "without uv, every run fails" in refused
    assert states(cli, sweep) == {"running": 2}
    assert {row["pool"] for row in cli.json("ps", "--group", sweep)} == {"local"}
    assert {row["attempts"] for row in cli.json("ps", "--group", sweep)} == {1}
    cli.ok("sweep", "pause", sweep)  # a trial that starts there fails
    moved = cli.json("sweep", "move", sweep, "--to", "plain", "--force")
    assert moved["pool"] == "plain"
    cli.ok("sweep", "move", sweep, "--to", "local")
    cli.ok("sweep", "unpause", sweep)
    (tmp_path / "gate").touch()
    until(lambda: states(cli, sweep) == {"succeeded": 2})


@pytest.mark.fix("R-POOL-UNUSABLE")
def test_pool_whose_nodes_cannot_run_tasks_is_refused_and_left(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    create_pool(batch_of(cli), "broken", nodes=1, start="/bin/sh -c 'exit 3'")
    folder = script(GATED.format(gate=tmp_path / "gate"))
    sweep = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.2", "--detach")["sweep"]
    until(lambda: states(cli, sweep) == {"running": 2})
    until(lambda: cli.json("pool", "nodes", "broken")[0]["state"] == "starttaskfailed")
    move = ("sweep", "move", sweep, "--to", "broken")
    for words in (move, ("pool", "drain", "local", "--to", "broken")):
        refused = cli.run(*words)
        assert refused.returncode == 3
        assert "error[R-POOL-UNUSABLE]" in refused.stderr
        assert "the start task failed on the only node of pool broken" in refused.stderr
    fix = refused.stderr.partition("correct this one: runner ")[2].partition("\n")[0]
    assert cli.json(*shlex.split(fix))["cause"] == "StartTaskFailed"
    assert states(cli, sweep) == {"running": 2}

    cli.ok("pool", "resize", "broken", "0")
    until(lambda: not cli.json("pool", "nodes", "broken"))
    cli.ok(*move)
    cli.ok("pool", "resize", "broken", "1")
    trial = cli.json("ps", "--group", sweep)[0]["run_id"]
    until(lambda: cli.json("why", trial)["cause"] == "StartTaskFailed")
    back = cli.json("why", trial)["command"]
    assert back == f"runner sweep move {sweep} --to local"
    cli.ok(*shlex.split(back)[1:])
    (tmp_path / "gate").touch()
    until(lambda: states(cli, sweep) == {"succeeded": 2})


@pytest.mark.feature(42)
@pytest.mark.feature(51)
def test_merge_task_reads_all_results_after_failed_files_were_repeated(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    folder, licence = script(COUNT, "count.py"), tmp_path.parent / f"{tmp_path.name}-licence"
    (folder / "merge.py").write_text(MERGE)
    (tmp_path / "up").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "up" / f"part-{number}.csv").write_text(f"{number} {licence}")
    cli.ok("data", "put", tmp_path / "up", "data:counts")
    files = ("-p", "csv={files: 'blob:data/counts/*.csv'}")
    merge = ("--merge", "python merge.py $RUNNER_INPUT_TRIALS", "-e", "counted", "-o", "json")
    done = cli.run("sweep", "start", folder / "count.py", *files, *merge)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["states"] == {"succeeded": 2, "failed": 1}
    assert (document["merge"]["state"], "blocked by" in document["merge"]["reason"]) == (
        "cancelled",
        True,
    )
    licence.touch()
    cli.ok("sweep", "resume", document["sweep"])
    document = cli.json("sweep", "show", document["sweep"])
    assert document["states"] == {"succeeded": 3}
    assert document["merge"]["state"] == "succeeded"
    assert cli.ok("logs", document["merge"]["run_id"]) == "3 files, total 6\n"
    runs = {row["run_id"] for row in cli.json("ps", "-a", "-e", "counted")}
    assert len(runs) == 6  # three trials and the merge task, and one retry of each


@pytest.mark.fix("R-MERGE-PARTIAL")
@pytest.mark.feature(51)
def test_merge_without_failed_trials_is_decided_afterwards(cli: Cli, script: Write) -> None:
    folder = script("import sys; sys.exit(sys.argv[2] == '2')")
    (folder / "merge.py").write_text(
        "import json, sys\nfor trial in json.load(open(sys.argv[1] + '/trials.json')):\n"
        "    print(trial['trial'], trial['status'])\n"
    )
    merge = ("--merge", "python merge.py $RUNNER_INPUT_TRIALS")
    assert cli.run("sweep", "start", folder, "-p", "n=1,2,3", *merge).returncode == 1
    shown = cli.run("sweep", "show", "@last")
    blocked = cli.json("sweep", "show", "@last")
    assert blocked["merge"]["state"] == "cancelled"
    hint = f"runner sweep resume {blocked['sweep']} --partial"
    assert f"to merge without the others: {hint}\n" in shown.stderr
    done = cli.run(*hint.split()[1:])
    assert "merge task started\n" in done.stderr
    merged = cli.json("sweep", "show", "@last")
    assert (merged["states"], merged["merge"]["state"]) == (blocked["states"], "succeeded")
    assert cli.ok("logs", merged["merge"]["run_id"]) == "1 succeeded\n2 failed\n3 succeeded\n"
    again = cli.run(*hint.split()[1:]).stderr
    assert "R-MERGE-PARTIAL" in again
    assert f"fix: runner show {merged['merge']['run_id']}\n" in again
    assert "fix: runner files get" in refused_partial(cli, folder, "p=1")


def refused_partial(cli: Cli, folder: Path, param: str) -> str:
    """Return the error of a sweep without a merge task, whose fix works."""
    cli.ok("sweep", "start", folder, "-p", param)
    refused = cli.run("sweep", "resume", "@last", "--partial").stderr
    cli.ok(*refused.partition("fix: runner ")[2].partition("\n")[0].split())
    return refused


@pytest.mark.feature(41)
def test_trials_that_a_drain_or_a_pause_terminated_are_resumed_afterwards(
    cli: Cli, script: Write
) -> None:
    started = cli.json("sweep", "start", script(SCRIPT), "-p", "lr=0.7,0.8", "--detach")
    sweep = started["sweep"]
    for stop, proceed in (
        (("pool", "drain", "local"), ("pool", "enable", "local")),
        (("sweep", "pause", sweep), ("sweep", "unpause", sweep)),
    ):
        until(lambda: states(cli, sweep).get("running") == 2)
        cli.ok(*stop, "--running", "terminate")
        until(lambda: states(cli, sweep) == {"paused": 2})
        refused = cli.run("sweep", "resume", sweep, "--detach")
        assert "R-JOB-DISABLED" in refused.stderr
        assert " ".join(proceed) in refused.stderr
        assert states(cli, sweep) == {"paused": 2}
        cli.ok(*proceed)
        assert states(cli, sweep) == {"failed": 2}
        assert len(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == 2
    until(lambda: states(cli, sweep).get("running") == 2)
    cli.ok("sweep", "move", sweep, "--to", OTHER)
    until(lambda: states(cli, sweep) == {"succeeded": 2})
    trials = cli.json("sweep", "show", sweep)["trials"]
    assert {(trial["attempts"], trial["evicted"]) for trial in trials} == {(4, 0)}


@pytest.mark.feature(41)
def test_sweep_is_paused_moved_and_merged_from_python(
    home: Path, script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = script(SCRIPT)
    (folder / "merge.py").write_text("import os; print('merged', os.environ['COLOR'])")
    monkeypatch.setenv("RUNNER_HOME", str(home))
    monkeypatch.setenv("RUNNER_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    sweep = runner.sweep(folder, {"lr": [0.9]}, merge="python merge.py", env={"COLOR": "red"})
    until(lambda: sweep.states["1"] == "running")
    assert sweep.pause().states == {"1": "queued", "merge": "queued"}
    sweep.move(OTHER).unpause().wait(timeout_s=120, check=True)
    assert "merged red" in sweep["merge"].logs()
    assert sweep["1"].spec.env["COLOR"] == "red"
    assert sweep["1"].spec.pool == OTHER
