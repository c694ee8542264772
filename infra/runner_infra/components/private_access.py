"""Private endpoints of the accounts, and the private DNS zones in which their names are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_azure_native import network, privatedns

from runner_infra.components.context import StackContext
from runner_infra.config.stack import StackConfig
from runner_infra.planning.private_access import PrivateLink, Target, plan_endpoints, plan_zones


class PrivateAccess(pulumi.ComponentResource):
    """Private endpoints, with DNS records in zones of the stack, or in adopted ones.

    A zone resolves the names for networks that are linked to it. The stack links its own zones to
    the network of the nodes; the owner of adopted zones links them. Pools depend on `ready`:
    without the endpoints, their nodes reach neither the Batch service nor storage.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: StackConfig,
        *,
        subnet_id: pulumi.Input[str],
        network_id: pulumi.Input[str],
        accounts: Mapping[Target, pulumi.Input[str]],
    ) -> None:
        """Declare the endpoints.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            config: the stack's configuration.
            subnet_id: the subnet of the endpoints.
            network_id: the network of the nodes, to which zones of the stack are linked.
            accounts: the IDs of the accounts.
        """
        super().__init__("runner:infra:PrivateAccess", name)
        self._context = context
        self._child = pulumi.ResourceOptions(parent=self)
        self._subnet_id = subnet_id
        self.ready: list[pulumi.Resource] = []
        zones = self._zones(plan_zones(config), network_id)
        for endpoint in plan_endpoints(config):
            made = self._endpoint(endpoint, accounts[endpoint.target])
            self.ready.append(made)
            zone = self._zone_id(endpoint.zone, config, zones)
            if zone is not None:
                self.ready.append(self._records(endpoint, made, zone))
        self.register_outputs({})

    def _zones(
        self, names: Sequence[str], network_id: pulumi.Input[str]
    ) -> Mapping[str, privatedns.PrivateZone]:
        found: dict[str, privatedns.PrivateZone] = {}
        for name in names:
            key = name.split(".")[1]
            found[name] = privatedns.PrivateZone(
                f"zone-{key}",
                private_zone_name=name,
                resource_group_name=self._context.resource_group_name,
                location="Global",
                tags=dict(self._context.tags),
                opts=self._child,
            )
            self.ready.append(
                privatedns.VirtualNetworkLink(
                    f"zone-{key}-link",
                    virtual_network_link_name=self._context.names.of("link"),
                    private_zone_name=found[name].name,
                    resource_group_name=self._context.resource_group_name,
                    location="Global",
                    registration_enabled=False,
                    virtual_network=privatedns.SubResourceArgs(id=network_id),
                    tags=dict(self._context.tags),
                    opts=self._child,
                )
            )
        return found

    def _zone_id(
        self, zone: str, config: StackConfig, own: Mapping[str, privatedns.PrivateZone]
    ) -> pulumi.Input[str] | None:
        if config.adopted.private_dns is None:
            return own[zone].id
        if config.adopted.zones_by_policy:
            return None
        group = config.adopted.private_dns
        return f"{group}/providers/Microsoft.Network/privateDnsZones/{zone}"

    def _endpoint(
        self, endpoint: PrivateLink, account_id: pulumi.Input[str]
    ) -> network.PrivateEndpoint:
        name = self._context.names.of(f"pe-{endpoint.name}")
        return network.PrivateEndpoint(
            f"endpoint-{endpoint.name}",
            private_endpoint_name=name,
            **self._context.placed,
            subnet=network.SubnetArgs(id=self._subnet_id),
            private_link_service_connections=[
                network.PrivateLinkServiceConnectionArgs(
                    name=name,
                    private_link_service_id=account_id,
                    group_ids=[endpoint.sub_resource],
                )
            ],
            opts=self._child,
        )

    def _records(
        self, endpoint: PrivateLink, made: network.PrivateEndpoint, zone_id: pulumi.Input[str]
    ) -> network.PrivateDnsZoneGroup:
        return network.PrivateDnsZoneGroup(
            f"endpoint-{endpoint.name}-records",
            private_dns_zone_group_name="default",
            private_endpoint_name=made.name,
            resource_group_name=self._context.resource_group_name,
            private_dns_zone_configs=[
                network.PrivateDnsZoneConfigArgs(
                    name=endpoint.zone.replace(".", "-"), private_dns_zone_id=zone_id
                )
            ],
            opts=self._child,
        )
