"""StackOutputs, which `infra` exports and `runner` reads."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, cast

CONTRACT_VERSION = 2
_READ_VERSIONS = (1, CONTRACT_VERSION)  # version 1 has no container for code
LOCAL_VM_SIZE = "local"  # VM size of the nodes on this machine


class ContractError(ValueError):
    """The text is not a StackOutputs document. The message names the field."""


@dataclass(frozen=True, slots=True)
class PoolOutput:
    """One pool that runs tasks. `gpus` and `vcpus` are per node.

    `capacity` is `spot`, `dedicated`, `mixed` or `spot-then-dedicated` (dedicated nodes replace
    spot nodes that are not available); None, as in older stacks, means that `spot` decides.
    """

    id: str
    vm_size: str
    gpus: int
    vcpus: int
    spot: bool
    max_nodes: int
    capacity: str | None = None
    containers: bool | None = (
        None  # True: every task needs an image; False: none may; None: unknown
    )
    task_nodes: int | None = None  # maximum of one task; None: unknown
    release_minutes: int | None = None  # until nodes without tasks are gone; None: unknown

    @property
    def is_billed(self) -> bool:
        """Return False for nodes on this machine, which cost nothing."""
        return self.vm_size != LOCAL_VM_SIZE


@dataclass(frozen=True, slots=True)
class StackOutputs:
    """Everything that `runner` needs of an environment; endpoints have no trailing slash.

    `container_code` is None in outputs of version 1: runs can be read, but not submitted.
    """

    location: str
    resource_group: str
    batch_account: str
    batch_endpoint: str
    storage_account: str
    blob_endpoint: str
    file_endpoint: str | None
    container_runs: str
    container_models: str
    container_data: str
    file_share: str | None
    identity_client_id: str | None
    identity_resource_id: str | None
    pools: tuple[PoolOutput, ...]
    image_definition: str | None
    contract_version: int = CONTRACT_VERSION
    registry_server: str | None = None
    nodes_add_tasks: bool | None = None  # nodes may add tasks to jobs: schedules of several tasks
    container_code: str | None = None  # which nodes only read

    @property
    def containers(self) -> tuple[str, ...]:
        """Return the names of the containers of the stack."""
        names = (self.container_runs, self.container_models, self.container_data)
        return names if self.container_code is None else (*names, self.container_code)

    def to_json(self) -> str:
        """Return the JSON document that `parse_stack_outputs` reads."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def parse_stack_outputs(text: str) -> StackOutputs:
    """Return what a stack exported, by any version of `infra` whose `contract_version` is known.

    Fields that this version does not know are ignored, so a stack that still exports a removed
    field can be read.

    Raises:
        ContractError: the text is not such a document; the message names the field.
    """
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ContractError(f"not JSON: {err}") from err
    if not isinstance(raw, dict):
        raise ContractError("expected a JSON object")
    fields = _checked(StackOutputs, cast("dict[str, Any]", raw), "")
    version = fields["contract_version"]
    if version not in _READ_VERSIONS:
        raise ContractError(f"contract_version is {version}, this runner reads {CONTRACT_VERSION}")
    if version == CONTRACT_VERSION and fields["container_code"] is None:
        raise ContractError("container_code: missing")
    pools: list[PoolOutput] = []
    for number, pool in enumerate(fields["pools"]):
        if not isinstance(pool, dict):
            raise ContractError(f"pools[{number}]: expected an object, got {pool!r}")
        pools.append(
            PoolOutput(**_checked(PoolOutput, cast("dict[str, Any]", pool), f"pools[{number}]."))
        )
    fields["pools"] = tuple(pools)
    return StackOutputs(**fields)


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
    "str | None": (str, type(None)),
    "tuple[PoolOutput, ...]": (list,),
}


def _checked(cls: type[Any], raw: dict[str, Any], where: str) -> dict[str, Any]:
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name, field in known.items():
        expected = _TYPES[str(field.type)]
        # Pulumi leaves out an output that is null.
        if name not in raw and type(None) not in expected:
            raise ContractError(f"{where}{name}: missing")
        value = raw.get(name)
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise ContractError(f"{where}{name}: expected {field.type}, got {value!r}")
    return {name: raw.get(name) for name in known}
