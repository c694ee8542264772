"""Launchers: the command on each node, and mpirun across nodes without SSH."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runner.node.cluster import RENDEZVOUS_PORTS, ClusterSpec, free_port
from runner.node.distributed.launchers import (
    NodePlace,
    count_processes,
    mpi_environment,
    plan_launch,
    write_launch_files,
)
from runner.node.distributed.remote_launch import LaunchRequests
from runner.protocol.run_spec import LAUNCHERS, MPI_LAUNCHERS, RunSpec
from tests.unit.node.node_group_task import NodeGroupTask

TWO = ClusterSpec(("10.0.0.4", "10.0.0.5"), (1, 2), 12_000, 12_001, (2, 4))
SCRIPT = ("python", "train.py", "--epochs", "3")


def place(rank: int = 0, cluster: ClusterSpec | None = TWO, folder: Path = Path("/f")) -> NodePlace:
    return NodePlace(rank, 2 if rank == 0 else 4, folder, cluster)


def spec(launcher: str, processes: int | None = None) -> RunSpec:
    return RunSpec.from_json(
        {"run_id": "run-1", "launcher": launcher, "processes_per_node": processes}
    )


@pytest.mark.parametrize("launcher", ["python", "tensorflow", "jax"])
def test_command_runs_unchanged_once_per_node(launcher: str) -> None:
    assert plan_launch(spec(launcher), 1, SCRIPT, place()).words == SCRIPT
    assert count_processes(spec(launcher), {"CUDA_VISIBLE_DEVICES": "0,1"}) == 1


def test_torchrun_gets_the_nodes_and_an_id_of_the_attempt() -> None:
    words = plan_launch(spec("torchrun"), 3, SCRIPT, place(1)).words
    assert words[:3] == ("python", "-m", "torch.distributed.run")
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
    assert words[1:3] == ("-m", "torch.distributed.run")
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


@pytest.mark.parametrize("launcher", sorted(MPI_LAUNCHERS))
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
    assert "OMPI_MCA_coll" not in mpi_environment(place())


def test_every_launcher_of_the_recipe_has_a_plan(tmp_path: Path) -> None:
    for launcher in LAUNCHERS:
        assert plan_launch(spec(launcher), 1, SCRIPT, place(folder=tmp_path)).words


def test_program_for_unknown_hosts_exits_like_ssh(tmp_path: Path) -> None:
    write_launch_files(SCRIPT, tmp_path, place(folder=tmp_path))
    requests = LaunchRequests(tmp_path, lambda *_: False)
    requests.start()
    done = subprocess.run([tmp_path / "start-on", "10.9.9.9", "true"], check=False, timeout=60)
    requests.stop()
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


# Starts one process on each host, as mpirun does: by the program that its variable names.
STAND_IN = """#!{python}
import os, shlex, subprocess, sys
hosts = [line.split()[0] for line in open(os.environ["PRTE_MCA_prte_default_hostfile"])]
app = sys.argv[sys.argv.index("--wdir") + 2:]
started = []
for rank, host in enumerate(hosts):
    # The option is that of prted, which must not leave the program that started it.
    daemon = f"cd / && env OMPI_COMM_WORLD_RANK={{rank}} --daemonize {{shlex.join(app)}}"
    started.append(subprocess.Popen([os.environ["OMPI_MCA_plm_rsh_agent"], host, daemon]))
sys.exit(max(process.wait() for process in started))
"""
MPI_SCRIPT = """
import os, sys
rank, node = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["RUNNER_NODE_RANK"]
here = os.path.basename(os.path.dirname(os.getcwd()))
print("process", rank, "on node", node, "in", here, sys.argv[1:], flush=True)
open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], f"of-{rank}"), "w").close()
if "fail" in sys.argv and rank == "1":
    sys.exit(5)
"""


def _install_stand_in(node_group: NodeGroupTask) -> None:
    folder = node_group.folder / "bin"
    folder.mkdir()
    program = folder / "mpirun"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    node_group.settings["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.feature(23)
def test_mpirun_starts_processes_on_other_nodes_through_the_agents(
    node_group: NodeGroupTask,
) -> None:
    _install_stand_in(node_group)
    node_group.submit(MPI_SCRIPT, resources={"nodes": 3}, launcher="mpi")
    assert node_group.run_node_group(3) == 0, node_group.output
    logs = [node_group.text(f"nodes/{rank}/stdout.txt") for rank in (1, 2)]
    assert node_group.text("logs/stdout.txt") == "process 0 on node 0 in wd []\n"
    assert logs == [f"process {rank} on node {rank} in wd []\n" for rank in (1, 2)]
    kept = [one["path"] for one in node_group.json("result.json")["outputs"]]
    assert kept == ["of-0", "rank-1/of-1", "rank-2/of-2"]


@pytest.mark.slow
def test_failure_of_a_process_on_another_node_is_that_of_mpirun(node_group: NodeGroupTask) -> None:
    _install_stand_in(node_group)
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
        "print(world.rank, 'of', world.size, 'on', os.environ['RUNNER_NODE_RANK'], total)\n",
        resources={"nodes": 2},
        launcher="mpi",
        processes_per_node=2,
        command=[python, "train.py"],
    )
    assert node_group.run_node_group(2) == 0, node_group.output
    assert sorted(node_group.text("logs/stdout.txt").splitlines()) == [
        "0 of 4 on 0 1111",
        "1 of 4 on 0 1111",
        "2 of 4 on 1 1111",
        "3 of 4 on 1 1111",
    ]
