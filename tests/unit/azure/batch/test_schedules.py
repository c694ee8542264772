"""The jobs of a schedule as they are sent to Batch."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.schedules import group_job, run_job, task_template
from runner.core.planning.plan import RunPlan, StorageScopes
from runner.core.recipe.secrets import SecretValues
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import Resources
from runner.protocol.schedules import GroupAccess, fired_task_bodies, make_firing
from tests.unit.core.recipe_maker import CREATED, outputs, plan, recipe

KEYS = {"batch": "unused", "storage": base64.b64encode(b"k" * 64).decode()}
LONG = timedelta(days=900)
SECRET = SecretValues({"TOKEN": "hunter2secret"}, {})


@pytest.fixture
def local() -> Connection:
    return Connection(outputs(), KEYS)


def azure(*, may_add: bool) -> Connection:
    stack = replace(
        outputs(),
        identity_client_id="client",
        identity_resource_id="/subscriptions/s/identity",
        nodes_add_tasks=may_add,
    )
    return Connection(stack, None)


def settings_of(manager: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in manager["environmentSettings"]}


def group(connection: Connection, *plans: RunPlan) -> dict[str, Any]:
    tasks = {f"t{number}": one for number, one in enumerate(plans)}
    tasks["last"] = replace(plans[-1], secrets=SECRET)
    documents = {name: one.to_spec().to_json() for name, one in tasks.items()}
    template = {
        "schedule": "nightly",
        "tasks": {
            name: {"run_id": f"placeholder-{name}", "after": [], "run": document}
            for name, document in documents.items()
        },
    }
    place = "nightly/abc"
    return group_job(
        connection, "shown", place, tasks, template=template, max_parallel=4, limit=None, times=None
    ).as_dict()


def test_job_of_a_group_ends_with_its_last_task(
    local: Connection,
) -> None:
    job = group(local, plan(recipe(priority=7)))
    assert job["onAllTasksComplete"] == "terminatejob"
    assert job["usesTaskDependencies"] is True
    assert (job["priority"], job["maxParallelTasks"]) == (7, 4)
    manager = job["jobManagerTask"]
    assert manager["killJobOnCompletion"] is False
    assert manager["runExclusive"] is False
    assert manager["authenticationTokenSettings"] == {"access": ["job"]}
    settings = settings_of(manager)
    assert settings["RUNNER_SCHEDULE"] == "nightly/abc"
    assert json.loads(settings["RUNNER_GROUP_SECRETS"]) == {"last": SECRET.reveal()}


def test_on_azure_the_identity_adds_tasks_if_allowed() -> None:
    manager = group(azure(may_add=True), plan())["jobManagerTask"]
    assert "authenticationTokenSettings" not in manager
    storage = json.loads(settings_of(manager)["RUNNER_STORAGE"])
    assert (storage["identity_client_id"], storage["runs"]["sas"]) == ("client", None)
    with pytest.raises(RunnerError) as caught:
        group(azure(may_add=False), plan())
    assert caught.value.code == "R-STACK-NODES-ADD"
    assert "runner:nodes_add_tasks: true" in (caught.value.fix or "")


def test_job_of_one_run_needs_no_access_to_the_job() -> None:
    one = plan(recipe(image="python:3.12", retries=2), secrets=SECRET)
    job = run_job(
        azure(may_add=False), "shown", "nightly/abc", one, limit=LONG, times=None
    ).as_dict()
    manager = job["jobManagerTask"]
    assert manager["killJobOnCompletion"] is True
    assert job["constraints"] == {"maxWallClockTime": "P900D"}
    assert manager["constraints"]["maxTaskRetryCount"] == 2
    assert manager["containerSettings"]["imageName"] == "python:3.12"
    assert manager["commandLine"].startswith("-c ")
    assert "authenticationTokenSettings" not in manager


def test_templates_have_no_ids_signatures_or_secrets(local: Connection) -> None:
    one = plan(recipe(resources=Resources(nodes=3)), secrets=SECRET)
    template = task_template(one, local)
    text = json.dumps(template)
    assert one.run_id not in text
    assert "sig=" not in text
    assert "RUNNER_STORAGE" not in text
    assert "RUNNER_SECRETS" not in text
    assert "RUNNER_NODES_TOKEN" not in text
    assert template["multiInstanceSettings"]["numberOfInstances"] == 3


def test_each_firing_of_a_node_group_has_a_new_token(
    local: Connection,
) -> None:
    wire = task_template(plan(recipe(resources=Resources(nodes=3))), local)
    run = {"recipe": {"name": "digits"}, "batch": {}}
    template: dict[str, Any] = {
        "schedule": "nightly",
        "tasks": {"a": {"run_id": "x", "after": [], "run": run, "task": wire}},
    }
    access = GroupAccess(local.node_storage(StorageScopes((), code=("r~code/",)), LONG), {})
    tokens: set[str] = set()
    for number in range(2):
        firing = make_firing(template, f"key {number}", "job", CREATED)
        [body] = fired_task_bodies(template, firing, access)
        settings = settings_of(body)
        tokens.add(settings["RUNNER_NODES_TOKEN"])
        files = body["multiInstanceSettings"]["commonResourceFiles"]
        assert all("sig=" in one["httpUrl"] for one in (*files, *body["resourceFiles"]))
        assert settings["RUNNER_RUN_ID"] == body["id"] == firing["runs"]["a"]
    assert len(tokens) == 2
