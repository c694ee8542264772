"""Workloads and traces from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.features.simulation.scenario import (
    ScenarioError,
    TraceEntry,
    load_changes,
    load_workload,
)


def test_a_workload_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("arrival,duration,slots\n1h,30m,2\n0,90,\n")
    work = load_workload(path)
    assert (work.arrivals_ms, work.durations_ms) == ([0, 3_600_000], [90_000, 1_800_000])
    assert (work.slots, work.slot_ms) == ([1, 2], 3_690_000)
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(
        '{"arrival": 0, "duration": "90s"}\n\n{"arrival": "1h", "duration": 1800, "slots": 2}\n'
    )
    assert load_workload(lines) == work


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no tasks"),
        ("duration\n3\n", "missing 'arrival'"),
        ("arrival,duration\n5,-3\n", "line 2: 'duration' is '-3'"),
        ("arrival,duration\n-5,3\n", "line 2: 'arrival' is '-5'"),
        ("arrival,duration\n5,nan\n", "line 2: 'duration' is 'nan'"),
        ("arrival,duration\n5,soon\n", "line 2: "),
        ("arrival,duration,color\n5,1,red\n", "line 2: unknown color"),
        ("arrival,duration,slots\n5,1,0.5\n", "line 2: "),
        (
            '{"arrival": 1, "duration": 3, "slots": 900}',
            "line 1: 'slots' must be a whole number from 1",
        ),
        ('{"arrival": 1}\n', "line 1: missing 'duration'"),
        ("{arrival: 1}\n", "line 1: not JSON"),
        ('{"arrival": 1, "duration": 3, "slots": 0}', "line 1: 'slots'"),
        ('{"arrival": 1, "duration": 3, "slots": true}', "line 1: 'slots'"),
        ('[{"arrival": 1, "duration": 3}]', "one JSON object per line"),
    ],
)
def test_an_invalid_workload_names_the_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tasks"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=why):
        load_workload(path)


def test_a_missing_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_workload(tmp_path / "none.csv")


def test_a_trace_of_the_emulator_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"time": 300, "capacity": 0, "notice": 0}\n{"time": 1.5, "evict": 2}\n')
    assert load_changes(path) == (
        TraceEntry(1.5, evict=2),
        TraceEntry(300, capacity=0, notice_s=0),
    )
    path.write_text('{"time": -5, "evict": 2}\n')
    with pytest.raises(ScenarioError, match="line 1"):
        load_changes(path)
