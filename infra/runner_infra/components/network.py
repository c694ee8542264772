"""A virtual network for the pools, with a NAT gateway for outbound traffic."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import network

from runner_infra.components.context import StackContext
from runner_infra.config.stack import NetworkConfig


class PoolNetwork(pulumi.ComponentResource):
    """A private subnet: nodes have no public address and use a NAT gateway for outbound traffic.

    `default_outbound_access` is set explicitly, because its default changes to false with API
    versions after 2026-03-31 (github.com/MicrosoftDocs/azure-docs issues 127645 and 127723, read
    2026-11-20).
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: NetworkConfig,
    ) -> None:
        super().__init__("runner:infra:PoolNetwork", name)
        self._context = context
        self._child = pulumi.ResourceOptions(parent=self)
        gateway = self._gateway()
        group = network.NetworkSecurityGroup(
            "nsg",
            network_security_group_name=context.names.of("nsg"),
            **context.placed,
            opts=self._child,
        )
        vnet = network.VirtualNetwork(
            "vnet",
            virtual_network_name=context.names.of("vnet"),
            **context.placed,
            address_space=network.AddressSpaceArgs(address_prefixes=[config.address_space]),
            # The subnet is a separate resource, which an update of the network would remove.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["subnets"]),
        )
        self.subnet = network.Subnet(
            "subnet",
            subnet_name="pools",
            virtual_network_name=vnet.name,
            resource_group_name=context.resource_group_name,
            address_prefix=config.pool_subnet,
            default_outbound_access=False,
            nat_gateway=network.SubResourceArgs(id=gateway.id),
            network_security_group=network.NetworkSecurityGroupArgs(id=group.id),
            # Blob traffic bypasses the gateway, which charges per byte.
            service_endpoints=[
                network.ServiceEndpointPropertiesFormatArgs(service="Microsoft.Storage")
            ],
            opts=self._child,
        )
        self.network_id: pulumi.Output[str] = vnet.id
        self.endpoint_subnet = self._endpoints(config, vnet, group) if config.private else None
        self.register_outputs({"subnet": self.subnet.id})

    def _endpoints(
        self,
        config: NetworkConfig,
        vnet: network.VirtualNetwork,
        group: network.NetworkSecurityGroup,
    ) -> network.Subnet:
        """Declare the subnet of the private endpoints."""
        # A network changes one subnet at a time (AnotherOperationInProgress).
        after = pulumi.ResourceOptions(parent=self, depends_on=[self.subnet])
        return network.Subnet(
            "subnet-endpoints",
            subnet_name="endpoints",
            virtual_network_name=vnet.name,
            resource_group_name=self._context.resource_group_name,
            address_prefix=config.endpoint_subnet,
            default_outbound_access=False,
            network_security_group=network.NetworkSecurityGroupArgs(id=group.id),
            opts=after,
        )

    def _gateway(self) -> network.NatGateway:
        context = self._context
        address = network.PublicIPAddress(
            "nat-ip",
            public_ip_address_name=context.names.of("pip-nat"),
            **context.placed,
            public_ip_allocation_method=network.IPAllocationMethod.STATIC,
            sku=network.PublicIPAddressSkuArgs(name=network.PublicIPAddressSkuName.STANDARD),
            opts=self._child,
        )
        return network.NatGateway(
            "nat",
            nat_gateway_name=context.names.of("nat"),
            **context.placed,
            sku=network.NatGatewaySkuArgs(name=network.NatGatewaySkuName.STANDARD),
            public_ip_addresses=[network.SubResourceArgs(id=address.id)],
            opts=self._child,
        )
