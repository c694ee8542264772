"""The costs of a period equal those of the whole ledger, though few earlier runs are read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.pricing.ledger import Ledger, RunUsage, compute_ledger
from runner.core.states import RunState, RunStatus
from runner.flows.costs import report
from runner.flows.costs.report import CostQuery, _NeededRuns  # pyright: ignore[reportPrivateUsage]
from runner.flows.runs.rows import RunRow
from runner.protocol.paths import make_run_id, run_id_suffix
from runner.protocol.usage import AttemptUsage, to_milliseconds

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
Row = tuple[RunRow, RunUsage]


def ms(moment: datetime) -> int:
    return to_milliseconds(moment) or 0


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Return runs on few nodes: long and short ones, which waited, and nodes that live long."""
    rows: list[Row] = []
    boots = {f"n{n}": draw(st.integers(0, 24 * 120)) for n in range(3)}  # hours ago
    for number in range(draw(st.integers(1, 25))):
        submitted = NOW - draw(st.integers(1, 24 * 120)) * HOUR
        started = submitted + draw(st.integers(0, 24 * 3)) * HOUR
        ended = min(started + draw(st.integers(1, 24 * 3)) * HOUR, NOW)
        started = min(started, ended)
        node = draw(st.sampled_from(sorted(boots)))
        boot = NOW - boots[node] * HOUR
        if boot > started:  # an earlier life of the node
            boot = started - draw(st.integers(0, 2)) * HOUR
        run_id = make_run_id("r", submitted, run_id_suffix(str(number)))
        usage = AttemptUsage(
            1, 0, node, False, None, ms(boot), None, ms(started), ms(started), ms(ended),
            ms(ended), "succeeded",
        )  # fmt: skip
        status = RunStatus(RunState.SUCCEEDED)
        row = RunRow(run_id, None, status, None)
        rows.append((row, RunUsage(run_id, "pool", "size", True, "succeeded", (usage,))))
    return sorted(rows, key=lambda each: each[0].run_id[2:17], reverse=True)


class Past(report._Past):  # pyright: ignore[reportPrivateUsage]
    """The runs of a container, in memory."""

    def __init__(self, rows: list[Row]) -> None:
        self.connection: Any = None
        self._rows: Iterator[RunRow] = iter([row for row, _ in rows])
        self._next = None
        self.is_read = False


def needed(rows: list[Row], since: datetime, patch: pytest.MonkeyPatch) -> _NeededRuns:
    usages = {row.run_id: usage for row, usage in rows}
    patch.setattr(report, "_usages", lambda _, found: [usages[row.run_id] for row in found])
    patch.setattr(report, "find_unfinished", lambda *_: [])
    found = _NeededRuns([Past(rows)], CostQuery(since=since), NOW, False)
    found.read()
    return found


def ledger(usages: list[RunUsage]) -> Ledger:
    return compute_ledger(usages, lambda *_: 360_000, now_ms=ms(NOW))


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(1, 24 * 60))
def test_sums_of_a_period_equal_those_of_the_whole_ledger(rows: list[Row], hours: int) -> None:
    since = NOW - hours * HOUR
    with pytest.MonkeyPatch.context() as patch:
        found = needed(rows, since, patch)
    whole, part = ledger([usage for _, usage in rows]), ledger([*found.usages.values()])
    chosen = [row.run_id for row, _ in rows if report.submission_time(row.run_id) >= since]  # type: ignore[operator]
    assert {key: whole.runs.get(key) for key in chosen} == {
        key: part.runs.get(key) for key in chosen
    }


def test_old_runs_of_nodes_that_are_gone_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    for day in range(100):
        submitted = NOW - timedelta(days=day, hours=1)
        run_id = make_run_id("r", submitted, "aaaa")
        start, end = ms(submitted), ms(submitted + HOUR / 2)
        usage = AttemptUsage(
            1, 0, "n", False, None, start, None, start, start, end, end, "succeeded"
        )
        row = RunRow(run_id, None, RunStatus(RunState.SUCCEEDED), None)
        rows.append((row, RunUsage(run_id, "pool", "size", True, "succeeded", (usage,))))
    found = needed(rows, NOW - timedelta(days=10), monkeypatch)
    assert 10 <= len(found.rows) <= 25, "the period and two weeks before"


def test_everything_is_read_if_the_start_of_a_node_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[Row] = []
    for day in range(100):
        submitted = NOW - timedelta(days=day, hours=1)
        run_id = make_run_id("r", submitted, "aaaa")
        usage = AttemptUsage(1, 0, "n", started=ms(submitted), ended=ms(submitted + HOUR / 2))
        row = RunRow(run_id, None, RunStatus(RunState.SUCCEEDED), None)
        rows.append((row, RunUsage(run_id, "pool", "size", True, "succeeded", (usage,))))
    assert len(needed(rows, NOW - timedelta(days=10), monkeypatch).rows) == 100
