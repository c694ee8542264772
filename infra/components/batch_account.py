"""The Batch account: sign-in with Entra only, auto-storage through a managed identity."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import batch

from infra.components.context import StackContext
from infra.components.data_store import DataStore
from infra.components.identity import Identities


class BatchAccountComponent(pulumi.ComponentResource):
    """A Batch account in Batch-managed allocation mode.

    Since March 2026, spot nodes no longer need allocation mode UserSubscription.
    Source: github.com/Azure/Batch issue 196 and azure-docs 8aed47d (2026-04-14).
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        store: DataStore,
        identities: Identities,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("runner:infra:BatchAccount", name, None, opts)
        self.account = batch.BatchAccount(
            "batch",
            account_name=context.names.batch_account,
            resource_group_name=context.resource_group_name,
            location=context.location,
            pool_allocation_mode=batch.PoolAllocationMode.BATCH_SERVICE,
            allowed_authentication_modes=[batch.AuthenticationMode.AAD],
            public_network_access=batch.PublicNetworkAccessType.ENABLED,
            identity=batch.BatchAccountIdentityArgs(
                type=batch.ResourceIdentityType.USER_ASSIGNED,
                user_assigned_identities=[identities.account.id],
            ),
            auto_storage=batch.AutoStorageBasePropertiesArgs(
                storage_account_id=store.account.id,
                authentication_mode=batch.AutoStorageAuthenticationMode.BATCH_ACCOUNT_MANAGED_IDENTITY,
                node_identity_reference=batch.ComputeNodeIdentityReferenceArgs(
                    resource_id=identities.nodes.id
                ),
            ),
            tags=dict(context.tags),
            # The account signs in to its storage with this role.
            opts=pulumi.ResourceOptions(parent=self, depends_on=identities.ready),
        )
        self.endpoint = self.account.account_endpoint.apply(lambda host: f"https://{host}")
        self.register_outputs({"account": self.account.name, "endpoint": self.endpoint})
