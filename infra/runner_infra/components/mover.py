"""The identity of the mover: what it may do, so that it can move runs to other pools."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import managedidentity

from runner_infra.components.batch_account import BatchAccountComponent
from runner_infra.components.context import StackContext, assign_role
from runner_infra.components.data_store import DataStore
from runner_infra.components.identity import (
    BATCH_JOB_SUBMITTER,
    BLOB_DATA_CONTRIBUTOR,
    BLOB_DATA_READER,
    NO_DELETION,
)


class MoverIdentity(pulumi.ComponentResource):
    """A user-assigned identity of the mover's pool, in which no run may be.

    It reads and changes jobs, reads pools, reads the code of the mover, and reads and changes the
    documents of runs, without a right to delete them. Nodes of runs have another identity, and get
    no token of this one. Its pool must depend on `ready`.
    """

    def __init__(
        self, name: str, context: StackContext, store: DataStore, account: BatchAccountComponent
    ) -> None:
        super().__init__("runner:infra:MoverIdentity", name)
        child = pulumi.ResourceOptions(parent=self)
        self.identity = managedidentity.UserAssignedIdentity(
            "identity-mover",
            resource_name_=context.names.of("id-mover"),
            **context.placed,
            opts=child,
        )
        roles: list[tuple[str, str, pulumi.Input[str], str | None]] = [
            ("mover-changes-jobs", BATCH_JOB_SUBMITTER, account.account_id, None),
            ("mover-reads-code", BLOB_DATA_READER, store.container("code", None).id, None),
        ]
        for team in (None, *store.teams):
            suffix = "" if team is None else f"-{team}"
            runs = store.container("runs", team).id
            role = (f"mover-writes-runs{suffix}", BLOB_DATA_CONTRIBUTOR, runs, NO_DELETION)
            roles.append(role)
        self.ready: list[pulumi.Resource] = [
            assign_role(
                role_name,
                context,
                role,
                principal_id=self.identity.principal_id,
                scope=scope,
                opts=child,
                condition=condition,
            )
            for role_name, role, scope, condition in roles
        ]
        self.register_outputs({"identity": self.identity.id})
