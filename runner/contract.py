"""StackOutputs, which `infra` exports and `runner` reads."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, cast

CONTRACT_VERSION = 2
_READ_VERSIONS = (1, CONTRACT_VERSION)  # version 1 has no container for code
LOCAL_VM_SIZE = "local"  # VM size of the nodes on this machine
MOVER_POOL = "runner-mover"  # pool and job schedule of the mover; no run may use it
SHARED_TEAM = "shared"  # selects the part of a stack that belongs to no team

_SELECTION = {"selection": True}  # metadata of fields that no document has


class ContractError(ValueError):
    """The text is not a StackOutputs document. The message names the field."""


class NewerContractError(ContractError):
    """The document is of a later version of this package, so deploying again does not help."""


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
    os_disk: str | None = None  # row of its price; None: that of Batch's default
    team: str | None = None  # whose identity and containers its nodes use; None: the shared ones


@dataclass(frozen=True, slots=True)
class TeamOutput:
    """The containers of a team, and the identity of the nodes that write them."""

    name: str
    container_runs: str
    container_models: str
    container_code: str
    identity_client_id: str
    identity_resource_id: str


@dataclass(frozen=True, slots=True)
class StackOutputs:
    """Everything that `runner` needs of a stack; endpoints have no trailing slash.

    `container_code` is None in outputs of version 1: runs can be read, but not submitted.
    A document describes the whole stack: its containers and identity are those of the shared part.
    After `for_team`, containers, identity and `pools` are those of one part, and `whole` is the
    document.
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
    events_version: str | None = None  # api-version of Scheduled Events with rebalance advice
    container_costs: str | None = None  # with Azure's cost exports
    mover_client_id: str | None = None  # identity of the mover; None: the stack has no mover
    mover_identity_id: str | None = None
    mover_every_s: int | None = None
    stack: str | None = None
    stack_id: str | None = None  # of the state of Pulumi that deploys it
    batch_account_id: str | None = None  # of Resource Manager, like the next; None: older stacks
    storage_account_id: str | None = None
    teams: tuple[TeamOutput, ...] = ()
    team: str | None = field(default=None, metadata=_SELECTION)
    whole: StackOutputs | None = field(default=None, metadata=_SELECTION, repr=False)

    @property
    def containers(self) -> tuple[str, ...]:
        """Return the names of the containers of the stack."""
        names = (self.container_runs, self.container_models, self.container_data)
        return names if self.container_code is None else (*names, self.container_code)

    @property
    def stack_pools(self) -> tuple[PoolOutput, ...]:
        """The pools of all parts of the stack."""
        return (self.whole or self).pools

    def for_team(self, name: str | None) -> StackOutputs:
        """Return the part of a team, or the shared part if `name` is None or SHARED_TEAM.

        Raises:
            KeyError: the stack has no such team.
        """
        whole = self.whole or self
        if not whole.teams and name in (None, SHARED_TEAM):
            return whole
        part, own = None if name == SHARED_TEAM else name, {}
        if part is not None:
            own = dataclasses.asdict({each.name: each for each in whole.teams}[part])
            del own["name"]
        pools = tuple(pool for pool in whole.pools if pool.team == part)
        return replace(whole, **own, pools=pools, team=name, whole=whole)

    def parts(self) -> tuple[StackOutputs, ...]:
        """Return the shared part and the part of each team, whichever is selected."""
        whole = self.whole or self
        names = (SHARED_TEAM, *(each.name for each in whole.teams))
        return tuple(whole.for_team(name) for name in names)

    def to_json(self) -> str:
        """Return the JSON document that `parse_stack_outputs` reads."""
        whole = dataclasses.asdict(self.whole or self)
        return json.dumps({name: whole[name] for name in _document(StackOutputs)}, indent=2)


def parse_stack_outputs(text: str) -> StackOutputs:
    """Return what a stack exported, by any version of `infra` whose `contract_version` is known.

    Fields that this version does not know are ignored, so a stack that still exports a removed
    field can be read.

    Raises:
        ContractError: the text is not such a document; the message names the field.
        NewerContractError: it is one of a later version.
    """
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ContractError(f"not JSON: {err}") from err
    if not isinstance(raw, dict):
        raise ContractError("expected a JSON object")
    document = cast("dict[str, Any]", raw)
    newest = document.get("contract_version")
    if isinstance(newest, int) and newest > CONTRACT_VERSION:  # it may lack fields of this version
        raise NewerContractError(
            f"contract_version is {newest}, this runner reads {CONTRACT_VERSION}"
        )
    fields = _checked(StackOutputs, document, "")
    version = fields["contract_version"]
    if version not in _READ_VERSIONS:
        raise ContractError(f"contract_version is {version}, this runner reads {CONTRACT_VERSION}")
    if version == CONTRACT_VERSION and fields["container_code"] is None:
        raise ContractError("container_code: missing")
    pools = [
        PoolOutput(**_part(PoolOutput, pool, f"pools[{number}]"))
        for number, pool in enumerate(fields["pools"])
    ]
    fields["pools"] = tuple(pools)
    teams = enumerate(fields["teams"] or ())
    fields["teams"] = tuple(
        TeamOutput(**_part(TeamOutput, team, f"teams[{n}]")) for n, team in teams
    )
    return StackOutputs(**fields)


# Key of the metadata of a container that has the outputs of a stack. All metadata of a container
# have at most 8 KiB, and their values are headers:
# https://learn.microsoft.com/rest/api/storageservices/setting-and-retrieving-properties-and-metadata-for-blob-resources
# (read 2026-11-29)
OUTPUTS_KEY = "runner_outputs"
OUTPUTS_RESOURCE = "container-stack"  # the name of this container in Pulumi
_MAX_ENCODED = 7 * 1024


def encode_outputs(text: str) -> str | None:
    """Return the outputs of a stack as a value of metadata, or None if they are too long.

    They are compressed only if they would be too long, because versions of zlib write different
    bytes, which would change the container with every deployment.
    """
    for data in (text.encode(), zlib.compress(text.encode(), 9)):
        encoded = base64.b64encode(data).decode()
        if len(encoded) <= _MAX_ENCODED:
            return encoded
    return None


def decode_outputs(value: str) -> str:
    """Return the text that `encode_outputs` was given. Raise ContractError for another value."""
    try:
        data = base64.b64decode(value, validate=True)
        return (data if data.startswith(b"{") else zlib.decompress(data)).decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as err:
        raise ContractError(f"not the outputs of a stack: {err}") from err


def _part(cls: type[Any], raw: object, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ContractError(f"{where}: expected an object, got {raw!r}")
    return _checked(cls, cast("dict[str, Any]", raw), f"{where}.")


def _document(cls: type[Any]) -> dict[str, str]:
    """Return the type of each field of a document by its name."""
    return {f.name: str(f.type) for f in dataclasses.fields(cls) if not f.metadata}


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
    "str | None": (str, type(None)),
    "tuple[PoolOutput, ...]": (list,),
    "tuple[TeamOutput, ...]": (list, type(None)),
}


def _checked(cls: type[Any], raw: dict[str, Any], where: str) -> dict[str, Any]:
    known = _document(cls)
    for name, kind in known.items():
        expected = _TYPES[kind]
        # Pulumi leaves out an output that is null.
        if name not in raw and type(None) not in expected:
            raise ContractError(f"{where}{name}: missing")
        value = raw.get(name)
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise ContractError(f"{where}{name}: expected {kind}, got {value!r}")
    return {name: raw.get(name) for name in known}
