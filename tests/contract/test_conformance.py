"""The check of responses against the description of the service finds each kind of violation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conformance import violations
from tests.contract.description import STABLE, description, needed
from tests.contract.headers import header_violations

pytestmark = needed

JOB: dict[str, Any] = {
    "id": "a",
    "state": "active",
    "priority": 0,
    "creationTime": "2026-01-02T03:04:05.678Z",
    "constraints": {"maxWallClockTime": "PT1H"},
    "executionInfo": {"startTime": "2026-01-02T03:04:05.678Z"},
}


def check(body: Any, path: str = "/jobs/a", status: int = 200, method: str = "GET") -> list[str]:
    text = json.dumps(body).encode()
    return violations(method, path, status, "application/json; odata=minimalmetadata", text)


def test_documented_response_passes() -> None:
    assert check({"odata.metadata": "x", **JOB}) == []


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
def test_each_kind_of_undocumented_response_is_found(change: dict[str, Any], problem: str) -> None:
    [found] = check({**JOB, **change})
    assert found.startswith(f"Job_Get 200: {problem}")


def test_undocumented_status_and_body_are_found() -> None:
    assert check(JOB, status=201) == ["Job_Get 201: this status is not documented"]
    assert check({}, method="DELETE", status=202) == [
        "Job_Delete 202: a body of 2 bytes where none is documented"
    ]
    assert violations("GET", "/jobs/a", 200, "text/html", b"<p>") == [
        "Job_Get 200: JSON is documented, not 'text/html'"
    ]


def test_errors_are_checked_against_the_error_schema() -> None:
    fault = {"code": "JobNotFound", "message": {"lang": "en-us", "value": "gone"}}
    assert check(fault, status=404) == []
    assert check({**fault, "message": "gone"}, status=404) == [
        "Job_Get 404: message: 'gone' is no object"
    ]


def test_properties_newer_than_the_description_are_accepted() -> None:
    definition = description(STABLE).document["definitions"]["NodeCounts"]
    counts = {"dedicated": dict.fromkeys([*definition["required"], "deallocated"], 0)}
    assert check({"value": [{"poolId": "p", **counts}]}, "/nodecounts") == []


DATED = {
    "request-id": "5f1d8a6e-0000-4000-8000-000000000001",
    "ETag": "0x8DE2B1B1F5F5F5F",
    "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
}


def check_headers(
    asked: dict[str, str], answered: dict[str, str], path: str = "/jobs/a", status: int = 200
) -> list[str]:
    return header_violations("GET", path, status, asked, answered)


def test_documented_headers_pass() -> None:
    asked = {"client-request-id": "mine", "Return-Client-Request-Id": "true"}
    assert check_headers({}, DATED) == []
    assert check_headers(asked, {**DATED, "client-request-id": "mine"}) == []
    assert check_headers({}, {"request-id": DATED["request-id"]}, "/jobs") == []
    assert check_headers({}, {"request-id": DATED["request-id"]}, status=404) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ETag": None}, "ETag is documented and missing"),
        ({"Last-Modified": "2026-01-02T03:04:05Z"}, "is no date-time-rfc1123"),
        ({"request-id": "1"}, "request-id: '1' is no uuid"),
        ({"client-request-id": "x"}, "client-request-id: 'x', asked for was None"),
    ],
)
def test_invalid_header_is_found(change: dict[str, str | None], problem: str) -> None:
    answered = {name: text for name, text in {**DATED, **change}.items() if text is not None}
    [found] = check_headers({}, answered)
    assert found.startswith("Job_Get 200: header ")
    assert problem in found


def test_file_headers_have_the_documented_form() -> None:
    answered = {
        **DATED,
        "ocp-creation-time": DATED["Last-Modified"],
        "ocp-batch-file-isdirectory": "no",
        "ocp-batch-file-url": "http://h/f",
        "Content-Type": "text/plain",
        "Content-Length": "3",
    }
    found = check_headers({}, answered, "/jobs/a/tasks/b/files/c")
    assert sorted(line.partition("header ")[2] for line in found) == [
        "ocp-batch-file-isdirectory: 'no' is no boolean",
        "ocp-batch-file-mode is documented and missing",
    ]
