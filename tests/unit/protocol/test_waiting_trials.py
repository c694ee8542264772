"""What the run.json of a trial will be, from the document of its sweep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from runner.protocol.waiting_trials import (
    WaitingTrials,
    derive,
    differences,
    parse_trial_setting,
    trial_setting,
)

GROUP = "net-20261124-120000-aaaa"
ONE, TWO = "net-1-20261124-120000-aaaa", "net-2-20261124-120000-aaaa"
NOW = datetime(2026, 11, 24, 13, tzinfo=UTC)


def run(run_id: str, trial: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "command": ["python", "train.py", *map(str, trial.values())],
        "params": trial,
        "batch": {"job_id": "j", "task_id": run_id},
        "trial": {"name": run_id[4:5], "params": trial, "goal": "min"},
        **more,
    }


@pytest.mark.parametrize(
    "other",
    [
        run(TWO, {"lr": 0.2, "momentum": 0.9}),
        run(TWO, {"lr": 0.1}),  # a conditional parameter is missing
        run(TWO, {}),
        run(TWO, {"lr": 0.1, "momentum": 0.9}, expect={"loss": {"max": 1}}),
    ],
)
def test_document_is_derived_from_its_differences(other: dict[str, Any]) -> None:
    common = run(ONE, {"lr": 0.1, "momentum": 0.9})
    changes = differences(common, other)
    assert derive(common, changes) == other
    assert "goal" not in changes["trial"]
    assert parse_trial_setting(trial_setting(GROUP, changes)) == (GROUP, changes)


def test_cancelled_trial_keeps_its_first_outcome() -> None:
    common = run(ONE, {"lr": 0.1})
    waiting = WaitingTrials(GROUP, common, {ONE: {}, TWO: {"run_id": TWO}})
    stopped = waiting.cancel([ONE, "other"], NOW, "enough").cancel([ONE], NOW, "again")
    found = WaitingTrials.parse(stopped.to_bytes())
    assert found == stopped
    result = stopped.result(ONE)
    assert result is not None
    assert (result.status, result.message, result.ended) == ("cancelled", "enough", NOW)
    assert stopped.result(TWO) is None
    left = stopped.without([ONE])
    assert (left.document(ONE), left.result(ONE)) == (None, None)
    assert (left.document(TWO) or {})["run_id"] == TWO


def test_cancelled_trial_that_is_requeued_waits_in_another_job() -> None:
    common = {**run(ONE, {"lr": 0.1}), "batch": {"job_id": "old", "pool": "t4", "task_id": ONE}}
    trials = {ONE: {}, TWO: {"run_id": TWO, "batch": {"task_id": TWO}}}
    stopped = WaitingTrials(GROUP, common, trials).cancel([ONE, TWO], NOW, "enough")
    found = stopped.requeue([TWO], {"batch": {"job_id": "new"}, "agent": {"sha256": "a"}})
    assert (found.job_of(ONE), found.job_of(TWO)) == ("old", "new")
    assert found.result(ONE) is not None
    assert found.result(TWO) is None
    document = found.document(TWO) or {}
    assert document["batch"] == {"job_id": "new", "pool": "t4", "task_id": TWO}
    assert document["agent"] == {"sha256": "a"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 99}', b'{"format": 1, "trials": 3}'])
def test_damaged_document_has_no_trials(content: bytes) -> None:
    assert WaitingTrials.parse(content) is None
