"""The command line that creates the container of a task."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from batch_emulator.domain.launch import ContainerMount, ContainerSpec
from batch_emulator.executor.container_engine import (
    Engine,
    create_arguments,
    env_file_text,
    full_name,
    inherited,
)

ROOT = Path("/data/nodes/pool/node/tasks")


def container(*options: str, **environment: str) -> ContainerSpec:
    return ContainerSpec(
        image="busybox",
        command=("/bin/sh", "-c", "exit 3"),
        run_options=options,
        environment=environment,
        mounts=(ContainerMount(ROOT), ContainerMount(Path("/shares/one"), read_only=True)),
        working_dir=ROOT / "wd",
        registries=(),
        node_root=ROOT,
        data_dir=Path("/data"),
    )


def _arguments(spec: ContainerSpec) -> list[str]:
    return create_arguments(spec, "name", Path("/e"), user="7:8")


def test_command_line_has_all_options() -> None:
    arguments = create_arguments(
        container("--rm", "--shm-size=1g"), "name", Path("/e"), user="7:8", extra=["--runtime=runc"]
    )
    assert arguments == [
        "create",
        "--name=name",
        "--log-driver=none",
        "--pull=never",
        "--network=host",
        "--user=7:8",
        f"--mount=type=bind,source={ROOT},target={ROOT}",
        "--mount=type=bind,source=/shares/one,target=/shares/one,readonly",
        "--env-file=/e",
        f"--workdir={ROOT}/wd",
        "--runtime=runc",
        "--shm-size=1g",
        f"--label=batch-emulator.node={ROOT}",
        "--label=batch-emulator.data=/data",
        "busybox",
        "/bin/sh",
        "-c",
        "exit 3",
    ]


def test_labels_of_a_task_do_not_replace_ours() -> None:
    task = replace(container("--label=batch-emulator.data=/other"), name="mine_1")
    labels = [one for one in _arguments(task) if one.startswith("--label")]
    assert labels[0] == "--label=batch-emulator.data=/other"
    assert labels[-2:] == [
        "--label=batch-emulator.data=/data",
        "--label=batch-emulator.name=mine_1",
    ]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--gpus=all", ["--device=nvidia.com/gpu=all"]),
        ("--gpus=2", ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
        ('--gpus="device=1,3"', ["--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=3"]),
        ("--gpus=count=1,capabilities=utility", ["--device=nvidia.com/gpu=0"]),
        ("--runtime=nvidia", ["--device=nvidia.com/gpu=all"]),
        ("--runtime=crun", ["--runtime=crun"]),
    ],
)
def test_gpus_are_devices_of_podman(option: str, expected: list[str]) -> None:
    task = container(option)
    changed = create_arguments(task, "name", Path("/e"), user="7:8", podman=True)
    assert [one for one in changed if one in expected] == expected
    assert option in _arguments(task)


@pytest.mark.parametrize("option", ["--network=bridge", "--net", "--net=none"])
def test_network_option_of_the_task_replaces_that_of_the_node(option: str) -> None:
    assert "--network=host" not in _arguments(container(option))


def test_paths_with_commas_are_quoted() -> None:
    task = replace(container(), mounts=(ContainerMount(Path('/a,"b'), read_only=True),))
    [mount] = [a for a in _arguments(task) if a.startswith("--mount")]
    assert mount == '--mount=type=bind,"source=/a,""b","target=/a,""b",readonly'


def test_nul_in_an_argument_is_a_failed_call() -> None:
    answer = asyncio.run(Engine("/bin/echo").run("a\0b"))
    assert answer.code != 0
    assert "null byte" in answer.why


def test_values_of_variables_are_not_in_the_command_line() -> None:
    task = container(SECRET="abc", TWO="a\nb")
    arguments = _arguments(task)
    assert "abc" not in " ".join(arguments)
    assert env_file_text(task.environment) == "SECRET=abc\n"
    assert "--env=TWO" in arguments
    assert inherited(task.environment) == {"TWO": "a\nb"}


def test_credentials_are_stored_where_each_engine_looks() -> None:
    config = Path("/c")
    podman, docker = Engine("/usr/bin/podman"), Engine("/usr/bin/docker")
    assert podman.command("pull", "x", config_dir=config) == [
        "/usr/bin/podman", "--log-level=error", "pull", "--authfile=/c/config.json", "x",
    ]  # fmt: skip
    assert docker.command("pull", "x", config_dir=config) == [
        "/usr/bin/docker", "--config", "/c", "pull", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("me/app:1", "docker.io/me/app:1"),
        ("localhost/bb:1", "localhost/bb:1"),
        ("reg.example:5000/a", "reg.example:5000/a"),
    ],
)
def test_images_without_a_registry_come_from_docker_hub(image: str, full: str) -> None:
    assert full_name(image) == full
