"""A deployment killed during operations of Azure, and the recovery by the next command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.deployed import DeployedOnce
from tests.engine.stage import Stage
from tests.engine.test_commands import Runner, printed, project, runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
__all__ = ["project", "runner"]  # fixtures


def forget_the_end(stage: Stage, *names: str) -> None:
    """Make the state what it is while these are being created: begun, without id and outputs."""
    (file,) = (stage.folder / "state/.pulumi/stacks").rglob("dev.json")
    whole: dict[str, Any] = json.loads(file.read_text("utf-8"))
    state = whole["checkpoint"]["latest"]
    going = [
        each
        for each in state["resources"]
        if each["custom"] and each["urn"].rpartition("::")[2] in names
    ]
    assert len(going) == len(names)
    state["resources"] = [each for each in state["resources"] if each not in going]
    state["pending_operations"] = [
        {
            "resource": {k: v for k, v in each.items() if k not in ("id", "outputs")},
            "type": "creating",
        }
        for each in going
    ]
    file.write_text(json.dumps(whole), "utf-8")


def test_up_adopts_resources_created_after_the_engine_was_killed(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    first = deployed_once.copy_to(stage)
    made = stage.azure.ids()
    forget_the_end(stage, "pool-t4", "budget", "alert-failed-tasks")
    (alert,) = [found for found in made if found.endswith("/failed-tasks-runner-dev")]
    stage.azure.delete(alert)  # Azure did not get to this one
    assert len(stage.azure.ids() - stage.ids_in_state()) == 2

    again = printed(runner("up", "-y", "--no-check", "-o", "json"))

    assert again == first
    assert stage.azure.ids() == stage.ids_in_state() == made
    assert "pending_operations" not in json.loads(stage.state())["checkpoint"]["latest"]


def test_down_deletes_resources_created_after_the_engine_was_killed(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    forget_the_end(stage, "pool-t4", "budget")

    printed(runner("down", "-y", "--force", "-o", "json"))

    assert not [found for found in stage.azure.ids() if "/batchAccounts/" in found]
    assert stage.azure.ids() == stage.ids_in_state()
