"""Runs over several nodes, through Batch: one multi-instance task on three local nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, new_home, show_ended, until
from tests.processes import alive
from tests.unit.node.distributed.test_node_group import SUM

THREE = "command: python train.py\nresources: {nodes: 3}\n"
# Counts in a file in the checkpoint folder of each node, long enough to be evicted in between.
COUNT = """
import os, pathlib, time
rank, attempt = os.environ["RUNNER_NODE_RANK"], os.environ["RUNNER_ATTEMPT"]
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "step"
step = int(state.read_text()) if state.exists() else 0
print(f"rank {rank} attempt {attempt} from {'a checkpoint' if step else 'the start'}", flush=True)
while step < 3000 and not (attempt != "1" and step):
    step += 1
    state.with_suffix(".new").write_text(str(step))
    os.rename(state.with_suffix(".new"), state)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Yield services with three nodes of one slot each."""
    folder = tmp_path_factory.mktemp("nodes")
    home = new_home(folder / "home")
    cli = Cli(home, folder)
    cli.ok("local", "up", "--nodes", "3", "--slots", "1")
    yield home
    cli.ok("local", "down")


@pytest.fixture
def three(home: Path, tmp_path: Path) -> Cli:
    return Cli(home, tmp_path)


def node_of(cli: Cli, run_id: str, rank: int) -> str:
    """Wait until a rank runs, and return its node, from its working directory."""

    def find() -> str:
        with suppress(FileNotFoundError):  # another folder was deleted meanwhile
            found = (cli.home / "local").rglob(f"{run_id}/{rank}/wd/logs/stdout.txt")
            return next((p for path in found for p in path.parts if p.startswith("tvm-")), "")
        return ""

    return until(find)


@pytest.mark.feature(24)
def test_three_nodes_compute_a_sum_over_the_given_addresses(
    three: Cli, script: Callable[..., Path]
) -> None:
    folder = script(SUM)
    script(THREE, "train.yaml")
    done = three.run("train", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 sum 111" in done.stdout
    assert "3 nodes: 127." in done.stderr
    [run] = three.json("ps", "-a")
    [attempt] = three.json("show", run["run_id"])["attempts"]
    assert len({attempt["node"], *attempt["others"]}) == 3
    assert f"2: {attempt['others'][1]}" in three.ok("show", run["run_id"])
    logs = [three.ok("logs", run["run_id"], "--node", rank) for rank in range(3)]
    assert logs == [f"rank {rank} sum 111\n" for rank in range(3)]
    merged = [f"[rank {rank}] rank {rank} sum 111\n" for rank in range(3)]
    assert three.ok("logs", run["run_id"]) == "".join(merged)
    written = sorted((three.cwd / "outputs").rglob("sum-*"))
    assert [path.parent.name for path in written[:2]] == ["rank-1", "rank-2"]
    assert [path.read_text() for path in written] == ["111"] * 3


def test_prepare_runs_once_on_each_node_of_a_run(three: Cli, script: Callable[..., Path]) -> None:
    folder = script(
        "import os\nnode = os.environ['AZ_BATCH_NODE_SHARED_DIR']\n"
        "print(os.environ['RUNNER_NODE_RANK'], open(node + '/prepared').read().split())\n"
    )
    script(
        "command: python train.py\nresources: {nodes: 3}\n"
        "prepare: 'echo yes >> $AZ_BATCH_NODE_SHARED_DIR/prepared'\n",
        "train.yaml",
    )
    both = [three.json("train", folder, "--detach")["run_id"] for _ in range(2)]  # of one job
    for run_id in both:
        three.ok("attach", run_id)
        logs = [three.ok("logs", run_id, "--node", rank) for rank in range(3)]
        assert logs == [f"{rank} ['yes']\n" for rank in range(3)]


def test_failed_prepare_of_one_node_fails_the_run(three: Cli, script: Callable[..., Path]) -> None:
    folder = script("import time; time.sleep(300)")
    script(
        "command: python train.py\nresources: {nodes: 2}\nprepare: test $RUNNER_NODE_RANK != 1\n",
        "train.yaml",
    )
    done = three.run("train", folder)
    assert done.returncode == 1
    assert "`prepare` on this node exited with code 1" in done.stderr
    assert "rank 1 on node" in done.stderr


def test_failed_rank_of_a_trial_is_explained_with_its_log(
    three: Cli, script: Callable[..., Path]
) -> None:
    folder = script("import os, sys\nsys.exit(7 if os.environ['JAX_PROCESS_ID'] == '1' else 0)")
    words = ("sweep", "start", folder, "-p", "lr=0.1", "--nodes", "2", "--launcher", "jax")
    assert three.run(*words).returncode == 1
    trial = three.json("sweep", "show", "@last")["trials"][0]["run_id"]
    assert three.json(*words, "--dry-run")["runs"]["1"]["launcher"] == "jax"
    found = three.json("why", trial)
    assert found["command"] == f"runner logs {trial} --stderr --tail 50 --node 1"
    three.ok(*found["command"].split()[1:])


@pytest.mark.feature(24)
@pytest.mark.slow
def test_run_continues_after_eviction_of_one_of_its_nodes(
    three: Cli, script: Callable[..., Path]
) -> None:
    folder = script(COUNT)
    script("command: python train.py\ncheckpoints: {interval: 1s}\n", "train.yaml")
    run_id = three.json("train", folder, "--nodes", "2", "--detach")["run_id"]
    until(lambda: three.json("show", run_id)["checkpoints"])
    three.ok("local", "evict", node_of(three, run_id, 1), "--notice", "0")
    assert three.run("attach", run_id).returncode == 0
    assert three.ok("logs", run_id, "--node", "0").splitlines() == [
        "rank 0 attempt 1 from the start",
        "rank 0 attempt 2 from a checkpoint",
    ]
    assert three.ok("logs", run_id, "--node", "1", "--attempt", "2").splitlines() == [
        "rank 1 attempt 2 from a checkpoint"
    ]


@pytest.mark.smoke
def test_exec_reaches_each_node_and_cancel_ends_the_run_on_all(
    three: Cli, script: Callable[..., Path]
) -> None:
    pids = three.cwd / "pids"
    pids.mkdir()
    folder = script(f"import os, time; open(f'{pids}/{{os.getpid()}}', 'w'); time.sleep(300)")
    run_id = three.json("train", folder, "--nodes", "3", "--detach")["run_id"]
    until(lambda: len(list(pids.iterdir())) == 3)
    show = 'echo "$RUNNER_NODE_RANK of $RUNNER_NODES"'
    assert three.ok("exec", run_id, "--node", "2", "--", "sh", "-c", show) == "2 of 3\n"
    three.ok("cancel", run_id)
    until(lambda: not any(alive(int(path.name)) for path in pids.iterdir()))
    assert three.json("show", run_id)["state"] == "cancelled"


def test_pool_with_too_few_nodes_is_refused_with_a_fix(
    three: Cli, script: Callable[..., Path]
) -> None:
    folder = script("print(1)")
    for options in ([], ["--pool", "local"]):
        refused = three.run("train", folder, "--nodes", "4", *options)
        assert refused.returncode == 3
        assert "runner local up --nodes 4 --slots 1" in refused.stderr
    assert [path.name for path in three.cwd.iterdir()] == ["project"]


@pytest.mark.slow
def test_schedule_of_a_file_starts_runs_on_several_nodes(
    three: Cli, script: Callable[..., Path]
) -> None:
    folder = script(SUM)
    script(THREE, "train.yaml")
    refused = three.run("schedule", "create", folder, "--every", "1d")
    assert "error[R-SCHEDULE-NODES]" in refused.stderr
    file = folder.parent / "sums.yaml"
    file.write_text("schedule: {every: 1d}\ntasks:\n  sum: {recipe: ./project}\n")
    three.ok("submit", file)
    [run_id] = until(lambda: three.json("schedule", "show", "sums")["runs"])
    assert show_ended(three, run_id)["state"] == "succeeded"
    assert "rank 0 sum 111" in three.ok("logs", run_id)
    three.ok("schedule", "rm", "sums")
