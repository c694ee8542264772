"""A peer of `task_rate`: HyperQueue with its server and one worker. Prints its tasks per second.

The program is a process of its own, because HyperQueue writes tables and progress to its output.
Each task has files for its output in the working directory, as a task of the emulator has.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any


def main(slots: int, tasks: int) -> None:
    """Run `tasks` times `/bin/true` on `slots` cores."""
    hyperqueue: Any = importlib.import_module("hyperqueue")
    cluster: Any = importlib.import_module("hyperqueue.cluster")
    folder, worker = str(Path.cwd() / "server"), cluster.WorkerConfig(cores=slots)
    with cluster.LocalCluster(folder, worker) as running:
        client = running.client()
        job = hyperqueue.Job()
        for _ in range(tasks):
            job.program(["/bin/true"])
        start = time.perf_counter()
        client.wait_for_jobs([client.submit(job)])
        print(f"\n{tasks / (time.perf_counter() - start)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
