import random
from typing import Any

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.http import odata
from batch_emulator.http.odata import FilterError, parse_filter, select, selected

TASK: dict[str, Any] = {
    "id": "Train-1",
    "state": "completed",
    "creationTime": "2026-03-01T12:00:00.250000Z",
    "lastModified": "2026-03-01T12:00:01Z",
    "executionInfo": {"exitCode": 3, "result": "failure"},
}
ACTIVE = {"id": "it's", "state": "active"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("state eq 'completed'", True),
        ("state eq 'COMPLETED'", True),
        ("state ne 'completed'", False),
        ("id eq 'train-1'", True),
        ("startswith(id,'TRAIN')", True),
        ("startswith( id , 'x')", False),
        ("id ge 'train-0' and id lt 'train-2'", True),
        ("executionInfo/exitCode eq 3", True),
        ("executionInfo/exitCode gt 3", False),
        ("executionInfo/exitCode ge -1", True),
        ("executionInfo/result eq 'Failure'", True),
        ("creationTime gt DateTime'2026-03-01T12:00:00Z'", True),
        ("creationTime lt datetime'2026-03-01T13:00:00+01:00'", False),
        ("lastModifiedTime eq DateTime'2026-03-01T12:00:01Z'", True),
        ("state eq 'active' or executionInfo/exitCode ne 0", True),
        ("state eq 'active' or state eq 'running' and id eq 'train-1'", False),
        ("(state eq 'active' or state eq 'completed') and id eq 'train-1'", True),
        ("state eq 'active' OR (((id eq 'train-1')))", True),
        ("executionInfo/endTime gt DateTime'2000-01-01T00:00:00Z'", False),
    ],
)
def test_filter_of_tasks(text: str, expected: bool) -> None:
    assert parse_filter(text, odata.TASK_FIELDS)(TASK) is expected


def test_doubled_quote_is_an_escaped_quote() -> None:
    assert parse_filter("id eq 'IT''S'", odata.TASK_FIELDS)(ACTIVE)


def test_missing_property_satisfies_no_comparison() -> None:
    for op in ("eq", "ne", "gt", "ge", "lt", "le"):
        assert not parse_filter(f"executionInfo/exitCode {op} 0", odata.TASK_FIELDS)(ACTIVE)


def test_booleans_are_compared() -> None:
    pool = {"enableAutoScale": False}
    assert parse_filter("enableAutoScale eq false", odata.POOL_FIELDS)(pool)
    assert not parse_filter("enableAutoScale ne false", odata.POOL_FIELDS)(pool)


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        ("State eq 'active'", odata.TASK_FIELDS, "cannot be filtered on"),
        ("commandLine eq 'x'", odata.TASK_FIELDS, "cannot be filtered on"),
        ("state gt 'active'", odata.TASK_FIELDS, "does not support 'gt'"),
        ("allocationState ne 'steady'", odata.POOL_FIELDS, "does not support 'ne'"),
        ("name eq 'a'", odata.FILE_FIELDS, "does not support 'eq'"),
        ("startswith(state,'a')", odata.TASK_FIELDS, "does not support 'startswith'"),
        ("executionInfo/exitCode eq '0'", odata.TASK_FIELDS, "compared with a number"),
        ("id eq 3", odata.TASK_FIELDS, "compared with a text"),
        ("creationTime gt '2026-01-01'", odata.TASK_FIELDS, "compared with a time"),
        ("creationTime gt DateTime'soon'", odata.TASK_FIELDS, "not an ISO 8601 time"),
        ("state is 'active'", odata.TASK_FIELDS, "not an operator"),
        ("state eq", odata.TASK_FIELDS, "compared with a text"),
        ("state", odata.TASK_FIELDS, "expected an operator"),
        ("state eq 'active' and", odata.TASK_FIELDS, "expected a property"),
        ("state eq 'active' state", odata.TASK_FIELDS, "expected the end"),
        ("(state eq 'active'", odata.TASK_FIELDS, r"expected '\)'"),
        ("state eq 'active", odata.TASK_FIELDS, "unexpected text"),
        ("not state eq 'active'", odata.TASK_FIELDS, "not an operator"),
        ("(" * 1000 + "state eq 'a'" + ")" * 1000, odata.TASK_FIELDS, "nests deeper"),
        ("state eq '" + "a" * 40_000 + "'", odata.TASK_FIELDS, "longer than"),
    ],
)
def test_invalid_filter_is_explained(
    text: str, fields: dict[str, odata.FieldRule], why: str
) -> None:
    with pytest.raises(FilterError, match=why):
        parse_filter(text, fields)


def test_any_text_is_parsed_or_a_filter_error() -> None:
    pieces = [
        "state", "id", "executionInfo/exitCode", "creationTime", "eq", "ne", "gt", "and", "or",
        "startswith", "(", ")", ",", "'a'", "'it''s'", "0", "-1.5", "true", "DateTime'2026-01-01'",
        "DateTime'", "'", "/", "\u00e9", "\0", "$", " ", "\n", "1e999", "9" * 400, "not", "\ud800",
    ]  # fmt: skip
    rng = random.Random(20260301)
    parsed = 0
    for _ in range(4000):
        text = rng.choice(["", " "]).join(rng.choices(pieces, k=rng.randint(1, 12)))
        try:
            predicate = parse_filter(text, odata.TASK_FIELDS)
        except FilterError:
            continue
        parsed += 1
        assert predicate(TASK) in (True, False)
        assert predicate(ACTIVE) in (True, False)
    assert parsed  # the vocabulary also generates valid filters


def test_select_keeps_the_named_properties() -> None:
    for text, shown in (
        ("id,state", {"id": "Train-1", "state": "completed"}),
        (" id , nothing ", {"id": "Train-1"}),
        ("executionInfo/exitCode", {"executionInfo": TASK["executionInfo"]}),
        ("", TASK),
        ("*", TASK),
    ):
        assert select(TASK, selected(text)) == shown


@pytest.mark.parametrize("text", ["id,", "id;state", "id state", "1d", "a//b"])
def test_malformed_select_is_refused(text: str) -> None:
    with pytest.raises(Fault, match="InvalidQueryParameterValue"):
        selected(text)


def test_documented_tables_are_complete() -> None:
    assert set(odata.FILE_FIELDS) == {"name"}
    assert "jobReleaseTaskExecutionInfo/exitCode" in odata.PREPARATION_FIELDS
    assert odata.NODE_COUNT_FIELDS["poolId"].operators == {"eq"}
    assert odata.IMAGE_FIELDS["osType"].operators == {"eq", "ne"}
    assert odata.JOB_FIELDS["executionInfo/poolId"].operators >= {"startswith", "lt"}
    assert odata.NODE_FIELDS["startTaskInfo/exitCode"].kind == "number"
