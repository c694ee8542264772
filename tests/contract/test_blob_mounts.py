"""Containers mounted on nodes: blobs are files there, and what tasks write are blobs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from batch_emulator.executor import blob_client, blob_mounts
from tests import plain_http
from tests.contract.server import KEY, Running, Things, code_of, eventually, serving
from tests.unit.emulator.blob_store import SAS, BlobStore, serve


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.containers["data"] = {"in/a.txt": b"hello"}
        yield store


@pytest.fixture
def running(tmp_path: Path, blobs: BlobStore) -> Generator[Running]:
    settings = {"blob_endpoint": f"{blobs.url}/account"}
    with serving(tmp_path / "data", settings=settings) as running:
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


def container(path: str = "m", **changes: Any) -> models.MountConfiguration:
    settings: Any = {
        "account_name": "account",
        "container_name": "data",
        "sas_key": SAS,
        "relative_mount_path": path,
        **changes,
    }
    return models.MountConfiguration(
        azure_blob_file_system_configuration=models.AzureBlobFileSystemConfiguration(**settings)
    )


def run(things: Things, pool: str, script: str) -> str:
    job = things.job(pool)
    task = things.task(job, f'/bin/sh -c "cd $AZ_BATCH_NODE_MOUNTS_DIR/m && {script}"')
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0, things.text(job, task, "stderr.txt")
    return things.text(job, task)


def test_files_of_a_completed_task_are_blobs_and_blobs_are_files(
    blobs: BlobStore, things: Things
) -> None:
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'cp $AZ_BATCH_NODE_MOUNTS_DIR/m/in/a.txt .'",
        wait_for_success=True,
    )
    pool = things.pool(
        target_dedicated_nodes=1, mount_configuration=[container()], start_task=start
    )
    script = "cat in/a.txt $AZ_BATCH_NODE_STARTUP_DIR/wd/a.txt; mkdir out; echo x > out/b"
    assert run(things, pool, script) == "hellohello"
    assert blobs.containers["data"]["out/b"] == b"x\n"
    assert blobs.containers["data"]["in/a.txt"] == b"hello"


@pytest.mark.slow
def test_task_sees_blobs_uploaded_before_its_start(blobs: BlobStore, things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=2, mount_configuration=[container()])
    things.wait_nodes(pool, 2, "idle")
    for number in range(4):
        blobs.containers["data"]["new"] = str(number).encode()
        assert run(things, pool, "cat new") == str(number)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sas_key": "sig=wrong"}, "the credentials are refused (HTTP 403 AuthenticationFailed)"),
        ({"container_name": "none"}, "there is no such container (HTTP 404 ContainerNotFound)"),
        ({"sas_key": None, "account_key": "%%"}, "the account key is not base64"),
    ],
)
def test_failed_mount_makes_the_node_unusable(
    things: Things, changes: dict[str, Any], why: str
) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container(**changes)])
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    assert error.code == "MountConfigurationError"
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    expected = {"Message": f"Mount failure: blobfuse: {why}", "MountConfigurationPath": "m"}
    assert details == expected


def test_deleting_a_node_deletes_no_blobs(
    running: Running, blobs: BlobStore, things: Things
) -> None:
    pool = things.pool(target_dedicated_nodes=2, mount_configuration=[container()])
    nodes = things.wait_nodes(pool, 2, "idle")
    job = things.job(pool)
    things.task(job, "/bin/sleep 60")
    running.client.begin_delete_pool(pool, polling_interval=1).result()
    folders = [running.emulator.launches.node_dir(pool, str(node.id)) for node in nodes]
    eventually(lambda: not any(folder.exists() for folder in folders))
    assert blobs.containers["data"] == {"in/a.txt": b"hello"}
    assert not [request for request in blobs.requests if request.startswith("DELETE")]


def test_read_only_mount_uploads_nothing(blobs: BlobStore, things: Things) -> None:
    mount = container(blobfuse_options="-o attr_timeout=240 --read-only")
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount])
    run(things, pool, "echo x > new; rm in/a.txt")
    assert blobs.containers["data"] == {"in/a.txt": b"hello"}


@pytest.mark.slow
def test_mounted_container_survives_a_restart_with_its_changes(
    tmp_path: Path, blobs: BlobStore
) -> None:
    settings = {"blob_endpoint": f"{blobs.url}/account"}
    with serving(tmp_path / "again", settings=settings) as running:
        things = Things(running.client)
        pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container()])
        run(things, pool, "echo 1 > b")
    blobs.containers["data"]["in/a.txt"] = b"changed"
    with serving(tmp_path / "again", settings=settings) as running:
        things = Things(running.client)
        assert run(things, pool, "cat in/a.txt; echo 2 > b") == "changed"
    assert blobs.containers["data"] == {"in/a.txt": b"changed", "b": b"2\n"}


def test_mount_secrets_are_not_returned(running: Running, things: Things) -> None:
    shown = running.client.get_pool(things.pool(mount_configuration=[container()]))
    assert SAS not in str(shown.as_dict())


@pytest.mark.parametrize("changes", [{"sas_key": None}, {"account_key": "a2V5"}])
def test_mount_needs_exactly_one_credential(things: Things, changes: dict[str, Any]) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[container(**changes)])
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_managed_identity_without_a_storage_account_is_refused(things: Things) -> None:
    identity = models.BatchNodeIdentityReference(resource_id="/x")
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[container(sas_key=None, identity_reference=identity)])
    assert code_of(caught.value) == "NotImplemented"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Increase timeouts, so that a busy machine does not look like a wait."""
    monkeypatch.setattr(blob_mounts, "_PUSH_WITHIN_S", 900.0)
    monkeypatch.setattr(blob_client, "TIMEOUT_S", 900.0)


@pytest.mark.usefixtures("patient")
def test_lost_node_does_not_wait_for_a_hung_blob_service(
    blobs: BlobStore, running: Running, things: Things
) -> None:
    pool = things.pool(target_low_priority_nodes=1, mount_configuration=[container()])
    [node] = things.wait_nodes(pool, 1, "idle")
    job = things.job(pool)
    folder = running.emulator.launches.layout(pool, str(node.id)).fsmounts / "m"
    script = "while ! test -e go; do sleep 0.05; done; echo x > new"
    task = things.task(job, f'/bin/sh -c "cd $AZ_BATCH_NODE_MOUNTS_DIR/m && touch begun; {script}"')
    assert eventually((folder / "begun").exists)
    with blobs.lock:  # from now on it answers no requests
        (folder / "go").touch()
        busy = running.emulator.node_setup._blobs._busy
        assert eventually(lambda: (folder / "new").exists() and busy), "the task is at its end"
        url = f"{running.url}/_emulator/pools/{pool}/nodes/{node.id}/evict?notice=0&away=3600"
        plain_http.post(url, headers={"authorization": f"Bearer {KEY}"}).raise_for_status()
        things.wait_nodes(pool, 1, "preempted")
        assert things.wait_task(job, task, "active").state == "active"
        assert eventually(lambda: not folder.exists())
    assert "new" not in blobs.containers["data"]
