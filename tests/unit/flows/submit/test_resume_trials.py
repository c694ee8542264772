"""A trial of a sweep is resumed by one client only."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from runner.protocol.groups import LaterRun, RunGroup

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
