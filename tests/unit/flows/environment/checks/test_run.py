"""`runner check` against a stand-in of Azure Resource Manager: every bad input, and none."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.cli.commands.environment import deploy
from runner.cli.main import main
from runner.core.pricing.machines import REGIONS
from runner.protocol.errors import ExitCode
from runner_infra.config.naming import Names
from tests.arm_server import SUBSCRIPTION, ArmServer, resource_id
from tests.unit.infra.cloud import token_of

pytest.importorskip("runner_infra.planning.pool_plan")

T4 = "Standard_NC4as_T4_v3"
NAMES = Names("dev", SUBSCRIPTION)
_AZURE = "azure-native:"
_POOL: Mapping[str, Any] = {"id": "t4", "vm_size": T4, "max_spot": 4}
_IMAGES = ("microsoft-dsvm/ubuntu-hpc/2204", "microsoft-dsvm/ubuntu-hpc/2404")


@dataclass
class Project:
    """A folder with a stack's file, and an Azure that it would be deployed to."""

    folder: Path
    server: ArmServer
    capsys: pytest.CaptureFixture[str]

    def write(self, *pools: Mapping[str, Any], **keys: Any) -> None:
        config: dict[str, Any] = {
            f"{_AZURE}location": "eastus",
            f"{_AZURE}subscriptionId": SUBSCRIPTION,
            "runner:pools": [dict(pool) for pool in pools or (_POOL,)],
            **{f"runner:{name}": value for name, value in keys.items()},
        }
        text = json.dumps({"config": config}, indent=1)  # JSON is YAML
        (self.folder / "Pulumi.dev.yaml").write_text(text, encoding="utf-8")

    def line_of(self, text: str) -> int:
        """Return the number of the line of the stack's file that has the text as a value."""
        lines = (self.folder / "Pulumi.dev.yaml").read_text(encoding="utf-8").splitlines()
        return next(number for number, line in enumerate(lines, 1) if f'"{text}"' in line)

    def check(self) -> tuple[int, list[dict[str, str]]]:
        code = main(["check", "-o", "json"])
        found = json.loads(self.capsys.readouterr().out)
        # The warning of old API versions concerns every stack, and has tests of its own.
        old = [each for each in found if each["check"] == "batch-api"]
        assert "2024-07-01" in old[0]["detail"] if old else True
        return code, [each for each in found if each not in old]

    def add_group(self, **tags: str) -> None:
        """Add the resource group of the stack to Azure."""
        named = {f"runner-{name.replace('_', '-')}": value for name, value in tags.items()}
        group = resource_id(NAMES.resource_group, "")
        self.server.state.resources[group] = {"tags": {"app": "runner", **named}}

    def write_state(self, inputs: Mapping[str, Any]) -> None:
        """Write a state of Pulumi on this machine that has the group of the stack."""
        group = {"id": resource_id(NAMES.resource_group, ""), "inputs": dict(inputs)}
        file = self.folder / "home/pulumi/.pulumi/stacks/runner/dev.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"checkpoint": {"latest": {"resources": [group]}}}))

    def failures(self, exit_code: int) -> list[dict[str, str]]:
        """Return the failed checks, each of which must have a code and a fix."""
        code, found = self.check()
        assert code == exit_code, found
        failed = [each for each in found if each["state"] == "failed"]
        assert all(each["fix"] and each["code"] for each in failed)
        return failed

    def only_failure(self, exit_code: int) -> dict[str, str]:
        (failed,) = self.failures(exit_code)
        return failed


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "none.yaml"))
    (tmp_path / "none.yaml").touch()
    for name in ("ARM_SUBSCRIPTION_ID", "ARM_LOCATION", "ARM_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    with ArmServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.add_size(T4, "standardNCASv3_T4Family", "eastus")
        server.state.images = {image: ["22.04.1", "22.04.2"] for image in _IMAGES}
        made = Project(tmp_path, server, capsys)
        made.write()
        yield made


def test_deployable_stack_passes(project: Project):
    code, found = project.check()
    assert code == 0, found
    assert {each["state"] for each in found} <= {"ok", "note", "skipped"}
    names = {each["check"] for each in found}
    assert names >= {"config", "pool t4", "sign-in", "subscription", "providers", "permissions"}
    assert names >= {"names", "sizes", "images", "quotas"}
    assert all(method in ("GET", "POST") for method, _, _ in project.server.state.requests)


@pytest.mark.feature(2)
def test_table_has_a_row_per_check_and_the_fixes_below(project: Project):
    project.server.state.providers["Microsoft.Batch"] = "NotRegistered"
    assert main(["check"]) == 3
    shown = project.capsys.readouterr()
    assert "providers" in shown.out
    assert "providers  " not in shown.err, "the table has each result once"
    assert "az provider register --namespace Microsoft.Batch" in shown.err


def test_terminal_shows_each_check_once_with_the_mark_of_its_result(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(deploy, "is_terminal", lambda stream: True)
    project.server.state.providers["Microsoft.Batch"] = "NotRegistered"
    assert main(["check"]) == 3
    shown = project.capsys.readouterr()
    assert shown.out == ""
    marks = {line[2:].split("  ")[0]: line[0] for line in shown.err.splitlines()}
    assert (marks["config"], marks["az"], marks["providers"]) == ("✓", "i", "✗")
    assert marks["quotas"] == "-"
    assert "note:" not in shown.err


def test_a_missing_region_is_named(project: Project):
    project.write()
    file = project.folder / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace(f'"{_AZURE}location": "eastus",', ""))
    failed = project.only_failure(3)
    assert failed["code"] == "R-STACK-CONFIG-MISSING"
    assert "location" in failed["detail"]


@pytest.mark.parametrize("signed_in", [True, False])
@pytest.mark.parametrize(
    ("keys", "near"),
    [
        ({"location": "westeurop"}, "'westeurope'"),
        ({"location": "eastus9", "azure": ["eastus"]}, "'eastus'"),
        ({"image": {"replicate_to": ["eastus", "norwayeas"]}}, "'norwayeast'"),
    ],
)
def test_unknown_region_is_refused(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, Any],
    near: str,
    signed_in: bool,
):
    if signed_in:
        project.server.state.locations = set(keys.get("azure", REGIONS))
    else:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
        monkeypatch.setenv("PATH", "/nowhere")
    project.write(**{key: value for key, value in keys.items() if key == "image"})
    if location := keys.get("location"):
        file = project.folder / "Pulumi.dev.yaml"
        file.write_text(file.read_text().replace('"eastus"', f'"{location}"'))
    _, found = project.check()
    failed = [each for each in found if (each["check"], each["state"]) == ("region", "failed")]
    (only,) = failed
    assert only["code"] == "R-AZURE-REGION"
    assert only["fix"].startswith("did you mean ")
    assert near in only["fix"]
    assert not [each for each in found if "unknown region" in each["detail"] and each is not only]


def test_region_that_only_the_subscription_knows_is_accepted(project: Project):
    project.server.state.locations.add("atlantiscentral")
    project.server.add_size(T4, "standardNCASv3_T4Family", "atlantiscentral")
    file = project.folder / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace('"eastus"', '"atlantiscentral"'))
    code, found = project.check()
    assert code == 0, found
    (region,) = [each for each in found if each["check"] == "region"]
    assert region["state"] == "ok"


def test_a_missing_subscription_is_named(project: Project):
    file = project.folder / "Pulumi.dev.yaml"
    text = file.read_text().replace(f'"{_AZURE}subscriptionId": "{SUBSCRIPTION}",', "")
    file.write_text(text)
    failed = project.only_failure(3)
    assert "subscription" in failed["detail"]


def test_a_missing_file_is_named(project: Project):
    (project.folder / "Pulumi.dev.yaml").unlink()
    failed = project.only_failure(3)
    assert "Pulumi.dev.yaml" in failed["detail"]


@pytest.mark.parametrize(
    ("vm_size", "code"),
    [("Standard_NC6s_v3", "R-MACHINE-RETIRED"), ("Standard_NC4as_T5", "R-MACHINE-UNKNOWN")],
)
def test_unavailable_size_is_refused(project: Project, vm_size: str, code: str):
    project.write(_POOL, {"max_spot": 1, "id": "next", "vm_size": vm_size})
    failed = project.only_failure(3)
    assert failed["code"] == code
    assert f"Pulumi.dev.yaml:{project.line_of(vm_size)}: pools.1.vm_size: " in failed["detail"]


def test_invalid_size_of_the_image_builder_is_one_failure(project: Project):
    project.write(_POOL, {**_POOL, "id": "next"}, image={"build_vm_size": "Standard_NC6"})
    failed = project.only_failure(3)
    assert (failed["check"], failed["code"]) == ("image", "R-MACHINE-RETIRED")
    assert f"yaml:{project.line_of('Standard_NC6')}: image.build_vm_size: " in failed["detail"]


def test_a_cap_below_one_node_is_refused(project: Project):
    project.write({**_POOL, "vm_size": "Standard_NC24ads_A100_v4", "spend_cap_usd_per_hour": 0.01})
    project.server.add_size("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", "eastus")
    assert project.failures(6)[0]["code"] == "R-POOL-CAP"


def test_a_formula_with_a_syntax_error_is_refused(project: Project):
    project.write({**_POOL, "scenario": "formula", "formula": "$TargetDedicatedNodes = (1 + ;"})
    failed = project.only_failure(3)
    assert failed["check"] == "pool t4"


def test_two_pools_of_one_id_are_refused(project: Project):
    project.write(_POOL, {**_POOL, "id": "T4"})
    assert "two pools" in project.only_failure(3)["detail"]


def test_an_illegal_storage_name_is_refused(project: Project):
    project.write(storage={"account_name": "Has-Dashes"})
    assert "Has-Dashes" in project.only_failure(3)["detail"]


def test_a_share_while_keys_are_forbidden_is_refused(project: Project):
    project.write(storage={"file_share_gib": 100, "shared_keys": False})
    assert "shared_keys" in project.only_failure(3)["detail"]


def test_an_image_version_that_does_not_exist_is_refused(project: Project):
    project.write({**_POOL, "image": {"source": "marketplace", "version": "9.9.9"}})
    failed = project.only_failure(3)
    assert failed["code"] == "R-IMAGE-VERSION"
    assert "22.04.2" in failed["detail"]


def test_a_gallery_without_an_image_is_refused(project: Project):
    pool = {**_POOL, "image": {"source": "gallery", "version": "latest"}}
    project.write(pool, image={})
    failed = project.only_failure(3)
    assert "runner image build" in failed["fix"]


def test_a_gallery_version_that_does_not_exist_is_refused(project: Project):
    project.write({**_POOL, "image": {"source": "gallery", "version": "1.0.9"}}, image={})
    gallery = resource_id(NAMES.resource_group, f"Microsoft.Compute/galleries/{NAMES.gallery}")
    for path in (gallery, f"{gallery}/images/gpu", f"{gallery}/images/gpu/versions/1.0.0"):
        project.server.state.resources[path] = {"id": path, "name": path.rsplit("/", 1)[-1]}
    failed = project.only_failure(3)
    assert (failed["code"], "1.0.0" in failed["detail"]) == ("R-IMAGE-VERSION", True)


def test_not_signed_in_is_a_failure_and_the_rest_is_skipped(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("IDENTITY_HEADER", "not the one")
    code, found = project.check()
    states = {each["check"]: each["state"] for each in found}
    assert code == 4
    assert states["sign-in"] == "failed"
    assert states["pool t4"] == "ok"
    assert all(states[name] == "skipped" for name in ("subscription", "quotas", "images"))
    assert {each["detail"] for each in found if each["state"] == "skipped"} == {"not signed in"}


def test_invisible_subscription_is_a_failure(project: Project):
    project.server.refuse(f"/subscriptions/{SUBSCRIPTION}", 404, "SubscriptionNotFound")
    failed = project.only_failure(4)
    assert (failed["check"], failed["code"]) == ("subscription", "R-AZURE-SUBSCRIPTION")


def test_a_disabled_subscription_is_a_failure(project: Project):
    project.server.state.subscription_state = "Disabled"
    assert "Disabled" in project.only_failure(4)["detail"]


def test_contributor_cannot_assign_roles(project: Project):
    project.server.state.permissions = [
        {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}
    ]
    failed = project.only_failure(4)
    assert failed["check"] == "permissions"
    assert "roleAssignments/write" in failed["detail"]


def test_a_refused_request_fails_its_own_check_only(project: Project):
    project.server.refuse("checknameavailability", 403, "AuthorizationFailed")
    failed = project.failures(4)
    assert {each["check"] for each in failed} == {"names"}
    assert {each["code"] for each in failed} == {"R-AZURE-DENIED"}


def test_unregistered_provider_is_a_failure(project: Project):
    project.server.state.providers["Microsoft.Batch"] = "NotRegistered"
    failed = project.only_failure(3)
    assert failed["fix"] == "az provider register --namespace Microsoft.Batch --wait"


def test_provider_being_registered_is_a_warning(project: Project):
    project.server.state.providers["Microsoft.Batch"] = "Registering"
    code, found = project.check()
    assert (code, [each["check"] for each in found if each["state"] == "warning"]) == (
        0,
        ["providers"],
    )


@pytest.mark.parametrize(("quota", "exit_code"), [(0, 5), (3, 5)])
@pytest.mark.feature(9)
def test_a_spot_quota_below_one_node_is_a_failure(project: Project, quota: int, exit_code: int):
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", lowPriorityCoreQuota=quota
    )
    failed = project.only_failure(exit_code)
    assert (failed["check"], failed["code"]) == ("quotas", "R-QUOTA")
    assert f"{quota} cores" in failed["detail"]
    assert "16 spot cores" in failed["fix"]


def test_a_spot_quota_for_some_of_the_nodes_is_a_warning(project: Project):
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", lowPriorityCoreQuota=8
    )
    code, found = project.check()
    assert code == 0
    assert [each["detail"] for each in found if each["state"] == "warning"] == [
        "the spot quota is 8 cores; pool t4 may use 16"
    ]


def test_a_family_without_dedicated_quota_is_a_failure(project: Project):
    project.write({**_POOL, "max_spot": 0, "max_dedicated": 2})
    families = [{"name": "standardDSv3Family", "coreQuota": 100}]
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", dedicatedCoreQuotaPerVMFamily=families
    )
    failed = project.only_failure(5)
    assert "StandardNCASv3_T4Family" in failed["detail"]


def test_family_quota_is_found_in_any_spelling(project: Project):
    project.write({**_POOL, "max_spot": 0, "max_dedicated": 2})
    families = [{"name": "Standard NCASv3_T4 Family", "coreQuota": 8}]
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", dedicatedCoreQuotaPerVMFamily=families
    )
    assert project.check()[0] == 0


def test_exhausted_account_quota_is_a_failure(project: Project):
    project.server.state.account_quota = 1
    project.server.add_batch_account("other", "another", "eastus")
    assert "1 Batch accounts" in project.only_failure(5)["detail"]


def test_a_restricted_size_is_a_failure(project: Project):
    project.server.state.skus.clear()
    project.server.state.batch_sizes.clear()
    project.server.add_size(T4, "f", "eastus", restricted="NotAvailableForSubscription")
    failed = project.only_failure(5)
    assert (failed["check"], failed["code"]) == ("sizes", "R-AZURE-CAPACITY")


def test_size_missing_in_the_region_is_a_failure(project: Project):
    project.server.state.batch_sizes.clear()
    assert project.only_failure(3)["detail"] == f"{T4} is not offered in eastus"


@pytest.mark.parametrize(("end", "state"), [("2020-01-01", "failed"), ("2099-01-01", "warning")])
def test_end_of_a_size_in_batch_is_checked(project: Project, end: str, state: str):
    project.server.state.batch_sizes.clear()
    project.server.add_size(T4, "f", "eastus", end_of_life=end)
    _, found = project.check()
    assert [each["state"] for each in found if each["check"] == "sizes"] == [state]


def test_size_without_spot_is_a_failure(project: Project):
    project.server.state.batch_sizes[0]["capabilities"][0]["value"] = "False"
    failed = project.only_failure(3)
    assert failed["code"] == "R-MACHINE-SPOT"


def test_name_used_by_another_account_is_a_failure(project: Project):
    project.write(storage={"account_name": "taken"})
    project.server.state.taken_names.add("taken")
    assert project.only_failure(3)["code"] == "R-NAME-TAKEN"


def test_names_used_by_the_stack_itself_pass(project: Project):
    project.server.state.taken_names |= {NAMES.storage_account, NAMES.batch_account}
    project.server.add_batch_account(NAMES.resource_group, NAMES.batch_account, "eastus")
    storage = f"Microsoft.Storage/storageAccounts/{NAMES.storage_account}"
    project.server.state.resources[resource_id(NAMES.resource_group, storage)] = {"name": "x"}
    project.add_group(stack_id="1")
    project.write_state({"tags": {"runner-stack-id": "1"}})
    code, found = project.check()
    assert code == 0, found
    assert sum("is in the group of the stack" in each["detail"] for each in found) == 2
    (owner,) = [each["detail"] for each in found if each["check"] == "owner"]
    assert owner == "resource group rg-runner-dev belongs to this stack and its state"


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"app": "runner", "runner-stack-id": "1"}, "its tag runner-stack-id is 1"),
        ({"app": "runner"}, "an older version of runner deployed it"),
        ({}, "it was created by other means"),
    ],
)
@pytest.mark.feature(2)
def test_stack_of_another_state_is_a_failure(project: Project, tags: dict[str, str], reason: str):
    project.server.add_batch_account(NAMES.resource_group, NAMES.batch_account, "eastus")
    project.server.state.resources[resource_id(NAMES.resource_group, "")] = {"tags": tags}
    failed = project.only_failure(3)
    assert (failed["check"], failed["code"]) == ("owner", "R-STACK-FOREIGN")
    assert reason in failed["detail"]
    assert "runner join --stack dev" in failed["fix"]


def test_stack_without_a_tag_belongs_to_the_state_that_has_its_group(project: Project):
    project.add_group()
    project.write_state({})
    code, found = project.check()
    assert code == 0, found


def test_owner_is_unknown_if_the_state_cannot_be_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PULUMI_BACKEND_URL", "azblob://state")
    monkeypatch.setenv("PATH", "/nowhere")
    project.add_group(stack_id="1")
    _, found = project.check()
    (owner,) = [each for each in found if each["check"] == "owner"]
    assert owner["state"] == "skipped"


def test_unreachable_azure_is_a_failure(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ARM_ENDPOINT", "http://127.0.0.1:9")
    failed = project.only_failure(3)
    assert failed["code"] == "R-AZURE-UNREACHABLE"


def test_invalid_pool_does_not_hide_the_next(project: Project):
    project.write({**_POOL, "id": "a", "vm_size": "no"}, {**_POOL, "id": "b", "vm_size": "no"})
    assert [each["check"] for each in project.failures(3)] == ["pool a", "pool b"]


def _usage(family: str, used: int, limit: int) -> dict[str, Any]:
    name = {"value": family, "localizedValue": f"{family} vCPUs"}
    return {"unit": "Count", "currentValue": used, "limit": limit, "name": name}


def test_image_build_without_quota_is_a_warning(project: Project):
    project.write(image={})
    project.server.state.usages = [_usage("Standard NCASv3_T4 Family", 6, 8)]
    code, found = project.check()
    (warning,) = [each for each in found if each["state"] == "warning"]
    assert (code, warning["check"]) == (0, "quotas")
    assert "needs 4 cores, 2 of its family are free" in warning["detail"]
    project.server.state.usages = [_usage("Standard NCASv3_T4 Family", 4, 8)]
    _, found = project.check()
    assert "warning" not in {each["state"] for each in found}
    assert any(each["detail"].startswith("image build: 4 of 4 free") for each in found)


def test_image_build_without_a_size_in_the_region_is_a_warning(project: Project):
    project.write(image={"build_vm_size": "Standard_NC24ads_A100_v4"})
    code, found = project.check()
    (warning,) = [each for each in found if each["state"] == "warning"]
    assert (code, warning["check"]) == (0, "sizes")
    assert "Standard_NC24ads_A100_v4 is not offered" in warning["detail"]


def test_more_pools_than_the_quota_are_refused(project: Project):
    project.write(_POOL, {**_POOL, "id": "more"})
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", poolQuota=1
    )
    assert "has 2 pools, the quota of the account is 1" in project.only_failure(5)["detail"]


def test_check_finds_the_project_from_a_subfolder(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    (project.folder / "Pulumi.yaml").write_text("name: runner\nruntime: python\n")
    (project.folder / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(project.folder / "deep/er")
    assert project.check()[0] == 0


def test_total_dedicated_quota_below_one_node_is_a_failure(
    project: Project,
):
    project.write({**_POOL, "max_spot": 0, "max_dedicated": 2})
    project.server.add_batch_account(
        NAMES.resource_group, NAMES.batch_account, "eastus", dedicatedCoreQuota=0
    )
    failed = project.only_failure(5)
    assert failed["detail"].startswith("the total dedicated quota of the Batch account is 0 cores")


@pytest.mark.parametrize("offer", ["CSP_2015-05-01", "Sponsored_2016-01-01"])
def test_an_offer_without_cost_management_is_a_failure(project: Project, offer: str):
    project.server.state.quota_id = offer
    failed = project.only_failure(ExitCode.PREFLIGHT)
    assert (failed["check"], failed["code"]) == ("budget", "R-AZURE-BUDGET")
    assert "runner:budget: null" in failed["fix"]


def test_a_stack_without_budget_needs_no_cost_management(project: Project):
    project.server.state.quota_id = "CSP_2015-05-01"
    project.write(budget=None)
    code, found = project.check()
    assert code == 0
    (budget,) = [each for each in found if each["check"] == "budget"]
    assert budget["state"] == "skipped"


def test_unknown_offer_passes(project: Project):
    project.server.state.quota_id = ""
    code, found = project.check()
    assert code == 0
    assert [each["state"] for each in found if each["check"] == "budget"] == ["skipped"]


def test_suspicious_setting_is_a_warning(project: Project):
    project.write({**_POOL, "ssh_from": ["0.0.0.0/0"]})
    code, found = project.check()
    assert code == 0
    (warning,) = [each for each in found if each["state"] == "warning"]
    assert (warning["check"], "whole internet" in warning["detail"]) == ("config", True)


@pytest.mark.parametrize(
    ("address", "says"),
    [(None, "your public IPv4 address is unknown"), ("8.8.4.4", "8.8.4.4, which may exclude")],
)
def test_firewall_that_excludes_users_is_a_warning(
    project: Project, address: str | None, says: str
):
    project.server.state.token = token_of({"oid": "me", "ipaddr": address})
    project.write(network={}, operators=[{"id": "22222222-3333-4444-5555-666666666666"}])
    code, found = project.check()
    assert code == 0
    (warning,) = [each for each in found if each["state"] == "warning"]
    assert says in warning["detail"]
    assert "network.storage_from" in warning["fix"]
    project.write(network={"storage_from": "all"})
    assert "warning" not in {each["state"] for each in project.check()[1]}


def test_pool_with_two_containers_on_ubuntu_2404_is_a_warning(project: Project):
    mounts = [{"kind": "blob", "container": name, "path": name} for name in ("data", "runs")]
    project.write({**_POOL, "image": {"sku": "2404"}, "mounts": mounts})
    (warning,) = [each for each in project.check()[1] if each["state"] == "warning"]
    assert "mounts 2 containers on Ubuntu 24.04" in warning["detail"]


@pytest.mark.parametrize(("own_image", "failures"), [(True, 1), (False, 0)])
def test_size_without_trusted_launch_cannot_use_the_image(
    project: Project, own_image: bool, failures: int
):
    (size,) = [sku for sku in project.server.state.skus if sku["name"] == T4]
    size["capabilities"].append({"name": "TrustedLaunchDisabled", "value": "True"})
    pool = {**_POOL, "image": {"source": "gallery", "version": "1.0.0"}} if own_image else _POOL
    project.write(pool, **({"image": {}} if own_image else {}))
    _, found = project.check()
    failed = [each for each in found if "trusted launch" in each["detail"]]
    assert len(failed) == failures
    assert all(each["code"] == "R-POOL-IMAGE" for each in failed)


_TEAM = {
    "resource_group": "team",
    "batch_account": resource_id("team", "Microsoft.Batch/batchAccounts/teambatch"),
    "storage_account": resource_id("team", "Microsoft.Storage/storageAccounts/teamdata"),
}


@pytest.fixture
def team(project: Project) -> Project:
    """Return a stack that adopts a group, a Batch account and a storage account."""
    server = project.server
    server.state.resources[resource_id("team", "")] = {"name": "team", "location": "eastus"}
    server.add_batch_account("team", "teambatch", "eastus")
    server.state.resources[_TEAM["storage_account"]] = {
        "id": _TEAM["storage_account"],
        "kind": "StorageV2",
        "location": "eastus",
        "properties": {"networkAcls": {"defaultAction": "Allow"}},
    }
    granted = {"value": [{"actions": ["*"], "notActions": []}]}
    asked = "resourcegroups/team/providers/microsoft.authorization/permissions"
    server.handle("GET", asked, lambda path, body: (200, granted, {}))
    project.write(adopt=_TEAM)
    return project


@pytest.mark.feature(27)
def test_adopted_accounts_need_no_rights_in_the_subscription(team: Project):
    asked = f"{SUBSCRIPTION}/providers/microsoft.authorization/permissions"
    team.server.refuse(asked, 403, "Forbidden")
    code, found = team.check()
    assert code == 0, [each for each in found if each["state"] == "failed"]
    assert [each["state"] for each in found if each["check"] == "adopt"] == ["ok"] * 3
    (quota,) = [each["detail"] for each in found if each["check"] == "quotas"]
    assert "spot: 16 of 64 cores" in quota


def test_budget_without_the_nodes_is_reported(team: Project):
    said = "the budget is for resource group"
    assert not [each for each in team.check()[1] if said in each["detail"]]
    team.write(adopt={"batch_account": _TEAM["batch_account"]})
    (found,) = (each for each in team.check()[1] if said in each["detail"])
    assert (found["state"], found["fix"]) == (
        "warning",
        "set adopt.resource_group: team, or create a budget there",
    )


@pytest.mark.parametrize("key", _TEAM)
def test_missing_adopted_resource_is_named(team: Project, key: str):
    gone = _TEAM[key].rpartition("/")[2]
    del team.server.state.resources[_TEAM[key] if "/" in _TEAM[key] else resource_id(gone, "")]
    (failed,) = (each for each in team.failures(3) if each["check"] == "adopt")
    assert (failed["code"], gone in failed["detail"]) == ("R-ADOPT-MISSING", True)


@pytest.mark.parametrize(
    ("properties", "location", "said"),
    [
        ({}, "westus2", "set azure-native:location: westus2"),
        ({"allowedAuthenticationModes": ["SharedKey"]}, "eastus", "allow Microsoft Entra ID"),
    ],
)
def test_unusable_batch_account_is_refused(
    team: Project, properties: dict[str, Any], location: str, said: str
):
    team.server.add_batch_account("team", "teambatch", location, **properties)
    failed = team.only_failure(3)
    assert (failed["code"], said in failed["fix"]) == ("R-ADOPT-UNFIT", True)


@pytest.mark.parametrize(("owner", "ok"), [("", False), ("other", False), ("dev", True)])
def test_foreign_pool_in_an_adopted_account_is_refused(team: Project, owner: str, ok: bool):
    metadata = [{"name": "runner-stack", "value": owner}] if owner else []
    body = {"value": [{"name": "T4", "properties": {"metadata": metadata}}]}
    team.server.handle("GET", "/teambatch/pools", lambda path, _: (200, body, {}))
    code, found = team.check()
    failed = [each["fix"] for each in found if each["state"] == "failed"]
    assert (code, failed) == ((0, []) if ok else (3, ["use another id in runner:pools"]))


@pytest.mark.parametrize(("owner", "ok"), [("", False), ("other", False), ("dev", True)])
def test_second_mover_of_an_adopted_account_is_refused(team: Project, owner: str, ok: bool):
    metadata = [{"name": "runner-stack", "value": owner}] if owner else []
    body = {"value": [{"name": "runner-mover", "properties": {"metadata": metadata}}]}
    team.server.handle("GET", "/teambatch/pools", lambda path, _: (200, body, {}))
    assert team.check()[0] == 0, "a stack without a mover ignores that of others"
    file = team.folder / "Pulumi.dev.yaml"
    config = json.loads(file.read_text())
    config["config"]["runner:mover"] = {}
    file.write_text(json.dumps(config))
    team.server.add_size("Standard_D2s_v5", "standardDSv5Family", "eastus")
    _, found = team.check()
    failed = [each for each in found if each["state"] == "failed" and each["check"] == "adopt"]
    if ok:
        assert failed == []
        return
    (refused,) = failed
    assert "has a pool runner-mover already" in refused["detail"]
    expected = "remove runner:mover from one of the stacks" if owner else "delete pool runner-mover"
    assert refused["fix"].startswith(expected)


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({"kind": "FileStorage"}, "failed", "does not support blobs"),
        ({"location": "westus2"}, "warning", "traffic between regions is billed"),
        ({"properties": {"isHnsEnabled": True}}, "warning", "hierarchical namespace"),
        ({"properties": {"networkAcls": {"defaultAction": "Deny"}}}, "warning", "firewall"),
        ({"properties": {"publicNetworkAccess": "Disabled"}}, "warning", "firewall"),
    ],
)
def test_unsuitable_storage_account_is_reported(
    team: Project, changes: dict[str, Any], state: str, said: str
):
    team.server.state.resources[_TEAM["storage_account"]] |= changes
    _, found = team.check()
    details = [each["detail"] for each in found if each["state"] == state]
    assert any(said in detail for detail in details), found


def test_account_of_another_subscription_is_not_adopted(team: Project):
    other = _TEAM["batch_account"].replace(SUBSCRIPTION, f"0000{SUBSCRIPTION[4:]}")
    team.write(adopt={"batch_account": other})
    assert "is in subscription 0000" in team.only_failure(3)["detail"]


def test_storage_settings_do_not_apply_to_an_adopted_account(team: Project):
    team.write(adopt=_TEAM, storage={"keep_runs_days": 30})
    assert "but the stack adopts one" in team.only_failure(3)["detail"]


@pytest.mark.parametrize(
    ("cloud", "region"), [("china", "chinanorth3"), ("usgov", "usgovvirginia")]
)
def test_stack_in_a_sovereign_cloud_passes(project: Project, cloud: str, region: str):
    project.write(cloud=cloud)
    file = project.folder / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace('"eastus"', f'"{region}"'))
    project.server.add_size(T4, "standardNCASv3_T4Family", region)
    code, found = project.check()
    assert code == 0, found
    asked = " ".join(str(path) for _, path, _ in project.server.state.requests)
    assert region in asked
    assert "eastus" not in asked


def test_sign_in_of_az_to_another_cloud_is_named(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    az = tmp_path / "az-settings"
    az.mkdir()
    (az / "config").write_text("[cloud]\nname = AzureCloud\n")
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(az))
    project.write(cloud="china")
    file = project.folder / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace('"eastus"', '"chinanorth3"'))
    failed = project.only_failure(4)
    assert (failed["check"], failed["code"]) == ("sign-in", "R-CLOUD-AZ")
    assert failed["fix"] == "az cloud set --name AzureChinaCloud && az login"


def test_encryption_at_host_needs_a_size_that_has_it(project: Project):
    project.write({**_POOL, "encryption_at_host": True})
    failed = project.only_failure(3)
    assert (failed["check"], failed["code"]) == ("sizes", "R-POOL-ENCRYPTION")
    capability = {"name": "EncryptionAtHostSupported", "value": "True"}
    project.server.state.skus[0]["capabilities"].append(capability)
    assert project.check()[0] == 0


def test_private_stack_that_is_not_deployed_passes(project: Project):
    project.write(network={"private": True})
    code, found = project.check()
    states = {each["check"]: each["state"] for each in found}
    assert (code, states["private"]) == (0, "skipped")


def test_size_without_new_capacity_is_a_note(project: Project):
    size = "Standard_NC24ads_A100_v4"
    project.write({**_POOL, "vm_size": size, "max_spot": 1})
    project.server.add_size(size, "StandardNCADSA100v4Family", "eastus")
    (note,) = (each for each in project.check()[1] if size in each["detail"] and each["fix"])
    assert (note["check"], note["state"]) == ("pool t4", "note")
    assert "Standard_NC40ads_H100_v5" in note["fix"]
