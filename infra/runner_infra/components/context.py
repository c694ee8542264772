"""The context of all components of a stack: names, location, tags, and role assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_azure_native import authorization

from runner_infra.config.naming import Names


@dataclass(frozen=True, slots=True)
class StackContext:
    """The resource group, location, names and tags of a component's resources.

    `marks` are further tags of the group and of the nodes' identity, which name the stack's state.
    """

    names: Names
    location: str
    tags: Mapping[str, str]
    resource_group_name: pulumi.Output[str]
    resource_group_id: pulumi.Output[str]
    marks: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def placed(self) -> dict[str, Any]:
        """The arguments of every resource in the group: group, location and tags."""
        return {
            "resource_group_name": self.resource_group_name,
            "location": self.location,
            "tags": dict(self.tags),
        }


def assign_role(
    name: str,
    context: StackContext,
    role: str,
    *,
    principal_id: pulumi.Input[str],
    principal_type: authorization.PrincipalType = authorization.PrincipalType.SERVICE_PRINCIPAL,
    scope: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    condition: str | None = None,
) -> authorization.RoleAssignment:
    """Return a resource that assigns a built-in role to a principal.

    The assignment is named by a GUID derived from the stack and `name`, so that a second deployment
    finds it instead of failing with RoleAssignmentExists.

    Args:
        name: the resource's name in Pulumi, unique in the stack.
        context: the stack.
        role: the GUID of the built-in role.
        principal_id: the object ID of the principal.
        principal_type: must match the principal, otherwise Azure rejects the assignment.
        scope: the ID of the resource that the role applies to.
        opts: `parent` and `depends_on` of the resource.
        condition: limits the role to a part of the scope.
    """
    # Azure returns the definition in the subscription of the scope, which may be that of a hub.
    there = scope.split("/")[2] if isinstance(scope, str) else context.names.subscription_id
    definition = f"/subscriptions/{there}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    return authorization.RoleAssignment(
        name,
        principal_id=principal_id,
        principal_type=principal_type,
        role_definition_id=definition,
        scope=scope,
        role_assignment_name=context.names.role_assignment(name),
        condition=condition,
        condition_version="2.0" if condition else None,
        # Azure allows one assignment for the same role, scope and principal.
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True)),
    )
