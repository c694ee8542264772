"""What the script learns of the other nodes: our variables, and those that frameworks read.

No `RANK`, `LOCAL_RANK` or `WORLD_SIZE`: they count processes, which launchers such as torchrun
start and number, and a node is not a process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Of a run on one node; a command that names them works on one as on several.
ALONE = {"RUNNER_NODES": "1", "RUNNER_NODE_RANK": "0"}


@dataclass(frozen=True)
class Company:
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


def parse_company(raw: Mapping[str, Any]) -> Company:
    """What `to_json` wrote."""
    addresses: Sequence[Any] = raw["addresses"]
    ports: Sequence[Any] = raw["ports"]
    return Company(
        tuple(str(one) for one in addresses),
        tuple(int(one) for one in ports),
        int(raw["master_port"]),
        int(raw["jax_port"]),
    )


def node_environment(company: Company, rank: int) -> dict[str, str]:
    """The variables of one node (docs/guides/several-nodes.md)."""
    nodes, first = len(company.addresses), company.addresses[0]
    workers = [f"{_host(a)}:{p}" for a, p in zip(company.addresses, company.ports, strict=True)]
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return {
        "RUNNER_NODES": str(nodes),
        "RUNNER_NODE_RANK": str(rank),
        "RUNNER_NODE_IPS": ",".join(company.addresses),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(company.master_port),
        "NODE_RANK": str(rank),  # PyTorch Lightning, Azure ML
        # torchrun's own, for its options of the same names (torch.distributed.run).
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(company.master_port),
        "TF_CONFIG": json.dumps(cluster),
        "JAX_COORDINATOR_ADDRESS": f"{_host(first)}:{company.jax_port}",
        "JAX_NUM_PROCESSES": str(nodes),
        "JAX_PROCESS_ID": str(rank),
    }


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
