"""Read the metrics of a run, and compare runs."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from tempfile import TemporaryFile
from typing import IO

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.curves import Curve, GrowingCurves, comparison_html, differing
from runner.core.point_summary import MetricPass, merge_parts, next_step
from runner.core.points import PlacedPoint
from runner.flows.runs.documents import iterate_points, runs_container, summarise_points
from runner.protocol.commands import other_arguments
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricSummary, PointHistory
from runner.protocol.run_spec import RunSpec

EXACT_POINTS = 100_000  # number of values of a run up to which documents hold all in memory
_STORED_VALUES = 512  # of a metric, which are written together


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run: a summary and a curve of each.

    `passes` are those of curves that are sketches, see `ExactCurves`. `history` says which values
    are of lost work; none of them is in a summary or a curve, except in `Curve.lost`.
    """

    spec: RunSpec
    summaries: tuple[MetricSummary, ...]
    curves: tuple[Curve, ...]
    passes: Mapping[str, MetricPass] = field(default_factory=dict[str, MetricPass], repr=False)
    history: PointHistory = field(default_factory=PointHistory, repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class MetricComparison:
    """The metrics of several runs, and the parameters that differ, with one value per run."""

    runs: tuple[RunMetrics, ...]
    params: Mapping[str, tuple[object, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics of any run, in order of first appearance."""
        return tuple(dict.fromkeys(s.name for run in self.runs for s in run.summaries))

    @property
    def is_long(self) -> bool:
        """True if curves are sketches."""
        return any(run.passes for run in self.runs)

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
    exact: GrowingCurves | None = None

    def begin() -> None:
        nonlocal exact
        exact = GrowingCurves() if last is None else None

    def add(point: PlacedPoint) -> None:
        nonlocal exact
        if exact is not None:
            exact.add(point)
            if exact_points is not None and exact.count > exact_points:
                exact = None

    begin()
    found, history = summarise_points(container, spec, last, add, begin)
    passes = tuple(found.values())
    summaries = tuple(each.summary() for each in passes)
    if last is not None:
        curves = [
            Curve(run_id, each.name, each.newest.points() if each.newest else ()) for each in passes
        ]
    elif exact is not None:
        curves = exact.curves(run_id)
    else:
        curves = [Curve(run_id, each.name, *each.sketch()) for each in passes]
    curves = [replace(curve, lost=tuple(found[curve.name].lost)) for curve in curves]
    is_sketch = last is None and exact is None
    return RunMetrics(spec, summaries, tuple(curves), found if is_sketch else {}, history)


class ExactCurves:
    """All steps and values of the metrics of a run, a context.

    If the curves of the run are sketches, its values are read again, once for all metrics, into a
    temporary file.
    """

    def __init__(self, connection: Connection, run: RunMetrics) -> None:
        self._connection, self._run = connection, run
        self._file: IO[str] | None = None
        self._stored: dict[str, list[_StoredPart]] = {}

    def __enter__(self) -> ExactCurves:
        if self._run.passes:
            self._file = TemporaryFile("w+", encoding="ascii")
            self._store(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def iterate(self, name: str) -> Iterator[tuple[int, float]]:
        """Yield steps and values of a metric in order of steps, of each step the last value."""
        file, stored = self._file, self._stored.get(name)
        if file is None or stored is None:
            yield from next((each.points for each in self._run.curves if each.name == name), ())
        elif self._run.passes[name].is_unordered:
            yield from sorted(dict(chain.from_iterable(each.read(file) for each in stored)).items())
        else:
            yield from merge_parts(each.read(file) for each in stored)

    def _store(self, file: IO[str]) -> None:
        """Write the values that the passes have seen; others were added meanwhile."""
        passes = self._run.passes
        left = {each.name: each.count for each in self._run.summaries}
        for point in iterate_points(runs_container(self._connection), self._run.spec.run_id):
            name = point.name
            if not left.get(name) or self._run.history.is_lost(point):
                continue
            left[name] -= 1
            parts = passes[name].parts
            stored = self._stored.setdefault(name, [_StoredPart()])
            if len(stored) < len(parts) and point.position >= parts[len(stored)].begin:
                stored.append(_StoredPart(stored[-1].top))
            stored[-1].add(point.step, point.value, file)
        for each in chain.from_iterable(self._stored.values()):
            each.end(file)


class _StoredPart:
    """Values in the order in which they were reported: in a file, some in memory until `end`."""

    def __init__(self, top: int | None = None) -> None:
        self.top = top  # the largest step so far
        self._steps: list[int] = []
        self._values: list[float] = []
        self._places: list[int] = []

    def add(self, step: int | None, value: float, file: IO[str]) -> None:
        at = next_step(self.top) if step is None else step
        self.top = at if self.top is None else max(self.top, at)
        self._steps.append(at)
        self._values.append(value)
        if len(self._steps) == _STORED_VALUES:
            self.end(file)

    def end(self, file: IO[str]) -> None:
        if self._steps:
            self._places.append(file.tell())
            file.write(f"{json.dumps([self._steps, self._values])}\n")
            self._steps, self._values = [], []

    def read(self, file: IO[str]) -> Iterator[tuple[int, float]]:
        for place in self._places:
            file.seek(place)
            yield from zip(*json.loads(file.readline()), strict=True)


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
        run.history,
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
