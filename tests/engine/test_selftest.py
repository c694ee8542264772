"""`runner selftest --target azure` over the real engine: its stack is deployed and goes again.

Azure is the stand-in of the provider, and behind Azure's names the emulator and Azurite.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient

from batch_emulator.domain.account import Limits
from batch_emulator.server import Server
from runner_infra.config.naming import Names
from tests import plain_http
from tests.contract.server import eventually
from tests.e2e.conftest import RUNNER, SHARED_MNIST, new_home
from tests.e2e.test_program_pools import azurite_of, declared_pool, node_tools
from tests.engine.deployed import run_in
from tests.engine.stage import ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ACCOUNT = Names("selftest", SUBSCRIPTION).batch_account
ALWAYS = ("selftest", "--target", "azure", "--yes", "--no-check")
NO_TRAINING = ("--no-training",)
NO_BLOBS, NO_FILES = f"http://127.0.0.1:1/{ACCOUNT}", "http://127.0.0.1:1"


@pytest.fixture
def project(stage: Stage) -> Path:
    """Return a project whose stack `dev` has a subscription and a region."""
    folder = stage.folder / "project"
    folder.mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    text = (ROOT / "Pulumi.dev.yaml").read_text()
    text += f"  azure-native:location: eastus\n  azure-native:subscriptionId: {SUBSCRIPTION}\n"
    (folder / "Pulumi.dev.yaml").write_text(text)
    return folder


def selftest(
    stage: Stage, *words: str, names: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `names` is the environment of a gateway."""
    return run_in(stage, *ALWAYS, *(words or NO_TRAINING), **(names or {}))


@contextmanager
def gateway_names(
    stage: Stage, key: str, account: str, batch: str, blob: str, file: str
) -> Generator[dict[str, str]]:
    """Yield the environment of a command that reaches these services by the account's names."""
    gateway = [sys.executable, "-m", "batch_emulator.gateway", "--account", account]
    with subprocess.Popen(
        [
            *(*gateway, "--batch", batch, "--blob", blob, "--file", file, "--"),
            *(sys.executable, "-c", _SHOWS_ITS_ENVIRONMENT),
        ],
        env={**stage.environment, **keys_of(key)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate("")


_SHOWS_ITS_ENVIRONMENT = """
import json, os, sys
print(json.dumps(dict(os.environ)), flush=True)
sys.stdin.read()
"""


def keys_of(key: str) -> dict[str, str]:
    return {"AZURE_BATCH_ACCESS_KEY": key, "AZURE_STORAGE_KEY": key}


def report(stage: Stage) -> dict[str, Any]:
    return json.loads((stage.folder / "project/selftest-report.json").read_text())


def assert_gone(stage: Stage) -> None:
    assert stage.azure.ids() == stage.ids_in_state("selftest") == set()
    assert not (stage.folder / "runner/selftest").exists()
    assert not (stage.folder / "runner/stacks/selftest.json").exists()


def test_stack_is_deployed_compared_and_removed(stage: Stage, project: Path) -> None:
    with (
        Server(account=ACCOUNT) as server,
        gateway_names(stage, server.key, ACCOUNT, server.url, NO_BLOBS, NO_FILES) as names,
    ):
        done = selftest(stage, names=names)
    assert done.returncode == 0, done.stderr
    assert "The self-test passed" in done.stderr
    document = report(stage)
    assert (document["passed"], document["different"], document["left"]) == (True, 0, [])
    assert document["equal"] > 60
    assert 0 < document["usd"] < document["usd_at_most"] < 5
    assert document["pool_updates"] == [
        {"pool": pool, "in_place": True, "answer": "updated in place"}
        for pool in ("t4", "with-network")
    ]
    made = [what for operation, what in stage.azure.journal() if operation == "create"]
    assert any(what.endswith(f"/batchAccounts/{ACCOUNT}/pools/t4") for what in made)
    assert_gone(stage)


def test_refused_updates_of_pools_are_reported_one_by_one(stage: Stage, project: Path) -> None:
    stage.azure.refuse_resent("batch:Pool", "networkConfiguration")
    with (
        Server(account=ACCOUNT) as server,
        gateway_names(stage, server.key, ACCOUNT, server.url, NO_BLOBS, NO_FILES) as names,
    ):
        done = selftest(stage, names=names)
    assert done.returncode == 1, done.stderr
    document = report(stage)
    assert (document["passed"], document["different"], document["left"]) == (False, 0, [])
    plain, networked = document["pool_updates"]
    assert plain["in_place"]
    assert not networked["in_place"]
    assert "PropertyCannotBeUpdated" in networked["answer"]
    assert "networkConfiguration" in done.stderr
    assert_gone(stage)


def test_stack_is_removed_after_a_failed_deployment(stage: Stage, project: Path) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    done = selftest(stage)
    assert done.returncode not in (0, 70), done.stderr
    document = report(stage)
    assert (document["passed"], document["left"]) == (False, [])
    assert document["problem"]
    assert stage.azure.journal()
    assert_gone(stage)


def test_remaining_resources_are_named_with_the_delete_command(stage: Stage, project: Path) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    stage.azure.fail("delete", ACCOUNT, "AnotherOperationInProgress", times=100)
    done = selftest(stage)
    assert done.returncode not in (0, 70), done.stderr
    assert "stack selftest was not removed" in done.stderr
    [left] = report(stage)["left"]
    folder = Path(stage.folder / "runner/selftest")
    assert left["what"] == "stack selftest"
    assert left["command"].startswith(f"cd {folder} && runner down --stack selftest --everything")
    assert (folder / "Pulumi.selftest.yaml").is_file()


def test_stack_is_removed_after_ctrl_c(stage: Stage, project: Path) -> None:
    with (
        Server(account=ACCOUNT, limits=Limits(boot_s=3600)) as server,
        gateway_names(stage, server.key, ACCOUNT, server.url, NO_BLOBS, NO_FILES) as names,
    ):
        process = subprocess.Popen(
            [RUNNER, *ALWAYS, *NO_TRAINING],
            cwd=project,
            env={**names, "RUNNER_HOME": str(stage.folder / "runner")},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # together with the engine, like the processes of a terminal
        )
        assert server.emulator is not None
        pools = server.emulator.account.pools
        # from this point on, it waits for the node of this pool
        eventually(lambda: any(pool.startswith("selftest-work") for pool in list(pools)), 600)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    document = report(stage)
    assert (document["passed"], document["left"], document["equal"]) == (False, [], 0)
    assert_gone(stage)


@contextmanager
def services(folder: Path, key: str) -> Generator[tuple[str, str, str]]:
    """Yield the URLs of the emulator, Azurite and Azure Files; tasks use Azure's names."""
    home = new_home(folder / "services")
    with (
        node_tools(folder),
        azurite_of(home, ACCOUNT, key) as blob,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "batch_emulator", "--port", "0", "--azure-names"),
                *("--data-dir", str(folder / "batch"), "--boot-seconds", "0.05"),
                *("--account", ACCOUNT, "--storage-account", ACCOUNT, "--blob-endpoint", blob),
                *(f"--pass-env={name}" for name in ("PATH", "UV_*", "PIP_*")),
            ],
            env={**os.environ, "BATCH_EMULATOR_KEY": key, "BATCH_EMULATOR_STORAGE_KEY": key},
            stdout=subprocess.PIPE,
            text=True,
        ) as emulator,
    ):
        assert emulator.stdout is not None
        try:
            batch, file = (emulator.stdout.readline().split()[2] for _ in range(2))
            yield batch, blob, file
        finally:
            emulator.terminate()


def few_digits(folder: Path, count: int) -> Path:
    """Write the first digits of MNIST in its format. Return the folder."""
    folder.mkdir()
    for path in SHARED_MNIST.glob("*-ubyte.gz"):
        data = gzip.decompress(path.read_bytes())
        header, size = (16, 28 * 28) if "idx3" in path.name else (8, 1)
        cut = data[:4] + count.to_bytes(4, "big") + data[8 : header + count * size]
        (folder / path.name).write_bytes(gzip.compress(cut))
    return folder


def deployed_pool(stage: Stage) -> dict[str, Any] | None:
    """Return the stack's request for its pool, once it has sent it."""
    found = [one for one in stage.azure.ids() if one.endswith(f"/{ACCOUNT}/pools/t4")]
    record = stage.azure.get(found[0]) if found else None
    return None if record is None else record["inputs"]


def deployed_containers(stage: Stage) -> list[str]:
    """Return the names of the storage containers that the stack creates before its pools."""
    found = (one.rpartition("/containers/")[2] for one in stage.azure.ids())
    return [name for name in found if name and "/" not in name]


@pytest.mark.skipif(not SHARED_MNIST.is_dir(), reason="no MNIST beside the checkout")
def test_training_survives_an_eviction_and_leaves_a_model(
    stage: Stage, project: Path, tmp_path: Path
) -> None:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    data = few_digits(tmp_path / "digits", 2000)
    with (
        services(tmp_path / "local", key) as (batch, blob, file),
        gateway_names(stage, key, ACCOUNT, batch, blob, file) as names,
        ThreadPoolExecutor(1) as thread,
    ):
        client = BatchClient(batch, AzureNamedKeyCredential(ACCOUNT, key))
        run = thread.submit(selftest, stage, "--data", str(data), "-o", "json", names=names)
        client.create_pool(declared_pool(eventually(lambda: deployed_pool(stage), 600)))
        blobs = BlobServiceClient(blob, {"account_name": ACCOUNT, "account_key": key})
        for container in deployed_containers(stage):
            blobs.create_container(container)
        eventually(lambda: waits_on(client, "t4") or run.done(), 900)
        plain_http.post(
            f"{batch}/_emulator/clock",
            json={"push": "PT6M"},
            headers={"Authorization": f"Bearer {key}"},
        ).raise_for_status()
        done = run.result()
    assert done.returncode == 0, done.stdout + done.stderr
    training = report(stage)["training"]
    assert (training["state"], training["attempts"], training["problem"]) == ("succeeded", 2, "")
    assert Path(training["model_file"]).stat().st_size > 10_000
    assert_gone(stage)


def waits_on(client: BatchClient, pool_id: str) -> bool:
    """Return True if a task waits for a node of the pool."""
    jobs = [job for job in client.list_jobs() if job.pool_info.pool_id == pool_id]
    return any(task.state == "active" for job in jobs for task in client.list_tasks(str(job.id)))
