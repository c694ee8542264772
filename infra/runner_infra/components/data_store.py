"""The storage account: containers for runs, models, data and code, and an optional file share."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pulumi
from pulumi_azure_native import storage

from runner.contract import OUTPUTS_KEY, OUTPUTS_RESOURCE
from runner_infra.components.context import StackContext
from runner_infra.config.naming import AccountName
from runner_infra.config.stack import CONTAINERS, TEAM_CONTAINERS, StorageConfig

_SOFT_DELETE_DAYS = 7
_MAX_STANDARD_SHARE_GIB = 5120
# Of a lifecycle rule:
# https://learn.microsoft.com/azure/storage/blobs/lifecycle-management-policy-structure
# (read 2026-11-28)
_MAX_PREFIXES = 10


@dataclass(frozen=True, slots=True)
class Firewall:
    """The network and the ranges of public addresses that the storage account allows."""

    subnet_id: pulumi.Input[str] | None
    ranges: Sequence[str]


_NOBODY = Firewall(None, ())


class DataStore(pulumi.ComponentResource):
    """A storage account whose blobs require a sign-in with Entra.

    `account_key` is None without a file share. The account and its containers are protected:
    `pulumi destroy` keeps them, and the models in them, until the protection is removed.
    `containers` has those of the shared part by their kind, and those of teams as `runs-TEAM`.

    An adopted account is only read. The stack adds containers with unique names to it; soft delete,
    lifecycle rules and firewall remain those of the account's owner.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: StorageConfig,
        firewall: Firewall | None = None,
        *,
        adopted: AccountName | None = None,
        teams: Sequence[str] = (),
        private: bool = False,
        more: Sequence[str] = (),
    ) -> None:
        """Declare the account, or only its containers if it is adopted.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            config: the configuration of the account.
            firewall: None allows every network; blobs still require a sign-in.
            adopted: an existing account, to which `config` and `firewall` do not apply.
            teams: the teams with containers of their own.
            private: the account has no public address; `firewall` does not apply.
            more: further containers.
        """
        super().__init__("runner:infra:DataStore", name)
        self._context = context
        self._child = pulumi.ResourceOptions(parent=self, protect=True)
        self.adopted = adopted is not None
        self._group: pulumi.Input[str] = adopted.group if adopted else context.resource_group_name
        account = (
            self._read(adopted) if adopted else self._account(config, firewall, private=private)
        )
        self.account_id: pulumi.Output[str] = account.id
        self.account_name: pulumi.Output[str] = account.name
        service = self._settings = None if adopted else self._service(config)
        self.teams = teams
        of_teams = (f"{kind}-{team}" for team in teams for kind in TEAM_CONTAINERS)
        self.containers = {
            container: self._container(container, service)
            for container in (*CONTAINERS, *of_teams, *more)
        }
        if service is not None:
            self._lifecycle(config, service)
        self.share = None if config.file_share_gib is None else self._share(config.file_share_gib)
        self.account_key = self._key() if self.share is not None else None
        endpoints = account.primary_endpoints
        self.blob_endpoint = endpoints.blob.apply(_strip_slash)
        self.file_endpoint = endpoints.file.apply(_strip_slash) if self.share is not None else None
        self.register_outputs({"account": self.account_name, "blob_endpoint": self.blob_endpoint})

    def container(self, kind: str, team: str | None) -> storage.BlobContainer:
        """Return the container of a kind that nodes of a team use; None is the shared part."""
        return self.containers[f"{kind}-{team}" if team and kind in TEAM_CONTAINERS else kind]

    def publish(self, outputs: pulumi.Output[str | None]) -> storage.BlobContainer:
        """Declare the container whose metadata has the encoded outputs of the stack.

        Everybody who may list containers can read it from Resource Manager, and a deployment writes
        it without a role for blobs, which takes effect only minutes after it was assigned. It has
        no blobs, so `pulumi destroy` deletes it.
        """
        return storage.BlobContainer(
            OUTPUTS_RESOURCE,
            account_name=self.account_name,
            resource_group_name=self._group,
            container_name=self._context.names.outputs_container,
            public_access=storage.PublicAccess.NONE,
            metadata=outputs.apply(lambda value: {OUTPUTS_KEY: value} if value else {}),
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[self._settings] if self._settings else None
            ),
        )

    def _read(self, adopted: AccountName) -> pulumi.Output[storage.GetStorageAccountResult]:
        return storage.get_storage_account_output(
            account_name=adopted.name,
            resource_group_name=adopted.group,
            opts=pulumi.InvokeOutputOptions(parent=self),
        )

    def _account(
        self, config: StorageConfig, firewall: Firewall | None, *, private: bool
    ) -> storage.StorageAccount:
        context, access = self._context, storage.PublicNetworkAccess
        return storage.StorageAccount(
            "storage",
            account_name=config.account_name or context.names.storage_account,
            **context.placed,
            kind=storage.Kind.STORAGE_V2,
            sku=storage.SkuArgs(name=storage.SkuName.STANDARD_LRS),
            access_tier=storage.AccessTier.HOT,
            allow_blob_public_access=False,
            allow_cross_tenant_replication=False,
            # An SMB mount needs an account key; Batch cannot mount with a managed identity
            # (azure-native 3.29 `AzureFileShareConfiguration`, seen 2026-11-20).
            allow_shared_key_access=config.file_share_gib is not None,
            default_to_o_auth_authentication=True,
            enable_https_traffic_only=True,
            minimum_tls_version=storage.MinimumTlsVersion.TLS1_2,
            is_local_user_enabled=False,
            # Set in any case: Azure keeps a property that an update omits.
            public_network_access=access.DISABLED if private else access.ENABLED,
            network_rule_set=_network_rules(_NOBODY if private else firewall),
            # Required for shares above 5 TiB; requires locally or zone redundant storage.
            # https://learn.microsoft.com/azure/storage/files/storage-how-to-create-file-share
            # ("Enable large file shares", read 2026-11-21)
            large_file_shares_state=(
                storage.LargeFileSharesState.ENABLED
                if (config.file_share_gib or 0) > _MAX_STANDARD_SHARE_GIB
                else None
            ),
            opts=self._child,
        )

    def _service(self, config: StorageConfig) -> storage.BlobServiceProperties:
        kept = storage.DeleteRetentionPolicyArgs(enabled=True, days=_SOFT_DELETE_DAYS)
        return storage.BlobServiceProperties(
            "blob-service",
            account_name=self.account_name,
            resource_group_name=self._group,
            blob_services_name="default",
            delete_retention_policy=kept,
            container_delete_retention_policy=kept,
            last_access_time_tracking_policy=storage.LastAccessTimeTrackingPolicyArgs(
                enable=config.keep_runs_days is not None,
                name=storage.Name.ACCESS_TIME_TRACKING,
                tracking_granularity_in_days=1,
                blob_type=["blockBlob"],
            ),
            opts=self._child,
        )

    def _container(
        self, container: str, service: storage.BlobServiceProperties | None
    ) -> storage.BlobContainer:
        """Declare a container; in an adopted account, its name is unique to the stack."""
        return storage.BlobContainer(
            f"container-{container}",
            account_name=self.account_name,
            resource_group_name=self._group,
            container_name=self._context.names.of(container) if self.adopted else container,
            public_access=storage.PublicAccess.NONE,
            # The service responds with 409 to concurrent changes of settings and containers.
            opts=pulumi.ResourceOptions.merge(
                self._child, pulumi.ResourceOptions(depends_on=[service] if service else None)
            ),
        )

    def _lifecycle(self, config: StorageConfig, service: storage.BlobServiceProperties) -> None:
        storage.ManagementPolicy(
            "lifecycle",
            account_name=self.account_name,
            resource_group_name=self._group,
            management_policy_name="default",
            policy=storage.ManagementPolicySchemaArgs(rules=_rules(config, self.teams)),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[service]),
        )

    def _share(self, size_gib: int) -> storage.FileShare:
        return storage.FileShare(
            "share",
            account_name=self.account_name,
            resource_group_name=self._group,
            share_name="shared",
            share_quota=size_gib,
            enabled_protocols=storage.EnabledProtocols.SMB,
            access_tier=storage.ShareAccessTier.TRANSACTION_OPTIMIZED,
            opts=self._child,
        )

    def _key(self) -> pulumi.Output[str]:
        keys = storage.list_storage_account_keys_output(
            account_name=self.account_name,
            resource_group_name=self._group,
            opts=pulumi.InvokeOutputOptions(parent=self),
        )
        return pulumi.Output.secret(keys.keys.apply(lambda found: found[0].value))


def _rules(config: StorageConfig, teams: Sequence[str]) -> list[storage.ManagementPolicyRuleArgs]:
    def rules_for(
        name: str, kind: str, blob_type: str, base_blob: storage.ManagementPolicyBaseBlobArgs
    ) -> Iterator[storage.ManagementPolicyRuleArgs]:
        prefixes = [f"{kind}/", *(f"{kind}-{team}/" for team in teams)]
        for start in range(0, len(prefixes), _MAX_PREFIXES):
            part = prefixes[start : start + _MAX_PREFIXES]
            yield _rule(f"{name}-{start}" if start else name, part, blob_type, base_blob)

    cool = storage.DateAfterModificationArgs(
        days_after_modification_greater_than=config.cool_models_days
    )
    base = storage.ManagementPolicyBaseBlobArgs
    rules = [*rules_for("cool-models", "models", "blockBlob", base(tier_to_cool=cool))]
    if config.keep_runs_days is not None:
        # Code is stored once and read by every run that uses it, so it is deleted by its last
        # access, not by its age; old stacks have it below `runs/code/`. Only block blobs have a
        # last access time (docs of `LastAccessTimeTrackingPolicy.blobType`, azure-native 3.29), if
        # tracking is enabled:
        # https://learn.microsoft.com/azure/storage/blobs/lifecycle-management-overview
        # (2025-06-13, read 2026-11-21).
        unread = storage.DateAfterModificationArgs(
            days_after_last_access_time_greater_than=config.keep_runs_days
        )
        old = storage.DateAfterModificationArgs(
            days_after_modification_greater_than=config.keep_runs_days
        )
        rules += rules_for("drop-unread-runs", "runs", "blockBlob", base(delete=unread))
        rules += rules_for("drop-unread-code", "code", "blockBlob", base(delete=unread))
        rules += rules_for("drop-old-logs", "runs", "appendBlob", base(delete=old))
    return rules


def _rule(
    name: str,
    prefixes: Sequence[str],
    blob_type: str,
    base_blob: storage.ManagementPolicyBaseBlobArgs,
) -> storage.ManagementPolicyRuleArgs:
    return storage.ManagementPolicyRuleArgs(
        name=name,
        type=storage.RuleType.LIFECYCLE,
        enabled=True,
        definition=storage.ManagementPolicyDefinitionArgs(
            filters=storage.ManagementPolicyFilterArgs(
                blob_types=[blob_type], prefix_match=list(prefixes)
            ),
            actions=storage.ManagementPolicyActionArgs(base_blob=base_blob),
        ),
    )


def _network_rules(firewall: Firewall | None) -> storage.NetworkRuleSetArgs:
    """Return the firewall. Without one, allow all explicitly: Azure keeps unset properties.

    The Batch service reaches its auto-storage as a trusted service.
    """
    bypass = storage.Bypass.AZURE_SERVICES
    if firewall is None:
        return storage.NetworkRuleSetArgs(
            default_action=storage.DefaultAction.ALLOW,
            bypass=bypass,
            ip_rules=[],
            virtual_network_rules=[],
        )
    return storage.NetworkRuleSetArgs(
        default_action=storage.DefaultAction.DENY,
        bypass=bypass,
        ip_rules=[
            storage.IPRuleArgs(i_p_address_or_range=text, action=storage.Action.ALLOW)
            for text in chain.from_iterable(map(_address_rules, firewall.ranges))
        ],
        virtual_network_rules=[]
        if firewall.subnet_id is None
        else [
            storage.VirtualNetworkRuleArgs(
                virtual_network_resource_id=firewall.subnet_id, action=storage.Action.ALLOW
            )
        ],
    )


def _address_rules(text: str) -> list[str]:
    """Return the rules for a range. The firewall rejects the prefixes /31 and /32.

    https://learn.microsoft.com/azure/storage/common/storage-network-security-ip-address-range
    (read 2026-11-22)
    """
    network = ipaddress.IPv4Network(text)
    if network.prefixlen < 31:
        return [str(network)]
    return [str(address) for address in network]


def _strip_slash(url: str) -> str:
    return url.rstrip("/")
