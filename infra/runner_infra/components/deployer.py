"""The deployer: the principal that azure-native signs in as, and its public address."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pulumi
from pulumi_azure_native import authorization

from runner_infra.components.identity import Operator

PRINCIPAL_TYPES: Mapping[str, authorization.PrincipalType] = {
    "user": authorization.PrincipalType.USER,
    "group": authorization.PrincipalType.GROUP,
    "service_principal": authorization.PrincipalType.SERVICE_PRINCIPAL,
}
# Set if azure-native signs in as a service principal or a managed identity.
_MACHINE_KEYS = ("clientId", "useMsi", "useOidc")
_MACHINE_VARIABLES = ("ARM_CLIENT_ID", "ARM_USE_MSI", "ARM_USE_OIDC")


@dataclass(frozen=True, slots=True)
class Deployer:
    """The deployer; `address` is a public IPv4 address, or None if unknown."""

    operator: Operator
    address: str | None = None


def find_deployer() -> Deployer:
    """Return the signed-in principal, for every method of the provider.

    The token shows whether the principal is a user, because `az login` also signs in service
    principals. If the token has no such claim, settings decide. Claims: `idtyp`, `scp` (only in
    tokens of users) and `ipaddr`. Entra guarantees none of them:
    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference (read
    2026-11-22).
    """
    claims = token_claims(authorization.get_client_token().token)
    found = authorization.get_client_config()
    kind = PRINCIPAL_TYPES["user" if _is_user(claims) else "service_principal"]
    return Deployer(Operator(found.object_id, kind), _public_address(claims.get("ipaddr")))


def token_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token, which is not verified; empty if it is not a JSON web token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims: object = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", claims) if isinstance(claims, dict) else {}


def _is_user(claims: Mapping[str, Any]) -> bool:
    if claims.get("idtyp") in ("user", "app"):
        return claims["idtyp"] == "user"
    if claims:
        return "scp" in claims
    configured = pulumi.Config("azure-native")
    machine = any(configured.get(name) for name in _MACHINE_KEYS)
    return not (machine or any(os.environ.get(name) for name in _MACHINE_VARIABLES))


def _public_address(address: object) -> str | None:
    try:
        found = ipaddress.IPv4Address(str(address))
    except ValueError:
        return None
    return str(found) if found.is_global else None
