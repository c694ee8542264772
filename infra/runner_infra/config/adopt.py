"""The key `adopt`: existing resources, which a stack uses but never changes or deletes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from runner.core.yaml_files import TextField
from runner_infra.config.pool import Section

# A network, and a private DNS zone, are global within a subscription; the ID tells where they are.
_ID = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f-]{36})/resourceGroups/(?P<group>[^/\s]{1,90})"
    r"(?:/providers/(?P<rest>\S+))?",
    re.IGNORECASE,
)
_EXAMPLE = "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/team"
POLICY = "policy"


def _id_of(kind: str, what: str, name: str, example: str) -> TextField:
    """Return the pattern of the ID of a resource.

    Args:
        kind: the type, with a placeholder `{}` for the name of a parent.
        what: the resource with its article.
        name: pattern of its name.
        example: the end of the ID of such a resource, after `providers/`.
    """
    path = kind.replace("{}", "[^/\\s]{1,80}")
    return TextField(
        "(?i)^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\\s]{1,90}/providers/"
        f"{path}/{name}$",
        f"the ID of {what}",
        f"the form /subscriptions/…/{kind.format('NAME')}/NAME, as in JSON View of the portal",
        f"{_EXAMPLE}/providers/{example}",
    )


def _account_id(kind: str) -> TextField:
    return _id_of(kind, "an account", "[A-Za-z0-9]{3,24}", f"{kind}/ml")


_SubnetId = Annotated[
    str,
    _id_of(
        "Microsoft.Network/virtualNetworks/{}/subnets",
        "a subnet",
        r"[\w.-]{1,80}",
        "Microsoft.Network/virtualNetworks/spoke/subnets/ml",
    ),
]


@dataclass(frozen=True, slots=True)
class ResourceId:
    """The parts of a Resource Manager ID. `rest` is what follows `providers/`, or empty."""

    subscription: str
    group: str
    rest: str

    @classmethod
    def parse(cls, text: str) -> ResourceId:
        """Return the parts. Raise ValueError for another text."""
        found = _ID.fullmatch(text)
        if found is None:
            raise ValueError(f"not the ID of a resource in a group: {text!r}")
        return cls(found["subscription"].lower(), found["group"], found["rest"] or "")

    @property
    def names(self) -> list[str]:
        """The names of the resource and its parents, the outermost first."""
        return self.rest.split("/")[2::2]


class AdoptConfig(Section):
    """Existing resources, which the stack uses but never changes or deletes.

    `resource_group` is the name of the group for all resources that the stack creates; the others
    are IDs. The stack creates every account that is None.

    Nodes boot in `subnet`, in place of a network of the stack. `endpoint_subnet` has the private
    endpoints (None: `subnet`). `private_dns` is the ID of the resource group that has the private
    DNS zones, or `policy` if Azure Policy registers endpoints in zones; the stack creates zones if
    it is None. `registry_roles: false` assigns no role on the registry, for deployers who may not.
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
    subnet: _SubnetId | None = None
    endpoint_subnet: _SubnetId | None = None
    private_dns: (
        Annotated[
            str,
            TextField(
                r"(?i)^(policy|/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\s]{1,90})$",
                "the resource group of private DNS zones",
                "the form /subscriptions/…/resourceGroups/NAME, or is policy",
                _EXAMPLE,
            ),
        ]
        | None
    ) = None
    registry: (
        Annotated[
            str,
            _id_of(
                "Microsoft.ContainerRegistry/registries",
                "a container registry",
                "[A-Za-z0-9]{5,50}",
                "Microsoft.ContainerRegistry/registries/shared",
            ),
        ]
        | None
    ) = None
    registry_roles: bool = True
    log_workspace: (
        Annotated[
            str,
            _id_of(
                "Microsoft.OperationalInsights/workspaces",
                "a Log Analytics workspace",
                "[A-Za-z0-9-]{4,63}",
                "Microsoft.OperationalInsights/workspaces/central",
            ),
        ]
        | None
    ) = None

    @property
    def zones_by_policy(self) -> bool:
        """True if Azure Policy registers the private endpoints."""
        return (self.private_dns or "").lower() == POLICY
