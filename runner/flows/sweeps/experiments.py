"""Summarise the runs of an experiment or a sweep: states, best run, failures, durations."""

from __future__ import annotations

import difflib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.curves import html_page
from runner.core.planning.short_trials import ShortTrials, advise_trials_per_task
from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.ledger import EVICTED, NodeCosts
from runner.core.states import RunState, WaitCause
from runner.core.sweep_plots import PlottedTrial, draw_sweep
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.runs.group_documents import list_group_ids, with_later_runs
from runner.flows.runs.history import EVERY_RUN, RunFilter, list_runs, with_commands
from runner.flows.runs.rows import RunRow, by_failure, shown_states
from runner.flows.sweeps.ranking import (
    MetricOrder,
    compared_metric,
    declared_metric,
    goal_of,
    rank,
    with_metrics,
)
from runner.protocol.codec import JsonDocument
from runner.protocol.commands import swept_parameters
from runner.protocol.errors import RunnerError
from runner.protocol.groups import (
    MERGE_TASK,
    PAUSED_FOLDER,
    SUBMITTING_FOLDER,
    RunGroup,
    group_blob,
    parse_group,
)
from runner.protocol.sweeps import SWEEP_FAILED, TrialReport, reports_folder

_FAILED = (RunState.FAILED, RunState.LOST)
_ENDED = ("failed", "lost", "cancelled")
_CAUSES = 3  # number of causes that are listed below a leaderboard
_NEWEST_RUNS = 1000  # whose experiments a completion offers


@dataclass(frozen=True)
class Experiment:
    """The readable runs of one experiment, newest first."""

    name: str
    rows: tuple[RunRow, ...]

    @cached_property
    def states(self) -> Mapping[str, int]:
        """The number of runs in each state, in the order of a run's life."""
        counts = Counter(row.state for row in self.rows)
        return {state.value: counts[state] for state in RunState if counts[state]}

    @cached_property
    def shown_states(self) -> dict[str, int]:
        """The number of runs in each state, which are also `paused` or `stopped early`."""
        return shown_states(self.rows)

    @cached_property
    def main_metric(self) -> str | None:
        """The main metric of the newest run that has one."""
        names = (row.main_metric for row in self.rows)
        return next((name for name in names if name), None)

    @property
    def metric_problem(self) -> str:
        """Why the runs cannot be ranked without a choice of the metric, or an empty string."""
        measured = {name for row in self.rows for name in row.metrics}
        return "" if self.main_metric or not measured else _unclear(measured)

    @cached_property
    def failures(self) -> Mapping[str, list[RunRow]]:
        """The failed and lost runs by cause, the most frequent cause first; see `by_failure`."""
        return by_failure(row for row in self.rows if row.state in _FAILED)

    @cached_property
    def durations_s(self) -> Mapping[str, float]:
        """Total, median and maximum duration of the ended runs; empty if none."""
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
        first = next((row for row in ranked if row.state == RunState.SUCCEEDED), None)
        return first if first and math.isfinite(first.metrics.get(metric, math.nan)) else None


@dataclass(frozen=True)
class Leaderboard(Experiment):
    """The trials of a sweep, the best by `metric` first, else in order of submission.

    Attributes:
        metric: The metric that sorts the trials, or None.
        merge: The run of the merge task, or None.
        wanted: The metric by which the sweep compares its trials; they may report other metrics.
        is_submitting: True until the client that submits the sweep has added all tasks.
        pause: The pause of trials that have ended, and cannot be started again before it ends.
    """

    sweep: RunGroup
    metric: str | None
    merge: RunRow | None = None
    wanted: str | None = None
    is_submitting: bool = False
    pause: WaitCause | None = None

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The names of the trials by run ID."""
        newest = self.sweep.trial_runs.items()
        earlier = ((name, run) for name, runs in self.sweep.earlier.items() for run in runs)
        return {run_id: name for name, run_id in (*earlier, *newest)}

    def params(self, row: RunRow) -> dict[str, Any]:
        """Return the swept parameters of a trial; a sampler chooses them when it starts."""
        decided = row.spec.trial if row.spec else None
        drawn = self.sweep.trials.get(self.names[row.run_id], {})
        return swept_parameters(row.params, (decided or {}).get("params") or drawn)

    @property
    def cause(self) -> WaitCause | None:
        """The most frequent cause of the wait for an action of the user, or None."""
        causes = (row.status.cause for row in self.rows if row.status and row.status.stuck)
        counts = Counter((each.code, each.message, each.fix) for each in causes if each)
        if not counts:
            return self.pause
        code, message, fix = counts.most_common(1)[0][0]
        return WaitCause(code, message, fix)

    @cached_property
    def measured(self) -> frozenset[str]:
        """The names of the values that the trials which succeeded reported."""
        good = (row for row in self.rows if row.state == RunState.SUCCEEDED)
        return frozenset(name for row in good for name in row.metrics)

    @property
    def metric_problem(self) -> str:
        """Why no succeeded trial can be compared by the metric of the sweep.

        Empty if one can be compared, or if no trial has succeeded yet.
        """
        ended = [row for row in self.rows if row.state == RunState.SUCCEEDED]
        name, known = self.wanted or self.metric, sorted(self.measured)
        finite = sorted({n for row in ended for n, v in row.metrics.items() if math.isfinite(v)})
        if not ended or name in finite:
            return ""
        if name is None and known:
            return _unclear(known)
        if name is None or name not in known:
            problem, others = f"no trial reported {name or 'a metric'}", known
            example = name or "loss"
            fix = f"print it like `{example}: 0.1`, or write it to $RUNNER_METRICS_FILE"
        else:
            problem, others = f"no trial that succeeded has a finite value of {name}", finite
            fix = "correct the script, and start another sweep"
        if others:
            return f"{problem}; --metric takes one of {', '.join(others)}"
        return f"{problem}: {fix}"

    def check_metric(self) -> None:
        """Raise RunnerError (R-METRIC-UNCLEAR) if trials reported values, but no clear metric."""
        if self.metric is None and self.measured:
            raise RunnerError(
                "R-METRIC-UNCLEAR",
                f"the trials of {self.sweep.group_id} cannot be ranked",
                why=self.metric_problem,
                fix=f"runner sweep best {self.sweep.group_id} --metric NAME",
            )

    @property
    def problems(self) -> list[str]:
        """Why trials ended without success, the most frequent cause first, with the next step."""
        found = [
            (state, reason, rows)
            for state in _ENDED
            for reason, rows in by_failure(r for r in self.rows if r.shown_state == state).items()
        ]
        lines: list[str] = []
        for state, reason, rows in sorted(found, key=lambda each: -len(each[2])):
            cause = reason if reason.startswith(state) else f"{state}: {reason}"
            more = f"   details: runner why {rows[0].run_id}" if state == "failed" else ""
            lines.append(f"{len(rows)} {cause}{more}")
        if left := len(lines[_CAUSES:]):
            lines = [*lines[:_CAUSES], f"and {left} other causes: runner ps --trials"]
        again = f"runner sweep resume {self.sweep.group_id}"
        if self.is_submitting:
            lines.append(
                "not all runs were submitted: the submission is in progress, or it was interrupted"
            )
            lines.append(f"to complete an interrupted submission: {again}")
        elif not self.pause and any(map(_may_start_again, self.rows)):
            lines.append(f"to start them again with the same code: {again}")
        return lines


def short_trials(board: Leaderboard) -> ShortTrials | None:
    """Return advice on `trials_per_task` from the trials that had a task each, or None."""
    return advise_trials_per_task(
        (row.result.started, row.result.ended)
        for row in board.rows
        if row.spec is not None and row.spec.task_trials == row.spec.nodes == row.attempts == 1
        if row.spec.image is None and row.state == RunState.SUCCEEDED
        if row.result is not None and row.result.started and row.result.ended
    )


def list_sweeps(connection: Connection) -> Iterator[RunGroup]:
    """Yield the readable sweeps, newest first."""
    return (found for _, found in iterate_sweeps(connection) if isinstance(found, RunGroup))


def iterate_sweeps(connection: Connection) -> Iterator[tuple[str, RunGroup | RunnerError]]:
    """Yield ID and document of each sweep, newest first.

    Groups whose document cannot be read may be sweeps: of these, the error is yielded.
    """
    container = runs_container(connection)
    for group_id in list_group_ids(connection):
        content = container.read(group_blob(group_id))
        try:
            group = parse_group(content or b"", group_id)
            if group.trials:
                yield group_id, with_later_runs(container, group)
        except RunnerError as err:
            if content is not None:  # else it was deleted meanwhile
                yield group_id, err


def load_leaderboard(
    connection: Connection,
    sweep: RunGroup,
    metric: str | None = None,
    known: Iterable[RunRow] = (),
) -> Leaderboard:
    """Return the present trials of a sweep.

    Args:
        connection: the services.
        sweep: a group with trials.
        metric: the metric to sort by; None means that of the sweep or recipe. If neither names one,
            it is the first that is clearly a metric, see `choose_metric`.
        known: rows of its runs. Those that have ended are not read again.

    Raises:
        RunnerError: R-METRIC-UNKNOWN, no trial has this metric.
    """
    chains = [(*sweep.earlier.get(name, ()), run_id) for name, run_id in sweep.trial_runs.items()]
    merge_id = sweep.runs.get(MERGE_TASK, "")
    ids = [*(run_id for chain in chains for run_id in chain), *filter(None, [merge_id])]
    found = {row.run_id: row for row in known if row.result is not None and row.is_decided}
    missing = [run_id for run_id in ids if run_id not in found]
    listed = with_commands(connection, list_runs(connection, limit=None, ids=missing))
    found |= {row.run_id: row for row in listed.rows}
    merge = found.get(merge_id)
    # The newest run of a trial may not exist, if it was claimed and its submission then failed. A
    # resumed trial has the attempts of all its runs.
    there = [[found[run_id] for run_id in chain if run_id in found] for chain in chains]
    newest = [reduce(_with_attempts, each[-2::-1], each[-1]) for each in there if each]
    rows = in_parallel(lambda row: with_metrics(connection, row), newest)
    wanted = metric or declared_metric(rows)
    metric = metric or compared_metric(rows)
    if metric is not None:
        rows = rank(rows, MetricOrder(metric))
    note = f"{SUBMITTING_FOLDER}{sweep.group_id}.json"
    lost = any(row.state == RunState.LOST for row in rows)
    is_submitting = lost and runs_container(connection).size(note) is not None
    jobs = {row.spec.job_id for row in rows if row.spec and _may_start_again(row)}
    return Leaderboard(
        sweep.group_id, tuple(rows), sweep, metric, merge, wanted, is_submitting,
        _find_pause(connection, jobs) if jobs else None,
    )  # fmt: skip


def _find_pause(connection: Connection, jobs: Iterable[str]) -> WaitCause | None:
    recorded = {*runs_container(connection).names(PAUSED_FOLDER)}
    paused = sorted(job_id for job_id in jobs if f"{PAUSED_FOLDER}{job_id}" in recorded)
    if not paused:
        return None
    from runner.flows.runs.stuck import explain_pause  # noqa: PLC0415  loads the Batch SDK

    return next(filter(None, (explain_pause(connection, job_id) for job_id in paused)), None)


def has_outputs(connection: Connection, row: RunRow) -> bool:
    """Return True if the run exported files, which can be registered as a model."""
    with suppress(RunnerError):  # the result is damaged
        result = load_result(runs_container(connection), row.run_id)
        return result is not None and bool(result.outputs)
    return False


def _may_start_again(row: RunRow) -> bool:
    """Return False for a trial that did not start because of others, too."""
    is_blocked = row.result is not None and row.result.code == SWEEP_FAILED
    return row.shown_state in _ENDED and not is_blocked


@dataclass(frozen=True, slots=True)
class TrialCost(JsonDocument):
    """The costs of all runs of a trial, and the part due to evictions; None if unknown."""

    cost_usd: float | None
    evictions_usd: float | None


def runs_of_sweep(sweep: RunGroup) -> frozenset[str]:
    """Return the runs of a sweep, with its merge task and earlier runs of resumed trials."""
    earlier = (run_id for runs in sweep.earlier.values() for run_id in runs)
    return frozenset((*sweep.runs.values(), *earlier))


def costs_of_trials(board: Leaderboard, spent: Mapping[str, NodeCosts]) -> dict[str, TrialCost]:
    """Return the costs of each trial by name, from those of runs."""
    found: dict[str, TrialCost] = {}
    for name, run_id in board.sweep.trial_runs.items():
        total = NodeCosts()
        for each in (*board.sweep.earlier.get(name, ()), run_id):
            total.add(spent[each] if each in spent else NodeCosts())
        micro = total.total_micro
        lost = None if micro is None else sum(total.micro[part] for part in EVICTED)
        found[name] = TrialCost(
            None if micro is None else micro / MICROS_PER_USD,
            None if lost is None else lost / MICROS_PER_USD,
        )
    return found


def plotted_trials(connection: Connection, board: Leaderboard) -> list[PlottedTrial]:
    """Return the trials as pictures show them, in the order of the board, with their curves."""
    container, sweep = runs_container(connection), board.sweep
    listed = container.list_metadata(reports_folder(sweep.group_id))
    reports = {
        report.name: report
        for blob, metadata in listed
        if (report := TrialReport.parse(blob, metadata)) is not None
    }
    metric = board.metric or "value"
    return [
        PlottedTrial(
            name,
            board.params(row),
            row.metrics.get(metric),
            reports[name].curve if name in reports and _is_of(row, metric) else (),
        )
        for row in board.rows
        for name in [board.names[row.run_id]]
    ]


def plot_sweep(connection: Connection, board: Leaderboard, *, page: bool) -> str:
    """Return the plots of a sweep as SVG, or as an HTML page."""
    metric, name = board.metric or "value", board.sweep.group_id
    goal = goal_of(board.rows, metric)
    svg = draw_sweep(name, metric, goal, plotted_trials(connection, board))
    return html_page(name, svg) if page else svg


def _unclear(measured: Iterable[str]) -> str:
    known = ", ".join(sorted(measured))
    return f"no reported value is clearly a metric; --metric takes one of {known}"


def _is_of(row: RunRow, metric: str) -> bool:
    """Return True if the trial reports the values of this metric."""
    compared = (row.spec.trial or {}).get("metric") if row.spec else None
    return compared in (metric, None)


def _with_attempts(row: RunRow, earlier: RunRow) -> RunRow:
    return replace(
        row,
        attempts=row.attempts + earlier.attempts,
        evicted=(row.evicted or 0) + (earlier.evicted or 0),
        earlier_s=row.earlier_s + (earlier.took_s or 0),
    )


def list_experiments(connection: Connection) -> list[Experiment]:
    """Return all experiments, the one with the newest run first."""
    return _grouped(connection, EVERY_RUN)


def newest_experiments(connection: Connection) -> list[str]:
    """Return the names of the experiments of the newest runs."""
    found = list_runs(connection, limit=_NEWEST_RUNS).rows
    return [*dict.fromkeys(row.spec.experiment for row in found if row.spec)]


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
        why=f"experiments: {', '.join(known[:10])}" if known else "there are no runs yet",
        fix=f"runner experiments show {near[0]}" if near else "runner experiments ls",
    )


def _grouped(connection: Connection, only: RunFilter) -> list[Experiment]:
    groups: dict[str, list[RunRow]] = {}
    listed = with_commands(connection, list_runs(connection, limit=None, only=only))
    for row in listed.rows:
        if row.spec is not None:
            groups.setdefault(row.spec.experiment, []).append(row)
    return [Experiment(name, tuple(rows)) for name, rows in groups.items()]
