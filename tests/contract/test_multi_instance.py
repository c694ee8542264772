"""Multi-instance tasks: real processes on several nodes that find each other."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests.contract.server import Things, code_of, eventually, serving
from tests.processes import alive

SERVER = """
import os, socket, sys
mine = os.environ["BATCH_EMULATOR_NODE_IP"]
server = socket.create_server((mine, 7117))
if os.fork():
    sys.exit(0)  # the coordination command is done, the server lives on
open("server.pid", "w").write(str(os.getpid()))
while True:
    peer, _ = server.accept()
    peer.sendall(f"{mine} {os.environ['AZ_BATCH_NODE_ID']}".encode())
    peer.close()
"""
CLIENT = """
import os, socket
for host in os.environ["AZ_BATCH_HOST_LIST"].split(","):
    print(socket.create_connection((host, 7117), 300).recv(99).decode(), flush=True)
print(*(os.environ[n] for n in ("AZ_BATCH_MASTER_NODE", "AZ_BATCH_IS_CURRENT_NODE_MASTER",
                                "AZ_BATCH_NODE_LIST", "CCP_NODES")), sep="|")
"""


@pytest.fixture(scope="module")
def cluster(things: Things) -> str:
    pool_id = things.pool(
        target_dedicated_nodes=3, task_slots_per_node=1, enable_inter_node_communication=True
    )
    things.wait_nodes(pool_id, 3)
    return pool_id


def multi_instance(size: int, coordination: str, **options: Any) -> models.MultiInstanceSettings:
    return models.MultiInstanceSettings(
        number_of_instances=size, coordination_command_line=coordination, **options
    )


def addresses(client: BatchClient, pool_id: str) -> dict[str, str]:
    return {str(n.ip_address): str(n.id) for n in client.list_nodes(pool_id)}


@pytest.mark.slow
def test_servers_started_by_the_coordination_command_serve_the_application(
    things: Things, client: BatchClient, cluster: str, tmp_path: Path
) -> None:
    server, app = tmp_path / "server.py", tmp_path / "client.py"
    server.write_text(SERVER)
    app.write_text(CLIENT)
    nodes = addresses(client, cluster)
    coordination = f"{sys.executable} {server}"
    job_id = things.job(cluster)
    task_id = things.task(
        job_id, f"{sys.executable} {app}", multi_instance_settings=multi_instance(3, coordination)
    )
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert task.execution_info.exit_code == 0, things.text(job_id, task_id, "stderr.txt")
    lines = things.text(job_id, task_id).splitlines()
    assert dict(line.split() for line in lines[:3]) == nodes
    hosts = [line.split()[0] for line in lines[:3]]
    master, is_master, listed, ccp = lines[3].split("|")
    assert (master, is_master, listed) == (f"{hosts[0]}:6000", "true", ";".join(hosts))
    assert ccp == "3 " + " ".join(f"{host} 2" for host in hosts)
    subtasks = list(client.list_subtasks(job_id, task_id))
    assert [(s.id, s.state, s.exit_code, s.result) for s in subtasks] == [
        (1, "completed", 0, "success"),
        (2, "completed", 0, "success"),
    ]
    for subtask in subtasks:
        info = subtask.node_info
        assert info is not None
        assert info.task_root_directory == f"workitems/{job_id}/job-1/{task_id}/{subtask.id}"
        assert info.node_id is not None
        name = f"{info.task_root_directory}/wd/server.pid"
        pid = b"".join(client.download_node_file(cluster, info.node_id, name)).decode()
        eventually(lambda pid=pid: not alive(int(pid)))


def test_failed_coordination_fails_the_task(
    things: Things, client: BatchClient, cluster: str
) -> None:
    fail_on_others = "/bin/sh -c '[ $AZ_BATCH_IS_CURRENT_NODE_MASTER = true ] || exit 4'"
    job_id = things.job(cluster)
    task_id = things.task(
        job_id, "/bin/echo never", multi_instance_settings=multi_instance(2, fail_on_others)
    )
    info = things.wait_task(job_id, task_id).execution_info
    assert info is not None
    assert (info.exit_code, info.result) == (4, "failure")
    assert "never" not in things.said(job_id, task_id)


def test_primary_keeps_the_output_of_its_coordination_command(things: Things, cluster: str) -> None:
    say = "/bin/sh -c 'echo ready; echo $AZ_BATCH_TASK_SHARED_DIR >&2'"
    job_id = things.job(cluster)
    task_id = things.task(job_id, "/bin/echo done", multi_instance_settings=multi_instance(2, say))
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id) == "ready\ndone\n"
    shared = things.text(job_id, task_id, "stderr.txt").strip()
    assert shared.endswith(f"/workitems/{job_id}/job-1/{task_id}")


def test_terminate_kills_coordination_processes_on_every_node(
    things: Things, client: BatchClient, cluster: str, tmp_path: Path
) -> None:
    leave = f"/bin/sh -c 'setsid sleep 600 & echo $! > {tmp_path}/$AZ_BATCH_NODE_ID'"

    def written() -> list[int]:
        pids = [path.read_text() for path in tmp_path.iterdir()]
        return [int(pid) for pid in pids if pid.endswith("\n")]

    job_id = things.job(cluster)
    task_id = things.task(
        job_id, "/bin/sleep 600", multi_instance_settings=multi_instance(3, leave)
    )
    eventually(lambda: len(written()) == 3)
    pids = written()
    assert all(alive(pid) for pid in pids)
    client.terminate_task(job_id, task_id)
    things.wait_task(job_id, task_id)
    eventually(lambda: not any(alive(pid) for pid in pids))
    things.wait_nodes(cluster, 3, "idle")


@pytest.mark.slow
def test_wall_clock_covers_coordination_and_application(tmp_path: Path) -> None:
    limit = models.BatchTaskConstraints(max_wall_clock_time=timedelta(hours=1))
    coordination = f"/bin/sh -c 'until [ -e {tmp_path}/go ]; do sleep 0.02; done'"
    with serving(tmp_path / "data") as running:
        things = Things(running.client)
        pool_id = things.pool(target_dedicated_nodes=2, enable_inter_node_communication=True)
        job_id = things.job(pool_id)
        task_id = things.task(
            job_id,
            "/bin/sleep 600",
            multi_instance_settings=multi_instance(2, coordination),
            constraints=limit,
        )
        things.wait_task(job_id, task_id, "running")
        running.push(3599)
        (tmp_path / "go").touch()
        info = things.wait_task(job_id, task_id).execution_info
    assert info is not None
    assert info.failure_info is not None
    assert info.failure_info.code == "TaskEnded"
    assert info.start_time is not None
    assert info.end_time is not None
    assert info.end_time - info.start_time < timedelta(hours=2), "not the limit anew for each"


def test_ordinary_task_has_no_subtasks(things: Things, client: BatchClient, cluster: str) -> None:
    job_id = things.job(cluster)
    task_id = things.task(job_id)
    things.wait_task(job_id, task_id)
    assert list(client.list_subtasks(job_id, task_id)) == []


def test_required_slots_must_be_one(things: Things, cluster: str) -> None:
    job_id = things.job(cluster)
    with pytest.raises(HttpResponseError) as raised:
        things.task(
            job_id, required_slots=2, multi_instance_settings=multi_instance(2, "/bin/true")
        )
    assert code_of(raised.value) == "InvalidPropertyValue"


def test_recent_tasks_of_a_node_include_the_subtask(
    things: Things, client: BatchClient, cluster: str
) -> None:
    job_id = things.job(cluster)
    task_id = things.task(job_id, multi_instance_settings=multi_instance(2, "/bin/true"))
    things.wait_task(job_id, task_id)
    [subtask] = client.list_subtasks(job_id, task_id)
    assert subtask.node_info is not None
    assert subtask.node_info.node_id is not None
    node = client.get_node(cluster, subtask.node_info.node_id)
    newest = (node.recent_tasks or [])[0]
    assert (newest.task_id, newest.subtask_id) == (task_id, 1)


@pytest.mark.slow
def test_running_multi_instance_task_is_requeued_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as first:
        things = Things(first.client)
        pool_id = things.pool(
            target_dedicated_nodes=2, enable_inter_node_communication=True, id="pool"
        )
        things.wait_nodes(pool_id, 2)
        before = addresses(first.client, pool_id)
        job_id = things.job(pool_id, id="job")
        wait = f"/bin/sh -c 'while [ ! -e {tmp_path}/go ]; do sleep 0.1; done'"
        things.task(
            job_id, wait, id="multi", multi_instance_settings=multi_instance(2, "/bin/true")
        )
        things.wait_task(job_id, "multi", "running")
    (tmp_path / "go").touch()
    with serving(tmp_path / "data") as again:
        things = Things(again.client)
        info = things.wait_task("job", "multi").execution_info
        assert info is not None
        assert (info.exit_code, info.requeue_count) == (0, 0)
        assert addresses(again.client, "pool") == before
        assert [s.id for s in again.client.list_subtasks("job", "multi")] == [1]
