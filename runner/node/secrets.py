"""The run's secrets on the node: values that came with the task, and those of key vaults."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from runner.node.deadlines import read_all
from runner.node.documents import parse_json
from runner.node.failures import StageFailedError
from runner.node.identity import ManagedIdentityCredential
from runner.node.patience import Patience
from runner.node.redaction import Redactor
from runner.node.redirects import Redirects
from runner.node.transport import PASSING_STATUS

STEP = "secrets"
VARIABLE = "RUNNER_SECRETS"  # a secret: never given to the script, never printed
API_VERSION = "7.4"  # Key Vault REST docs, "Get Secret"
TIMEOUT_S = 30.0
VAULT_DOMAINS = ("vault.azure.net", "vault.azure.cn", "vault.usgovcloudapi.net")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WHY = {
    401: "the vault does not know the node's identity",
    403: "the node's identity may not read it: give it the role Key Vault Secrets User",
    404: "there is no such secret",
}


class Secrets:
    """Values by variable; every value that becomes known is hidden from then on."""

    def __init__(
        self,
        values: Mapping[str, str],
        keyvault: Mapping[str, str],
        client_id: str | None,
        redactor: Redactor,
    ) -> None:
        self._values = dict(values)
        self._keyvault = dict(keyvault)
        self._client_id = client_id
        self._redactor = redactor
        for value in self._values.values():
            redactor.add(value)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted({*self._values, *self._keyvault}))})"

    @property
    def in_vaults(self) -> bool:
        """Whether a vault has to be asked."""
        return bool(self._keyvault)

    def resolve(self, patience: Patience) -> dict[str, str]:
        """The script's variables. Raises StageFailedError."""
        values = dict(self._values)
        for name, url in self._keyvault.items():
            values[name] = self._read(name, url, patience)
            self._redactor.add(values[name])
        return values

    def _read(self, name: str, url: str, patience: Patience) -> str:
        identity = ManagedIdentityCredential(self._client_id, resource=_resource(name, url))
        last: Exception | None = None
        for _ in patience.delays():
            try:
                return _get(f"{url.rstrip('/')}?api-version={API_VERSION}", identity.headers())
            except urllib.error.HTTPError as err:
                err.close()
                last = err
                if err.code not in PASSING_STATUS:
                    why = _WHY.get(err.code, str(err.reason))
                    raise _unavailable(name, url, f"{err.code}, {why}") from err
            except (KeyError, TypeError, ValueError) as err:
                raise _unavailable(name, url, "its answer is not a secret") from err
            except (OSError, http.client.HTTPException) as err:
                last = err
        raise _unavailable(name, url, str(last)) from last


def load_secrets(
    environment: Mapping[str, str], client_id: str | None, redactor: Redactor
) -> Secrets:
    """Read RUNNER_SECRETS. Raises ValueError that says nothing of its content."""
    try:
        raw: dict[str, Any] = parse_json(environment.get(VARIABLE) or "{}")
        return Secrets(_texts(raw, "values"), _texts(raw, "keyvault"), client_id, redactor)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{VARIABLE} is not as expected") from None


def _texts(raw: dict[str, Any], name: str) -> dict[str, str]:
    entries: dict[str, Any] = raw.get(name) or {}
    return {str(key): str(value) for key, value in entries.items()}


def _resource(name: str, url: str) -> str:
    """Whom the token is for. A token goes to vaults only, and to this machine in tests."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    for domain in VAULT_DOMAINS:
        if parts.scheme == "https" and host.endswith(f".{domain}"):
            return f"https://{domain}"
    if parts.scheme == "http" and host in _LOOPBACK:
        return f"https://{VAULT_DOMAINS[0]}"
    raise _unavailable(name, url, "that is no key vault")


def _get(url: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - see _resource
    # The token is for this vault alone.
    opener = urllib.request.build_opener(Redirects(lambda _: False))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return str(parse_json(read_all(response))["value"])


def _unavailable(name: str, url: str, why: str) -> StageFailedError:
    return StageFailedError(STEP, "SecretUnavailable", f"secret {name}: {url}: {why}")
