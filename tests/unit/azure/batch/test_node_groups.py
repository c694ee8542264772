"""A run over several nodes, as Batch is sent it."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.batch import models

from runner.azure.auth.credentials import Connection
from runner.azure.batch.translate import to_task
from runner.contract import PoolOutput
from runner.protocol.run_spec import Resources
from tests.unit.core.recipe_maker import outputs, plan, pool, recipe

THREE = Resources(nodes=3)


def task(on: PoolOutput | None = None, **changes: Any) -> models.BatchTaskCreateOptions:
    """Return a connection with unused credentials: requests are inspected instead of sent."""
    nobody = SimpleNamespace(
        outputs=SimpleNamespace(events_version=None),
        node_storage=lambda *_: {},
        resource_file=lambda blob, name, _: models.ResourceFile(http_url=blob, file_path=name),
    )
    return to_task(plan(recipe(**changes), stack=outputs(on or pool())), cast("Connection", nobody))


def settings_of(found: models.BatchTaskCreateOptions) -> dict[str, str]:
    return {one.name: str(one.value) for one in found.environment_settings or ()}


def test_run_on_one_node_is_not_multi_instance() -> None:
    found = task()
    assert found.multi_instance_settings is None
    assert "RUNNER_NODES_TOKEN" not in settings_of(found)


def test_each_node_downloads_agent_and_code_and_joins() -> None:
    found = task(resources=THREE)
    settings = found.multi_instance_settings
    assert settings is not None
    assert settings.number_of_instances == 3
    common = [one.file_path for one in settings.common_resource_files or ()]
    assert common == ["runner-agent.pyz", "code.tar.gz"]
    assert common == [one.file_path for one in found.resource_files or ()], "the primary's own"
    command = shlex.split(settings.coordination_command_line)
    assert command[:2] == ["/bin/sh", "-c"]
    *started, agent, sha256, role = shlex.split(command[2])
    assert started[:4] == ["exec", "python3", "-I", "-c"]
    assert (agent, sha256, role) == (
        "$AZ_BATCH_TASK_SHARED_DIR/runner-agent.pyz", "a" * 64, "join",
    )  # fmt: skip
    assert found.required_slots in (None, 1)


def test_secret_of_a_node_group_is_new_for_each_task() -> None:
    tokens = {settings_of(task(resources=THREE))["RUNNER_NODES_TOKEN"] for _ in range(2)}
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)
    found = task(resources=THREE)
    settings = found.multi_instance_settings
    assert settings is not None
    token = settings_of(found)["RUNNER_NODES_TOKEN"]
    assert token not in f"{found.command_line} {settings.coordination_command_line}"


@pytest.mark.parametrize(("gpus", "is_given"), [(0, False), (1, True)])
def test_container_gets_the_gpus_of_its_pool(gpus: int, is_given: bool) -> None:
    found = task(pool(gpus=gpus, containers=True), image="docker.io/library/python:3.12")
    assert found.container_settings is not None
    assert ("--gpus all" in (found.container_settings.container_run_options or "")) is is_given


@pytest.mark.parametrize("nodes", [1, 2])
def test_container_commands_start_with_a_shell(
    nodes: int,
) -> None:
    found = task(image="docker.io/library/python:3.12", resources=Resources(nodes=nodes))
    assert found.container_settings is not None
    options = (found.container_settings.container_run_options or "").split()
    if nodes == 1:
        assert "--entrypoint=/bin/sh" in options
        assert found.command_line.startswith("-c ")
        return
    assert {"--entrypoint=", "--network=host"} <= set(options)
    assert found.multi_instance_settings is not None
    commands = (found.command_line, found.multi_instance_settings.coordination_command_line)
    assert all(command.startswith("/bin/sh -c '") for command in commands)
