"""What every component of a stack needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import authorization

from infra.naming import Names


@dataclass(frozen=True, slots=True)
class StackContext:
    """Where a component's resources go, how they are called and what tags they carry."""

    names: Names
    location: str
    tags: Mapping[str, str]
    resource_group_name: pulumi.Output[str]
    resource_group_id: pulumi.Output[str]


def assign_role(
    name: str,
    context: StackContext,
    role: str,
    *,
    principal_id: pulumi.Input[str],
    principal_type: authorization.PrincipalType,
    scope: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> authorization.RoleAssignment:
    """Give a principal one built-in role; `role` is its GUID. `name` must be unique in the stack.

    The assignment's own name is a GUID made of the stack and `name`, so that a second deployment
    finds the first one's instead of failing with RoleAssignmentExists.
    """
    definition = (
        f"/subscriptions/{context.names.subscription_id}/providers/"
        f"Microsoft.Authorization/roleDefinitions/{role}"
    )
    return authorization.RoleAssignment(
        name,
        principal_id=principal_id,
        principal_type=principal_type,
        role_definition_id=definition,
        scope=scope,
        role_assignment_name=context.names.role_assignment(name),
        # Two assignments of one role, scope and principal cannot be there at once.
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True)),
    )
