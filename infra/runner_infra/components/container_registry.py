"""The container registry of the stack. Pools pull from it; operators push images to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_azure_native import containerregistry

from runner.core.azure.clouds import cloud_of_region
from runner_infra.components.context import StackContext, assign_role
from runner_infra.components.identity import Operator
from runner_infra.config.adopt import ResourceId

# https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/containers
# (read 2026-11-21)
_ACR_PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
_ACR_PUSH = "8311e382-0749-4cb8-b61a-304f252e45ec"


class ContainerRegistry(pulumi.ComponentResource):
    """An Azure Container Registry without an admin user and without anonymous pull.

    The Basic SKU includes 10 GiB; more storage is charged per day:
    https://learn.microsoft.com/azure/container-registry/container-registry-skus (read 2026-11-21)
    Pools that pull from the registry must depend on `ready`.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        *,
        pullers: Mapping[str, pulumi.Input[str]],
        pushers: Sequence[Operator],
    ) -> None:
        """Declare the registry.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            pullers: the principal IDs of the nodes' identities, which may pull, by the end of the
                role assignment's name.
            pushers: the operators, who may push.
        """
        super().__init__("runner:infra:Registry", name)
        child = pulumi.ResourceOptions(parent=self)
        self.registry = containerregistry.Registry(
            "registry",
            registry_name=context.names.registry,
            **context.placed,
            sku=containerregistry.SkuArgs(name=containerregistry.SkuName.BASIC),
            admin_user_enabled=False,
            anonymous_pull_enabled=False,
            opts=child,
        )
        self.login_server = self.registry.login_server
        # Nodes become unusable if their pool prefetches images before this role is assigned.
        self.ready: list[pulumi.Resource] = [
            assign_role(
                f"nodes-pull-images{suffix}",
                context,
                _ACR_PULL,
                principal_id=puller,
                scope=self.registry.id,
                opts=child,
            )
            for suffix, puller in pullers.items()
        ]
        for operator in pushers:
            assign_role(
                f"{operator.name}-push-images",
                context,
                _ACR_PUSH,
                principal_id=operator.principal_id,
                principal_type=operator.kind,
                scope=self.registry.id,
                opts=child,
            )
        self.register_outputs({"login_server": self.login_server})


class AdoptedRegistry(pulumi.ComponentResource):
    """A registry that exists, from which nodes may pull. Its owner decides who pushes.

    Pools that pull from it must depend on `ready`, which is empty if the stack assigns no roles.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        registry_id: str,
        *,
        pullers: Mapping[str, pulumi.Input[str]],
        assign: bool,
    ) -> None:
        """Read the registry, and assign a role on it.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            registry_id: the ID of the registry, which may be in another subscription.
            pullers: as those of ContainerRegistry.
            assign: False if the owner of the registry assigns the role.
        """
        super().__init__("runner:infra:AdoptedRegistry", name)
        found = ResourceId.parse(registry_id)
        if found.subscription == context.names.subscription_id.lower():
            self.login_server: pulumi.Output[str] = containerregistry.get_registry_output(
                registry_name=found.names[0],
                resource_group_name=found.group,
                opts=pulumi.InvokeOutputOptions(parent=self),
            ).login_server
        else:  # the provider reads only its own subscription
            host = f"{found.names[0].lower()}.{registry_domain(context.location)}"
            self.login_server = pulumi.Output.from_input(host)
        self.ready: list[pulumi.Resource] = [
            assign_role(
                f"nodes-pull-images{suffix}",
                context,
                _ACR_PULL,
                principal_id=puller,
                scope=registry_id,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for suffix, puller in (pullers.items() if assign else ())
        ]
        self.register_outputs({"login_server": self.login_server})


def registry_domain(location: str) -> str:
    """Return the domain of registries in the cloud of a region."""
    return cloud_of_region(location).registry_domain
