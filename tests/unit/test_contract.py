"""The document that the stack exports and the runner reads."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from runner.contract import (
    SHARED_TEAM,
    ContractError,
    PoolOutput,
    StackOutputs,
    TeamOutput,
    decode_outputs,
    encode_outputs,
    parse_stack_outputs,
)

OUTPUTS = StackOutputs(
    location="westeurope",
    resource_group="rg",
    batch_account="acct",
    batch_endpoint="https://acct.westeurope.batch.azure.com",
    storage_account="store",
    blob_endpoint="https://store.blob.core.windows.net",
    file_endpoint=None,
    container_runs="runs",
    container_models="models",
    container_data="data",
    container_code="code",
    file_share=None,
    identity_client_id="00000000-0000-0000-0000-000000000000",
    identity_resource_id="/subscriptions/x",
    pools=(PoolOutput("t4", "Standard_NC4as_T4_v3", 1, 4, True, 8),),
    image_definition=None,
)


def test_written_outputs_are_read_back() -> None:
    assert parse_stack_outputs(OUTPUTS.to_json()) == OUTPUTS


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"location": None}, "location"),
        ({"contract_version": 3}, "contract_version"),
        ({"container_code": None}, "container_code"),
        ({"pools": {}}, "pools"),
        ({"pools": ["t4"]}, r"pools\[0\]"),
        ({"pools": [{"id": "t4"}]}, r"pools\[0\]\.vm_size"),
        ({"teams": "vision"}, "teams"),
        ({"teams": [{"name": "vision"}]}, r"teams\[0\]\.container_runs"),
    ],
)
def test_invalid_field_is_named(change: dict[str, Any], named: str) -> None:
    document = {**json.loads(OUTPUTS.to_json()), **change}
    with pytest.raises(ContractError, match=named):
        parse_stack_outputs(json.dumps(document))


def test_export_of_another_version_is_read() -> None:
    document = json.loads(OUTPUTS.to_json())
    document |= {"image_template": "ubuntu-1f2e", "log_workspace": None}
    document["pools"][0]["unknown"] = 1
    del document["registry_server"], document["nodes_add_tasks"], document["pools"][0]["containers"]
    del document["teams"], document["pools"][0]["team"]
    assert parse_stack_outputs(json.dumps(document)) == OUTPUTS


def test_outputs_of_version_1_have_no_container_for_code() -> None:
    document = json.loads(OUTPUTS.to_json())
    del document["container_code"]
    found = parse_stack_outputs(json.dumps({**document, "contract_version": 1}))
    assert found.container_code is None
    assert found.containers == ("runs", "models", "data")
    assert parse_stack_outputs(found.to_json()) == found


VISION = TeamOutput(
    "vision", "runs-vision", "models-vision", "code-vision", "vision-id", "/subscriptions/v"
)
WITH_TEAM = replace(
    OUTPUTS,
    pools=(*OUTPUTS.pools, replace(OUTPUTS.pools[0], id="vision-t4", team="vision")),
    teams=(VISION,),
)


def test_part_of_a_team_has_its_containers_identity_and_pools() -> None:
    part = parse_stack_outputs(WITH_TEAM.to_json()).for_team("vision")
    assert (part.container_runs, part.container_models) == ("runs-vision", "models-vision")
    assert (part.identity_client_id, part.identity_resource_id) == ("vision-id", "/subscriptions/v")
    assert (part.container_data, part.container_code) == ("data", "code-vision")
    assert [pool.id for pool in part.pools] == ["vision-t4"]
    assert [pool.id for pool in part.stack_pools] == ["t4", "vision-t4"]
    assert part.for_team(SHARED_TEAM) == WITH_TEAM.for_team(SHARED_TEAM)
    with pytest.raises(KeyError):
        part.for_team("audio")


@pytest.mark.parametrize("name", [None, SHARED_TEAM])
def test_shared_part_has_no_pool_of_a_team(name: str | None) -> None:
    part = WITH_TEAM.for_team(name)
    assert (part.container_runs, part.identity_client_id) == ("runs", OUTPUTS.identity_client_id)
    assert [pool.id for pool in part.pools] == ["t4"]
    assert OUTPUTS.for_team(name) is OUTPUTS


def test_selected_part_is_written_as_the_whole_stack() -> None:
    part = WITH_TEAM.for_team("vision")
    assert parse_stack_outputs(part.to_json()) == WITH_TEAM
    assert [each.container_runs for each in part.parts()] == ["runs", "runs-vision"]


def test_numbers_and_booleans_are_distinguished() -> None:
    document = json.loads(OUTPUTS.to_json())
    document["pools"][0]["gpus"] = True
    with pytest.raises(ContractError, match="gpus"):
        parse_stack_outputs(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_document_other_than_an_object_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        parse_stack_outputs(text)


@pytest.mark.parametrize("pools", [1, 200])
def test_outputs_survive_their_encoding_as_metadata(pools: int) -> None:
    text = json.dumps({"pools": [{"id": f"pool-{each}", "spot": True} for each in range(pools)]})
    value = encode_outputs(text)
    assert value is not None
    assert decode_outputs(value) == text


def test_outputs_that_are_too_long_are_not_encoded() -> None:
    assert encode_outputs(random.Random(1).randbytes(20_000).hex()) is None


@pytest.mark.parametrize("value", ["?", "eA==", "AAAA"])
def test_other_metadata_are_refused(value: str) -> None:
    with pytest.raises(ContractError):
        decode_outputs(value)
