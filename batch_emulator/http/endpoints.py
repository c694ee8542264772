"""Endpoints for connections to nodes: ports of this host, on which nothing listens."""

from __future__ import annotations

from batch_emulator.domain.model import Json, Node, Pool, part, parts

_REMOTE_PORT = 50000  # of the first node, as in the docs' example; nothing listens there [S]
_LOCALHOST = ("127.0.0.1", "::1")


def inbound_endpoints(entity: Node) -> list[Json]:
    """Return the endpoints of the pool's NAT pools: on this host, where nothing listens [S].

    A pool of an api-version before 2024-07-01 has one for SSH too, unless a NAT pool is for it
    (page "Configure remote access to compute nodes", read 2026-11-22: from that version on, and
    for every pool created since 30 November 2025, no port is mapped by default. Here the version
    alone decides [S]).
    """
    found: list[Json] = []
    if not has_public_address(entity.pool):
        return found
    for pool in _nat_pools(entity):
        port = pool["frontendPortRangeStart"] + entity.number - 1
        found += _host_endpoints(entity, pool, port)
    if entity.pool.remote_access and _ssh_port(entity) is None:
        rule: Json = {"name": "SSHRule", "protocol": "tcp", "backendPort": _SSH}
        found += _host_endpoints(entity, rule, _REMOTE_PORT + entity.number - 1)
    return found


_SSH, _RDP = 22, 3389


def _nat_pools(entity: Node) -> list[Json]:
    network = part(entity.pool.spec, "networkConfiguration")
    return parts(part(network, "endpointConfiguration"), "inboundNATPools")


def _host_endpoints(entity: Node, pool: Json, port: int) -> list[Json]:
    """Return the endpoint of a node, and that for IPv6 in a dual-stack pool (recorded)."""
    shown: Json = {"protocol": pool["protocol"], "backendPort": pool["backendPort"]}
    shown |= {"publicFQDN": "localhost", "frontendPort": port}
    number, (four, six) = entity.number - 1, _LOCALHOST
    found = [{"name": f"{pool['name']}.{number}", "publicIPAddress": four, **shown}]
    if is_dual_stack(entity.pool):
        found.append({"name": f"{pool['name']}-ipv6.{number}", "publicIPAddress": six, **shown})
    return found


def has_public_address(pool: Pool) -> bool:
    """Return False if the pool has no public addresses, so only its network reaches its nodes."""
    network = part(pool.spec, "networkConfiguration")
    provision = str(part(network, "publicIPAddressConfiguration").get("provision") or "")
    return provision.lower() != "nopublicipaddresses"


def is_dual_stack(pool: Pool) -> bool:
    """Return True if the nodes of the pool have an IPv6 address too."""
    network = part(pool.spec, "networkConfiguration")
    families = part(network, "publicIPAddressConfiguration").get("ipFamilies") or ()
    return "ipv6" in (str(family).lower() for family in families)


def _ssh_port(entity: Node) -> int | None:
    """Return the port of this host that leads to the node's SSH (or RDP) server, or None."""
    for pool in _nat_pools(entity):
        if pool["backendPort"] in (_SSH, _RDP) and str(pool["protocol"]).lower() == "tcp":
            return pool["frontendPortRangeStart"] + entity.number - 1
    return None


def remote_login(entity: Node) -> Json | None:
    """Return the address and port of a node, or None if it has no endpoint for SSH or RDP."""
    port = _ssh_port(entity)
    if port is None and entity.pool.remote_access:
        port = _REMOTE_PORT + entity.number - 1
    if port is None or not has_public_address(entity.pool):
        return None
    four, six = _LOCALHOST
    body: Json = {"remoteLoginIPAddress": four, "remoteLoginPort": port}
    if is_dual_stack(entity.pool):
        body |= {"ipv6RemoteLoginIPAddress": six, "ipv6RemoteLoginPort": port}
    return body


def ipv6_address(address: str) -> str:
    """Return the address of a node in the network of its dual-stack pool: fd00::4 (recorded)."""
    high, low = address.split(".")[-2:]
    return f"fd00::{int(high) * 256 + int(low):x}"
