"""Endpoints and zones of private access, for the clouds of Azure."""

from __future__ import annotations

from typing import Any

import pytest

from runner_infra.planning.private_access import plan_endpoints, plan_zones
from tests.unit.infra.stacks import ADOPTED, LANDING, config_of

_PRIVATE: dict[str, Any] = {"network": {"private": True}}
_IN_SPOKE = {key: LANDING[key] for key in ("subnet", "endpoint_subnet")}


def endpoints(**keys: Any) -> dict[str, str]:
    return {e.sub_resource: e.zone for e in plan_endpoints(config_of(**{**_PRIVATE, **keys}))}


def test_public_stack_has_no_endpoints() -> None:
    assert plan_endpoints(config_of(network={})) == ()
    assert plan_zones(config_of()) == ()


def test_all_sub_resources_that_runs_use_have_an_endpoint() -> None:
    batch = "privatelink.batch.azure.com"
    assert endpoints() == {
        "blob": "privatelink.blob.core.windows.net",
        "batchAccount": batch,
        "nodeManagement": batch,
    }
    shared = endpoints(storage={"file_share_gib": 10})
    assert shared["file"] == "privatelink.file.core.windows.net"
    zones = plan_zones(config_of(**_PRIVATE))
    assert zones == ("privatelink.blob.core.windows.net", batch)


def test_adopted_accounts_get_no_endpoint() -> None:
    storage = {"storage_account": ADOPTED["storage_account"]}
    assert set(endpoints(adopt=storage)) == {"batchAccount", "nodeManagement"}
    assert endpoints(adopt=dict(ADOPTED)) == {}


@pytest.mark.parametrize("private_dns", [LANDING["private_dns"], "policy"])
def test_adopted_zones_are_not_created(private_dns: str) -> None:
    adopt = {**_IN_SPOKE, "private_dns": private_dns}
    assert plan_zones(config_of(**_PRIVATE, adopt=adopt)) == ()


@pytest.mark.parametrize(
    ("cloud", "location", "domain"),
    [
        ("china", "chinanorth3", "chinacloudapi.cn"),
        ("usgov", "usgovvirginia", "usgovcloudapi.net"),
    ],
)
def test_zones_are_those_of_the_cloud(cloud: str, location: str, domain: str) -> None:
    found = endpoints(cloud=cloud, location=location)
    assert found["blob"] == f"privatelink.blob.core.{domain}"
    assert found["batchAccount"] == f"privatelink.batch.{domain}"
