"""The registry as the engine sees it: access needs an identity."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi_azure_native import authorization

from runner_infra.components.identity import Operator
from tests.unit.infra import cloud
from tests.unit.infra.recording import Recording, record

PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
PUSH = "8311e382-0749-4cb8-b61a-304f252e45ec"
POOLS = "0000aaaa-0000-0000-0000-000000000001"
OPERATORS = (
    Operator("0000bbbb-0000-0000-0000-000000000001", authorization.PrincipalType.USER),
    Operator("0000bbbb-0000-0000-0000-000000000002", authorization.PrincipalType.GROUP),
)


def declare(operators: tuple[Operator, ...]) -> dict[str, Any]:
    import pulumi

    from runner_infra.components.container_registry import ContainerRegistry
    from runner_infra.components.context import StackContext
    from runner_infra.config.naming import Names

    context = StackContext(
        names=Names("dev", cloud.SUBSCRIPTION),
        location="westeurope",
        tags={"app": "runner", "stack": "dev"},
        resource_group_name=pulumi.Output.from_input("rg-runner-dev"),
        resource_group_id=pulumi.Output.from_input("/subscriptions/x/resourceGroups/rg-runner-dev"),
    )
    registry = ContainerRegistry("registry", context, pullers={"": POOLS}, pushers=operators)
    return {"server": registry.login_server}


@pytest.fixture(scope="module")
def found() -> Recording:
    return record(lambda: declare(OPERATORS))


def test_registry_is_basic_and_needs_an_identity(found: Recording) -> None:
    registry = found.one("containerregistry:Registry")
    assert registry.inputs["sku"] == {"name": "Basic"}
    assert registry.inputs["adminUserEnabled"] is False
    assert registry.inputs["anonymousPullEnabled"] is False
    assert registry.inputs["location"] == "westeurope"
    assert registry.inputs["resourceGroupName"] == "rg-runner-dev"
    assert registry.inputs["tags"] == {"app": "runner", "stack": "dev"}


def test_registry_name_is_valid_in_azure(found: Recording) -> None:
    name = found.one("containerregistry:Registry").inputs["registryName"]
    assert name.isalnum()
    assert 5 <= len(name) <= 50
    assert found.exports == {"server": f"{name}.azurecr.io"}


def test_pools_can_pull_and_operators_push_in_this_registry_only(found: Recording) -> None:
    given = {
        (role.inputs["principalId"], role.inputs["roleDefinitionId"].rsplit("/", 1)[1])
        for role in found.of("authorization:RoleAssignment")
    }
    assert given == {(POOLS, PULL), *((operator.principal_id, PUSH) for operator in OPERATORS)}
    registry = found.one("containerregistry:Registry")
    scope = cloud.arm_id(registry.type, registry.inputs)
    assert {r.inputs["scope"] for r in found.of("authorization:RoleAssignment")} == {scope}


def test_identity_of_pools_is_declared_as_a_service_principal(found: Recording) -> None:
    """Otherwise an assignment right after creating the identity fails (PrincipalNotFound)."""
    kinds = {
        role.inputs["principalId"]: role.inputs.get("principalType")
        for role in found.of("authorization:RoleAssignment")
    }
    assert kinds[POOLS] == "ServicePrincipal"
    assert [kinds[operator.principal_id] for operator in OPERATORS] == ["User", "Group"]


def test_all_resources_belong_to_the_component(found: Recording) -> None:
    (component,) = found.components
    assert component.type == "runner:infra:Registry"
    assert len(found.resources) == 4
    assert {resource.parent for resource in found.resources} == {component.urn}


def test_role_assignment_names_are_stable(found: Recording) -> None:
    def names(run: Recording) -> set[str]:
        return {r.inputs["roleAssignmentName"] for r in run.of("authorization:RoleAssignment")}

    assert len(names(found)) == 3
    assert names(record(lambda: declare(OPERATORS))) == names(found)


def test_stack_without_operators_has_no_push_role() -> None:
    found = record(lambda: declare(()))
    assert len(found.of("authorization:RoleAssignment")) == 1
