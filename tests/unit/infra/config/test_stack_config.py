"""Every wrong configuration is one error that names file, line, field and fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.pool import (
    BlobMount,
    FilesMount,
    ImageChoice,
    NfsMount,
    OfficeHours,
    PoolConfig,
)
from runner_infra.config.stack import (
    BudgetConfig,
    ImageConfig,
    NetworkConfig,
    ObservabilityConfig,
    OperatorConfig,
    StackConfig,
    StorageConfig,
)
from runner_infra.config.stack_file import (
    AZURE_KEYS,
    RUNNER_KEYS,
    UNDECLARED_KEYS,
    load_stack_config,
    parse_stack_config,
)
from tests.unit.infra.stacks import LANDING, config_of

_AZURE = {
    "ARM_LOCATION": "westeurope",
    "ARM_SUBSCRIPTION_ID": "11111111-2222-3333-4444-555555555555",
}
_SECTIONS = {
    "storage": StorageConfig,
    "network": NetworkConfig,
    "image": ImageConfig,
    "budget": BudgetConfig,
    "observability": ObservabilityConfig,
}
_Load = Callable[..., StackConfig]


def pool(**values: Any) -> dict[str, Any]:
    return {"id": "t4", "vm_size": "Standard_NC4as_T4_v3", **values}


def size(**values: Any) -> dict[str, Any]:
    given = {"name": "Standard_NC80ads_NEW_v9", "vcpus": 80, "memory_gib": 640.0, "driver": "cuda"}
    return {**given, "gpu": "NEW", "gpus": 2, **values}


def office(**hours: Any) -> dict[str, Any]:
    return pool(scenario="office_hours", office_hours=hours)


@pytest.fixture
def load(tmp_path: Path) -> _Load:
    def write(environment: dict[str, str] | None = None, **values: Any) -> StackConfig:
        config = {f"runner:{name}": value for name, value in {"pools": [pool()], **values}.items()}
        file = tmp_path / "Pulumi.lab.yaml"
        with file.open("w") as stream:
            YAML(typ="safe").dump({"config": config}, stream)
        return load_stack_config(file, env=_AZURE if environment is None else environment)

    return write


def failure(load: _Load, **values: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        load(**values)
    assert caught.value.fix, "an error says what to do next"
    return caught.value


def test_dev_stack_needs_only_a_subscription_and_a_region() -> None:
    config = load_stack_config(Path("Pulumi.dev.yaml"), env=_AZURE)
    assert config.stack == "dev"
    assert [found.id for found in config.pools] == ["t4"]


def test_region_and_subscription_of_the_file_win_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(
        "config:\n  azure-native:location: eastus\n  runner:pools:\n"
        "    - {id: a, vm_size: Standard_NC4as_T4_v3}\n"
    )
    assert load_stack_config(file, env=_AZURE).location == "eastus"


@pytest.mark.parametrize(
    ("missing", "setting"),
    [("ARM_LOCATION", "location"), ("ARM_SUBSCRIPTION_ID", "subscriptionId")],
)
def test_missing_region_or_subscription_names_key_and_variable(
    load: _Load, missing: str, setting: str
) -> None:
    environment = {name: value for name, value in _AZURE.items() if name != missing}
    err = failure(load, environment=environment)
    assert f"add `azure-native:{setting}: VALUE" in err.fix
    assert f"set {missing}" in err.fix


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"pools": [pool(), pool(id="T4")]}, "pools.1.id", "two pools have the id 't4'"),
        ({"pools": []}, "pools", "no pool"),
        ({"pools": [pool(id="t 4")]}, "pools.0.id", "'t 4' is not"),
        ({"pools": [pool(max_spot=0)]}, "pools.0.max_spot", "can have no nodes"),
        ({"pools": [pool(max_spot=-1)]}, "pools.0.max_spot", "-1"),
        ({"pools": [pool(scenario="formula")]}, "pools.0.scenario", "requires the key"),
        ({"pools": [pool(formula="$x=1;")]}, "pools.0.scenario", "requires the key"),
        ({"pools": [pool(scenario="office_hours")]}, "pools.0.scenario", "requires the key"),
        (
            {"pools": [office(start="08:00", end="08:00")]},
            "pools.0.office_hours",
            "are the same time",
        ),
        ({"pools": [office(start="08:00:30")]}, "pools.0.office_hours", "without seconds"),
        ({"pools": [office(end="18:00+02:00")]}, "pools.0.office_hours", "without seconds"),
        (
            {"pools": [pool(scenario="spot_first_with_dedicated_fallback")]},
            "pools.0.scenario",
            "spot and dedicated nodes",
        ),
        (
            {"pools": [pool(container_images=["a"])]},
            "pools.0.container_images",
            "require containers: true",
        ),
        (
            {"pools": [pool(containers=True, container_images=["a b"])]},
            "pools.0.container_images.0",
            "'a b' is not",
        ),
        ({"pools": [pool(start_script="no.sh")]}, "pools.0.start_script", "cannot read"),
        ({"pools": [pool(start_script=".")]}, "pools.0.start_script", "cannot read"),
        ({"pools": [pool(max_dedicated=1)]}, "pools.0.max_dedicated", "either spot or dedicated"),
        ({"pools": [pool(evaluation_minutes=4)]}, "pools.0.evaluation_minutes", "got 4"),
        ({"pools": [pool(ssh_from=["here"])]}, "pools.0.ssh_from", "4 octets"),
        ({"pools": [pool(ssh_from=["10.0.0.1/8"])]}, "pools.0.ssh_from", "host bits"),
        (
            {"pools": [pool(ssh_from=["10.0.0.1/32"])], "network": {}},
            "pools.0.ssh_from",
            "no public address",
        ),
        ({"pools": [pool(scenario="spot")]}, "pools.0.scenario", "got 'spot'"),
        (
            {"pools": [pool(image={"source": "gallery"})]},
            "pools.0.image",
            "the stack has no gallery",
        ),
        ({"pools": [pool(image={"version": "newest"})]}, "pools.0.image.version", "newest"),
        ({"pools": [pool(mounts=[{"kind": "files"}])]}, "pools.0.mounts", "has none"),
        (
            {"pools": [pool(mounts=[{"kind": "blob", "container": "x", "path": "x"}])]},
            "pools.0.mounts",
            "unknown container 'x'",
        ),
        (
            {"pools": [pool(mounts=[{"kind": "blob", "container": "data", "path": "../x"}])]},
            "pools.0.mounts.0.path",
            "../x",
        ),
        (
            {
                "pools": [
                    pool(
                        mounts=[
                            {"kind": "blob", "container": c, "path": "d"} for c in ("data", "runs")
                        ]
                    )
                ]
            },
            "pools.0.mounts",
            "same path",
        ),
        ({"storage": {"account_name": "My-Store"}}, "storage.account_name", "My-Store"),
        (
            {"storage": {"file_share_gib": 100, "shared_keys": False}},
            "storage.file_share_gib",
            "shared_keys is false",
        ),
        ({"storage": {"shared_keys": True}}, "storage.shared_keys", "there is none"),
        ({"tags": {"a<b": "x"}}, "tags", "refuses tag 'a<b'"),
        ({"tags": {"azure-team": "x"}}, "tags", "refuses tag 'azure-team'"),
        ({"tags": {"": "x"}}, "tags", "refuses tag ''"),
        ({"tags": {"a": "x" * 257}}, "tags", "257 characters"),
        ({"tags": {"Stack": "x"}}, "tags", "duplicate tag 'Stack'"),
        ({"tags": {"Runner-Budget": "x"}}, "tags", "duplicate tag 'Runner-Budget'"),
        ({"tags": {"team": "x", "Team": "y"}}, "tags", "duplicate tag"),
        ({"tags": {f"t{n}": "" for n in range(60)}}, "tags", "62 tags"),
        ({"tags": {"team": "a"}, "pools": [pool(tags={"TEAM": "b"})]}, "pools.0.tags", "'TEAM'"),
        ({"network": {"pool_subnet": "10.30.0.0/20"}}, "network.pool_subnet", "is not part of"),
        ({"network": {"pool_subnet": "10.20.0.1/20"}}, "network.pool_subnet", "host bits"),
        ({"network": {"pool_subnet": "10.20.0.0/30"}}, "network.pool_subnet", "no address"),
        ({"network": {"address_space": "ten"}}, "network.address_space", "ten"),
        *(
            ({"network": {"address_space": space, "pool_subnet": subnet}}, f"network.{key}", says)
            for space, subnet, key, says in (
                ("172.17.0.0/16", "172.17.0.0/24", "address_space", "bridge network of Docker"),
                ("172.17.0.0/16", "10.20.0.0/20", "address_space", "bridge network of Docker"),
                ("172.17.8.0/21", "172.17.8.0/24", "address_space", "bridge network of Docker"),
                ("10.20.0.0/30", "10.20.0.0/30", "address_space", "no addresses"),
                ("172.16.0.0/12", "172.16.0.0/14", "pool_subnet", "bridge network of Docker"),
                ("172.16.0.0/12", "172.17.255.0/24", "pool_subnet", "bridge network of Docker"),
                ("10.0.0.0/8", "168.63.129.0/24", "pool_subnet", "168.63.129.16/32"),
                ("168.63.0.0/16", "168.63.1.0/24", "address_space", "168.63.129.16/32"),
                ("169.254.0.0/16", "10.0.0.0/24", "address_space", "link-local"),
                ("224.0.0.0/8", "10.0.0.0/24", "address_space", "multicast"),
                ("127.0.0.0/8", "10.0.0.0/24", "address_space", "loopback"),
                ("0.0.0.0/0", "10.0.0.0/24", "address_space", "reserved"),
            )
        ),
        *(
            ({"network": {"private": True, **network}}, f"network.{key}", says)
            for network, key, says in (
                ({"storage_from": "all"}, "storage_from", "admits no public address"),
                ({"endpoint_subnet": "10.30.0.0/24"}, "endpoint_subnet", "is not part of"),
                ({"endpoint_subnet": "10.20.1.0/24"}, "endpoint_subnet", "overlaps pool_subnet"),
                ({"endpoint_subnet": "10.20.16.0/30"}, "endpoint_subnet", "for endpoints"),
            )
        ),
        *(
            ({"adopt": {key: LANDING[key]}, **more}, place, says)
            for key, more, place, says in (
                ("endpoint_subnet", {}, "adopt.endpoint_subnet", "the accounts are public"),
                ("private_dns", {}, "adopt.private_dns", "the accounts are public"),
                ("registry", {"registry": True}, "registry", "but the stack adopts one"),
                ("log_workspace", {"observability": None}, "adopt.log_workspace", "go nowhere"),
                (
                    "log_workspace",
                    {"observability": {"retention_days": 90}},
                    "observability.retention_days",
                    "the owner of an adopted workspace",
                ),
                (
                    "subnet",
                    {"network": {"pool_subnet": "10.9.0.0/20"}},
                    "network.pool_subnet",
                    "creates no network",
                ),
                (
                    "subnet",
                    {"pools": [pool(ssh_from=["203.0.113.7/32"])]},
                    "pools.0.ssh_from",
                    "no public address",
                ),
                (
                    "endpoint_subnet",
                    {"network": {"private": True}},
                    "adopt.endpoint_subnet",
                    "creates the network of its nodes",
                ),
            )
        ),
        ({"adopt": {"registry_roles": False}}, "adopt.registry_roles", "adopts none"),
        (
            {"adopt": {"subnet": LANDING["subnet"].replace("1111-", "0000-", 1)}},
            "adopt.subnet",
            "is in subscription",
        ),
        ({"adopt": {"subnet": "spoke/ml"}}, "adopt.subnet", "the ID of a subnet"),
        ({"adopt": {"private_dns": "hub"}}, "adopt.private_dns", "private DNS zones"),
        ({"vm_sizes": [size(name="Standard_NC4as_T4_v3")]}, "vm_sizes.0.name", "a known size"),
        ({"vm_sizes": [size(), size()]}, "vm_sizes.1.name", "duplicate size"),
        ({"vm_sizes": [size(gpus=0)]}, "vm_sizes.0.gpus", "0 GPUs of model NEW"),
        ({"vm_sizes": [size(gpu=None, gpus=0)]}, "vm_sizes.0.driver", "no GPU"),
        ({"pools": [pool(os_disk={"size_gib": 8})]}, "pools.0.os_disk.size_gib", "8"),
        (
            {"image": {}, "pools": [pool(image={"source": "gallery"}, os_disk={"size_gib": 32})]},
            "pools.0.os_disk",
            "needs 64 GiB",
        ),
        ({"budget": {"emails": ["ops"]}}, "budget.emails.0", "ops"),
        (
            {"budget": {"thresholds_percent": [1, 2, 3, 4, 5]}},
            "budget.thresholds_percent",
            "the maximum is 4",
        ),
        (
            {"budget": {"thresholds_percent": [50, 50]}},
            "budget.thresholds_percent",
            "duplicate threshold",
        ),
        ({"observability": {"emails": ["ops@"]}}, "observability.emails.0", "ops@"),
        (
            {"pools": [pool(inter_node_communication=True, max_spot=101)]},
            "pools.0.max_spot",
            "100 nodes",
        ),
        (
            {"image": {}, "pools": [pool(image={"source": "gallery", "sku": "2404"})]},
            "pools.0.image",
            "image.sku applies to marketplace",
        ),
        ({"budget": {"usd_per_month": 0}}, "budget.usd_per_month", "0"),
        ({"colour": "blue"}, "colour", "unknown key"),
        ({"pools": [pool(spend_cap_usd_per_hour=inf)]}, "spend_cap_usd_per_hour", "finite"),
        ({"pools": [pool(spend_cap_usd_per_hour=nan)]}, "spend_cap_usd_per_hour", "finite"),
        ({"pools": [pool(max_spot=inf)]}, "pools.0.max_spot", "a whole number"),
        ({"budget": {"usd_per_month": inf}}, "budget.usd_per_month", "finite"),
        ({"network": {"storage_from": ["10.0.0.0/8"]}}, "network.storage_from.0", "is private"),
        ({"network": {"storage_from": ["here"]}}, "network.storage_from.0", "4 octets"),
        ({"network": {"storage_from": "al"}}, "network.storage_from", "'all'"),
    ],
)
def test_invalid_value_names_its_field(
    load: _Load, values: dict[str, Any], field: str, says: str
) -> None:
    err = failure(load, **values)
    assert f"{field}:" in err.what
    assert says in f"{err.what.partition(field)[2]} {err.why}"


def test_error_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(
        "config:\n  runner:pools:\n    - id: t4\n      vm_size: Standard_NC4as_T4_v3\n"
        "      max_spt: 3\n"
    )
    with pytest.raises(RunnerError, match=r"Pulumi\.x\.yaml:5: pools\.0\.max_spt") as caught:
        load_stack_config(file, env=_AZURE)
    assert "did you mean 'max_spot'" in caught.value.fix


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="cannot read") as caught:
        load_stack_config(tmp_path / "Pulumi.prod.yaml", env=_AZURE)
    assert caught.value.code == "R-STACK-CONFIG-READ"


def test_pool_can_override_a_tag_of_the_stack(load: _Load) -> None:
    config = load(tags={"team": "vision"}, pools=[pool(tags={"team": "audio"})])
    assert config.pools[0].tags == {"team": "audio"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("echo hello\n", "does not begin with #!"),
        ("#!/bin/sh\n" + "#" * 32768, "the limit of a start script is 32 KiB"),
    ],
)
def test_invalid_start_script_is_refused(
    load: _Load, tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "setup.sh").write_text(content)
    err = failure(load, pools=[pool(start_script="setup.sh")])
    assert "pools.0.start_script" in err.what
    assert says in err.what
    assert err.fix


def test_start_script_is_relative_to_the_file_of_the_stack(load: _Load, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("#!/bin/sh\n")
    config = load(pools=[pool(start_script="setup.sh"), pool(id="plain")])
    assert [each.start_script for each in config.pools] == [str(tmp_path / "setup.sh"), None]


def test_non_text_key_and_empty_list_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.odd.yaml"
    file.write_text("config:\n  1: 2\n  runner:pools:\n")
    environment = {
        "ARM_LOCATION": "eastus",
        "ARM_SUBSCRIPTION_ID": f"{'0' * 8}{'-0000' * 3}-{'0' * 12}",
    }
    with pytest.raises(
        RunnerError, match=r"line 2: 1: unknown key.*\n *line 3: pools: expected a list, got nothi"
    ):
        load_stack_config(file, env=environment)


@pytest.mark.parametrize(
    ("values", "says", "fix"),
    [
        ({"pools": [pool(id="t 4!")]}, "'t 4!' is not the ID of a pool", "like t4"),
        ({"pools": [pool(id="t4\n")]}, "is not the ID of a pool", "like t4"),
        ({"pools": [pool(container_images=["a b"])]}, "the name of a container image", "torch:2.9"),
        (
            {"pools": [pool(mounts=[{"kind": "nfs", "source": "host", "path": "a"}])]},
            "'host' is not an NFS export",
            "files.example:/export",
        ),
        (
            {"pools": [pool(mounts=[{"kind": "blob", "container": "data", "path": "/x"}])]},
            "'/x' is not a valid path of a mount",
            "data/images",
        ),
        ({"pools": [pool(image={"version": "1"})]}, "'1' is not the version of", "1.4.0"),
        ({"budget": {"emails": ["me"]}}, "'me' is not an e-mail address", "@company.example"),
        ({"operators": [{"id": "me"}]}, "'me' is not an object ID", "00000000-1111"),
        ({"operators": ["ada"]}, "'ada' is not an object ID", "00000000-1111"),
        ({"environment": {**_AZURE, "ARM_LOCATION": "West/Europe"}}, "a region", "westeurope"),
        ({"environment": {**_AZURE, "ARM_SUBSCRIPTION_ID": "x"}}, "an Azure ID", "0000-"),
    ],
)
def test_invalid_format_is_explained_with_an_example(
    load: _Load, values: dict[str, Any], says: str, fix: str
) -> None:
    err = failure(load, **values)
    assert says in err.what
    assert fix in err.fix
    assert err.why.startswith("it has ")
    assert "^" not in f"{err}"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "Pulumi.lab.yaml"
    file.write_text(text)
    return file


def refused(file: Path, environment: dict[str, str] | None = None) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        load_stack_config(file, env=_AZURE if environment is None else environment)
    return caught.value


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "1e400"])
def test_number_that_is_not_finite_is_an_error(tmp_path: Path, number: str) -> None:
    file = written(
        tmp_path,
        "config:\n  runner:pools:\n    - id: t4\n      vm_size: Standard_NC4as_T4_v3\n"
        f"      spend_cap_usd_per_hour: {number}\n",
    )
    assert "yaml:5: pools.0.spend_cap_usd_per_hour" in refused(file).what


_POOLS = "  runner:pools: [{id: t4, vm_size: Standard_NC4as_T4_v3}]\n"


@pytest.mark.parametrize(
    ("line", "name", "fix"),
    [
        ("azure-native:locaton: eastus", "azure-native:locaton", "'location'"),
        ("azure-native:subscriptionID: x", "azure-native:subscriptionID", "'subscriptionId'"),
        ("azure-native:budget: {}", "azure-native:budget", "'runner:budget'"),
        ("runner:location: eastus", "runner:location", "'azure-native:location'"),
        ("runner:subscription_id: x", "runner:subscription_id", "'azure-native:subscriptionId'"),
        ("runner:pool: []", "pool", "'pools'"),
        ("runner:stack: prod", "stack", "remove stack"),
        ("runer:pools: []", "runer:pools", "'runner'"),
        ("azure-natve:location: eastus", "azure-natve:location", "'azure-native'"),
    ],
)
def test_misspelt_key_is_an_error_with_the_nearest_key(
    tmp_path: Path, line: str, name: str, fix: str
) -> None:
    err = refused(written(tmp_path, f"config:\n{_POOLS}  {line}\n"))
    assert f"Pulumi.lab.yaml:3: {name}: unknown key" in err.what
    assert fix in err.fix


def test_key_of_another_provider_is_ignored(tmp_path: Path) -> None:
    file = written(tmp_path, f"config:\n{_POOLS}  aws:region: eu-west-1\n  azuread:tenantId: x\n")
    assert load_stack_config(file, env=_AZURE).pools


def test_misspelt_section_of_the_file_is_an_error(tmp_path: Path) -> None:
    err = refused(written(tmp_path, f"confg:\n{_POOLS}"))
    assert "line 1: confg: unknown key (did you mean 'config'?)" in err.why


def test_keys_of_azure_native_are_those_of_the_sdk() -> None:
    spec = find_spec("pulumi_azure_native.config")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_suffix(".pyi").read_text()
    declared = set(re.findall(r"^(\w+): ", text, re.MULTILINE))
    assert declared == AZURE_KEYS - UNDECLARED_KEYS


@pytest.mark.parametrize("key", sorted(UNDECLARED_KEYS))
def test_key_that_only_the_provider_reads_is_accepted(tmp_path: Path, key: str) -> None:
    file = written(tmp_path, f"config:\n{_POOLS}  azure-native:{key}: x\n")
    assert load_stack_config(file, env=_AZURE).pools


@pytest.mark.parametrize("section", ["budget", "image", "network", "observability"])
@pytest.mark.parametrize("value", ["", "null", "''"])
def test_optional_section_without_content_is_off(tmp_path: Path, section: str, value: str) -> None:
    file = written(tmp_path, f"config:\n{_POOLS}  runner:{section}: {value}\n")
    assert getattr(load_stack_config(file, env=_AZURE), section) is None


@pytest.mark.parametrize("name", ["registry", "nodes_add_tasks"])
def test_switch_that_pulumi_stored_as_a_text_is_a_switch(tmp_path: Path, name: str) -> None:
    for text, value in (('"true"', True), ('"false"', False)):
        file = written(tmp_path, f"config:\n{_POOLS}  runner:{name}: {text}\n")
        assert getattr(load_stack_config(file, env=_AZURE), name) is value
    odd = written(tmp_path, f"config:\n{_POOLS}  runner:{name}: 'yes'\n")
    assert name in refused(odd, _AZURE).what


@pytest.mark.parametrize("pools", ["", _POOLS, "  runner:pools: []\n", "  runner:pool: 1\n"])
def test_missing_region_has_its_code_despite_other_problems(tmp_path: Path, pools: str) -> None:
    err = refused(written(tmp_path, f"config:\n{pools}" if pools else "config: {}\n"), {})
    assert (err.code, err.exit_code) == ("R-STACK-CONFIG-MISSING", ExitCode.PREFLIGHT)
    assert "((" not in f"{err}"
    assert "))" not in f"{err}"


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("198.51.100.0/24", "write a list: [198.51.100.0/24]"),
        ("here", "write a list: [203.0.113.0/24]"),
        ("al", "write a list: [203.0.113.0/24]"),
    ],
)
def test_invalid_storage_range_does_not_allow_all_networks(
    load: _Load, value: str, fix: str
) -> None:
    assert failure(load, network={"storage_from": value}).fix == fix


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  azure-native:location: West/Europe\n", "yaml:3: azure-native:location: 'West/Europe'"),
        ("  azure-native:subscriptionId: x\n", "yaml:3: azure-native:subscriptionId: 'x'"),
    ],
)
def test_error_of_the_region_or_subscription_names_its_line(
    tmp_path: Path, text: str, says: str
) -> None:
    assert says in refused(written(tmp_path, f"config:\n{_POOLS}{text}")).what


def test_error_of_a_region_from_the_environment_names_the_variable(tmp_path: Path) -> None:
    environment = {**_AZURE, "ARM_LOCATION": "West/Europe"}
    err = refused(written(tmp_path, f"config:\n{_POOLS}"), environment)
    assert "ARM_LOCATION (environment): 'West/Europe' is not" in err.what


def test_all_wrong_lines_are_in_one_error(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "config:\n"
        "  azure-native:location: West/Europe\n"
        "  azure-native:clientid: x\n"
        "  runner:pools:\n"
        "    - id: t4\n"
        "      vm_size: Standard_NC4as_T4_v3\n"
        "      max_spt: 3\n"
        "    - id: t4\n"
        "      vm_size: Standard_NC4as_T4_v3\n"
        "      max_spot: 0\n"
        "    - id: T4\n"
        "      vm_size: Standard_NC4as_T4_v3\n"
        "      max_dedicated: 4\n"
        "  runner:budget: {usd_per_month: 0}\n"
        "  runner:storage: {shared_keys: true}\n",
    )
    err = refused(file)
    lines = [int(found) for found in re.findall(r"line (\d+):", err.why)]
    assert lines == [2, 3, 7, 10, 11, 13, 14, 15]
    assert f"has {len(lines)} problems" in err.what
    assert "did you mean 'max_spot'" in err.why


def test_invalid_section_causes_no_false_problems_of_pools(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "config:\n"
        "  runner:storage: {file_share_gib: big}\n"
        "  runner:pools:\n"
        "    - {id: a, vm_size: Standard_NC4as_T4_v3, mounts: [{kind: files}]}\n",
    )
    assert "yaml:2: storage.file_share_gib: expected a whole number" in refused(file).what


def test_file_of_a_clone_lacks_region_and_subscription(tmp_path: Path) -> None:
    err = refused(written(tmp_path, f"config:\n{_POOLS}"), {})
    assert err.what.endswith("the location and the subscription are missing")
    assert "or run `runner init`" in err.fix


def test_missing_region_is_listed_with_the_other_problems(tmp_path: Path) -> None:
    text = _POOLS.replace("}]", ", max_spot: 0}]")
    err = refused(written(tmp_path, f"config:\n{text}"), {})
    for words in ("the location is missing", "the subscription is missing", "can have no nodes"):
        assert words in err.why


_ODD: tuple[object, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, inf, "", "a b", "x" * 300),
    *([], [None], ["a b"], [1.5], {}, {"a": {}}, {"kind": "x"}, [{"kind": "x"}], [{}]),
)


@pytest.mark.slow
def test_errors_are_free_of_pydantic_terms(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        **{name: {} for name in _SECTIONS},
        "operators": [{"id": "x"}],
    }
    where = {"location": "eastus", "subscription_id": _AZURE["ARM_SUBSCRIPTION_ID"]}
    texts: list[str] = []
    for odd in _ODD:
        for values in odd_stacks(odd, sections):
            try:
                parse_stack_config(
                    {"pools": [pool()], **where, **values}, stack="lab", file=tmp_path / "x.yaml"
                )
            except RunnerError as err:
                texts.append(str(err))
    assert len(texts) > 800
    jargon = re.compile(r"pydantic|\b[a-z]+_(type|error|parsing|tag|invalid|forbidden|size)\b")
    assert not [
        text for text in texts if jargon.search(text.replace("vm_size", "").replace("build_", ""))
    ]


def odd_stacks(odd: object, sections: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield stacks with one odd value, for every key of the stack and of a pool."""
    for name in RUNNER_KEYS:
        yield {name: odd}
    for name, section in (*_SECTIONS.items(), ("operators", OperatorConfig)):
        for key in section.model_fields:
            yield {name: [{key: odd}] if name == "operators" else {**sections[name], key: odd}}
    for key in PoolConfig.model_fields:
        yield {"pools": [pool(**{key: odd})]}
    for key in OfficeHours.model_fields:
        yield {"pools": [office(**{key: odd})]}
    for key in ImageChoice.model_fields:
        yield {"pools": [pool(image={key: odd})]}
    for model in (BlobMount, FilesMount, NfsMount):
        kind = model.__name__.removesuffix("Mount").lower()
        for key in model.model_fields:
            yield {"pools": [pool(mounts=[{"kind": kind, "path": "a", key: odd}])]}


@pytest.mark.parametrize("written", ["East US 2", "EastUS2", "(US) East US 2", "eastus2"])
def test_regions_have_one_name_in_every_spelling(written: str) -> None:
    found = config_of(location=written, image={"replicate_to": [written]})
    assert found.location == "eastus2"
    assert found.image is not None
    assert found.image.replicate_to == ("eastus2",)
