"""Containers of multi-instance tasks: their commands, folders and names."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from batch_emulator.domain.applications import Applications, Certificates
from batch_emulator.domain.launch import ContainerSpec, ExecutionError, LaunchSpec
from batch_emulator.domain.model import Execution, Task
from batch_emulator.domain.transitions import executions
from batch_emulator.executor.application_packages import PackageInstaller
from batch_emulator.executor.task_containers import (
    InstanceContainers,
    TaskContainers,
    refusal,
    variables,
)
from batch_emulator.launches import LaunchBuilder
from tests.unit.emulator.world import World

MACHINE = {"containerConfiguration": {"type": "dockerCompatible"}}
TASK: dict[str, Any] = {
    "commandLine": "application",
    "containerSettings": {"imageName": "image"},
    "multiInstanceSettings": {"numberOfInstances": 2, "coordinationCommandLine": "ready now"},
}


def multi_instance_task(world: World) -> Task:
    world.pool(
        targetDedicatedNodes=2,
        enableInterNodeCommunication=True,
        virtualMachineConfiguration=MACHINE,
    )
    return world.task(world.job(), "multi", **TASK)


def members(task: Task) -> list[Execution]:
    assert task.group is not None
    return list(task.group.members)


def launch_of(
    world: World, execution: Execution, folder: Path, **settings: Any
) -> tuple[LaunchSpec, ContainerSpec]:
    launches = LaunchBuilder(
        folder, "unit", "http://127.0.0.1/",
        packages=PackageInstaller(cast("Applications", None)),  # the task has none
        certificates=Certificates(folder / "certificates"),
    )  # fmt: skip
    execution.body = {**TASK, "containerSettings": {**TASK["containerSettings"], **settings}}
    launch = launches.build(execution, world.clock.now())
    assert launch.container is not None
    return launch, launch.container


def test_container_gets_the_coordination_command_and_all_hosts(tmp_path: Path) -> None:
    world = World()
    task = multi_instance_task(world)
    primary, second = members(task)
    for member in (primary, second):
        launch, container = launch_of(world, member, tmp_path)
        assert container.command == ("ready", "now")
        hosts = ",".join(one.node.address for one in (primary, second))
        assert container.environment["AZ_BATCH_HOST_LIST"] == hosts
        assert container.environment["AZ_BATCH_TASK_SHARED_DIR"] == str(launch.resource_dir)
        assert launch.holds


def test_container_of_the_primary_gets_the_task_command_afterwards(tmp_path: Path) -> None:
    world = World()
    task = multi_instance_task(world)
    for member in members(task):
        world.finish(member)
    launch, container = launch_of(world, members(task)[0], tmp_path)
    assert container.command == ("application",)
    assert container.environment["AZ_BATCH_IS_CURRENT_NODE_MASTER"] == "true"
    assert launch.continues


def test_subtask_mounts_the_shared_task_folder(tmp_path: Path) -> None:
    world = World()
    second = members(multi_instance_task(world))[1]
    launch, container = launch_of(
        world, second, tmp_path, containerHostBatchBindMounts=[{"source": "Task"}]
    )
    assert [mount.path for mount in container.mounts] == [launch.resource_dir]
    assert launch.task_dir.parent == launch.resource_dir
    assert container.working_dir == launch.working_dir


def test_subtask_and_primary_show_their_own_containers() -> None:
    world = World()
    task = multi_instance_task(world)
    primary, second = members(task)
    executions.record_container(world.account, second, {"containerId": "b", "state": "running"})
    executions.record_container(world.account, primary, {"containerId": "a", "state": "running"})
    assert task.group is not None
    assert task.container == {"containerId": "a", "state": "running"}
    assert task.group.subtasks[0]["containerInfo"]["containerId"] == "b"
    world.finish(primary)
    world.finish(second)
    world.end(task)
    executions.record_container(world.account, second, {"containerId": "late", "state": "exited"})
    assert task.group.subtasks[0]["containerInfo"]["containerId"] == "b"


class Machine(TaskContainers):
    """Says what it was asked for; images have an entry point and a command."""

    def __init__(self, folder: Path) -> None:
        program = folder / "docker"
        program.write_text("#!/bin/sh\necho id\n")
        program.chmod(0o755)
        super().__init__(folder, str(program))
        self.created: list[ContainerSpec] = []
        self.ended: list[str] = []

    async def create(self, container: ContainerSpec, name: str) -> str:
        self.created.append(container)
        return f"id of {name}"

    async def words_of(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("entry", image), ("default",)

    async def kill(self, name: str) -> None:
        await asyncio.sleep(0)
        self.ended.append(name)

    async def finish(self, name: str) -> None:
        await asyncio.sleep(0)


def container(*options: str, command: tuple[str, ...] = ("run",)) -> ContainerSpec:
    root = Path("/data/tasks")
    environment = {"ONE": "1", "TWO": "a\nb"}
    return ContainerSpec("image", command, options, environment, (), None, (), root, root)


def command_of(folder: Path, wanted: ContainerSpec) -> tuple[Machine, list[str]]:
    machine = Machine(folder)

    async def go() -> list[str]:
        kept = InstanceContainers(machine)
        kept.reserve("key", lambda _: None)
        await kept.open("key", wanted)
        found = await kept.command("key", wanted)
        name = kept.name("key")
        await asyncio.gather(kept.close("key"), kept.close("key"))
        assert machine.ended == [name], "ended once, however many ask"
        assert "key" not in kept
        return found[found.index(name) + 1 :]

    return machine, asyncio.run(go())


@pytest.mark.parametrize(
    ("options", "command", "words"),
    [
        ((), ("run",), ["entry", "image", "run"]),
        ((), (), ["entry", "image", "default"]),
        (("--entrypoint=/a",), ("run",), ["/a", "run"]),
        (("--entrypoint=/b", "--entrypoint=/a", "--init=true"), (), ["/a"]),
        (('--entrypoint=["/a", "b"]',), ("run",), ["/a", "b", "run"]),
        (("--entrypoint=",), ("run",), ["run"]),
    ],
)
def test_entry_point_gets_the_commands(
    tmp_path: Path, options: tuple[str, ...], command: tuple[str, ...], words: list[str]
) -> None:
    machine, found = command_of(tmp_path, container(*options, command=command))
    assert found == words
    [created] = machine.created
    assert created.run_options[-2:] == ("--interactive", "--entrypoint=/bin/sh")
    assert not created.environment, "the container's first process is none of the task's"
    assert not any(option.startswith(("--entrypoint=/a", "/a")) for option in created.run_options)


def test_missing_command_fails_the_launch(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError) as error:
        command_of(tmp_path, container("--entrypoint=", command=()))
    assert error.value.failure.code == "CommandLaunchFailed"


def test_variables_are_passed_without_a_named_file() -> None:
    with variables({"ONE": "1", "TWO": "a\nb"}) as file:
        with open(f"/dev/fd/{file}", encoding="utf-8") as text:  # noqa: PTH123 - as the engine does
            assert text.read() == "ONE=1\n"
        status = os.fstat(file)
        assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)


@pytest.mark.parametrize(
    ("code", "said", "failure"),
    [
        (127, "sh: no-such: not found", None),
        (3, "Error: OCI runtime", None),
        (255, "ssh: the server is not running", None),
        (126, "tool: no OCI runtime is installed", None),
        (1, "Error: the database is missing", None),
        (127, "OCI runtime exec failed: executable file not found", "CommandProgramNotFound"),
        (
            127,
            "Error: crun: executable file `x` not found in $PATH: No such file: OCI runtime error",
            "CommandProgramNotFound",
        ),
        (126, "Error: OCI runtime permission denied", "CommandLaunchFailed"),
        (126, "Error: runc: permission denied: OCI permission denied", "CommandLaunchFailed"),
        (1, "Error response from daemon: container 4a is not running", "CommandLaunchFailed"),
        (1, "Error response from daemon: No such container: 4a", "CommandLaunchFailed"),
        (125, 'Error: no container with name "x" found: no such container', "CommandLaunchFailed"),
        (255, "Error: container state improper", "CommandLaunchFailed"),
        (255, "Error: container state improper\nsaid by the task", None),
    ],
)
def test_exit_code_is_that_of_the_command_unless_the_engine_failed(
    tmp_path: Path, code: int, said: str, failure: str | None
) -> None:
    launch = LaunchSpec("key", tmp_path, tmp_path, tmp_path, "x y", {})
    (tmp_path / "stderr.txt").write_text(f"earlier\n{said}\n")
    found = refusal(launch, code)
    assert (None if found is None else found.code) == failure
