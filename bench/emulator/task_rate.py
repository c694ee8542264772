"""1,000 `/bin/true` tasks through the emulator, against programs that run as many at a time.

`xargs` only starts processes. A bare loop in Python starts them in folders with files of their own,
as nodes do: what it loses against `xargs` is Python and the file system, what the emulator loses
against it is a state that survives a crash. GNU parallel and HyperQueue (`pip install hyperqueue`)
are measured where they are installed.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from bench.report import PeerMissingError, Ratio
from bench.services import Emulator, emulator

TASKS = 1000
SLOTS = 4
DEADLINE_S = 120.0


def require_parallel() -> None:
    """Raise PeerMissingError if GNU parallel is not installed."""
    if shutil.which("parallel") is None:
        raise PeerMissingError("GNU parallel is the peer: sudo apt-get install parallel")


def parallel_rate(jobs: int, count: int) -> float:
    """Return how many of `count` `/bin/true` GNU parallel runs per second, `jobs` at a time."""
    start = time.perf_counter()
    subprocess.run(
        ["parallel", f"-j{jobs}", "-n0", "/bin/true"],
        input="\n".join(map(str, range(count))), text=True, check=True,
    )  # fmt: skip
    return count / (time.perf_counter() - start)


def measure() -> Iterator[Ratio]:
    """Yield tasks per second, from the first submission to the last completion."""
    with emulator() as service:
        ours = TASKS / _seconds_through_the_emulator(service)

    def ratio(name: str, peer: float, least: float | None) -> Ratio:
        bound = "(figure)" if least is None else f">= {least}x"
        met = None if least is None else ours >= least * peer
        return Ratio("1,000 /bin/true tasks", "tasks/s", ours, name, peer, bound, met)

    yield ratio(f"xargs -P{SLOTS}", _xargs_rate(), 0.4)
    yield ratio("a bare loop with the same folders and files", _bare_rate(), None)
    if shutil.which("parallel") is not None:
        yield ratio(f"GNU parallel -j{SLOTS}", parallel_rate(SLOTS, TASKS), 0.5)
    if importlib.util.find_spec("hyperqueue") is not None:
        yield ratio(f"HyperQueue, {SLOTS} cores", _hyperqueue_rate(), None)


def _xargs_rate() -> float:
    start = time.perf_counter()
    subprocess.run(
        ["xargs", "-n1", f"-P{SLOTS}", "/bin/true"],
        input="\n".join(map(str, range(TASKS))), text=True, check=True,
    )  # fmt: skip
    return TASKS / (time.perf_counter() - start)


def _bare_rate() -> float:
    """Start each command in a new folder with two others and two files, and await it."""
    with tempfile.TemporaryDirectory(prefix="emulator-bench-") as folder, select.epoll() as ends:
        start = time.perf_counter()
        running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(TASKS):
            if len(running) == SLOTS:
                _await_some(ends, running)
            process = _started(Path(folder, str(number)))
            descriptor = os.pidfd_open(process.pid)
            ends.register(descriptor, select.EPOLLIN)
            running[descriptor] = process
        while running:
            _await_some(ends, running)
        return TASKS / (time.perf_counter() - start)


def _started(folder: Path) -> subprocess.Popen[bytes]:
    for made in (folder, folder / "wd", folder / "certs"):
        made.mkdir()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        return subprocess.Popen(
            ["/bin/true"], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder / "wd",
            start_new_session=True,
        )  # fmt: skip


def _await_some(ends: select.epoll, running: dict[int, subprocess.Popen[bytes]]) -> None:
    for descriptor, _ in ends.poll():
        os.close(descriptor)  # this unregisters it
        running.pop(descriptor).wait()


def _hyperqueue_rate() -> float:
    with tempfile.TemporaryDirectory(prefix="emulator-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "bench.emulator.hyperqueue_rate", str(SLOTS), str(TASKS)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(done.stdout.splitlines()[-1])


def _seconds_through_the_emulator(service: Emulator) -> float:
    client = BatchClient(service.endpoint, AzureNamedKeyCredential(service.account, service.key))
    client.create_pool(pool_of("bench", nodes=1, slots=SLOTS))
    until(lambda: [n.state for n in client.list_nodes("bench")] == ["idle"])
    client.create_job(
        models.BatchJobCreateOptions(id="bench", pool_info=models.BatchPoolInfo(pool_id="bench"))
    )
    tasks = [
        models.BatchTaskCreateOptions(id=f"t{n}", command_line="/bin/true") for n in range(TASKS)
    ]
    start = time.perf_counter()
    client.create_tasks("bench", tasks)
    until(lambda: client.get_job_task_counts("bench").task_counts.succeeded == TASKS)
    return time.perf_counter() - start


def pool_of(pool_id: str, *, nodes: int, slots: int) -> models.BatchPoolCreateOptions:
    """Return the options of a pool of dedicated nodes."""
    image = models.BatchVmImageReference(
        publisher="canonical", offer="ubuntu-24_04-lts", sku="server", version="latest"
    )
    return models.BatchPoolCreateOptions(
        id=pool_id,
        vm_size="standard_d4s_v3",
        virtual_machine_configuration=models.VirtualMachineConfiguration(
            image_reference=image, node_agent_sku_id="batch.node.ubuntu 24.04"
        ),
        target_dedicated_nodes=nodes,
        task_slots_per_node=slots,
    )


def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true. Raise TimeoutError after two minutes."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the emulator did not get there")
        time.sleep(0.05)
