"""Which hosts of Azure the gateway serves, and which tokens they accept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from batch_emulator.gateway.authority import DOMAINS
from batch_emulator.gateway.sign_in import MANAGEMENT_HOST, SIGN_IN_HOST, NamedAccounts

# Audiences without a final slash. Storage also accepts the audience of a single account
# (https://learn.microsoft.com/azure/storage/common/storage-auth-aad-msi, read 2026-11-23).
_BATCH_AUDIENCES = frozenset({"https://batch.core.windows.net"})
_STORAGE_AUDIENCE = "https://storage.azure.com"
_MANAGEMENT_AUDIENCES = frozenset(
    {f"https://{MANAGEMENT_HOST}", "https://management.core.windows.net"}
)


@dataclass(frozen=True, slots=True)
class LocalServices:
    """The local services behind Azure's host names; the paths of storage URLs are the account."""

    account: NamedAccounts
    batch_url: str
    blob_url: str
    file_url: str

    def batch_pattern(self) -> re.Pattern[str]:
        """Return the pattern of the host of the Batch account, in any region."""
        return re.compile(rf"{re.escape(self.account.name)}\.[a-z0-9]+\.batch\.azure\.com")

    def url_of(self, host: str) -> str | None:
        """Return the URL of the local service behind a host of Batch or Storage, or None."""
        if self.batch_pattern().fullmatch(host):
            return self.batch_url
        storage = {"blob": self.blob_url, "file": self.file_url}
        for service, url in storage.items():
            if host == self.account.storage_host(service):
                return url
        return None

    def knows(self, host: str) -> bool:
        """Return True if the host is served."""
        return host in (SIGN_IN_HOST, MANAGEMENT_HOST) or self.url_of(host) is not None

    def claims(self, host: str) -> bool:
        """Return True if the host is one of the account on Azure, served here or not."""
        name, _, domain = host.partition(".")
        own = (self.account.name, f"{self.account.name}-secondary")
        return name in own and any(domain.endswith(end) for end in DOMAINS)

    def audiences(self, host: str) -> frozenset[str]:
        """Return the audiences of the tokens that a host of Azure accepts."""
        if host == MANAGEMENT_HOST:
            return _MANAGEMENT_AUDIENCES
        if self.batch_pattern().fullmatch(host):
            return _BATCH_AUDIENCES
        return frozenset({_STORAGE_AUDIENCE, f"https://{host}"})
