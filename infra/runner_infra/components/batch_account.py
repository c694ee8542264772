"""The Batch account: sign-in only with Entra, auto-storage through a managed identity."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import batch

from runner_infra.components.context import StackContext
from runner_infra.components.data_store import DataStore
from runner_infra.components.identity import Identities
from runner_infra.config.naming import AccountName


class BatchAccountComponent(pulumi.ComponentResource):
    """A Batch account in Batch-managed allocation mode.

    Since March 2026, spot nodes no longer need allocation mode UserSubscription.
    Source: github.com/Azure/Batch issue 196 and azure-docs 8aed47d (2026-04-14).

    With private access, requests reach it only through its private endpoints, and so do its nodes.

    An adopted account is only read; its modes, identity and storage do not change.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        store: DataStore,
        identities: Identities,
        adopted: AccountName | None = None,
        *,
        private: bool = False,
    ) -> None:
        super().__init__("runner:infra:BatchAccount", name)
        self.group_name: pulumi.Input[str] = (
            adopted.group if adopted else context.resource_group_name
        )
        account = (
            self._read(adopted)
            if adopted
            else self._account(context, store, identities, private=private)
        )
        self.account_id: pulumi.Output[str] = account.id
        self.account_name: pulumi.Output[str] = account.name
        self.endpoint = account.account_endpoint.apply(lambda host: f"https://{host}")
        self.register_outputs({"account": self.account_name, "endpoint": self.endpoint})

    def _read(self, adopted: AccountName) -> pulumi.Output[batch.GetBatchAccountResult]:
        return batch.get_batch_account_output(
            account_name=adopted.name,
            resource_group_name=adopted.group,
            opts=pulumi.InvokeOutputOptions(parent=self),
        )

    def _account(
        self, context: StackContext, store: DataStore, identities: Identities, *, private: bool
    ) -> batch.BatchAccount:
        access = batch.PublicNetworkAccessType
        return batch.BatchAccount(
            "batch",
            account_name=context.names.batch_account,
            **context.placed,
            pool_allocation_mode=batch.PoolAllocationMode.BATCH_SERVICE,
            allowed_authentication_modes=[batch.AuthenticationMode.AAD],
            public_network_access=access.DISABLED if private else access.ENABLED,
            identity=_identity(identities),
            auto_storage=_auto_storage(store, identities),
            # The account signs in to its storage with this role.
            opts=pulumi.ResourceOptions(parent=self, depends_on=identities.ready),
        )


def _identity(identities: Identities) -> batch.BatchAccountIdentityArgs | None:
    if identities.account is None:
        return None
    return batch.BatchAccountIdentityArgs(
        type=batch.ResourceIdentityType.USER_ASSIGNED,
        user_assigned_identities=[identities.account.id],
    )


def _auto_storage(
    store: DataStore, identities: Identities
) -> batch.AutoStorageBasePropertiesArgs | None:
    """Return the auto-storage for application packages, which runs do not need."""
    if identities.account is None:
        return None
    return batch.AutoStorageBasePropertiesArgs(
        storage_account_id=store.account_id,
        authentication_mode=batch.AutoStorageAuthenticationMode.BATCH_ACCOUNT_MANAGED_IDENTITY,
        node_identity_reference=batch.ComputeNodeIdentityReferenceArgs(
            resource_id=identities.nodes.id
        ),
    )
