"""The emulator process is killed and started again: nothing that was answered is lost."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from azure.batch import BatchClient, models

from tests.contract.server import ACCOUNT, KEY, Things, client_for, eventually
from tests.processes import alive


def command(data_dir: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "batch_emulator", "--account", ACCOUNT, "--data-dir", str(data_dir),
        "--boot-seconds", "0.05", "--delete-seconds", "0", *options,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "BATCH_EMULATOR_KEY": KEY}


def refused(data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(data_dir, *options),
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )


@contextmanager
def process(data_dir: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], BatchClient]]:
    """Yield an emulator process and a client. Kill the process at the end."""
    started = subprocess.Popen(
        command(data_dir, *options), stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line.startswith("listening on ")
        yield started, client_for(line.split()[2])
    finally:
        started.kill()
        started.wait(120)
        if started.stdout is not None:
            started.stdout.close()


def test_state_survives_kill_9(tmp_path: Path) -> None:
    with process(tmp_path / "data") as (_, client):
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=1, task_slots_per_node=2)
        [node] = things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id, priority=3)
        done = things.task(job_id, "/bin/echo kept", id="done")
        failed = things.task(job_id, "/bin/false", id="failed")
        for task_id in (done, failed):
            things.wait_task(job_id, task_id)
        before = [task.as_dict() for task in client.list_tasks(job_id)]
        disabled = things.job(pool_id, id="later")
        things.task(disabled, required_slots=2, id="wide")
    with process(tmp_path / "data") as (_, client):
        things = Things(client)
        [same] = things.wait_nodes(pool_id, 1)
        assert (same.id, same.total_tasks_run) == (node.id, same.total_tasks_run)
        job = client.get_job(job_id)
        assert (job.state, job.priority) == ("active", 3)
        after = [task.as_dict() for task in client.list_tasks(job_id)]
        for task in (*before, *after):  # the port has changed
            task.pop("url")
            task["nodeInfo"] = task["nodeInfo"]["nodeId"]
        assert after == before
        counts = client.get_job_task_counts(job_id).task_counts
        assert (counts.completed, counts.succeeded, counts.failed) == (2, 1, 1)
        assert things.text(job_id, "done") == "kept\n"
        things.wait_task("later", "wide")


@pytest.mark.slow
def test_running_task_is_killed_and_runs_again(tmp_path: Path) -> None:
    with process(tmp_path / "data") as (_, client):
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=1)
        things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id)
        flag = "$AZ_BATCH_NODE_SHARED_DIR/first"
        shell = f"echo $$; test -e {flag} || {{ touch {flag}; exec sleep 600; }}"
        task_id = things.task(job_id, f"/bin/sh -c '{shell}'")
        things.wait_task(job_id, task_id, "running")
        pid = int(eventually(lambda: things.text(job_id, task_id).strip()))
        eventually(lambda: psutil.Process(pid).name() == "sleep")
    assert alive(pid)
    with process(tmp_path / "data") as (_, client):
        task = Things(client).wait_task(job_id, task_id)
        assert not alive(pid)
        assert task.execution_info is not None
        info = task.execution_info
        assert (info.exit_code, info.retry_count, info.requeue_count) == (0, 0, 0)


@pytest.mark.slow
def test_acknowledged_changes_are_on_disk(tmp_path: Path) -> None:
    with process(tmp_path / "data") as (started, client):
        things = Things(client)
        pool_id = things.pool()
        job_id = things.job(pool_id)
        ids = [things.task(job_id) for _ in range(20)]
        started.kill()
    with process(tmp_path / "data") as (_, client):
        assert sorted(task.id for task in client.list_tasks(job_id)) == sorted(ids)
        assert client.get_job_task_counts(job_id).task_counts.active == 20


@pytest.mark.slow
def test_second_emulator_on_the_same_data_dir_is_refused(tmp_path: Path) -> None:
    with process(tmp_path / "data"):
        second = refused(tmp_path / "data")
    assert second.returncode == 1
    assert "another emulator is running" in second.stderr
    assert "fix: use that emulator, stop it, or use another --data-dir" in second.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--host", "0.0.0.0"), "expected a loopback address"),
        (("--host", "example.org"), "expected a loopback address"),
        (("--key", "not base64!"), "missing account key"),
    ],
)
def test_unsafe_options_are_refused(
    tmp_path: Path, options: tuple[str, str], expected: str
) -> None:
    attempt = refused(tmp_path / "data", *options)
    assert attempt.returncode == 2
    assert expected in attempt.stderr


@pytest.mark.slow
def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    with process(tmp_path / "data") as (started, _):
        [used] = [c for c in psutil.Process(started.pid).net_connections() if c.status == "LISTEN"]
        second = refused(tmp_path / "other", "--port", str(used.laddr.port))
    assert second.returncode == 1
    what, why, fix = second.stderr.splitlines()
    assert what == f"error: cannot listen on 127.0.0.1, port {used.laddr.port}"
    assert (why, "use another port" in fix) == ("  why: Address already in use", True)


@pytest.mark.slow
def test_tasks_inherit_only_the_named_variables(tmp_path: Path) -> None:
    hidden = {**environment(), "PASSED_ONE": "1", "HIDDEN_ONE": "2"}
    started = subprocess.Popen(
        command(tmp_path / "data", "--pass-env", "PASSED_*"),
        stdout=subprocess.PIPE,
        text=True,
        env=hidden,
    )
    try:
        assert started.stdout is not None
        client = client_for(started.stdout.readline().split()[2])
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=1)
        job_id = things.job(pool_id)
        task_id = things.task(job_id, "/usr/bin/env")
        things.wait_task(job_id, task_id)
        names = {line.partition("=")[0] for line in things.text(job_id, task_id).splitlines()}
    finally:
        started.terminate()
        started.wait(120)
        if started.stdout is not None:
            started.stdout.close()
    assert {"PATH", "PASSED_ONE", "AZ_BATCH_TASK_ID"} <= names
    assert not {"HIDDEN_ONE", "BATCH_EMULATOR_KEY"} & names


@pytest.mark.slow
def test_start_task_without_wait_runs_again(tmp_path: Path) -> None:
    shell = "test -e $AZ_BATCH_NODE_SHARED_DIR/twice && exit 0; exec sleep 600"
    start_task = models.BatchStartTask(command_line=f"/bin/sh -c '{shell}'", wait_for_success=False)
    with process(tmp_path / "data") as (_, client):
        things = Things(client)
        pool_id = things.pool(target_dedicated_nodes=1, start_task=start_task)
        things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id)
        task_id = things.task(job_id, "/bin/sh -c 'touch $AZ_BATCH_NODE_SHARED_DIR/twice'")
        things.wait_task(job_id, task_id)
    with process(tmp_path / "data") as (_, client):

        def ended() -> bool:
            [node] = client.list_nodes(pool_id)
            info = node.start_task_info
            return node.state == "idle" and info is not None and info.result == "success"

        assert eventually(ended)


LOCKED = (
    # a second process of the same task at the same time finds the lock held and exits 99
    "/bin/sh -c 'exec flock -n -E 99 {lock} sleep {seconds}'",
    "/usr/bin/env -i /usr/bin/flock -n -E 99 {lock} /bin/sleep {seconds}",
    (
        "/bin/sh -c 'flock -n -E 99 {lock} sleep {seconds} || exit 99;"
        " test -e {lock}.ran && exit 0; touch {lock}.ran; exit 5'"
    ),
)


@pytest.mark.slow
def test_no_task_is_lost_or_runs_twice_at_once_when_killed_at_random(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "locks").mkdir()
    retried = models.BatchTaskConstraints(max_task_retry_count=1)
    bodies = [
        models.BatchTaskCreateOptions(
            id=f"t{number}",
            command_line=rng.choice(LOCKED).format(
                lock=tmp_path / "locks" / str(number), seconds=f"{rng.uniform(0, 0.5):.2f}"
            ),
            constraints=retried,
        )
        for number in range(60)
    ]
    for kill in range(4):
        with process(tmp_path / "data") as (started, client):
            if kill == 0:
                things = Things(client)
                things.pool(id="pool", target_dedicated_nodes=2, task_slots_per_node=6)
                things.job("pool", id="job")
                client.create_tasks("job", task_collection=bodies)
            with suppress(subprocess.TimeoutExpired):  # the load continues until the kill
                started.wait(rng.uniform(0.1, 0.8))
    with process(tmp_path / "data") as (_, client):
        eventually(lambda: client.get_job_task_counts("job").task_counts.completed == len(bodies))
        found = {str(task.id): task for task in client.list_tasks("job")}
        counts = client.get_job_task_counts("job").task_counts
    assert set(found) == {str(body.id) for body in bodies}
    codes = {
        key: task.execution_info and task.execution_info.exit_code for key, task in found.items()
    }
    assert {key: code for key, code in codes.items() if code} == {}
    assert (counts.active, counts.running, counts.succeeded) == (0, 0, len(bodies))
    assert not [p for p in psutil.process_iter() if str(tmp_path / "locks") in _words(p)]


def test_state_of_another_version_is_refused_with_a_command_that_helps(tmp_path: Path) -> None:
    with process(tmp_path / "data") as (_, client):
        Things(client).pool(id="pool")
    database = sqlite3.connect(tmp_path / "data" / "state.sqlite")
    database.execute("PRAGMA user_version=1")
    database.close()
    done = refused(tmp_path / "data")
    assert done.returncode != 0
    what, why, fix, code = done.stderr.strip().splitlines()[-4:]
    assert code == "  code: state-format"
    assert what == f"error: cannot use {tmp_path / 'data'}"
    assert why.startswith("  why: its state has format 1, this emulator reads ")
    subprocess.run(["/bin/sh", "-c", fix.rpartition(": ")[2]], check=True)
    with process(tmp_path / "data") as (_, client):
        assert list(client.list_pools()) == []


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
