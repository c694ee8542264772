"""The local pool: its nodes are folders on this machine, made ready by a start task."""

from __future__ import annotations

import os
import shlex

from runner.azure.pools import PoolSpec, ShareMount
from runner.contract import PoolOutput, StackOutputs
from runner.core.home import HomePaths
from runner.flows.local_state import ACCOUNT, LocalState
from runner.flows.node_runtime import find_uv

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
