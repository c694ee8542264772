"""Read the metrics of a run, and compare runs."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.curves import Curve, comparison_html, differing, to_curves
from runner.core.point_summary import MetricPass, Part, merge_parts, next_step
from runner.core.points import PlacedPoint
from runner.flows.runs.documents import iterate_points, runs_container
from runner.protocol.commands import other_arguments
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricSummary
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run: a summary and a curve of each.

    `passes` are those of curves that are sketches, see `iterate_curve`.
    """

    spec: RunSpec
    summaries: tuple[MetricSummary, ...]
    curves: tuple[Curve, ...]
    passes: Mapping[str, MetricPass] = field(default_factory=dict[str, MetricPass], repr=False)


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


def load_run_metrics(
    connection: Connection,
    spec: RunSpec,
    last: int | None = None,
    *,
    exact_points: int | None = None,
) -> RunMetrics:
    """Return the metrics of a run so far, with at most the `last` steps of each curve.

    With more than `exact_points` values, the curves are sketches of a few thousand points.
    """
    container, run_id = runs_container(connection), spec.run_id
    found: dict[str, MetricPass] = {}
    points: list[PlacedPoint] | None = []
    for point in iterate_points(container, run_id):
        known = found.get(point.name)
        if known is None:
            known = found[point.name] = MetricPass(point.name, spec.goals.get(point.name), last)
        known.add(point.step, point.value, point.position)
        if last is None and points is not None:
            points.append(point)
            if exact_points is not None and len(points) > exact_points:
                points = None
    passes = tuple(found.values())
    summaries = tuple(each.summary() for each in passes)
    if last is not None:
        curves = [
            Curve(run_id, each.name, each.newest.points() if each.newest else ()) for each in passes
        ]
    elif points is not None:
        curves = to_curves(run_id, points)
    else:
        curves = [Curve(run_id, each.name, *each.sketch()) for each in passes]
        return RunMetrics(spec, summaries, tuple(curves), found)
    return RunMetrics(spec, summaries, tuple(curves))


def iterate_curve(
    connection: Connection, run: RunMetrics, name: str
) -> Iterator[tuple[int, float]]:
    """Yield all steps and values of a metric in order of steps; of a step, the last value counts.

    If the curve is a sketch, the values are read again.
    """
    found = run.passes.get(name)
    if found is None:
        yield from next((each.points for each in run.curves if each.name == name), ())
        return
    container, run_id = runs_container(connection), run.spec.run_id
    if found.is_unordered:  # they have to be sorted
        points = (each for each in iterate_points(container, run_id) if each.name == name)
        yield from next((each.points for each in to_curves(run_id, points)), ())
        return
    begins = [part.begin for part in found.parts]
    parts = (
        _part(container, run_id, name, part, end)
        for part, end in zip(found.parts, (*begins[1:], None), strict=True)
    )
    yield from merge_parts(parts)


def _part(
    container: BlobContainer, run_id: str, name: str, part: Part, end: int | None
) -> Iterator[tuple[int, float]]:
    top = part.top
    for point in iterate_points(container, run_id, part.begin, end):
        if point.name == name:
            step = next_step(top) if point.step is None else point.step
            if step > part.last:  # written since the first pass
                return
            top = step if top is None else max(top, step)
            yield step, point.value


def compare_metrics(
    connection: Connection,
    specs: Sequence[RunSpec],
    names: Iterable[str] = (),
    last: int | None = None,
    *,
    exact_points: int | None = None,
) -> MetricComparison:
    """Return the metrics of runs, only `names` if given. Raise RunnerError for an unknown one.

    `exact_points` is that of `load_run_metrics`.
    """

    def load(spec: RunSpec) -> RunMetrics:
        return load_run_metrics(connection, spec, last, exact_points=exact_points)

    runs = in_parallel(load, specs)
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
        run.passes,
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
