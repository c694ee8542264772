"""A run over several nodes: the packed agent on each, as Batch's commands start it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.unit.node.agent_task import RUN
from tests.unit.node.fake_imds import FakeImds, serve_fake_imds
from tests.unit.node.node_group_task import NodeGroupTask, lines_of

SUM = """
import os, socket, sys, time
rank, nodes = int(os.environ["RUNNER_NODE_RANK"]), int(os.environ["RUNNER_NODES"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    total, peers = 1, []
    with socket.create_server(address) as server:
        while len(peers) < nodes - 1:
            peers.append(server.accept()[0])
            total += int(peers[-1].makefile().readline())
    for peer in peers:
        peer.sendall(f"{total}\\n".encode())
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    peer.sendall(f"{10 ** rank}\\n".encode())
    total = int(peer.makefile().readline())
print("rank", rank, "sum", total)
print("err", rank, file=sys.stderr)
open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], f"sum-{rank}"), "w").write(str(total))
"""
PID = """
import os, pathlib, sys, time
rank = int(os.environ["RUNNER_NODE_RANK"])
shared = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"])
(shared / f"pid-{rank}").write_text(str(os.getpid()))
"""
ALL_THERE = """
while len([path for path in shared.glob("pid-*") if path.read_text()]) < 3:
    time.sleep(0.02)
"""
SAVES = (
    PID
    + """
import signal
path = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "counter"
number = int(path.read_text()) if path.exists() else 0
def save(*_):
    path.write_text(str(number))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("from", number, flush=True)
while not (shared / "go").exists():
    number += 1
    time.sleep(0.02)
"""
)
SLEEP = PID + "time.sleep(300)\n"
RESOURCES = {"nodes": 3}
Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def imds() -> Iterator[FakeImds]:
    with serve_fake_imds() as service:
        yield service


@pytest.mark.slow
def test_every_node_runs_the_script_with_all_addresses(node_group: NodeGroupTask) -> None:
    node_group.submit(SUM, resources=RESOURCES)
    assert node_group.run_node_group(3) == 0, node_group.output
    assert node_group.text("logs/stdout.txt") == "rank 0 sum 111\n"
    assert [node_group.text(f"nodes/{n}/stdout.txt") for n in (1, 2)] == [
        "rank 1 sum 111\n",
        "rank 2 sum 111\n",
    ]
    assert node_group.text("nodes/1/stderr.txt") == "err 1\n"
    kept = ["rank-1/sum-1", "rank-2/sum-2", "sum-0"]
    assert [one["path"] for one in node_group.json("result.json")["outputs"]] == kept
    assert node_group.text("output/rank-2/sum-2") == "111"
    start = node_group.json("nodes/2/attempts/1/start.json")
    assert (start["rank"], start["node"]) == (2, "tvm-2")
    stages = [e["stage"] for e in lines_of(node_group, 2) if e["state"] == "end"]
    assert stages[-2:] == ["command", "export"]
    waited = [
        e["message"] for e in node_group.lines("attempts/1/events.jsonl") if e["stage"] == "nodes"
    ]
    assert waited[-1] == "3 nodes: " + ", ".join(node_group.addresses)


@pytest.mark.slow
@pytest.mark.feature(23)
def test_script_gets_variables_of_launchers_and_frameworks(node_group: NodeGroupTask) -> None:
    node_group.submit(
        "import json, os; print(json.dumps(dict(os.environ)))", resources={"nodes": 2}
    )
    assert node_group.run_node_group(2) == 0, node_group.output
    first, second = (
        json.loads(node_group.text(name)) for name in ("logs/stdout.txt", "nodes/1/stdout.txt")
    )
    assert [one["RUNNER_NODE_RANK"] for one in (first, second)] == ["0", "1"]
    assert [one["NODE_RANK"] for one in (first, second)] == ["0", "1"]
    same = ("RUNNER_NODES", "RUNNER_NODE_IPS", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES",
            "PET_MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES")  # fmt: skip
    assert all(first[name] == second[name] for name in same)
    assert first["RUNNER_NODE_IPS"].split(",") == node_group.addresses
    assert first["MASTER_ADDR"] == node_group.addresses[0]
    clusters = [json.loads(one["TF_CONFIG"]) for one in (first, second)]
    assert clusters[0]["cluster"] == clusters[1]["cluster"]
    workers = clusters[0]["cluster"]["worker"]
    assert [worker.rpartition(":")[0] for worker in workers] == node_group.addresses
    assert [one["task"]["index"] for one in clusters] == [0, 1]
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(first)
    for one in (first, second):
        assert node_group.token not in json.dumps(one)
        assert "RUNNER_STORAGE" not in one


@pytest.mark.feature(24)
def test_failed_worker_ends_all_nodes_and_is_named(node_group: NodeGroupTask) -> None:
    node_group.submit(
        PID + ALL_THERE + "if rank == 1: sys.exit(3)\ntime.sleep(300)\n", resources=RESOURCES
    )
    assert node_group.run_node_group(3) == 3, node_group.output
    result = node_group.json("result.json")
    assert (result["status"], result["exit_code"]) == ("failed", 3)
    assert result["message"] == "rank 1 on node tvm-1: python train.py exited with code 3"
    pids = node_group.pids(3)
    assert pids is not None
    assert node_group.all_gone(pids)


@pytest.mark.slow
def test_first_failure_is_named_when_others_follow(node_group: NodeGroupTask) -> None:
    script = PID + (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        "(shared / f'up-{rank}').touch()\n"
        "while rank == 2 and len(list(shared.glob('up-*'))) < 3: time.sleep(0.01)\n"
        "if rank == 2: sys.exit(5)\n"
        "time.sleep(300)\n"
    )
    node_group.submit(script, resources=RESOURCES)
    assert node_group.run_node_group(3) == 5, node_group.output
    assert node_group.json("result.json")["message"].startswith("rank 2 on node tvm-2: ")


@pytest.mark.slow
def test_failed_primary_is_named(node_group: NodeGroupTask) -> None:
    node_group.submit(
        PID + ALL_THERE + "if rank == 0: sys.exit(4)\ntime.sleep(300)\n", resources=RESOURCES
    )
    assert node_group.run_node_group(3) == 4, node_group.output
    assert node_group.json("result.json")["message"].startswith("rank 0 on node tvm-0: ")
    assert node_group.all_gone(node_group.pids(3) or {})


@pytest.mark.slow
def test_retry_after_failure_restarts_every_node(node_group: NodeGroupTask) -> None:
    script = PID + (
        "print('attempt', os.environ['RUNNER_ATTEMPT'])\n"
        "sys.exit(7 if rank == 1 and os.environ['RUNNER_ATTEMPT'] == '1' else 0)\n"
    )
    node_group.submit(script, resources={"nodes": 2}, retries=1)
    assert node_group.run_node_group(2) == 7, node_group.output
    assert not node_group.has("result.json")
    assert node_group.run_node_group(2) == 0, node_group.output
    assert node_group.text("nodes/1/stdout.txt") == "attempt 1\nattempt 2\n"


@pytest.mark.slow
def test_eviction_notice_of_worker_commits_a_checkpoint(
    node_group: NodeGroupTask, imds: FakeImds, until: Until
) -> None:
    _begin_saving(node_group, imds, until)
    imds.preempt(8, "tvm-1")
    until((node_group.work_dir(0) / "checkpoints/counter").exists)
    imds.preempt(60, "tvm-0", "tvm-1", event_id="E-2")  # leave time for the rest
    until(lambda: node_group.has("attempts/1/end.json"))
    end = node_group.json("attempts/1/end.json")
    assert (end["why"], end["checkpoint"]["last"]) == ("terminated", 1)
    assert node_group.processes[0].poll() is None, "Batch runs the task again after the eviction"


@pytest.mark.slow
def test_canceled_eviction_restarts_every_node(
    node_group: NodeGroupTask, imds: FakeImds, until: Until
) -> None:
    _begin_saving(node_group, imds, until)
    imds.preempt(8, "tvm-0")
    until((node_group.work_dir(0) / "checkpoints/counter").exists)
    imds.preempt(60, "tvm-0")  # leave time for the rest
    until(lambda: node_group.has("attempts/1/end.json"))
    imds.events = []
    until(lambda: node_group.has("nodes/1/attempts/2/start.json"))
    (node_group.shared / "go").touch()
    assert node_group.processes[0].wait(120) == 0
    assert node_group.json("result.json")["attempt"] == 2
    saved = node_group.text("logs/stdout.txt").split()[-1]
    assert saved != "0"
    assert node_group.text("nodes/1/stdout.txt").splitlines()[-1] == f"from {saved}"


def _begin_saving(node_group: NodeGroupTask, imds: FakeImds, until: Until) -> None:
    node_group.settings |= {"BATCH_EMULATOR_IMDS": imds.url, "AZ_BATCH_NODE_IS_DEDICATED": "false"}
    node_group.submit(SAVES, resources={"nodes": 2}, checkpoints={"interval_s": 3600})
    node_group.start_node_group(2)
    until(lambda: "from 0" in node_group.text("nodes/1/stdout.txt"))
    until(lambda: "from 0" in node_group.text("logs/stdout.txt"))


@pytest.mark.slow
def test_failed_preparation_of_worker_fails_the_run(node_group: NodeGroupTask) -> None:
    node_group.submit(SLEEP, resources={"nodes": 2})
    (node_group.folder_of(1) / "code.tar.gz").write_bytes(b"torn")
    assert node_group.run_node_group(2) != 0
    result = node_group.json("result.json")
    assert (result["step"], result["code"]) == ("code", "CodeInvalid")
    assert result["message"].startswith("rank 1 on node tvm-1: ")


@pytest.mark.slow
def test_terminated_primary_ends_all_workers(node_group: NodeGroupTask, until: Until) -> None:
    node_group.submit(SLEEP, resources=RESOURCES)
    primary = node_group.start_node_group(3)
    until(lambda: node_group.pids(3))
    pids = node_group.pids(3) or {}
    primary.send_signal(signal.SIGTERM)
    assert primary.wait(120) == 143
    until(lambda: node_group.all_gone(pids))
    assert not node_group.has("result.json")
    assert node_group.json("attempts/1/end.json")["why"] == "terminated"


@pytest.mark.slow
def test_killed_primary_ends_all_workers(node_group: NodeGroupTask, until: Until) -> None:
    node_group.submit(SLEEP, resources=RESOURCES)
    primary = node_group.start_node_group(3)
    until(lambda: node_group.pids(3))
    pids = node_group.pids(3) or {}
    primary.kill()
    until(lambda: node_group.all_gone(pids))
    until(lambda: "the primary was lost" in node_group.worker_log(1))
    assert not node_group.has("result.json")


@pytest.mark.slow
def test_primary_waits_for_batch_after_losing_a_node(
    node_group: NodeGroupTask, until: Until
) -> None:
    node_group.submit(SLEEP, resources=RESOURCES)
    primary = node_group.start_node_group(3)
    until(lambda: node_group.pids(3))
    pids = node_group.pids(3) or {}
    node_group.lose_node(pids[1])
    until(lambda: node_group.all_gone(pids))
    until(lambda: "waiting for Batch" in node_group.text("attempts/1/events.jsonl"))
    assert primary.poll() is None
    primary.send_signal(signal.SIGTERM)  # as Batch does when it requeues
    assert primary.wait(120) == 143
    assert not node_group.has("result.json")
    end = node_group.json("attempts/1/end.json")
    lost = "rank 1 on node tvm-1 was lost: the connection to its agent ended"
    assert (end["why"], end["message"]) == ("lost", lost)


def test_nodes_resume_from_the_same_checkpoint(node_group: NodeGroupTask, until: Until) -> None:
    script = (
        PID
        + """
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "step"
print("resumed" if os.environ.get("RUNNER_RESUMED") else "new", end=" ")
print(state.exists() and state.read_text())
if os.environ["RUNNER_ATTEMPT"] == "1":
    state.with_suffix(".new").write_text(f"of rank {rank}")
    os.rename(state.with_suffix(".new"), state)
    time.sleep(300)
"""
    )
    node_group.submit(script, resources={"nodes": 2}, checkpoints={"interval_s": 0.2})
    primary = node_group.start_node_group(2)
    until(lambda: node_group.has("checkpoints/1/manifest.json"))
    for log in ("logs/stdout.txt", "nodes/1/stdout.txt"):
        until(lambda log=log: node_group.text(log).endswith("\n"))
    pids = node_group.pids(2) or {}
    primary.kill()
    primary.wait(120)
    until(lambda: node_group.all_gone(pids))
    assert node_group.run_node_group(2) == 0, node_group.output
    assert node_group.text("logs/stdout.txt").splitlines() == ["new False", "resumed of rank 0"]
    assert node_group.text("nodes/1/stdout.txt").splitlines()[-1] == "resumed of rank 0"
    assert node_group.json("nodes/1/attempts/2/start.json")["log_offsets"]["stdout"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["rank == 1", "rank == 0", "True"])
def test_nodes_start_over_if_one_cannot_load_the_checkpoint(
    node_group: NodeGroupTask, until: Until, failing: str
) -> None:
    script = (
        PID
        + f"""
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "step"
print(state.read_text() if state.exists() else "nothing", flush=True)
if os.environ["RUNNER_ATTEMPT"] == "1":
    state.with_suffix(".new").write_text("saved")
    os.rename(state.with_suffix(".new"), state)
    time.sleep(300)
if state.exists():
    if {failing}:
        raise ValueError("it is not what it was")
    time.sleep(300)
"""
    )
    node_group.submit(script, resources={"nodes": 2}, checkpoints={"interval_s": 0.2})
    primary = node_group.start_node_group(2)
    until(lambda: node_group.has("checkpoints/1/manifest.json"))
    pids = node_group.pids(2) or {}
    primary.kill()
    primary.wait(120)
    until(lambda: node_group.all_gone(pids))
    assert node_group.run_node_group(2) == 0, node_group.output
    for number in (2, 3):
        failed = node_group.json(f"attempts/{number}/end.json")["resume_failed"]
        assert (failed["checkpoint"], failed["kind"]) == (1, "ValueError 1")
        assert failed["message"] == "ValueError: it is not what it was"
    for log in ("logs/stdout.txt", "nodes/1/stdout.txt"):
        assert node_group.text(log).splitlines()[-1] == "nothing"
    assert node_group.json("result.json")["attempt"] == 4


@pytest.mark.slow
def test_metrics_of_workers_are_stored_apart(node_group: NodeGroupTask) -> None:
    script = """
import json, os
with open(os.environ["RUNNER_METRICS_FILE"], "a") as out:
    out.write(json.dumps({"step": 1, "loss": float(os.environ["RUNNER_NODE_RANK"])}) + "\\n")
print("loss=0.25")
"""
    node_group.submit(script, resources={"nodes": 2})
    assert node_group.run_node_group(2) == 0, node_group.output
    assert {line["value"] for line in node_group.lines("metrics.jsonl")} == {0.0, 0.25}
    assert [line["value"] for line in node_group.lines("nodes/1/metrics.jsonl")] == [1.0]


def test_run_for_several_nodes_fails_on_one(node_group: NodeGroupTask) -> None:
    node_group.submit(SLEEP, resources={"nodes": 2})
    assert node_group.run() != 0
    assert node_group.json("result.json")["code"] == "RunSpecInvalid"


@pytest.mark.slow
def test_single_node_run_has_node_variables(node_group: NodeGroupTask) -> None:
    node_group.submit(
        "import os; print(os.environ['RUNNER_NODES'], os.environ['RUNNER_NODE_RANK'])"
    )
    assert node_group.run() == 0, node_group.output
    assert node_group.text("logs/stdout.txt") == "1 0\n"
    assert not [name for name in node_group.service.blobs if name.startswith(f"{RUN}/nodes/")]
