"""What a killed deployment had begun is found again by the id that Azure gives it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pulumi import automation as auto

from runner_infra.engine.unfinished import arm_id, import_unfinished
from tests.unit.infra import cloud
from tests.unit.infra.good_resources import GOOD
from tests.unit.infra.stacks import full_stack


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_computed_id_equals_that_of_azure(kind: str) -> None:
    token = f"azure-native:{kind}"
    assert arm_id(token, GOOD[kind], cloud.SUBSCRIPTION) == cloud.arm_id(token, GOOD[kind])


@pytest.mark.slow
def test_every_declared_resource_has_an_id() -> None:
    declared = full_stack().resources
    assert declared
    for found in declared:
        expected = cloud.arm_id(found.type, found.inputs)
        assert arm_id(found.type, found.inputs, cloud.SUBSCRIPTION) == expected


def test_other_resources_have_no_azure_id() -> None:
    assert arm_id("runner:infra:GpuPool", {}, cloud.SUBSCRIPTION) is None
    assert arm_id("azure-native:batch:Pool", {"poolName": "t4"}, cloud.SUBSCRIPTION) is None


class _Stack:
    """What is asked of Pulumi's stack; its engine refuses a state that is out of order."""

    def __init__(self, deployment: dict[str, Any]) -> None:
        self.deployment = deployment
        self.refreshed: list[str] = []

    def export_stack(self) -> auto.Deployment:
        return auto.Deployment(version=3, deployment=self.deployment)

    def import_stack(self, state: auto.Deployment) -> None:
        self.deployment = cast("dict[str, Any]", state.deployment)

    def refresh(self, *, target: list[str], suppress_outputs: bool) -> None:
        assert suppress_outputs
        self.refreshed = target


def test_interrupted_replacement_stays_before_its_dependents() -> None:
    group = {
        "urn": "urn:group",
        "type": "azure-native:resources:ResourceGroup",
        "id": f"/subscriptions/{cloud.SUBSCRIPTION}/resourceGroups/g",
    }
    kind = "azure-native:network:NetworkSecurityGroup"
    inputs = {"resourceGroupName": "g", "networkSecurityGroupName": "n"}
    rules = {"urn": "urn:rules", "type": kind, "id": "old", "pendingReplacement": True}
    subnet = {"urn": "urn:subnet", "type": "x", "id": "s", "dependencies": ["urn:rules"]}
    fresh = {
        "urn": "urn:fresh",
        "type": kind,
        "inputs": {**inputs, "networkSecurityGroupName": "m"},
    }
    pending = [
        {"type": "creating", "resource": {"urn": "urn:rules", "type": kind, "inputs": inputs}},
        {"type": "creating", "resource": fresh},
        {"type": "updating", "resource": subnet},
    ]
    stack = _Stack({"resources": [group, rules, subnet], "pending_operations": pending})
    import_unfinished(cast("auto.Stack", stack))
    found = stack.deployment["resources"]
    assert [each["urn"] for each in found] == ["urn:group", "urn:rules", "urn:subnet", "urn:fresh"]
    assert found[1]["id"] == arm_id(kind, inputs, cloud.SUBSCRIPTION)
    assert "pendingReplacement" not in found[1]
    assert stack.deployment["pending_operations"] == pending[2:]
    assert stack.refreshed == ["urn:rules", "urn:fresh"]


def test_existing_and_condemned_resources_stay_in_the_state() -> None:
    kind = "azure-native:network:NetworkSecurityGroup"
    inputs = {"resourceGroupName": "g", "networkSecurityGroupName": "n"}
    old = {"urn": "urn:kept", "type": kind, "id": "/subscriptions/s/old"}
    condemned = {"urn": "urn:begun", "type": kind, "id": "/subscriptions/s/older", "delete": True}
    pending = [
        {"type": "creating", "resource": {"urn": urn, "type": kind, "inputs": inputs}}
        for urn in ("urn:kept", "urn:begun")
    ]
    stack = _Stack({"resources": [old, condemned], "pending_operations": pending})
    import_unfinished(cast("auto.Stack", stack))
    assert stack.deployment["resources"][:2] == [old, condemned]
    assert [each["urn"] for each in stack.deployment["resources"][2:]] == ["urn:begun"]
    assert stack.deployment["pending_operations"] == pending[:1]
    assert stack.refreshed == ["urn:begun"]
