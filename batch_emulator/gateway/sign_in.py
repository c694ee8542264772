"""Microsoft Entra ID and Azure Resource Manager, as clients of Batch and Storage use them.

Tokens are issued only for two secrets of this gateway: the secret of a client of Microsoft Entra
ID, and the header of a managed identity, which all SDKs find by two variables, as in App Service
(learn.microsoft.com/azure/app-service/overview-managed-identity, read 2026-11-23). Azure Resource
Manager has one subscription with one resource group, one Batch account and one storage account.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from batch_emulator.executor.blob_sas import user_delegation_key, without_protocol

TENANT = "11111111-1111-1111-1111-111111111111"
CLIENT = "22222222-2222-2222-2222-222222222222"
SUBSCRIPTION = "33333333-3333-3333-3333-333333333333"
GROUP = "local"
REGION = "westeurope"
SIGN_IN_HOST = "login.microsoftonline.com"
MANAGEMENT_HOST = "management.azure.com"
IDENTITY_PATH = "/identity/token"
_LIFETIME_S = 3599
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NamedAccounts:
    """The name that both accounts have, and their keys.

    `seed`: of user delegation keys, or "" for that of an unchanged Azurite.
    """

    name: str
    batch_key: str = field(repr=False)
    storage_key: str = field(repr=False)
    seed: str = field(default="", repr=False)

    @property
    def batch_host(self) -> str:
        """Return the host of the Batch account."""
        return f"{self.name}.{REGION}.batch.azure.com"

    def storage_host(self, service: str) -> str:
        """Return the host of `blob` or `file`."""
        return f"{self.name}.{service}.core.windows.net"

    def without_protocol(self, path: str, query: str) -> str:
        """Return the query of a request for storage, signed for HTTP if its SAS is for HTTPS."""
        return without_protocol(path, query, self.name, self.storage_key, self.seed)


class Tokens:
    """Issues access tokens and validates them."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self.identity_header = secrets.token_urlsafe(32)
        self._key = secrets.token_bytes(32)

    def issue(self, audience: str) -> str:
        """Return a token, which is a JWT because some clients read its claims."""
        now = int(time.time())
        claims = {
            "aud": audience,
            "iss": f"https://sts.windows.net/{TENANT}/",
            "iat": now,
            "nbf": now,
            "exp": now + _LIFETIME_S,
            "appid": CLIENT,
            "oid": CLIENT,
            "tid": TENANT,
        }
        text = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{text}.{self._signature(text)}"

    def is_valid(self, token: str, audiences: frozenset[str]) -> bool:
        """Return True if the token was issued here for one of the audiences and has not expired."""
        text, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._signature(text).encode(), signature.encode()):
            return False
        claims = text.partition(".")[2]
        found: Json = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        known = found["aud"].rstrip("/").lower() in audiences
        return known and found["exp"] > time.time()

    def _signature(self, text: str) -> str:
        return _base64(hmac.digest(self._key, text.encode(), "sha256"))


def _encoded(document: Json) -> str:
    return _base64(json.dumps(document).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def answer_sign_in(method: str, path: str, body: bytes, tokens: Tokens) -> tuple[int, Json]:
    """Answer a request of Microsoft Entra ID: status and body."""
    base = f"https://{SIGN_IN_HOST}/{TENANT}"
    if method == "GET" and path.endswith("/discovery/instance"):
        return 200, {
            "tenant_discovery_endpoint": f"{base}/v2.0/.well-known/openid-configuration",
            "api-version": "1.1",
            "metadata": [
                {
                    "preferred_network": SIGN_IN_HOST,
                    "preferred_cache": "login.windows.net",
                    "aliases": [SIGN_IN_HOST, "login.windows.net", "login.microsoft.com"],
                }
            ],
        }
    if method == "GET" and path.endswith("/.well-known/openid-configuration"):
        return 200, {
            "issuer": f"{base}/v2.0",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
            "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
        }
    if method == "POST" and path.endswith("/token"):
        return _answer_token(body, tokens)
    return 404, {"error": "not_found", "error_description": f"{method} {path} is not served here"}


def _answer_token(body: bytes, tokens: Tokens) -> tuple[int, Json]:
    form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    given = form.get("client_secret", "")
    if not hmac.compare_digest(given.encode(), tokens.secret.encode()):
        text = "AADSTS7000215: Invalid client secret provided."
        return 401, {
            "error": "invalid_client",
            "error_description": text,
            "error_codes": [7000215],
        }
    audience = form.get("resource") or form.get("scope", "").split(" ")[0].removesuffix("/.default")
    expires = {"expires_in": _LIFETIME_S, "ext_expires_in": _LIFETIME_S}
    return 200, {"token_type": "Bearer", **expires, "access_token": tokens.issue(audience)}


def answer_identity(
    query: Mapping[str, str], header: str, tokens: Tokens, *, any_id: bool
) -> tuple[int, Json]:
    """Answer a request for a token of the managed identity: status and body.

    With `any_id`, every ID is accepted: programs in tasks pass the ID of an identity of their pool.
    """
    if not hmac.compare_digest(header.encode(), tokens.identity_header.encode()):
        return 401, {"statusCode": 401, "message": "The X-IDENTITY-HEADER is not IDENTITY_HEADER."}
    named = [query[name] for name in ("client_id", "principal_id", "object_id") if name in query]
    if not any_id and any(name.lower() != CLIENT for name in named):
        return 400, {"statusCode": 400, "message": f"No managed identity is {named[0]}."}
    audience = query.get("resource", "")
    if not audience:
        return 400, {"statusCode": 400, "message": "The parameter resource is missing."}
    return 200, {
        "access_token": tokens.issue(audience),
        "expires_on": str(int(time.time()) + _LIFETIME_S),
        "resource": audience,
        "token_type": "Bearer",
        "client_id": query.get("client_id", CLIENT),
    }


def user_key_document(start: str, expiry: str, version: str, seed: str) -> bytes:
    """Return the answer to Get User Delegation Key."""
    fields = {
        "SignedOid": CLIENT,
        "SignedTid": TENANT,
        "SignedStart": start,
        "SignedExpiry": expiry,
        "SignedService": "b",
        "SignedVersion": version,
        "Value": user_delegation_key(CLIENT, TENANT, start, expiry, version, seed=seed),
    }
    lines = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    head = '<?xml version="1.0" encoding="utf-8"?>'
    return f"{head}<UserDelegationKey>{lines}</UserDelegationKey>".encode()


def answer_management(method: str, path: str, account: NamedAccounts) -> tuple[int, Json]:
    """Answer a request of Azure Resource Manager: status and body."""
    resources = _resources(account)
    wanted = path.rstrip("/").lower()
    if method == "GET" and wanted in resources:
        return 200, resources[wanted]
    keys = {
        f"{resource_id('Microsoft.Batch/batchAccounts', account)}/listkeys": {
            "accountName": account.name,
            "primary": account.batch_key,
            "secondary": account.batch_key,
        },
        f"{resource_id('Microsoft.Storage/storageAccounts', account)}/listkeys": {
            "keys": [
                {"keyName": name, "value": account.storage_key, "permissions": "FULL"}
                for name in ("key1", "key2")
            ]
        },
    }
    known = {name.lower(): body for name, body in keys.items()}
    if method == "POST" and wanted in known:
        return 200, known[wanted]
    return arm_error(404, "ResourceNotFound", f"{method} {path} is not served here.")


def resource_id(kind: str, account: NamedAccounts) -> str:
    """Return the ID of the Batch account or the storage account."""
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
    return f"{group}/providers/{kind}/{account.name}"


def _resources(account: NamedAccounts) -> dict[str, Json]:
    """Return the resources that can be read, by path in lower case."""
    top = f"/subscriptions/{SUBSCRIPTION}"
    group = f"{top}/resourceGroups/{GROUP}"
    done = {"provisioningState": "Succeeded"}
    subscription: Json = {
        "id": top,
        "subscriptionId": SUBSCRIPTION,
        "displayName": "local services",
        "state": "Enabled",
        "tenantId": TENANT,
    }
    groups: Json = {"id": group, "name": GROUP, "location": REGION, "properties": done}
    kinds = {
        "Microsoft.Batch/batchAccounts": {
            "accountEndpoint": account.batch_host,
            "poolAllocationMode": "BatchService",
            "dedicatedCoreQuota": None,
            # the account of the same name is linked: its keys are always in step here
            "autoStorage": {
                "storageAccountId": resource_id("Microsoft.Storage/storageAccounts", account),
                "authenticationMode": "StorageKeys",
                "lastKeySync": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            **done,
        },
        "Microsoft.Storage/storageAccounts": {
            "primaryEndpoints": {
                service: f"https://{account.storage_host(service)}/" for service in ("blob", "file")
            },
            "primaryLocation": REGION,
            **done,
        },
    }
    found: dict[str, Json] = {
        "/tenants": {"value": [{"id": f"/tenants/{TENANT}", "tenantId": TENANT}]},
        "/subscriptions": {"value": [subscription]},
        top: subscription,
        f"{top}/resourceGroups": {"value": [groups]},
        group: groups,
    }
    for kind, properties in kinds.items():
        resource: Json = {
            "id": resource_id(kind, account),
            "name": account.name,
            "type": kind,
            "location": REGION,
            "properties": properties,
        }
        if kind.endswith("storageAccounts"):
            resource |= {"kind": "StorageV2", "sku": {"name": "Standard_LRS", "tier": "Standard"}}
        found[resource["id"]] = resource
        for above in (top, group):
            found[f"{above}/providers/{kind}"] = {"value": [resource]}
    return {path.lower(): body for path, body in found.items()}


def arm_error(status: int, code: str, message: str) -> tuple[int, Json]:
    """Return an error of Azure Resource Manager."""
    return status, {"error": {"code": code, "message": message}}
