"""The identities of a workflow: who may use them, and what they may do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from runner.protocol.azure.clouds import CHINA, PUBLIC, Cloud
from runner.protocol.errors import RunnerError
from runner_infra.components.ci_identities import ASSIGNED_ROLES
from tests.unit.infra import cloud
from tests.unit.infra.recording import Recording
from tests.unit.infra.stacks import ADOPTED, EVERYTHING, LANDING, config_of, deploy

CI = {"github": "contoso/training", "environment": "azure-dev"}
_STATE = f"/subscriptions/{cloud.SUBSCRIPTION}/resourceGroups/state/providers"
_SHARED = {
    "state_account": f"{_STATE}/Microsoft.Storage/storageAccounts/contosostate",
    "key_vault": f"{_STATE}/Microsoft.KeyVault/vaults/contoso-state",
}
_READER, _CONTRIBUTOR = (
    "acdd72a7-3385-48ef-bd42-f606fba81ae7",
    "b24988ac-6180-42a0-ab88-20f7382dd24c",
)
# Reader, Contributor and Role Based Access Control Administrator.
_READING = (_READER, _CONTRIBUTOR, "f58310d9-a9f6-439a-9e8d-f62e7b41a168")


def roles_of(found: Recording) -> dict[str, tuple[str, str]]:
    """Return role and scope of each assignment of the workflow, by its name in Pulumi."""
    return {
        each.name: (each.inputs["roleDefinitionId"].rpartition("/")[2], each.inputs["scope"])
        for each in found.of("authorization:RoleAssignment")
        if each.name.startswith("ci-")
    }


@pytest.mark.parametrize(
    ("where", "sovereign"),
    [("westeurope", PUBLIC), ("chinanorth3", CHINA)],
    ids=["public", "china"],
)
def test_pull_requests_plan_and_the_environment_deploys(where: str, sovereign: Cloud) -> None:
    found = deploy(config_of(location=where, cloud=sovereign.name, ci=CI))
    credentials = found.of("managedidentity:FederatedIdentityCredential")
    subjects = {
        (each.inputs["resourceName"], each.inputs["subject"], *each.inputs["audiences"])
        for each in credentials
    }
    audience = sovereign.exchange_audience
    assert subjects == {
        ("id-ci-plan-runner-dev", "repo:contoso/training:pull_request", audience),
        ("id-ci-plan-runner-dev", "repo:contoso/training:ref:refs/heads/main", audience),
        ("id-ci-deploy-runner-dev", "repo:contoso/training:environment:azure-dev", audience),
    }
    issuers = {each.inputs["issuer"] for each in credentials}
    assert issuers == {"https://token.actions.githubusercontent.com"}
    (second,) = [each for each in credentials if each.name == "ci-plan-branch"]
    assert any("ci-plan-pull-request" in urn for urn in second.dependencies), "one after the other"


def test_only_the_environment_may_change_azure() -> None:
    roles = roles_of(deploy(config_of(ci={**CI, **_SHARED})))
    assert roles["ci-plan-reads-group"][0] == _READER
    assert roles["ci-deploys-group"][0] == _CONTRIBUTOR
    assert roles["ci-plan-reads-group"][1].endswith("/resourceGroups/rg-runner-dev")
    assert {scope for _, scope in roles.values()} == {
        roles["ci-plan-reads-group"][1],
        *_SHARED.values(),
    }
    assert not deploy(config_of()).of("managedidentity:FederatedIdentityCredential")


@pytest.mark.parametrize("adopt", [None, ADOPTED, LANDING], ids=["own", "accounts", "landing"])
def test_workflow_may_read_every_resource_on_which_the_stack_assigns_roles(
    adopt: dict[str, str] | None,
) -> None:
    values: dict[str, Any] = {"network": {"private": True}} if adopt is LANDING else {}
    found = deploy(config_of(adopt=adopt, ci={**CI, **_SHARED}, **values))
    assigned = found.of("authorization:RoleAssignment")
    principals: dict[str, set[str]] = {}
    for each in assigned:
        if each.inputs["roleDefinitionId"].rpartition("/")[2] in _READING:
            principals.setdefault(each.inputs["principalId"], set()).add(each.inputs["scope"])
    plan, deployment = (
        next(each.inputs["principalId"] for each in assigned if each.name == name)
        for name in ("ci-plan-reads-group", "ci-deploys-group")
    )
    for each in assigned:
        for principal in (plan, deployment):
            scopes = [f"{scope}/".lower() for scope in principals[principal]]
            assert f"{each.inputs['scope']}/".lower().startswith(tuple(scopes)), each.name


def test_workflow_lets_nodes_pull_from_an_adopted_registry_and_nothing_else() -> None:
    found = deploy(config_of(adopt=LANDING, network={"private": True}, ci=CI))
    (limited,) = [
        each
        for each in found.of("authorization:RoleAssignment")
        if each.name == "ci-assigns-roles-registry"
    ]
    pull = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
    assert re.findall(r"GuidEquals \{([^}]*)\}", limited.inputs["condition"]) == [pull] * 2
    without = {**LANDING, "registry_roles": False}
    network = {"private": True}
    assert not [
        name
        for name in roles_of(deploy(config_of(adopt=without, network=network, ci=CI)))
        if "registry" in name
    ]


def test_workflow_needs_the_ranges_of_the_people_who_use_the_storage() -> None:
    with pytest.raises(RunnerError, match="storage_from"):
        config_of(ci=CI, network={})
    config_of(ci=CI, network={"storage_from": ["203.0.113.0/24"]})


def test_workflow_assigns_the_roles_of_all_components_and_no_others() -> None:
    values: dict[str, Any] = {**EVERYTHING, "storage": {"keep_runs_days": 90}, "ci": CI}
    del values["pools"]
    with_share = {key: value for key, value in EVERYTHING.items() if key != "pools"}
    assigned: set[str] = set()
    for found in (
        deploy(config_of(**values)),
        deploy(config_of(**with_share)),
        deploy(config_of(adopt=ADOPTED)),
    ):
        assigned |= {
            each.inputs["roleDefinitionId"].rpartition("/")[2]
            for each in found.of("authorization:RoleAssignment")
            if not each.name.startswith("ci-")
        }
    assert assigned == ASSIGNED_ROLES
    found = deploy(config_of(ci=CI))
    (limited,) = [
        each
        for each in found.of("authorization:RoleAssignment")
        if each.name == "ci-assigns-roles-group"
    ]
    condition = limited.inputs["condition"]
    named = re.findall(r"GuidEquals \{([^}]*)\}", condition)
    assert [set(text.split(", ")) for text in named] == [ASSIGNED_ROLES] * 2
    assert _CONTRIBUTOR not in condition


def test_adopted_accounts_are_in_the_scope_of_the_workflow() -> None:
    roles = roles_of(deploy(config_of(adopt=ADOPTED, ci=CI)))
    assert roles["ci-deploys-teambatch"] == (_CONTRIBUTOR, ADOPTED["batch_account"])
    assert roles["ci-plan-reads-teamdata"] == (_READER, ADOPTED["storage_account"])
