"""Functions that read the environment like frameworks, written after their published sources.

The test machines do not have TensorFlow, JAX, Horovod, ChainerMN and CNTK. Sources, read on
2026-11-25:

- TensorFlow 2.21: `tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py`
- JAX 0.10: `jax/_src/distributed.py`, `State.initialize`
- Horovod 0.28.1: `horovod/common/utils/env_parser.cc`, and `horovod/common/mpi/mpi_context.cc`,
  which splits the processes by node (`MPI_Comm_split_type`)
- CNTK 2.7: `Source/Common/MPIWrapper.cpp`, `GetTotalNumberOfMPINodes`
- ChainerMN of Chainer 7.8.1: `chainermn/communicators/__init__.py`, which reads no variable, but
  takes rank and size from mpi4py and so from `mpirun`
"""

from __future__ import annotations

import json
from collections.abc import Mapping

Environment = Mapping[str, str]


def read_tf_config(environment: Environment) -> tuple[list[str], str, int]:
    """Return the workers, and type and index of this task, as `TFConfigClusterResolver`."""
    config = json.loads(environment.get("TF_CONFIG", "{}"))
    task = config["task"]
    return list(config["cluster"]["worker"]), str(task["type"]), int(task["index"])


def read_jax(environment: Environment) -> tuple[str, int, int, int]:
    """Return host and port of the coordinator, and number and id of the process.

    JAX reads only the address; the guide passes the other two as arguments.
    """
    host, _, port = environment["JAX_COORDINATOR_ADDRESS"].rpartition(":")
    processes, process = environment["JAX_NUM_PROCESSES"], environment["JAX_PROCESS_ID"]
    return host, int(port), int(processes), int(process)


def read_horovod_controller(environment: Environment) -> str:
    """Return the controller. With Gloo, ranks would come from a server that mpirun lacks."""
    name = environment.get("HOROVOD_CONTROLLER", "built-in").lower()
    if name not in ("mpi", "gloo", "built-in"):
        raise ValueError(name)
    return name


def read_cntk_processes(environment: Environment) -> int:
    """Return the number of processes; 0 makes CNTK train alone, whatever MPI says."""
    return int(environment.get("OMPI_COMM_WORLD_SIZE", "0"))
