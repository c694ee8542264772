"""Bodies are read as the service reads them: what is coerced, what is refused, and with which
words.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.validation.body_schema import InvalidItem, check_body

NEWEST = "2025-06-01"
STABLE = "2024-02-01.19.0"
ENTITIES = "Microsoft.Azure.Batch.Protocol.Entities"


def pool(**extra: Any) -> dict[str, Any]:
    return {"id": "p", "vmSize": "standard_d2s_v3", **extra}


def task(**extra: Any) -> dict[str, Any]:
    return {"id": "t", "commandLine": "true", **extra}


def refused(operation: str, body: dict[str, Any], version: str = STABLE) -> Fault:
    with pytest.raises(Fault) as caught:
        check_body(operation, version, body)
    assert caught.value.status == 400
    return caught.value


def test_unknown_property_is_refused_with_the_text_of_the_service() -> None:
    fault = refused("Pool_Add", pool(targetDedicatedNode=4))
    assert fault.code == "InvalidRequestBody"
    assert fault.values == {
        "Reason": f"The property 'targetDedicatedNode' does not exist on type "
        f"'{ENTITIES}.PoolAddParameter'. "
        "Make sure to only use property names that are defined by the type.",
        "PropertyName": "targetDedicatedNode",
    }


def test_path_of_a_nested_property_is_named() -> None:
    files = [{"httpUrl": "https://h/f", "filePath": "f"}, {"httpURL": "https://h/f"}]
    fault = refused("Pool_Add", pool(startTask={"commandLine": "x", "resourceFiles": files}))
    assert fault.values["PropertyName"] == "startTask/resourceFiles/1/httpURL"
    assert "type 'Microsoft.Azure.Batch.Protocol.Entities.ResourceFile'" in fault.values["Reason"]


@pytest.mark.parametrize(
    ("operation", "body", "where"),
    [
        ("Pool_Add", {"id": "p"}, "vmSize"),
        ("Pool_Add", pool(vmSize=None), "vmSize"),
        ("Pool_Add", pool(startTask={}), "startTask/commandLine"),
        ("Job_Disable", {}, "disableTasks"),
        (
            "Task_Add",
            task(dependsOn={"taskIdRanges": [{"start": 1}]}),
            "dependsOn/taskIdRanges/0/end",
        ),
    ],
)
def test_missing_required_property_is_named(
    operation: str, body: dict[str, Any], where: str
) -> None:
    fault = refused(operation, body)
    assert (fault.code, fault.values) == ("MissingRequiredProperty", {"PropertyName": where})


@pytest.mark.parametrize(
    ("body", "edm"),
    [
        (pool(displayName=5), "Edm.String"),
        (pool(displayName=True), "Edm.String"),
        (pool(targetDedicatedNodes=1.0), "Edm.Int32"),
        (pool(targetDedicatedNodes="many"), "Edm.Int32"),
        (pool(targetDedicatedNodes=True), "Edm.Int32"),
        (pool(targetDedicatedNodes=2**31), "Edm.Int32"),
        (pool(targetDedicatedNodes=str(-(2**31) - 1)), "Edm.Int32"),
        (pool(targetDedicatedNodes="9" * 5000), "Edm.Int32"),
        (pool(enableAutoScale="yes"), "Edm.Boolean"),
        (pool(enableAutoScale=1), "Edm.Boolean"),
        (pool(resizeTimeout="15 minutes"), "Edm.Time"),
        (pool(resizeTimeout=15), "Edm.Time"),
        (pool(resourceTags={"a": 1}), "Edm.String"),
        (pool(taskSchedulingPolicy={"nodeFillType": 1}), "Edm.String"),
    ],
)
def test_value_of_another_type_is_refused(body: dict[str, Any], edm: str) -> None:
    fault = refused("Pool_Add", body)
    assert fault.code == "InvalidRequestBody"
    assert fault.values["Reason"].startswith(
        f"Cannot convert a primitive value to the expected type '{edm}'."
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (pool(startTask="x"), "StartObject"),
        (pool(startTask=[]), "StartObject"),
        (pool(metadata={}), "StartArray"),
        (pool(metadata=["x"]), "StartObject"),
        (pool(metadata=[None]), "StartObject"),
        (pool(vmSize={}), "PrimitiveValue"),
        (pool(targetDedicatedNodes=[1]), "PrimitiveValue"),
        (pool(resourceTags="x"), "StartObject"),
    ],
)
def test_value_of_another_kind_is_refused(body: dict[str, Any], expected: str) -> None:
    fault = refused("Pool_Add", body)
    assert fault.code == "InvalidRequestBody"
    assert f"A '{expected}' node was expected" in fault.values["Reason"]


def test_unknown_value_of_an_enumeration_is_refused() -> None:
    fault = refused("Pool_Add", pool(taskSchedulingPolicy={"nodeFillType": "spred"}))
    assert fault.code == "InvalidPropertyValue"
    assert fault.values == {
        "PropertyName": "taskSchedulingPolicy/nodeFillType",
        "PropertyValue": "spred",
        "Reason": "one of spread, pack",
    }


def test_value_of_an_enumeration_gets_the_spelling_of_the_description() -> None:
    body = pool(taskSchedulingPolicy={"nodeFillType": "Pack"})
    read = check_body("Pool_Add", STABLE, body)
    assert read["taskSchedulingPolicy"] == {"nodeFillType": "pack"}


def test_text_is_converted_to_numbers_and_booleans() -> None:
    upgrade = {"mode": "rolling", "rollingUpgradePolicy": {"maxBatchInstancePercent": "20"}}
    sent = pool(targetDedicatedNodes=" +3 ", enableAutoScale="False", upgradePolicy=upgrade)
    read = check_body("Pool_Add", STABLE, sent)
    assert (read["targetDedicatedNodes"], read["enableAutoScale"]) == (3, False)
    assert read["upgradePolicy"]["rollingUpgradePolicy"] == {"maxBatchInstancePercent": 20}


@pytest.mark.parametrize("number", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_integers_of_32_bits_are_read_as_numbers_and_as_text(number: int) -> None:
    for value in (number, str(number)):
        body = task(constraints={"maxTaskRetryCount": value})
        assert check_body("Task_Add", STABLE, body)["constraints"] == {"maxTaskRetryCount": number}


@pytest.mark.parametrize("value", [4, 101, "101"])
def test_number_outside_the_described_range_is_refused(value: int | str) -> None:
    policy = {"maxBatchInstancePercent": value}
    body = pool(upgradePolicy={"mode": "rolling", "rollingUpgradePolicy": policy})
    fault = refused("Pool_Add", body)
    assert fault.code == "InvalidPropertyValue"
    assert fault.values["Reason"] == "5 to 100 is allowed"


def test_nulls_and_annotations_are_omitted() -> None:
    sent = pool(displayName=None, **{"odata.metadata": "x", "metadata@odata.type": "y"})
    assert check_body("Pool_Add", STABLE, sent) == pool()


def test_tags_can_have_any_name() -> None:
    tags = {"taskSlotsPerNode": "x", "priority": "high", "none": None}
    read = check_body("Pool_Add", STABLE, pool(resourceTags=tags))
    assert read["resourceTags"] == {"taskSlotsPerNode": "x", "priority": "high"}


def test_settings_of_an_extension_are_free_up_to_a_depth() -> None:
    def settings(depth: int) -> dict[str, Any]:
        text = '{"a":[' * depth + "1" + "]}" * depth
        extension = {"name": "e", "publisher": "p", "type": "t", "settings": json.loads(text)}
        machine = {"imageReference": {}, "nodeAgentSKUId": "x", "extensions": [extension]}
        return pool(virtualMachineConfiguration=machine)

    assert check_body("Pool_Add", STABLE, settings(3)) == settings(3)
    assert refused("Pool_Add", settings(200)).values["Reason"] == "nested deeper than 64"


@pytest.mark.parametrize(
    ("property_name", "value", "known", "unknown"),
    [
        ("maxTasksPerNode", 2, "2020-03-01.11.0", STABLE),
        ("taskSlotsPerNode", 2, "2020-09-01.12.0", "2020-03-01.11.0"),
        ("mountConfiguration", [], "2019-08-01.10.0", "2019-06-01.9.0"),
        ("certificateReferences", [], STABLE, NEWEST),
        ("resourceTags", {}, STABLE, "2022-10-01.16.0"),
    ],
)
def test_property_is_known_to_its_api_versions_only(
    property_name: str, value: object, known: str, unknown: str
) -> None:
    body = pool(**{property_name: value})
    assert check_body("Pool_Add", known, body) == body
    assert "does not exist on type" in refused("Pool_Add", body, unknown).values["Reason"]


def test_certificates_are_required_in_a_replacement_until_their_removal() -> None:
    body: dict[str, Any] = {"metadata": [], "applicationPackageReferences": []}
    assert check_body("Pool_UpdateProperties", NEWEST, body) == body
    fault = refused("Pool_UpdateProperties", body)
    assert (fault.code, fault.values) == (
        "MissingRequiredProperty",
        {"PropertyName": "certificateReferences"},
    )


@pytest.mark.parametrize("version", ["2018-01-01.5.1", "2021-01-01", "2090-01-01"])
def test_unknown_version_is_treated_as_the_one_before_it(version: str) -> None:
    assert check_body("Pool_Add", version, pool()) == pool()


def test_invalid_task_of_a_collection_does_not_refuse_the_others() -> None:
    tasks = [task(), {"id": "without"}, task(exitConditions={"default": {"jobAction": "x"}})]
    first, second, third = check_body("Task_AddCollection", STABLE, {"value": tasks})["value"]
    assert first == task()
    assert isinstance(second, InvalidItem)
    assert (second.id, second.fault.code) == ("without", "MissingRequiredProperty")
    assert isinstance(third, InvalidItem)
    assert third.fault.values["PropertyName"] == "exitConditions/default/jobAction"


def test_unreadable_task_refuses_its_whole_collection() -> None:
    fault = refused("Task_AddCollection", {"value": [task(), task(comandLine="x")]})
    assert fault.values["PropertyName"] == "value/1/comandLine"
    assert refused("Task_AddCollection", {"value": [task()] * 101}).code == "InvalidPropertyValue"


def test_update_of_a_job_can_omit_hidden_secrets() -> None:
    account = {"userAccounts": [{"name": "u"}]}
    auto = {"poolLifetimeOption": "job", "pool": {"vmSize": "x", **account}}
    body = {"poolInfo": {"autoPoolSpecification": auto}}
    assert check_body("Job_Patch", STABLE, body) == body
    fault = refused("Job_Add", {"id": "j", **body})
    assert fault.values["PropertyName"].endswith("userAccounts/0/password")
