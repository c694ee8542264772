"""Nodes through the official SDK."""

from __future__ import annotations

from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from tests.contract.server import POLL_S, Running, Things, code_of, eventually, wire


def start_task(command: str, **options: Any) -> models.BatchStartTask:
    return models.BatchStartTask(command_line=command, **options)


def test_node_runs_its_start_task_before_it_is_idle(
    client: BatchClient, things: Things, running: Running
) -> None:
    task = start_task("/bin/sh -c 'echo ready > $AZ_BATCH_NODE_SHARED_DIR/flag; echo hi'")
    pool_id = things.pool(target_dedicated_nodes=1, start_task=task)
    [node] = things.wait_nodes(pool_id, 1)
    assert node.start_task_info is not None
    assert (node.start_task_info.state, node.start_task_info.exit_code) == ("completed", 0)
    text = b"".join(client.download_node_file(pool_id, node.id, "startup/stdout.txt"))
    assert text == b"hi\n"
    flag = running.emulator.launches.layout(pool_id, node.id).shared / "flag"
    assert flag.read_text() == "ready\n"


def test_node_with_a_failed_start_task_gets_no_tasks(client: BatchClient, things: Things) -> None:
    task = start_task("/bin/sh -c 'exit 7'", max_task_retry_count=2)
    pool_id = things.pool(target_dedicated_nodes=1, start_task=task)
    [node] = things.wait_nodes(pool_id, 1, "starttaskfailed")
    info = node.start_task_info
    assert info is not None
    assert (info.exit_code, info.retry_count, info.result) == (7, 2, "failure")
    assert info.failure_info is not None
    job_id = things.job(pool_id)
    task_id = things.task(job_id)
    assert client.get_task(job_id, task_id).state == "active"


def test_failed_start_task_without_wait_leaves_the_node_idle(
    client: BatchClient, things: Things
) -> None:
    task = start_task("/bin/sh -c 'exit 3'", wait_for_success=False)
    pool_id = things.pool(target_dedicated_nodes=1, start_task=task)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    task_id = things.task(job_id)
    assert things.wait_task(job_id, task_id).execution_info is not None

    def failed() -> bool:
        [node] = list(client.list_nodes(pool_id))
        info = node.start_task_info
        return node.state == "idle" and info is not None and info.exit_code == 3

    eventually(failed)


def test_reboot_runs_the_start_task_again_and_keeps_the_disk(
    client: BatchClient, things: Things
) -> None:
    task = start_task("/bin/sh -c 'echo x >> $AZ_BATCH_NODE_SHARED_DIR/boots'")
    pool_id = things.pool(target_dedicated_nodes=1, start_task=task)
    [node] = things.wait_nodes(pool_id, 1)
    client.begin_reboot_node(pool_id, node.id, wire(nodeRebootOption="requeue"))

    def boots() -> bytes:
        try:
            return b"".join(client.download_node_file(pool_id, node.id, "shared/boots"))
        except ResourceExistsError:  # 409 NodeNotReady while it reboots
            return b""

    assert eventually(lambda: (found := boots()) not in (b"", b"x\n") and found) == b"x\nx\n"
    [again] = things.wait_nodes(pool_id, 1)
    assert again.id == node.id


def test_reboot_requeues_the_running_task(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    command = (
        "/bin/sh -c 'test -e $AZ_BATCH_NODE_SHARED_DIR/again || "
        "{ touch $AZ_BATCH_NODE_SHARED_DIR/again; sleep 600; }'"
    )
    task_id = things.task(job_id, command)
    things.wait_task(job_id, task_id, "running")
    eventually(
        lambda: any(f.name == "shared/again" for f in client.list_node_files(
            pool_id, node.id, recursive=True))
    )  # fmt: skip
    client.begin_reboot_node(pool_id, node.id, wire(nodeRebootOption="requeue"))
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert (task.execution_info.exit_code, task.execution_info.requeue_count) == (0, 1)


def test_node_lists_its_recent_tasks(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id)
    things.wait_task(job_id, task_id)

    def recent() -> bool:
        [node] = list(client.list_nodes(pool))
        tasks = node.recent_tasks or []
        return any(task.task_id == task_id and task.task_state == "completed" for task in tasks)

    assert eventually(recent)


def test_missing_node_is_not_found(client: BatchClient, pool: str) -> None:
    with pytest.raises(ResourceNotFoundError) as caught:
        client.get_node(pool, "tvm-none")
    assert code_of(caught.value) == "NodeNotFound"


def test_deleted_pool_returns_running_tasks_to_active(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    task_id = things.task(job_id, "sleep 600")
    things.wait_task(job_id, task_id, "running")
    client.begin_delete_pool(pool_id, polling_interval=POLL_S).wait()
    task = client.get_task(job_id, task_id)
    assert task.state == "active"
    assert task.execution_info is not None
    assert task.execution_info.requeue_count == 0
    with pytest.raises(HttpResponseError):
        client.get_pool(pool_id)
