"""The list of runs: filtered, sorted and grouped by the address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.states import RunState, parse_states
from runner.core.units import parse_since
from runner.flows.runs.history import (
    GroupedHistory,
    RunFilter,
    RunHistory,
    SweepLine,
    list_grouped,
    list_runs,
)
from runner.flows.runs.rows import RunRow
from runner.flows.sweeps.ranking import MetricOrder, compared_metric, list_ranked, rank
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.protocol.commands import get_parameter
from runner.views.runs import RunLine, run_line

_ROWS = 100
_MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One row of the table: a run, or a sweep with the states of its trials."""

    run_id: str
    row: RunRow | None
    sweep: SweepLine | None = None
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """What the address of the list says."""

    only: RunFilter
    sort: str
    limit: int
    text: str
    trials: bool
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, ask: Ask) -> RunsQuery:
        """Read the query of the address. Raise RunnerError for an invalid value."""
        since = ask.text("since")
        only = RunFilter(
            ask.text("experiment") or None,
            parse_states(ask.texts("status")),
            parse_since(since, datetime.now(UTC)) if since else None,
        )
        return cls(
            only,
            ask.text("sort"),
            ask.number("n", _ROWS, low=1, high=_MOST_ROWS),
            ask.text("q").lower(),
            ask.text("trials") == "1",
            tuple(dict.fromkeys(ask.texts("col"))),
        )


def read_lines(connection: Connection, query: RunsQuery) -> tuple[list[ListedRun], int]:
    """Return the rows of the list, and the number of older runs that it omits."""
    limit = None if query.text else query.limit
    found: RunHistory | GroupedHistory
    if query.sort:
        found = list_ranked(connection, MetricOrder.parse(query.sort), limit=limit, only=query.only)
    elif query.trials or query.only.states or query.columns:
        found = list_runs(connection, limit=limit, only=query.only)
    else:
        found = list_grouped(connection, limit=limit, only=query.only)
    each = found.rows if isinstance(found, RunHistory) else found.lines
    lines = [_sweep(one) if isinstance(one, SweepLine) else _run(one) for one in each]
    if query.text:
        lines = [line for line in lines if query.text in _text(line)]
    return lines[: query.limit], found.older + max(len(lines) - query.limit, 0)


def _run(row: RunRow) -> ListedRun:
    name = row.shown_metric
    return ListedRun(row.run_id, row, metric=name, value=row.metrics[name] if name else None)


def _sweep(line: SweepLine) -> ListedRun:
    name = compared_metric(line.rows)
    first = line.rows[0] if line.rows else None
    if name is None or line.counted:
        return ListedRun(line.group_id, first, line)
    best = rank(line.rows, MetricOrder(name))[0]
    return ListedRun(line.group_id, first, line, name, best.metrics.get(name))


def _text(line: ListedRun) -> str:
    spec = line.row.spec if line.row else None
    words = [line.run_id, line.row.state if line.row else "", line.row.reason if line.row else ""]
    if spec is not None:
        words += [spec.recipe, spec.experiment, spec.pool]
        words += [f"{name}={value}" for name, value in spec.all_params.items()]
    return " ".join(words).lower()


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `runs.html`."""
    query = RunsQuery.parse(ask)
    key = ("runs", str(ask.query))
    lines, older = await ask.source.read(key, lambda connection: read_lines(connection, query))
    experiments = {line.row.spec.experiment for line in lines if line.row and line.row.spec}
    params = {name for line in lines if line.row for name in line.row.params}
    return {
        "title": "Runs",
        "lines": lines,
        "older": older,
        "wanted": query,
        "limit_step": max(query.limit * 2, 2 * _ROWS),
        "states": [state.value for state in RunState],
        "experiments": sorted(experiments | ({query.only.experiment or ""} - {""})),
        "params": sorted(params),
        "get_parameter": get_parameter,
    }


async def read_documents(ask: Ask) -> list[RunLine]:
    """Return the runs that the query selects, newest first."""
    query = RunsQuery.parse(ask)
    found = await ask.source.read(
        ("api runs", str(ask.query)),
        lambda connection: list_runs(connection, limit=query.limit, only=query.only),
    )
    return [run_line(row) for row in found.rows]


ENDPOINTS = (
    Endpoint(
        "/runs",
        "List runs, newest first.",
        list[RunLine],
        read_documents,
        (
            ("experiment", "only runs of this experiment"),
            ("status", "only runs in these states: failed,lost"),
            ("since", "only runs submitted since then: 7d, 12h, or a date"),
            ("n", "maximum number of runs"),
        ),
        "runner ps",
    ),
)
PAGE = WebPage("/runs", "runs", read, label="Runs")
