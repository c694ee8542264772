"""The document that the stack exports and the runner reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.contract import ContractError, PoolOutput, StackOutputs, parse_stack_outputs

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
    assert parse_stack_outputs(json.dumps(document)) == OUTPUTS


def test_outputs_of_version_1_have_no_container_for_code() -> None:
    document = json.loads(OUTPUTS.to_json())
    del document["container_code"]
    found = parse_stack_outputs(json.dumps({**document, "contract_version": 1}))
    assert found.container_code is None
    assert found.containers == ("runs", "models", "data")
    assert parse_stack_outputs(found.to_json()) == found


def test_numbers_and_booleans_are_distinguished() -> None:
    document = json.loads(OUTPUTS.to_json())
    document["pools"][0]["gpus"] = True
    with pytest.raises(ContractError, match="gpus"):
        parse_stack_outputs(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_document_other_than_an_object_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        parse_stack_outputs(text)
