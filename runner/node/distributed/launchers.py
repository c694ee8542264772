"""Start the processes of a script on the nodes of a run, as its launcher does.

The launchers are entries of `runner.protocol.launchers`; a kind of `start` is a function of
`_PLANS`. `torchrun` wraps the command on each node. `mpirun` runs on rank 0, and starts a daemon on
each other node by way of the agents (`remote_launch`).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from runner.node.cluster import ClusterSpec
from runner.node.failures import COMMAND_STAGE, StageFailedError
from runner.node.script.command import NOT_FOUND_EXIT_CODE
from runner.protocol.launchers import LAUNCHERS, Start
from runner.protocol.run_spec import RunSpec

LAUNCH_FOLDER = "launch"  # in the folder of hooks
SCRIPT_VARIABLE = "RUNNER_LAUNCH_SCRIPT"
PROCESSES_VARIABLE = "RUNNER_PROCESSES_PER_NODE"
AGENT_SCRIPT, HOST_FILE, COMMAND_SCRIPT, SERVE_SCRIPT = "start-on", "hosts", "command.sh", "serve"
NAMED_SCRIPT = "named"
GPU_QUERY_S = 30.0
_PYTHONS = ("python", "python3")


@dataclass(frozen=True)
class Launch:
    """The command that the agent runs on this node, and its further variables."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class NodePlace:
    """This node in an attempt: its rank, the number of processes on it, and all nodes.

    `cluster` is None if the run has one node.
    """

    rank: int
    processes: int
    folder: Path  # for the files of the launcher
    cluster: ClusterSpec | None = None

    @property
    def slots(self) -> list[tuple[str, int]]:
        """The address and the number of processes of each node, by rank."""
        if self.cluster is None:
            return []
        return list(zip(self.cluster.addresses, self.cluster.processes, strict=True))


def count_processes(spec: RunSpec, environment: Mapping[str, str]) -> int:
    """Return how many processes a launcher starts on this node that starts several."""
    return spec.processes_per_node or max(_count_gpus(environment), 1)


def _count_gpus(environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=GPU_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def prepare_launch(
    spec: RunSpec, attempt: int, words: Sequence[str], place: NodePlace, path: str, code: Path
) -> Launch:
    """Return `plan_launch`. Before a launch of MPI, look for mpirun and write the files it needs.

    Args:
        spec: see `plan_launch`, as the next three.
        attempt: the number of the attempt.
        words: the command.
        place: this node.
        path: `PATH` of the script.
        code: the folder of the script.

    Raises:
        StageFailedError: mpirun is not on this node.
    """
    if LAUNCHERS[spec.launcher].start == "mpirun":
        if shutil.which("mpirun", path=path) is None:
            raise StageFailedError(
                COMMAND_STAGE,
                "CommandNotFound",
                f"mpirun, which the launcher {spec.launcher} uses, is not on this node: add the "
                "package openmpi to the requirements, or install Open MPI with `prepare`",
                NOT_FOUND_EXIT_CODE,
            )
        write_launch_files(words, code, place)
    return plan_launch(spec, attempt, words, place)


def plan_launch(spec: RunSpec, attempt: int, words: Sequence[str], place: NodePlace) -> Launch:
    """Return how the launcher runs the command on one node.

    Args:
        spec: the run.
        attempt: the number of the attempt. It is part of the ID of torchrun's rendezvous.
        words: the command, expanded for this node.
        place: this node.
    """
    kind = LAUNCHERS[spec.launcher]
    launch = _PLANS[kind.start](f"{spec.run_id}-{attempt}", words, place)
    return Launch(launch.words, {**launch.environment, **kind.variables})


def _plan_command(_: str, words: Sequence[str], __: NodePlace) -> Launch:
    return Launch(tuple(words))


def _plan_torchrun(attempt_id: str, words: Sequence[str], place: NodePlace) -> Launch:
    return Launch(tuple(_add_torchrun(words, _torchrun_options(attempt_id, place))))


def _torchrun_options(rendezvous_id: str, place: NodePlace) -> list[str]:
    options = ["--nproc-per-node", str(place.processes), "--rdzv-id", rendezvous_id]
    cluster = place.cluster
    if cluster is None:  # the same as --standalone, which would choose the ID itself
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        return ["--nnodes", "1", *options, *endpoint]
    # Use the static rendezvous: rank 0 must be on the node whose checkpoints are committed.
    return [
        *("--nnodes", str(len(cluster.addresses)), "--node-rank", str(place.rank)),
        *("--master-addr", cluster.addresses[0], "--master-port", str(cluster.master_port)),
        *options,
    ]


# Unlike `python -m`, it does not search what torchrun imports in the folder of the code.
TORCHRUN = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import runpy; "
    "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
)


def _add_torchrun(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command with torchrun, which replaces `python` before a script or module."""
    first = PurePosixPath(words[0]).name
    if first == "torchrun":
        return [words[0], *options, *words[1:]]
    start = ["python", "-c", TORCHRUN, *options]
    if first not in _PYTHONS:
        return [*start, "--no-python", *words]
    start[0] = words[0]
    rest = list(words[1:])
    if len(rest) > 1 and rest[0] == "-m":
        return [*start, "--module", *rest[1:]]
    if rest and not rest[0].startswith("-"):
        return [*start, *rest]
    return [*start, "--no-python", *words]  # python has options


# mpirun calls it instead of ssh, with the arguments HOST COMMAND, to start its daemon on another
# node. The daemon must not detach itself, because the agent of the other node waits for its end.
_AGENT_SCRIPT = """\
#!/bin/sh
folder={folder}
host=$1
shift
command=$(printf '%s' "$*" | sed 's/ --daemonize / /')
case " {own} localhost " in *" $host "*) exec {named} /bin/sh -c "$command" ;; esac
request=$(mktemp "$folder/request.XXXXXX") || exit 255
printf '%s\\n%s\\n' "$host" "$command" > "$request"
mv "$request" "$request.ready"
while [ ! -e "$request.ended" ]; do sleep 0.1; done
read -r code < "$request.ended"
exit "$code"
"""
# The other nodes run it instead of the script. It ends when the agent has written `finish`.
_SERVE_SCRIPT = """\
#!/bin/sh
folder={folder}
while :; do
  for file in "$folder"/*.start; do
    [ -e "$file" ] || continue
    name=${{file%.start}}
    mv "$file" "$name.sh"
    ({named} /bin/sh "$name.sh"; echo $? > "$name.part"; mv "$name.part" "$name.code") &
  done
  [ -e "$folder/finish" ] && break
  sleep 0.05
done
wait
"""
# Starts a daemon with its own host name, on nodes that share one machine. Open MPI treats daemons
# with the same host name as one node, and then waits forever in MPI_Comm_split_type, which Horovod
# calls. Without user namespaces, the daemons keep the name of the machine.
_NAMED_SCRIPT = """\
#!/bin/sh
own="unshare --map-current-user --keep-caps --uts"
$own hostname {name} 2>/dev/null || exec "$@"
exec $own /bin/sh -c 'hostname "$0"; exec "$@"' {name} "$@"
"""
# mpirun starts it on each node. The folder of the code differs between nodes.
_COMMAND_SCRIPT = "cd {code}\nexec {words}\n"


def write_launch_files(words: Sequence[str], code: Path, place: NodePlace) -> None:
    """Write the scripts and the host file that a launch of MPI uses. Raise OSError."""
    folder = place.folder
    folder.mkdir(parents=True, exist_ok=True)  # it exists if rank 0 started a command before
    own = place.slots[place.rank][0] if place.slots else "127.0.0.1"
    where = shlex.quote(str(folder))
    named = ""
    if place.slots and _shares_machine(own):
        name = f"node-{own.replace('.', '-')}"
        named = shlex.quote(str(_write_program(folder / NAMED_SCRIPT, _NAMED_SCRIPT, name=name)))
    _write_program(folder / AGENT_SCRIPT, _AGENT_SCRIPT, folder=where, own=own, named=named)
    _write_program(folder / SERVE_SCRIPT, _SERVE_SCRIPT, folder=where, named=named)
    command = _COMMAND_SCRIPT.format(code=shlex.quote(str(code)), words=shlex.join(words))
    (folder / COMMAND_SCRIPT).write_text(command, encoding="utf-8")
    hosts = [f"{address} slots={count}\n" for address, count in place.slots]
    (folder / HOST_FILE).write_text("".join(hosts), encoding="utf-8")


def _write_program(path: Path, template: str, **values: str) -> Path:
    path.write_text(template.format(**values), encoding="utf-8")
    path.chmod(0o700)
    return path


def _shares_machine(address: str) -> bool:
    """Return True for the address of an emulated node."""
    return address.startswith("127.")


def _plan_mpirun(_: str, words: Sequence[str], place: NodePlace) -> Launch:
    environment = mpi_variables(place)
    if place.rank:
        return Launch(("/bin/sh", str(place.folder / SERVE_SCRIPT)), environment)
    if PurePosixPath(words[0]).name in ("mpirun", "mpiexec", "prterun"):
        return Launch(tuple(words), environment)  # the variables name the nodes and the agent
    total = sum(count for _, count in place.slots) or place.processes
    # The folder of the code differs between nodes.
    start = ("mpirun", "-n", str(total), "--wdir", "/")
    script = f'exec /bin/sh "${SCRIPT_VARIABLE}"'
    return Launch((*start, "/bin/sh", "-c", script), environment)


# How a launcher runs the words of the command, by its `start`.
_PLANS: dict[Start, Callable[[str, Sequence[str], NodePlace], Launch]] = {
    "command": _plan_command,
    "torchrun": _plan_torchrun,
    "mpirun": _plan_mpirun,
}


def mpi_variables(place: NodePlace) -> dict[str, str]:
    """Return the variables of Open MPI: `OMPI_MCA_*` up to version 4, `PRTE_MCA_*` since 5.

    Sources: `ompi_info --all` of Open MPI 4.1.4, `prte_info --all` of 5.0.11, read 2026-11-24.
    """
    found = {
        SCRIPT_VARIABLE: str(place.folder / COMMAND_SCRIPT),
        # A task may run as root, for example in a container.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Slots are processes here, and a node may have more processes than cores.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if place.cluster is None:
        return found
    agent, hosts = str(place.folder / AGENT_SCRIPT), str(place.folder / HOST_FILE)
    found |= {
        "OMPI_MCA_plm_rsh_agent": agent,
        "PRTE_MCA_plm_ssh_agent": agent,
        # Only rank 0 is connected to the agents of the other nodes.
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_orte_default_hostfile": hosts,
        "PRTE_MCA_prte_default_hostfile": hosts,
    }
    if _shares_machine(place.cluster.addresses[0]):
        # These nodes share one machine and its host name. Open MPI 5 considers them to be one node,
        # and the names of their shared memory collide.
        found |= {"OMPI_MCA_coll": "^han,sm", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_pml": "ob1"}
    return found
