"""Tasks that put links where the emulator writes, reads and deletes: nothing outside is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError

from batch_emulator.executor.layout import NodeLayout
from tests.contract.server import Running, Things, code_of, eventually, wire


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "victim").mkdir(parents=True)
    (folder / "victim" / "secret").write_text("s")
    return folder


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def layout_of(running: Running, pool: str) -> NodeLayout:
    [node] = running.client.list_nodes(pool)
    return running.emulator.launches.layout(pool, str(node.id))


def test_link_in_place_of_a_task_folder_is_replaced_by_a_folder(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    layout = layout_of(running, pool)
    layout.job_dir(job).mkdir(parents=True)
    layout.task_dir(job, "t").symlink_to(outside / "victim")
    things.task(job, "/bin/sh -c 'echo hello'", id="t")
    things.wait_task(job, "t")
    assert things.text(job, "t") == "hello\n"
    other = things.job(pool)
    (layout.workitems / other).symlink_to(outside)
    things.task(other, "/bin/sh -c 'echo hello'", id="victim")
    things.wait_task(other, "victim")
    assert content(outside) == ["victim", "victim/secret"]


def test_task_folder_replaced_by_a_link_lists_and_deletes_nothing(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    command = "mv $AZ_BATCH_TASK_DIR $AZ_BATCH_TASK_DIR.aside; ln -s {} $AZ_BATCH_TASK_DIR"
    task = things.task(job, f"/bin/sh -c '{command.format(outside / 'victim')}'")
    things.wait_task(job, task)
    with pytest.raises(HttpResponseError) as caught:
        things.text(job, task, "secret")
    assert code_of(caught.value) == "TaskFilesCleanedup"
    with pytest.raises(HttpResponseError):
        running.client.delete_task_file(job, task, "secret")
    running.client.delete_task(job, task)
    assert content(outside) == ["victim", "victim/secret"]


def test_task_deletion_does_not_follow_a_linked_job_folder(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    things.task(job, "/bin/true", id="victim")
    things.wait_task(job, "victim")
    layout = layout_of(running, pool)
    layout.job_dir(job).rename(layout.job_dir(job).with_name("aside"))
    layout.job_dir(job).symlink_to(outside)
    running.client.delete_task(job, "victim")
    things.task(job, "/bin/true", id="after")
    things.wait_task(job, "after")
    assert content(outside) == ["victim", "victim/secret"]


def test_reboot_replaces_node_folders_that_became_links(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool, 1)
    layout = layout_of(running, pool)
    for folder in (layout.applications, layout.fsmounts, layout.startup, layout.shared):
        folder.rename(folder.with_name(f"{folder.name}.aside"))
        folder.symlink_to(outside)
    running.client.begin_reboot_node(pool, str(node.id), wire(nodeRebootOption="requeue"))
    folders = (layout.applications, layout.fsmounts, layout.startup, layout.shared)
    eventually(lambda: all(one.is_dir() and not one.is_symlink() for one in folders))
    assert content(outside) == ["victim", "victim/secret"]
