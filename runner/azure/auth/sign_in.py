"""One sign-in for this machine: the credential of our clients, and the variables with which
azure-native signs in as the same principal.

azure-native reads `ARM_` variables, and the Azure SDKs read `AZURE_` variables. Here, both kinds
apply to both programs. `ARM_` variables take precedence, because azure-native reads no others. The
order of azure-native is: ARM_USE_DEFAULT_AZURE_CREDENTIAL, certificate, secret, workload identity
(OIDC), managed identity, `az login`. azure-native accepts only `true`, so `1` is passed on as
`true`.
https://www.pulumi.com/registry/packages/azure-native/installation-configuration and
https://learn.microsoft.com/azure/developer/python/sdk/authentication/credential-chains
(read 2026-11-22); order: newSingleMethodAuthCredential of pulumi/pulumi-azure-native (read
2026-11-23).
"""

# ruff: noqa: PLC0415  azure.identity takes 0.4 s to import, and local services need no cloud
from __future__ import annotations

import json
import logging
import shutil
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

    from runner.core.azure.clouds import Cloud

_TIMEOUT_S = 30
_USE_DEFAULT = "ARM_USE_DEFAULT_AZURE_CREDENTIAL"
# For each name that azure-native reads, the variables with this meaning; the first one set wins.
_WORKLOAD = {
    "ARM_OIDC_TOKEN_FILE_PATH": ("ARM_OIDC_TOKEN_FILE_PATH", "AZURE_FEDERATED_TOKEN_FILE"),
    "ACTIONS_ID_TOKEN_REQUEST_URL": ("ARM_OIDC_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_URL"),
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": ("ARM_OIDC_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"),
}


def describe_sign_in(env: Mapping[str, str]) -> str:
    """Return a description of the sign-in that the variables select."""
    method = _arm_method(env)
    if method in ("", "default"):
        method = _sdk_method(env)
    words = {"oidc": "workload identity", "msi": "managed identity"}
    words |= dict.fromkeys(("certificate", "secret"), "service principal")
    return words.get(method, "az login or managed identity")


def make_credential(env: Mapping[str, str], cloud: Cloud | None = None) -> TokenCredential:
    """Return the credential that the variables select. It sends nothing before its first use.

    If the `ARM_` variables select none, it is DefaultAzureCredential: the `AZURE_` variables,
    workload identity, a managed identity, or `az login`.

    Args:
        env: the variables of the command.
        cloud: the cloud that issues the tokens; None: the variables or `az` select it. A host of
            AZURE_AUTHORITY_HOST that belongs to no cloud, such as a proxy, is used as it is.
    """
    from azure import identity

    from runner.core.azure.clouds import AUTHORITY, cloud_at, find_cloud

    # Without a sign-in, the SDK logs fifteen lines of warnings in addition to our error.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    client, tenant = _principal(env)
    cloud = cloud or find_cloud(env)
    host = env.get(AUTHORITY, "")
    at = {"authority": host if host and cloud_at(host) is None else cloud.authority}
    match _arm_method(env):
        case "certificate":
            path = env["ARM_CLIENT_CERTIFICATE_PATH"]
            password = env.get("ARM_CLIENT_CERTIFICATE_PASSWORD")
            return identity.CertificateCredential(tenant, client, path, password=password, **at)
        case "secret":
            secret = env["ARM_CLIENT_SECRET"]
            return identity.ClientSecretCredential(tenant, client, secret, **at)
        case "oidc":
            return identity.ClientAssertionCredential(
                tenant, client, _make_assertion(env, cloud), **at
            )
        case "msi":
            return identity.ManagedIdentityCredential(client_id=env.get("ARM_CLIENT_ID"))
        case _:
            return identity.DefaultAzureCredential(**at)


def provider_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which azure-native signs in as `make_credential` does.

    The result contains only variables that `env` lacks.
    """
    client, tenant = _principal(env)
    principal = {"ARM_CLIENT_ID": client, "ARM_TENANT_ID": tenant}
    match _arm_method(env):
        case "default":
            return {_USE_DEFAULT: "true"}
        case "certificate" | "secret":
            return _unset_variables(env, principal)
        case "oidc":
            return {**_unset_variables(env, principal), **_workload_variables(env)}
        case "msi":
            return {"ARM_USE_MSI": "true"}
        case _:
            return _to_arm_variables(env)


def workload_assertion(
    env: Mapping[str, str], cloud: Cloud | None = None
) -> tuple[str, str, Callable[[], str]] | None:
    """Return client, tenant and a function that returns a token of the CI job, or None.

    None: the variables select another sign-in than workload identity.
    """
    from runner.core.azure.clouds import find_cloud

    if _arm_method(env) != "oidc":
        return None
    return (*_principal(env), _make_assertion(env, cloud or find_cloud(env)))


def _to_arm_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the `ARM_` variables for the account that DefaultAzureCredential finds."""
    client = env.get("AZURE_CLIENT_ID", "")
    principal = {"ARM_CLIENT_ID": client, "ARM_TENANT_ID": env.get("AZURE_TENANT_ID", "")}
    match _sdk_method(env):
        case "secret":
            return {**principal, "ARM_CLIENT_SECRET": env["AZURE_CLIENT_SECRET"]}
        case "certificate":
            password = env.get("AZURE_CLIENT_CERTIFICATE_PASSWORD", "")
            return {
                **principal,
                "ARM_CLIENT_CERTIFICATE_PATH": env["AZURE_CLIENT_CERTIFICATE_PATH"],
                **({"ARM_CLIENT_CERTIFICATE_PASSWORD": password} if password else {}),
            }
        case "oidc":
            path = env["AZURE_FEDERATED_TOKEN_FILE"]
            return {**principal, "ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": path}
        case _ if _needs_managed_identity(env):
            return {"ARM_USE_MSI": "true", **({"ARM_CLIENT_ID": client} if client else {})}
        case _:
            return {}


def _arm_method(env: Mapping[str, str]) -> str:
    """Return the method that the `ARM_` variables select in azure-native; empty if none."""
    if _is_set(env, _USE_DEFAULT):
        return "default"
    if all(_principal(env)):
        if env.get("ARM_CLIENT_CERTIFICATE_PATH"):
            return "certificate"
        if env.get("ARM_CLIENT_SECRET"):
            return "secret"
        if _is_set(env, "ARM_USE_OIDC"):
            return "oidc"
    return "msi" if _is_set(env, "ARM_USE_MSI") else ""


def _sdk_method(env: Mapping[str, str]) -> str:
    """Return the method that the `AZURE_` variables select in DefaultAzureCredential.

    The result is empty if they do not describe a service principal.
    """
    if not env.get("AZURE_CLIENT_ID") or not env.get("AZURE_TENANT_ID"):
        return ""
    methods = {
        "secret": "AZURE_CLIENT_SECRET",
        "certificate": "AZURE_CLIENT_CERTIFICATE_PATH",
        "oidc": "AZURE_FEDERATED_TOKEN_FILE",
    }
    return next((method for method, name in methods.items() if env.get(name)), "")


def _principal(env: Mapping[str, str]) -> tuple[str, str]:
    """Return client and tenant, each from the `ARM_` variable, else from the `AZURE_` variable."""
    return (
        _first_value(env, "ARM_CLIENT_ID", "AZURE_CLIENT_ID"),
        _first_value(env, "ARM_TENANT_ID", "AZURE_TENANT_ID"),
    )


def _workload_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of workload identity under the names that azure-native reads."""
    found = {name: _first_value(env, *names) for name, names in _WORKLOAD.items()}
    return {"ARM_USE_OIDC": "true", **_unset_variables(env, found)}


def _unset_variables(env: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if value and env.get(name) != value}


def _first_value(env: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := env.get(name))), "")


def _needs_managed_identity(env: Mapping[str, str]) -> bool:
    """Return True if only a managed identity can sign in, which azure-native does not detect."""
    chosen = env.get("AZURE_TOKEN_CREDENTIALS", "").lower()
    if chosen in ("managedidentitycredential", "prod"):
        return True
    return not chosen and shutil.which("az", path=env.get("PATH")) is None


def _is_set(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").lower() in ("true", "1")


def _make_assertion(env: Mapping[str, str], cloud: Cloud) -> Callable[[], str]:
    """Return a function that gets the token of the workload: a variable, a file, or from GitHub."""

    def find() -> str:
        if token := env.get("ARM_OIDC_TOKEN"):
            return token
        if path := _first_value(env, *_WORKLOAD["ARM_OIDC_TOKEN_FILE_PATH"]):
            return Path(path).read_text(encoding="utf-8").strip()
        return _request_ci_token(env, cloud.exchange_audience)

    return find


def _request_ci_token(env: Mapping[str, str], exchange: str) -> str:
    """Return a token of the CI system, as azure-native requests it.

    https://docs.github.com/actions/reference/security/oidc (read 2026-11-22)
    """
    from azure.core.exceptions import ClientAuthenticationError

    url = _first_value(env, *_WORKLOAD["ACTIONS_ID_TOKEN_REQUEST_URL"])
    token = _first_value(env, *_WORKLOAD["ACTIONS_ID_TOKEN_REQUEST_TOKEN"])
    if not url or not token:
        raise ClientAuthenticationError(
            "ARM_USE_OIDC is set, but no token: set ARM_OIDC_TOKEN, ARM_OIDC_TOKEN_FILE_PATH, or "
            "give the workflow the permission id-token: write"
        )
    audience = quote(env.get("ARM_OIDC_AUDIENCE") or exchange, safe=":/")
    joined = f"{url}{'&' if '?' in url else '?'}audience={audience}"
    request = urllib.request.Request(joined, headers={"Authorization": f"Bearer {token}"})  # noqa: S310  the CI's own
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the CI's own
            body: Any = json.loads(response.read())
    except (OSError, ValueError) as err:
        raise ClientAuthenticationError(f"the CI system gave no token: {err}") from err
    return str(cast("dict[str, Any]", body).get("value", ""))
