"""Read the metrics of a run, and compare runs."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.curves import Curve, comparison_html, differing, to_curves
from runner.flows.runs.documents import load_points
from runner.protocol.commands import other_arguments
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricSummary, summarize_metrics
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run: a summary and a curve of each."""

    spec: RunSpec
    summaries: tuple[MetricSummary, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, repr=False)
class MetricComparison:
    """The metrics of several runs, and the parameters that differ, with one value per run."""

    runs: tuple[RunMetrics, ...]
    params: Mapping[str, tuple[object, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics of any run, in order of first appearance."""
        return tuple(dict.fromkeys(s.name for run in self.runs for s in run.summaries))

    def curves(self, name: str) -> tuple[Curve, ...]:
        """Return the curve of a metric in each run, empty if a run does not have it."""
        return tuple(
            next((c for c in run.curves if c.name == name), Curve(run.spec.run_id, name, ()))
            for run in self.runs
        )

    def __repr__(self) -> str:
        ids = ", ".join(run.spec.run_id for run in self.runs)
        return f"<MetricComparison of {ids}: {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        """Return the table and the plot of `runner metrics --compare` for a notebook."""
        ids = [run.spec.run_id for run in self.runs]
        summaries = [run.summaries for run in self.runs]
        panels = {name: self.curves(name) for name in self.names}
        return comparison_html(ids, summaries, self.params, panels)


def load_run_metrics(connection: Connection, spec: RunSpec, last: int | None = None) -> RunMetrics:
    """Return the metrics of a run so far, with at most the `last` steps of each curve."""
    points = load_points(connection, spec)
    summaries = summarize_metrics(points, spec.goals)
    return RunMetrics(spec, tuple(summaries), tuple(to_curves(spec.run_id, points, last)))


def compare_metrics(
    connection: Connection,
    specs: Sequence[RunSpec],
    names: Iterable[str] = (),
    last: int | None = None,
) -> MetricComparison:
    """Return the metrics of runs, only `names` if given. Raise RunnerError for an unknown one."""
    runs = in_parallel(lambda spec: load_run_metrics(connection, spec, last), specs)
    wanted = tuple(names)
    known = tuple(dict.fromkeys(s.name for run in runs for s in run.summaries))
    for name in wanted:
        if name not in known:
            raise _unknown(name, known, specs)
    if wanted:
        runs = [_only(run, wanted) for run in runs]
    return MetricComparison(tuple(runs), differing([_with_arguments(spec) for spec in specs]))


def _with_arguments(spec: RunSpec) -> Mapping[str, object]:
    """Return the parameters of a run, and as `arguments` the other words of its command."""
    others = other_arguments({"command": spec.command, "template": spec.template})
    return spec.all_params | ({"arguments": shlex.join(others)} if others else {})


def _only(run: RunMetrics, wanted: tuple[str, ...]) -> RunMetrics:
    return RunMetrics(
        run.spec,
        tuple(summary for summary in run.summaries if summary.name in wanted),
        tuple(curve for curve in run.curves if curve.name in wanted),
    )


def _unknown(name: str, known: tuple[str, ...], specs: Sequence[RunSpec]) -> RunnerError:
    near = difflib.get_close_matches(name, known, n=1)
    run_id = specs[0].run_id
    return RunnerError(
        "R-METRIC-UNKNOWN",
        f"unknown metric {name!r}",
        why=f"metrics: {', '.join(known)}" if known else "no metrics were reported yet",
        fix=f"runner metrics {run_id} {near[0]}" if near else f"runner metrics {run_id}",
    )
