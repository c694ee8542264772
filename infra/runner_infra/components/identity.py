"""Managed identities of nodes and of the Batch account, and the roles of operators.

Role ids: https://learn.microsoft.com/azure/role-based-access-control/built-in-roles
(read 2026-11-21).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import authorization, managedidentity, storage

from runner_infra.components.context import StackContext, assign_role
from runner_infra.components.data_store import DataStore
from runner_infra.planning.earlier import DEPLOYER_TYPE, OPERATORS_TYPE

BLOB_DATA_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
BLOB_DATA_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
# Allows requests for user delegation keys, which sign SAS, but no access to data.
_BLOB_DELEGATOR = "db58b8e5-c6ad-4a2a-8342-4190687cbf4a"
# Azure Files over REST with a token; the SMB roles do not apply.
_FILE_DATA_PRIVILEGED_CONTRIBUTOR = "69566ab7-960f-475b-8e7c-b3118f30c6bd"
# Manages pools and jobs, but not the account.
_BATCH_DATA_CONTRIBUTOR = "6aaa78f1-f7de-44ca-8722-c64a23943cae"
# Manages jobs and tasks, and reads pools.
# https://learn.microsoft.com/azure/batch/batch-role-based-access-control (read 2026-11-21)
BATCH_JOB_SUBMITTER = "48e5e92e-a480-4e71-aa9c-2778f4c13781"
# Batch stores application packages in containers `app-...` of the auto-storage account, which it
# creates with the first package.
# https://learn.microsoft.com/azure/role-based-access-control/conditions-format (read 2026-11-22)
_PACKAGES_ONLY = (
    "((!(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read'}))"
    " OR (@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    " StringStartsWith 'app-'))"
)

# Agents delete old checkpoints, but never a model. No container has this name. The action has no
# suboperations, knows the container's name, and is not needed to write a blob again:
# https://learn.microsoft.com/azure/storage/blobs/storage-auth-abac-attributes
# ("Delete a blob", 2024-04-01, read 2026-11-28)
NO_DELETION = (
    "((!(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete'}))"
    " OR (@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    " StringEquals '-'))"
)


class Identities(pulumi.ComponentResource):
    """User-assigned identities with minimal roles.

    `nodes` writes runs, adds models, and reads data, code and application packages. Nodes of a team
    have an identity of their own, which writes the runs and models of the team, and reads its code
    and the data. Batch uses `account` to sign in to its auto-storage. If the storage or the Batch
    account is adopted, `account` is None and packages are not read. The Batch account and the pools
    must depend on the assignments in `ready`.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        store: DataStore,
        *,
        auto_storage: bool = True,
    ) -> None:
        """Declare the identities and their roles.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            store: the storage account.
            auto_storage: True if the store is the auto-storage of the Batch account.
        """
        super().__init__("runner:infra:Identities", name)
        self._context = context
        self._store = store
        self.nodes = self._identity("nodes", context.marks)
        self.teams = {team: self._identity(f"nodes-{team}") for team in store.teams}
        self.account = self._identity("account") if auto_storage else None
        self.ready: list[pulumi.Resource] = []
        for team in (None, *store.teams):
            self.ready += self._grant_to_nodes(team)
        outputs = {"nodes": self.nodes.id}
        if self.account is not None:
            reader, writer = BLOB_DATA_READER, BLOB_DATA_CONTRIBUTOR
            self.ready += [
                self._grant(
                    "nodes-read-packages", self.nodes, reader, store.account_id, _PACKAGES_ONLY
                ),
                # Batch creates its own containers in the auto-storage account.
                self._grant("account-auto-storage", self.account, writer, store.account_id),
            ]
            outputs["account"] = self.account.id
        self.register_outputs(outputs)

    def of_nodes(self, team: str | None) -> managedidentity.UserAssignedIdentity:
        """Return the identity of the nodes of a team; None is the shared part of the stack."""
        return self.nodes if team is None else self.teams[team]

    def let_nodes_add_tasks(self, batch_account: pulumi.Input[str]) -> None:
        """Allow nodes to add tasks to all jobs of the account; Azure has no role for one job.

        The configuration refuses this in a stack with teams.
        """
        self._grant("nodes-add-tasks", self.nodes, BATCH_JOB_SUBMITTER, batch_account)

    def _identity(
        self, kind: str, marks: Mapping[str, str] | None = None
    ) -> managedidentity.UserAssignedIdentity:
        context = self._context
        placed = context.placed
        placed["tags"] |= marks or {}
        return managedidentity.UserAssignedIdentity(
            f"identity-{kind}",
            resource_name_=context.names.of(f"id-{kind}"),
            **placed,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _grant_to_nodes(self, team: str | None) -> list[pulumi.Resource]:
        """Declare the roles of the nodes of a team, or of the shared part if it is None."""
        writer, reader = BLOB_DATA_CONTRIBUTOR, BLOB_DATA_READER
        container, identity = self._store.container, self.of_nodes(team)
        suffix = "" if team is None else f"-{team}"
        return [
            self._grant(f"{name}{suffix}", identity, role, container(kind, team).id, condition)
            for name, role, kind, condition in (
                ("nodes-write-runs", writer, "runs", None),
                ("nodes-write-models", writer, "models", NO_DELETION),
                ("nodes-read-data", reader, "data", None),
                ("nodes-read-code", reader, "code", None),
            )
        ]

    def _grant(
        self,
        name: str,
        identity: managedidentity.UserAssignedIdentity,
        role: str,
        scope: pulumi.Input[str],
        condition: str | None = None,
    ) -> pulumi.Resource:
        return assign_role(
            name,
            self._context,
            role,
            principal_id=identity.principal_id,
            scope=scope,
            opts=pulumi.ResourceOptions(parent=self),
            condition=condition,
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """A principal that submits runs. Azure rejects role assignments with the wrong kind."""

    principal_id: str
    kind: authorization.PrincipalType

    @property
    def name(self) -> str:
        """The prefix of its resources, which does not depend on its position in the list."""
        return f"operator-{self.principal_id.lower()}"


class Operators(pulumi.ComponentResource):
    """The roles of the principals that submit runs: deployers and the configured operators."""

    def __init__(
        self,
        name: str,
        context: StackContext,
        operators: Sequence[Operator],
        store: DataStore,
        batch_account: pulumi.Input[str],
        outputs: storage.BlobContainer,
        *,
        deployers: Sequence[Operator] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Declare the role assignments.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            operators: the principals.
            store: the storage; a file share is also accessed over REST, for `runner data`.
            batch_account: the ID of the Batch account.
            outputs: the container with the outputs of the stack, which `runner join` reads.
            deployers: those operators who have the roles because they have deployed the stack. The
                state remembers them, so that the next deployment by another one keeps their roles.
            names: object IDs of operators by name, which the state remembers, too.
        """
        super().__init__(OPERATORS_TYPE, name)
        for deployer in deployers:
            _Deployer(deployer, opts=pulumi.ResourceOptions(parent=self))
        roles = [*_storage_roles(store, outputs), ("batch", _BATCH_DATA_CONTRIBUTOR, batch_account)]
        for operator in operators:
            for kind, role, scope in roles:
                assign_role(
                    f"{operator.name}-{kind}",
                    context,
                    role,
                    principal_id=operator.principal_id,
                    principal_type=operator.kind,
                    scope=scope,
                    opts=pulumi.ResourceOptions(parent=self),
                )
        self.register_outputs({"names": dict(names or {})})


class _Deployer(pulumi.ComponentResource):
    """Records in the state that a principal has deployed the stack; it creates nothing in Azure."""

    def __init__(self, deployer: Operator, opts: pulumi.ResourceOptions) -> None:
        super().__init__(DEPLOYER_TYPE, f"deployer-{deployer.principal_id.lower()}", opts=opts)
        self.register_outputs({})


def _storage_roles(
    store: DataStore, outputs: storage.BlobContainer
) -> Sequence[tuple[str, str, pulumi.Input[str]]]:
    """Return roles of an operator; in an adopted account, only for the stack's containers.

    Operators may have roles on an adopted account, and Azure rejects a second assignment.
    """
    if store.adopted:
        containers = sorted(store.containers.items())
        return [
            ("delegate", _BLOB_DELEGATOR, store.account_id),
            *((f"blobs-{name}", BLOB_DATA_CONTRIBUTOR, one.id) for name, one in containers),
            ("stack", BLOB_DATA_READER, outputs.id),
        ]
    roles = [("blobs", BLOB_DATA_CONTRIBUTOR, store.account_id)]
    if store.share is not None:
        roles.append(("files", _FILE_DATA_PRIVILEGED_CONTRIBUTOR, store.account_id))
    return roles
