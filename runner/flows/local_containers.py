"""The local pool for container tasks, made when a run first needs it.

It needs an engine on this machine, so it is not made with the local services.
"""

from __future__ import annotations

from dataclasses import replace

from runner.contract import PoolOutput, StackOutputs
from runner.core.home import HomePaths
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.local_pool import pool_spec
from runner.flows.local_state import ensure_keys, load_state

POOL_ID = "local-containers"


def with_container_pool(
    image: str | None,
    settings: Settings,
    outputs: StackOutputs,
    on_event: OnProgress,
    *,
    make: bool,
) -> StackOutputs:
    """The stack with a pool that takes the image; of a stack in Azure, it is as it is."""
    if image is None or settings.target != "local" or any(p.containers for p in outputs.pools):
        return outputs
    first = outputs.pools[0]
    pool = PoolOutput(
        POOL_ID,
        first.vm_size,
        first.gpus,
        first.vcpus,
        first.spot,
        first.max_nodes,
        containers=True,
        task_nodes=first.task_nodes,
    )
    if make and (settings.pool or POOL_ID).lower() == POOL_ID:
        _ensure(settings, on_event)
    return replace(outputs, pools=(*outputs.pools, pool))


def is_made_on_demand(settings: Settings, pool: PoolOutput) -> bool:
    """Whether a pool that is not there would be made by submitting to it."""
    return settings.target == "local" and pool.id == POOL_ID


def _ensure(settings: Settings, on_event: OnProgress) -> None:
    from runner.azure.credentials import Connection  # noqa: PLC0415  loads the SDK
    from runner.azure.pools import ensure_pool  # noqa: PLC0415
    from runner.flows.local_pool import local_outputs  # noqa: PLC0415

    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None:  # nothing runs: what comes next says so
        return
    keys = ensure_keys(paths)
    on_event(Progress("services", "start", "a pool for containers"))
    connection = Connection(local_outputs(state), keys)
    spec = replace(pool_spec(paths, state, keys["storage"]), id=POOL_ID, containers=True)
    happened = ensure_pool(connection, spec)
    on_event(Progress("services", "end", f"pool {POOL_ID} {happened}"))
