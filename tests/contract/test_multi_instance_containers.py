"""Multi-instance tasks in containers: both commands of an instance, on each available engine."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from azure.batch import models

from tests import plain_http
from tests.contract.container_engines import (
    ENGINES,
    ENTRY,
    Machine,
    container_pool,
    inside,
    installed_engine,
    serving_on,
)
from tests.contract.server import KEY, Running, Things, eventually
from tests.contract.test_restart import process
from tests.processes import alive

LEAVE = "sleep 600 </dev/null >/dev/null 2>&1 &"  # how a shell starts a daemon


@pytest.fixture(scope="module", params=ENGINES)
def machine(request: pytest.FixtureRequest) -> Generator[Machine]:
    with installed_engine(request.param) as machine:
        yield machine


@pytest.fixture(scope="module")
def running(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with serving_on(machine, tmp_path_factory.mktemp("batch")) as running:
        yield running


@pytest.fixture(scope="module")
def things(running: Running) -> Things:
    return Things(running.client)


def cluster(things: Things, count: int = 2, **options: int) -> str:
    sizes = options or {"target_dedicated_nodes": count}
    pool = container_pool(
        things, task_slots_per_node=1, enable_inter_node_communication=True, **sizes
    )
    things.wait_nodes(pool, count)
    return pool


@pytest.fixture(scope="module")
def job(things: Things) -> str:
    return things.job(cluster(things))


def multi_instance(coordination: str, size: int = 2) -> models.MultiInstanceSettings:
    return models.MultiInstanceSettings(
        number_of_instances=size, coordination_command_line=f"/bin/sh -c '{coordination}'"
    )


def info_of(task: models.BatchTask) -> models.BatchTaskExecutionInfo:
    assert task.execution_info is not None
    return task.execution_info


def pid_here(machine: Machine, name: Path) -> int:
    """Return the ID on this machine of a process whose ID in the container is in a file."""
    own = name.read_text().strip()
    if Path(machine.program).parent.name.startswith("engine-"):
        return int(own)  # the fake engines have no processes of their own
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        ids = next((line.split()[1:] for line in text.splitlines() if "NSpid" in line), [])
        if len(ids) > 1 and ids[-1] == own and "sleep" in text.splitlines()[0]:
            return int(ids[0])
    pytest.fail(f"no process of a container is {own} there")


def left(machine: Machine, running: Running) -> list[str]:
    return machine.left(running.emulator.settings.data_dir)


def test_each_instance_has_one_container_for_both_commands(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    coordinate = (
        "echo coordinated $OF_THE_IMAGE on $AZ_BATCH_NODE_ID; "
        f"echo $AZ_BATCH_HOST_LIST > $AZ_BATCH_TASK_WORKING_DIR/hosts; {LEAVE} echo $! > pid"
    )
    application = "/bin/sh -c 'cat hosts; sleep 0 && kill -0 $(cat pid) && echo lives; exit 3'"
    task = things.task(
        job,
        application,
        container_settings=inside(),
        multi_instance_settings=multi_instance(coordinate),
    )
    info = info_of(things.wait_task(job, task))
    assert (info.exit_code, info.result) == (3, "failure"), things.text(job, task, "stderr.txt")
    first, hosts, lives = things.text(job, task).splitlines()
    assert first.startswith("coordinated yes on ")
    assert hosts.count(",") == 1
    assert hosts.startswith("127.")
    assert lives == "lives", "what the coordination command started outlives it"
    assert info.container_info is not None
    assert info.container_info.state == "exited"
    [subtask] = things.client.list_subtasks(job, task)
    assert subtask.container_info is not None
    assert (subtask.exit_code, subtask.container_info.state) == (0, "exited")
    assert subtask.container_info.container_id != info.container_info.container_id
    assert left(machine, running) == []


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox has the server")
def test_servers_of_the_coordination_command_find_each_other(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    """The server puts itself into the background, as sshd does."""
    serve = "echo $AZ_BATCH_NODE_ID > me; busybox httpd -p $BATCH_EMULATOR_NODE_IP:7118 -h ."
    ask = 'for host in $(echo $AZ_BATCH_HOST_LIST | busybox tr , " "); do '
    ask += "busybox wget -q -O - http://$host:7118/me; done"
    task = things.task(
        job,
        f"/bin/sh -c '{ask}'",
        container_settings=inside(),
        multi_instance_settings=multi_instance(serve),
    )
    done = things.wait_task(job, task)
    assert info_of(done).exit_code == 0, things.text(job, task, "stderr.txt")
    [subtask] = things.client.list_subtasks(job, task)
    assert done.node_info is not None
    assert subtask.node_info is not None
    assert things.text(job, task).split() == [done.node_info.node_id, subtask.node_info.node_id]
    assert left(machine, running) == []


@pytest.mark.slow
def test_common_resource_files_are_in_the_mounted_task_folder(things: Things, job: str) -> None:
    entry = models.ContainerHostBatchBindMountEntry(source="Task")
    share = "echo $AZ_BATCH_NODE_ID > $AZ_BATCH_TASK_SHARED_DIR/mine"
    task = things.task(
        job, "/bin/sh -c 'cat $AZ_BATCH_TASK_SHARED_DIR/mine'",
        container_settings=inside(container_host_batch_bind_mounts=[entry]),
        multi_instance_settings=multi_instance(share),
    )  # fmt: skip
    done = things.wait_task(job, task)
    assert info_of(done).exit_code == 0, things.text(job, task, "stderr.txt")
    assert done.node_info is not None
    assert things.text(job, task).strip() == done.node_info.node_id


@pytest.mark.slow
def test_variables_are_never_in_the_engines_command_line(
    things: Things, job: str, machine: Machine
) -> None:
    settings = [models.EnvironmentSetting(name="SECRET", value="s3cret\nof two lines")]
    settings += [models.EnvironmentSetting(name="OTHER", value="s3cret of one")]
    task = things.task(
        job, "/bin/sh -c 'echo \"$SECRET $OTHER\"'", container_settings=inside(),
        multi_instance_settings=multi_instance("true"), environment_settings=settings,
    )  # fmt: skip
    assert info_of(things.wait_task(job, task)).exit_code == 0
    assert things.text(job, task) == "s3cret\nof two lines s3cret of one\n"
    if Path(machine.program).parent.name.startswith("engine-"):
        assert "s3cret" not in str(machine.calls())


@pytest.mark.slow
def test_command_is_asked_to_end_before_its_container_is_killed(
    machine: Machine, tmp_path: Path
) -> None:
    script = 'trap "echo bye; exit 9" TERM; echo up; sleep 600 & wait'
    with serving_on(machine, tmp_path, kill_grace_s=60) as running:
        things = Things(running.client)
        job = things.job(cluster(things))
        task = things.task(
            job, f"/bin/sh -c '{script}'", container_settings=inside(),
            multi_instance_settings=multi_instance("true"),
        )  # fmt: skip
        eventually(lambda: things.said(job, task) == "up\n")
        things.client.terminate_task(job, task)
        info = info_of(things.wait_task(job, task))
        assert things.text(job, task) == "up\nbye\n"
        assert info.exit_code == 9


@pytest.mark.slow
def test_entry_point_of_the_image_gets_both_commands(things: Things, job: str) -> None:
    task = things.task(
        job,
        "and this",
        container_settings=inside(ENTRY),
        multi_instance_settings=multi_instance("that"),
    )
    assert info_of(things.wait_task(job, task)).exit_code == 0
    assert things.text(job, task) == "entry /bin/sh -c that\nentry and this\n"


@pytest.mark.slow
def test_entry_point_option_replaces_that_of_the_image(things: Things, job: str) -> None:
    settings = inside(ENTRY, container_run_options="--entrypoint /bin/sh")
    two_instances = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="-c 'echo first'"
    )
    task = things.task(
        job, "-c 'echo then'", container_settings=settings, multi_instance_settings=two_instances
    )
    assert info_of(things.wait_task(job, task)).exit_code == 0
    assert things.text(job, task) == "first\nthen\n"


@pytest.mark.slow
def test_failed_coordination_fails_the_task_and_leaves_no_container(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    fail = "[ $AZ_BATCH_IS_CURRENT_NODE_MASTER = true ] || exit 4"
    task = things.task(
        job,
        "/bin/echo never",
        container_settings=inside(),
        multi_instance_settings=multi_instance(fail),
    )
    info = info_of(things.wait_task(job, task))
    assert (info.exit_code, info.result) == (4, "failure")
    assert "never" not in things.said(job, task)
    assert left(machine, running) == []


@pytest.mark.slow
def test_program_missing_from_the_image_fails_either_command(things: Things, job: str) -> None:
    broken = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="/bin/no-such-program x"
    )
    for command, settings in (
        ("/bin/no-such-program y", multi_instance("true")),
        ("/bin/true", broken),
    ):
        task = things.task(
            job, command, container_settings=inside(), multi_instance_settings=settings
        )
        failure = info_of(things.wait_task(job, task)).failure_info
        assert failure is not None
        assert failure.code == "CommandProgramNotFound"


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["coordination", "application"])
def test_terminating_the_task_ends_every_container(
    things: Things, job: str, running: Running, machine: Machine, stage: str
) -> None:
    endless = "echo up; sleep 600"
    coordinate = endless if stage == "coordination" else f"{LEAVE} echo ready"
    task = things.task(
        job, f"/bin/sh -c '{endless}'", container_settings=inside(),
        multi_instance_settings=multi_instance(coordinate),
    )  # fmt: skip
    eventually(lambda: "up" in things.said(job, task))
    eventually(lambda: len(left(machine, running)) == 2)
    things.client.terminate_task(job, task)
    failure = info_of(things.wait_task(job, task)).failure_info
    assert failure is not None
    assert failure.code == "TaskEnded"
    assert left(machine, running) == []


@pytest.mark.slow
def test_wall_clock_ends_every_container(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    constraints = models.BatchTaskConstraints(max_wall_clock_time="PT3S")  # pyright: ignore[reportArgumentType]
    task = things.task(
        job, "/bin/sleep 600", container_settings=inside(), constraints=constraints,
        multi_instance_settings=multi_instance(f"{LEAVE} true"),
    )  # fmt: skip
    failure = info_of(things.wait_task(job, task)).failure_info
    assert failure is not None
    assert failure.code == "TaskEnded"
    assert left(machine, running) == []


@pytest.mark.slow
def test_eviction_ends_all_containers_and_requeues_the_task(
    things: Things, running: Running, machine: Machine
) -> None:
    pool = cluster(things, target_dedicated_nodes=0, target_low_priority_nodes=2)
    job = things.job(pool)
    task = things.task(
        job, "/bin/sh -c 'echo up; sleep 600'", container_settings=inside(),
        multi_instance_settings=multi_instance(f"{LEAVE} true"),
    )  # fmt: skip
    eventually(lambda: things.said(job, task) == "up\n")
    before = set(left(machine, running))
    assert len(before) == 2
    [subtask] = things.client.list_subtasks(job, task)
    assert subtask.node_info is not None
    assert subtask.node_info.node_id is not None
    url = f"{running.url}/_emulator/pools/{pool}/nodes/{subtask.node_info.node_id}/evict"
    headers = {"authorization": f"Bearer {KEY}"}
    plain_http.post(f"{url}?notice=0&away=0.5", headers=headers).raise_for_status()
    eventually(lambda: len(set(left(machine, running)) - before) == 2)
    assert before.isdisjoint(left(machine, running))
    things.client.terminate_task(job, task)
    things.wait_task(job, task)
    assert left(machine, running) == []


@pytest.mark.slow
def test_restart_removes_old_containers_and_requeues_the_task(
    machine: Machine, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    option = ["--container-engine", machine.program]
    if machine.options:
        option += ["--container-run-options", " ".join(machine.options)]
    coordinate = f"{LEAVE} echo $! > $AZ_BATCH_NODE_SHARED_DIR/pid"
    with process(data, *option) as (_, client):
        things = Things(client)
        job = things.job(cluster(things))
        task = things.task(
            job, "/bin/sh -c 'echo up; sleep 600'", container_settings=inside(),
            multi_instance_settings=multi_instance(coordinate),
        )  # fmt: skip
        eventually(lambda: things.said(job, task) == "up\n")
        daemons = [pid_here(machine, pid) for pid in data.glob("nodes/*/*/tasks/shared/pid")]
        before = set(machine.left(data))
        assert (len(daemons), len(before)) == (2, 2)
        assert all(alive(pid) for pid in daemons)
    assert set(machine.left(data)) == before, "kill -9 leaves them"
    with process(data, *option) as (_, client):
        things = Things(client)
        eventually(lambda: not any(alive(pid) for pid in daemons))
        eventually(lambda: len(set(machine.left(data)) - before) == 2)
        assert before.isdisjoint(machine.left(data))
        client.terminate_task(job, task)
        things.wait_task(job, task)
        assert machine.left(data) == []
