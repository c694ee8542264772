"""A trial of a sweep is resumed by one client only."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.planning.repeat import Repetition
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.submit import resume_sweep
from runner.flows.submit.pipeline import RepeatRequest
from runner.flows.submit.resume_sweep import SweepAgain
from runner.protocol.errors import RunnerError
from runner.protocol.groups import LaterRun, RunGroup
from runner.protocol.run_spec import RunSpec

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
SWEEP = RunGroup(
    group_id="net-20261124-120000-aaaa",
    name="net",
    created=NOW,
    job_id="net-20261124-120000-aaaa",
    pool="t4",
    runs={"1": "net-1-20261124-120000-bbbb", "2": "net-2-20261124-120000-cccc"},
    after={"1": (), "2": ()},
    trials={"1": {"lr": 0.1}, "2": {"lr": 0.2}},
)


def test_sweep_lists_the_newest_and_earlier_runs_of_each_trial() -> None:
    later = [
        LaterRun("2", 3, "net-2-20261124-140000-eeee", NOW),
        LaterRun("2", 2, "net-2-20261124-130000-dddd", NOW),
        LaterRun("9", 2, "net-9-20261124-130000-ffff", NOW),
    ]
    found = SWEEP.with_later(later)
    assert found.runs == {"1": SWEEP.runs["1"], "2": "net-2-20261124-140000-eeee"}
    assert found.earlier == {"2": (SWEEP.runs["2"], "net-2-20261124-130000-dddd")}
    assert found.to_json()["tasks"].keys() == {"1", "2"}


def test_later_run_survives_writing_and_reading_and_damage_is_ignored() -> None:

    later = LaterRun("07", 2, "net-07-20261124-130000-dddd", NOW)
    blob = later.blob(SWEEP.group_id)
    assert LaterRun.parse(blob, json.dumps(later.to_json()).encode()) == later
    assert LaterRun.parse(blob, b"{") is None
    assert LaterRun.parse("sweeps/x/runs/odd", b'{"run_id": "x", "created": "2026"}') is None


@pytest.fixture
def submission() -> SweepAgain:
    keys = {"batch": "a2V5", "storage": "a2V5"}
    return SweepAgain(Connection(local_outputs(LocalState(20001, 20002, 1, 1)), keys), SWEEP)


def test_trials_look_up_their_job_and_code_once(
    submission: SweepAgain, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []  # the job that each submission got, or ""
    job = "net-2"

    def submit(_: Connection, request: RepeatRequest, __: Any) -> RunSpec:
        found.append(request.prepared.job_id if request.prepared else "")
        if request.spec.recipe == "broken":
            raise RunnerError("R-REPEAT-CODE", "the code is gone")
        return replace(request.spec, job_id=job, agent_sha256="a" * 64)

    monkeypatch.setattr(resume_sweep, "submit_again", submit)
    net = RunSpec(run_id="net", pool="t4", job_id="net")

    def submit_record(spec: RunSpec) -> RunSpec:
        return submission.submit(RepeatRequest(spec, Repetition("retry"), group=SWEEP))

    with pytest.raises(RunnerError):
        submit_record(replace(net, recipe="broken"))
    assert [submit_record(net).job_id for _ in range(3)] == ["net-2"] * 3
    assert found == ["", "", "net-2", "net-2"], "a submission that failed has found nothing"
    submit_record(replace(net, pool="other"))
    assert found[4:] == [""], "another pool has another job"
    job = "net-3"  # the job was closed, and replaced
    submit_record(net)
    submit_record(net)
    assert found[5:] == ["net-2", "net-3"]
    submit_record(replace(net, max_cost_micros=1))
    assert found[7:] == [""], "a trial with a cost cap has a separate job"


def test_trials_that_get_a_cap_from_a_budget_have_separate_jobs(
    submission: SweepAgain, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[RunSpec | None] = []

    def submit(_: Connection, request: RepeatRequest, __: Any) -> RunSpec:
        found.append(request.prepared)
        return replace(request.spec, job_id="own", max_cost_micros=1_470_000)

    monkeypatch.setattr(resume_sweep, "submit_again", submit)
    for name in ("net-1", "net-2"):
        spec = RunSpec(run_id=name, pool="t4", job_id="net")
        submission.submit(RepeatRequest(spec, Repetition("retry"), group=SWEEP))
    assert found == [None, None], "the job of a trial ends when its own cap is used up"
