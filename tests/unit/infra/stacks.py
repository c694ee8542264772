"""Configurations for tests, and functions that run the program with them under mocks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pulumi_azure_native import authorization

from runner_infra.components.deployer import Deployer
from runner_infra.components.identity import Operator
from runner_infra.config.stack import StackConfig
from runner_infra.config.stack_file import parse_stack_config
from runner_infra.program import declare
from tests.unit.infra import cloud
from tests.unit.infra.recording import Recording, record

DEPLOYER = Deployer(
    Operator(cloud.DEPLOYER, authorization.PrincipalType.USER), address="198.18.0.9"
)
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
T4 = {"id": "t4", "vm_size": "Standard_NC4as_T4_v3", "max_spot": 4, "preload": ["mnist"]}
_TEAM = f"/subscriptions/{cloud.SUBSCRIPTION}/resourceGroups/team/providers"
ADOPTED: Mapping[str, str] = {
    "resource_group": "team",
    "batch_account": f"{_TEAM}/Microsoft.Batch/batchAccounts/teambatch",
    "storage_account": f"{_TEAM}/Microsoft.Storage/storageAccounts/teamdata",
}
_NETWORK = f"{_TEAM}/Microsoft.Network/virtualNetworks/spoke"
CENTRAL = "/subscriptions/99999999-2222-3333-4444-555555555555/resourceGroups/platform"
# What landing zones have: accounts are the stack's own, everything around them exists.
LANDING: Mapping[str, str] = {
    "resource_group": "team",
    "subnet": f"{_NETWORK}/subnets/nodes",
    "endpoint_subnet": f"{_NETWORK}/subnets/endpoints",
    "private_dns": CENTRAL,
    "registry": f"{CENTRAL}/providers/Microsoft.ContainerRegistry/registries/central",
    "log_workspace": f"{CENTRAL}/providers/Microsoft.OperationalInsights/workspaces/central",
}
# A stack with every feature once.
EVERYTHING: Mapping[str, Any] = {
    "tags": {"team": "vision"},
    "operators": [
        {"id": "22222222-3333-4444-5555-666666666666", "kind": "group"},
        {"id": cloud.DEPLOYER},  # the deployer may be named as well
    ],
    "storage": {"file_share_gib": 100, "keep_runs_days": 90},
    "network": {"private": True},
    "cost_export": True,
    "image": {},
    "registry": True,
    "nodes_add_tasks": True,
    "mover": {"every": "1h", "spot": True},
    "events_version": "2026-01-01",
    "budget": {"usd_per_month": 250, "emails": ["ops@example.com"]},
    "observability": {"emails": ["ops@example.com"]},
    "pools": [
        {
            **T4,
            "mounts": [
                {"kind": "blob", "container": "data", "path": "data"},
                {"kind": "files", "path": "shared"},
                {"kind": "nfs", "source": "10.0.0.4:/export", "path": "nfs"},
            ],
        },
        {
            "id": "fallback",
            "vm_size": "Standard_NC4as_T4_v3",
            "scenario": "spot_first_with_dedicated_fallback",
            "max_spot": 8,
            "max_dedicated": 2,
            "inter_node_communication": True,
            "tags": {"tier": "important"},
        },
        {
            "id": "own-image",
            "vm_size": "Standard_NC24ads_A100_v4",
            "image": {"source": "gallery", "version": "1.2.3"},
            "scenario": "fixed",
            "max_spot": 0,
            "max_dedicated": 1,
        },
        {"id": "a10", "vm_size": "Standard_NV12ads_A10_v5", "max_spot": 1, "pack_tasks": False},
        {"id": "cpu", "vm_size": "Standard_D4s_v5", "max_spot": 2, "slots": 4},
    ],
}


def config_of(stack: str = "dev", **values: Any) -> StackConfig:
    """Return a configuration; `values` replace the defaults, such as one T4 pool."""
    given = {
        "location": "westeurope",
        "subscription_id": cloud.SUBSCRIPTION,
        "pools": [T4],
        **values,
    }
    return parse_stack_config(given, stack=stack, file=Path(f"Pulumi.{stack}.yaml"))


def deploy(config: StackConfig, *, preview: bool = False) -> Recording:
    """Run the program with this configuration."""
    return record(lambda: declare(config, DEPLOYER, NOW), stack=config.stack, preview=preview)


@cache
def plain_stack() -> Recording:
    """Return the stack of `Pulumi.dev.yaml`, deployed once for all tests of a process."""
    return deploy(config_of())


@cache
def full_stack() -> Recording:
    """Return a stack with every feature, deployed once for all tests of a process."""
    return deploy(config_of("everything", **EVERYTHING))
