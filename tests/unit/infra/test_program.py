"""The whole program under mocks: what it declares, how things hang together, what it exports."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pulumi
import pytest
from pulumi.runtime.settings import reset_options

from runner.contract import MOVER_POOL, StackOutputs, parse_stack_outputs
from runner.core.pricing.prices import load_price_table
from runner.protocol.errors import RunnerError
from runner_infra.components.deployer import Deployer, find_deployer
from runner_infra.planning.own_formula import evaluate_idle
from runner_infra.planning.pool_plan import plan_pools
from runner_infra.program import (
    _selected_config,  # pyright: ignore[reportPrivateUsage]
    declare,
    program,
)
from tests.engine.azure_native.immutable import empty_paths
from tests.unit.infra import cloud
from tests.unit.infra.oracle import plain, validate
from tests.unit.infra.recording import Recording, Registered, record
from tests.unit.infra.stacks import (
    ADOPTED,
    CENTRAL,
    DEPLOYER,
    EVERYTHING,
    LANDING,
    NOW,
    T4,
    config_of,
    deploy,
    full_stack,
    plain_stack,
)

_GROUP = EVERYTHING["operators"][0]
_PROTECTED = {
    "resources:ResourceGroup",
    "storage:StorageAccount",
    "storage:BlobServiceProperties",
    "storage:BlobContainer",
    "storage:FileShare",
}
# Children of a resource and pure links carry no tags in ARM.
_UNTAGGED = {
    "authorization:RoleAssignment",
    "consumption:Budget",
    "costmanagement:Export",
    "monitor:DiagnosticSetting",
    "network:PrivateDnsZoneGroup",
    "network:Subnet",
    "storage:BlobContainer",
    "storage:BlobServiceProperties",
    "storage:FileShare",
    "storage:ManagementPolicy",
}

both = pytest.mark.parametrize("stack", [plain_stack, full_stack], ids=["plain", "full"])


def needs(found: Recording, resource: Registered) -> set[str]:
    """Return the types of all direct and indirect dependencies of a resource."""
    kinds: set[str] = set()
    waiting = set(resource.dependencies)
    seen: set[str] = set()
    while waiting:
        urn = waiting.pop()
        seen.add(urn)
        other = found.by_urn(urn)
        if "azure-native" in other.type:
            kinds.add(other.kind)
        waiting |= other.dependencies - seen
    return kinds


@both
def test_every_resource_is_valid_for_azure_native(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    judged = 0
    for resource in found.resources:
        assert not validate(resource.type, resource.name, resource.inputs), resource.name
        judged += 1
    assert judged >= 20


# Inputs that may be empty, and why.
_MAY_BE_EMPTY = {
    # Storage keeps the rules of an omitted list, so removed rules need an empty one.
    ("storage:StorageAccount", "networkRuleSet.ipRules"),
    ("storage:StorageAccount", "networkRuleSet.virtualNetworkRules"),
    # Required by the API, also with an action group.
    ("consumption:Budget", "notifications.*.contactEmails"),
    # The SDK's default.
    ("virtualmachineimages:VirtualMachineImageTemplate", "customize[].sha256Checksum"),
    (
        "virtualmachineimages:VirtualMachineImageTemplate",
        "validate.inVMValidations[].sha256Checksum",
    ),
}
_MANY_STACKS: list[dict[str, Any]] = [
    {},
    dict(EVERYTHING),
    {"adopt": dict(ADOPTED), "image": {}, "registry": True},
    {"budget": None, "observability": None, "pools": [{**T4, "preload": []}]},
    {"budget": {"emails": ["ops@example.com"]}, "observability": {}, "network": {}},
    {
        "pools": [
            {**T4, "ssh_from": ["203.0.113.7/32"], "containers": True, "container_images": []},
            {
                "id": "cpu",
                "vm_size": "Standard_D4s_v5",
                "scenario": "fixed",
                "mounts": [
                    {"kind": "nfs", "source": "10.0.0.4:/export", "path": "n", "options": ""}
                ],
            },
        ],
    },
]


def test_no_resource_has_an_empty_input_unless_it_is_listed() -> None:
    found: set[tuple[str, str]] = set()
    for stack in _MANY_STACKS:
        for resource in deploy(config_of(**stack)).resources:
            for path in empty_paths(plain(resource.inputs)):
                named = re.sub(r"^notifications\.[^.]+", "notifications.*", path)
                found.add((resource.kind, named))
    assert found == _MAY_BE_EMPTY


@both
def test_exports_have_the_format_that_runner_reads(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    fields = dataclasses.fields(StackOutputs)
    assert set(found.exports) == {field.name for field in fields if not field.metadata}
    outputs = parse_stack_outputs(json.dumps(found.exports))
    assert outputs.batch_endpoint.startswith("https://")
    assert outputs.batch_endpoint.endswith(".westeurope.batch.azure.com")
    assert outputs.blob_endpoint.endswith(".blob.core.windows.net")
    assert (outputs.container_runs, outputs.container_models) == ("runs", "models")
    assert outputs.identity_resource_id
    assert outputs.identity_client_id


def test_outputs_describe_the_pools() -> None:
    outputs = parse_stack_outputs(json.dumps(full_stack().exports))
    by_id = {pool.id: pool for pool in outputs.pools}
    assert list(by_id) == [pool["id"] for pool in EVERYTHING["pools"]]
    t4 = by_id["t4"]
    assert (t4.vm_size, t4.gpus, t4.vcpus, t4.spot, t4.max_nodes) == (
        "Standard_NC4as_T4_v3",
        1,
        4,
        True,
        4,
    )
    assert by_id["fallback"].max_nodes == 10
    assert by_id["own-image"].spot is False
    assert by_id["cpu"].gpus == 0


def test_outputs_omitted_by_pulumi_are_none() -> None:
    exports = {key: value for key, value in plain_stack().exports.items() if value is not None}
    outputs = parse_stack_outputs(json.dumps(exports))
    assert (outputs.file_share, outputs.image_definition, outputs.registry_server) == (None,) * 3


@both
def test_only_data_resources_are_protected(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    protected = {resource.kind for resource in found.resources if resource.protect}
    assert protected == _PROTECTED & {resource.kind for resource in found.resources}


@both
def test_every_resource_except_the_group_belongs_to_a_component(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    parents = {r.name: r.parent.split("::")[2].rpartition("$")[2] for r in found.resources}
    assert parents.pop("group") == "pulumi:pulumi:Stack"
    assert all(parent.startswith("runner:infra:") for parent in parents.values())


@both
def test_every_taggable_resource_has_tags(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    for resource in found.resources:
        if resource.kind in _UNTAGGED:
            assert "tags" not in resource.inputs
        else:
            assert resource.inputs["tags"]["app"] == "runner", resource.name
            assert resource.inputs["tags"]["stack"] == resource.urn.split("::")[0][11:]


def test_tags_of_stack_and_pool_are_added() -> None:
    pools = {pool.inputs["poolName"]: pool for pool in full_stack().of("batch:Pool")}
    assert pools["t4"].inputs["tags"]["team"] == "vision"
    assert pools["fallback"].inputs["tags"]["tier"] == "important"


def test_no_account_key_is_used_without_a_share() -> None:
    account = plain_stack().one("storage:StorageAccount").inputs
    assert account["allowSharedKeyAccess"] is False
    assert account["allowBlobPublicAccess"] is False
    assert account["minimumTlsVersion"] == "TLS1_2"
    assert cloud.ACCOUNT_KEY not in json.dumps([r.inputs for r in plain_stack().resources])


def test_share_turns_keys_on_and_the_key_is_a_secret() -> None:
    found = full_stack()
    assert found.one("storage:StorageAccount").inputs["allowSharedKeyAccess"] is True
    holders = [r for r in found.resources if cloud.ACCOUNT_KEY in json.dumps(r.inputs)]
    assert [r.inputs["poolName"] for r in holders] == ["t4"]
    assert "mountConfiguration" in holders[0].secrets
    assert cloud.ACCOUNT_KEY not in json.dumps(found.exports)


@both
def test_batch_account_waits_for_the_role_on_its_storage(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    account = found.one("batch:BatchAccount")
    direct = {found.by_urn(urn).name for urn in account.dependencies}
    assert "account-auto-storage" in direct
    assert account.inputs["allowedAuthenticationModes"] == ["AAD"]
    storage = account.inputs["autoStorage"]
    assert storage["authenticationMode"] == "BatchAccountManagedIdentity"


def test_pools_depend_on_all_resources_of_their_nodes() -> None:
    found = full_stack()
    pools = found.of("batch:Pool")
    assert {pool.inputs["poolName"] for pool in pools} >= {"t4", "fallback"}
    for pool in pools:
        kinds = needs(found, pool)
        assert {"batch:BatchAccount", "authorization:RoleAssignment", "network:Subnet"} <= kinds
        names = {found.by_urn(urn).name for urn in pool.dependencies}
        assert {"nodes-write-runs", "nodes-pull-images"} <= names


@both
def test_nodes_can_read_application_packages_and_no_other_container(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    (role,) = [
        r for r in found.of("authorization:RoleAssignment") if r.name == "nodes-read-packages"
    ]
    assert role.inputs["roleDefinitionId"].endswith("2a2b9908-6ea1-4ae2-8e65-a410df84e7d1")
    assert role.inputs["scope"].rpartition("/storageAccounts/")[1]
    assert "containers:name] StringStartsWith 'app-'" in role.inputs["condition"]
    assert role.inputs["conditionVersion"] == "2.0"


def rules_of(config: Any, deployer: Deployer = DEPLOYER) -> dict[str, Any]:
    found = record(lambda: declare(config, deployer, NOW), stack=config.stack)
    return found.one("storage:StorageAccount").inputs["networkRuleSet"]


def test_storage_without_network_admits_every_network_explicitly() -> None:
    rules = rules_of(config_of())
    assert rules["defaultAction"] == "Allow"
    assert (rules["ipRules"], rules["virtualNetworkRules"]) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "address", "admitted"),
    [
        ({}, "198.18.0.9", ["198.18.0.9"]),
        ({}, None, []),
        ({"storage_from": ["203.0.113.0/24"]}, "198.18.0.9", ["203.0.113.0/24"]),
        (
            {"storage_from": ["203.0.113.4/31", "203.0.113.9"]},
            None,
            ["203.0.113.4", "203.0.113.5", "203.0.113.9"],
        ),
        ({"storage_from": []}, "198.18.0.9", []),
    ],
)
def test_storage_with_network_admits_subnet_and_deployer(
    given: dict[str, Any], address: str | None, admitted: list[str]
) -> None:
    config = config_of("net", network=given)
    rules = rules_of(config, dataclasses.replace(DEPLOYER, address=address))
    assert (rules["defaultAction"], rules["bypass"]) == ("Deny", "AzureServices")
    assert [rule["iPAddressOrRange"] for rule in rules["ipRules"]] == admitted
    (subnet,) = rules["virtualNetworkRules"]
    assert subnet["virtualNetworkResourceId"].endswith("/subnets/pools")


@pytest.mark.slow
@pytest.mark.parametrize("told", ["all", ["0.0.0.0/0"]])
def test_storage_with_network_admits_all_if_configured(told: object) -> None:
    rules = rules_of(config_of("net", network={"storage_from": told}))
    assert (rules["defaultAction"], rules["ipRules"]) == ("Allow", [])


@pytest.mark.parametrize(
    ("claims", "kind"),
    [
        ({"idtyp": "user"}, "User"),
        ({"idtyp": "app"}, "ServicePrincipal"),
        ({"scp": "user_impersonation"}, "User"),
        ({"appidacr": "2"}, "ServicePrincipal"),
    ],
)
def test_deployer_is_read_from_the_token_despite_settings(
    monkeypatch: pytest.MonkeyPatch, claims: dict[str, str], kind: str
) -> None:
    monkeypatch.setenv("ARM_CLIENT_ID", "set by somebody")
    assert signed_in_with(monkeypatch, cloud.token_of(claims)).operator.kind.value == kind


@pytest.mark.parametrize(
    ("variable", "kind"),
    [
        (None, "User"),
        ("ARM_CLIENT_ID", "ServicePrincipal"),
        ("ARM_USE_MSI", "ServicePrincipal"),
        ("ARM_USE_OIDC", "ServicePrincipal"),
    ],
)
def test_settings_define_the_deployer_if_the_token_does_not(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, kind: str
) -> None:
    for name in ("ARM_CLIENT_ID", "ARM_USE_MSI", "ARM_USE_OIDC"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    assert signed_in_with(monkeypatch, "opaque").operator.kind.value == kind


@pytest.mark.parametrize(
    ("told", "address"),
    [("8.8.4.4", "8.8.4.4"), ("10.0.0.7", None), ("2001:4860::1", None), (None, None)],
)
def test_address_of_the_deployer_is_public_ipv4(
    monkeypatch: pytest.MonkeyPatch, told: str | None, address: str | None
) -> None:
    token = cloud.token_of({"idtyp": "user", "ipaddr": told})
    assert signed_in_with(monkeypatch, token).address == address


def signed_in_with(monkeypatch: pytest.MonkeyPatch, token: str) -> Deployer:
    answers = {"getClientToken": {"token": token}}
    answer = cloud.answer

    def patched(asked: str, arguments: Any) -> dict[str, Any]:
        return answers.get(asked.rpartition(":")[2]) or answer(asked, arguments)

    monkeypatch.setattr(cloud, "answer", patched)
    seen: list[Deployer] = []

    def look() -> dict[str, Any]:
        seen.append(find_deployer("public"))
        return {}

    record(look, stack="dev")
    return seen[0]


def test_stack_without_budget_has_a_tag() -> None:
    found = deploy(config_of("free", budget=None))
    assert not found.of("consumption:Budget")
    assert found.one("resources:ResourceGroup").inputs["tags"]["runner-budget"] == "off"
    assert "runner-budget" not in plain_stack().one("resources:ResourceGroup").inputs["tags"]


@both
def test_nodes_can_write_runs_and_models_but_only_read_data_and_code(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    (nodes,) = [
        r for r in found.of("managedidentity:UserAssignedIdentity") if r.name == "identity-nodes"
    ]
    principal = cloud.outputs(nodes.type, nodes.inputs)["principalId"]
    granted = {
        (r.inputs["scope"].rsplit("/", 1)[1], r.inputs["roleDefinitionId"].rsplit("/", 1)[1])
        for r in found.of("authorization:RoleAssignment")
        if r.inputs["principalId"] == principal and "containers/" in r.inputs["scope"]
    }
    writes, reads = "ba92f5b4-2d11-453d-a403-e96b0029c9fe", "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
    assert granted == {("runs", writes), ("models", writes), ("data", reads), ("code", reads)}


@both
def test_container_for_code_is_added_to_a_stack_without_other_changes(stack: object) -> None:
    """A stack of contract version 1 gets it with its next deployment."""
    found: Recording = stack()  # type: ignore[operator]
    is_code = re.compile(r"(^|containers/)code(/|$)")
    mention = {
        each.name
        for each in found.resources
        if any(is_code.search(text) for text in texts(each.inputs))
    }
    # The lifecycle rules are updated in place.
    assert mention - {"lifecycle", "mover-reads-code"} == {"container-code", "nodes-read-code"}


def texts(value: object) -> Iterator[str]:
    """Yield every text in the inputs of a resource."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, object]", value).values():
            yield from texts(each)
    elif isinstance(value, Sequence):
        for each in cast("Sequence[object]", value):
            yield from texts(each)


def test_nodes_can_add_tasks_only_if_configured() -> None:
    def granted(found: Recording) -> list[tuple[str, str]]:
        return [
            (r.inputs["scope"].rsplit("/", 2)[1], r.inputs["roleDefinitionId"].rsplit("/", 1)[1])
            for r in found.of("authorization:RoleAssignment")
            if r.name == "nodes-add-tasks"
        ]

    assert granted(plain_stack()) == []
    assert plain_stack().exports["nodes_add_tasks"] is False
    assert granted(full_stack()) == [("batchAccounts", "48e5e92e-a480-4e71-aa9c-2778f4c13781")]
    assert full_stack().exports["nodes_add_tasks"] is True


def test_mover_has_an_identity_of_its_own_which_no_pool_of_runs_has() -> None:
    found = full_stack()
    pools = {
        pool.inputs["poolName"]: [
            each.rsplit("/", 1)[1] for each in pool.inputs["identity"]["userAssignedIdentities"]
        ]
        for pool in found.of("batch:Pool")
    }
    assert pools.pop(MOVER_POOL) == ["id-mover-runner-everything"]
    assert {each for names in pools.values() for each in names} == {"id-nodes-runner-everything"}
    assert found.exports["mover_identity_id"].endswith("/id-mover-runner-everything")
    assert found.exports["mover_every_s"] == 3600
    assert MOVER_POOL not in {pool["id"] for pool in found.exports["pools"]}
    assert plain_stack().exports["mover_client_id"] is None


def test_mover_may_change_jobs_and_documents_of_runs_and_nothing_else() -> None:
    values = {"mover": {}, "pools": [T4, {**T4, "id": "a10", "team": "vision"}]}
    found = deploy(config_of("everything", **values))
    roles = [
        (*role.inputs["scope"].rsplit("/", 2)[1:], role.inputs["roleDefinitionId"].rsplit("/")[-1])
        for role in found.of("authorization:RoleAssignment")
        if role.name.startswith("mover-")
    ]
    account = found.exports["batch_account"]
    assert sorted(roles) == [
        ("batchAccounts", account, "48e5e92e-a480-4e71-aa9c-2778f4c13781"),  # Job Submitter
        ("containers", "code", "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"),  # Blob Data Reader
        ("containers", "runs", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"),  # Blob Data Contributor
        ("containers", "runs-vision", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"),
    ]


def test_pool_of_the_mover_has_a_node_only_for_its_task() -> None:
    for spot in (True, False):
        config = config_of(mover={"spot": spot})
        plan = plan_pools(config, load_price_table(None), NOW.date())[-1]
        assert plan.formula is not None
        busy = evaluate_idle(plan.formula, NOW)
        assert (busy.spot, busy.dedicated, busy.problem) == (0, 0, None)
        assert (plan.caps.spot, plan.caps.dedicated) == (int(spot), int(not spot))


def test_version_of_scheduled_events_is_exported_for_tasks() -> None:
    assert plain_stack().exports["events_version"] is None
    assert full_stack().exports["events_version"] == "2026-01-01"


@pytest.mark.feature(22)
def test_deployer_and_operators_get_each_role_once() -> None:
    given = [
        (r.inputs["principalId"], r.inputs["principalType"])
        for r in full_stack().of("authorization:RoleAssignment")
        if r.name.startswith("operator-") and r.name.endswith("-batch")
    ]
    group = EVERYTHING["operators"][0]["id"]
    assert sorted(given) == sorted([(cloud.DEPLOYER, "User"), (group, "Group")])


def test_operators_get_share_access_only_with_a_share() -> None:
    def kinds(found: Recording) -> set[str]:
        names = [r.name for r in found.of("authorization:RoleAssignment")]
        return {name.rpartition("-")[2] for name in names if name.startswith("operator-")}

    assert "files" not in kinds(plain_stack())
    assert kinds(full_stack()) >= {"blobs", "batch", "files"}


@both
def test_role_assignments_have_unique_names(stack: object) -> None:
    found: Recording = stack()  # type: ignore[operator]
    names = [r.inputs["roleAssignmentName"] for r in found.of("authorization:RoleAssignment")]
    assert len(set(names)) == len(names) > 4


@pytest.mark.slow
def test_stacks_of_one_subscription_share_no_name() -> None:
    one, other = deploy(config_of("dev")), deploy(config_of("prod"))
    for kind in ("resources:ResourceGroup", "storage:StorageAccount", "batch:BatchAccount"):
        assert one.one(kind).inputs != other.one(kind).inputs


def test_equal_stacks_declare_equal_inputs() -> None:
    def by_name(found: Recording) -> dict[str, object]:
        return {resource.name: resource.inputs for resource in found.resources}

    assert by_name(deploy(config_of())) == by_name(plain_stack())


def test_preview_declares_the_inputs_of_a_deployment() -> None:
    names = {resource.name for resource in deploy(config_of(), preview=True).resources}
    assert names == {resource.name for resource in plain_stack().resources}


def test_pool_is_deleted_before_its_replacement() -> None:
    assert all(pool.delete_before_replace for pool in full_stack().of("batch:Pool"))


def test_budget_starts_this_month_and_does_not_change_later() -> None:
    budget = plain_stack().one("consumption:Budget")
    assert budget.inputs["timePeriod"] == {"startDate": "2026-11-01T00:00:00Z"}
    assert budget.ignore_changes == ("timePeriod",)
    assert budget.inputs["scope"] == plain_stack().one("resources:ResourceGroup").inputs.get(
        "id", budget.inputs["scope"]
    )


def test_alerts_watch_the_batch_account() -> None:
    found = full_stack()
    account = found.one("batch:BatchAccount")
    watched = {
        alert.inputs["criteria"]["allOf"][0]["metricName"]: alert.inputs["scopes"]
        for alert in found.of("monitor:MetricAlert")
    }
    assert set(watched) == {"UnusableNodeCount", "TaskFailEvent"}
    criteria = [a.inputs["criteria"]["allOf"][0] for a in found.of("monitor:MetricAlert")]
    how = {criterion["metricName"]: criterion["timeAggregation"] for criterion in criteria}
    assert how == {"UnusableNodeCount": "Average", "TaskFailEvent": "Count"}
    assert all(
        scopes == [cloud.arm_id(account.type, account.inputs)] for scopes in watched.values()
    )


@pytest.mark.slow
def test_pool_allows_plain_tasks_unless_it_is_for_containers() -> None:
    pools = [T4, {**T4, "id": "boxes", "containers": True}]
    made = {p.inputs["poolName"]: p for p in deploy(config_of("x", pools=pools)).of("batch:Pool")}
    assert "containerConfiguration" not in machine_of(made["t4"])
    assert machine_of(made["boxes"])["containerConfiguration"]["type"] == "DockerCompatible"
    with pytest.raises(RunnerError) as caught:
        deploy(config_of(pools=[{**T4, "vm_size": "Standard_D4s_v5", "containers": True}]))
    assert caught.value.code == "R-POOL-CONTAINERS"


def test_pool_with_inter_node_communication_exports_its_nodes() -> None:
    both = {"scenario": "spot_first_with_dedicated_fallback", "max_dedicated": 2}
    pools = [
        T4,
        {**T4, "id": "connected", "inter_node_communication": True},
        {**T4, "id": "falls-back", "inter_node_communication": True, **both},
    ]
    found = deploy(config_of("x", pools=pools)).exports["pools"]
    assert {pool["id"]: pool["task_nodes"] for pool in found} == {
        "t4": 1, "connected": 4, "falls-back": 4,
    }  # fmt: skip


def test_stack_exports_when_a_pool_releases_its_nodes() -> None:
    own = {"scenario": "formula", "formula": "$TargetLowPriorityNodes = 1;"}
    pools = [
        T4,
        {**T4, "id": "slow", "evaluation_minutes": 15},
        {**T4, "id": "fixed", "scenario": "fixed"},
        {**T4, "id": "own", **own},
    ]
    found = deploy(config_of("x", pools=pools)).exports["pools"]
    assert {pool["id"]: pool["release_minutes"] for pool in found} == {
        "t4": 20, "slow": 30, "fixed": 0, "own": None,
    }  # fmt: skip


def machine_of(pool: Registered) -> Any:
    return pool.inputs["deploymentConfiguration"]["virtualMachineConfiguration"]


def test_budget_without_addresses_notifies_owners() -> None:
    budget = plain_stack().one("consumption:Budget").inputs
    (owners,) = [g for g in plain_stack().of("monitor:ActionGroup") if "budget" in g.name]
    assert owners.inputs["armRoleReceivers"]
    for told in budget["notifications"].values():
        assert [group.rpartition("/")[2] for group in told["contactGroups"]] == [
            "ag-cost-runner-dev"
        ]
        assert told["contactEmails"] == []
    assert len(budget["notifications"]) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(("containers", "warnings"), [(("data",), 0), (("data", "models"), 1)])
def test_second_container_mount_on_ubuntu_24_causes_a_warning(
    monkeypatch: pytest.MonkeyPatch, containers: tuple[str, ...], warnings: int
) -> None:
    said: list[str] = []
    monkeypatch.setattr("pulumi.log.warn", said.append)
    mounts = [{"kind": "blob", "container": name, "path": name} for name in containers]
    for sku in ("2204", "2404"):
        deploy(config_of(pools=[{**T4, "mounts": mounts, "image": {"sku": sku}}]))
    assert len(said) == warnings
    assert all("issues/190" in text and "2204" in text for text in said)


def test_null_section_is_disabled_in_plain_pulumi(tmp_path: Path) -> None:
    """The engine passes `null` as an empty text."""
    reset_options(project="runner", stack="dev")
    pulumi.runtime.set_all_config(
        {
            "azure-native:location": "westeurope",
            "azure-native:subscriptionId": cloud.SUBSCRIPTION,
            "runner:pools": json.dumps([T4]),
            "runner:budget": "",
        }
    )
    try:
        config = _selected_config(tmp_path, {})
    finally:
        pulumi.runtime.set_all_config({})
    assert config.budget is None
    assert config.observability is not None


@pytest.mark.parametrize("through", ["engine", "environment"])
def test_unknown_key_is_an_error_in_plain_pulumi(
    through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "azure-native:location": "westeurope",
        "azure-native:subscriptionId": cloud.SUBSCRIPTION,
        "runner:pools": json.dumps([T4]),
        "runner:budgett": "3",
    }
    reset_options(project="runner", stack="dev")
    if through == "environment":  # so the host of Python's programs hands them over
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(config))
    pulumi.runtime.set_all_config(config if through == "engine" else {})
    try:
        with pytest.raises(pulumi.RunError, match=r"budgett.*unknown key"):
            program(tmp_path)
    finally:
        pulumi.runtime.set_all_config({})


def test_adopted_accounts_are_only_read_and_extended() -> None:
    stack = deploy(config_of(adopt=ADOPTED))
    kinds = {found.kind for found in stack.resources}
    assert not kinds & {
        "resources:ResourceGroup",
        "batch:BatchAccount",
        "storage:StorageAccount",
        "storage:BlobServiceProperties",
        "storage:ManagementPolicy",
    }
    assert stack.one("batch:Pool").inputs["accountName"] == "teambatch"
    containers = {
        (found.inputs["accountName"], found.inputs["containerName"], found.protect)
        for found in stack.of("storage:BlobContainer")
    }
    names = ("runs-runner-dev", "models-runner-dev", "data-runner-dev", "code-runner-dev")
    assert containers == {
        *(("teamdata", name, True) for name in names),
        ("teamdata", "stack-runner-dev", False),  # only its metadata, the outputs of the stack
    }
    groups = {found.inputs.get("resourceGroupName", "team") for found in stack.resources}
    assert groups == {"team"}
    outputs = parse_stack_outputs(json.dumps(stack.exports))
    assert (outputs.batch_account, outputs.storage_account) == ("teambatch", "teamdata")
    assert outputs.batch_endpoint == "https://teambatch.westeurope.batch.azure.com"
    assert outputs.blob_endpoint == "https://teamdata.blob.core.windows.net"
    assert outputs.container_runs == "runs-runner-dev"
    assert outputs.container_code == "code-runner-dev"


def test_roles_on_adopted_storage_are_for_the_containers_of_the_stack() -> None:
    stack = deploy(config_of(adopt=ADOPTED))
    delegator = "db58b8e5-c6ad-4a2a-8342-4190687cbf4a"  # reads no data
    wide = [
        found.inputs["roleDefinitionId"].rpartition("/")[2]
        for found in stack.of("authorization:RoleAssignment")
        if found.inputs["scope"] == ADOPTED["storage_account"]
    ]
    assert wide == [delegator]


@pytest.mark.parametrize("key", ADOPTED)
def test_accounts_are_adopted_independently(key: str) -> None:
    own = {
        "resource_group": "resources:ResourceGroup",
        "batch_account": "batch:BatchAccount",
        "storage_account": "storage:StorageAccount",
    }
    stack = deploy(config_of(adopt={key: ADOPTED[key]}))
    there = {name for name, kind in own.items() if stack.of(kind)}
    assert there == {*own} - {key}
    for account in stack.of("batch:BatchAccount"):  # which has no role on an adopted storage
        assert ("autoStorage" in account.inputs) == (key != "storage_account")


def test_values_of_tags_fit_into_azure_with_the_longest_names() -> None:
    stack = deploy(config_of("s" * 20, adopt={"resource_group": "g" * 90}))
    values = [
        text for found in stack.resources for text in (found.inputs.get("tags") or {}).values()
    ]
    assert any("blobServices" in text for text in values)
    assert max(map(len, values)) <= 256


def test_roles_on_a_registry_of_a_hub_are_those_of_its_subscription() -> None:
    stack = deploy(config_of(adopt=LANDING, network={"private": True}))
    roles = {
        found.inputs["scope"]: found.inputs["roleDefinitionId"]
        for found in stack.of("authorization:RoleAssignment")
    }
    hub = CENTRAL.partition("/resourceGroups")[0]
    assert roles[LANDING["registry"]].startswith(f"{hub}/providers/")
    assert all(
        role.startswith(scope.partition("/resourceGroups")[0]) for scope, role in roles.items()
    )
