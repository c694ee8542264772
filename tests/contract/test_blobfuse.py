"""Containers mounted by blobfuse2 if it is installed; a script on the PATH replaces it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.executor import blob_mounts
from tests.contract import fake_blobfuse2
from tests.contract.server import Running, Things, eventually, serving, wire
from tests.contract.test_blob_mounts import container, run

RIGHT = {"sas_key": "?sig=right"}
KEY = "a2V5IG9mIHRoZSBhY2NvdW50"
SETTINGS = {"blob_endpoint": "http://127.0.0.1:10000/account"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    (folder / "containers" / "data" / "in").mkdir(parents=True)
    (folder / "containers" / "data" / "in" / "a.txt").write_text("hello")
    script = folder / "blobfuse2"
    script.write_text(f"#!{sys.executable}\n{Path(fake_blobfuse2.__file__).read_text()}")
    script.chmod(0o755)
    (tmp_path / "fuse").touch()
    monkeypatch.setattr(blob_mounts, "FUSE", tmp_path / "fuse")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def running(tmp_path: Path, fake: Path) -> Generator[Running]:
    with serving(tmp_path / "data", settings=SETTINGS) as running:
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


def calls(fake: Path) -> list[list[str]]:
    log = fake / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def files_beside(running: Running, pool: str) -> dict[str, Path]:
    [node] = (running.emulator.launches.nodes / pool).iterdir()
    return {path.suffix: path for path in node.glob("blobfuse2-*")}


@pytest.mark.parametrize("secret", [RIGHT, {"sas_key": None, "account_key": KEY}])
def test_container_is_mounted_with_the_options_of_the_pool(
    running: Running, things: Things, fake: Path, secret: dict[str, Any]
) -> None:
    mount = container(**secret, blobfuse_options="-o attr_timeout=240 --read-only=true")
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount])
    assert run(things, pool, "cat in/a.txt; echo x > out") == "hello"
    assert (fake / "containers" / "data" / "out").read_text() == "x\n"
    [call] = calls(fake)
    assert call[0] == "mount"
    assert call[1].endswith("/tasks/fsmounts/m")
    assert call[2:5] == ["-o", "attr_timeout=240", "--read-only=true"]
    assert not any("sig=" in argument or KEY in argument for argument in call)
    config = files_beside(running, pool)[".yaml"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    azure = json.loads(config.read_text().partition("\n")[2])["azstorage"]
    assert azure["endpoint"] == SETTINGS["blob_endpoint"]
    assert azure["use-http"] is True


def test_node_is_unmounted_before_it_is_deleted(
    running: Running, things: Things, fake: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container(**RIGHT)])
    [node] = things.wait_nodes(pool, 1, "idle")
    folder = running.emulator.launches.node_dir(pool, str(node.id))
    running.client.begin_delete_pool(pool)
    eventually(lambda: not folder.exists())
    assert [call[0] for call in calls(fake)] == ["mount", "unmount"]
    assert (fake / "containers" / "data" / "in" / "a.txt").read_text() == "hello"


def test_rebooted_node_is_mounted_again(running: Running, things: Things, fake: Path) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container(**RIGHT)])
    [node] = things.wait_nodes(pool, 1, "idle")
    running.client.begin_reboot_node(pool, str(node.id), wire(nodeRebootOption="requeue"))
    eventually(lambda: len(calls(fake)) == 3 or None)
    assert run(things, pool, "cat in/a.txt") == "hello"
    assert [call[0] for call in calls(fake)] == ["mount", "unmount", "mount"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sas_key": "sig=wrong"}, "Error: failed to mount with ***: AuthenticationFailed"),
        ({**RIGHT, "container_name": "none"}, "Error: failed to mount: ContainerNotFound"),
        ({**RIGHT, "blobfuse_options": "-o 'x"}, "blobfuseOptions cannot be read"),
        ({**RIGHT, "blobfuse_options": "-- /etc"}, "blobfuseOptions: '--' is not an option"),
    ],
)
def test_message_of_blobfuse_is_the_error_of_the_node(
    things: Things, changes: dict[str, Any], why: str
) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container(**changes)])
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    assert details["Message"].startswith(f"Mount failure: blobfuse: {why}")


def test_hung_blobfuse_makes_the_node_unusable(
    running: Running, things: Things, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_mounts, "_MOUNT_WITHIN_S", 0.5)
    (fake / "hangs").touch()
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[container(**RIGHT)])
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    assert details["Message"] == "Mount failure: blobfuse: no answer within 0.5 s"
    assert ".yaml" not in files_beside(running, pool)


@pytest.mark.slow
def test_tasks_wait_for_mounts_after_a_restart(tmp_path: Path, fake: Path) -> None:
    with serving(tmp_path / "again", settings=SETTINGS) as running:
        pool = Things(running.client).pool(
            target_dedicated_nodes=1, mount_configuration=[container(**RIGHT)]
        )
        Things(running.client).wait_nodes(pool, 1, "idle")
    assert [call[0] for call in calls(fake)] == ["mount", "unmount"]
    with serving(tmp_path / "again", settings=SETTINGS) as running:
        assert run(Things(running.client), pool, "cat in/a.txt") == "hello"
    assert [call[0] for call in calls(fake)] == ["mount", "unmount"] * 2


def test_mounts_left_by_a_crash_are_unmounted_at_the_next_start(tmp_path: Path, fake: Path) -> None:
    node = tmp_path / "data" / "nodes" / "pool" / "node"
    point = node / "tasks" / "fsmounts" / "a b\nc"
    point.mkdir(parents=True)

    async def mounted_and_killed() -> None:
        one = blob_mounts.FuseContainer("account", "data", SETTINGS["blob_endpoint"], KEY, "")
        mount = blob_mounts.Blobfuse(str(fake / "blobfuse2"), one, point, node, "m", "")
        await mount.mount()

    asyncio.run(mounted_and_killed())
    assert (point / "in" / "a.txt").exists()
    with serving(tmp_path / "data", settings=SETTINGS):
        assert not node.exists()  # no pool knows it
    assert [call[:2] for call in calls(fake)] == [["mount", str(point)], ["unmount", str(point)]]
    assert (fake / "containers" / "data" / "in" / "a.txt").exists()


def test_blobfuse_is_not_used_without_a_fuse_device(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert blob_mounts.blobfuse_program() == str(fake / "blobfuse2")
    monkeypatch.setattr(blob_mounts, "FUSE", tmp_path / "none")
    assert blob_mounts.blobfuse_program() is None
    monkeypatch.setattr(blob_mounts, "FUSE", tmp_path / "fuse")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (fake / "blobfuse2").chmod(0o644)
    assert not str(blob_mounts.blobfuse_program() or "").startswith(str(fake))


def test_folder_with_a_mount_is_never_deleted(
    running: Running, things: Things, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool, 1, "idle")
    folder = running.emulator.launches.node_dir(pool, str(node.id))
    table = tmp_path / "mountinfo"
    real = os.fsencode(os.path.realpath(folder))
    table.write_bytes(b"36 35 98:0 / " + real + b"/tasks/a\\040b rw - fuse blobfuse2 rw\n")
    monkeypatch.setattr(blob_mounts, "_MOUNTINFO", table)
    assert blob_mounts.mounted_below(folder) == [Path(os.path.realpath(folder)) / "tasks" / "a b"]
    running.client.begin_delete_pool(pool)
    eventually(lambda: not list(running.client.list_pools()))
    assert folder.is_dir()
