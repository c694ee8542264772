"""Trials that share a task: its ID, its trials, and its setting."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from runner.protocol.groups import RunGroup
from runner.protocol.paths import task_trial_ids
from runner.protocol.waiting_trials import WaitingTrials, task_trials_setting

STAMP = "-20261129-120000-aaaa"


def run(number: int) -> str:
    return f"train-{number:02d}{STAMP}"


@pytest.mark.parametrize(
    ("task_id", "most", "found"),
    [
        (run(8), 3, (run(8), run(9), run(10))),
        (run(8), 1, (run(8),)),
        (f"train{STAMP}", 3, (f"train{STAMP}",)),
        (f"a-9{STAMP}", 2, (f"a-9{STAMP}", f"a-10{STAMP}")),
    ],
)
def test_trials_of_a_task_have_the_next_numbers(
    task_id: str, most: int, found: tuple[str, ...]
) -> None:
    assert task_trial_ids(task_id, most) == found


def test_trials_of_a_sweep_are_dealt_to_tasks_in_their_order() -> None:
    names = [f"{number:02d}" for number in range(1, 6)]
    group = RunGroup(
        group_id=f"train{STAMP}",
        name="train",
        created=datetime(2026, 11, 29, tzinfo=UTC),
        job_id="job",
        pool="local",
        runs={**{name: run(int(name)) for name in names}, "merge": f"merge{STAMP}"},
        after=dict.fromkeys([*names, "merge"], ()),
        trials={name: {"n": name} for name in names},
    )
    tasks = group.tasks(2)
    assert [tasks[name] for name in names] == [run(1), run(1), run(3), run(3), run(5)]
    assert tasks["merge"] == f"merge{STAMP}"
    assert group.tasks(1) == dict(group.runs)


def waiting() -> WaitingTrials:
    common = {"batch": {"job_id": "a", "task_id": run(1), "task_trials": 3}}
    trials = {
        run(number): {
            "run_id": run(number),
            **({} if number <= 3 else {"batch": {"task_id": run(4)}}),
        }
        for number in range(1, 6)
    }
    return WaitingTrials(f"train{STAMP}", common, trials)


def test_waiting_trials_are_known_by_task() -> None:
    assert waiting().tasks() == {run(1): [run(1), run(2), run(3)], run(4): [run(4), run(5)]}


def test_requeued_trials_share_a_task_again_with_their_first_one() -> None:
    queued = waiting().requeue([run(2), run(3), run(5)], {"batch": {"job_id": "b"}})
    own = {each: (queued.document(each) or {})["batch"] for each in queued.trials}
    assert own[run(1)] == {"job_id": "a", "task_id": run(1), "task_trials": 3}
    assert own[run(2)] == own[run(3)] == {"job_id": "b", "task_id": run(2), "task_trials": 3}
    assert own[run(5)] == {"job_id": "b", "task_id": run(5), "task_trials": 3}
    for task_id, trials in queued.tasks().items():
        assert set(trials) <= set(task_trial_ids(task_id, 3))


def test_setting_of_a_task_has_only_what_differs_from_its_first_trial() -> None:
    first = {"runs": {"sas": "1"}, "data": {"sas": "d"}, "identity_client_id": None}
    later = {run(2): ({"run_id": run(2)}, {**first, "runs": {"sas": "2"}})}
    assert json.loads(task_trials_setting(first, later)) == [
        {"run_id": run(2), "run": {"run_id": run(2)}, "storage": {"runs": {"sas": "2"}}}
    ]
