"""One fault in the documents of a qualification turns one row red, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.features.qualify.criteria import (
    LOCAL_BOUNDS,
    ROWS,
    CapacityFigures,
    CostFigures,
    QualificationEvidence,
    StartTimeFigures,
    judge,
    with_bounds,
)
from runner.features.qualify.evidence import (
    ProbeRun,
    Signals,
    completion,
    fallback,
    observability,
    recovery,
)
from runner.features.qualify.probe.probe import chain
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptEnd, AttemptStart, RunResult

_T = 1_800_000_000.0  # seconds since the epoch, when the runs are submitted
_STEPS = 4
_EVICTED = _T + 20


def started(attempt: int, at: float) -> AttemptStart:
    return AttemptStart(attempt=attempt, started=datetime.fromtimestamp(at, UTC).isoformat())


def start(attempt: int, began: float, **more: Any) -> dict[str, Any]:
    base = {"attempt": attempt, "pool": "a", "node": "n", "began": began}
    return {**base, "from_step": 0, "saved": None, **more}


def probe_run(*starts: dict[str, Any], status: Any = "succeeded", **more: Any) -> ProbeRun:
    output = {"steps": _STEPS, "digest": chain(_STEPS), "starts": starts, **more}
    attempts = [started(n + 1, _T + 1) for n in range(len(starts))]
    result = RunResult(status=status, attempt=1)
    return ProbeRun("run", _T, _STEPS, result, json.dumps(output).encode(), attempts)


_MOVED = start(2, _EVICTED + 9, pool="b", from_step=3, saved=_EVICTED - 2)
_EVENTS = [
    json.dumps({"stage": stage, "state": state, "time": "", "message": ""})
    for stage, state in (("command", "start"), ("command", "end"), ("export", "end"))
]


@dataclass
class Documents:
    """What a good qualification finds. Each fault changes one of them."""

    undisturbed: list[ProbeRun] = field(
        default_factory=lambda: [probe_run(start(1, _T + 3)), probe_run(start(1, _T + 2))]
    )
    evicted: ProbeRun = field(
        default_factory=lambda: probe_run(
            start(1, _T + 2), start(2, _EVICTED + 5, from_step=3, saved=_EVICTED - 1)
        )
    )
    moved: ProbeRun = field(default_factory=lambda: probe_run(start(1, _T + 2), _MOVED))
    capacity: CapacityFigures = field(default_factory=lambda: CapacityFigures(2, 2, 12.0))
    cost: CostFigures = field(
        default_factory=lambda: CostFigures(0.002, 0.001, 20.0, "Standard_NC4as_T4_v3 (spot)")
    )
    signals: Signals = field(
        default_factory=lambda: Signals(
            _STEPS,
            "".join(f"step {n}\n" for n in range(1, _STEPS + 1)),
            [1.0, 2.0, 3.0, 4.0],
            ["{}"],
            _EVENTS,
            AttemptEnd(1, why="succeeded"),
            RunResult(status="failed", attempt=1, exit_code=1),
            "failed on purpose\n",
        )
    )

    def evidence(self) -> QualificationEvidence:
        first, warm = self.undisturbed
        return QualificationEvidence(
            completion(self.undisturbed),
            self.capacity,
            StartTimeFigures(first.start_s, warm.start_s),
            recovery("evicted", _EVICTED, self.evicted),
            fallback("evicted", "b", _EVICTED, self.moved),
            self.cost,
            observability(self.signals),
        )


Fault = Callable[[Documents], None]


def changed(name: str, **values: Any) -> Fault:
    """Return a fault that replaces fields of a document."""

    def fault(documents: Documents) -> None:
        setattr(documents, name, replace(getattr(documents, name), **values))

    return fault


def undisturbed(number: int, run: ProbeRun) -> Fault:
    def fault(documents: Documents) -> None:
        documents.undisturbed[number] = run

    return fault


def replaced(name: str, run: ProbeRun) -> Fault:
    return lambda documents: setattr(documents, name, run)


FAULTS: list[tuple[str, str, Fault]] = [
    ("completion", "wrong output", undisturbed(0, probe_run(start(1, _T + 3), digest="x"))),
    ("completion", "too few steps", undisturbed(0, probe_run(start(1, _T + 3), steps=1))),
    ("completion", "failed", undisturbed(1, probe_run(start(1, _T + 3), status="failed"))),
    (
        "capacity",
        "one node less",
        changed("capacity", came=1, seconds=None, why="AllocationFailed"),
    ),
    ("capacity", "too late", changed("capacity", seconds=91.0)),
    ("start time", "slow boot", undisturbed(0, probe_run(start(1, _T + 91)))),
    ("start time", "slow packages", undisturbed(1, probe_run(start(1, _T + 31)))),
    ("recovery", "lost checkpoint", replaced("evicted", probe_run(start(2, _EVICTED + 5)))),
    (
        "recovery",
        "old checkpoint",
        replaced("evicted", probe_run(start(2, _EVICTED + 5, from_step=1, saved=_EVICTED - 16))),
    ),
    (
        "recovery",
        "no node in time",
        replaced("evicted", probe_run(start(2, _EVICTED + 91, from_step=1, saved=_EVICTED))),
    ),
    ("recovery", "no attempt", replaced("evicted", ProbeRun("run", _T, _STEPS))),
    ("fallback", "stayed", replaced("moved", probe_run(start(2, _EVICTED + 9, pool="a")))),
    ("fallback", "dead pool", replaced("moved", ProbeRun("run", _T, _STEPS))),
    ("fallback", "late", replaced("moved", probe_run({**_MOVED, "began": _EVICTED + 121}))),
    ("cost per job", "unknown price", changed("cost", usd=None)),
    ("cost per job", "other price", changed("cost", usd=0.0031)),
    ("cost per job", "too expensive", changed("cost", usd=1.2, estimate=1.0)),
    ("cost per job", "no estimate", changed("cost", estimate=None)),
    ("observability", "logs", changed("signals", stdout="step 1\nstep 2\n")),
    ("observability", "metrics", changed("signals", values=[1.0, 2.0])),
    ("observability", "no error text", changed("signals", stderr="")),
    ("observability", "no exit reason", changed("signals", end=None)),
    ("observability", "no failed run", changed("signals", failed=None)),
    (
        "observability",
        "wrong exit code",
        changed("signals", failed=RunResult(status="failed", attempt=1)),
    ),
    ("observability", "system figures", changed("signals", system=[])),
    ("observability", "events", changed("signals", events=_EVENTS[:2])),
]


def test_good_documents_pass_every_row() -> None:
    rows = judge(Documents().evidence(), LOCAL_BOUNDS)
    assert [(row.name, row.state, row.why) for row in rows] == [(n, "passed", "") for n in ROWS]


@pytest.mark.parametrize(("row", "what", "fault"), FAULTS, ids=[f"{r}-{w}" for r, w, _ in FAULTS])
def test_one_fault_turns_its_row_red_and_no_other(row: str, what: str, fault: Fault) -> None:
    documents = Documents()
    fault(documents)
    rows = judge(documents.evidence(), LOCAL_BOUNDS)
    assert [each.name for each in rows if each.state != "passed"] == [row], what
    [red] = [each for each in rows if each.name == row]
    assert red.state == "failed"
    assert red.why


def test_every_row_has_a_fault() -> None:
    assert {row for row, _, _ in FAULTS} == {*ROWS}


def test_row_without_figures_is_not_measured_and_does_not_pass() -> None:
    found = QualificationEvidence(missing={"fallback": "it needs a second pool"})
    rows = {row.name: row for row in judge(found, LOCAL_BOUNDS)}
    assert {row.state for row in rows.values()} == {"not measured"}
    assert rows["fallback"].why == "it needs a second pool"
    assert rows["recovery"].why == "the qualification ended before it"


def test_pool_with_nodes_has_no_cold_start_and_keeps_the_warm_figure() -> None:
    figures = StartTimeFigures(None, 2.0, "cold: pool t4 had nodes before")
    [row] = [
        row
        for row in judge(QualificationEvidence(start=figures), LOCAL_BOUNDS)
        if row.name == "start time"
    ]
    assert (row.state, row.figure) == ("not measured", "warm 2 s")
    assert "had nodes before" in row.why
    slow = judge(QualificationEvidence(start=replace(figures, warm=31.0)), LOCAL_BOUNDS)
    assert slow[2].state == "failed"


def test_bounds_have_units_and_replace_the_defaults() -> None:
    found = with_bounds(LOCAL_BOUNDS, ("cold=10m", "cost=0.05", "lost=90"))
    assert (found.cold, found.cost, found.lost) == (600, 0.05, 90)
    assert found.warm == LOCAL_BOUNDS.warm


@pytest.mark.parametrize("text", ["cold", "cold=0", "boot=1m", "cost=x", "cost=inf", "cost=-1"])
def test_invalid_bound_is_refused(text: str) -> None:
    with pytest.raises(RunnerError, match="invalid --bound") as refused:
        with_bounds(LOCAL_BOUNDS, (text,))
    assert refused.value.code == "R-FLAG-VALUE"


def test_damaged_output_of_a_run_is_a_problem_of_that_run() -> None:
    for output in (b"{", b"[]", b'{"starts": [{"began": 1}]}', None):
        run = ProbeRun("run", _T, _STEPS, RunResult(status="succeeded", attempt=1), output)
        assert run.problem
        assert (run.starts, run.start_s) == ((), None)
