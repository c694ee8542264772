"""Launchers: the command on each node, and mpirun across nodes without SSH."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from runner.node.cluster import RENDEZVOUS_PORTS, ClusterSpec, free_port
from runner.node.distributed.launchers import (
    TORCHRUN,
    NodePlace,
    count_processes,
    mpi_variables,
    plan_launch,
    write_launch_files,
)
from runner.node.distributed.remote_launch import LaunchRequests
from runner.protocol.launchers import LAUNCHERS, Launcher
from runner.protocol.run_spec import RunSpec
from tests.unit.node.distributed.stand_in_mpirun import install_mpirun
from tests.unit.node.node_group_task import NodeGroupTask

TWO = ClusterSpec(("10.0.0.4", "10.0.0.5"), (1, 2), 12_000, 12_001, (2, 4))
SCRIPT = ("python", "train.py", "--epochs", "3")


def place(rank: int = 0, cluster: ClusterSpec | None = TWO, folder: Path = Path("/f")) -> NodePlace:
    return NodePlace(rank, 2 if rank == 0 else 4, folder, cluster)


def spec(launcher: str, processes: int | None = None) -> RunSpec:
    return RunSpec.from_json(
        {"run_id": "run-1", "launcher": launcher, "processes_per_node": processes}
    )


def test_torchrun_gets_the_nodes_and_an_id_of_the_attempt() -> None:
    words = plan_launch(spec("torchrun"), 3, SCRIPT, place(1)).words
    assert words[:3] == ("python", "-c", TORCHRUN)
    assert words[-3:] == ("train.py", "--epochs", "3")
    assert dict(zip(words[3:-3:2], words[4:-3:2], strict=True)) == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--master-addr": "10.0.0.4",
        "--master-port": "12000",
        "--nproc-per-node": "4",
        "--rdzv-id": "run-1-3",
    }


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (("python3", "-m", "pkg.train", "-x"), ("--module", "pkg.train", "-x")),
        (("./run.sh", "a"), ("--no-python", "./run.sh", "a")),
        (("python", "-u", "train.py"), ("--no-python", "python", "-u", "train.py")),
    ],
)
def test_torchrun_starts_modules_and_programs(
    command: tuple[str, ...], end: tuple[str, ...]
) -> None:
    words = plan_launch(spec("torchrun"), 1, command, place()).words
    assert words[1:3] == ("-c", TORCHRUN)
    assert words[-len(end) :] == end


def test_torchrun_on_one_node_needs_no_port() -> None:
    words = plan_launch(spec("torchrun"), 1, SCRIPT, place(cluster=None)).words
    assert words[words.index("--rdzv-endpoint") + 1] == "localhost:0"
    own = plan_launch(spec("torchrun"), 1, ("torchrun", "--max-restarts", "2", "a.py"), place())
    assert own.words[0] == "torchrun"
    assert own.words[-3:] == ("--max-restarts", "2", "a.py")


def test_processes_per_node_are_its_gpus_unless_configured() -> None:
    assert count_processes(spec("torchrun"), {"CUDA_VISIBLE_DEVICES": "0,1,5"}) == 3
    assert count_processes(spec("mpi"), {"CUDA_VISIBLE_DEVICES": ""}) == 1
    assert count_processes(spec("mpi", 7), {"CUDA_VISIBLE_DEVICES": "0"}) == 7


@pytest.mark.parametrize(
    "launcher", [name for name, kind in LAUNCHERS.items() if kind.start == "mpirun"]
)
def test_mpi_starts_all_processes_from_rank_0(launcher: str, tmp_path: Path) -> None:
    first = plan_launch(spec(launcher), 1, SCRIPT, place(folder=tmp_path))
    assert first.words[:3] == ("mpirun", "-n", "6")
    for version in ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"):
        assert first.environment[version] == str(tmp_path / "start-on")
    other = plan_launch(spec(launcher), 1, SCRIPT, place(1, folder=tmp_path))
    assert other.words == ("/bin/sh", str(tmp_path / "serve"))
    write_launch_files(SCRIPT, Path("/code of it"), place(folder=tmp_path))
    assert (tmp_path / "hosts").read_text() == "10.0.0.4 slots=2\n10.0.0.5 slots=4\n"
    assert (tmp_path / "command.sh").read_text() == (
        "cd '/code of it'\nexec python train.py --epochs 3\n"
    )
    own = plan_launch(spec(launcher), 1, ("mpirun", "-n", "2", "./a"), place(folder=tmp_path))
    assert own.words == ("mpirun", "-n", "2", "./a")
    assert own.environment == first.environment


def test_pool_nodes_keep_the_collectives_of_open_mpi() -> None:
    assert "OMPI_MCA_coll" not in mpi_variables(place())


def test_every_launcher_has_an_entry_and_a_plan(tmp_path: Path) -> None:
    assert get_args(Launcher) == tuple(LAUNCHERS)
    for launcher in LAUNCHERS:
        assert plan_launch(spec(launcher), 1, SCRIPT, place(folder=tmp_path)).words


def test_daemons_of_local_nodes_have_host_names_of_their_own(tmp_path: Path) -> None:
    local = ClusterSpec(("127.3.0.1", "127.3.0.2"), (1, 2), 12_000, 12_001, (1, 1))
    for rank in (0, 1):
        write_launch_files(SCRIPT, tmp_path, place(rank, local, tmp_path))
        named = subprocess.run(
            [tmp_path / "named", "sh", "-c", "echo $(hostname) $(id -u)"],
            capture_output=True,
            text=True,
            check=True,
        )
        name, user = named.stdout.split()
        assert name in (f"node-127-3-0-{rank + 1}", socket.gethostname())
        assert user == str(os.getuid())
    assert str(tmp_path / "named") in (tmp_path / "start-on").read_text()
    write_launch_files(SCRIPT, tmp_path, place(0, TWO, tmp_path))
    assert "named" not in (tmp_path / "start-on").read_text()


def test_program_for_unknown_hosts_exits_like_ssh(tmp_path: Path) -> None:
    write_launch_files(SCRIPT, tmp_path, place(folder=tmp_path))
    with LaunchRequests(tmp_path, lambda *_: False):
        done = subprocess.run([tmp_path / "start-on", "10.9.9.9", "true"], check=False, timeout=300)
    assert done.returncode == 255


def test_used_port_is_not_chosen_for_a_rendezvous() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        free = next(p for p in RENDEZVOUS_PORTS if _is_free(p))
        assert free_port("127.0.0.1", iter([port, free])) == free
        with pytest.raises(OSError, match="in use"):
            free_port("127.0.0.1", iter([port]))
    assert free_port("127.0.0.1") in RENDEZVOUS_PORTS


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


MPI_SCRIPT = """
import os, sys
rank, node = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["RUNNER_NODE_RANK"]
here = os.path.basename(os.path.dirname(os.getcwd()))
print("process", rank, "on node", node, "in", here, sys.argv[1:], flush=True)
open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], f"of-{rank}"), "w").close()
if "fail" in sys.argv and rank == "1":
    sys.exit(5)
"""


@pytest.mark.feature(23)
def test_mpirun_starts_processes_on_other_nodes_through_the_agents(
    node_group: NodeGroupTask,
) -> None:
    install_mpirun(node_group)
    node_group.submit(MPI_SCRIPT, resources={"nodes": 3}, launcher="mpi")
    assert node_group.run_node_group(3) == 0, node_group.output
    logs = [node_group.text(f"nodes/{rank}/stdout.txt") for rank in (1, 2)]
    assert node_group.text("logs/stdout.txt") == "process 0 on node 0 in wd []\n"
    assert logs == [f"process {rank} on node {rank} in wd []\n" for rank in (1, 2)]
    kept = [one["path"] for one in node_group.json("result.json")["outputs"]]
    assert kept == ["of-0", "rank-1/of-1", "rank-2/of-2"]


@pytest.mark.slow
def test_failure_of_a_process_on_another_node_is_that_of_mpirun(node_group: NodeGroupTask) -> None:
    install_mpirun(node_group)
    command = ["python", "train.py", "fail"]
    node_group.submit(MPI_SCRIPT, resources={"nodes": 2}, launcher="mpi", command=command)
    assert node_group.run_node_group(2) == 5, node_group.output
    message = node_group.json("result.json")["message"]
    assert message == "rank 0 on node tvm-0: python train.py exited with code 5"


def test_missing_mpirun_is_reported_with_the_package(node_group: NodeGroupTask) -> None:
    node_group.settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}/bin"
    if shutil.which("mpirun", path=node_group.settings["PATH"]):
        pytest.skip("mpirun is among the programs that every node has")
    node_group.submit(MPI_SCRIPT, resources={"nodes": 2}, launcher="horovod")
    assert node_group.run_node_group(2) == 127
    result = node_group.json("result.json")
    assert result["code"] == "CommandNotFound"
    assert "add the package openmpi to the requirements" in result["message"]


@pytest.mark.feature(23)
def test_open_mpi_computes_a_sum_over_two_nodes(node_group: NodeGroupTask) -> None:
    python = os.environ.get("MPI_PYTHON")
    if python is None:
        pytest.skip("$MPI_PYTHON names no interpreter with mpi4py, with mpirun beside it")
    folder = Path(python).parent
    node_group.settings["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    node_group.submit(
        "from mpi4py import MPI\nimport os\nworld = MPI.COMM_WORLD\n"
        "total = world.allreduce(10 ** world.rank)\n"
        "local = world.Split_type(MPI.COMM_TYPE_SHARED).size\n"  # as Horovod
        "node = os.environ['RUNNER_NODE_RANK']\n"
        "print(world.rank, 'of', world.size, 'on', node, total, local)\n",
        resources={"nodes": 2},
        launcher="mpi",
        processes_per_node=2,
        command=[python, "train.py"],
    )
    assert node_group.run_node_group(2) == 0, node_group.output
    assert sorted(node_group.text("logs/stdout.txt").splitlines()) == [
        "0 of 4 on 0 1111 2",
        "1 of 4 on 0 1111 2",
        "2 of 4 on 1 1111 2",
        "3 of 4 on 1 1111 2",
    ]


def test_torchrun_imports_no_module_of_the_code(tmp_path: Path) -> None:
    module = tmp_path / "packages/torch/distributed/run.py"
    module.parent.mkdir(parents=True)
    module.write_text("import queue, sys; print(queue.Queue.__name__, sys.argv[1:])")
    (tmp_path / "queue.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", TORCHRUN, "--nnodes", "1"], cwd=tmp_path, text=True,
        env={"PYTHONPATH": str(tmp_path / "packages")}, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == "Queue ['--nnodes', '1']\n"
