"""One sign-in for this machine: the credential of our clients, and the variables with which
azure-native signs in as the same principal.

`ARM_` variables are those of azure-native, `AZURE_` variables those of the Azure SDKs. Both are
understood in both places; `ARM_` variables win, as azure-native knows no others.
https://www.pulumi.com/registry/packages/azure-native/installation-configuration and
https://learn.microsoft.com/azure/developer/python/sdk/authentication/credential-chains
(read 2026-11-22).
"""

# ruff: noqa: PLC0415  azure.identity takes 0.4 s to import
from __future__ import annotations

import json
import logging
import shutil
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

# The audience of a token that Entra exchanges for one of its own.
_EXCHANGE = "api://AzureADTokenExchange"
_TIMEOUT_S = 30
# By ARM_ENVIRONMENT; hosts of azure.identity.AzureAuthorityHosts.
_AUTHORITIES = {
    "usgovernment": "https://login.microsoftonline.us",
    "china": "https://login.chinacloudapi.cn",
}


def describe_sign_in(env: Mapping[str, str]) -> str:
    """Return which sign-in the environment asks for, in words."""
    if _federated(env):
        return "workload identity"
    if _is_set(env, "ARM_USE_MSI"):
        return "managed identity"
    if env.get("ARM_CLIENT_ID") or _of_sdk(env):
        return "service principal"
    return "az login or managed identity"


def make_credential(env: Mapping[str, str]) -> TokenCredential:
    """Return the credential that the environment asks for; nothing is sent before its first use.

    Without `ARM_` variables it is DefaultAzureCredential: the `AZURE_` variables, workload
    identity, a managed identity, or `az login`.
    """
    from azure import identity

    # It logs fifteen lines of warnings if nobody is signed in; our error has three.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    client, tenant = env.get("ARM_CLIENT_ID"), env.get("ARM_TENANT_ID")
    cloud: dict[str, Any] = {}
    if authority := _AUTHORITIES.get(env.get("ARM_ENVIRONMENT", "").lower()):
        cloud["authority"] = authority
    if _is_set(env, "ARM_USE_MSI"):
        return identity.ManagedIdentityCredential(client_id=client)
    if client and tenant:
        if _is_set(env, "ARM_USE_OIDC"):
            return identity.ClientAssertionCredential(tenant, client, _assertion(env), **cloud)
        if secret := env.get("ARM_CLIENT_SECRET"):
            return identity.ClientSecretCredential(tenant, client, secret, **cloud)
        if path := env.get("ARM_CLIENT_CERTIFICATE_PATH"):
            password = env.get("ARM_CLIENT_CERTIFICATE_PASSWORD")
            return identity.CertificateCredential(tenant, client, path, password=password, **cloud)
    return identity.DefaultAzureCredential(**cloud)


def provider_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which azure-native signs in as `make_credential` does.

    They are empty if it does so by itself: with `ARM_` variables, and with `az login`.
    """
    if any(env.get(name) for name in ("ARM_CLIENT_ID", "ARM_USE_MSI", "ARM_USE_OIDC")):
        return {}
    client, tenant = env.get("AZURE_CLIENT_ID", ""), env.get("AZURE_TENANT_ID", "")
    principal = {"ARM_CLIENT_ID": client, "ARM_TENANT_ID": tenant}
    if _of_sdk(env):
        if secret := env.get("AZURE_CLIENT_SECRET"):
            return {**principal, "ARM_CLIENT_SECRET": secret}
        if path := env.get("AZURE_FEDERATED_TOKEN_FILE"):
            return {**principal, "ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": path}
        password = env.get("AZURE_CLIENT_CERTIFICATE_PASSWORD", "")
        path = env["AZURE_CLIENT_CERTIFICATE_PATH"]
        return {
            **principal,
            "ARM_CLIENT_CERTIFICATE_PATH": path,
            **({"ARM_CLIENT_CERTIFICATE_PASSWORD": password} if password else {}),
        }
    if _by_managed_identity(env):
        return {"ARM_USE_MSI": "true", **({"ARM_CLIENT_ID": client} if client else {})}
    return {}


def _of_sdk(env: Mapping[str, str]) -> bool:
    """Return True if the `AZURE_` variables are complete for a service principal."""
    proofs = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_CERTIFICATE_PATH")
    complete = env.get("AZURE_CLIENT_ID") and env.get("AZURE_TENANT_ID")
    return bool(complete) and any(env.get(name) for name in proofs)


def _federated(env: Mapping[str, str]) -> bool:
    return _is_set(env, "ARM_USE_OIDC") or (
        not env.get("ARM_CLIENT_ID")
        and not env.get("AZURE_CLIENT_SECRET")
        and bool(env.get("AZURE_FEDERATED_TOKEN_FILE"))
    )


def _by_managed_identity(env: Mapping[str, str]) -> bool:
    """Return True if only a managed identity can sign in: azure-native does not look for one."""
    chosen = env.get("AZURE_TOKEN_CREDENTIALS", "").lower()
    if chosen in ("managedidentitycredential", "prod"):
        return True
    return not chosen and shutil.which("az", path=env.get("PATH")) is None


def _is_set(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").lower() in ("true", "1")


def _assertion(env: Mapping[str, str]) -> Callable[[], str]:
    """Return what gets the token of the workload: given, in a file, or from GitHub's endpoint."""

    def find() -> str:
        if token := env.get("ARM_OIDC_TOKEN"):
            return token
        if path := env.get("ARM_OIDC_TOKEN_FILE_PATH") or env.get("AZURE_FEDERATED_TOKEN_FILE"):
            return Path(path).read_text(encoding="utf-8").strip()
        return _requested(env)

    return find


def _requested(env: Mapping[str, str]) -> str:
    """Return a token of the CI system, as azure-native requests it.

    https://docs.github.com/actions/reference/security/oidc (read 2026-11-22)
    """
    from azure.core.exceptions import ClientAuthenticationError

    url = env.get("ARM_OIDC_REQUEST_URL") or env.get("ACTIONS_ID_TOKEN_REQUEST_URL")
    token = env.get("ARM_OIDC_REQUEST_TOKEN") or env.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
    if not url or not token:
        raise ClientAuthenticationError(
            "ARM_USE_OIDC is set, but no token: set ARM_OIDC_TOKEN, ARM_OIDC_TOKEN_FILE_PATH, or "
            "give the workflow the permission id-token: write"
        )
    joined = f"{url}{'&' if '?' in url else '?'}audience={_EXCHANGE}"
    request = urllib.request.Request(joined, headers={"Authorization": f"Bearer {token}"})  # noqa: S310  the CI's own
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            body: Any = json.loads(response.read())
    except (OSError, ValueError) as err:
        raise ClientAuthenticationError(f"the CI system gave no token: {err}") from err
    return str(cast("dict[str, Any]", body).get("value", ""))
