"""A stand-in for mpirun, which the test machines do not have."""

from __future__ import annotations

import os
import stat
import sys

from tests.unit.node.node_group_task import NodeGroupTask

# Starts one process on each host, as mpirun does, with the program that its variable names.
STAND_IN = """#!{python}
import os, shlex, subprocess, sys
hosts = [line.split()[0] for line in open(os.environ["PRTE_MCA_prte_default_hostfile"])]
app = sys.argv[sys.argv.index("--wdir") + 2:]
started = []
for rank, host in enumerate(hosts):
    # The option is that of prted, which must not leave the program that started it.
    daemon = f"cd / && env OMPI_COMM_WORLD_RANK={{rank}} OMPI_COMM_WORLD_SIZE={{len(hosts)}}"
    daemon += f" --daemonize {{shlex.join(app)}}"
    started.append(subprocess.Popen([os.environ["OMPI_MCA_plm_rsh_agent"], host, daemon]))
sys.exit(max(process.wait() for process in started))
"""


def install_mpirun(node_group: NodeGroupTask) -> None:
    """Put the stand-in on the PATH of the nodes."""
    folder = node_group.folder / "bin"
    folder.mkdir()
    program = folder / "mpirun"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    node_group.settings["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
