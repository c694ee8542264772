"""The local pools: their nodes are folders on this machine.

The pool for containers is made when a run first needs it: it needs a container engine.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from runner.azure.batch.pools import PoolSpec, ShareMount
from runner.contract import PoolOutput, StackOutputs
from runner.core.home import HomePaths
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.local.azurite import find_uv
from runner.flows.local.state import ACCOUNT, LocalState, ensure_keys, load_state

POOL_ID = "local"
SHARE = "shared"  # its name, and where it is mounted, as infra declares it
_VM_SIZE = "local"
_PREPARE = """set -e
runner="$AZ_BATCH_NODE_SHARED_DIR/runner"
mkdir -p "$runner/bin" "$RUNNER_NODE_CACHE"
ln -sfn "$RUNNER_NODE_CACHE" "$runner/cache"
if ! command -v uv >/dev/null && [ -n "$RUNNER_NODE_UV" ]; then
  ln -sf "$RUNNER_NODE_UV" "$runner/bin/uv"
fi
"""


def pool_spec(paths: HomePaths, state: LocalState, storage_key: str) -> PoolSpec:
    """Spot nodes with the share, as on Azure; a cache that outlives them and uv are linked."""
    return PoolSpec(
        id=POOL_ID,
        vm_size=_VM_SIZE,
        spot_nodes=state.nodes,
        slots_per_node=state.slots,
        inter_node=True,
        start_command=f"/bin/sh -c {shlex.quote(_PREPARE)}",
        start_env=(
            ("RUNNER_NODE_CACHE", str(paths.cache)),
            ("RUNNER_NODE_UV", find_uv() or ""),
        ),
        share=ShareMount(ACCOUNT, f"{state.file_endpoint}/{SHARE}", SHARE, storage_key),
    )


def local_outputs(state: LocalState) -> StackOutputs:
    """The local services as a stack."""
    pool = PoolOutput(
        id=POOL_ID,
        vm_size=_VM_SIZE,
        gpus=0,
        vcpus=os.cpu_count() or 1,
        spot=True,
        max_nodes=state.nodes,
        containers=False,
        task_nodes=state.nodes if state.slots == 1 else 1,
    )
    return StackOutputs(
        location="local",
        resource_group="local",
        batch_account=ACCOUNT,
        batch_endpoint=state.batch_endpoint,
        storage_account=ACCOUNT,
        blob_endpoint=state.blob_endpoint,
        file_endpoint=state.file_endpoint,
        container_runs="runs",
        container_models="models",
        container_data="data",
        file_share=SHARE,
        identity_client_id=None,
        identity_resource_id=None,
        pools=(pool,),
        image_definition=None,
    )


CONTAINER_POOL_ID = "local-containers"


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
        CONTAINER_POOL_ID,
        first.vm_size,
        first.gpus,
        first.vcpus,
        first.spot,
        first.max_nodes,
        containers=True,
        task_nodes=first.task_nodes,
    )
    if make and (settings.pool or CONTAINER_POOL_ID).lower() == CONTAINER_POOL_ID:
        _ensure_container_pool(settings, on_event)
    return replace(outputs, pools=(*outputs.pools, pool))


def is_made_on_demand(settings: Settings, pool: PoolOutput) -> bool:
    """Whether a pool that is not there would be made by submitting to it."""
    return settings.target == "local" and pool.id == CONTAINER_POOL_ID


def _ensure_container_pool(settings: Settings, on_event: OnProgress) -> None:
    from runner.azure.auth.credentials import Connection  # noqa: PLC0415  loads the SDK
    from runner.azure.batch.pools import ensure_pool  # noqa: PLC0415

    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None:  # nothing runs: what comes next says so
        return
    keys = ensure_keys(paths)
    on_event(Progress("services", "start", "a pool for containers"))
    connection = Connection(local_outputs(state), keys)
    spec = replace(pool_spec(paths, state, keys["storage"]), id=CONTAINER_POOL_ID, containers=True)
    happened = ensure_pool(connection, spec)
    on_event(Progress("services", "end", f"pool {CONTAINER_POOL_ID} {happened}"))
