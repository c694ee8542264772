"""The nodes of a run: addresses, the cluster spec for the script, and the heartbeat settings.

The script gets no `RANK`, `LOCAL_RANK` or `WORLD_SIZE`: they count processes, which launchers such
as torchrun start and number, and a node is not a process.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from runner.node.settings import SettingsError
from runner.protocol.codec import JsonDocument

# The emulator's nodes share one machine, so the route to the primary does not identify a node.
NODE_IP_VARIABLE = "BATCH_EMULATOR_NODE_IP"
# Seconds. Tests and users with slow networks set it in the task's environment.
HEARTBEAT_TIMEOUT_VARIABLE = "RUNNER_NODES_SILENCE"
HEARTBEATS_PER_TIMEOUT = 6  # so that a late or lost heartbeat has no effect


@dataclass(frozen=True)
class Hosts:
    """Addresses by rank, the primary's first; `own` is None if this node could not determine it."""

    addresses: tuple[str, ...]
    own: str | None
    is_primary: bool

    @property
    def primary(self) -> str:
        """The address of rank 0."""
        return self.addresses[0]


def load_hosts(environment: Mapping[str, str]) -> Hosts | None:
    """Return the nodes of the task, or None for a task on one node."""
    listed = [one for one in environment.get("AZ_BATCH_HOST_LIST", "").split(",") if one]
    primary = environment.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
    if len(listed) < 2 or primary not in listed:
        return None
    addresses = (primary, *(address for address in listed if address != primary))
    is_primary = environment.get("AZ_BATCH_IS_CURRENT_NODE_MASTER", "").lower() == "true"
    own = primary if is_primary else _own_address(environment, addresses)
    return Hosts(addresses, own, is_primary)


def _own_address(environment: Mapping[str, str], addresses: tuple[str, ...]) -> str | None:
    """Return this node's address, or None: the source address of packets to the primary.

    Batch has no variable for it.
    """
    given = environment.get(NODE_IP_VARIABLE)
    if given in addresses:
        return given
    with suppress(OSError), socket.socket(_family(addresses[0]), socket.SOCK_DGRAM) as probe:
        probe.connect((addresses[0], 9))  # sends nothing
        found = str(probe.getsockname()[0])
        return found if found in addresses else None
    return None


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket. It listens at all addresses if a container lacks this one."""
    try:
        return socket.create_server((address, port), family=_family(address), backlog=128)
    except OSError as err:
        if err.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), backlog=128)


# Lower than the ports that Linux assigns to outgoing connections, which could take a free port
# before the script uses it, and lower than the ports of the agents (rendezvous.py).
RENDEZVOUS_PORTS = range(10_000, 21_000)
PORT_TRIES = 50


def free_port(address: str | None, candidates: Iterator[int] | None = None) -> int:
    """Return a port that is free now.

    Args:
        address: the address to listen at, or None for all addresses.
        candidates: the ports to try; random ones by default, so that calls differ.

    Raises:
        OSError: no candidate is free.
    """
    last: OSError | None = None
    for port in candidates or (secrets.choice(RENDEZVOUS_PORTS) for _ in range(PORT_TRIES)):
        try:
            with listen(address or "", port):
                return port
        except OSError as err:
            last = err
    raise last or OSError("no port")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# Set for a run on one node, so that a command that uses these variables works there too.
SINGLE_NODE = {"RUNNER_NODES": "1", "RUNNER_NODE_RANK": "0"}


@dataclass(frozen=True)
class ClusterSpec(JsonDocument):
    """All nodes of an attempt, as the primary sends them to the workers.

    `ports` has one free port for each rank, and `processes` the number of processes that the
    launcher starts on each rank. `master_port` and `jax_port` are free ports of rank 0.
    """

    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    master_port: int
    jax_port: int
    processes: tuple[int, ...] = ()


def single_node_variables(read: Sequence[str]) -> dict[str, str]:
    """Return these variables of the nodes, for scripts that read them on one node, too.

    Raises:
        OSError: no port is free.
    """
    own = "127.0.0.1"
    worker, coordinator = free_port(own), free_port(own)
    variables = node_variables(ClusterSpec((own,), (worker,), coordinator, coordinator), 0)
    return {name: variables[name] for name in read}


def node_variables(cluster_spec: ClusterSpec, rank: int) -> dict[str, str]:
    """Return the script's variables on one node (docs/guides/distributed.md)."""
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
        # torchrun reads PET_X as the default of its option --X (torch.distributed.run).
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
    """Heartbeat settings: a node is lost after `timeout_s` without a message from it."""

    timeout_s: float = 90.0

    @property
    def interval_s(self) -> float:
        """The seconds between two heartbeats."""
        return self.timeout_s / HEARTBEATS_PER_TIMEOUT


def load_heartbeat_config(environment: Mapping[str, str]) -> HeartbeatConfig:
    """Return the task's heartbeat settings, or the default. Raise SettingsError."""
    text = environment.get(HEARTBEAT_TIMEOUT_VARIABLE)
    if text is None:
        return HeartbeatConfig()
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < threading.TIMEOUT_MAX:
        raise SettingsError(f"{HEARTBEAT_TIMEOUT_VARIABLE} is {text!r}, not a number of seconds")
    return HeartbeatConfig(timeout_s)
