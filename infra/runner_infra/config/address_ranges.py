"""Address ranges that subnets of nodes cannot have, with the reasons."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Network

# Azure reserves five addresses of a subnet, and a node needs one. The smallest subnet is /29.
# https://learn.microsoft.com/azure/virtual-network/virtual-networks-faq (read 2026-11-21)
RESERVED_ADDRESSES = 5
SMALLEST_PREFIX = 29
# Ranges that no virtual network can have (the same page).
_OF_AZURE = {
    IPv4Network("168.63.129.16/32"): "Azure's own address for DNS, DHCP and health probes",
    IPv4Network("169.254.0.0/16"): "link-local, with the metadata service of the nodes",
    IPv4Network("127.0.0.0/8"): "the loopback addresses",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv4Network("255.255.255.255/32"): "broadcast",
}
# https://docs.docker.com/engine/network/drivers/bridge (read 2026-11-29). The images of the pools
# contain Docker, which starts with the node.
_OF_DOCKER = IPv4Network("172.17.0.0/16")
Problem = tuple[str, str]  # what, fix


def range_problem(text: str) -> Problem | None:
    """Return what is wrong with the address range of a network, and the fix, or None."""
    try:
        network = IPv4Network(text)
    except ValueError as err:
        return f"{err}", "use a range such as 10.20.0.0/16"
    for reserved, why in _OF_AZURE.items():
        if network.overlaps(reserved):
            return (
                f"{network} overlaps {reserved}, which is reserved: {why}",
                "use a private range such as 10.20.0.0/16",
            )
    return None


def space_problem(text: str) -> Problem | None:
    """Return what is wrong with a range that has the subnets of nodes, and the fix, or None."""
    if found := range_problem(text):
        return found
    # Any subnet of these has the same problem.
    if IPv4Network(text).subnet_of(_OF_DOCKER) or IPv4Network(text).prefixlen > SMALLEST_PREFIX:
        return next(subnet_problems(text))
    return None


def subnet_problems(text: str, *, room: str = "nodes") -> Iterator[Problem]:
    """Yield what is wrong with a subnet, and the fixes.

    Args:
        text: the range of the subnet.
        room: what needs the addresses.
    """
    if found := range_problem(text):
        yield found
        return
    network = IPv4Network(text)
    if network.overlaps(_OF_DOCKER):
        why = "they would send packets for it to their own containers"
        what = f"{network} overlaps {_OF_DOCKER}, the bridge network of Docker on the nodes: {why}"
        yield what, "use another range, such as 10.20.0.0/20"
    if network.prefixlen > SMALLEST_PREFIX or network.num_addresses <= RESERVED_ADDRESSES:
        yield f"{network} has no addresses for {room}", "use /29 or larger"


def free_addresses(text: str) -> int:
    """Return the addresses of a subnet that Azure does not reserve."""
    return max(0, ipaddress.IPv4Network(text).num_addresses - RESERVED_ADDRESSES)
