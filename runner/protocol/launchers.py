"""The launchers: what starts the command of a run on its nodes.

docs/guides/distributed.md has a table. A launcher is its name in `Launcher` and an entry of
`LAUNCHERS`. `runner/node/distributed/launchers.py` has what each kind of `start` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Launcher = Literal["python", "torchrun", "mpi", "horovod", "tensorflow", "jax", "chainermn", "cntk"]
Start = Literal["command", "torchrun", "mpirun"]


class LauncherKind(NamedTuple):
    """What a launcher starts.

    Attributes:
        start: `command` runs the command once on each node, `torchrun` wraps it on each node, and
            `mpirun` runs on rank 0 for all nodes. The last two start a process for each GPU, or
            `processes_per_node`.
        reads: Variables of the nodes that its scripts always read, so a run on one node has them.
        variables: Further variables that it sets.
    """

    start: Start = "command"
    reads: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


LAUNCHERS: dict[Launcher, LauncherKind] = {
    "python": LauncherKind(),
    "torchrun": LauncherKind("torchrun"),
    "mpi": LauncherKind("mpirun"),
    "horovod": LauncherKind("mpirun", variables={"HOROVOD_CONTROLLER": "mpi"}),
    "tensorflow": LauncherKind(reads=("TF_CONFIG",)),
    "jax": LauncherKind(reads=("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")),
    "chainermn": LauncherKind("mpirun"),
    "cntk": LauncherKind("mpirun"),
}
