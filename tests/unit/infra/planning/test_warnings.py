"""Warnings about stacks that can be deployed but are probably not intended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.pricing.prices import load_price_table
from runner_infra.planning.pool_plan import plan_pools
from runner_infra.planning.warnings import (
    SignedIn,
    access_warning,
    public_address,
    read_token,
    region_warnings,
    stack_warnings,
)
from tests.unit.infra import cloud
from tests.unit.infra.stacks import ADOPTED, LANDING, NOW, T4, config_of

_BLOBS = [
    {"kind": "blob", "container": "data", "path": "data"},
    {"kind": "blob", "container": "runs", "path": "runs"},
]
_ME = SignedIn("33333333-4444-5555-6666-777777777777", "198.51.100.7")
_OTHERS = [{"id": "22222222-3333-4444-5555-666666666666"}]


def told(**values: Any) -> list[str]:
    config = config_of(**values)
    plans = plan_pools(config, load_price_table(None), NOW.date())
    found = (*region_warnings(config), *stack_warnings(config, plans))
    return [str(each) for each in found]


def access(deployer: SignedIn | None, **values: Any) -> str:
    return str(access_warning(config_of(**values), deployer) or "")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"pools": [{**T4, "ssh_from": ["0.0.0.0/0"]}]}, "whole internet"),
        ({"network": {"storage_from": ["0.0.0.0/0"]}}, "whole internet"),
        ({"network": {"pool_subnet": "10.20.0.0/29"}}, "for 3 nodes, but the pools may have 4"),
        (
            {"pools": [{**T4, "mounts": [_BLOBS[0], {**_BLOBS[1], "path": "Data/runs"}]}]},
            "mount 'Data/runs' is inside mount 'data'",
        ),
        (
            {"pools": [{**T4, "mounts": _BLOBS, "image": {"sku": "2404"}}]},
            "mounts 2 containers on Ubuntu 24.04",
        ),
        ({"image": {"replicate_to": ["westeurop"]}}, "unknown region 'westeurop': did you mean"),
        ({"location": "eastus9"}, "unknown region 'eastus9'"),
        ({"network": {"private": True}, "registry": True}, "keeps its public address"),
    ],
)
def test_suspicious_setting_is_a_warning(values: dict[str, Any], says: str) -> None:
    (only,) = told(**values)
    assert says in only


@pytest.mark.parametrize(
    "values",
    [
        {"pools": [{**T4, "ssh_from": ["203.0.113.0/24"]}]},
        {"pools": [{**T4, "mounts": _BLOBS}]},
        {"network": {"pool_subnet": "10.20.0.0/28"}},
        {"image": {"replicate_to": ["West Europe", "eastus"]}},
        {"budget": None},
        {"network": {"private": True}},
        {"network": {}, "adopt": {"subnet": LANDING["subnet"]}, "pools": [{**T4, "max_spot": 900}]},
    ],
)
def test_usual_settings_cause_no_warning(values: dict[str, Any]) -> None:
    assert told(**values) == []


@pytest.mark.parametrize(
    ("given", "address", "says"),
    [
        ({"network": {}}, None, "because your public IPv4 address is unknown"),
        ({"network": {}, "operators": _OTHERS}, None, "because your public IPv4 address"),
        ({"network": {}, "operators": _OTHERS}, _ME.address, "198.51.100.7, which may exclude"),
        ({"network": {}, "operators": [{"id": _ME.object_id.upper()}]}, _ME.address, ""),
        ({"network": {}}, _ME.address, ""),
        ({"network": {"storage_from": "all"}, "operators": _OTHERS}, None, ""),
        ({"network": {"storage_from": []}}, None, ""),
        ({"operators": _OTHERS}, None, ""),
    ],
)
def test_users_outside_the_storage_network_cause_a_warning(
    given: dict[str, Any], address: str | None, says: str
) -> None:
    text = access(replace(_ME, address=address), **given)
    assert says in text
    assert bool(text) == bool(says) == ("set network.storage_from" in text)


def test_offline_warning_names_no_invented_address() -> None:
    assert access(None, network={}) == ""
    excluded = access(None, network={}, operators=_OTHERS)
    assert "and the address of the deployer, which may exclude the operators" in excluded


def test_adopted_storage_account_must_allow_the_subnet() -> None:
    adopted = {"storage_account": ADOPTED["storage_account"]}
    assert "allow the subnet" in access(_ME, network={}, adopt=adopted)


@pytest.mark.parametrize(
    ("token", "read"),
    [
        (cloud.token_of({"oid": "me", "ipaddr": "8.8.4.4"}), SignedIn("me", "8.8.4.4")),
        (cloud.token_of({"oid": "me", "ipaddr": "10.0.0.7"}), SignedIn("me", None)),
        ("opaque", SignedIn("", None)),
        ("a.b.c", SignedIn("", None)),
    ],
)
def test_claims_of_a_token_may_be_missing(token: str, read: SignedIn) -> None:
    assert read_token(token) == read


def test_only_a_public_ipv4_address_counts() -> None:
    assert public_address({"ipaddr": "2001:4860::1"}) is None
    assert public_address({}) is None


def test_private_accounts_admit_no_address_and_cause_no_warning() -> None:
    assert access(replace(_ME, address=None), network={"private": True}) == ""
    assert access(_ME, network={"private": True}, operators=_OTHERS) == ""
