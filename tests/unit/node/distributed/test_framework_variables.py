"""Variables of the launchers, read as the frameworks read them (`framework_readers`)."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from runner.node.cluster import (
    RENDEZVOUS_PORTS,
    ClusterSpec,
    node_variables,
    single_node_variables,
)
from runner.node.distributed.launchers import NodePlace, plan_launch
from runner.protocol.launchers import LAUNCHERS
from runner.protocol.run_spec import RunSpec
from tests.unit.node.distributed import framework_readers
from tests.unit.node.distributed.framework_readers import (
    read_horovod_controller,
    read_jax,
    read_tf_config,
)
from tests.unit.node.distributed.stand_in_mpirun import install_mpirun
from tests.unit.node.node_group_task import NodeGroupTask

TWO = ClusterSpec(("10.0.0.4", "10.0.0.5"), (12_001, 12_002), 12_000, 12_003, (1, 1))
READERS = inspect.getsource(framework_readers)


@pytest.mark.feature(23)
def test_tensorflow_finds_its_workers_and_its_own_place() -> None:
    for rank in (0, 1):
        workers, kind, index = read_tf_config(node_variables(TWO, rank))
        assert (workers, kind, index) == (["10.0.0.4:12001", "10.0.0.5:12002"], "worker", rank)


@pytest.mark.feature(23)
def test_jax_finds_the_coordinator_and_its_own_place() -> None:
    assert read_jax(node_variables(TWO, 1)) == ("10.0.0.4", 12_003, 2, 1)


@pytest.mark.feature(23)
def test_script_of_tensorflow_or_jax_also_runs_on_one_node() -> None:
    (worker,), kind, index = read_tf_config(single_node_variables(LAUNCHERS["tensorflow"].reads))
    assert (worker.rpartition(":")[0], kind, index) == ("127.0.0.1", "worker", 0)
    host, port, processes, process = read_jax(single_node_variables(LAUNCHERS["jax"].reads))
    assert (host, processes, process) == ("127.0.0.1", 1, 0)
    assert port in RENDEZVOUS_PORTS


def test_horovod_takes_its_ranks_from_mpirun(tmp_path: Path) -> None:
    spec = RunSpec.from_json({"run_id": "run-1", "launcher": "horovod"})
    launch = plan_launch(spec, 1, ("python", "train.py"), NodePlace(0, 1, tmp_path, TWO))
    assert read_horovod_controller(launch.environment) == "mpi"


# As MultiWorkerMirroredStrategy: each worker serves at its own address, and values are summed up.
TENSORFLOW_SCRIPT = """
import os, socket, time
workers, kind, index = read_tf_config(os.environ)
host, port = workers[index].split(":")
with socket.create_server((host, int(port))) as server:
    for peer in workers:
        host, port = peer.split(":")
        for _ in range(600):
            try:
                connection = socket.create_connection((host, int(port)))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        connection.sendall(bytes([10 ** index]))
        connection.close()
    total = 0
    for _ in workers:
        connection, _ = server.accept()
        total += connection.recv(1)[0]
print(kind, index, "of", len(workers), "total", total)
"""
CONTROLLERS = [("horovod", "mpi"), ("chainermn", "built-in"), ("cntk", "built-in")]
MPI_SCRIPT = """
import os
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "cntk", read_cntk_processes(os.environ),
      "horovod", read_horovod_controller(os.environ), "on node", os.environ["RUNNER_NODE_RANK"])
"""


@pytest.mark.slow
@pytest.mark.feature(23)
def test_workers_of_tensorflow_reach_each_other(node_group: NodeGroupTask) -> None:
    node_group.submit(READERS + TENSORFLOW_SCRIPT, resources={"nodes": 2}, launcher="tensorflow")
    assert node_group.run_node_group(2) == 0, node_group.output
    assert node_group.text("logs/stdout.txt") == "worker 0 of 2 total 11\n"
    assert node_group.text("nodes/1/stdout.txt") == "worker 1 of 2 total 11\n"


@pytest.mark.slow
@pytest.mark.feature(23)
@pytest.mark.parametrize(("launcher", "controller"), CONTROLLERS)
def test_processes_of_mpi_frameworks_know_all_others(
    node_group: NodeGroupTask, launcher: str, controller: str
) -> None:
    install_mpirun(node_group)
    node_group.submit(READERS + MPI_SCRIPT, resources={"nodes": 2}, launcher=launcher)
    assert node_group.run_node_group(2) == 0, node_group.output
    logs = [node_group.text(name) for name in ("logs/stdout.txt", "nodes/1/stdout.txt")]
    assert logs == [f"rank {rank} cntk 2 horovod {controller} on node {rank}\n" for rank in (0, 1)]
