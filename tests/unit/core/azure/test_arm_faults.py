"""Refusals of Azure have one meaning, whoever reports them: Resource Manager's client or Pulumi."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from runner.azure.arm.client import to_arm_error
from runner.core.azure.arm_faults import codes_in, find_fault, read_provider_error
from runner.core.azure.clouds import with_az
from runner.core.explanations import is_explained
from runner.protocol.errors import EXIT_CODES

_MESSAGE = 'The value "x" of /subscriptions/1/resourceGroups/rg is refused.'
# Codes that issues of Pulumi, Terraform and Bicep report for such stacks, and related ones.
_REPORTED = {
    "SkuNotAvailable": "R-AZURE-CAPACITY",
    "AllocationFailed": "R-AZURE-CAPACITY",
    "RequestDisallowedByPolicy": "R-AZURE-DENIED",
    "AuthorizationFailed": "R-AZURE-DENIED",
    "LinkedAuthorizationFailed": "R-AZURE-DENIED",
    "ScopeLocked": "R-AZURE-LOCKED",
    "PoolQuotaReached": "R-QUOTA",
    "AccountCoreQuotaReached": "R-QUOTA",
    "AccountLowPriorityCoreQuotaReached": "R-QUOTA",
    "AccountSpotCoreQuotaReached": "R-QUOTA",
    "AccountVMSeriesCoreQuotaReached": "R-QUOTA",
    "SubscriptionQuotaExceeded": "R-AZURE-QUOTA",
    "QuotaExceeded": "R-AZURE-QUOTA",
    "OperationNotAllowed": "R-AZURE-QUOTA",
    "Conflict": "R-AZURE-CONFLICT",
    "AnotherOperationInProgress": "R-AZURE-CONFLICT",
    "ResourceGroupBeingDeleted": "R-AZURE-CONFLICT",
    "RoleAssignmentExists": "R-AZURE-EXISTS",
    "InUseSubnetCannotBeDeleted": "R-AZURE-IN-USE",
    "MissingSubscriptionRegistration": "R-AZURE-PROVIDER",
    "SubscriptionNotFound": "R-AZURE-SUBSCRIPTION",
    "DisabledSubscription": "R-AZURE-SUBSCRIPTION",
    "LocationNotAvailableForResourceType": "R-AZURE-REGION",
    "InvalidParameter": "R-AZURE-VALUE",
    "InvalidParameterValue": "R-AZURE-VALUE",
    "InvalidRequestContent": "R-AZURE-VALUE",
    "PrincipalNotFound": "R-AZURE-VALUE",
    "StorageAccountAlreadyTaken": "R-NAME-TAKEN",
    "AccountAlreadyTaken": "R-NAME-TAKEN",
    "StorageAccountInAnotherResourceGroup": "R-NAME-TAKEN",
    "ParentResourceNotFound": "R-AZURE-MISSING",
    "TooManyRequests": "R-AZURE-BUSY",
    "ExpiredAuthenticationToken": "R-AZURE-SIGN-IN",
    "InvalidAuthenticationTokenTenant": "R-AZURE-SIGN-IN",
}


def _autorest(code: str) -> str:
    quoted = _MESSAGE.replace('"', '\\"')
    return f'autorest/azure: Service returned an error. Status=409 Code="{code}" Message="{quoted}"'


def _azcore(code: str) -> str:
    line = "-" * 80
    body = json.dumps({"error": {"code": code, "message": _MESSAGE}}, indent=2)
    return (
        f"PUT https://management.azure.com/subscriptions/1\n{line}\n"
        f"RESPONSE 409: 409 Conflict\nERROR CODE: {code}\n{line}\n{body}\n{line}\n"
    )


def _wrapped(code: str) -> str:
    inner = json.dumps([{"code": code, "message": _MESSAGE}])
    return f'Code="DeploymentFailed" Message="At least one failed." Details={inner}'


@pytest.mark.parametrize("form", [_autorest, _azcore, _wrapped])
@pytest.mark.parametrize("code", _REPORTED)
def test_engine_and_client_say_the_same(code: str, form: Callable[[str], str]) -> None:
    found = read_provider_error(form(code))
    assert found.fault is not None
    assert (found.code, found.fault.code) == (code, _REPORTED[code])
    client = to_arm_error(409, code, {"error": {"code": code, "message": _MESSAGE}}, "/x")
    fix = with_az(found.fault.fix, os.environ)  # as the errors of the engine do
    assert (client.code, client.what, client.fix) == found.fault._replace(fix=fix)
    assert client.why == f"{code}: {_MESSAGE}"
    assert is_explained(found.fault.code)
    assert found.fault.code in EXIT_CODES


def test_message_of_the_provider_is_one_line_without_its_frame() -> None:
    for form in (_autorest, _azcore):
        assert read_provider_error(form("ScopeLocked")).message == _MESSAGE


def test_precise_code_in_a_general_error_decides() -> None:
    error = {
        "code": "Conflict",
        "message": "failed",
        "details": [{"code": "BadRequest", "innererror": {"code": "SkuNotAvailable"}}],
    }
    codes = [*codes_in(error)]
    assert codes == ["Conflict", "BadRequest", "SkuNotAvailable"]
    found = find_fault(codes)
    assert found is not None
    assert found[0] == "SkuNotAvailable"
    assert to_arm_error(409, "Conflict", {"error": error}, "/x").code == "R-AZURE-CAPACITY"


def test_existing_resource_is_recognized_without_a_code() -> None:
    found = read_provider_error("cannot create already existing resource '/subscriptions/1/x'")
    assert found.fault is not None
    assert (found.code, found.fault.code) == ("", "R-AZURE-EXISTS")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('Status=418 Code="Teapot" Message="I am one"', "Teapot"),
        ("no space left on device", ""),
        ("", ""),
    ],
)
def test_unknown_text_has_no_meaning(text: str, code: str) -> None:
    found = read_provider_error(text)
    assert (found.code, found.fault) == (code, None)


def test_status_decides_if_the_code_is_unknown() -> None:
    found = read_provider_error('Status=403 Code="SomethingNew" Message="no"')
    assert found.fault is not None
    assert (found.code, found.fault.code) == ("SomethingNew", "R-AZURE-DENIED")
