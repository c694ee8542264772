"""Keys and passwords that a client has sent are never given back, wherever a pool is described."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.server import Running, Things, wire

SECRET = "c2VjcmV0LW9mLW1pbmU="
MACHINE = {
    "imageReference": {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"},
    "nodeAgentSKUId": "batch.node.ubuntu 24.04",
    "extensions": [
        {"name": "e", "publisher": "p", "type": "t", "protectedSettings": {"key": SECRET}}
    ],
}
MOUNTS = [
    {
        "azureBlobFileSystemConfiguration": {
            "accountName": "account",
            "containerName": "data",
            "accountKey": SECRET,
            "relativeMountPath": "m",
        }
    },
    {
        "cifsMountConfiguration": {
            "username": "u",
            "source": "//server/share",
            "password": SECRET,
            "relativeMountPath": "c",
        }
    },
]
AUTO_POOL: dict[str, Any] = {
    "autoPoolSpecification": {
        "poolLifetimeOption": "job",
        "pool": {
            "vmSize": "Standard_D2s_v3",
            "virtualMachineConfiguration": MACHINE,
            "targetDedicatedNodes": 0,
            "mountConfiguration": MOUNTS,
            "userAccounts": [{"name": "me", "password": SECRET}],
        },
    }
}


def test_jobs_and_their_pools_are_shown_without_secrets(running: Running, things: Things) -> None:
    job = things.id("job")
    running.client.create_job(wire(id=job, poolInfo=AUTO_POOL))
    shown = running.client.get_job(job)
    text = json.dumps(shown.as_dict())
    assert SECRET not in text
    assert "//server/share" in text
    assert SECRET not in json.dumps([one.as_dict() for one in running.client.list_jobs()])
    assert SECRET not in json.dumps([one.as_dict() for one in running.client.list_pools()])


def test_schedules_are_shown_without_secrets(running: Running, things: Things) -> None:
    schedule = things.id("schedule")
    running.client.create_job_schedule(
        wire(
            id=schedule,
            schedule={"recurrenceInterval": "PT1H"},
            jobSpecification={"poolInfo": AUTO_POOL},
        )
    )
    shown = running.client.get_job_schedule(schedule)
    text = json.dumps(shown.as_dict())
    assert SECRET not in text
    assert "//server/share" in text
    listed = [one.as_dict() for one in running.client.list_job_schedules()]
    assert SECRET not in json.dumps(listed)
    running.client.update_job_schedule(schedule, wire(metadata=[{"name": "a", "value": "b"}]))
    kept = running.emulator.account.schedules[schedule].spec
    assert SECRET in json.dumps(kept)
