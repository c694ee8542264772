"""What Resource Manager refuses, as our errors: by its codes, never by its text.

Codes: https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
(2025-03-20) and .../templates/error-invalid-authentication-token; the service's sentence is quoted
under `why`, since it names the action and the scope that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from azure.core.exceptions import AzureError, ClientAuthenticationError

from runner.protocol.errors import ExitCode, RunnerError

_SIGN_IN_FIX = "az login   (or set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET)"
SIGN_IN = "R-AZURE-SIGN-IN"
DENIED = "R-AZURE-DENIED"
_WHY_LENGTH = 300


class _ArmFault(NamedTuple):
    code: str
    what: str
    fix: str
    exit_code: ExitCode = ExitCode.ACCESS


_TOKEN = _ArmFault(
    SIGN_IN, "Azure does not accept the sign-in", "az login, then run the command again"
)
_TENANT = _ArmFault(
    SIGN_IN,
    "the sign-in is for another tenant than the subscription's",
    "az login --tenant TENANT   (az account list --all shows the tenant of each subscription)",
)
_NO_RIGHT = _ArmFault(
    DENIED,
    "the signed-in identity may not do this",
    "ask an owner of the subscription for the roles Contributor and Role Based Access Control "
    "Administrator; az login if the role was given a moment ago",
)
_NO_SUBSCRIPTION = _ArmFault(
    "R-AZURE-SUBSCRIPTION",
    "the subscription does not exist, or the signed-in identity cannot see it",
    "az account list --all; then pulumi config set azure-native:subscriptionId ID",
)
_DISABLED = _ArmFault(
    "R-AZURE-SUBSCRIPTION",
    "the subscription is disabled",
    "enable it in the portal under Subscriptions, or use another one",
)
_PROVIDER = _ArmFault(
    "R-AZURE-PROVIDER",
    "a resource provider is not registered in the subscription",
    "az provider register --namespace NAMESPACE --wait",
    ExitCode.PREFLIGHT,
)
_REGION = _ArmFault(
    "R-AZURE-REGION",
    "the region does not exist, or does not have this",
    "az account list-locations -o table; then pulumi config set azure-native:location REGION",
    ExitCode.PREFLIGHT,
)
_MISSING = _ArmFault(
    "R-AZURE-MISSING",
    "it does not exist in Azure",
    "deploy the stack: runner up",
    ExitCode.PREFLIGHT,
)
_QUOTA = _ArmFault(
    "R-AZURE-QUOTA",
    "a quota of the subscription is used up",
    "ask for more in the portal under Quotas, or use another region",
    ExitCode.CAPACITY,
)
_CAPACITY = _ArmFault(
    "R-AZURE-CAPACITY",
    "the region has no such machine for this subscription at the moment",
    "use another VM size or region: runner skus",
    ExitCode.CAPACITY,
)
_BUSY = _ArmFault(
    "R-AZURE-BUSY",
    "Azure answers with too many requests",
    "try again in a minute",
    ExitCode.CAPACITY,
)

_TABLE: Mapping[str, _ArmFault] = {
    "InvalidAuthenticationToken": _TOKEN,
    "ExpiredAuthenticationToken": _TOKEN,
    "AuthenticationFailed": _TOKEN,
    "InvalidAuthenticationTokenAudience": _TOKEN,
    "AuthenticationFailedMissingToken": _TOKEN,
    "InvalidAuthenticationTokenTenant": _TENANT,
    "AuthorizationFailed": _NO_RIGHT,
    "LinkedAuthorizationFailed": _NO_RIGHT,
    "RequestDisallowedByPolicy": _NO_RIGHT._replace(
        what="a policy of the subscription forbids this",
        fix="ask who owns the policy, or use another subscription",
    ),
    "SubscriptionNotFound": _NO_SUBSCRIPTION,
    "InvalidSubscriptionId": _NO_SUBSCRIPTION,
    "DisabledSubscription": _DISABLED,
    "ReadOnlyDisabledSubscription": _DISABLED,
    "SubscriptionNotRegistered": _PROVIDER,
    "MissingSubscriptionRegistration": _PROVIDER,
    "InvalidResourceNamespace": _PROVIDER,
    "NoRegisteredProviderFound": _REGION,
    "LocationNotAvailableForResourceType": _REGION,
    "LocationNotAvailable": _REGION,
    "InvalidLocation": _REGION,
    "LocationNotFound": _REGION,
    "ResourceNotFound": _MISSING,
    "ResourceGroupNotFound": _MISSING,
    "ParentResourceNotFound": _MISSING,
    "QuotaExceeded": _QUOTA,
    "SubscriptionQuotaExceeded": _QUOTA,
    "SkuNotAvailable": _CAPACITY,
    "TooManyRequests": _BUSY,
    "SubscriptionRequestsThrottled": _BUSY,
    "ServerBusy": _BUSY,
}
_BY_STATUS: Mapping[int, _ArmFault] = {401: _TOKEN, 403: _NO_RIGHT, 429: _BUSY}


def refused(status: int, code: str, body: Mapping[str, Any], path: str) -> RunnerError:
    """The error for an answer of 400 and above."""
    fault = _TABLE.get(code) or _BY_STATUS.get(status)
    said = _sentence(body)
    if fault is None:
        return RunnerError(
            "R-AZURE",
            f"Azure refused: {code or f'HTTP {status}'}",
            why=said or f"while asking for {path}",
            fix="--debug shows the whole answer",
            exit_code=ExitCode.PREFLIGHT,
        )
    why = f"{code or f'HTTP {status}'}: {said}" if said else code or f"HTTP {status} for {path}"
    return RunnerError(fault.code, fault.what, why=why, fix=fault.fix, exit_code=fault.exit_code)


def service_fault(err: AzureError, doing: str) -> RunnerError:
    """The error where no answer came: not signed in, or no way there."""
    if isinstance(err, ClientAuthenticationError):
        return RunnerError(
            SIGN_IN,
            "not signed in to Azure",
            why=str(err.message or err).strip().splitlines()[0],
            fix=_SIGN_IN_FIX,
            exit_code=ExitCode.ACCESS,
        )
    return unreachable(doing, _first_lines(str(err.message or err)))


def unreachable(doing: str, why: str) -> RunnerError:
    """The error where Azure cannot be talked to."""
    return RunnerError(
        "R-AZURE-UNREACHABLE",
        "Azure cannot be reached",
        why=f"while {doing}: {why}",
        fix="check the network, the proxy, and ARM_ENDPOINT if it is set",
        exit_code=ExitCode.PREFLIGHT,
    )


def endpoint_refused(variable: str, value: str, allowed: str) -> RunnerError:
    """The error for a value that is no endpoint of Resource Manager."""
    return RunnerError(
        "R-AZURE-ENDPOINT",
        f"{variable} is {value!r}",
        why=f"allowed: {allowed}",
        fix=f"unset {variable}, or correct it",
    )


def answered(text: str) -> Mapping[str, Any]:
    """The JSON object of an answer; a list stands under `value`, what is no JSON under `text`."""
    if not text.strip():
        return {}
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return {"text": text}
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return {"value": parsed}


def _sentence(body: Mapping[str, Any]) -> str:
    error: Any = body.get("error")
    found: Any = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else None
    return _first_lines(str(found or body.get("message") or ""))


def _first_lines(text: str) -> str:
    """One line of a length that can be read."""
    line = " ".join(text.split())
    return line if len(line) <= _WHY_LENGTH else f"{line[: _WHY_LENGTH - 1]}…"
