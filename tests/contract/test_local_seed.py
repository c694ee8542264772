"""`runner local seed` copies an account, here that of another emulator, without its secrets."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.server import Server
from runner.azure.auth import credentials
from runner.azure.auth.credentials import Connection
from runner.cli.main import main
from runner.core.home import HomePaths
from runner.flows.local.seed import copy_account
from runner.flows.local.state import LocalState, ProcessRecord, local_outputs, save_state
from tests.contract.server import Things, client_for, eventually, missing, wire

SIGNED = "https://mine.blob.core.windows.net/c/f?sv=2024&sig=c2lnbmF0dXJl"
SECRETS = ("c2lnbmF0dXJl", "hunter2-hunter2", "a-password-of-nobody", "s3cr3t-s3cr3t")
POOL: dict[str, Any] = {
    "id": "scaled",
    "vmSize": "standard_d2s_v3",
    "virtualMachineConfiguration": {
        "imageReference": {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204"},
        "nodeAgentSKUId": "batch.node.ubuntu 22.04",
        "containerConfiguration": {
            "type": "dockerCompatible",
            "containerRegistries": [
                {"registryServer": "r.example", "username": "u", "password": "a-password-of-nobody"}
            ],
        },
    },
    "enableAutoScale": True,
    "autoScaleFormula": "$TargetDedicatedNodes = 0;",
    "userAccounts": [{"name": "me", "password": "a-password-of-nobody"}],
    "startTask": {
        "commandLine": "/bin/sh -c 'login --password=s3cr3t-s3cr3t'",
        "resourceFiles": [{"httpUrl": SIGNED, "filePath": "f"}],
        "environmentSettings": [
            {"name": "API_TOKEN", "value": "hunter2-hunter2"},
            {"name": "MODE", "value": "fast"},
        ],
    },
    "metadata": [{"name": "owner", "value": "me"}],
}


def connection_to(server: Server) -> Connection:
    port = int(server.url.rpartition(":")[2])
    return Connection(local_outputs(LocalState(port, 0, nodes=1, slots=1)), {
        "batch": server.key, "storage": server.key
    })  # fmt: skip


@pytest.fixture
def real(tmp_path: Path) -> Generator[Server]:
    """Yield an emulator that stands for a real account."""
    with Server(tmp_path / "real", account="runnerlocal") as server:
        client = client_for(server.url, server.key, server.account)
        client.create_pool(json.loads(json.dumps(POOL)))
        things = Things(client)
        for number in range(3):
            things.job("scaled", id=f"job-{number}")
        things.task("job-0", "/bin/true", id="task")
        things.end_job("job-2")
        schedule = wire(
            id="hourly",
            schedule={"recurrenceInterval": "PT1H"},
            jobSpecification={"poolInfo": {"poolId": "scaled"}},
        )
        client.create_job_schedule(schedule)
        eventually(lambda: not missing(lambda: client.get_job("hourly:job-1")) or None)
        yield server


def test_copy_has_formulas_and_no_secrets(real: Server) -> None:
    copied = copy_account(connection_to(real))
    [pool] = copied.seed["pools"]
    assert pool["autoScaleFormula"] == POOL["autoScaleFormula"]
    assert pool["metadata"] == POOL["metadata"]
    start = pool["startTask"]
    assert start["environmentSettings"] == [{"name": "MODE", "value": "fast"}]
    assert start["resourceFiles"][0]["httpUrl"] == "https://mine.blob.core.windows.net/c/f"
    assert [job["id"] for job in copied.seed["jobs"]] == ["job-0", "job-1"]
    text = json.dumps(copied.seed)
    assert [secret for secret in SECRETS if secret in text] == []
    assert "task" not in json.dumps(copied.seed["jobs"]).replace("Task", "")
    said = "\n".join(copied.left_out)
    for part in (
        "pool scaled/userAccounts (",
        "containerRegistries (",
        "API_TOKEN (a value that looks like a secret)",
        "httpUrl (the signature of its URL)",
        "commandLine (a value that looks like a secret)",
        "job job-2 (completed)",
        "job hourly:job-1 (of a schedule)",
    ):
        assert part in said


@pytest.mark.feature(60)
def test_command_seeds_the_local_services_from_another_account(
    real: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("RUNNER_HOME", str(home))
    monkeypatch.setattr(credentials, "connect", lambda _: connection_to(real))
    file = tmp_path / "seed.json"
    assert main(["local", "seed", "--from", "azure", "--to", str(file)]) == 0
    assert json.loads(file.read_text())["version"] == 1
    with Server(tmp_path / "local") as local:
        (home / "local").mkdir(parents=True, exist_ok=True)
        paths = HomePaths(home)
        paths.keys.parent.mkdir(parents=True, exist_ok=True)
        paths.keys.write_text(json.dumps({"batch": local.key, "storage": local.key}))
        port = int(local.url.rpartition(":")[2])
        state = LocalState(port, 0, nodes=1, slots=1)
        save_state(paths, replace(state, batch=ProcessRecord(1, 1.0)))
        capsys.readouterr()
        assert main(["local", "seed", "--from", "azure", "-o", "json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert done["added"] == {
            "pools": ["scaled"], "jobs": ["job-0", "job-1"], "jobSchedules": ["hourly"]
        }  # fmt: skip
        assert main(["local", "seed", str(file)]) == 0
        assert "exists: pools scaled" in capsys.readouterr().err
        pool = client_for(local.url, local.key, local.account).get_pool("scaled")
        assert pool.auto_scale_formula == POOL["autoScaleFormula"]
        file.write_text('{"version": 2}')
        assert main(["local", "seed", str(file)]) != 0
        assert "it has version 2" in capsys.readouterr().err
