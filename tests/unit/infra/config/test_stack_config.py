"""Every wrong configuration is one error that names file, line, field and fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.config.stack import StackConfig, load_stack_config
from runner.protocol.errors import RunnerError

_AZURE = {
    "ARM_LOCATION": "westeurope",
    "ARM_SUBSCRIPTION_ID": "11111111-2222-3333-4444-555555555555",
}
_Load = Callable[..., StackConfig]


def pool(**values: Any) -> dict[str, Any]:
    return {"id": "t4", "vm_size": "Standard_NC4as_T4_v3", **values}


def office(**hours: Any) -> dict[str, Any]:
    return pool(scenario="office_hours", office_hours=hours)


@pytest.fixture
def load(tmp_path: Path) -> _Load:
    def write(environment: dict[str, str] | None = None, **values: Any) -> StackConfig:
        config = {f"runner:{name}": value for name, value in {"pools": [pool()], **values}.items()}
        file = tmp_path / "Pulumi.lab.yaml"
        with file.open("w") as stream:
            YAML(typ="safe").dump({"config": config}, stream)
        return load_stack_config(file, environment=_AZURE if environment is None else environment)

    return write


def failure(load: _Load, **values: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        load(**values)
    assert caught.value.fix, "an error says what to do next"
    return caught.value


def test_dev_stack_needs_only_a_subscription_and_a_region() -> None:
    config = load_stack_config(Path("Pulumi.dev.yaml"), environment=_AZURE)
    assert config.stack == "dev"
    assert [found.id for found in config.pools] == ["t4"]


def test_region_and_subscription_of_the_file_win_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(
        "config:\n  azure-native:location: eastus\n  runner:pools:\n"
        "    - {id: a, vm_size: Standard_NC4as_T4_v3}\n"
    )
    assert load_stack_config(file, environment=_AZURE).location == "eastus"


@pytest.mark.parametrize(
    ("missing", "setting"),
    [("ARM_LOCATION", "location"), ("ARM_SUBSCRIPTION_ID", "subscriptionId")],
)
def test_missing_region_or_subscription_names_the_command(
    load: _Load, missing: str, setting: str
) -> None:
    environment = {name: value for name, value in _AZURE.items() if name != missing}
    err = failure(load, environment=environment)
    assert f"pulumi config set azure-native:{setting}" in err.fix


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"pools": [pool(), pool(id="T4")]}, "pools.1.id", "two pools have the id 't4'"),
        ({"pools": []}, "pools", "no pool"),
        ({"pools": [pool(id="t 4")]}, "pools.0.id", "'t 4' is not"),
        ({"pools": [pool(max_spot=0)]}, "pools.0.max_spot", "can have no node"),
        ({"pools": [pool(max_spot=-1)]}, "pools.0.max_spot", "-1"),
        ({"pools": [pool(scenario="formula")]}, "pools.0.scenario", "go together"),
        ({"pools": [pool(formula="$x=1;")]}, "pools.0.scenario", "go together"),
        ({"pools": [pool(scenario="office_hours")]}, "pools.0.scenario", "go together"),
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
            "need containers: true",
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
        ({"tags": {"team": "x", "Team": "y"}}, "tags", "duplicate tag"),
        ({"tags": {f"t{n}": "" for n in range(60)}}, "tags", "62 tags"),
        ({"tags": {"team": "a"}, "pools": [pool(tags={"TEAM": "b"})]}, "pools.0.tags", "'TEAM'"),
        ({"network": {"pool_subnet": "10.30.0.0/20"}}, "network.pool_subnet", "not inside"),
        ({"network": {"pool_subnet": "10.20.0.1/20"}}, "network.pool_subnet", "host bits"),
        ({"network": {"pool_subnet": "10.20.0.0/30"}}, "network.pool_subnet", "no address"),
        ({"network": {"address_space": "ten"}}, "network.address_space", "ten"),
        ({"budget": {"emails": ["ops"]}}, "budget.emails.0", "ops"),
        (
            {"budget": {"thresholds_percent": [1, 2, 3, 4, 5]}},
            "budget.thresholds_percent",
            "4 at most",
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
    ],
)
def test_wrong_value_names_its_field(
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
        load_stack_config(file, environment=_AZURE)
    assert "did you mean 'max_spot'" in caught.value.fix


def test_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="cannot read") as caught:
        load_stack_config(tmp_path / "Pulumi.prod.yaml", environment=_AZURE)
    assert caught.value.code == "R-STACK-CONFIG-READ"


def test_pool_may_give_a_stacks_tag_another_value(load: _Load) -> None:
    config = load(tags={"team": "vision"}, pools=[pool(tags={"team": "audio"})])
    assert config.pools[0].tags == {"team": "audio"}


@pytest.mark.parametrize(
    ("content", "says"),
    [("echo hello\n", "does not start with #!"), ("#!/bin/sh\n" + "#" * 32768, "may have 32 KiB")],
)
def test_a_script_that_no_node_could_run_is_refused(
    load: _Load, tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "setup.sh").write_text(content)
    err = failure(load, pools=[pool(start_script="setup.sh")])
    assert "pools.0.start_script" in err.what
    assert says in err.what
    assert err.fix


def test_a_script_is_found_beside_the_stacks_file(load: _Load, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("#!/bin/sh\n")
    config = load(pools=[pool(start_script="setup.sh"), pool(id="plain")])
    assert [each.start_script for each in config.pools] == [str(tmp_path / "setup.sh"), None]


def test_a_key_that_is_no_text_and_an_empty_list_are_errors_in_our_words(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.odd.yaml"
    file.write_text("config:\n  1: 2\n  runner:pools:\n")
    environment = {
        "ARM_LOCATION": "eastus",
        "ARM_SUBSCRIPTION_ID": f"{'0' * 8}{'-0000' * 3}-{'0' * 12}",
    }
    with pytest.raises(
        RunnerError, match=r"Pulumi\.odd\.yaml:3: pools: expected a list, got nothi"
    ):
        load_stack_config(file, environment=environment)


@pytest.mark.parametrize(
    ("values", "says", "fix"),
    [
        ({"pools": [pool(id="t 4!")]}, "'t 4!' is not the id of a pool", "like t4"),
        ({"pools": [pool(id="t4\n")]}, "is not the id of a pool", "like t4"),
        ({"pools": [pool(container_images=["a b"])]}, "the name of a container image", "torch:2.9"),
        (
            {"pools": [pool(mounts=[{"kind": "nfs", "source": "host", "path": "a"}])]},
            "'host' is not an NFS export",
            "files.example:/export",
        ),
        (
            {"pools": [pool(mounts=[{"kind": "blob", "container": "data", "path": "/x"}])]},
            "'/x' is not where a mount can be",
            "data/images",
        ),
        ({"pools": [pool(image={"version": "1"})]}, "'1' is not the version of", "1.4.0"),
        ({"budget": {"emails": ["me"]}}, "'me' is not an e-mail address", "@company.example"),
        ({"operators": [{"id": "me"}]}, "'me' is not an id of Azure", "00000000-1111"),
        ({"environment": {**_AZURE, "ARM_LOCATION": "West Europe"}}, "a region", "westeurope"),
        ({"environment": {**_AZURE, "ARM_SUBSCRIPTION_ID": "x"}}, "an id of Azure", "0000-"),
    ],
)
def test_wrong_form_is_told_in_words_with_an_example_and_no_pattern(
    load: _Load, values: dict[str, Any], says: str, fix: str
) -> None:
    err = failure(load, **values)
    assert says in err.what
    assert fix in err.fix
    assert err.why.startswith("it has ")
    assert "^" not in f"{err}"
