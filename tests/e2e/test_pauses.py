"""Pauses that outlast their job: Batch ends a disabled job all of whose tasks have ended."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch import job_control
from runner.azure.batch.job_control import list_recorded_pauses, read_job
from runner.azure.batch.jobs import create_job, find_open_job
from runner.azure.storage.blobs import BlobContainer
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.job_moves import JobNote, Running
from runner.core.progress import ignore_progress
from runner.flows.local.state import ensure_keys
from runner.flows.sweeps import moves
from runner.flows.sweeps.moves import continue_jobs, find_jobs, pause_jobs
from runner.protocol.errors import RunnerError
from tests.e2e.conftest import Cli, new_home, until, write_whole
from tests.e2e.test_batches import create_pool

Write = Callable[..., Path]

GATED = """
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
while not pathlib.Path("{gate}").exists():
    time.sleep(0.05)
if pathlib.Path("{gate}").read_text():
    raise SystemExit("told to fail")
print(f"loss: {{args.lr}}", flush=True)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("pauses")
    cli = Cli(new_home(folder / "home"), folder)
    cli.ok("local", "up", "--nodes", "2", "--slots", "1")
    yield cli.home
    cli.ok("local", "down")


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    return Cli(home, tmp_path)


@pytest.fixture
def connection(home: Path) -> Connection:
    paths = HomePaths(home)
    return Connection(parse_stack_outputs(paths.local_outputs.read_text()), ensure_keys(paths))


@pytest.fixture
def sweep(cli: Cli, script: Write, tmp_path: Path) -> str:
    """Two trials that run until the file `gate` exists."""
    folder = script(GATED.format(gate=tmp_path / "gate"))
    started = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.2", "--detach")
    await_states(cli, started["sweep"], running=2)
    return started["sweep"]


def await_states(cli: Cli, sweep: str, **wanted: int) -> None:
    until(lambda: cli.json("sweep", "show", sweep)["states"] == wanted)


def await_state(connection: Connection, job_id: str, state: str) -> None:
    def is_there() -> bool:
        job = read_job(connection, job_id)
        return job is not None and job.state == state

    until(is_there)


def refuse_resume(cli: Cli, sweep: str, end: str) -> None:
    """Check that `sweep resume` starts nothing, and names the command that ends the pause."""
    before = cli.json("ps", "--group", sweep)
    refused = cli.run("sweep", "resume", sweep, "--detach")
    assert (refused.returncode, "R-JOB-DISABLED" in refused.stderr) == (3, True), refused.stderr
    assert f"{end}\n" in refused.stderr
    assert cli.json("ps", "--group", sweep) == before


PAUSE = (("sweep", "pause", "{}"), "runner sweep unpause {}")
DRAIN = (("pool", "drain", "local"), "runner pool enable local")


@pytest.mark.feature(41)
@pytest.mark.parametrize(("stop", "end"), [PAUSE, DRAIN], ids=["pause", "drain"])
def test_pause_that_terminates_all_trials_outlasts_their_job(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection, stop: tuple[str, ...], end: str
) -> None:
    stop, end = tuple(word.format(sweep) for word in stop), end.format(sweep)
    done = cli.json(*stop, "--running", "terminate")
    assert [(job["paused"], job["runs"]) for job in done["jobs"]] == [(True, 2)]
    await_state(connection, sweep, "completed")
    await_states(cli, sweep, paused=2)
    rows = cli.json("ps", "--group", sweep)
    assert all(f"{row['state']} {row['reason']}".endswith(end) for row in rows)
    for subject in (sweep, rows[0]["run_id"]):
        why = cli.json("why", subject)
        assert (why["state"], why["cause"], why["command"]) == ("paused", "JobDisabled", end)
    shown = cli.run("sweep", "show", sweep).stderr
    assert f"to continue: {end}" in shown
    assert "sweep resume" not in shown
    for again in (("retry", rows[0]["run_id"]), ("sweep", "move", sweep, "--to", "local")):
        assert cli.run(*again, "--detach" if again[0] == "retry" else "--force").returncode != 0
    refuse_resume(cli, sweep, end)
    cli.ok(*end.split()[1:])
    assert sweep not in list_recorded_pauses(connection)
    await_states(cli, sweep, failed=2)
    (tmp_path / "gate").touch()
    assert len(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == 2
    await_states(cli, sweep, succeeded=2)


@pytest.mark.feature(41)
def test_pause_that_waits_for_all_trials_outlasts_their_job(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    cli.ok("sweep", "pause", sweep, "--running", "wait")
    assert cli.json("sweep", "show", sweep)["states"] == {"running": 2}
    write_whole(tmp_path / "gate", "fail")
    await_state(connection, sweep, "completed")
    await_states(cli, sweep, failed=2)
    end = f"runner sweep unpause {sweep}"
    shown = cli.run("sweep", "show", sweep).stderr
    assert f"paused: its job {sweep} is paused   to continue: {end}\n" in shown
    assert "sweep resume" not in shown
    refuse_resume(cli, sweep, end)
    again = ("retry", cli.json("ps", "--group", sweep)[0]["run_id"], "--detach")
    assert f"{end}\n" in cli.run(*again).stderr
    assert cli.json("sweep", "unpause", sweep)["jobs"] == [
        {"job_id": sweep, "runs": 0, "changed": True, "paused": False}
    ]
    assert "sweep resume" in cli.run("sweep", "show", sweep).stderr
    (tmp_path / "gate").unlink()
    (tmp_path / "gate").touch()
    cli.ok(*again)
    assert len(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == 1
    await_states(cli, sweep, succeeded=2)
    assert "R-JOB-ENDED" in cli.run("sweep", "unpause", sweep).stderr


def test_pause_that_requeues_trials_keeps_the_job_open(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    cli.ok("sweep", "pause", sweep)
    await_states(cli, sweep, paused=2)
    job = read_job(connection, sweep)
    assert (job and job.state, job and job.outlasted) == ("disabled", False)
    assert cli.json("sweep", "unpause", sweep)["jobs"][0]["runs"] == 2
    assert sweep not in list_recorded_pauses(connection)
    (tmp_path / "gate").touch()
    await_states(cli, sweep, succeeded=2)
    job = read_job(connection, sweep)
    assert (job and job.note, job and job.paused) == (None, False)


def test_stop_of_a_paused_sweep_ends_the_pause(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    cli.ok("sweep", "pause", sweep)
    cli.ok("sweep", "stop", sweep)
    await_state(connection, sweep, "completed")
    (tmp_path / "gate").touch()
    assert len(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == 2
    await_states(cli, sweep, succeeded=2)


def test_pause_of_a_deleted_job_is_forgotten(cli: Cli, sweep: str, connection: Connection) -> None:
    cli.ok("sweep", "pause", sweep, "--running", "terminate")
    await_state(connection, sweep, "completed")
    until(lambda: cli.run("rm", sweep, "--yes").returncode == 0)
    assert sweep not in list_recorded_pauses(connection)


def test_experiment_takes_no_run_while_its_ended_job_is_paused(
    cli: Cli, script: Write, tmp_path: Path, connection: Connection
) -> None:
    folder = script(GATED.format(gate=tmp_path / "gate"))
    train = ("train", folder, "-e", "shared", "--detach")
    run = cli.json(*train)
    until(lambda: cli.json("show", run["run_id"])["state"] == "running")
    cli.ok("sweep", "pause", "shared", "--running", "terminate")
    await_state(connection, run["job_id"], "completed")
    assert cli.json("why", run["run_id"])["state"] == "paused"
    for refused in (train, ("retry", run["run_id"], "--detach")):
        assert "fix: use another name with --experiment" in cli.run(*refused).stderr
    cli.ok("sweep", "unpause", "shared")
    (tmp_path / "gate").touch()
    for again in (train, ("retry", run["run_id"], "--detach")):
        cli.ok(*again)


@pytest.mark.feature(41)
@pytest.mark.parametrize("running", ["terminate", "requeue"])
def test_drain_of_a_pool_that_was_deleted_is_ended(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection, running: Running
) -> None:
    """With the command that is named as the fix, for jobs that have ended and for open ones."""
    batch = connection.batch_client()
    doomed = f"doomed-{running}"
    create_pool(batch, doomed, nodes=2)
    cli.ok("sweep", "move", sweep, "--to", doomed)
    await_states(cli, sweep, running=2)
    cli.ok("pool", "drain", doomed, "--running", running)
    await_state(connection, sweep, "disabled" if running == "requeue" else "completed")
    batch.begin_delete_pool(doomed, polling_interval=0).wait()
    until(lambda: not any(pool.id == doomed for pool in batch.list_pools()))
    (tmp_path / "gate").touch()
    again = ("sweep", "resume", sweep, "--pool", "local", "--detach")
    if running == "terminate":
        refused = cli.run(*again).stderr
        assert f"enable the job: runner pool enable {doomed}\n" in refused
    ended = cli.json("pool", "enable", doomed.upper())
    assert ended["nodes"] == []
    assert [(job["job_id"], job["paused"]) for job in ended["jobs"]] == [(sweep, False)]
    cli.ok(*(again if running == "terminate" else ("sweep", "move", sweep, "--to", "local")))
    await_states(cli, sweep, succeeded=2)
    assert "R-POOL-UNKNOWN" in cli.run("pool", "enable", doomed).stderr


def test_past_pauses_of_an_experiment_cost_a_submission_one_request(
    cli: Cli, script: Write, tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = script(GATED.format(gate=tmp_path / "gate"))
    jobs: list[str] = []
    for _ in range(3):
        run = cli.json("train", folder, "-e", "often", "--detach")
        jobs.append(run["job_id"])
        until(lambda run=run: cli.json("show", run["run_id"])["state"] == "running")
        cli.ok("sweep", "pause", "often", "--running", "terminate")
        await_state(connection, jobs[-1], "completed")
        cli.ok("sweep", "unpause", "often")
    assert len({*jobs}) == 3
    requests: list[str] = []
    runs = job_control._runs

    def count(connection: Connection) -> BlobContainer:
        requests.append("one")
        return runs(connection)

    monkeypatch.setattr(job_control, "_runs", count)
    found = find_open_job(connection, jobs[0], "local")
    assert (found.job_id, found.exists, len(requests)) == (f"{jobs[0]}-4", False, 1)
    create_job(connection, found.job_id, "local")
    find_open_job(connection, f"{jobs[0]}-4", "local")
    assert len(requests) == 1, "no job of that name has been paused"


# Runs a command, and is killed before or after its n-th change of a job or of a pause's record.
KILLED = """
import os, signal, sys
from runner.azure.batch import job_control
from runner.azure.storage.blobs import BlobContainer
from runner.cli.main import main
from runner.flows.local.state import ensure_keys
from runner.flows.sweeps import moves
when, left = sys.argv.pop(1), int(sys.argv.pop(1))

def killing(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if not left and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*args, **kwargs)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call

for place, name in (
    (moves, "disable_job"), (moves, "enable_job"), (moves, "end_recorded_pause"),
    (job_control, "_update"), (BlobContainer, "put"), (BlobContainer, "delete"),
):
    setattr(place, name, killing(getattr(place, name)))
main()
"""


def kill(cli: Cli, when: str, change: int, *command: str) -> None:
    """Kill a command before or after its n-th change."""
    words = [sys.executable, "-c", KILLED, when, str(change), *command]
    done = subprocess.run(
        words, env=cli.env, cwd=cli.cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def test_killed_pause_is_repeated_or_in_effect(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    pause = ("sweep", "pause", sweep, "--running", "terminate")
    record, note, disable = 1, 2, 3
    for change, is_recorded, is_noted in (
        (record, False, False), (note, True, False), (disable, True, True)
    ):  # fmt: skip
        kill(cli, "before", change, *pause)
        job = read_job(connection, sweep)
        assert job is not None
        assert (job.state, job.note is not None) == ("active", is_noted)
        assert (sweep in list_recorded_pauses(connection)) == is_recorded
        assert cli.json("sweep", "show", sweep)["states"] == {"running": 2}
        cli.ok("sweep", "unpause", sweep)
        job = read_job(connection, sweep)
        assert (job and job.note) is None
    kill(cli, "after", disable, *pause)
    await_state(connection, sweep, "completed")
    await_states(cli, sweep, paused=2)
    refuse_resume(cli, sweep, f"runner sweep unpause {sweep}")
    kill(cli, "before", 1, "sweep", "unpause", sweep)
    refuse_resume(cli, sweep, f"runner sweep unpause {sweep}")
    cli.ok("sweep", "unpause", sweep)
    (tmp_path / "gate").touch()
    assert len(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == 2


def test_killed_pause_whose_trials_go_on_is_kept_until_unpause(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    """The person asked for a pause, so nothing new is started before they end it."""
    disable = 3
    kill(cli, "before", disable, "sweep", "pause", sweep)
    (tmp_path / "gate").touch()
    await_state(connection, sweep, "completed")
    await_states(cli, sweep, succeeded=2)
    job = read_job(connection, sweep)
    assert job is not None
    assert job.paused
    cli.ok("sweep", "unpause", sweep)
    job = read_job(connection, sweep)
    assert job is not None
    assert not job.paused


def test_killed_unpause_is_repeated(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection
) -> None:
    enable, note, record = 1, 2, 3
    for change in (enable, note, record):
        cli.ok("sweep", "pause", sweep)
        kill(cli, "before", change, "sweep", "unpause", sweep)
        assert sweep in list_recorded_pauses(connection)
        cli.ok("sweep", "unpause", sweep)
        job = read_job(connection, sweep)
        assert job is not None
        assert (job.note, job.paused) == (None, False)
        await_states(cli, sweep, running=2)
    (tmp_path / "gate").touch()
    await_states(cli, sweep, succeeded=2)
    job = read_job(connection, sweep)
    assert job is not None
    assert not job.paused


def pause(connection: Connection, sweep: str, running: Running = "requeue") -> None:
    name, jobs = find_jobs(connection, sweep, paused=True)
    note = JobNote("pause", name)
    pause_jobs(connection, jobs, note, running, ignore_progress, wait_for_tasks=True)


def unpause(connection: Connection, sweep: str) -> None:
    continue_jobs(connection, find_jobs(connection, sweep, paused=True)[1])


def test_pause_between_the_steps_of_an_unpause_wins(
    cli: Cli, sweep: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another person pauses after the note was removed and before the record is deleted."""
    job = read_job(connection, sweep)
    assert job is not None
    assert job_control.note_job(connection, job, JobNote("pause", sweep))
    others = list[str]()
    update = job_control._update

    def change(connection: Connection, *args: Any) -> bool:
        done = update(connection, *args)
        if not others:
            others.append(sweep)
            pause(connection, sweep, "terminate")
        return done

    monkeypatch.setattr(job_control, "_update", change)
    noted = read_job(connection, sweep)
    assert noted is not None
    assert job_control.note_job(connection, noted, None)
    assert others
    await_state(connection, sweep, "completed")
    job = read_job(connection, sweep)
    assert job is not None
    assert job.paused


def test_job_that_ends_during_an_unpause_does_not_stay_paused(
    cli: Cli, sweep: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(connection, sweep)
    enable = moves.enable_job

    def end_first(*args: Any) -> bool:
        batch = connection.batch_client()
        reason: Any = {"terminateReason": "a test"}
        batch.begin_terminate_job(sweep, reason, polling_interval=0)
        await_state(connection, sweep, "completed")
        return enable(*args)

    monkeypatch.setattr(moves, "enable_job", end_first)
    unpause(connection, sweep)
    job = read_job(connection, sweep)
    assert job is not None
    assert (job.state, job.paused) == ("completed", False)


@pytest.mark.parametrize("running", ["requeue", "terminate"])
def test_two_people_pause_and_unpause_at_once(
    cli: Cli, sweep: str, tmp_path: Path, connection: Connection, running: Running
) -> None:
    errors: list[Exception] = []
    start = Barrier(4)

    def person(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(6):
            try:
                pause(connection, sweep, running) if chance.random() < 0.5 else unpause(
                    connection, sweep
                )
            except RunnerError as err:
                if err.code != "R-JOB-ENDED":
                    errors.append(err)

    people = [Thread(target=person, args=(seed,)) for seed in range(4)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    assert not errors
    job = read_job(connection, sweep)
    assert job is not None
    if job.disabled:  # then a pause survives the end of the job
        assert job.note == JobNote("pause", sweep)
        assert sweep in list_recorded_pauses(connection)
    if job.paused:
        unpause(connection, sweep)
    job = read_job(connection, sweep)
    assert job is not None
    assert not job.paused
    (tmp_path / "gate").touch()
    if job.closed:
        assert cli.json("sweep", "resume", sweep, "--detach")["resumed"]
    await_states(cli, sweep, succeeded=2)
