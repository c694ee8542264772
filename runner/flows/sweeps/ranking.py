"""Sort runs by a metric, and summarise the runs of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.yaml_files import did_you_mean
from runner.flows.runs.documents import load_metrics
from runner.flows.runs.history import EVERY_RUN, RunFilter, RunHistory, list_runs
from runner.flows.runs.rows import RunRow
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import Goal, default_goal


@dataclass(frozen=True, slots=True)
class MetricOrder:
    """An order of runs by the last value of a metric.

    Attributes:
        largest_first: None means the best first, by the goal of the metric.
        reverse: True reverses the order.
    """

    metric: str
    largest_first: bool | None = None
    reverse: bool = False

    @classmethod
    def parse(cls, text: str, *, reverse: bool = False) -> MetricOrder:
        """Read `loss` (best first), `-loss` (largest first) or `+loss` (smallest first)."""
        sign = text[:1]
        if sign in ("-", "+"):
            return cls(text[1:], sign == "-", reverse)
        return cls(text, None, reverse)


def list_ranked(
    connection: Connection,
    order: MetricOrder,
    *,
    limit: int | None,
    only: RunFilter = EVERY_RUN,
    ids: Sequence[str] | None = None,
) -> RunHistory:
    """Return the first runs in an order, at most `limit`. Runs without the metric come last.

    Metrics are read only for runs without a result.

    Raises:
        RunnerError: R-METRIC-UNKNOWN, no run that matches has this metric.
    """
    rows = list_runs(connection, limit=None, only=only, ids=ids).rows
    ordered = rank(in_parallel(lambda row: with_metrics(connection, row), rows), order)
    shown = ordered[:limit]
    return RunHistory(tuple(shown), len(ordered) - len(shown))


def rank(rows: Sequence[RunRow], order: MetricOrder) -> list[RunRow]:
    """Return the runs in order; those with NaN and then those without the metric come last."""
    name = order.metric
    known = {metric for row in rows for metric in row.metrics}
    if known and name not in known:
        raise RunnerError(
            "R-METRIC-UNKNOWN",
            f"no run has a metric {name!r}",
            why=f"metrics: {', '.join(sorted(known))}",
            fix=did_you_mean(name, sorted(known)) or "use one of these metrics",
        )
    largest = order.largest_first
    if largest is None:
        largest = goal_of(rows, name) == "max"
    sign = -1 if largest != order.reverse else 1

    def key(row: RunRow) -> tuple[int, float]:
        value = row.metrics.get(name)
        if value is None or math.isnan(value):
            return (2 if value is None else 1, 0)
        return (0, sign * value)

    return sorted(rows, key=key)


def compared_metric(rows: Sequence[RunRow]) -> str | None:
    """Return the metric that compares the trials of a sweep, or None if no trial measured it.

    If the sweep names none, it is the first clear metric of a trial.
    """
    named = declared_metric(rows)
    if named is not None:
        return named if any(named in row.metrics for row in rows) else None
    return next(filter(None, (row.main_metric for row in rows)), None)


def declared_metric(rows: Sequence[RunRow]) -> str | None:
    """Return the metric of a sweep, or None if its submission named none."""
    wanted = ((row.spec.trial or {}).get("metric") for row in rows if row.spec)
    named = next(filter(None, wanted), None)
    return None if named is None else str(named)


def goal_of(rows: Iterable[RunRow], metric: str) -> Goal:
    """Return the goal of the newest run that declares one, or the default for the metric."""
    for row in rows:
        if row.spec and (goal := row.spec.goals.get(metric)):
            return goal
    return default_goal(metric)


def with_metrics(connection: Connection, row: RunRow) -> RunRow:
    """Add the metrics of a run whose result has none, because it is running or was stopped."""
    stopped = row.result is None or row.result.status == "cancelled"
    if row.spec is None or not row.attempts or not stopped:
        return row
    found = load_metrics(connection, row.spec)
    return replace(row, measured={each.name: each.last for each in found})
