"""Reading back what a run left, including what is torn, foreign or hostile."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from runner.flows.runs.attempts import parse_resumed
from runner.protocol.errors import RunnerError
from runner.protocol.groups import parse_group
from runner.protocol.metrics import MetricPoint, summarize_metrics
from runner.protocol.paths import RunPaths
from runner.protocol.results import (
    AttemptEnd,
    AttemptStart,
    check_output_path,
    parse_event_line,
    parse_result,
)
from runner.protocol.run_spec import parse_run

RESULT: dict[str, Any] = {
    "format": 1,
    "run_id": "r",
    "status": "succeeded",
    "attempt": 1,
    "exit_code": 0,
    "step": None,
    "code": None,
    "message": None,
    "started": "2026-11-21T14:30:05+00:00",
    "ended": "2026-11-21T14:31:06.5+00:00",
    "stages_s": {"command": 61},
    "metrics": {"loss": "NaN", "accuracy": 0.99},
    "outputs": [{"path": "sub/model.bin", "size_bytes": 3, "sha256": "x"}],
    "field_of_tomorrow": True,
}


RUN: dict[str, Any] = {
    "format": 1,
    "run_id": "r",
    "experiment": "e",
    "created": "2026-11-21T14:30:05+00:00",
    "recipe": {"name": "e"},
    "batch": {"pool": "local", "spot": True, "job_id": "e_local", "task_id": "r"},
    "params": {},
}


def result(**changes: Any) -> bytes:
    return json.dumps({**RESULT, **changes}).encode()


@pytest.mark.parametrize(
    ("metrics", "goal"),
    [
        ({"primary": "score", "goal": "min"}, "min"),
        ({"primary": "score", "goal": "max"}, "max"),
        ({"primary": "score"}, "max"),
        (None, "max"),
    ],
)
def test_goal_of_a_run_decides_its_best_value(metrics: dict[str, str] | None, goal: str) -> None:
    record = parse_run(json.dumps({**RUN, "metrics": metrics}).encode(), "r")
    assert record.goal == goal
    points = [MetricPoint("", 1, step, "score", value) for step, value in enumerate((2, 1, 3))]
    [summary] = summarize_metrics(points, {"score": record.goal})
    assert summary.best == (1 if goal == "min" else 3)


def test_result_is_read_and_unknown_fields_are_ignored() -> None:
    read = parse_result(result(), "r")
    assert (read.status, read.exit_code, read.outputs[0].path) == ("succeeded", 0, "sub/model.bin")
    assert read.started is not None
    assert read.ended is not None
    assert (read.ended - read.started).total_seconds() == 61.5
    assert read.metrics["loss"] != read.metrics["loss"], "NaN is written as a string"


def test_outputs_are_where_the_result_says_within_the_run() -> None:
    assert parse_result(result(), "r").output == RunPaths("r").output(1).removeprefix("r/")
    later = result(output="attempts/2/output/")
    assert "r/" + parse_result(later, "r").output == RunPaths("r").output(2)
    with pytest.raises(RunnerError):
        parse_result(result(output="../other/output/"), "r")


def test_newer_format_is_refused_with_a_fix() -> None:
    with pytest.raises(RunnerError) as caught:
        parse_result(result(format=2), "r")
    assert caught.value.code == "R-RUN-FORMAT"
    assert "pip install --upgrade azure-batch-runner" in caught.value.fix


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b'{"format": 1}', result(status="won"), result(outputs=[{}])),
        *(result(**{field: math.inf}) for field in ("attempt", "evicted", "rank")),
        result(outputs=[{"path": "model", "size_bytes": math.inf, "sha256": "x"}]),
    ],
)
def test_damaged_result_is_named_without_a_traceback(content: bytes) -> None:
    with pytest.raises(RunnerError) as caught:
        parse_result(content, "r")
    assert caught.value.code in {"R-RUN-BROKEN", "R-RUN-FORMAT"}


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b'{"format": 1, "run_id": "r", "batch": 3}',
        json.dumps({**RUN, "priority": math.inf}).encode(),
    ],
)
def test_damaged_run_json_is_named(content: bytes) -> None:
    assert parse_run(json.dumps(RUN).encode(), "r").priority == 0
    with pytest.raises(RunnerError):
        parse_run(content, "r")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "..", "", "a\\..\\b", "a\0b"])
def test_output_path_leaving_the_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="leaves the output folder"):
        check_output_path(path)
    files = [{"path": name, "size_bytes": 1, "sha256": "x"} for name in (path, "model.h5")]
    read = parse_result(result(outputs=files, left_out=[]), "r")
    assert [file.path for file in read.outputs] == ["model.h5"], "the rest of the run is readable"
    assert [each.why for each in read.left_out] == ["path"]


def test_partial_and_unknown_event_lines_are_skipped() -> None:
    assert parse_event_line('{"stage": "code", "sta', 1) is None
    assert parse_event_line("[]", 1) is None
    assert parse_event_line('{"stage": "code", "state": "dancing"}', 1) is None
    event = parse_event_line('{"stage": "code", "state": "progress", "done": 3, "total": 5}', 2)
    assert event is not None
    assert (event.attempt, event.stage, event.done, event.unit) == (2, "code", 3, None)


def test_attempt_start_carries_the_log_offsets() -> None:
    start = AttemptStart.load(
        b'{"attempt": 2, "node": "tvm-1", "log_offsets": {"stdout": 10, "stderr": 4}}'
    )
    assert start is not None
    assert (start.attempt, start.stdout_offset, start.stderr_offset) == (2, 10, 4)
    assert AttemptStart.load(b"{}") is None


DEEP = b'{"format": 1, "files": ' + b"[" * 200_000


def test_too_deeply_nested_document_is_damaged() -> None:
    for parse in (parse_run, parse_result, parse_group):
        with pytest.raises(RunnerError, match="cannot be read"):
            parse(DEEP, "mnist-1")
    assert AttemptStart.load(DEEP) is None
    assert AttemptEnd.load(DEEP) is None
    assert parse_event_line(DEEP.decode(), 1) is None
    assert parse_resumed(DEEP) is None


@pytest.mark.parametrize("after", [{"a": ["b"], "b": ["a"]}, {"a": ["gone"], "b": []}])
def test_group_with_an_invalid_order_is_damaged(after: dict[str, Any]) -> None:
    document = {
        "format": 1,
        "group_id": "cats-20261121-143005-k3f9",
        "name": "cats",
        "created": "2026-11-21T14:30:05+00:00",
        "job_id": "cats-20261121-143005-k3f9",
        "pool": "local",
        "tasks": {name: {"run_id": name, "after": before} for name, before in after.items()},
    }
    with pytest.raises(RunnerError, match="cannot be read"):
        parse_group(json.dumps(document).encode(), "cats-20261121-143005-k3f9")
