"""The evictions of `--evict`: the same text gives the same ones, and a wrong one is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.rehearsal import plan_rehearsal
from runner.protocol.errors import RunnerError


def test_the_same_seed_gives_the_same_evictions() -> None:
    planned = plan_rehearsal("seed=7,mtbf=10m")["evictions"]
    assert plan_rehearsal(" mtbf = 600, seed=7")["evictions"] == planned
    assert plan_rehearsal("seed=8,mtbf=10m")["evictions"] != planned
    assert sum(after for after, *_ in planned) / len(planned) == pytest.approx(600, rel=0.3)
    short = plan_rehearsal("seed=7,mtbf=10m,count=3,notice=0,away=1m")["evictions"]
    assert short == [[after, 0, 60] for after, *_ in planned[:3]]


def test_times_of_a_trace_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"time": 100, "evict": 1}\n{"time": 130.5, "evict": 1, "notice": 5}\n')
    assert plan_rehearsal(str(path))["evictions"] == [[100, None, None], [30.5, 5, None]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed=7", "missing 'mtbf'"),
        ("mtbf=soon", "'mtbf': 'soon' is not a duration"),
        ("mtbf=0", "'mtbf' is 0: allowed: 1 s"),
        ("mtbf=10m,seed=-1", "'seed' is '-1'"),
        ("mtbf=10m,mtbf=5m", "duplicate 'mtbf'"),
        ("mtbf=10m,rate=5", "unknown 'rate=5': allowed: seed, mtbf"),
        ("mtbf=10m,count=0", "'count' is 0: allowed: 1 to 1000"),
        ("mtbf=10m,", "unknown ''"),
        ("nowhere.jsonl", "cannot be read"),
    ],
)
def test_an_invalid_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(RunnerError) as caught:
        plan_rehearsal(text)
    assert why in caught.value.summary


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"time": 9, "evict": 1}\n{"time": 5, "evict": 1}', "line 2: time 5 is before 9"),
        ('{"time": -9, "evict": 1}', "line 1: 'time' is -9"),
        ('{"time": 9, "evict": 1}\n{"evict": 1}', "line 2: it has no 'time'"),
        ('{"time": 9, "evict": 1}\n{"time": 9, "ev', "line 2: not JSON"),
        ('{"time": 9, "evict": 2}', "each entry of a rehearsal evicts one node"),
        ('{"time": 9, "capacity": 0}', "each entry of a rehearsal evicts one node"),
        ("", "no entries"),
    ],
)
def test_an_invalid_trace_names_the_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(RunnerError) as caught:
        plan_rehearsal(str(path))
    assert why in caught.value.summary
