"""The real engine of Pulumi takes a program through its life; Azure and the state file agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pulumi import automation

from tests.engine.small_program import FORMULA, Settings, program
from tests.engine.stage import Stage
from tests.unit.infra import cloud

# The first test on a machine may build the engine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
POOL = "/batchAccounts/runnerdev/pools/t4"


def test_stack_is_previewed_created_refreshed_and_destroyed(stage: Stage) -> None:
    stack = stage.stack(program(Settings()))

    assert stack.preview().change_summary == {"create": 6}
    assert stage.azure.ids() == set()

    assert stack.up().summary.resource_changes == {"create": 6}
    assert len(stage.azure.ids()) == 5
    assert stage.azure.ids() == stage.ids_in_state()

    assert stack.up().summary.resource_changes == {"same": 6}
    assert stack.refresh().summary.resource_changes == {"same": 6}
    assert [done for done, _ in stage.azure.journal()] == ["create"] * 5

    assert stack.destroy().summary.resource_changes == {"delete": 6}
    assert stage.azure.ids() == stage.ids_in_state() == set()


def test_formula_change_is_an_update_and_size_change_a_replacement(stage: Stage) -> None:
    stage.stack(program(Settings())).up()
    formula = Settings(formula=FORMULA.replace("4", "8"))

    updating = stage.stack(program(formula))
    assert updating.preview().change_summary == {"same": 5, "update": 1}
    updating.up()
    assert [done for done, where in stage.azure.journal() if where.endswith(POOL)] == [
        "create",
        "update",
    ]

    replacing = stage.stack(program(replace(formula, vm_size="Standard_NC24ads_A100_v4")))
    assert replacing.preview().change_summary == {"same": 5, "replace": 1}
    replacing.up()
    assert [done for done, where in stage.azure.journal() if where.endswith(POOL)] == [
        "create",
        "update",
        "delete",
        "create",
    ]
    assert stage.azure.ids() == stage.ids_in_state()


def test_size_change_without_replace_on_changes_fails_in_azure(
    stage: Stage,
) -> None:
    stage.stack(program(Settings(replace_on_changes=False))).up()
    larger = Settings(vm_size="Standard_NC24ads_A100_v4", replace_on_changes=False)
    stack = stage.stack(program(larger))

    assert stack.preview().change_summary == {"same": 5, "update": 1}
    with pytest.raises(automation.CommandError, match=r"PropertyCannotBeUpdated.*vmSize"):
        stack.up()


def test_failed_creation_is_completed_by_the_next_up(stage: Stage) -> None:
    stage.azure.fail("create", "runnerdev", "SubscriptionQuotaExceeded")
    stack = stage.stack(program(Settings()))

    with pytest.raises(automation.CommandError, match="SubscriptionQuotaExceeded"):
        stack.up()
    assert stage.azure.ids() == stage.ids_in_state()
    assert len(stage.azure.ids()) == 3

    stack.up()

    assert len(stage.azure.ids()) == 5
    assert stage.azure.ids() == stage.ids_in_state()
    assert [done for done, _ in stage.azure.journal()] == ["create"] * 5


def test_failed_replacement_is_completed_by_the_next_up(
    stage: Stage,
) -> None:
    stage.stack(program(Settings())).up()
    stage.azure.fail("create", "t4", "AccountVMSeriesCoreQuotaReached")
    stack = stage.stack(program(Settings(vm_size="Standard_NC24ads_A100_v4")))

    with pytest.raises(automation.CommandError, match="AccountVMSeriesCoreQuotaReached"):
        stack.up()
    assert stage.azure.ids() == stage.ids_in_state()

    stack.up()

    assert len(stage.azure.ids()) == 5
    assert stack.preview().change_summary == {"same": 6}


def test_defect_is_refused_with_its_path_before_any_creation(stage: Stage) -> None:
    stack = stage.stack(program(Settings(node_communication="Disabledd")))

    with pytest.raises(automation.CommandError, match="interNodeCommunication: 'Disabledd'"):
        stack.preview()
    with pytest.raises(automation.CommandError, match="interNodeCommunication: 'Disabledd'"):
        stack.up()
    assert not [where for where in stage.azure.ids() if where.endswith(POOL)]


def test_invalid_resource_name_is_refused(stage: Stage) -> None:
    stack = stage.stack(program(Settings(account="Runner-Data")))

    with pytest.raises(automation.CommandError, match="accountName: 'Runner-Data' is no name"):
        stack.preview()


def test_keys_are_encrypted_in_the_state_and_hidden_in_outputs(stage: Stage) -> None:
    stack = stage.stack(program(Settings()))

    shown = stack.up()

    key = automation.Stack.outputs(stack)["key"]
    assert key.secret
    assert key.value == cloud.ACCOUNT_KEY
    assert cloud.ACCOUNT_KEY not in shown.stdout
    assert cloud.ACCOUNT_KEY not in stage.state()
    assert "ciphertext" in stage.state()


def test_refresh_finds_manual_deletions_and_up_recreates_them(stage: Stage) -> None:
    stack = stage.stack(program(Settings()))
    stack.up()
    (pool,) = [where for where in stage.azure.ids() if where.endswith(POOL)]
    stage.azure.delete(pool)

    assert stack.refresh().summary.resource_changes == {"same": 5, "delete": 1}
    assert stack.up().summary.resource_changes == {"same": 5, "create": 1}
    assert pool in stage.azure.ids()
