"""The keys of `Pulumi.<stack>.yaml` as typed values; `stack_file` reads the file."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from runner.core.yaml_files import TextField, format_value
from runner_infra.config.naming import AccountName, Names
from runner_infra.config.pool import PoolConfig, Section

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
_Uuid = Annotated[
    str,
    TextField(
        r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "an Azure ID",
        "32 hexadecimal digits in five groups; `az account show` prints the subscription's",
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
_Location = Annotated[
    str,
    TextField(
        r"^[a-z0-9]+$",
        "the name of a region",
        "lower-case letters and digits; `az account list-locations` lists all regions",
        "westeurope",
    ),
]


def _account_id(kind: str) -> TextField:
    return TextField(
        "(?i)^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\\s]{1,90}/providers/"
        f"{kind}/[A-Za-z0-9]{{3,24}}$",
        "the ID of an account",
        f"the form /subscriptions/…/{kind}/NAME, as in JSON View of the portal",
        f"/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/team/providers/{kind}/ml",
    )


class AdoptConfig(Section):
    """Existing resources, which the stack uses but never changes or deletes.

    `resource_group` is the name of the group for all resources that the stack creates; the accounts
    are IDs. The stack creates every resource that is None.
    """

    resource_group: (
        Annotated[
            str,
            TextField(
                r"^[\w().-]{0,89}[\w()-]$",
                "the name of a resource group",
                "up to 90 letters, digits, and _ - . ( ), and does not end with a dot",
                "ml-team",
            ),
        ]
        | None
    ) = None
    batch_account: Annotated[str, _account_id("Microsoft.Batch/batchAccounts")] | None = None
    storage_account: Annotated[str, _account_id("Microsoft.Storage/storageAccounts")] | None = None


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
    `all`. By default, it is the public address of the deployer.
    """

    address_space: str = "10.20.0.0/16"
    pool_subnet: str = "10.20.0.0/20"
    storage_from: Annotated[
        Literal["all"] | Annotated[tuple[str, ...], Field(strict=False)] | None,
        BeforeValidator(_check_ranges),
    ] = None


class ImageConfig(Section):
    """The stack's own VM image. It is verified on a GPU, so `build_vm_size` must have one."""

    build_vm_size: str = "Standard_NC4as_T4_v3"
    replicate_to: tuple[str, ...] = Field(default=(), strict=False)


# Tag of the resource group of a stack without a budget, read by the policies.
BUDGET_TAG = "runner-budget"


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
    """An Entra principal that may submit runs; `id` is its object ID."""

    id: _Uuid
    kind: Literal["user", "group", "service_principal"] = "user"


class StackConfig(Section):
    """The configuration of a stack. `operators` and the deployer may submit runs.

    `budget: null` declares no budget, for subscriptions whose offer has no Cost Management.
    `nodes_add_tasks` lets nodes add tasks to jobs, which schedules of several tasks need.
    """

    stack: _StackName
    subscription_id: _Uuid
    location: _Location
    tags: dict[str, str] = Field(default_factory=dict)
    operators: tuple[OperatorConfig, ...] = Field(default=(), strict=False)
    adopt: AdoptConfig | None = None
    storage: StorageConfig = StorageConfig.model_construct()
    network: NetworkConfig | None = None
    image: ImageConfig | None = None
    registry: bool = False
    nodes_add_tasks: bool = False
    budget: BudgetConfig | None = BudgetConfig.model_construct()
    observability: ObservabilityConfig | None = ObservabilityConfig.model_construct()
    pools: tuple[PoolConfig, ...] = Field(strict=False)

    @property
    def names(self) -> Names:
        """The names of the resources that the stack creates."""
        return Names(self.stack, self.subscription_id)

    @property
    def teams(self) -> tuple[str, ...]:
        """The teams that pools name, each once."""
        return tuple(dict.fromkeys(pool.team for pool in self.pools if pool.team is not None))

    @property
    def adopted(self) -> AdoptConfig:
        """The adopted resources; all fields are None if there are none."""
        return self.adopt or AdoptConfig.model_construct()

    @property
    def resource_group(self) -> str:
        """The resource group of the resources that the stack creates."""
        return self.adopted.resource_group or self.names.resource_group

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
