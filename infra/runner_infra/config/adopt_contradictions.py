"""Contradictions between adopted resources, private access and the other keys of a stack's file."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from runner_infra.config.address_ranges import space_problem, subnet_problems
from runner_infra.config.adopt import ResourceId
from runner_infra.config.stack import NetworkConfig, ObservabilityConfig, StackConfig

Problem = tuple[tuple[int | str, ...], str, str]  # place, what, fix
# Batch and Private Link require the network in the subscription of the account and the endpoint.
# https://learn.microsoft.com/azure/batch/batch-virtual-network (read 2026-11-29)
_SAME_SUBSCRIPTION = {
    "batch_account": "the account",
    "storage_account": "the account",
    "subnet": "the network of the nodes",
    "endpoint_subnet": "the network of the endpoints",
}
_RANGES = ("address_space", "pool_subnet", "endpoint_subnet")


def adopt_contradictions(config: StackConfig) -> Iterator[Problem]:
    """Yield what contradicts the keys of `adopt`."""
    adopted = config.adopted
    for key, what in _SAME_SUBSCRIPTION.items():
        text: str | None = getattr(adopted, key)
        if text is None:
            continue
        found = ResourceId.parse(text).subscription
        if found != config.subscription_id.lower():
            fix = f"use one in the subscription of the stack, {config.subscription_id}"
            yield ("adopt", key), f"{what} is in subscription {found}", fix
    if adopted.storage_account and config.storage.model_fields_set:
        what = "runner:storage configures a new storage account, but the stack adopts one"
        yield ("storage",), what, "remove runner:storage, or adopt.storage_account"
    if adopted.registry and config.registry:
        what = "runner:registry creates a container registry, but the stack adopts one"
        yield ("registry",), what, "remove runner:registry, or adopt.registry"
    if adopted.registry is None and not adopted.registry_roles:
        what = "registry_roles concerns an adopted registry, but the stack adopts none"
        yield ("adopt", "registry_roles"), what, "remove it, or set adopt.registry"
    if adopted.log_workspace:
        yield from _workspace(config.observability)
    private_only = {"endpoint_subnet": adopted.endpoint_subnet, "private_dns": adopted.private_dns}
    for key, text in private_only.items():
        if text and not config.is_private:
            what = f"{key} is for private endpoints, but the accounts are public"
            yield ("adopt", key), what, "set network.private: true, or remove the key"
    if adopted.endpoint_subnet and not adopted.subnet:
        what = "the stack creates the network of its nodes, with a subnet for endpoints"
        yield ("adopt", "endpoint_subnet"), what, "set adopt.subnet too, or remove endpoint_subnet"


def _workspace(observability: ObservabilityConfig | None) -> Iterator[Problem]:
    if observability is None:
        what = "the logs go nowhere, because runner:observability is null"
        yield ("adopt", "log_workspace"), what, "remove log_workspace, or observability: null"
    elif "retention_days" in observability.model_fields_set:
        what = "the owner of an adopted workspace decides how long it keeps logs"
        yield ("observability", "retention_days"), what, "remove retention_days"


def network_contradictions(config: StackConfig) -> Iterator[Problem]:
    """Yield invalid ranges of the stack's network, and what contradicts private access."""
    network = config.network
    if network is None:
        return
    given = network.model_fields_set
    if network.private and network.storage_from is not None:
        what = "with private: true, the storage account admits no public address"
        yield ("network", "storage_from"), what, "remove it"
    if config.adopted.subnet is not None:
        for key in (key for key in _RANGES if key in given):
            what = "the stack adopts a subnet and creates no network"
            yield ("network", key), what, "remove it, or adopt.subnet"
        return
    yield from _ranges(network)


def _ranges(network: NetworkConfig) -> Iterator[Problem]:
    space = network.address_space
    if wrong_space := space_problem(space):  # another one needs other subnets
        yield ("network", "address_space"), *wrong_space
        return
    subnets = {"pool_subnet": network.pool_subnet}
    if network.private:
        subnets["endpoint_subnet"] = network.endpoint_subnet
    valid: dict[str, ipaddress.IPv4Network] = {}
    for key, text in subnets.items():
        problems = list(
            subnet_problems(text, room="nodes" if key == "pool_subnet" else "endpoints")
        )
        for found in problems:
            yield ("network", key), *found
        if problems:
            continue
        valid[key] = ipaddress.IPv4Network(text)
        if not valid[key].subnet_of(ipaddress.IPv4Network(space)):
            what = f"{text} is not part of address_space {space}"
            yield ("network", key), what, "use a part of the address space"
    if len(valid) > 1 and valid["endpoint_subnet"].overlaps(valid["pool_subnet"]):
        what = f"{valid['endpoint_subnet']} overlaps pool_subnet {valid['pool_subnet']}"
        yield ("network", "endpoint_subnet"), what, "use another part of the address space"
