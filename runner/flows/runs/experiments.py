"""Summarise the runs of an experiment or a sweep: states, best run, failures, durations."""

from __future__ import annotations

import difflib
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.states import RunState
from runner.flows.runs.documents import runs_container
from runner.flows.runs.groups import list_group_ids
from runner.flows.runs.history import EVERY_RUN, RunFilter, RunRow, list_runs
from runner.flows.runs.ranking import MetricOrder, rank, with_metrics
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup, group_blob, parse_group

_FAILED = (RunState.FAILED, RunState.LOST)


@dataclass(frozen=True)
class Experiment:
    """The runs of one experiment that can be read, newest first."""

    name: str
    rows: tuple[RunRow, ...]

    @cached_property
    def states(self) -> Mapping[str, int]:
        """The number of runs in each state, in the order of a run's life."""
        counts = Counter(row.status.state for row in self.rows if row.status)
        return {state.value: counts[state] for state in RunState if counts[state]}

    @cached_property
    def main_metric(self) -> str | None:
        """The metric of the newest run that measured one."""
        names = (row.main_metric for row in self.rows)
        return next((name for name in names if name), None)

    @cached_property
    def failures(self) -> Mapping[str, list[RunRow]]:
        """The failed and lost runs by cause, the most frequent cause first."""
        found: dict[str, list[RunRow]] = {}
        for row in self.rows:
            if row.status and row.status.state in _FAILED:
                found.setdefault(row.status.reason.partition("\n")[0], []).append(row)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    @cached_property
    def durations_s(self) -> Mapping[str, float]:
        """Total, median and maximum of what the last attempts of ended runs took; empty if none."""
        took = [row.took_s for row in self.rows if row.took_s is not None]
        if not took:
            return {}
        return {"total": sum(took), "median": statistics.median(took), "longest": max(took)}

    def best(self, metric: str) -> RunRow | None:
        """Return the best of the runs that succeeded, by the last value of a metric, or None.

        Raises:
            RunnerError: R-METRIC-UNKNOWN, no run has this metric.
        """
        ranked = rank(self.rows, MetricOrder(metric))
        good = (row for row in ranked if row.status and row.status.state is RunState.SUCCEEDED)
        first = next(good, None)
        return first if first and math.isfinite(first.metrics.get(metric, math.nan)) else None


@dataclass(frozen=True)
class Leaderboard(Experiment):
    """The trials of a sweep, the best by `metric` first; in order of submission without one."""

    sweep: RunGroup
    metric: str | None


def list_sweeps(connection: Connection) -> Iterator[RunGroup]:
    """Yield the groups that are sweeps and can be read, newest first."""
    container = runs_container(connection)
    for group_id in list_group_ids(connection):
        content = container.read(group_blob(group_id))
        with suppress(RunnerError):
            group = parse_group(content or b"", group_id)
            if group.trials:
                yield group


def load_leaderboard(
    connection: Connection, sweep: RunGroup, metric: str | None = None
) -> Leaderboard:
    """Return the trials of a sweep as they are now.

    Args:
        connection: the services.
        sweep: a group with trials.
        metric: the metric to sort by; None means that of the recipe, or the first measured one.

    Raises:
        RunnerError: R-METRIC-UNKNOWN, no trial has this metric.
    """
    place = {run_id: number for number, run_id in enumerate(sweep.runs.values())}
    found = list_runs(connection, limit=None, ids=list(place)).rows
    rows = in_parallel(lambda row: with_metrics(connection, row), found)
    rows = sorted(rows, key=lambda row: place[row.run_id])
    metric = metric or next(filter(None, (row.main_metric for row in rows)), None)
    if metric is not None:
        rows = rank(rows, MetricOrder(metric))
    return Leaderboard(sweep.group_id, tuple(rows), sweep, metric)


def list_experiments(connection: Connection) -> list[Experiment]:
    """Return all experiments, the one with the newest run first."""
    return _grouped(connection, EVERY_RUN)


def find_experiment(connection: Connection, name: str) -> Experiment:
    """Return an experiment. Raise R-EXPERIMENT-UNKNOWN if it has no runs."""
    found = _grouped(connection, RunFilter(name))
    if found:
        return found[0]
    known = [each.name for each in list_experiments(connection)]
    near = difflib.get_close_matches(name, known, n=1)
    raise RunnerError(
        "R-EXPERIMENT-UNKNOWN",
        f"no run belongs to experiment {name!r}",
        why=f"experiments are {', '.join(known[:10])}" if known else "there are no runs yet",
        fix=f"runner experiments show {near[0]}" if near else "runner experiments ls",
    )


def _grouped(connection: Connection, only: RunFilter) -> list[Experiment]:
    groups: dict[str, list[RunRow]] = {}
    for row in list_runs(connection, limit=None, only=only).rows:
        if row.record is not None:
            groups.setdefault(row.record.experiment, []).append(row)
    return [Experiment(name, tuple(rows)) for name, rows in groups.items()]
