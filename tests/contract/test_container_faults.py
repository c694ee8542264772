"""Invalid images, registries and pools of containers, and the secrecy of passwords."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from tests.contract.container_engines import (
    ACCOUNT,
    IMAGE,
    PRIVATE,
    Machine,
    container_pool,
    fake,
    inside,
    serving_on,
)
from tests.contract.server import Things, code_of, eventually, values_of, wire
from tests.contract.test_restart import process
from tests.processes import alive
from tests.repetition import slow_after


@pytest.fixture(params=slow_after(1, ["podman", "docker"]))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return fake(tmp_path / "engine", request.param)


def registry(password: str = ACCOUNT[1], **options: Any) -> models.ContainerRegistryReference:
    return models.ContainerRegistryReference(
        registry_server="https://private.example", username=ACCOUNT[0], password=password, **options
    )


def failure_of(task: models.BatchTask) -> tuple[str | None, dict[str | None, str | None]]:
    assert task.execution_info is not None
    failure = task.execution_info.failure_info
    assert failure is not None
    assert failure.category == "UserError"
    return failure.code, {detail.name: detail.value for detail in failure.details or []}


def error_of(things: Things, pool: str) -> tuple[str | None, dict[str | None, str | None]]:
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    return error.code, {detail.name: detail.value for detail in error.error_details or []}


@pytest.mark.slow
def test_only_the_engine_sees_the_password_of_a_registry(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="batch_emulator")
    shown: list[Any] = []
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        start = models.BatchStartTask(
            command_line="/bin/true", container_settings=inside(PRIVATE, registry=registry())
        )
        config = {"container_image_names": [PRIVATE], "container_registries": [registry()]}
        pool = container_pool(things, config=config, start_task=start)
        [node] = things.wait_nodes(pool, 1)
        assert node.id is not None
        settings = inside(PRIVATE, registry=registry())
        job = things.job(
            pool,
            job_preparation_task=models.BatchJobPreparationTask(
                command_line="/bin/true", container_settings=settings
            ),
            job_manager_task=models.BatchJobManagerTask(
                id="manager", command_line="/bin/true", container_settings=settings,
                kill_job_on_completion=False,
            ),
        )  # fmt: skip
        task = things.task(job, "/bin/true", container_settings=settings)
        done = things.wait_task(job, task)
        assert done.execution_info is not None
        assert done.execution_info.exit_code == 0
        client = running.client
        shown += [done, client.get_pool(pool), client.get_job(job), client.get_node(pool, node.id)]
        shown += [*client.list_tasks(job), *client.list_jobs(), *client.list_pools()]
    text = json.dumps([thing.as_dict() for thing in shown])
    assert text.count(ACCOUNT[0]) > 6, "the user names are shown"
    assert ACCOUNT[1] not in text
    assert ACCOUNT[1] not in json.dumps(machine.calls())
    assert ACCOUNT[1] not in caplog.text
    assert any("--password-stdin" in call for call in machine.calls())


IDENTITY = (
    "/subscriptions/s/resourceGroups/g/providers"
    "/Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
)


def test_registry_of_an_identity_has_the_logins_of_this_machine(tmp_path: Path) -> None:
    machine = fake(tmp_path / "engine", "docker", logged_in=["private.example"])
    own = models.BatchNodeIdentityReference(resource_id=IDENTITY)
    server = "private.example"
    by_identity = models.ContainerRegistryReference(registry_server=server, identity_reference=own)
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        pool = container_pool(things, config={"container_registries": [by_identity]})
        job = things.job(pool)
        task = things.task(job, "/bin/true", container_settings=inside(PRIVATE))
        done = things.wait_task(job, task)
        assert done.execution_info is not None
        assert done.execution_info.exit_code == 0
        for wrong in (
            models.BatchNodeIdentityReference(resource_id="/subscriptions/s"),
            models.BatchNodeIdentityReference(resource_id=IDENTITY),
        ):
            both = models.ContainerRegistryReference(
                registry_server=server, identity_reference=wrong, username="robot", password="x"
            )
            with pytest.raises(HttpResponseError) as caught:
                things.task(job, "x", container_settings=inside(PRIVATE, registry=both))
            assert code_of(caught.value) == "InvalidPropertyValue"
            assert "identityReference" in values_of(caught.value)["PropertyName"]


def test_wrong_password_makes_the_node_unusable(machine: Machine, tmp_path: Path) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        pool = container_pool(things, config={"container_registries": [registry("wrong")]})
        code, details = error_of(things, pool)
        assert code == "ContainerInvalidRegistry"
        assert details["ContainerRegistry"] == "private.example"
        assert "wrong" not in str(details)


@pytest.mark.slow
def test_image_that_cannot_be_pulled_is_an_error_of_node_and_task(
    machine: Machine, tmp_path: Path
) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        pool = container_pool(things, config={"container_image_names": ["nothing:1"]})
        code, details = error_of(things, pool)
        assert (code, details["ContainerImage"]) == ("ContainerInvalidImage", "nothing:1")
        pool = container_pool(things)
        job = things.job(pool)
        for image in ("nothing:1", PRIVATE):
            task = things.task(job, "/bin/true", container_settings=inside(image))
            code, details = failure_of(things.wait_task(job, task))
            assert (code, details["ContainerImage"]) == ("ContainerInvalidImage", image)


@pytest.mark.slow
def test_pool_with_containers_fails_without_an_engine(tmp_path: Path) -> None:
    broken = fake(tmp_path / "engine", "docker", broken=True)
    for machine in (None, broken):
        with serving_on(machine, tmp_path / f"data{machine is None}") as running:
            things = Things(running.client)
            code, _ = error_of(things, container_pool(things))
            assert code == "ContainerPoolNotSupported"


def test_task_must_have_container_settings_if_its_pool_does(
    machine: Machine, tmp_path: Path
) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        job = things.job(things.pool(target_dedicated_nodes=1))
        task = things.task(job, container_settings=inside())
        assert failure_of(things.wait_task(job, task))[0] == "ContainerPoolNotSupported"
        job = things.job(container_pool(things))
        task = things.task(job)
        assert failure_of(things.wait_task(job, task))[0] == "ContainerTaskSettingsNotFound"


def test_invalid_container_settings_are_refused(things: Things) -> None:
    """The request itself is refused, not a later start of the task."""
    job = things.job(container_pool(things, target_dedicated_nodes=0))
    identity = models.BatchNodeIdentityReference(resource_id="x")
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (inside(working_directory="elsewhere"), {}, "InvalidPropertyValue"),
        (inside(""), {}, "MissingRequiredProperty"),
        (inside("--privileged"), {}, "InvalidPropertyValue"),
        (
            inside(container_host_batch_bind_mounts=[wire(source="Root")]),
            {},
            "InvalidPropertyValue",
        ),
        (inside(registry=registry(identity_reference=identity)), {}, "InvalidPropertyValue"),
    ]
    for settings, options, code in refused:
        with pytest.raises(HttpResponseError) as error:
            things.task(job, container_settings=settings, **options)
        assert code_of(error.value) == code
    with pytest.raises(HttpResponseError) as error:
        things.task(job, "")
    assert code_of(error.value) == "MissingRequiredProperty"
    for config, code in (
        ({"type": "lxc"}, "InvalidPropertyValue"),
        ({"container_image_names": ["-v/:/x"]}, "InvalidPropertyValue"),
        ({"container_image_names": 5}, "InvalidRequestBody"),
    ):
        with pytest.raises(HttpResponseError) as error:
            container_pool(things, config=config)
        assert code_of(error.value) == code


def test_task_cannot_hide_its_container_from_the_emulator(machine: Machine, tmp_path: Path) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        job = things.job(container_pool(things))
        hiding = "--name=mine --label=batch-emulator.data=/other"
        settings = inside(container_run_options=hiding)
        task = things.task(job, "/bin/sh -c 'echo up; sleep 600'", container_settings=settings)
        eventually(lambda: things.said(job, task) == "up\n")
        assert len(machine.left(running.emulator.settings.data_dir)) == 1
        assert not any("--name=mine" in call for call in machine.calls())


@pytest.mark.slow
def test_containers_of_a_killed_emulator_are_removed_at_the_next_start(
    machine: Machine, tmp_path: Path
) -> None:
    data, pid = tmp_path / "data", tmp_path / "pid"
    option = ("--container-engine", machine.program)
    command = f"/bin/sh -c 'echo $$ > {pid}; exec sleep 600'"
    with process(data, *option) as (_, client):
        things = Things(client)
        job = things.job(container_pool(things))
        task = things.task(job, command, container_settings=inside(IMAGE))
        eventually(lambda: pid.exists() and pid.read_text().strip())
        first = int(pid.read_text())
        [left] = machine.left(data)
    assert machine.left(data) == [left], "kill -9 leaves it"
    pid.unlink()
    with process(data, *option) as (_, client):
        things = Things(client)
        eventually(lambda: pid.exists() and pid.read_text().strip())
        [fresh] = machine.left(data)
        assert fresh != left
        eventually(lambda: not alive(first))
        client.terminate_task(job, task)
        things.wait_task(job, task)
        assert machine.left(data) == []


@pytest.mark.slow
def test_nul_in_options_or_command_fails_only_its_task(machine: Machine, tmp_path: Path) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        job = things.job(container_pool(things))
        broken = [
            ("/bin/true", inside(container_run_options="--shm-size=1\0")),
            ("/bin/true 'a\0b'", inside()),
            ("/bin/true 'open", inside()),
            ("/bin/true", inside(container_run_options="'open")),
        ]
        for command, settings in broken:
            task = things.task(job, command, container_settings=settings)
            code, _ = failure_of(things.wait_task(job, task))
            assert code in ("ContainerInvalidSettings", "CommandLaunchFailed")
        task = things.task(job, "/bin/true", container_settings=inside())
        info = things.wait_task(job, task).execution_info
        assert info is not None
        assert info.exit_code == 0


@pytest.mark.slow
def test_containers_get_the_inherited_variables(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED_ONE", "1")
    option = ("--container-engine", machine.program, "--pass-env", "INHERITED_*")
    with process(tmp_path / "data", *option) as (_, client):
        things = Things(client)
        job = things.job(container_pool(things))
        command = "/bin/sh -c 'echo $INHERITED_ONE $OF_THE_IMAGE'"
        task = things.task(job, command, container_settings=inside())
        things.wait_task(job, task)
        assert things.text(job, task) == "1 yes\n"


@pytest.mark.slow
def test_concurrent_tasks_pull_an_image_once(machine: Machine, tmp_path: Path) -> None:
    with serving_on(machine, tmp_path / "data") as running:
        things = Things(running.client)
        job = things.job(container_pool(things))
        tasks = [things.task(job, "/bin/true", container_settings=inside()) for _ in range(6)]
        for task in tasks:
            info = things.wait_task(job, task).execution_info
            assert info is not None
            assert info.exit_code == 0
    assert sum("pull" in call for call in machine.calls()) == 1
