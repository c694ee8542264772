"""The nodes of a run: their addresses, the cluster spec for the script, and the heartbeat
settings.

No `RANK`, `LOCAL_RANK` or `WORLD_SIZE` for the script: they count processes, which launchers
such as torchrun start and number, and a node is not a process.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.node.agent.settings import SettingsError

# The emulator's nodes are all this machine: an address says nothing about which of them asks.
NODE_IP_VARIABLE = "BATCH_EMULATOR_NODE_IP"


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
    own = primary if is_primary else _own_address(environment, addresses)
    return Hosts(addresses, own, is_primary)


def _own_address(environment: Mapping[str, str], addresses: tuple[str, ...]) -> str | None:
    """Batch does not say whose an address is: it is that from which the primary is reached."""
    told = environment.get(NODE_IP_VARIABLE)
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


# Of a run on one node; a command that names them works on one as on several.
SINGLE_NODE = {"RUNNER_NODES": "1", "RUNNER_NODE_RANK": "0"}


@dataclass(frozen=True)
class ClusterSpec:
    """All nodes of an attempt. `ports` are free ones, by rank; the other two are of rank 0."""

    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    master_port: int
    jax_port: int

    def to_json(self) -> dict[str, Any]:
        """As the primary tells it to the others."""
        return {
            "addresses": list(self.addresses),
            "ports": list(self.ports),
            "master_port": self.master_port,
            "jax_port": self.jax_port,
        }


def parse_cluster_spec(raw: Mapping[str, Any]) -> ClusterSpec:
    """What `to_json` wrote."""
    addresses: Sequence[Any] = raw["addresses"]
    ports: Sequence[Any] = raw["ports"]
    return ClusterSpec(
        tuple(str(one) for one in addresses),
        tuple(int(one) for one in ports),
        int(raw["master_port"]),
        int(raw["jax_port"]),
    )


def node_environment(cluster_spec: ClusterSpec, rank: int) -> dict[str, str]:
    """The variables of one node (docs/guides/several-nodes.md)."""
    nodes, first = len(cluster_spec.addresses), cluster_spec.addresses[0]
    workers = [
        f"{_host(a)}:{p}" for a, p in zip(cluster_spec.addresses, cluster_spec.ports, strict=True)
    ]
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return {
        "RUNNER_NODES": str(nodes),
        "RUNNER_NODE_RANK": str(rank),
        "RUNNER_NODE_IPS": ",".join(cluster_spec.addresses),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(cluster_spec.master_port),
        "NODE_RANK": str(rank),  # PyTorch Lightning, Azure ML
        # torchrun's own, for its options of the same names (torch.distributed.run).
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(cluster_spec.master_port),
        "TF_CONFIG": json.dumps(cluster),
        "JAX_COORDINATOR_ADDRESS": f"{_host(first)}:{cluster_spec.jax_port}",
        "JAX_NUM_PROCESSES": str(nodes),
        "JAX_PROCESS_ID": str(rank),
    }


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True)
class HeartbeatConfig:
    """Who says nothing for `silence_s` is lost."""

    silence_s: float = 90.0

    @property
    def every_s(self) -> float:
        """How often each end says that it is there."""
        return self.silence_s / HEARTBEATS


def load_heartbeat_config(environment: Mapping[str, str]) -> HeartbeatConfig:
    """What the task says, else the usual one. Raises SettingsError."""
    told = environment.get(SILENCE_VARIABLE)
    if told is None:
        return HeartbeatConfig()
    try:
        silence_s = float(told)
    except ValueError:
        silence_s = 0.0
    if not 0 < silence_s < threading.TIMEOUT_MAX:
        raise SettingsError(f"{SILENCE_VARIABLE} is {told!r}, which is no number of seconds")
    return HeartbeatConfig(silence_s)


SILENCE_VARIABLE = (
    "RUNNER_NODES_SILENCE"  # seconds; of the task's environment, for tests and trouble
)


HEARTBEATS = 6  # in the longest silence: one that is late or lost means nothing
