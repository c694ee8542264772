"""Stacks in China and in Azure Government: their file, their resources, and `runner check`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import outputs_cloud
from runner.contract import parse_stack_outputs
from runner.protocol.azure.clouds import CHINA, USGOV, Cloud
from runner.protocol.errors import RunnerError
from runner_infra.config.stack_file import cloud_variables, load_stack_config
from runner_infra.planning.warnings import stack_warnings
from runner_infra.program import _check_provider  # pyright: ignore[reportPrivateUsage]
from tests.unit.infra import cloud as azure
from tests.unit.infra.stacks import T4, config_of, deploy

_REGIONS = {CHINA: "chinanorth3", USGOV: "usgovvirginia"}
_SOVEREIGN = pytest.mark.parametrize("cloud", [CHINA, USGOV], ids=lambda cloud: cloud.name)


def stack_file(folder: Path, **keys: Any) -> Path:
    """Write `Pulumi.dev.yaml` with these keys, which have `azure-native` or `runner` as prefix."""
    config: dict[str, Any] = {
        "azure-native:subscriptionId": azure.SUBSCRIPTION,
        "azure-native:location": "chinanorth3",
        "runner:pools": [dict(T4)],
        **{name.replace("__", ":"): value for name, value in keys.items()},
    }
    file = folder / "Pulumi.dev.yaml"
    file.write_text(json.dumps({"config": {k: v for k, v in config.items() if v is not None}}))
    return file


@pytest.mark.parametrize(
    ("keys", "env"),
    [
        ({"runner__cloud": "china"}, {}),
        ({"azure-native__environment": "china"}, {}),
        ({}, {"ARM_ENVIRONMENT": "china"}),
        ({}, {"AZURE_AUTHORITY_HOST": "https://login.chinacloudapi.cn"}),
        ({}, {"AZURE_CLOUD_NAME": "AzureChinaCloud"}),
        ({"runner__cloud": "china"}, {"AZURE_CLOUD_NAME": "AzureCloud"}),
    ],
)
def test_cloud_of_a_stack_is_a_key_or_found(
    tmp_path: Path, keys: Mapping[str, Any], env: Mapping[str, str]
) -> None:
    file = stack_file(tmp_path, **keys)
    assert load_stack_config(file, env=env).cloud == "china"
    added = cloud_variables(file, env)
    assert {**env, **added}["AZURE_STORAGE_DOMAIN"] == "blob.core.chinacloudapi.cn"
    assert {**env, **added}["ARM_ENVIRONMENT"] == "china"


@pytest.mark.parametrize(
    ("keys", "field", "text"),
    [
        ({"runner__cloud": "moon"}, "cloud", "got 'moon'"),
        ({}, "azure-native:location", "set runner:cloud: china"),
        ({"runner__cloud": "usgov"}, "azure-native:location", "region 'chinanorth3' is in cloud"),
    ],
)
def test_wrong_cloud_is_an_error_with_a_fix(
    tmp_path: Path, keys: Mapping[str, Any], field: str, text: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        load_stack_config(stack_file(tmp_path, **keys), env={})
    said = f"{caught.value.what} {caught.value.why} {caught.value.fix}"
    assert field in said
    assert text in said


def test_variable_of_another_cloud_is_refused(tmp_path: Path) -> None:
    file = stack_file(tmp_path, runner__cloud="china")
    with pytest.raises(RunnerError) as caught:
        cloud_variables(file, {"ARM_ENVIRONMENT": "public"})
    assert caught.value.code == "R-CLOUD-CONFLICT"
    assert cloud_variables(tmp_path / "Pulumi.none.yaml", {}) == {}


@_SOVEREIGN
def test_stack_exports_the_endpoints_of_its_cloud(cloud: Cloud) -> None:
    config = config_of(location=_REGIONS[cloud], cloud=cloud.name, registry=True)
    found = deploy(config)
    outputs = parse_stack_outputs(json.dumps(found.exports))
    assert outputs_cloud(outputs) is cloud
    assert outputs.blob_endpoint.endswith(f".blob.{cloud.storage_domain}")
    assert (outputs.registry_server or "").endswith(f".{cloud.registry_domain}")
    declared = json.dumps([each.inputs for each in found.resources])
    assert "azure.com" not in declared
    assert "windows.net" not in declared


@_SOVEREIGN
def test_mount_of_a_container_is_a_warning_outside_the_public_cloud(cloud: Cloud) -> None:
    pool = {**T4, "mounts": [{"kind": "blob", "container": "data", "path": "data"}]}
    config = config_of(location=_REGIONS[cloud], cloud=cloud.name, pools=[pool])
    (found,) = stack_warnings(config, ())
    assert "blobfuse" in found.what
    assert not list(stack_warnings(config_of(pools=[pool]), ()))


def test_plain_pulumi_needs_the_key_of_the_provider() -> None:
    config = config_of(location="chinanorth3", cloud="china")
    with pytest.raises(RunnerError) as caught:
        _check_provider(config, None, {})
    assert caught.value.fix.startswith("add `azure-native:environment: china`")
    _check_provider(config, "china", {})
    _check_provider(config, None, {"ARM_ENVIRONMENT": "China"})
