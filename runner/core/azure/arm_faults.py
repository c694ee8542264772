"""Refusals of Azure Resource Manager by their code: what they mean, and the next step.

The client of Resource Manager and the errors of Pulumi's engine use this table.

Codes: https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
(2025-03-20), .../templates/error-invalid-authentication-token, and for roles
https://learn.microsoft.com/azure/role-based-access-control/troubleshooting (2025-01-27).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from runner.protocol.errors import FaultText

DENIED = "R-AZURE-DENIED"
_SIGN_IN = "R-AZURE-SIGN-IN"
_MOST_LEVELS = 10  # of errors in errors


_TOKEN = FaultText(_SIGN_IN, "Azure rejected the sign-in", "run `az login`, then the command again")
_TENANT = FaultText(
    _SIGN_IN,
    "the sign-in belongs to a different tenant than the subscription",
    "run `az login --tenant TENANT`; `az account list --all` shows the tenant of a subscription",
)
_NO_RIGHT = FaultText(
    DENIED,
    "the signed-in identity lacks a permission",
    "ask an owner of the subscription for the roles Contributor and Role Based Access Control "
    "Administrator; run `az login` again after a role was assigned",
)
_LINKED = _NO_RIGHT._replace(
    what="the signed-in identity lacks a permission on a resource that the request refers to",
    fix="ask the owner of the resource that the `why` line names for the role Contributor on it, "
    "or remove it from the stack's file; run `az login` again after a role was assigned",
)
_POLICY = _NO_RIGHT._replace(
    what="a policy of the subscription forbids the request",
    fix="ask the owner of the policy for an exemption, or use another subscription",
)
_NO_SUBSCRIPTION = FaultText(
    "R-AZURE-SUBSCRIPTION",
    "the subscription does not exist, or the signed-in identity has no access to it",
    "correct azure-native:subscriptionId, or the option --subscription; `az account list --all` "
    "lists your subscriptions",
)
_DISABLED = FaultText(
    "R-AZURE-SUBSCRIPTION",
    "the subscription is disabled",
    "enable it in the Azure portal under Subscriptions, or use another subscription",
)
_PROVIDER = FaultText(
    "R-AZURE-PROVIDER",
    "a resource provider is not registered in the subscription",
    "az provider register --namespace NAMESPACE --wait",
)
_REGION = FaultText(
    "R-AZURE-REGION",
    "the region does not exist, or does not offer this resource",
    "correct azure-native:location; `az account list-locations -o table` lists all regions",
)
_MISSING = FaultText(
    "R-AZURE-MISSING",
    "the resource does not exist in Azure",
    "run `runner up` to create it again",
)
_QUOTA = FaultText(
    "R-AZURE-QUOTA",
    "a quota of the subscription is exhausted",
    "request a higher quota in the Azure portal under Quotas, or use another region",
)
_BATCH_QUOTA = FaultText(
    "R-QUOTA",
    "the Batch account has reached its quota of pools",
    "request more in the portal (Batch account, Quotas, Request quota increase), or remove a pool "
    "from runner:pools",
)
_CAPACITY = FaultText(
    "R-AZURE-CAPACITY",
    "this VM size is currently not available to the subscription in the region",
    "use another VM size or region; `runner skus` lists them",
)
_NAME = FaultText(
    "R-NAME-TAKEN",
    "the name of an account belongs to somebody else",
    "set account_name under runner:storage to a free name if it is the storage account; else use "
    "a stack with another name (--stack), which changes all names",
)
_EXISTS = FaultText(
    "R-AZURE-EXISTS",
    "the resource exists already, and is not in the state of this stack",
    "use the state in which it was deployed (`pulumi login`), or a stack with another name "
    "(--stack); delete it only if nobody uses it",
)
_CONFLICT = FaultText(
    "R-AZURE-CONFLICT",
    "another operation is changing the resource",
    "wait for its end (some minutes), then run the same command again",
)
_IN_USE = FaultText(
    "R-AZURE-IN-USE",
    "another resource uses the resource, so Azure does not delete it",
    "delete what the `why` line names, or wait until its deletion has ended; then run the same "
    "command again",
)
_LOCKED = FaultText(
    "R-AZURE-LOCKED",
    "a lock forbids to change or delete the resource",
    "`az lock list -o table` shows the locks; ask the owner of the lock to remove it, then run the "
    "same command again",
)
_VALUE = FaultText(
    "R-AZURE-VALUE",
    "Azure does not accept a value of the request",
    "correct the key that sets the value which the `why` line names, in the stack's file",
)
_PRINCIPAL = _VALUE._replace(
    what="the directory has no identity with the ID that gets a role",
    fix="if it is new, run the same command again after a minute; else correct runner:operators",
)
_BUSY = FaultText(
    "R-AZURE-BUSY",
    "Azure rejected the request: too many requests",
    "try again in a minute",
)
_FAILING = _BUSY._replace(what="Azure could not process the request")

_BY_CODE: Mapping[str, FaultText] = {
    **dict.fromkeys(
        (
            *("InvalidAuthenticationToken", "ExpiredAuthenticationToken", "AuthenticationFailed"),
            *("InvalidAuthenticationTokenAudience", "AuthenticationFailedMissingToken"),
        ),
        _TOKEN,
    ),
    "InvalidAuthenticationTokenTenant": _TENANT,
    "AuthorizationFailed": _NO_RIGHT,
    "LinkedAuthorizationFailed": _LINKED,
    "RequestDisallowedByPolicy": _POLICY,
    "RequestDisallowedByAzure": _REGION._replace(
        what="the subscription may not create resources in this region"
    ),
    "SubscriptionNotFound": _NO_SUBSCRIPTION,
    "InvalidSubscriptionId": _NO_SUBSCRIPTION,
    "DisabledSubscription": _DISABLED,
    "ReadOnlyDisabledSubscription": _DISABLED,
    **dict.fromkeys(
        (
            *("SubscriptionNotRegistered", "MissingSubscriptionRegistration"),
            *("InvalidResourceNamespace", "InvalidSubscriptionRegistrationState"),
        ),
        _PROVIDER,
    ),
    **dict.fromkeys(
        (
            *("NoRegisteredProviderFound", "LocationNotAvailableForResourceType"),
            *("LocationNotAvailable", "InvalidLocation", "LocationNotFound"),
            *("MissingRegistrationForLocation", "LocationRequired"),
        ),
        _REGION,
    ),
    **dict.fromkeys(
        (
            *("ResourceNotFound", "ResourceGroupNotFound", "ParentResourceNotFound"),
            *("StorageAccountNotFound", "BatchAccountNotFound", "PoolNotFound", "AccountNotFound"),
        ),
        _MISSING,
    ),
    **dict.fromkeys(
        (
            *("QuotaExceeded", "SubscriptionQuotaExceeded", "ResourceQuotaExceeded"),
            *("MaxStorageAccountsCountPerSubscriptionExceeded", "PublicIPCountLimitReached"),
            *("RoleAssignmentLimitExceeded", "SubscriptionQuotaReached", "AccountQuotaReached"),
        ),
        _QUOTA,
    ),
    "PoolQuotaReached": _BATCH_QUOTA,
    **dict.fromkeys(
        (
            *("AccountCoreQuotaReached", "AccountVMSeriesCoreQuotaReached"),
            *("AccountLowPriorityCoreQuotaReached", "AccountSpotCoreQuotaReached"),
        ),
        _BATCH_QUOTA._replace(
            what="the Batch account has reached a core quota",
            fix="request more in the portal (Batch account, Quotas, Request quota increase), or "
            "lower max_spot and max_dedicated of the pool",
        ),
    ),
    **dict.fromkeys(
        (
            *("SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed"),
            *("OverconstrainedAllocationRequest", "UnsupportedVMSize"),
        ),
        _CAPACITY,
    ),
    **dict.fromkeys(
        (
            *("StorageAccountAlreadyTaken", "StorageAccountAlreadyExists", "AccountAlreadyTaken"),
            *("AccountAlreadyExists", "StorageAccountInAnotherResourceGroup", "NameNotAvailable"),
            *("RegistryNameNotAvailable", "AlreadyInUse"),
        ),
        _NAME,
    ),
    "ResourceAlreadyExists": _EXISTS,
    "RoleAssignmentExists": _EXISTS._replace(
        what="the role is assigned already, outside of this stack",
        fix="delete the assignment that was made by other means (`az role assignment list --all "
        "--assignee OBJECT_ID -o table` shows it), then run the same command again",
    ),
    **dict.fromkeys(
        (
            *("AnotherOperationInProgress", "OperationInProgress", "ConcurrentRequestConflict"),
            *("ResourceGroupBeingDeleted", "ResourceBeingDeleted", "AccountIsBeingDeleted"),
            *("PoolBeingDeleted", "PoolBeingResized", "StorageAccountOperationInProgress"),
            *("StorageAccountIsNotProvisioned", "RetryableError", "ContainerBeingDeleted"),
        ),
        _CONFLICT,
    ),
    **dict.fromkeys(
        (
            *("InUseSubnetCannotBeDeleted", "InUseNatGatewayCannotBeDeleted"),
            *("PublicIPAddressCannotBeDeleted", "InUseNetworkSecurityGroupCannotBeDeleted"),
            *("CannotDeleteResource", "NestedResourcesFound"),
        ),
        _IN_USE,
    ),
    "ScopeLocked": _LOCKED,
    **dict.fromkeys(
        (
            *("InvalidRequestContent", "InvalidRequestFormat", "InvalidResourceName"),
            *("InvalidResourceReference", "LinkedInvalidPropertyId", "InvalidPropertyValue"),
            *("AccountNameInvalid", "ReservedResourceName", "InvalidRequestBody"),
            *("InvalidValuesForRequestParameters", "PropertyChangeNotAllowed"),
            *("PrivateIPAddressInReservedRange", "InvalidCIDRNotation", "NetcfgInvalidSubnet"),
        ),
        _VALUE,
    ),
    "PrincipalNotFound": _PRINCIPAL,
    "PrincipalTypeNotSupported": _PRINCIPAL,
    "InvalidPrincipalId": _PRINCIPAL,
    "TooManyRequests": _BUSY,
    "SubscriptionRequestsThrottled": _BUSY,
    "ServerBusy": _BUSY,
    "InternalServerError": _FAILING,
    "ServiceUnavailable": _FAILING,
    "GatewayTimeout": _FAILING,
    "ServerTimeout": _FAILING,
    "OperationTimedOut": _FAILING,
}
_BY_PREFIX: Mapping[str, FaultText] = {"InvalidParameter": _VALUE, "InvalidProperty": _VALUE}
# Codes that also wrap errors with a more precise one.
_GENERAL: Mapping[str, FaultText] = {
    "Conflict": _CONFLICT,
    "ConflictError": _CONFLICT,
    "NotFound": _MISSING,
    "BadRequest": _VALUE,
    "Forbidden": _NO_RIGHT,
    "OperationNotAllowed": _QUOTA._replace(what="Azure does not allow the operation"),
}
_BY_STATUS: Mapping[int, FaultText] = {401: _TOKEN, 403: _NO_RIGHT, 429: _BUSY}


def find_fault(codes: Sequence[str], status: int | None = None) -> tuple[str, FaultText] | None:
    """Return the code that decides and its meaning, or None if nothing is known.

    Args:
        codes: the code of an error, and the codes of the errors that it contains.
        status: the status of the response, which decides if no code is known.
    """
    for code in codes:
        if found := _BY_CODE.get(code) or _by_prefix(code):
            return code, found
    for code in codes:
        if found := _GENERAL.get(code):
            return code, found
    found = _BY_STATUS.get(status or 0)
    return (codes[0] if codes else f"HTTP {status}", found) if found else None


def _by_prefix(code: str) -> FaultText | None:
    return next((text for start, text in _BY_PREFIX.items() if code.startswith(start)), None)


def codes_in(error: Mapping[str, Any]) -> Iterator[str]:
    """Yield the code of an error document, then those of `details` and `innererror`."""
    yield from _codes(error, _MOST_LEVELS)


def _codes(error: Mapping[str, Any], levels: int) -> Iterator[str]:
    if code := error.get("code"):
        yield str(code)
    within = [*(error.get("details") or ()), error.get("innererror")] if levels else []
    for each in within:
        if isinstance(each, dict):
            yield from _codes(cast("dict[str, Any]", each), levels - 1)


# The forms in which azure-native prints an error: of go-autorest, of azcore, and Azure's document.
_CODE_IN_TEXT = re.compile(r'\bCode="(\w+)"|\bERROR CODE: (\w+)|"code"\s*:\s*"(\w+)"')
_STATUS_IN_TEXT = re.compile(r"\bStatus(?:Code)?=(\d{3})\b|\bRESPONSE (\d{3}):")
_MESSAGE_IN_TEXT = re.compile(
    r'\bMessage="((?:[^"\\]|\\.)*)"|"message"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL
)
# azure-native's own refusal to create a resource; it has no code.
_ALREADY_EXISTS = "cannot create already existing resource"


class ProviderFault(NamedTuple):
    """What a text of the provider says: code (or empty), message, and the meaning if known."""

    code: str
    message: str
    fault: FaultText | None


def read_provider_error(text: str) -> ProviderFault:
    """Read an error of azure-native, in any of the forms of its clients."""
    codes = ["".join(found) for found in _CODE_IN_TEXT.findall(text)]
    messages = ["".join(found) for found in _MESSAGE_IN_TEXT.findall(text)]
    message = " ".join((messages[0] if messages else text).replace('\\"', '"').split())
    if _ALREADY_EXISTS in text:
        return ProviderFault(codes[0] if codes else "", message, _EXISTS)
    status = _STATUS_IN_TEXT.search(text)
    found = find_fault(codes, int(status[1] or status[2]) if status else None)
    if found is None:
        return ProviderFault(codes[0] if codes else "", message, None)
    return ProviderFault(found[0], message, found[1])
