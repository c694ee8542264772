from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import date
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError

from runner.azure.arm import subscription as ask
from runner.azure.arm.client import ArmClient, open_arm
from runner.protocol.errors import ExitCode, RunnerError
from tests.arm_server import SUBSCRIPTION, ArmServer, resource_id

EASTUS = "eastus"


@pytest.fixture
def server() -> Generator[ArmServer]:
    with ArmServer() as running:
        yield running


@pytest.fixture
def management(server: ArmServer) -> ArmClient:
    return ArmClient(SUBSCRIPTION, endpoint=server.url, credential=server.credential)


def test_subscription_is_read(management: ArmClient):
    found = ask.load_subscription(management)
    assert (found.id, found.state) == (SUBSCRIPTION, "Enabled")


def test_tokens_are_requested_for_the_endpoint_only(server: ArmServer, management: ArmClient):
    ask.load_subscription(management)
    assert set(server.credential.scopes) == {f"{server.url}/.default"}


def test_sdk_sign_in_works_against_the_stand_in(server: ArmServer, monkeypatch: pytest.MonkeyPatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    signed_in = open_arm(SUBSCRIPTION, server.environment())
    signed_in.sign_in()
    assert ask.load_subscription(signed_in).state == "Enabled"
    assert server.credential.scopes == [server.url]


@pytest.mark.parametrize(
    ("status", "code", "expected", "exit_code"),
    [
        (401, "InvalidAuthenticationToken", "R-AZURE-SIGN-IN", ExitCode.ACCESS),
        (401, "ExpiredAuthenticationToken", "R-AZURE-SIGN-IN", ExitCode.ACCESS),
        (401, "InvalidAuthenticationTokenTenant", "R-AZURE-SIGN-IN", ExitCode.ACCESS),
        (403, "AuthorizationFailed", "R-AZURE-DENIED", ExitCode.ACCESS),
        (403, "SomethingNew", "R-AZURE-DENIED", ExitCode.ACCESS),
        (403, "RequestDisallowedByPolicy", "R-AZURE-DENIED", ExitCode.ACCESS),
        (404, "SubscriptionNotFound", "R-AZURE-SUBSCRIPTION", ExitCode.ACCESS),
        (400, "InvalidSubscriptionId", "R-AZURE-SUBSCRIPTION", ExitCode.ACCESS),
        (409, "MissingSubscriptionRegistration", "R-AZURE-PROVIDER", ExitCode.PREFLIGHT),
        (400, "NoRegisteredProviderFound", "R-AZURE-REGION", ExitCode.PREFLIGHT),
        (409, "QuotaExceeded", "R-AZURE-QUOTA", ExitCode.CAPACITY),
        (409, "SkuNotAvailable", "R-AZURE-CAPACITY", ExitCode.CAPACITY),
        (418, "Teapot", "R-AZURE", ExitCode.PREFLIGHT),
    ],
)
def test_arm_errors_are_mapped_by_their_code(
    server: ArmServer,
    management: ArmClient,
    status: int,
    code: str,
    expected: str,
    exit_code: ExitCode,
):
    server.refuse("/subscriptions/", status, code)
    with pytest.raises(RunnerError) as caught:
        ask.load_subscription(management)
    assert (caught.value.code, caught.value.exit_code) == (expected, exit_code)
    assert caught.value.fix
    assert code in f"{caught.value.what}{caught.value.why}"


@pytest.mark.slow
def test_throttled_request_is_retried_then_reported(server: ArmServer, management: ArmClient):
    server.refuse("/subscriptions/", 429, "TooManyRequests", **{"Retry-After": "0"})
    with pytest.raises(RunnerError) as caught:
        ask.load_subscription(management)
    assert caught.value.code == "R-AZURE-BUSY"
    assert len(server.state.requests) == 4


@pytest.mark.slow
def test_arm_response_other_than_json_is_an_error(server: ArmServer, management: ArmClient):
    server.refuse("/subscriptions/", 502, "")
    with pytest.raises(RunnerError) as caught:
        ask.load_subscription(management)
    assert caught.value.code == "R-AZURE"
    assert "502" in caught.value.what


def test_missing_sign_in_is_reported(server: ArmServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")

    class Nobody:
        def get_token(self, *scopes: str, **_: Any) -> Any:
            raise ClientAuthenticationError(
                "DefaultAzureCredential failed\n\tAzureCliCredential: Azure CLI not found on path\n"
            )

    for attempt in ("sign_in", "ask"):
        management = ArmClient(SUBSCRIPTION, endpoint=server.url, credential=Nobody())
        with pytest.raises(RunnerError) as caught:
            management.sign_in() if attempt == "sign_in" else ask.load_subscription(management)
        assert (caught.value.code, caught.value.exit_code) == ("R-AZURE-SIGN-IN", ExitCode.ACCESS)
        assert "az login" in caught.value.fix
        assert caught.value.fix.startswith("install the Azure CLI (https://")
        assert caught.value.why.endswith("nor `az` sign in: Azure CLI not found on path")


def test_unreachable_arm_endpoint_is_an_error(server: ArmServer):
    management = ArmClient(
        SUBSCRIPTION, endpoint="http://127.0.0.1:9", credential=server.credential
    )
    with pytest.raises(RunnerError) as caught:
        ask.load_subscription(management)
    assert caught.value.code == "R-AZURE-UNREACHABLE"


@pytest.mark.parametrize(
    ("env", "endpoint"),
    [
        ({}, "https://management.azure.com"),
        ({"ARM_ENVIRONMENT": "USGovernment"}, "https://management.usgovcloudapi.net"),
        ({"ARM_ENDPOINT": "https://management.own.example/"}, "https://management.own.example"),
        ({"ARM_ENDPOINT": "http://127.0.0.1:8080"}, "http://127.0.0.1:8080"),
    ],
)
def test_arm_endpoint_follows_the_cloud(env: Mapping[str, str], endpoint: str):
    assert open_arm(SUBSCRIPTION, env).endpoint == endpoint


@pytest.mark.parametrize(
    "env",
    [
        {"ARM_ENVIRONMENT": "moon"},
        {"ARM_ENDPOINT": "http://example.com"},
        {"ARM_ENDPOINT": "http://127.0.0.1.example.com"},
        {"ARM_ENDPOINT": "management.azure.com"},
        {"ARM_ENDPOINT": "https://example.com/path"},
        {"ARM_ENDPOINT": "ftp://127.0.0.1"},
    ],
)
def test_plain_http_endpoint_is_rejected(env: Mapping[str, str]):
    with pytest.raises(RunnerError) as caught:
        open_arm(SUBSCRIPTION, env)
    assert caught.value.code == "R-AZURE-ENDPOINT"


def test_pipeline_rejects_plain_http_to_other_hosts(server: ArmServer):
    # Unreachable through `arm_endpoint`, so this is a second protection.
    management = ArmClient(
        SUBSCRIPTION, endpoint="http://example.invalid", credential=server.credential
    )
    with pytest.raises(RunnerError):
        ask.load_subscription(management)
    assert server.credential.scopes == []


def test_all_pages_of_an_arm_list_are_read(server: ArmServer, management: ArmClient):
    server.state.page_size = 2
    for number in range(7):
        server.add_size(f"Standard_X{number}", "standardXFamily", EASTUS)
    assert len(ask.load_restrictions(management, EASTUS)) == 7


def test_token_is_not_sent_to_a_link_on_another_host(server: ArmServer, management: ArmClient):
    other = ArmServer()
    with other:
        path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/permissions"
        server.state.resources[path] = {}
        server.state.permissions = []
        server._permissions = lambda: (  # type: ignore[method-assign]
            200,
            {"value": [], "nextLink": f"{other.url}{path}?api-version=1"},
        )
        with pytest.raises(RunnerError, match="cannot be reached"):
            ask.load_permissions(management)
        assert other.state.requests == []


def test_unregistered_provider_is_reported(server: ArmServer, management: ArmClient):
    server.state.providers["Microsoft.Batch"] = "NotRegistered"
    assert ask.load_provider_state(management, "Microsoft.Batch") == "NotRegistered"
    assert ask.load_provider_state(management, "Microsoft.Storage") == "Registered"


def test_enforced_family_quotas_are_read(server: ArmServer, management: ArmClient):
    server.add_batch_account("rg", "one", EASTUS, lowPriorityCoreQuota=0)
    server.add_batch_account("rg", "two", EASTUS, dedicatedCoreQuotaPerVMFamilyEnforced=False)
    one = ask.find_batch_account(management, "rg", "one")
    two = ask.find_batch_account(management, "RG", "TWO")
    assert one is not None
    assert two is not None
    assert one.spot_quota == 0
    assert one.family_quotas == {"standardncasv3t4family": 16}
    assert two.family_quotas is None
    assert ask.find_batch_account(management, "rg", "three") is None
    assert len(ask.list_batch_accounts(management)) == 2
    assert ask.load_account_limit(management, EASTUS) == 3


def test_missing_group_has_no_account_but_denial_is_an_error(
    server: ArmServer, management: ArmClient
):
    server.refuse("/resourcegroups/gone", 404, "ResourceGroupNotFound")
    assert ask.find_batch_account(management, "gone", "one") is None
    server.refuse("/resourcegroups/secret", 403, "AuthorizationFailed")
    with pytest.raises(RunnerError, match="lacks a permission"):
        ask.find_batch_account(management, "secret", "one")


def test_sizes_have_end_of_life_and_restriction(server: ArmServer, management: ArmClient):
    server.add_size("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", EASTUS)
    server.add_size(
        "Standard_NV12s_v3",
        "standardNVSv3Family",
        EASTUS,
        restricted="NotAvailableForSubscription",
        end_of_life="2026-09-30",
    )
    sizes = ask.load_batch_sizes(management, EASTUS)
    assert sizes["standard_nv12s_v3"].end_of_life == date(2026, 9, 30)
    assert sizes["standard_nc4as_t4_v3"].spot_capable is True
    restrictions = ask.load_restrictions(management, EASTUS)
    assert restrictions == {
        "standard_nc4as_t4_v3": "",
        "standard_nv12s_v3": "NotAvailableForSubscription",
    }
    assert ask.load_batch_sizes(management, "westus") == {}


def test_restriction_to_a_zone_is_ignored(server: ArmServer, management: ArmClient):
    server.add_size("Standard_A", "f", EASTUS, restricted="NotAvailableForSubscription")
    server.state.skus[0]["restrictions"][0]["type"] = "Zone"
    assert ask.load_restrictions(management, EASTUS) == {"standard_a": ""}


def test_name_availability_is_read(server: ArmServer, management: ArmClient):
    server.state.taken_names.add("taken")
    assert ask.check_storage_name(management, "free").available
    answer = ask.check_storage_name(management, "taken")
    assert (answer.available, answer.reason) == (False, "AlreadyExists")
    assert not ask.check_batch_name(management, EASTUS, "taken").available


def test_marketplace_versions_are_listed(server: ArmServer, management: ArmClient):
    server.state.images["microsoft-dsvm/ubuntu-hpc/2404"] = ["24.04.1", "24.04.2"]
    known = ("microsoft-dsvm", "ubuntu-hpc", "2404")
    assert ask.list_marketplace_versions(management, EASTUS, *known) == ("24.04.1", "24.04.2")
    assert ask.list_marketplace_versions(management, EASTUS, "a", "b", "c") == ()


def test_gallery_versions_in_creation_are_omitted(server: ArmServer, management: ArmClient):
    image = resource_id("rg", "Microsoft.Compute/galleries/g/images/i")
    server.state.resources[image] = {"id": image, "name": "i"}
    for name, state in (("1.0.0", "Succeeded"), ("1.0.1", "Creating")):
        server.state.resources[f"{image}/versions/{name}"] = {
            "name": name,
            "properties": {"provisioningState": state},
        }
    assert ask.list_gallery_versions(management, "rg", "g", "i") == ("1.0.0",)
    assert ask.list_gallery_versions(management, "rg", "g", "other") == ()


@pytest.mark.parametrize(
    ("actions", "not_actions", "allowed"),
    [
        (["*"], [], True),
        (["*"], ["Microsoft.Authorization/*/Write"], False),  # the role Contributor
        (["Microsoft.Authorization/roleAssignments/*"], [], True),
        (["*/read"], [], False),
        ([], [], False),
    ],
)
def test_permissions_are_matched_as_patterns(
    server: ArmServer,
    management: ArmClient,
    actions: list[str],
    not_actions: list[str],
    allowed: bool,
):
    server.state.permissions = [{"actions": actions, "notActions": not_actions}]
    granted = ask.load_permissions(management)
    assert ask.is_allowed(granted, "Microsoft.Authorization/roleAssignments/write") is allowed


def test_grant_is_not_limited_by_exceptions_of_another(server: ArmServer, management: ArmClient):
    server.state.permissions = [
        {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]},
        {"actions": ["Microsoft.Authorization/roleAssignments/write"], "notActions": []},
    ]
    granted = ask.load_permissions(management)
    assert ask.is_allowed(granted, "Microsoft.Authorization/roleAssignments/write")
