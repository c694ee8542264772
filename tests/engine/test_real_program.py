"""The project's own program in the real engine: its lifecycle, and the kinds of its changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pulumi import automation

from runner_infra.program import program as real_program
from tests.engine.stage import CONFIG, Stage
from tests.unit.infra.cloud import ACCOUNT_KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def program(stage: Stage) -> Callable[[], None]:
    """Return the program of a stack without a file: the engine gets its settings directly."""

    def run() -> None:
        made = list((stage.folder / "state/.pulumi/stacks").rglob("dev.json"))
        state = json.loads(stage.state())["checkpoint"].get("latest") if made else None
        real_program(Path(), state or {})

    return run


def _config(**pool: Any) -> dict[str, str]:
    pools = [{"id": "t4", "vm_size": "Standard_NC4as_T4_v3", "max_spot": 4, **pool}]
    return {**CONFIG, "runner:pools": json.dumps(pools)}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mounts": [{"kind": "blob", "container": "data", "path": "data"}]},
        {"ssh_from": ["203.0.113.7/32"]},
        {"containers": True},
        {"vm_size": "Standard_D4s_v5", "scenario": "fixed"},
    ],
    ids=["plain", "mounts", "ssh", "containers", "cpu"],
)
def test_pool_of_any_kind_is_updated_in_place(stage: Stage, more: dict[str, Any]) -> None:
    stage.stack(program(stage), _config(max_spot=1, **more)).up()
    larger = stage.stack(program(stage), _config(max_spot=2, **more))
    changed: Any = larger.up().summary.resource_changes
    # The pool, and the container whose metadata has the outputs.
    assert (changed.get("update"), changed.get("replace")) == (2, None)
    assert [done for done, where in stage.azure.journal() if where.endswith("/pools/t4")] == [
        "create",
        "update",
    ]


def test_stack_is_created_once_and_previews_match_its_changes(stage: Stage) -> None:
    stack = stage.stack(program(stage), _config())
    made = stack.up().summary.resource_changes or {}
    assert set(made) == {"create"}
    assert stage.azure.ids() == stage.ids_in_state()
    assert set(stack.up().summary.resource_changes or {}) == {"same"}

    more: Any = stage.stack(program(stage), _config(max_spot=8)).preview().change_summary
    assert (more.get("update"), more.get("replace")) == (2, None)
    larger = stage.stack(program(stage), _config(vm_size="Standard_NC24ads_A100_v4"))
    replacing: Any = larger.preview().change_summary
    assert replacing.get("replace") == 1

    larger.up()
    assert stage.azure.ids() == stage.ids_in_state()


def test_key_of_a_mounted_share_is_encrypted_everywhere(stage: Stage) -> None:
    share = {"runner:storage": json.dumps({"file_share_gib": 10})}
    stack = stage.stack(program(stage), {**_config(mounts=[{"kind": "files"}]), **share})

    shown = stack.up()

    assert any(where.endswith("/pools/t4") for where in stage.azure.ids())
    assert ACCOUNT_KEY not in stage.state()
    assert ACCOUNT_KEY not in shown.stdout
    outputs = automation.Stack.outputs(stack)
    assert "pools" in outputs
    assert ACCOUNT_KEY not in json.dumps({name: out.value for name, out in outputs.items()})
