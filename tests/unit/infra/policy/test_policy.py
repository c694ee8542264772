"""Every rule of the policy pack fires on what it forbids and is silent on what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pulumi_policy.proxy import unknown_checking_proxy

from runner_infra.config.stack_file import load_stack_config
from runner_infra.planning.own_formula import evaluate_idle
from runner_infra.policy import rules
from tests.unit.infra import cloud
from tests.unit.infra.good_resources import FORMULA, GOOD, POOL
from tests.unit.infra.oracle import args_class
from tests.unit.infra.recording import Recording
from tests.unit.infra.stacks import ADOPTED, config_of, deploy, full_stack, plain_stack
from tests.unit.infra.test_oracle import DELETE, changed

TODAY = date(2026, 11, 21)
SUNDAY = datetime(2026, 11, 1, 12, tzinfo=UTC)
_SIMPLE = (
    "$TargetDedicatedNodes=0; $TargetLowPriorityNodes=min(4, max(0, $PendingTasks.GetSample(1)));"
)
_HALVING = """p=max(0, $PendingTasks.GetSample(1));
$TargetDedicatedNodes = p > 0 ? min(8, p) : $TargetDedicatedNodes / 2;"""
_BUSY = "busy=max($PendingTasks.GetSample(1)) > 0;"
_OFFICE = """w=time(); day=w.weekday; $TargetDedicatedNodes=0;
$TargetLowPriorityNodes=(day >= 1 && day <= 5 && w.hour >= 8 && w.hour < 18) ? 1 : 0;"""
_MACHINE = "deploymentConfiguration.virtualMachineConfiguration"


def found(rule: rules.ResourceRule, kind: str, props: dict[str, Any]) -> list[str]:
    messages: list[str] = []
    rule(f"azure-native:{kind}", as_pulumi_hands_over(props), messages.append)
    return messages


def as_pulumi_hands_over(props: dict[str, Any]) -> Mapping[str, Any]:
    """Return properties as pulumi_policy passes them, with its own lists and objects."""
    return unknown_checking_proxy(props)


def in_stack(rule: rules.StackRule, *kinds: str, **changes: dict[str, Any]) -> list[str]:
    messages: list[str] = []
    stack = [
        rules.DeclaredResource(
            f"azure-native:{k}",
            as_pulumi_hands_over({**GOOD[k], **changes.get(k.replace(":", "_"), {})}),
        )
        for k in kinds
    ]
    rule(stack, messages.append)
    return messages


RESOURCE_RULES = [
    rules.no_public_blob_access,
    rules.entra_only,
    rules.tagged,
    rules.pools_scale_to_zero,
    rules.nothing_retired(TODAY),
]


@pytest.mark.parametrize("kind", GOOD)
def test_valid_resource_violates_no_rule(kind: str) -> None:
    assert [text for rule in RESOURCE_RULES for text in found(rule, kind, GOOD[kind])] == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("storage:StorageAccount", "allowBlobPublicAccess", True),
        ("storage:StorageAccount", "allowBlobPublicAccess", DELETE),
        ("storage:StorageAccount", "minimumTlsVersion", "TLS1_0"),
        ("storage:StorageAccount", "enableHttpsTrafficOnly", False),
        ("storage:BlobContainer", "publicAccess", "Blob"),
    ],
)
def test_public_blobs_are_refused(kind: str, path: str, value: Any) -> None:
    assert found(rules.no_public_blob_access, kind, changed(GOOD[kind], path, value))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("batch:BatchAccount", "allowedAuthenticationModes", ["AAD", "SharedKey"]),
        ("batch:BatchAccount", "allowedAuthenticationModes", DELETE),
        ("containerregistry:Registry", "adminUserEnabled", True),
    ],
)
def test_keys_are_refused(kind: str, path: str, value: Any) -> None:
    assert found(rules.entra_only, kind, changed(GOOD[kind], path, value))


def test_account_keys_need_a_share() -> None:
    on = {"storage_StorageAccount": {"allowSharedKeyAccess": True}}

    assert in_stack(rules.keys_only_for_the_share, "storage:StorageAccount", **on)
    share = ("storage:StorageAccount", "storage:FileShare")
    assert not in_stack(rules.keys_only_for_the_share, *share, **on)
    assert not in_stack(rules.keys_only_for_the_share, "storage:StorageAccount")


@pytest.mark.parametrize("kind", [kind for kind in GOOD if kind not in rules.UNTAGGABLE])
def test_taggable_resources_must_have_tags(kind: str) -> None:
    assert found(rules.tagged, kind, {**GOOD[kind], "tags": {}}) == ["the resource has no tags"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOOD)
def test_untaggable_resources_have_no_tags_in_the_sdk(kind: str) -> None:
    resource = args_class(f"azure-native:{kind}")
    assert hasattr(resource, "tags") == (kind not in rules.UNTAGGABLE)


def test_pools_need_a_budget_with_notifications() -> None:
    assert in_stack(rules.budget_present, "batch:Pool")
    assert not in_stack(rules.budget_present, "batch:Pool", "consumption:Budget")
    quiet = {"consumption_Budget": {"notifications": {}}}
    assert in_stack(rules.budget_present, "batch:Pool", "consumption:Budget", **quiet)
    assert not in_stack(rules.budget_present, "storage:StorageAccount")


def test_stack_tagged_without_budget_needs_none() -> None:
    tagged = {"resources_ResourceGroup": {"tags": {"runner-budget": "off"}}}
    assert not in_stack(rules.budget_present, "batch:Pool", "resources:ResourceGroup", **tagged)
    assert in_stack(rules.budget_present, "batch:Pool", "resources:ResourceGroup")


def _pool(formula: str, scenario: str | None = None) -> dict[str, Any]:
    pool = changed(POOL, "scaleSettings.autoScale.formula", formula)
    if scenario:
        pool["metadata"] = [{"name": "runner-scenario", "value": scenario}]
    return pool


@pytest.mark.parametrize("formula", [FORMULA, _SIMPLE, _HALVING], ids=["full", "simple", "halving"])
def test_formula_that_scales_to_zero_passes(formula: str) -> None:
    assert found(rules.pools_scale_to_zero, "batch:Pool", _pool(formula)) == []


@pytest.mark.parametrize(
    "formula",
    [
        "$TargetDedicatedNodes=1;",
        "$TargetLowPriorityNodes=max(1, $PendingTasks.GetSample(1));",
        _BUSY + "$TargetLowPriorityNodes=busy ? 4 : $TargetLowPriorityNodes;",
        # The formula for spot nodes depends on the dedicated nodes and never decreases.
        _BUSY + "$TargetLowPriorityNodes=busy ? 4 : 4 + $TargetDedicatedNodes/2;",
        "$TargetDedicatedNodes=time().hour < 3 ? 1 : 0;",
    ],
)
def test_a_formula_that_keeps_idle_nodes_is_refused(formula: str) -> None:
    (text,) = found(rules.pools_scale_to_zero, "batch:Pool", _pool(formula))
    assert "nodes when idle" in text


def test_invalid_formula_is_refused_with_its_position() -> None:
    (text,) = found(rules.pools_scale_to_zero, "batch:Pool", _pool("$TargetDedicatedNodes="))
    assert "the formula is invalid" in text
    assert "line 1" in text.lower()


def test_formula_with_an_evaluation_error_is_refused() -> None:
    vector = "$TargetDedicatedNodes = $PendingTasks.GetSample(1) > 0 ? 1 : 0;"
    (text,) = found(rules.pools_scale_to_zero, "batch:Pool", _pool(vector))
    assert "the evaluation of the formula fails" in text
    assert "doubleVec" in text


def test_formula_is_checked_after_simulated_demand() -> None:
    busy = evaluate_idle(
        "$TargetDedicatedNodes = max($PendingTasks.GetSample(260)) > 0 ? 3 : 0;", SUNDAY
    )
    assert (busy.dedicated, busy.problem) == (3, None)


@pytest.mark.slow
def test_office_hours_need_pool_metadata() -> None:
    assert found(rules.pools_scale_to_zero, "batch:Pool", _pool(_OFFICE))
    assert not found(rules.pools_scale_to_zero, "batch:Pool", _pool(_OFFICE, "office_hours"))
    always = _pool("$TargetDedicatedNodes=1;", "office_hours")
    assert found(rules.pools_scale_to_zero, "batch:Pool", always)


def test_fixed_pool_needs_pool_metadata() -> None:
    fixed = changed(POOL, "scaleSettings", {"fixedScale": {"targetLowPriorityNodes": 2.0}})
    empty = changed(POOL, "scaleSettings", {"fixedScale": {"targetLowPriorityNodes": 0}})
    meant = {**fixed, "metadata": [{"name": "runner-scenario", "value": "fixed"}]}

    assert found(rules.pools_scale_to_zero, "batch:Pool", fixed)
    assert not found(rules.pools_scale_to_zero, "batch:Pool", empty)
    assert not found(rules.pools_scale_to_zero, "batch:Pool", meant)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("vmSize", "Standard_NC6s_v3", "retired"),
        ("vmSize", "Standard_NC4as_T5_v3", "NC4as_T5"),
        (f"{_MACHINE}.nodeAgentSkuId", "batch.node.ubuntu 20.04", "2025-04-23"),
        (
            f"{_MACHINE}.imageReference.id",
            "/subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/images/old",
            "managed images",
        ),
    ],
)
def test_retired_images_and_sizes_are_refused(path: str, value: str, said: str) -> None:
    texts = found(rules.nothing_retired(TODAY), "batch:Pool", changed(POOL, path, value))
    assert len(texts) == 1
    assert said in texts[0]


def test_node_agent_is_retired_from_its_day_on() -> None:
    pool = changed(POOL, f"{_MACHINE}.nodeAgentSkuId", "batch.node.ubuntu 22.04")
    assert not found(rules.nothing_retired(TODAY), "batch:Pool", pool)
    assert found(rules.nothing_retired(date(2027, 6, 30)), "batch:Pool", pool)


def test_a_retired_size_is_refused_for_image_builds_too() -> None:
    kind = "virtualmachineimages:VirtualMachineImageTemplate"
    template = changed(GOOD[kind], "vmProfile.vmSize", "Standard_NC6")
    assert found(rules.nothing_retired(TODAY), kind, template)


_OFFICE_POOL = {
    "id": "office",
    "vm_size": "Standard_NC4as_T4_v3",
    "scenario": "office_hours",
    "office_hours": {},
}


def _said(stack: Recording) -> list[str]:
    """Return the violations of all policies in a recorded stack."""
    messages: list[str] = []
    declared = [
        rules.DeclaredResource(r.type, as_pulumi_hands_over(r.inputs)) for r in stack.resources
    ]
    for resource, rule in product(declared, RESOURCE_RULES):
        rule(resource.resource_type, resource.props, messages.append)
    for whole in (rules.budget_present, rules.keys_only_for_the_share):
        whole(declared, messages.append)
    return messages


@pytest.mark.slow
@pytest.mark.parametrize("stack", [plain_stack, full_stack])
def test_policies_accept_the_declared_program(stack: Callable[[], Recording]) -> None:
    assert _said(stack()) == []


@pytest.mark.slow
def test_policies_accept_the_stack_of_the_project_and_office_hours() -> None:
    azure = {"ARM_LOCATION": "westeurope", "ARM_SUBSCRIPTION_ID": cloud.SUBSCRIPTION}
    dev = load_stack_config(Path("Pulumi.dev.yaml"), env=azure)
    assert _said(deploy(dev)) == []
    assert _said(deploy(config_of("office", pools=[_OFFICE_POOL]))) == []
    assert _said(deploy(config_of("free", budget=None))) == []
    assert _said(deploy(config_of("guest", adopt=ADOPTED, budget=None))) == []
