"""The clouds of Azure: which one a command uses, and their names in one module."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.auth.sign_in import make_credential
from runner.core.azure.clouds import (
    INSTALL_AZ,
    az_cloud,
    check_az,
    cloud_named,
    find_cloud,
    with_az,
    with_cloud,
)
from runner.core.recipe.secrets import check_secret
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.azure.clouds import (
    CHINA,
    CLOUDS,
    PUBLIC,
    USGOV,
    Cloud,
    cloud_at,
    cloud_of_region,
)
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import SecretRef
from tests.unit.azure.auth.fake_credential import FakeCredential

ROOT = Path(__file__).parents[3]
_SOVEREIGN = pytest.mark.parametrize("cloud", [CHINA, USGOV], ids=lambda cloud: cloud.name)
# Names of hosts of the public cloud, which code must take from `runner/protocol/azure/clouds.py`.
_PUBLIC_NAMES = (
    *(PUBLIC.batch_domain, PUBLIC.storage_domain, PUBLIC.vault_domain, PUBLIC.registry_domain),
    *("login.microsoftonline.com", "management.azure.com", "management.core.windows.net"),
    *("graph.microsoft.com", "api.loganalytics.io", "vaultcore.azure.net"),
)
# Files with such names, and why.
_ALLOWED = {
    "runner/protocol/azure/clouds.py": "the table",
    "runner/recipes/mnist/download.py": "a data set that is published in the public cloud",
    "runner/explanations/azure.md": "a command of an example",
    "runner/explanations/recipes.md": "an option of an example",
    "images/build.sh": "the registries of all clouds",
    "images/README.md": "an example",
    "batch_emulator/": "a program of its own, which plays accounts of the public cloud",
    "docs/": "examples",
    "tests/": "accounts of tests",
}


def test_no_other_file_has_names_of_the_public_cloud() -> None:
    pattern = [part for name in _PUBLIC_NAMES for part in ("-e", name)]
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-lIF", *pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = listed.stdout.splitlines()
    assert [path for path in found if not path.startswith(tuple(_ALLOWED))] == []
    unused = [path for path in _ALLOWED if not any(each.startswith(path) for each in found)]
    assert unused == [], "nothing to allow there"


def test_image_script_signs_in_to_the_registries_of_all_clouds() -> None:
    script = (ROOT / "images/build.sh").read_text(encoding="utf-8")
    assert all(f"*.{cloud.registry_domain}" in script for cloud in CLOUDS)


def test_clouds_share_no_name_and_no_host() -> None:
    for field in fields(Cloud):
        values = {getattr(cloud, field.name) for cloud in CLOUDS}
        assert len(values) == len(CLOUDS) or field.name == "prices", field.name
    for cloud in CLOUDS:
        urls = (cloud.authority, cloud.management, cloud.graph)
        hosts = (f"a.b.{cloud.batch_domain}", f"a.{cloud.storage_blob_domain}")
        hosts += (f"v.{cloud.vault_domain}", f"r.{cloud.registry_domain}")
        assert {cloud_at(url) for url in (*urls, *hosts)} == {cloud}
    assert cloud_at("http://127.0.0.1:10000/account") is None
    assert cloud_at(f"https://{PUBLIC.storage_domain}.example.com") is None


def test_authorities_are_those_of_the_sdk() -> None:
    from azure.identity import AzureAuthorityHosts as Hosts

    hosts = (Hosts.AZURE_PUBLIC_CLOUD, Hosts.AZURE_CHINA, Hosts.AZURE_GOVERNMENT)
    assert tuple(cloud.authority for cloud in CLOUDS) == tuple(f"https://{each}" for each in hosts)


def test_batch_audience_of_the_public_cloud_is_that_of_the_sdk() -> None:
    from azure.batch._configuration import BatchClientConfiguration as Configuration

    default = Configuration("https://a.b", FakeCredential()).credential_scopes
    assert default == [f"{PUBLIC.batch_resource}/.default"]


@pytest.mark.parametrize(
    ("cloud", "service", "zone"),
    [
        (PUBLIC, "batch", "privatelink.batch.azure.com"),
        (PUBLIC, "vault", "privatelink.vaultcore.azure.net"),
        (CHINA, "batch", "privatelink.batch.chinacloudapi.cn"),
        (CHINA, "blob", "privatelink.blob.core.chinacloudapi.cn"),
        (CHINA, "registry", "privatelink.azurecr.cn"),
        (USGOV, "file", "privatelink.file.core.usgovcloudapi.net"),
        (USGOV, "vault", "privatelink.vaultcore.usgovcloudapi.net"),
    ],
)
def test_private_dns_zones_follow_the_cloud(cloud: Cloud, service: str, zone: str) -> None:
    assert cloud.private_zone(service) == zone


@pytest.mark.parametrize(
    ("region", "cloud"),
    [("chinanorth3", CHINA), ("usgovvirginia", USGOV), ("usdodeast", USGOV), ("eastus", PUBLIC)],
)
def test_region_belongs_to_one_cloud(region: str, cloud: Cloud) -> None:
    assert cloud_of_region(region) is cloud


def test_cloud_has_one_order_of_sources(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[cloud]\nname = AzureChinaCloud\n")
    az = {"AZURE_CONFIG_DIR": str(tmp_path)}
    assert find_cloud({}) is PUBLIC
    assert az_cloud(az) is find_cloud(az) is CHINA
    assert find_cloud({**az, "AZURE_CLOUD_NAME": "AzureUSGovernment"}) is USGOV
    assert find_cloud({**az, "AZURE_AUTHORITY_HOST": USGOV.authority}) is USGOV
    assert find_cloud({**az, "ARM_ENVIRONMENT": "USGovernment"}) is USGOV
    assert find_cloud({**az, "AZURE_ENVIRONMENT": "public"}) is PUBLIC
    assert find_cloud(az, "usgov") is USGOV
    (tmp_path / "config").write_text("[cloud]\nname = OurOwnCloud\n")
    assert find_cloud(az) is PUBLIC


def test_configuration_of_az_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".azure").mkdir()
    (tmp_path / ".azure/config").write_bytes(b"\xff[cloud\nname")
    assert az_cloud({"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("env", "given"),
    [
        ({"ARM_ENVIRONMENT": "china"}, "usgov"),
        ({"AZURE_AUTHORITY_HOST": "login.microsoftonline.us"}, "public"),
        ({"ARM_ENVIRONMENT": "china", "AZURE_AUTHORITY_HOST": USGOV.authority}, None),
    ],
)
def test_contradicting_variables_are_an_error(env: dict[str, str], given: str | None) -> None:
    with pytest.raises(RunnerError) as caught:
        find_cloud(env, given)
    assert caught.value.code == "R-CLOUD-CONFLICT"
    assert caught.value.fix.startswith("unset A")


@_SOVEREIGN
def test_other_programs_get_the_variables_of_the_cloud(cloud: Cloud) -> None:
    env = with_cloud({"HOME": "/h"}, cloud)
    assert find_cloud(env, cloud.name) is cloud
    assert env["AZURE_STORAGE_DOMAIN"] == f"blob.{cloud.storage_domain}"
    assert cloud_named(env["ARM_ENVIRONMENT"]) is cloud
    assert with_cloud({"HOME": "/h"}, PUBLIC) == {"HOME": "/h"}


@_SOVEREIGN
def test_credentials_ask_the_authority_of_the_cloud(cloud: Cloud) -> None:
    principal = {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t", "ARM_CLIENT_SECRET": "s"}
    made: list[Any] = [
        make_credential({**principal, **with_cloud({}, cloud)}),
        make_credential(principal, cloud),
        make_credential({**principal, "AZURE_AUTHORITY_HOST": cloud.authority}),
    ]
    assert [each._authority for each in made] == [cloud.authority] * 3


def test_authority_of_no_cloud_is_used_as_it_is() -> None:
    principal = {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t", "ARM_CLIENT_SECRET": "s"}
    made: Any = make_credential({**principal, "AZURE_AUTHORITY_HOST": "https://login.own.example"})
    assert made._authority == "https://login.own.example"


@_SOVEREIGN
def test_clients_of_a_stack_use_the_audiences_of_its_cloud(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Cloud | None] = []
    token = FakeCredential()

    def credential(cloud: Cloud | None = None) -> FakeCredential:
        asked.append(cloud)
        return token

    monkeypatch.setattr("runner.azure.auth.credentials.default_credential", credential)
    outputs = replace(
        local_outputs(LocalState(batch_port=1, blob_port=2, nodes=1, slots=1)),
        location=f"{cloud.regions[0]}north3",
        batch_endpoint=f"https://ml.north3.{cloud.batch_domain}",
        blob_endpoint=f"https://ml.{cloud.storage_blob_domain}",
    )
    connection = Connection(outputs, None)
    batch: Any = connection.batch_client()
    assert batch._config.credential_scopes == [f"{cloud.batch_resource}/.default"]
    assert connection.blob_service().url.endswith(f".blob.{cloud.storage_domain}/")
    assert asked == [cloud]


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.name)
def test_secret_may_be_in_a_vault_of_every_cloud(cloud: Cloud) -> None:
    url = f"https://team.{cloud.vault_domain}/secrets/token"
    assert check_secret(SecretRef("TOKEN", None, url)).keyvault == url


def test_another_cloud_of_az_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[cloud]\nname = AzureCloud\n")
    env = {"AZURE_CONFIG_DIR": str(tmp_path)}
    check_az(env, PUBLIC)
    check_az({}, CHINA)
    with pytest.raises(RunnerError) as caught:
        check_az(env, CHINA)
    assert (caught.value.code, caught.value.exit_code) == ("R-CLOUD-AZ", ExitCode.ACCESS)
    assert caught.value.fix == "az cloud set --name AzureChinaCloud && az login"


@pytest.mark.parametrize(
    ("fix", "without_az"),
    [
        ("run `az login`", f"install the Azure CLI ({INSTALL_AZ}) and run `az login`"),
        ("run `az login --tenant T`, then x", "and run `az login --tenant T`, then x"),
        ("az provider register -n N", "and run `az provider register -n N`"),
        ("correct azure-native:location; `az account list` lists all", ""),
        ("azcopy login", ""),
    ],
)
def test_fix_with_az_says_how_to_install_it_where_it_is_missing(
    tmp_path: Path, fix: str, without_az: str
) -> None:
    assert with_az(fix, {"PATH": str(tmp_path)}).endswith(without_az or fix)
    (tmp_path / "az").write_text("#!/bin/sh\n")
    (tmp_path / "az").chmod(0o700)
    assert with_az(fix, {"PATH": str(tmp_path)}) == fix
