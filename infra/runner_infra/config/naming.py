"""Names of the resources of a stack. The same subscription and stack always give the same names.

Rules for length and characters:
https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
(read 2026-11-21).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass

ARM_ACCOUNT = (
    r"/subscriptions/(?P<subscription>[0-9A-Fa-f-]{36})/resourceGroups/(?P<group>[^/\s]{1,90})"
    r"/providers/(?P<type>[^/\s]{1,90}/[^/\s]{1,90})/(?P<name>[^/\s]{1,64})"
)
_ROLE_NAMES = uuid.UUID("8b1f6d3c-52d7-4f0e-9a55-0b6f2f3c9f57")


@dataclass(frozen=True, slots=True)
class AccountName:
    """The resource group and the name of a storage or Batch account."""

    group: str
    name: str

    @classmethod
    def of_id(cls, text: str) -> AccountName:
        """Return the account for a Resource Manager ID. Raise ValueError for another text."""
        found = re.fullmatch(ARM_ACCOUNT, text, re.IGNORECASE)
        if found is None:
            raise ValueError(f"not the ID of an account: {text!r}")
        return cls(found["group"], found["name"])


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one stack. Names that must be unique in all of Azure end in a hash."""

    stack: str
    subscription_id: str

    @property
    def slug(self) -> str:
        """The stack's name as at most 20 lower-case letters, digits and single dashes.

        If characters were replaced, it ends in a hash, so that stacks `a.b` and `a-b` get different
        resource groups.
        """
        if self._plain == self.stack and len(self.stack) <= 20:
            return self.stack
        suffix = hashlib.sha256(self.stack.encode()).hexdigest()[:6]
        return f"{self._plain[:13].strip('-')}-{suffix}"

    @property
    def _plain(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.stack.lower()).strip("-") or "stack"

    @property
    def _unique(self) -> str:
        text = f"{self.subscription_id.lower()}/{self.stack}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def _compact(self) -> str:
        """At most 24 lower-case letters and digits, unique in Azure."""
        return f"runner{self._plain.replace('-', '')[:10]}{self._unique}"

    @property
    def resource_group(self) -> str:
        """The resource group of all resources of the stack."""
        return self.of("rg")

    @property
    def storage_account(self) -> str:
        """3 to 24 lower-case letters and digits, unique in Azure."""
        return self._compact

    @property
    def batch_account(self) -> str:
        """3 to 24 lower-case letters and digits, unique in the region."""
        return self._compact

    @property
    def registry(self) -> str:
        """5 to 50 letters and digits, unique in Azure."""
        return self._compact

    @property
    def gallery(self) -> str:
        """Letters, digits, dots and underscores."""
        return f"runner_{self.slug.replace('-', '_')}"

    @property
    def nodes_identity(self) -> str:
        """The identity of the nodes of the shared part."""
        return self.of("id-nodes")

    @property
    def outputs_container(self) -> str:
        """The container whose metadata has the outputs of the stack."""
        return self.of("stack")

    def of(self, kind: str) -> str:
        """Return a name that is unique in the resource group, such as `vnet-runner-dev`."""
        return f"{kind}-runner-{self.slug}"

    def role_assignment(self, *parts: str) -> str:
        """Return the GUID of a role assignment, which depends only on the stack and `parts`."""
        return str(uuid.uuid5(_ROLE_NAMES, "/".join((self.subscription_id, self.stack, *parts))))
