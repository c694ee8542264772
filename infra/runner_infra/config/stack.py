"""The keys of `Pulumi.<stack>.yaml` as typed values; `stack_file` reads the file."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from runner.core.pricing.machines import region_name
from runner.core.yaml_files import TextField, format_value
from runner_infra.config.adopt import AdoptConfig
from runner_infra.config.ci import CiConfig
from runner_infra.config.naming import AccountName, Names
from runner_infra.config.pool import MoverConfig, PoolConfig, Section
from runner_infra.config.vm_sizes import SizeConfig

CONTAINERS = ("runs", "models", "data", "code")
TEAM_CONTAINERS = ("runs", "models", "code")  # each team has its own
_Email = Annotated[
    str,
    TextField(
        r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
        "an e-mail address",
        "one @, and a dot after it",
        "team@company.example",
    ),
]
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_Uuid = Annotated[
    str,
    TextField(
        _UUID,
        "an Azure ID",
        "32 hexadecimal digits in five groups; `az account show` prints the subscription's",
        "00000000-1111-2222-3333-444444444444",
    ),
]
_ObjectId = Annotated[
    str,
    TextField(
        _UUID,
        "an object ID of Entra",
        "32 hexadecimal digits in five groups (`az ad signed-in-user show --query id` prints "
        "yours); the sign-in name of a user has an @",
        "00000000-1111-2222-3333-444444444444",
    ),
]
_StackName = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        "the name of a stack",
        "up to 100 letters, digits, dots, _ and -, and begins with a letter or digit",
        "dev",
    ),
]
_EventsVersion = Annotated[
    str,
    TextField(
        r"^\d{4}-\d{2}-\d{2}(-preview)?$",
        "an api-version",
        "a date, as in the documentation of Scheduled Events",
        "2020-07-01",
    ),
]


def _name_region(value: Any) -> Any:
    return region_name(value) if isinstance(value, str) else value


_Location = Annotated[
    str,
    BeforeValidator(_name_region),
    TextField(
        r"^[a-z0-9]+$",
        "the name of a region",
        "lower-case letters and digits; `az account list-locations` lists all regions",
        "westeurope",
    ),
]


class StorageConfig(Section):
    """The storage account. Account keys are enabled only with a file share, which needs them.

    `shared_keys` must agree with that; `false` prevents that a file share is added.
    """

    account_name: str | None = None
    file_share_gib: int | None = Field(default=None, ge=1, le=102400)
    shared_keys: bool | None = None
    keep_runs_days: int | None = Field(default=None, ge=1)
    cool_models_days: int = Field(default=30, ge=1)


def _check_ranges(value: Any) -> Any:
    """Reject text other than `all`. Pydantic's error would suggest `all`: access for everyone."""
    if not isinstance(value, str) or value == "all":
        return value
    try:
        ipaddress.IPv4Network(value)
    except ValueError:
        example = "203.0.113.0/24"
    else:
        example = value
    context = {
        "problem": f"got {format_value(value)}",
        "why": "allowed: 'all', or a list of ranges",
        "fix": f"write a list: [{example}]",
    }
    raise PydanticCustomError("runner", "{problem}", context)


class NetworkConfig(Section):
    """A virtual network for the pools, with a NAT gateway for outbound traffic.

    The storage account then allows the subnet and `storage_from`: ranges such as 203.0.113.0/24, or
    `all`. By default, it is the public address of the deployer. With `private`, the accounts have
    no public address, and private endpoints in `endpoint_subnet`. With an adopted subnet, the stack
    creates no network, and the ranges do not apply.
    """

    address_space: str = "10.20.0.0/16"
    pool_subnet: str = "10.20.0.0/20"
    endpoint_subnet: str = "10.20.16.0/24"
    private: bool = False
    storage_from: Annotated[
        Literal["all"] | Annotated[tuple[str, ...], Field(strict=False)] | None,
        BeforeValidator(_check_ranges),
    ] = None


class ImageConfig(Section):
    """The stack's own VM image. It is verified on a GPU, so `build_vm_size` must have one."""

    build_vm_size: str = "Standard_NC4as_T4_v3"
    replicate_to: tuple[_Location, ...] = Field(default=(), strict=False)


# Tag of the resource group of a stack without a budget, read by the policies.
BUDGET_TAG = "runner-budget"
# Tags of the resource group and of the nodes' identity: which state of Pulumi deploys the stack,
# and the container whose metadata has its outputs, by its ID without the subscription, because the
# value of a tag has at most 256 characters.
ID_TAG = "runner-stack-id"
OUTPUTS_TAG = "runner-outputs"


class BudgetConfig(Section):
    """A monthly budget. It notifies but does not stop spending.

    Azure allows five notifications with thresholds from 0 to 1000 (docs of Budget, azure-native
    3.29); one is used for the forecast.
    """

    usd_per_month: float = Field(default=100, gt=0, strict=False)
    emails: tuple[_Email, ...] = Field(default=(), max_length=50, strict=False)
    thresholds_percent: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        default=(50, 80, 100), min_length=1, max_length=4, strict=False
    )


class ObservabilityConfig(Section):
    """Diagnostics in Log Analytics, and alerts to `emails`."""

    retention_days: int = Field(default=30, ge=30, le=730)
    emails: tuple[_Email, ...] = Field(default=(), strict=False)


class OperatorConfig(Section):
    """An Entra principal that may submit runs: its object ID, or a user's sign-in name.

    The program asks Microsoft Graph for the ID of a name; beside an ID, a name only tells people
    who that is. With access `none`, a principal has no roles, even if it deploys the stack.
    """

    id: _ObjectId | None = None
    name: _Email | None = None
    kind: Literal["user", "group", "service_principal"] = "user"
    access: Literal["run", "none"] = "run"


def _operator_of_text(value: Any) -> Any:
    """Return the keys of an operator that is written as a text: a name or an object ID."""
    if not isinstance(value, str):
        return value
    return {"name" if "@" in value else "id": value}


class StackConfig(Section):
    """The configuration of a stack. `operators` and its deployers may submit runs.

    `cloud` is the cloud of Azure; without the key, variables or `az` select it.
    `budget: null` declares no budget, for subscriptions whose offer has no Cost Management.
    `nodes_add_tasks` lets nodes add tasks to jobs, which schedules of several tasks need.
    `events_version` is the api-version of Scheduled Events that has rebalance recommendations.
    `mover` declares a task that moves runs without a client.
    `cost_export` writes the costs of the stack's group to a container every day. `vm_sizes`
    describe VM sizes that the table of the package does not have.
    """

    stack: _StackName
    subscription_id: _Uuid
    location: _Location
    cloud: Literal["public", "china", "usgov"] = "public"
    tags: dict[str, str] = Field(default_factory=dict)
    operators: tuple[Annotated[OperatorConfig, BeforeValidator(_operator_of_text)], ...] = Field(
        default=(), strict=False
    )
    adopt: AdoptConfig | None = None
    storage: StorageConfig = StorageConfig.model_construct()
    network: NetworkConfig | None = None
    image: ImageConfig | None = None
    registry: bool = False
    nodes_add_tasks: bool = False
    events_version: _EventsVersion | None = None
    ci: CiConfig | None = None
    mover: MoverConfig | None = None
    cost_export: bool = False
    vm_sizes: tuple[SizeConfig, ...] = Field(default=(), strict=False)
    budget: BudgetConfig | None = BudgetConfig.model_construct()
    observability: ObservabilityConfig | None = ObservabilityConfig.model_construct()
    pools: tuple[PoolConfig, ...] = Field(strict=False)
    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The file that the values were read from, for errors; None if they have none."""
        return self._file

    def of_file(self, file: Path | None) -> StackConfig:
        """Return a copy whose errors name the lines of a file; None: only the keys."""
        copy = self.model_copy()
        copy._file = file
        return copy

    @property
    def names(self) -> Names:
        """The names of the resources that the stack creates."""
        return Names(self.stack, self.subscription_id)

    @property
    def all_pools(self) -> tuple[PoolConfig, ...]:
        """The pools of runs, and that of the mover."""
        return self.pools if self.mover is None else (*self.pools, self.mover.pool)

    @property
    def teams(self) -> tuple[str, ...]:
        """The teams that pools name, each once."""
        return tuple(dict.fromkeys(pool.team for pool in self.pools if pool.team is not None))

    @property
    def regions(self) -> tuple[str, ...]:
        """The region of the stack, and those to which the VM image is replicated."""
        return (self.location, *(self.image.replicate_to if self.image is not None else ()))

    @property
    def adopted(self) -> AdoptConfig:
        """The adopted resources; all fields are None if there are none."""
        return self.adopt or AdoptConfig.model_construct()

    @property
    def is_private(self) -> bool:
        """True if the accounts of the stack have no public address."""
        return self.network is not None and self.network.private

    @property
    def has_own_network(self) -> bool:
        """True if the stack creates the network of its nodes."""
        return self.network is not None and self.adopted.subnet is None

    @property
    def resource_group(self) -> str:
        """The resource group of the resources that the stack creates."""
        return self.adopted.resource_group or self.names.resource_group

    @property
    def outputs_container(self) -> str:
        """The container with the outputs of the stack: its ID without the subscription."""
        account = self.storage_account
        return (
            f"resourceGroups/{account.group}/providers/Microsoft.Storage/storageAccounts/"
            f"{account.name}/blobServices/default/containers/{self.names.outputs_container}"
        )

    @property
    def batch_account(self) -> AccountName:
        """The Batch account, adopted or created."""
        if self.adopted.batch_account:
            return AccountName.of_id(self.adopted.batch_account)
        return AccountName(self.resource_group, self.names.batch_account)

    @property
    def storage_account(self) -> AccountName:
        """The storage account, adopted or created."""
        if self.adopted.storage_account:
            return AccountName.of_id(self.adopted.storage_account)
        name = self.storage.account_name or self.names.storage_account
        return AccountName(self.resource_group, name)
