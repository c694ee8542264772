"""The clouds of Azure: names, endpoints, token audiences and domains of their services.

The only place with names of hosts in Azure: clients, agent and Pulumi program take them from here.

Sources:

- names, endpoints and domains: `cloud.py` of azure-cli-core, which `az cloud show` prints, and
  `azure_china.go` and `azure_gov.go` of github.com/hashicorp/go-azure-sdk, which azure-native uses
- audience of Batch: `batch_resource_id` there. That of storage is the same in all clouds, and
  belongs to the modules that use it:
  https://learn.microsoft.com/rest/api/storageservices/authorize-with-azure-active-directory
  (read 2026-11-29)
- private DNS zones: https://learn.microsoft.com/azure/private-link/private-endpoint-dns
  (read 2026-11-29)
- audience of federated credentials:
  https://learn.microsoft.com/entra/workload-id/workload-identity-federation-create-trust
  (read 2026-11-29)
- prices of China, in CNY:
  https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices-china
  (read 2026-11-29)
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Cloud:
    """One cloud of Azure. URLs have no slash at the end, domains none at the beginning.

    Attributes:
        name: The value of the setting `cloud`.
        az_name: Its name in `az cloud set --name`.
        provider_name: Its name in ARM_ENVIRONMENT and azure-native's `environment`.
        title: Its name in text.
        authority: Entra, which issues tokens.
        exchange_audience: The audience of a token of another issuer that Entra exchanges.
        management: Azure Resource Manager, and the audience of its tokens. Azure Monitor and Log
            Analytics are configured through it.
        graph: Microsoft Graph, and the audience of its tokens.
        logs: Queries of Log Analytics, and the audience of their tokens.
        batch_resource: The audience of Batch, with the slash that the SDKs send.
        batch_domain: Domain of Batch accounts, below NAME.REGION.
        storage_domain: Domain of storage accounts, below NAME.blob and NAME.file.
        vault_domain: Domain of key vaults.
        vault_zone: Private DNS zone of key vaults, without `privatelink`.
        registry_domain: Domain of container registries.
        prices: Why no service has its prices in USD; empty if the Retail Prices API has them.
        regions: How the names of its regions begin; empty for the public cloud.
    """

    name: str
    az_name: str
    provider_name: str
    title: str
    authority: str
    exchange_audience: str
    management: str
    graph: str
    logs: str
    batch_resource: str
    batch_domain: str
    storage_domain: str
    vault_domain: str
    vault_zone: str
    registry_domain: str
    prices: str = ""
    regions: tuple[str, ...] = ()

    @property
    def storage_blob_domain(self) -> str:
        """Domain of blob endpoints, such as AZURE_STORAGE_DOMAIN of Pulumi's state."""
        return f"blob.{self.storage_domain}"

    @property
    def vault_resource(self) -> str:
        """The audience of tokens for key vaults."""
        return f"https://{self.vault_domain}"

    def private_zone(self, service: str) -> str:
        """Return the private DNS zone for private endpoints of a service.

        Args:
            service: `batch` (the account and node management), `blob`, `file`, `queue`, `table`,
                `dfs`, `vault` or `registry`.

        Raises:
            KeyError: another service.
        """
        zones = {
            "batch": self.batch_domain,
            "vault": self.vault_zone,
            "registry": self.registry_domain,
            **{
                each: f"{each}.{self.storage_domain}"
                for each in ("blob", "file", "queue", "table", "dfs")
            },
        }
        return f"privatelink.{zones[service]}"

    def has_host(self, host: str) -> bool:
        """Return True for a host of Entra or of a service in this cloud."""
        own = {urlsplit(url).hostname for url in (self.authority, self.management, self.graph)}
        domains = (
            *(self.batch_domain, self.storage_domain, self.vault_domain),
            self.registry_domain,
        )
        return host in own or host.endswith(tuple(f".{domain}" for domain in domains))


PUBLIC = Cloud(
    name="public",
    az_name="AzureCloud",
    provider_name="public",
    title="Azure",
    authority="https://login.microsoftonline.com",
    exchange_audience="api://AzureADTokenExchange",
    management="https://management.azure.com",
    graph="https://graph.microsoft.com",
    logs="https://api.loganalytics.io",
    batch_resource="https://batch.core.windows.net/",
    batch_domain="batch.azure.com",
    storage_domain="core.windows.net",
    vault_domain="vault.azure.net",
    vault_zone="vaultcore.azure.net",
    registry_domain="azurecr.io",
)
CHINA = Cloud(
    name="china",
    az_name="AzureChinaCloud",
    provider_name="china",
    title="Azure in China",
    authority="https://login.chinacloudapi.cn",
    exchange_audience="api://AzureADTokenExchangeChina",
    management="https://management.chinacloudapi.cn",
    graph="https://microsoftgraph.chinacloudapi.cn",
    logs="https://api.loganalytics.azure.cn",
    batch_resource="https://batch.chinacloudapi.cn/",
    batch_domain="batch.chinacloudapi.cn",
    storage_domain="core.chinacloudapi.cn",
    vault_domain="vault.azure.cn",
    vault_zone="vaultcore.azure.cn",
    registry_domain="azurecr.cn",
    prices="its price sheet is in CNY, and the Azure Retail Prices API does not contain it",
    regions=("china",),
)
USGOV = Cloud(
    name="usgov",
    az_name="AzureUSGovernment",
    provider_name="usgovernment",
    title="Azure Government",
    authority="https://login.microsoftonline.us",
    exchange_audience="api://AzureADTokenExchangeUSGov",
    management="https://management.usgovcloudapi.net",
    graph="https://graph.microsoft.us",
    logs="https://api.loganalytics.us",
    batch_resource="https://batch.core.usgovcloudapi.net/",
    batch_domain="batch.usgovcloudapi.net",
    storage_domain="core.usgovcloudapi.net",
    vault_domain="vault.usgovcloudapi.net",
    vault_zone="vaultcore.usgovcloudapi.net",
    registry_domain="azurecr.us",
    regions=("usgov", "usdod"),
)
CLOUDS = (PUBLIC, CHINA, USGOV)


def cloud_at(url: str) -> Cloud | None:
    """Return the cloud that a URL or a host belongs to, or None if it is in none of them."""
    host = (urlsplit(url if "://" in url else f"//{url}").hostname or "").lower()
    return next((cloud for cloud in CLOUDS if cloud.has_host(host)), None)


def cloud_of_region(region: str) -> Cloud:
    """Return the cloud of a region such as `chinanorth3`, in lower case."""
    sovereign = (cloud for cloud in CLOUDS if cloud.regions)
    return next((cloud for cloud in sovereign if region.startswith(cloud.regions)), PUBLIC)
