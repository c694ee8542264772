"""Every key of `Pulumi.<stack>.yaml` changes the declaration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from runner_infra.config.stack import StackConfig
from tests.unit.infra.cloud import SUBSCRIPTION
from tests.unit.infra.stacks import ADOPTED, LANDING, T4, config_of, deploy

_DATA = {"kind": "blob", "container": "data", "path": "data"}
_INFRA = Path(__file__).parents[4] / "infra" / "runner_infra"
_SCRIPT = _INFRA / "planning" / "node_setup.sh"  # any script will do
_NFS = {"kind": "nfs", "source": "10.0.0.4:/export", "path": "nfs"}
_SHARE = {"kind": "files", "path": "shared"}
_OPERATOR = {"id": "22222222-3333-4444-5555-666666666666"}
_HOURS = {"days": ["mon"], "start": "08:00", "end": "18:00"}
_OFFICE = {"scenario": "office_hours", "office_hours": _HOURS}
_OWN = {"scenario": "formula", "formula": "$TargetLowPriorityNodes = 0;"}
_A100 = {"vm_size": "Standard_NC24ads_A100_v4", "max_spot": 0, "max_dedicated": 4}

_CI = {"github": "contoso/training"}
_STATE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/state/providers"
_SUBNET = {"subnet": LANDING["subnet"]}
_PRIVATE = {"network": {"private": True}, "adopt": _SUBNET}
_NEW = {
    "name": "Standard_NC80ads_NEW_v9",
    "vcpus": 80,
    "memory_gib": 640,
    "gpu": "NEW",
    "gpus": 2,
    "driver": "cuda",
    "usd_per_hour": 2.0,
    "spot_usd_per_hour": 0.5,
}


def _with_size(**values: Any) -> dict[str, Any]:
    """Return a stack of one pool of dedicated and spot nodes with a size of its file."""
    pool = {
        **{"id": "new", "vm_size": _NEW["name"], "scenario": "fixed"},
        **{"max_spot": 9, "max_dedicated": 9, "spend_cap_usd_per_hour": 8},
    }
    return {"pools": [pool], "vm_sizes": [{**_NEW, **values}]}


# Key: the settings of a stack, and the same with only this key changed.
_STACKS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "StackConfig.stack": ({"stack": "dev"}, {"stack": "prod"}),
    "StackConfig.subscription_id": (
        {},
        {"subscription_id": "99999999-3333-4444-5555-666666666666"},
    ),
    "StackConfig.location": ({}, {"location": "eastus"}),
    "StackConfig.tags": ({}, {"tags": {"team": "vision"}}),
    "StackConfig.operators": ({}, {"operators": [_OPERATOR]}),
    "StackConfig.adopt": ({}, {"adopt": {"resource_group": "team"}}),
    "AdoptConfig.resource_group": ({}, {"adopt": {"resource_group": "team"}}),
    "AdoptConfig.batch_account": ({}, {"adopt": {"batch_account": ADOPTED["batch_account"]}}),
    "AdoptConfig.storage_account": ({}, {"adopt": {"storage_account": ADOPTED["storage_account"]}}),
    "AdoptConfig.subnet": ({}, {"adopt": {"subnet": LANDING["subnet"]}}),
    "AdoptConfig.endpoint_subnet": (
        _PRIVATE,
        {**_PRIVATE, "adopt": {**_SUBNET, "endpoint_subnet": LANDING["endpoint_subnet"]}},
    ),
    "AdoptConfig.private_dns": (
        _PRIVATE,
        {**_PRIVATE, "adopt": {**_SUBNET, "private_dns": LANDING["private_dns"]}},
    ),
    "AdoptConfig.registry": ({}, {"adopt": {"registry": LANDING["registry"]}}),
    "AdoptConfig.registry_roles": (
        {"adopt": {"registry": LANDING["registry"]}},
        {"adopt": {"registry": LANDING["registry"], "registry_roles": False}},
    ),
    "AdoptConfig.log_workspace": ({}, {"adopt": {"log_workspace": LANDING["log_workspace"]}}),
    "StackConfig.storage": ({}, {"storage": {"file_share_gib": 100}}),
    "StackConfig.network": ({}, {"network": {}}),
    "StackConfig.image": ({}, {"image": {}}),
    "StackConfig.registry": ({}, {"registry": True}),
    "StackConfig.nodes_add_tasks": ({}, {"nodes_add_tasks": True}),
    "StackConfig.mover": ({}, {"mover": {}}),
    **{
        f"MoverConfig.{key}": ({"mover": {}}, {"mover": {key: value}})
        for key, value in {
            "vm_size": "Standard_D2s_v3",
            "spot": True,
            "encryption_at_host": True,
        }.items()
    },
    "StackConfig.cost_export": ({}, {"cost_export": True}),
    "StackConfig.vm_sizes": (
        {"pools": [{**T4, "vm_size": "Standard_NC24ads_A100_v4"}]},
        {"pools": [{**T4, "vm_size": _NEW["name"]}], "vm_sizes": [_NEW]},
    ),
    **{
        f"SizeConfig.{key}": (_with_size(), _with_size(**{key: value}))
        for key, value in {"gpus": 4, "driver": "grid", "usd_per_hour": 1.0}.items()
    },
    "SizeConfig.spot_usd_per_hour": (_with_size(), _with_size(spot_usd_per_hour=1.0)),
    "StackConfig.budget": ({}, {"budget": {"usd_per_month": 7}}),
    "StackConfig.observability": ({}, {"observability": None}),
    "StackConfig.pools": ({}, {"pools": [T4, {**T4, "id": "more"}]}),
    # No pool of a stack with teams mounts the file share, which pools of the table below do.
    "PoolConfig.team": ({}, {"pools": [{**T4, "team": "vision"}]}),
    "StorageConfig.account_name": ({}, {"storage": {"account_name": "ours"}}),
    "StorageConfig.file_share_gib": (
        {"storage": {"file_share_gib": 100}},
        {"storage": {"file_share_gib": 200}},
    ),
    "StorageConfig.keep_runs_days": ({}, {"storage": {"keep_runs_days": 90}}),
    "StorageConfig.cool_models_days": ({}, {"storage": {"cool_models_days": 7}}),
    "NetworkConfig.address_space": ({"network": {}}, {"network": {"address_space": "10.0.0.0/8"}}),
    "NetworkConfig.pool_subnet": ({"network": {}}, {"network": {"pool_subnet": "10.20.0.0/24"}}),
    "NetworkConfig.private": ({"network": {}}, {"network": {"private": True}}),
    "NetworkConfig.endpoint_subnet": (
        {"network": {"private": True}},
        {"network": {"private": True, "endpoint_subnet": "10.20.17.0/24"}},
    ),
    "NetworkConfig.storage_from": ({"network": {}}, {"network": {"storage_from": "all"}}),
    "ImageConfig.build_vm_size": (
        {"image": {}},
        {"image": {"build_vm_size": "Standard_NC8as_T4_v3"}},
    ),
    "ImageConfig.replicate_to": ({"image": {}}, {"image": {"replicate_to": ["eastus"]}}),
    "BudgetConfig.usd_per_month": ({}, {"budget": {"usd_per_month": 250}}),
    "BudgetConfig.emails": ({}, {"budget": {"emails": ["ops@example.com"]}}),
    "BudgetConfig.thresholds_percent": ({}, {"budget": {"thresholds_percent": [10]}}),
    "ObservabilityConfig.retention_days": ({}, {"observability": {"retention_days": 90}}),
    "ObservabilityConfig.emails": ({}, {"observability": {"emails": ["ops@example.com"]}}),
    "StackConfig.cloud": (
        {"location": "chinanorth3", "cloud": "china", "ci": _CI},
        {"location": "usgovvirginia", "cloud": "usgov", "ci": _CI},
    ),
    "StackConfig.ci": ({}, {"ci": _CI}),
    **{
        f"CiConfig.{key}": ({"ci": _CI}, {"ci": {**_CI, key: value}})
        for key, value in {
            "github": "contoso/other",
            "branch": "release",
            "environment": "azure-dev",
            "state_account": f"{_STATE}/Microsoft.Storage/storageAccounts/contosostate",
            "key_vault": f"{_STATE}/Microsoft.KeyVault/vaults/contoso-state",
        }.items()
    },
    "OperatorConfig.id": (
        {"operators": [_OPERATOR]},
        {"operators": [{"id": "33333333-3333-4444-5555-666666666666"}]},
    ),
    "OperatorConfig.kind": (
        {"operators": [_OPERATOR]},
        {"operators": [{**_OPERATOR, "kind": "service_principal"}]},
    ),
    "OperatorConfig.name": (
        {"operators": [{"name": "ada@example.com"}]},
        {"operators": ["bob@example.com"]},
    ),
    "OperatorConfig.access": (
        {"operators": [_OPERATOR]},
        {"operators": [{**_OPERATOR, "access": "none"}]},
    ),
}
# The same for pools. Pools with equal settings are declared alike except for their names.
_POOLS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PoolConfig.vm_size": ({}, {"vm_size": "Standard_NC8as_T4_v3"}),
    "PoolConfig.max_spot": ({}, {"max_spot": 5}),
    "PoolConfig.max_dedicated": ({"scenario": "fixed"}, {"scenario": "fixed", "max_dedicated": 1}),
    "PoolConfig.slots": ({}, {"slots": 2}),
    "PoolConfig.scenario": ({}, {"scenario": "fixed"}),
    "PoolConfig.formula": (_OWN, {**_OWN, "formula": "$TargetLowPriorityNodes = 1;"}),
    "PoolConfig.evaluation_minutes": ({}, {"evaluation_minutes": 15}),
    "PoolConfig.office_hours": (_OFFICE, {**_OFFICE, "office_hours": {**_HOURS, "nodes": 2}}),
    "PoolConfig.spend_cap_usd_per_hour": (_A100, {**_A100, "spend_cap_usd_per_hour": 8}),
    "PoolConfig.image": ({}, {"image": {"sku": "2404"}}),
    "PoolConfig.mounts": ({}, {"mounts": [_DATA]}),
    "PoolConfig.preload": ({"preload": []}, {"preload": ["mnist"]}),
    "PoolConfig.start_script": ({}, {"start_script": str(_SCRIPT)}),
    "PoolConfig.container_images": (
        {"containers": True},
        {"containers": True, "container_images": ["docker.io/library/busybox:1.37"]},
    ),
    "PoolConfig.containers": ({}, {"containers": True}),
    "PoolConfig.inter_node_communication": ({}, {"inter_node_communication": True}),
    "PoolConfig.pack_tasks": ({}, {"pack_tasks": False}),
    "PoolConfig.ssh_from": ({"ssh_from": ["192.0.2.0/24"]}, {"ssh_from": ["192.0.2.7/32"]}),
    "PoolConfig.os_disk": ({}, {"os_disk": {"size_gib": 256}}),
    "PoolConfig.encryption_at_host": ({}, {"encryption_at_host": True}),
    "OsDisk.size_gib": (
        {"os_disk": {"size_gib": 128}},
        {"os_disk": {"size_gib": 256}},
    ),
    "OsDisk.type": ({"os_disk": {}}, {"os_disk": {"type": "standard_ssd"}}),
    "PoolConfig.tags": ({}, {"tags": {"tier": "low"}}),
    **{
        f"OfficeHours.{key}": (_OFFICE, {**_OFFICE, "office_hours": {**_HOURS, key: value}})
        for key, value in {
            "days": ["tue"],
            "start": "09:00",
            "end": "19:00",
            "utc_offset_hours": 3,
            "nodes": 2,
        }.items()
    },
    **{
        f"ImageChoice.{key}": ({}, {"image": {key: value}})
        for key, value in {"source": "gallery", "sku": "2404", "version": "1.2.3"}.items()
    },
    "BlobMount.kind": ({"mounts": [_DATA]}, {"mounts": [{"kind": "files", "path": "data"}]}),
    "BlobMount.container": ({"mounts": [_DATA]}, {"mounts": [{**_DATA, "container": "runs"}]}),
    "BlobMount.path": ({"mounts": [_DATA]}, {"mounts": [{**_DATA, "path": "there"}]}),
    "BlobMount.read_only": ({"mounts": [_DATA]}, {"mounts": [{**_DATA, "read_only": False}]}),
    "FilesMount.kind": ({"mounts": [_SHARE]}, {"mounts": [{**_DATA, "path": "shared"}]}),
    "FilesMount.path": ({"mounts": [_SHARE]}, {"mounts": [{**_SHARE, "path": "there"}]}),
    "NfsMount.kind": ({"mounts": [_NFS]}, {"mounts": [{"kind": "files", "path": "nfs"}]}),
    "NfsMount.source": ({"mounts": [_NFS]}, {"mounts": [{**_NFS, "source": "10.0.0.5:/export"}]}),
    "NfsMount.path": ({"mounts": [_NFS]}, {"mounts": [{**_NFS, "path": "there"}]}),
    "NfsMount.options": ({"mounts": [_NFS]}, {"mounts": [{**_NFS, "options": "-o vers=4.2"}]}),
}


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield `Model.field` of all fields of a model and of nested models."""
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}"
        for inner in models(field.annotation):
            yield from keys(inner)


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


def test_every_key_has_a_row_in_this_test() -> None:
    # A pool's id is its name; `shared_keys` refuses stacks; the last two are only exported.
    others = {"PoolConfig.id", "StorageConfig.shared_keys", "StackConfig.events_version"}
    others |= {"MoverConfig.every"}
    # Slots, quotas and texts are checked with the rest of a size; none of it is declared.
    size = {f"SizeConfig.{key}" for key in ("name", "vcpus", "memory_gib", "family")}
    size |= {"SizeConfig.gpu", "SizeConfig.gpu_memory_gib"}
    others |= size
    assert {*_STACKS, *_POOLS, *others} == set(keys(StackConfig))


@pytest.mark.slow
def test_each_key_of_a_stack_changes_the_declaration() -> None:
    plain = declared()
    assert _declared.__wrapped__("{}") == plain, "without a changed key nothing differs"
    idle = [
        key
        for key, (before, after) in _STACKS.items()
        if (declared(**before) if before else plain) == declared(**after)
    ]
    assert not idle


@pytest.mark.slow
def test_each_key_of_a_pool_changes_its_inputs() -> None:
    made = pools()
    assert made["plain-1"] == made["plain-2"], "without a changed key nothing differs"
    assert not [key for key in _POOLS if made[f"before-{name(key)}"] == made[f"after-{name(key)}"]]


def declared(**values: Any) -> dict[str, Any]:
    """Return the resources that the program declares for these values, cached."""
    return _declared(json.dumps(values, sort_keys=True))


@cache
def _declared(values: str) -> dict[str, Any]:
    found = deploy(config_of(**json.loads(values)))
    return {resource.name: resource.inputs for resource in found.resources}


def name(key: str) -> str:
    return key.replace(".", "-")


def pools() -> Mapping[str, dict[str, Any]]:
    """Return the inputs of all pools of the table, deployed in one stack, without the names."""
    wanted = [{**T4, "id": "plain-1"}, {**T4, "id": "plain-2"}]
    for key, (before, after) in _POOLS.items():
        wanted.append({**T4, **before, "id": f"before-{name(key)}"})
        wanted.append({**T4, **after, "id": f"after-{name(key)}"})
    parts = {"location": "eastus", "image": {}, "storage": {"file_share_gib": 100}}
    found = deploy(config_of("keys", **parts, pools=wanted)).of("batch:Pool")
    assert len(found) == len(wanted)
    return dict(without_name(pool.inputs) for pool in found)


def without_name(inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a pool and its other inputs; a tag has the name too."""
    pool_id, tags = inputs["poolName"], inputs["tags"]
    assert tags["pool"] == pool_id
    rest = {key: value for key, value in inputs.items() if key != "poolName"}
    return pool_id, {**rest, "tags": {key: tags[key] for key in tags if key != "pool"}}
