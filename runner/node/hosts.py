"""The nodes of a multi-instance task, as Batch tells each of them (environment variables page)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

ROLE = "join"  # the agent's argument in a coordination command
TOKEN_VARIABLE = "RUNNER_NODES_TOKEN"  # noqa: S105 - a secret's name: only who has it may take part
# The emulator's nodes are all this machine: an address says nothing about which of them asks.
OWN_VARIABLE = "BATCH_EMULATOR_NODE_IP"


@dataclass(frozen=True)
class Hosts:
    """Addresses by rank, the primary's first; `own` is None where this node cannot tell."""

    addresses: tuple[str, ...]
    own: str | None
    is_primary: bool

    @property
    def primary(self) -> str:
        """Where rank 0 is."""
        return self.addresses[0]


def load_hosts(environment: Mapping[str, str]) -> Hosts | None:
    """Who takes part; None for a task on one node."""
    listed = [one for one in environment.get("AZ_BATCH_HOST_LIST", "").split(",") if one]
    primary = environment.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
    if len(listed) < 2 or primary not in listed:
        return None
    addresses = (primary, *(address for address in listed if address != primary))
    is_primary = environment.get("AZ_BATCH_IS_CURRENT_NODE_MASTER", "").lower() == "true"
    own = primary if is_primary else _own(environment, addresses)
    return Hosts(addresses, own, is_primary)


def _own(environment: Mapping[str, str], addresses: tuple[str, ...]) -> str | None:
    """Batch does not say whose an address is: it is that from which the primary is reached."""
    told = environment.get(OWN_VARIABLE)
    if told in addresses:
        return told
    with suppress(OSError), socket.socket(_family(addresses[0]), socket.SOCK_DGRAM) as probe:
        probe.connect((addresses[0], 9))  # sends nothing
        found = str(probe.getsockname()[0])
        return found if found in addresses else None
    return None


def listen(address: str, port: int) -> socket.socket:
    """A listening socket at the address, or at any where a container does not have it."""
    try:
        return socket.create_server((address, port), family=_family(address), backlog=128)
    except OSError as err:
        if err.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), backlog=128)


def free_port(address: str | None) -> int:
    """A port that nobody listens on now."""
    with listen(address or "", 0) as probe:
        return int(probe.getsockname()[1])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
