"""A run that comes after others looks at how they ended."""

from __future__ import annotations

import json

import pytest

from tests.unit.node.agent_task import RUN, Task

SCRIPT = "import pathlib; print('it ran')"


def ended(task: Task, run_id: str, status: str) -> None:
    body = {"format": 1, "run_id": run_id, "status": status}
    task.service.put(f"{run_id}/result.json", json.dumps(body).encode())


@pytest.mark.slow
def test_run_starts_after_successful_predecessors(task: Task) -> None:
    ended(task, "a-1", "succeeded")
    ended(task, "b-1", "succeeded")
    task.submit(SCRIPT, after=["a-1", "b-1"])
    assert task.run() == 0
    assert task.json("result.json")["status"] == "succeeded"


@pytest.mark.parametrize(
    ("status", "how"),
    [("failed", "failed"), ("cancelled", "was cancelled"), (None, "left no result")],
)
def test_run_after_a_failed_one_ends_without_an_attempt(
    task: Task, status: str | None, how: str
) -> None:
    ended(task, "a-1", "succeeded")
    if status:
        ended(task, "b-1", status)
    task.submit(SCRIPT, after=["a-1", "b-1"])
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["status"], result["code"], result["attempt"]) == ("cancelled", "Blocked", 0)
    assert result["message"] == f"blocked by b-1, which {how}"
    assert not task.has("attempts/1/start.json")
    assert task.text("logs/stdout.txt") == ""


def test_decided_outcome_of_a_blocked_run_is_kept(task: Task) -> None:
    task.submit(SCRIPT, after=["b-1"])
    ended(task, RUN, "failed")
    assert task.run() == 1
    assert task.json("result.json")["status"] == "failed"
