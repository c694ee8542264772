"""The judge of answers itself: what it must find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conformance import violations
from tests.contract.description import STABLE, description, needed

pytestmark = needed

JOB: dict[str, Any] = {
    "id": "a",
    "state": "active",
    "priority": 0,
    "creationTime": "2026-01-02T03:04:05.678Z",
    "constraints": {"maxWallClockTime": "PT1H"},
    "executionInfo": {"startTime": "2026-01-02T03:04:05.678Z"},
}


def judge(body: Any, path: str = "/jobs/a", status: int = 200, method: str = "GET") -> list[str]:
    text = json.dumps(body).encode()
    return violations(method, path, status, "application/json; odata=minimalmetadata", text)


def test_documented_answer_passes() -> None:
    assert judge({"odata.metadata": "x", **JOB}) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"priority": "0"}, "priority: '0' is no int32"),
        ({"priority": True}, "priority: True is no int32"),
        ({"priority": 2**31}, "priority: 2147483648 has more than 32 bits"),
        ({"usesTaskDependencies": 1}, "usesTaskDependencies: 1 is no boolean"),
        ({"creationTime": "2026-01-02 03:04:05"}, "creationTime: '2026-01-02 03:04:05' is no"),
        ({"constraints": {"maxWallClockTime": "P"}}, "constraints.maxWallClockTime: 'P' is no"),
        ({"executionInfo": {}}, "executionInfo: startTime is required and missing"),
        ({"state": "asleep"}, "state: 'asleep' is none of active, "),
        ({"metadata": [{"name": "a"}]}, "metadata[0]: value is required and missing"),
        ({"commandLine": "/bin/true"}, "commandLine: no such property is documented"),
        ({"poolInfo": []}, "poolInfo: [] is no object"),
        ({"id": None}, "id: None is no string"),
    ],
)
def test_each_kind_of_wrong_answer_is_found(change: dict[str, Any], problem: str) -> None:
    [found] = judge({**JOB, **change})
    assert found.startswith(f"Job_Get 200: {problem}")


def test_status_and_bodies_that_are_not_documented_are_found() -> None:
    assert judge(JOB, status=201) == ["Job_Get 201: this status is not documented"]
    assert judge({}, method="DELETE", status=202) == [
        "Job_Delete 202: a body of 2 bytes where none is documented"
    ]
    assert violations("GET", "/jobs/a", 200, "text/html", b"<p>") == [
        "Job_Get 200: JSON is documented, not 'text/html'"
    ]


def test_errors_are_held_against_the_error_schema() -> None:
    fault = {"code": "JobNotFound", "message": {"lang": "en-us", "value": "gone"}}
    assert judge(fault, status=404) == []
    assert judge({**fault, "message": "gone"}, status=404) == [
        "Job_Get 404: message: 'gone' is no object"
    ]


def test_what_the_installed_models_know_is_newer_than_the_description() -> None:
    judged = description(STABLE).document["definitions"]["NodeCounts"]
    counts = {"dedicated": dict.fromkeys([*judged["required"], "deallocated"], 0)}
    assert judge({"value": [{"poolId": "p", **counts}]}, "/nodecounts") == []
