"""1,000 `/bin/true` tasks through the emulator against GNU parallel on the same number of slots."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable

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


def measure() -> list[Ratio]:
    """Return tasks per second, from the first submission to the last completion."""
    require_parallel()
    with emulator() as service:
        ours = TASKS / _seconds_through_the_emulator(service)
    peer = parallel_rate(SLOTS, TASKS)
    return [
        Ratio(
            "1,000 /bin/true tasks",
            "tasks/s",
            ours,
            f"GNU parallel -j{SLOTS}",
            peer,
            ">= 0.5x",
            ours >= peer / 2,
        )
    ]


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
