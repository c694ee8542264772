"""Container tasks as clients see them, on each available engine."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from azure.batch import models

from tests.contract.container_engines import (
    ENGINES,
    ENTRY,
    IMAGE,
    Machine,
    container_pool,
    inside,
    installed_engine,
    serving_on,
)
from tests.contract.server import POLL_S, Running, Things, eventually, wire

LINES = 'one\n two "quoted" $HOME #three\n\nend\n'


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


@pytest.fixture(scope="module")
def job(things: Things) -> str:
    pool = container_pool(things, config={"container_image_names": [IMAGE]})
    things.wait_nodes(pool, 1)
    return things.job(pool, common_environment_settings=[{"name": "OF_THE_JOB", "value": "j"}])


def info_of(task: models.BatchTask) -> models.BatchTaskExecutionInfo:
    assert task.execution_info is not None
    return task.execution_info


def test_container_has_the_variables_folder_and_exit_code_of_its_task(
    things: Things, job: str
) -> None:
    script = 'echo -n "$LINES"; env > env.txt; pwd > pwd.txt; echo oops >&2; exit 3'
    settings = [models.EnvironmentSetting(name="LINES", value=LINES)]
    command = f"/bin/sh -c '{script}'"
    task = things.task(job, command, container_settings=inside(), environment_settings=settings)
    info = info_of(things.wait_task(job, task))
    assert (info.exit_code, info.result) == (3, "failure")
    assert things.text(job, task) == LINES
    assert things.text(job, task, "stderr.txt") == "oops\n"
    environment = things.text(job, task, "wd/env.txt").splitlines()
    assert {f"AZ_BATCH_TASK_ID={task}", "OF_THE_JOB=j", "OF_THE_IMAGE=yes"} <= set(environment)
    working = next(e for e in environment if e.startswith("AZ_BATCH_TASK_WORKING_DIR="))
    assert things.text(job, task, "wd/pwd.txt").strip() == working.partition("=")[2]
    assert info.container_info is not None
    assert len(info.container_info.container_id or "") == 64
    assert info.container_info.state == "exited"


@pytest.mark.slow
def test_command_runs_in_the_working_directory_of_the_image(things: Things, job: str) -> None:
    settings = inside(working_directory="containerImageDefault")
    task = things.task(job, "/bin/sh -c pwd", container_settings=settings)
    assert info_of(things.wait_task(job, task)).exit_code == 0
    assert things.text(job, task) == "/\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("", "", "entry default"),
        ("more words", "", "entry more words"),
        ("-c 'echo mine'", "--entrypoint=/bin/sh", "mine"),
    ],
)
def test_entry_point_of_the_image_gets_the_command(
    things: Things, job: str, command: str, options: str, said: str
) -> None:
    settings = inside(ENTRY, container_run_options=options)
    task = things.task(job, command, container_settings=settings)
    info = info_of(things.wait_task(job, task))
    assert info.exit_code == 0, things.text(job, task, "stderr.txt")
    assert things.text(job, task) == f"{said}\n"


def test_program_missing_from_the_image_is_not_found(things: Things, job: str) -> None:
    task = things.task(job, "/bin/no-such-program x", container_settings=inside())
    info = info_of(things.wait_task(job, task))
    assert info.failure_info is not None
    assert info.failure_info.code == "CommandProgramNotFound"
    assert info.exit_code is None


def test_options_refused_by_the_engine_fail_the_task(things: Things, job: str) -> None:
    settings = inside(container_run_options="--no-such-option=1")
    task = things.task(job, "/bin/true", container_settings=settings)
    info = info_of(things.wait_task(job, task))
    assert info.failure_info is not None
    assert info.failure_info.code == "ContainerInvalidSettings"


def test_options_are_read_as_docker_reads_them(things: Things, job: str, machine: Machine) -> None:
    options = (
        "--name mine_1 -l a=b --label=c=d --rm -v $AZ_BATCH_TASK_WORKING_DIR/in:/input:ro "
        "--mount type=bind,source=$AZ_BATCH_NODE_SHARED_DIR,target=/data "
        "--workdir ${AZ_BATCH_TASK_DIR} --cidfile=$AZ_BATCH_TASK_DIR/id"
    )
    settings = inside(container_run_options=options)
    task = things.task(job, "/bin/sh -c 'pwd; test -d wd/in'", container_settings=settings)
    info = info_of(things.wait_task(job, task))
    assert info.exit_code == 0, info.failure_info
    assert things.text(job, task).splitlines()[0].endswith(f"/{task}")
    assert info.container_info is not None
    assert things.text(job, task, "id") == info.container_info.container_id


@pytest.mark.slow
def test_name_is_taken_while_a_container_of_the_node_has_it(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    settings = inside(container_run_options="--name=only_one")
    first = things.task(job, "/bin/sh -c 'echo up; sleep 600'", container_settings=settings)
    eventually(lambda: things.said(job, first) == "up\n")
    second = info_of(
        things.wait_task(job, things.task(job, "/bin/true", container_settings=settings))
    )
    assert second.failure_info is not None
    assert second.failure_info.code == "ContainerInvalidSettings"
    [why] = [one.value for one in second.failure_info.details or () if one.name == "Message"]
    assert "only_one" in (why or "")
    things.client.terminate_task(job, first)
    things.wait_task(job, first)
    third = things.task(job, "/bin/true", container_settings=settings)
    assert info_of(things.wait_task(job, third)).exit_code == 0
    assert machine.left(running.emulator.settings.data_dir) == []


@pytest.mark.slow
def test_gpu_options_need_no_gpu_on_this_machine(things: Things) -> None:
    settings = inside(container_run_options="--gpus all --runtime nvidia")
    pool = container_pool(things, vm_size="Standard_NC4as_T4_v3")
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    task = things.task(job, "/bin/true", container_settings=settings)
    assert info_of(things.wait_task(job, task)).exit_code == 0


@pytest.mark.slow
def test_only_the_requested_folders_are_mounted(things: Things, job: str) -> None:
    entry = models.ContainerHostBatchBindMountEntry
    settings = inside(
        container_host_batch_bind_mounts=[
            entry(source="Task"), entry(source="Shared", is_read_only=True),
        ]
    )  # fmt: skip
    task = things.task(job, "/bin/sh -c 'pwd > here.txt'", container_settings=settings)
    assert info_of(things.wait_task(job, task)).exit_code == 0
    assert things.text(job, task, "wd/here.txt").strip().endswith(f"/{task}/wd")


@pytest.mark.slow
def test_terminated_task_leaves_no_container(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    command = "/bin/sh -c 'echo up; sleep 600'"
    task = things.task(job, command, container_settings=inside())
    eventually(lambda: things.said(job, task) == "up\n")
    info = info_of(things.client.get_task(job, task))
    assert info.container_info is not None
    assert info.container_info.state == "running"
    things.client.terminate_task(job, task)
    info = info_of(things.wait_task(job, task))
    assert info.failure_info is not None
    assert info.failure_info.code == "TaskEnded"
    assert info.container_info is not None
    assert info.container_info.state == "exited"
    assert machine.left(running.emulator.settings.data_dir) == []


@pytest.mark.slow
def test_wall_clock_ends_a_container(
    things: Things, job: str, running: Running, machine: Machine
) -> None:
    constraints = models.BatchTaskConstraints(max_wall_clock_time="PT2S")  # pyright: ignore[reportArgumentType]
    task = things.task(job, "/bin/sleep 600", container_settings=inside(), constraints=constraints)
    info = info_of(things.wait_task(job, task))
    assert info.failure_info is not None
    assert info.failure_info.code == "TaskEnded"
    assert machine.left(running.emulator.settings.data_dir) == []


@pytest.mark.slow
def test_start_preparation_manager_and_release_tasks_run_in_containers(things: Things) -> None:
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'echo $OF_THE_IMAGE > $AZ_BATCH_NODE_SHARED_DIR/start'",
        container_settings=inside(), wait_for_success=True,
    )  # fmt: skip
    pool = container_pool(things, start_task=start)
    [node] = things.wait_nodes(pool, 1)
    assert node.start_task_info is not None
    assert node.start_task_info.container_info is not None
    assert node.start_task_info.container_info.state == "exited"
    read = "/bin/sh -c 'cat $AZ_BATCH_NODE_SHARED_DIR/start'"
    job = things.job(
        pool,
        job_manager_task=models.BatchJobManagerTask(
            id="manager", command_line=read, container_settings=inside(),
            kill_job_on_completion=True,
        ),
        job_preparation_task=models.BatchJobPreparationTask(
            command_line="/bin/true", container_settings=inside()
        ),
        job_release_task=models.BatchJobReleaseTask(
            command_line="/bin/true", container_settings=inside()
        ),
    )  # fmt: skip
    things.wait_job(job)
    assert info_of(things.wait_task(job, "manager")).exit_code == 0
    assert things.text(job, "manager") == "yes\n"
    [status] = things.client.list_job_preparation_and_release_task_status(job)
    for info in (
        status.job_preparation_task_execution_info,
        status.job_release_task_execution_info,
    ):
        assert info is not None
        assert info.container_info is not None
        assert (info.exit_code, info.container_info.state) == (0, "exited")


@pytest.mark.slow
def test_container_of_a_lost_node_is_removed_and_its_task_requeued(
    things: Things, running: Running, machine: Machine
) -> None:
    pool = container_pool(things, target_dedicated_nodes=0, target_low_priority_nodes=1)
    [node] = things.wait_nodes(pool, 1)
    job = things.job(pool)
    task = things.task(job, "/bin/sh -c 'echo up; sleep 600'", container_settings=inside())
    eventually(lambda: things.said(job, task) == "up\n")
    [first] = machine.left(running.emulator.settings.data_dir)
    assert node.id is not None
    how = wire(nodeReimageOption="requeue")
    things.client.begin_reimage_node(pool, node.id, how, polling_interval=POLL_S)
    eventually(lambda: machine.left(running.emulator.settings.data_dir) not in ([first], []))
    things.wait_task(job, task, "running")
    things.client.terminate_task(job, task)
    things.wait_task(job, task)
    assert machine.left(running.emulator.settings.data_dir) == []
