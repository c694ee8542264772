"""Invalid requests, and operations that are not emulated."""

from __future__ import annotations

import re

import pytest
from azure.batch import BatchClient
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from batch_emulator.domain.validation.body_schema import body_types
from batch_emulator.http.routes.table import ROUTES, Route
from tests.contract.server import POOL, Running, Things, body_of, code_of, values_of, wire
from tests.contract.signed import send


def fault_of(caught: pytest.ExceptionInfo[HttpResponseError]) -> tuple[int | None, str]:
    return caught.value.status_code, code_of(caught.value)


def test_operation_that_is_not_emulated_returns_501_with_its_name(things: Things) -> None:
    mount = {"azureBlobFileSystemConfiguration": {
        "accountName": "a", "containerName": "c", "relativeMountPath": "m",
        "identityReference": {"resourceId": "/subscriptions/s"},
    }}  # fmt: skip
    with pytest.raises(HttpResponseError) as caught:
        things.client.create_pool(wire(**POOL, id=things.id(), mountConfiguration=[mount]))
    assert fault_of(caught) == (501, "NotImplemented")
    assert values_of(caught.value)["Operation"].endswith("identityReference")


@pytest.mark.parametrize("pool_id", ["with space", "a" * 65, "dot.ted"])
def test_invalid_id_is_refused(things: Things, pool_id: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(id=pool_id)
    assert fault_of(caught) == (400, "InvalidPropertyValue")


def test_missing_property_is_named(client: BatchClient, things: Things) -> None:
    with pytest.raises(HttpResponseError) as caught:
        client.create_pool(wire(id=things.id()))
    assert fault_of(caught) == (400, "MissingRequiredProperty")
    values = values_of(caught.value)
    assert values == {"PropertyName": "vmSize"}


def test_resize_without_targets_is_refused_also_of_an_unknown_pool(running: Running) -> None:
    """Code, text and value are those that the tests of the SDK for Java expect of the service."""
    refused = send(running.url, "POST", "/pools/none/resize", body=b"{}")
    error = refused.json()
    assert (refused.status_code, error["code"]) == (400, "MissingRequiredProperty")
    assert "A required property was not specified in the request body." in error["message"]["value"]
    [value] = error["values"]
    assert value["value"] == "targetDedicatedNodes and/or targetLowPriorityNodes"
    body = b'{"targetDedicatedNodes": 1, "targetLowPriorityNodes": 1}'
    unknown = send(running.url, "POST", "/pools/none/resize", body=body).json()
    assert (unknown["code"], unknown.get("values")) == ("PoolNotFound", None)


_ENTITY = re.compile(r"[{][^}]+[}]")
_SINCE = "api-version=2024-07-01.20.0"  # deallocate


@pytest.mark.parametrize(
    "route",
    [
        one
        for one in ROUTES
        if one.operation in body_types("2024-07-01")[0] and _ENTITY.search(one.path)
    ],
    ids=lambda route: route.operation,
)
def test_body_is_checked_before_the_entity_is_looked_for(running: Running, route: Route) -> None:
    path = _ENTITY.sub("none", route.path)
    refused = send(running.url, route.method, path, body=b'{"wrong": 1}', version=_SINCE)
    assert (refused.status_code, refused.json()["code"]) == (400, "InvalidRequestBody")


def test_numbers_are_accepted_as_text(client: BatchClient, things: Things) -> None:
    pool_id = things.id("text")
    client.create_pool(  # as `az batch` sends them
        wire(**POOL, id=pool_id, targetDedicatedNodes="1")
    )
    assert client.get_pool(pool_id).target_dedicated_nodes == 1


def test_wrong_type_is_refused(client: BatchClient, things: Things) -> None:
    with pytest.raises(HttpResponseError) as caught:
        client.create_pool(wire(**POOL, id=things.id(), targetDedicatedNodes="many"))
    assert fault_of(caught) == (400, "InvalidRequestBody")


@pytest.mark.parametrize("priority", [-1001, 1001])
def test_priority_out_of_range_is_refused(things: Things, pool: str, priority: int) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.job(pool, priority=priority)
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (-5, "MaxResults cannot be less than 1"),  # recorded
        (0, "MaxResults cannot be less than 1"),
        (1001, "MaxResults cannot be greater than 1000"),
    ],
)
def test_page_size_out_of_range_is_refused(client: BatchClient, limit: int, reason: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_pools(max_results=limit))
    assert fault_of(caught) == (400, "InvalidQueryParameterValue")
    values = {"QueryParameterName": "maxresults", "QueryParameterValue": str(limit)}
    assert values_of(caught.value) == values | {"Reason": reason}
    assert "Value for one of the query parameters" in str(caught.value.message)  # recorded


def test_invalid_filter_is_refused(client: BatchClient) -> None:
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_jobs(filter="colour eq 'red'"))
    assert fault_of(caught) == (400, "InvalidQueryParameterValue")


def test_error_text_ends_with_request_and_time(client: BatchClient) -> None:
    with pytest.raises(ResourceNotFoundError) as caught:
        client.get_job("absent")
    lines = body_of(caught.value)["message"]["value"].splitlines()
    assert [line.partition(":")[0] for line in lines[-2:]] == ["RequestId", "Time"]
