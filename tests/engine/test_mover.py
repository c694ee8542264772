"""A deployment schedules the mover that its stack declares, and ends it with its pool.

Azure is the stand-in of the provider for what is deployed, and the emulator for jobs.
"""

from __future__ import annotations

import json

import pytest

from runner.contract import MOVER_POOL
from tests.engine.test_fixes import Deployment, azure
from tests.unit.infra.cloud import SUBSCRIPTION

__all__ = ["azure"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_MOVER = "  runner:mover: {every: 1h}\n"
_SETTINGS = f"""\
config:
  azure-native:location: eastus
  azure-native:subscriptionId: {SUBSCRIPTION}
{_MOVER}  runner:pools:
    - {{id: work, vm_size: Standard_NC4as_T4_v3, max_spot: 1}}
"""


@pytest.mark.feature(41)
def test_mover_is_scheduled_by_up_and_ends_with_its_pool(azure: Deployment) -> None:
    azure.file.write_text(_SETTINGS)
    early = azure.run("up -y --no-check")  # the container for code is not there yet
    assert early.returncode == 0, early.stderr
    assert "no task moves runs yet" in early.stderr
    azure.serve()
    [monthly] = json.loads(azure.ok("preview -o json"))["monthly"]
    assert monthly["resource"] == "mover, every 1 h"
    azure.ok("up -y --no-check")
    [schedule] = azure.batch.list_job_schedules()
    assert schedule.id == MOVER_POOL
    job = schedule.job_specification
    assert job.pool_info.pool_id == MOVER_POOL
    assert job.job_manager_task is not None
    [file] = job.job_manager_task.resource_files or []
    outputs = json.loads(azure.outputs.read_text())
    assert file.identity_reference is not None
    assert file.identity_reference.resource_id == outputs["mover_identity_id"]
    (azure.folder / "hi.py").write_text("print('hi')\n")
    assert azure.code(f"train hi.py --pool {MOVER_POOL}") == "R-POOL-MOVER"

    azure.change((_MOVER, ""))
    azure.ok("up -y --no-check")
    assert not list(azure.batch.list_job_schedules())
    assert [pool["poolName"] for pool in azure.pools()] == ["work"]
    assert azure.code("pool fallback --every 1h") == "R-MOVER-NONE"
