"""Documents about runs: a line of the list, the details of a run, its metrics, comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.core.curves import align
from runner.flows.runs.metrics import MetricComparison
from runner.flows.runs.rows import RunRow
from runner.views.json_text import Measured


class RunLine(TypedDict):
    """A run of `runner ps -o json`; times are ISO 8601, `took_s` seconds.

    `error` is the last exception of a script that failed, `node_kept_until` the time until which a
    failed run keeps its node.
    """

    run_id: str
    state: str
    reason: str
    cause: dict[str, Any] | None
    recipe: str | None
    experiment: str | None
    pool: str | None
    created: str | None
    ended: str | None
    took_s: float | None
    metric: Measured | None
    metrics: Mapping[str, Measured]
    params: dict[str, Any]
    attempts: int
    evicted: int | None
    origin: dict[str, Any] | None
    group: str | None
    error: NotRequired[str]
    node_kept_until: NotRequired[str]


def run_line(row: RunRow) -> RunLine:
    """Return the document of one run of a list."""
    spec, status = row.spec, row.status
    name = next(iter(spec.named_metrics), None) if spec else None
    document: RunLine = {
        "run_id": row.run_id,
        "state": row.state,
        "reason": row.reason,
        "cause": status.cause.to_json() if status and status.cause else None,
        "recipe": spec.recipe if spec else None,
        "experiment": spec.experiment if spec else None,
        "pool": spec.pool if spec else None,
        "created": spec.created.isoformat() if spec else None,
        "ended": row.ended.isoformat() if row.ended else None,
        "took_s": row.took_s,
        "metric": row.metrics.get(name) if name else None,
        "metrics": dict(row.metrics),
        "params": row.params,
        "attempts": row.attempts,
        "evicted": row.evicted,
        "origin": dataclasses.asdict(spec.origin) if spec and spec.origin else None,
        "group": spec.group if spec else None,
    }
    if status and status.error:
        document["error"] = status.error
    if row.kept:
        document["node_kept_until"] = row.kept.until.isoformat()
    return document


class ListedRun(TypedDict):
    """A row of the list of the page: a run, a sweep or an experiment.

    `best` is that of the curve of a run, or of the last values of several. `curve` has steps and
    values, at most some hundred. `curve`, `cost_micro_usd` and `checkpoint` are None while they
    are read.
    """

    id: str
    kind: str
    states: dict[str, int]
    reason: str
    recipe: str
    experiment: str
    pool: str
    created: str | None
    took_s: float | None
    params: dict[str, Any]
    metrics: Mapping[str, Measured]
    metric: str | None
    best: Measured | None
    curve: list[list[Measured]] | None
    cost_micro_usd: int | None
    checkpoint: str | None


class RunListDocument(TypedDict):
    """Rows of the list; `next` continues it, and `complete` is False while old runs are read."""

    rows: list[ListedRun]
    left: int
    next: str | None
    complete: bool


class MetricValues(TypedDict):
    """The summary of a metric of one run; `best` is None if every value is NaN.

    `lost` counts the values of lost work, which are not in the other numbers. `source` is where
    the values were found, "" if the script wrote them to its metrics file.
    """

    last: Measured
    last_step: int | None
    best: Measured | None
    best_step: int | None
    count: int
    lost: int
    source: str


class LostValues(TypedDict):
    """Values of lost work, in the order in which they were reported, at most some thousand."""

    steps: list[int]
    values: list[Measured]


class RunMetricsDocument(TypedDict):
    """A run of a comparison, with its parameters, its metrics, and values of lost work by name."""

    run_id: str
    params: Mapping[str, Any]
    metrics: dict[str, MetricValues]
    lost: dict[str, LostValues]


class AlignedCurves(TypedDict):
    """The steps of any run, and per run one value or None for each of them."""

    steps: list[int]
    values: dict[str, list[Measured | None]]


class MetricsHead(TypedDict):
    """Runs, and the parameters that differ."""

    runs: list[RunMetricsDocument]
    differing_params: dict[str, list[Any]]


class MetricsDocument(MetricsHead):
    """The document of `runner metrics -o json`: runs, parameters that differ, and curves."""

    metrics: dict[str, AlignedCurves]


def metrics_head(compared: MetricComparison) -> MetricsHead:
    """Return the metrics of one or more runs without their curves."""
    return {
        "runs": [
            {
                "run_id": run.spec.run_id,
                "params": run.spec.all_params,
                "metrics": {
                    s.name: {
                        "last": s.last, "last_step": s.last_step, "best": s.best,
                        "best_step": s.best_step, "count": s.count, "lost": s.lost,
                        "source": s.source,
                    }
                    for s in run.summaries
                },
                "lost": {
                    curve.name: {
                        "steps": [step for step, _ in curve.lost],
                        "values": [value for _, value in curve.lost],
                    }
                    for curve in run.curves
                    if curve.lost
                },
            }
            for run in compared.runs
        ],
        "differing_params": {name: list(values) for name, values in compared.params.items()},
    }  # fmt: skip


def metrics_document(compared: MetricComparison) -> MetricsDocument:
    """Return the metrics of one or more runs."""
    curves = {name: _aligned(compared, name) for name in compared.names}
    return {**metrics_head(compared), "metrics": curves}


def _aligned(compared: MetricComparison, name: str) -> AlignedCurves:
    rows: Sequence[tuple[int, tuple[float | None, ...]]] = align(compared.curves(name))
    return {
        "steps": [step for step, _ in rows],
        "values": {
            run.spec.run_id: [values[n] for _, values in rows]
            for n, run in enumerate(compared.runs)
        },
    }


class ComparedRun(TypedDict):
    """A run of a comparison; the prices are those so far, None if they are unknown."""

    run_id: str
    state: str
    experiment: str
    cost_micro_usd: int | None
    metrics: Mapping[str, Measured]


class CurveColumns(TypedDict):
    """A metric: the places of all curves on the axis, and by run one value or None for each."""

    x: list[float]
    y: Mapping[str, Sequence[Measured | None]]


class FileDifference(TypedDict):
    """A file whose content differs: by run the first digits of its hash, None without the file."""

    path: str
    sha256: list[str | None]


class CompareDocument(TypedDict):
    """Several runs over each other.

    `params` and `packages` have one value per run for each name that differs, `revisions` the git
    revision of each run, and `files` the files of their code that differ. The last three are empty
    for more than 30 runs. `complete` is False while curves are read.
    """

    axis: str
    runs: list[ComparedRun]
    names: list[str]
    metrics: dict[str, CurveColumns]
    params: dict[str, list[Any]]
    packages: dict[str, list[Any]]
    revisions: list[str | None]
    files: list[FileDifference]
    complete: bool
