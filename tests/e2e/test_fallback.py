"""Runs with several pools: the first that can start is chosen, and they move with checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models

from runner.contract import PoolOutput, parse_stack_outputs
from runner.core.home import HomePaths
from tests.e2e.conftest import Cli, new_home, until
from tests.e2e.test_batches import batch_of, create_pool

Write = Callable[..., Path]
POOLS = ("empty", "mid", "last")

# Fails if another process executes the same run, and ends in the last pool only.
SCRIPT = """
import os, pathlib, socket, sys, time
owner = socket.socket(socket.AF_UNIX)
try:
    owner.bind("\\0owner-" + os.environ["AZ_BATCH_TASK_ID"])
except OSError:
    sys.exit("a second owner")
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state.txt")
n = int(state.read_text()) if state.exists() else 0
print("pool", os.environ["AZ_BATCH_POOL_ID"], "starts at", n, flush=True)
while os.environ["AZ_BATCH_POOL_ID"] != "last" or n < 3:
    n += 1
    state.with_suffix(".new").write_text(str(n))
    state.with_suffix(".new").rename(state)
    print(f"loss: {1 / n}", flush=True)
    time.sleep(0.3)
pathlib.Path("model.txt").write_text(str(n))
"""

# Moves runs until it is killed, before or after one of its requests that change something.
MOVER = """
import os, random, signal, sys, time
from pathlib import Path
from runner.core.settings import load_settings
from runner.flows.runs.moving import fallback, job_steps
chance = random.Random(int(sys.argv[1]))
left = chance.randint(1, 9)

def killing(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if not left and chance.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*args, **kwargs)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call

names = ("note_job", "disable_job", "change_pool", "enable_job", "raise_priority", "record_pool")
for module in (fallback, job_steps):
    for name in names:
        if hasattr(module, name):
            setattr(module, name, killing(getattr(module, name)))
step = fallback.open_fallbacks(load_settings({}, cwd=Path.cwd(), env=os.environ))
while True:
    for problem in step().problems:
        print(problem, file=sys.stderr, flush=True)
    time.sleep(chance.random() / 5)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("fallback")
    cli = Cli(new_home(folder / "home"), folder)
    cli.ok("local", "up", "--nodes", "1")
    paths, batch = HomePaths(cli.home), batch_of(cli)
    outputs = parse_stack_outputs(paths.local_outputs.read_text())
    known = list(outputs.pools)
    for name in POOLS:
        create_pool(batch, name, nodes=0)
        known.append(PoolOutput(name, "Standard_D2s_v3", 0, 2, True, 4, containers=False))
    text = dataclasses.replace(outputs, pools=tuple(known)).to_json()
    paths.local_outputs.write_text(text)
    yield cli.home
    cli.ok("local", "down")


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    return Cli(home, tmp_path)


def resize(batch: BatchClient, pool: str, nodes: int) -> None:
    """Set the number of nodes, and wait until they are idle."""
    until(lambda: batch.get_pool(pool).allocation_state == "steady")
    options = models.BatchPoolResizeOptions(
        target_dedicated_nodes=0, target_low_priority_nodes=nodes
    )
    batch.begin_resize_pool(pool, options, polling_interval=1)
    until(lambda: [node.state for node in batch.list_nodes(pool)].count("idle") == nodes)


def stays(shown: dict[str, Any]) -> list[str]:
    batch = shown["batch"]
    return [*(stay["pool"] for stay in batch.get("moved_from", ())), batch["pool"]]


def run_json(cli: Cli, run_id: str) -> dict[str, Any]:
    return json.loads(cli.ok("show", run_id, "-o", "json"))


@pytest.mark.feature(41)
def test_evicted_run_moves_with_its_checkpoint_while_it_is_followed(
    cli: Cli, script: Write
) -> None:
    batch = batch_of(cli)
    resize(batch, "mid", 1)
    resize(batch, "last", 1)
    words = ("train", script(SCRIPT), "--pools", "empty,mid,last", "--fallback-evictions", "1")
    planned = cli.json(*words, "--dry-run")
    assert [(each["pool"], each["chosen"]) for each in planned["pools"]] == [
        *(("empty", False), ("mid", True), ("last", False)),
    ]
    assert planned["batch"]["fallback"] == {"pools": [*POOLS], "after_s": 1200, "evictions": 1}
    assert planned["pools"][0]["why"] == "has no nodes, and its target is 0"
    process = cli.start(*words, "--no-download")
    until(lambda: [node.state for node in batch.list_nodes("mid")] == ["running"])
    [job] = [each.id for each in batch.list_jobs() if each.state == "active"]
    until(lambda: "checkpoint" in cli.run("show", job).stdout)
    cli.ok("local", "evict", "--pool", "mid", "--notice", "2s")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "moved from pool mid to last: evicted too often in mid" in out + err
    starts = re.findall(r"pool (\w+) starts at (\d+)", out + err)
    assert starts[0] == ("mid", "0")
    assert starts[-1][0] == "last"
    assert int(starts[-1][1]) > 0, "the run began again"
    assert " after 1 eviction" in cli.ok("show", job)
    events = cli.ok("events", job)
    assert "created on pool mid" in events
    assert "moved from pool mid to last" in events
    assert batch.get_job(job).priority == 1
    resize(batch, "mid", 0)
    resize(batch, "last", 0)


@pytest.mark.feature(41)
def test_clients_that_are_killed_at_every_step_leave_each_run_one_owner(
    cli: Cli, script: Write
) -> None:
    """20 runs race at the same time: they wait in a pool without nodes, and are evicted later."""
    batch, folder, seed = batch_of(cli), script(SCRIPT), 20
    options = ("--pools", "empty,mid,last", "--fallback-after", "1m", "--fallback-evictions", "1")
    runs = [cli.json("train", folder, *options, "--detach")["run_id"] for _ in range(20)]
    resize(batch, "mid", 3)
    resize(batch, "last", 3)
    chance, evicted, killed = random.Random(seed), 0, 0
    movers: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + 540
    try:
        while time.monotonic() < deadline:
            killed += sum(each.poll() is not None for each in movers)
            movers = [each for each in movers if each.poll() is None]
            while len(movers) < 3:
                seed += 1
                command = [sys.executable, "-c", MOVER, str(seed)]
                movers.append(subprocess.Popen(command, env={**os.environ, **cli.env}, cwd=cli.cwd))
            busy = [n.id for n in batch.list_nodes("mid") if n.state == "running"]
            if busy and chance.random() < 0.2:
                cli.run("local", "evict", chance.choice(busy), "--pool", "mid", "--notice", "1s")
                evicted += 1
            if all(batch.get_job(run).state == "completed" for run in runs):
                break
            time.sleep(1)
    finally:
        for each in movers:
            each.kill()
            each.wait()
    states = {run: run_json(cli, run) for run in runs}
    assert {shown["state"] for shown in states.values()} == {"succeeded"}
    for run, shown in states.items():
        places = [POOLS.index(pool) for pool in stays(shown["run"])]
        assert places == sorted(set(places)), run
        assert places[-1] == POOLS.index("last")
        assert shown["attempts"][-1]["pool"] == "last"
    assert killed >= 20
    assert evicted >= 1


# Begins the moves that are due, and dies at one of its requests that change something.
DYING_MOVER = MOVER.replace("left = chance.randint(1, 9)", "left = int(sys.argv[1])")


@pytest.mark.slow
@pytest.mark.feature(41)
def test_scheduled_mover_completes_what_killed_movers_left_without_a_client(
    cli: Cli, script: Write
) -> None:
    """One run is moved by `runner pool fallback` alone, the others by the task on a schedule."""
    batch, folder = batch_of(cli), script(SCRIPT)
    resize(batch, "last", 0)  # with nodes of another test, the runs would start there
    options = ("--pools", "empty,last", "--detach", "--fallback-after")
    first = cli.json("train", folder, *options, "1m")["run_id"]
    begun = time.monotonic()
    runs = [cli.json("train", folder, *options, "100s")["run_id"] for _ in range(4)]
    submitted = time.monotonic()
    resize(batch, "last", 3)
    until(lambda: time.monotonic() - begun > 61, timeout_s=90)
    found = cli.json("pool", "fallback")
    assert found["moved"] == [f"{first}: moved to pool last"], found
    assert not found["moving"]
    until(lambda: time.monotonic() - submitted > 101, timeout_s=120)
    for number in (1, 2, 6, 11):
        command = [sys.executable, "-c", DYING_MOVER, str(number)]
        env = {**os.environ, **cli.env}
        done = subprocess.run(command, check=False, env=env, cwd=cli.cwd, timeout=60)
        assert done.returncode == -signal.SIGKILL
    assert cli.json("pool", "fallback", "--every", "1m") == {"every_s": 60.0, "mover": "created"}
    every = (first, *runs)
    until(lambda: all(batch.get_job(run).state == "completed" for run in every), timeout_s=240)
    for run in every:
        shown = run_json(cli, run)
        assert shown["state"] == "succeeded"
        assert stays(shown["run"]) == ["empty", "last"]
    jobs = [job.id for job in batch.list_jobs_from_schedule("runner-mover")]
    [task] = batch.list_tasks(jobs[0])
    assert task.execution_info is not None
    assert task.execution_info.exit_code == 0
    assert cli.json("pool", "fallback", "--every", "1m")["mover"] == "kept"
    assert cli.json("pool", "fallback", "--every", "never")["mover"] == "ended"
    until(lambda: "runner-mover" not in [pool["pool"] for pool in cli.json("pool", "ls")])
    assert not [each.id for each in batch.list_job_schedules()]
