"""Mounts: shares and exports under AZ_BATCH_NODE_MOUNTS_DIR, and errors of invalid ones."""

from __future__ import annotations

import base64
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from batch_emulator.emulator import EmulatorSettings
from batch_emulator.files_share.shares import Share, StorageAccount
from tests.contract.server import Running, Things, code_of, eventually, serving, values_of, wire

STORAGE = "teststorage"
STORAGE_KEY = base64.b64encode(b"the key of the storage account").decode()


@pytest.fixture
def running(tmp_path: Path) -> Generator[Running]:
    with serving(tmp_path, settings={"storage": StorageAccount(STORAGE, STORAGE_KEY)}) as running:
        shares = running.emulator.shares
        assert shares is not None
        shares.create(Share("data", 1, 1))
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


def share_folder(running: Running) -> Path:
    shares = running.emulator.shares
    assert shares is not None
    return shares.path("data")


def file_share(path: str = "share", **changes: str) -> models.MountConfiguration:
    settings = {
        "account_name": STORAGE,
        "azure_file_url": f"https://{STORAGE}.file.core.windows.net/data",
        "account_key": STORAGE_KEY,
        "relative_mount_path": path,
        **changes,
    }
    return models.MountConfiguration(
        azure_file_share_configuration=models.AzureFileShareConfiguration(**settings)
    )


def nfs(source: str, path: str = "nfs") -> models.MountConfiguration:
    return models.MountConfiguration(
        nfs_mount_configuration=models.NfsMountConfiguration(
            source=source, relative_mount_path=path
        )
    )


def cifs(source: str, password: str, path: str = "cifs") -> models.MountConfiguration:
    return models.MountConfiguration(
        cifs_mount_configuration=models.CifsMountConfiguration(
            username=STORAGE, source=source, password=password, relative_mount_path=path
        )
    )


def run(things: Things, pool: str, script: str) -> str:
    """Run a shell script on the pool. Return its output."""
    job = things.job(pool)
    task = things.task(job, f'/bin/sh -c "{script}"')
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0, things.text(job, task, "stderr.txt")
    return things.text(job, task)


def error_of(things: Things, *mounts: models.MountConfiguration) -> tuple[str, dict[str, str]]:
    """Return code and details of the only error of a pool's unusable node."""
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=list(mounts))
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    return str(error.code), details


def test_share_is_mounted_before_the_start_task_and_written(
    running: Running, things: Things
) -> None:
    (share_folder(running) / "in.txt").write_text("from the share")
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'cp $AZ_BATCH_NODE_MOUNTS_DIR/share/in.txt .'",
        wait_for_success=True,
    )
    pool = things.pool(
        target_dedicated_nodes=2, mount_configuration=[file_share()], start_task=start
    )
    things.wait_nodes(pool, 2, "idle")
    script = (
        "cat $AZ_BATCH_NODE_STARTUP_DIR/wd/in.txt; echo out > $AZ_BATCH_NODE_MOUNTS_DIR/share/o"
    )
    assert run(things, pool, script) == "from the share"
    assert (share_folder(running) / "o").read_text() == "out\n"
    assert run(things, pool, "cat $AZ_BATCH_NODE_MOUNTS_DIR/share/o") == "out\n"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1234/teststorage/data", "https://teststorage.file.core.windows.net/data/"],
)
def test_both_styles_of_share_url_are_accepted(running: Running, things: Things, url: str) -> None:
    (share_folder(running) / "f").write_text("x")
    mount = file_share("a/b", azure_file_url=url)
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount])
    assert run(things, pool, "cat $AZ_BATCH_NODE_MOUNTS_DIR/a/b/f") == "x"


def test_folder_of_a_share_can_be_mounted(running: Running, things: Things) -> None:
    (share_folder(running) / "deep" / "er").mkdir(parents=True)
    (share_folder(running) / "deep" / "er" / "f").write_text("x")
    url = f"https://{STORAGE}.file.core.windows.net/data/deep/er"
    pool = things.pool(
        target_dedicated_nodes=1, mount_configuration=[file_share(azure_file_url=url)]
    )
    assert run(things, pool, "cat $AZ_BATCH_NODE_MOUNTS_DIR/share/f") == "x"


WRONG_KEY = base64.b64encode(b"another key").decode()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"account_key": WRONG_KEY}, "mount error(13): Permission denied"),
        (
            {"azure_file_url": f"https://{STORAGE}.file.core.windows.net/none"},
            "mount error(2): No such file or directory",
        ),
        (
            {"azure_file_url": f"https://{STORAGE}.file.core.windows.net/data/none"},
            "mount error(2): No such file or directory",
        ),
        (
            {"azure_file_url": f"https://{STORAGE}.file.core.windows.net/data/%2e%2e"},
            "mount error(2): No such file or directory",
        ),
        (
            {"account_name": "other"},
            "mount error: could not resolve address: there is no storage account 'other'",
        ),
        (
            {"azure_file_url": f"https://{STORAGE}.file.core.windows.net/"},
            "mount error(22): Invalid argument: the URL names no share",
        ),
    ],
)
def test_failed_share_mount_makes_the_node_unusable(
    running: Running, things: Things, changes: dict[str, str], why: str
) -> None:
    code, details = error_of(things, file_share("S", **changes))
    assert code == "MountConfigurationError"
    assert details == {"Message": f"Mount failure: {why}", "MountConfigurationPath": "S"}
    [pool] = running.client.list_pools()
    [node] = running.client.list_nodes(str(pool.id))
    # An unusable node does not answer, so the service shows none of its files.
    folder = running.emulator.launches.layout(str(pool.id), str(node.id)).fsmounts
    assert (folder / "fshare-S.log").read_text() == f"{why}\n"


def test_without_a_storage_account_no_share_can_be_mounted(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        _, details = error_of(Things(running.client), file_share())
    assert "--storage-account" in details["Message"]


def test_nfs_export_is_a_data_folder_shared_by_the_nodes(tmp_path: Path, things: Things) -> None:
    (tmp_path / "nfs" / "server" / "export").mkdir(parents=True)
    (tmp_path / "nfs" / "server" / "export" / "f").write_text("x")
    mounts = [nfs("server:/export"), nfs("other:/new/one", "new")]
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=mounts)
    script = "cat $AZ_BATCH_NODE_MOUNTS_DIR/nfs/f; echo y > $AZ_BATCH_NODE_MOUNTS_DIR/new/g"
    assert run(things, pool, script) == "x"
    assert (tmp_path / "nfs" / "other" / "new" / "one" / "g").read_text() == "y\n"


@pytest.mark.parametrize(
    "source", ["no colon", "host:relative", "../..:/etc", "host:/a/../../../..", ":/x"]
)
def test_nfs_source_without_an_export_makes_the_node_unusable(things: Things, source: str) -> None:
    code, _ = error_of(things, nfs(source))
    assert code == "MountConfigurationError"


def test_nfs_link_out_of_the_data_folder_is_not_followed(tmp_path: Path, things: Things) -> None:
    (tmp_path / "nfs" / "server").mkdir(parents=True)
    (tmp_path / "nfs" / "server" / "out").symlink_to("/")
    code, _ = error_of(things, nfs("server:/out/etc"))
    assert code == "MountConfigurationError"


def test_cifs_mount_of_the_storage_account_is_its_share(running: Running, things: Things) -> None:
    (share_folder(running) / "f").write_text("x")
    source = f"//{STORAGE}.file.core.windows.net/data"
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[cifs(source, STORAGE_KEY)])
    assert run(things, pool, "cat $AZ_BATCH_NODE_MOUNTS_DIR/cifs/f") == "x"
    _, details = error_of(things, cifs(source, WRONG_KEY))
    assert details["Message"] == "Mount failure: mount error(13): Permission denied"


def test_cifs_mount_of_another_host_is_a_data_folder(tmp_path: Path, things: Things) -> None:
    pool = things.pool(
        target_dedicated_nodes=1, mount_configuration=[cifs("//server/share", "secret")]
    )
    run(things, pool, "echo x > $AZ_BATCH_NODE_MOUNTS_DIR/cifs/f")
    assert (tmp_path / "cifs" / "server" / "share" / "f").read_text() == "x\n"


@pytest.mark.parametrize("path", ["share", "share/below"])
def test_overlapping_mounts_make_the_node_unusable(things: Things, path: str) -> None:
    code, details = error_of(things, file_share(), nfs("server:/x", path))
    assert code == "MountConfigurationError"
    assert details["MountConfigurationPath"] == path


def test_pool_shows_its_mounts_without_keys(running: Running, things: Things) -> None:
    mounts = [file_share(), cifs("//server/share", "secret")]
    shown = running.client.get_pool(things.pool(mount_configuration=mounts))
    assert STORAGE_KEY not in str(shown.as_dict())
    assert "secret" not in str(shown.as_dict())
    [first, second] = shown.mount_configuration or []
    assert first.azure_file_share_configuration is not None
    assert first.azure_file_share_configuration.relative_mount_path == "share"
    assert second.cifs_mount_configuration is not None
    assert second.cifs_mount_configuration.source == "//server/share"


@pytest.mark.parametrize("path", ["/abs", "a/../../b", "..", "."])
def test_mount_path_that_leaves_the_mounts_folder_is_refused(things: Things, path: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[file_share(path)])
    assert code_of(caught.value) == "InvalidPropertyValue"
    assert values_of(caught.value)["PropertyValue"] == path


def test_eleventh_mount_is_refused(things: Things) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[file_share(f"m{n}") for n in range(11)])
    assert code_of(caught.value) == "InvalidPropertyValue"


@pytest.mark.parametrize("missing", ["accountKey", "azureFileUrl", "relativeMountPath"])
def test_missing_setting_of_a_mount_is_named(things: Things, missing: str) -> None:
    mount: Any = file_share().as_dict()
    del mount["azureFileShareConfiguration"][missing]
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[mount])
    assert code_of(caught.value) == "MissingRequiredProperty"
    assert values_of(caught.value)["PropertyName"].endswith(missing)


def test_mount_of_two_kinds_or_of_none_is_refused(things: Things) -> None:
    both: Any = {**file_share().as_dict(), **nfs("a:/b").as_dict()}
    for mount in (both, {}):
        with pytest.raises(HttpResponseError) as caught:
            things.pool(mount_configuration=[mount])
        assert code_of(caught.value) == "InvalidPropertyValue"


def test_mounts_of_a_pool_with_nodes_cannot_change(running: Running, things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    update = models.BatchPoolUpdateOptions(mount_configuration=[file_share()])
    with pytest.raises(HttpResponseError) as caught:
        running.client.update_pool(pool, update)
    assert code_of(caught.value) == "OperationInvalidForCurrentState"


def test_reboot_restores_mounts_deleted_by_a_task(running: Running, things: Things) -> None:
    (share_folder(running) / "f").write_text("x")
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[file_share()])
    run(things, pool, "rm $AZ_BATCH_NODE_MOUNTS_DIR/share")
    [node] = things.wait_nodes(pool, 1, "idle")
    running.client.begin_reboot_node(pool, str(node.id), wire(nodeRebootOption="requeue"))
    eventually(lambda: running.client.get_node(pool, str(node.id)).state != "rebooting")
    things.wait_nodes(pool, 1, "idle")
    assert run(things, pool, "cat $AZ_BATCH_NODE_MOUNTS_DIR/share/f") == "x"


def test_deleting_nodes_keeps_mounted_files(
    tmp_path: Path, running: Running, things: Things
) -> None:
    (share_folder(running) / "kept").write_text("x")
    pool = things.pool(
        target_dedicated_nodes=1, mount_configuration=[file_share(), nfs("server:/export")]
    )
    run(things, pool, "echo y > $AZ_BATCH_NODE_MOUNTS_DIR/nfs/kept")
    [node] = things.wait_nodes(pool, 1, "idle")
    folder = running.emulator.launches.node_dir(pool, str(node.id))
    assert (folder / "tasks" / "fsmounts" / "share" / "kept").exists()
    running.client.begin_delete_pool(pool, polling_interval=1).result()
    eventually(lambda: not folder.exists() and not list((tmp_path / "trash").iterdir()))
    assert (share_folder(running) / "kept").read_text() == "x"
    assert (tmp_path / "nfs" / "server" / "export" / "kept").read_text() == "y\n"


def test_settings_do_not_show_the_key_of_the_storage_account(tmp_path: Path) -> None:
    storage = StorageAccount(STORAGE, STORAGE_KEY)
    assert STORAGE_KEY not in repr(EmulatorSettings(tmp_path, "a", "b", storage=storage))
