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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient

from batch_emulator.domain.account import Limits
from batch_emulator.server import Server
from infra.config.naming import Names
from tests import plain_http
from tests.contract.server import eventually
from tests.e2e.conftest import SHARED_MNIST, new_home
from tests.e2e.test_program_pools import azurite_of, declared_pool, node_tools
from tests.engine.stage import ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
Selftest = Callable[..., subprocess.Popen[str]]
ACCOUNT = Names("selftest", SUBSCRIPTION).batch_account


@pytest.fixture
def selftest(stage: Stage) -> Selftest:
    """The command in a project whose stack `dev` says where; without training."""
    project = stage.folder / "project"
    project.mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", project)
    text = (ROOT / "Pulumi.dev.yaml").read_text()
    text += f"  azure-native:location: eastus\n  azure-native:subscriptionId: {SUBSCRIPTION}\n"
    (project / "Pulumi.dev.yaml").write_text(text)

    def run(
        *before: str, words: Sequence[str] = ("--no-training",), **env: str
    ) -> subprocess.Popen[str]:
        always = ("selftest", "--target", "azure", "--yes", "--no-check")
        return subprocess.Popen(
            [*before, sys.executable, "-m", "runner", *always, *words],
            cwd=project,
            env={**stage.environment, "RUNNER_HOME": str(stage.folder / "runner"), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # together with the engine, like the processes of a terminal
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    return run


def through_gateway(
    batch: str, blob: str = f"http://127.0.0.1:1/{ACCOUNT}", file: str = "http://127.0.0.1:1"
) -> list[str]:
    """The start of a command for which the names of the stack's accounts lead to these services."""
    gateway = [sys.executable, "-m", "batch_emulator.gateway", "--account", ACCOUNT]
    return [*gateway, "--batch", batch, "--blob", blob, "--file", file, "--"]


def keys_of(key: str) -> dict[str, str]:
    return {"AZURE_BATCH_ACCESS_KEY": key, "AZURE_STORAGE_KEY": key}


def report(stage: Stage) -> dict[str, Any]:
    return json.loads((stage.folder / "project/selftest-report.json").read_text())


def assert_gone(stage: Stage) -> None:
    assert stage.azure.ids() == stage.ids_in_state("selftest") == set()
    assert not (stage.folder / "runner/selftest").exists()
    assert not (stage.folder / "runner/stacks/selftest.json").exists()


def test_stack_is_deployed_compared_and_removed(stage: Stage, selftest: Selftest) -> None:
    with Server(account=ACCOUNT) as server:
        process = selftest(*through_gateway(server.url), **keys_of(server.key))
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert "The self-test passed" in said
    document = report(stage)
    assert (document["passed"], document["different"], document["left"]) == (True, 0, [])
    assert document["equal"] > 60
    assert 0 < document["usd"] < document["usd_at_most"] < 5
    made = [what for operation, what in stage.azure.journal() if operation == "create"]
    assert any(what.endswith(f"/batchAccounts/{ACCOUNT}/pools/t4") for what in made)
    assert_gone(stage)


def test_stack_is_removed_after_a_failed_deployment(stage: Stage, selftest: Selftest) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    process = selftest()
    said = process.communicate()[1]
    assert process.returncode not in (0, 70), said
    document = report(stage)
    assert (document["passed"], document["left"]) == (False, [])
    assert document["problem"]
    assert stage.azure.journal()
    assert_gone(stage)


def test_remaining_resources_are_named_with_the_delete_command(
    stage: Stage, selftest: Selftest
) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    stage.azure.fail("delete", ACCOUNT, "AnotherOperationInProgress", times=100)
    process = selftest()
    said = process.communicate()[1]
    assert process.returncode not in (0, 70), said
    assert "stack selftest was not removed" in said
    [left] = report(stage)["left"]
    folder = Path(stage.folder / "runner/selftest")
    assert left["what"] == "stack selftest"
    assert left["command"].startswith(f"cd {folder} && runner down --stack selftest --everything")
    assert (folder / "Pulumi.selftest.yaml").is_file()


def test_stack_is_removed_after_ctrl_c(stage: Stage, selftest: Selftest) -> None:
    with Server(account=ACCOUNT, limits=Limits(boot_s=3600)) as server:
        process = selftest(*through_gateway(server.url), **keys_of(server.key))
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
    """The URLs of an emulator, of Azurite and of Azure Files; nodes know Azure's names."""
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
    """The first digits of MNIST, in its own format."""
    folder.mkdir()
    for path in SHARED_MNIST.glob("*-ubyte.gz"):
        data = gzip.decompress(path.read_bytes())
        header, size = (16, 28 * 28) if "idx3" in path.name else (8, 1)
        cut = data[:4] + count.to_bytes(4, "big") + data[8 : header + count * size]
        (folder / path.name).write_bytes(gzip.compress(cut))
    return folder


def deployed_pool(stage: Stage) -> dict[str, Any] | None:
    """What the stack gave Resource Manager for its pool, once it has."""
    found = [one for one in stage.azure.ids() if one.endswith(f"/{ACCOUNT}/pools/t4")]
    record = stage.azure.get(found[0]) if found else None
    return None if record is None else record["inputs"]


def deployed_containers(stage: Stage) -> list[str]:
    """The names of the storage containers that the stack has made before its pools."""
    found = (one.rpartition("/containers/")[2] for one in stage.azure.ids())
    return [name for name in found if name and "/" not in name]


@pytest.mark.skipif(not SHARED_MNIST.is_dir(), reason="no MNIST beside the checkout")
def test_training_survives_an_eviction_and_leaves_a_model(
    stage: Stage, selftest: Selftest, tmp_path: Path
) -> None:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    data = few_digits(tmp_path / "digits", 2000)
    with services(tmp_path / "local", key) as (batch, blob, file):
        client = BatchClient(batch, AzureNamedKeyCredential(ACCOUNT, key))
        process = selftest(
            *through_gateway(batch, blob, file),
            words=("--data", str(data), "-o", "json"),
            **keys_of(key),
        )
        said = ""
        try:
            client.create_pool(declared_pool(eventually(lambda: deployed_pool(stage), 600)))
            blobs = BlobServiceClient(blob, {"account_name": ACCOUNT, "account_key": key})
            for container in deployed_containers(stage):
                blobs.create_container(container)
            eventually(lambda: waits_on(client, "t4") or process.poll() is not None, 900)
            plain_http.post(
                f"{batch}/_emulator/clock",
                json={"push": "PT6M"},
                headers={"Authorization": f"Bearer {key}"},
            ).raise_for_status()
        finally:
            said = "".join(process.communicate(timeout=900))
    assert process.returncode == 0, said
    training = report(stage)["training"]
    assert (training["state"], training["attempts"], training["problem"]) == ("succeeded", 2, "")
    assert Path(training["model_file"]).stat().st_size > 10_000
    assert_gone(stage)


def waits_on(client: BatchClient, pool_id: str) -> bool:
    """Whether a task waits for a node of the pool."""
    jobs = [job for job in client.list_jobs() if job.pool_info.pool_id == pool_id]
    return any(task.state == "active" for job in jobs for task in client.list_tasks(str(job.id)))
