"""The deployer: the principal that azure-native signs in as, and its public address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_azure_native import authorization

from runner.core.azure.clouds import PUBLIC, cloud_named
from runner_infra.components.identity import Operator
from runner_infra.planning.warnings import SignedIn, public_address, token_claims

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

    @property
    def signed_in(self) -> SignedIn:
        """The deployer, as warnings need it."""
        return SignedIn(self.operator.principal_id, self.address)


def find_deployer(cloud: str) -> Deployer:
    """Return the signed-in principal, for every method of the provider.

    The token shows whether the principal is a user, because `az login` also signs in service
    principals. If the token has no such claim, settings decide. Claims: `idtyp`, `scp` (only in
    tokens of users) and `ipaddr`. Entra guarantees none of them:
    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference (read
    2026-11-22).
    """
    found = cloud_named(cloud)
    audience = None if found in (None, PUBLIC) else found.management
    claims = token_claims(authorization.get_client_token(endpoint=audience).token)
    found = authorization.get_client_config()
    kind = PRINCIPAL_TYPES["user" if _is_user(claims) else "service_principal"]
    return Deployer(Operator(found.object_id, kind), public_address(claims))


def _is_user(claims: Mapping[str, Any]) -> bool:
    if claims.get("idtyp") in ("user", "app"):
        return claims["idtyp"] == "user"
    if claims:
        return "scp" in claims
    configured = pulumi.Config("azure-native")
    machine = any(configured.get(name) for name in _MACHINE_KEYS)
    return not (machine or any(os.environ.get(name) for name in _MACHINE_VARIABLES))
