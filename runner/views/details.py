"""Documents about one run: its details, its diagnosis, events, files and log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.azure.auth.credentials import Connection
from runner.core.diagnosis import Diagnosis
from runner.core.units import format_size
from runner.flows.devices import load_devices
from runner.flows.models.register import RunModel, describe_models
from runner.flows.runs.attempts import (
    AttemptRow,
    checkpoint_problem,
    list_attempts,
    list_checkpoints,
)
from runner.flows.runs.documents import load_metrics, runs_container
from runner.flows.runs.events import LogStream
from runner.flows.runs.live import RunView, load_view
from runner.flows.runs.logs import read_log, read_merged_log
from runner.flows.runs.outputs import RunFile, find_files, output_url
from runner.flows.runs.timeline import TimelineEvent
from runner.flows.submit.reproduce import load_environment
from runner.protocol.checkpoints import CheckpointFile, CheckpointManifest
from runner.protocol.devices import DeviceSummary
from runner.protocol.metrics import MetricSummary
from runner.protocol.run_spec import RunSpec
from runner.views.devices import DeviceSummaryLine, summary_line
from runner.views.json_text import Measured


class MetricLine(TypedDict):
    """The last and the best value of a metric.

    `lost` counts the values of lost work, which are not in the other numbers. `source` is that of
    the last value, empty for a metric that the script wrote itself.
    """

    name: str
    last: Measured
    best: Measured | None
    best_step: int | None
    count: int
    last_step: int | None
    lost: int
    source: str


class CheckpointLine(TypedDict):
    """A complete checkpoint; `files` is their number."""

    checkpoint: int
    attempt: int
    time: str
    step: int | None
    files: int
    size_bytes: int


class ModelLine(TypedDict):
    """A model of a run; `version` is None if it is not registered."""

    name: str
    version: int | None
    problem: str


class KeptNodeLine(TypedDict):
    """A node that a failed run keeps since its end; the costs are those so far and at most."""

    since: str
    until: str
    cost_micro_usd: int | None
    most_micro_usd: int | None


class RunDocument(TypedDict):
    """The document of `runner show -o json`; `run` is run.json, `result` is result.json."""

    run_id: str
    state: str
    reason: str
    fix: str
    cause: dict[str, Any] | None
    node: str | None
    kept_node: KeptNodeLine | None
    metrics: list[MetricLine]
    attempts: list[dict[str, Any]]
    environment: Mapping[str, Any] | None
    checkpoints: list[CheckpointLine]
    checkpoint_problem: str | None
    output_url: str
    run: dict[str, Any]
    result: Mapping[str, Any] | None
    models: list[ModelLine]
    devices: DeviceSummaryLine | None


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run with all its documents."""

    connection: Connection
    view: RunView
    metrics: Sequence[MetricSummary]
    attempts: Sequence[AttemptRow]
    environment: Mapping[str, Any] | None
    checkpoints: Sequence[CheckpointManifest]
    models: Sequence[RunModel]
    checkpoint_problem: str
    devices: DeviceSummary | None


def load_details(connection: Connection, spec: RunSpec) -> RunDetails:
    """Read all documents of a run."""
    view = load_view(connection, spec)
    container = runs_container(connection)
    reported: dict[str, Any] = dict(view.result.checkpoint or {}) if view.result else {}
    attempt = view.attempts[-1].attempt if view.attempts and view.result is None else 0
    problem = reported.get("problem") or checkpoint_problem(container, spec.run_id, attempt)
    return RunDetails(
        connection,
        view,
        load_metrics(connection, spec),
        list_attempts(connection, view),
        load_environment(connection, spec),
        list_checkpoints(container, spec.run_id),
        _models(connection, view),
        str(problem or ""),
        load_devices(connection, spec).summary,
    )


def _models(connection: Connection, view: RunView) -> Sequence[RunModel]:
    succeeded = view.result is not None and view.result.status == "succeeded"
    return describe_models(connection, view.spec) if succeeded else ()


def run_document(shown: RunDetails) -> RunDocument:
    """Return the details of a run."""
    view = shown.view
    return {
        "run_id": view.spec.run_id,
        "state": view.status.state.value,
        "reason": view.status.reason,
        "fix": view.status.fix,
        "cause": view.status.cause.to_json() if view.status.cause else None,
        "node": view.status.node,
        "kept_node": cast("KeptNodeLine", view.kept.to_json(datetime.now(UTC)))
        if view.kept
        else None,
        "metrics": [cast("MetricLine", dataclasses.asdict(each)) for each in shown.metrics],
        "attempts": [dataclasses.asdict(attempt) for attempt in shown.attempts],
        "environment": shown.environment,
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in shown.checkpoints],
        "checkpoint_problem": shown.checkpoint_problem or None,
        "output_url": output_url(shown.connection, view.spec.run_id, view.result),
        "run": view.spec.to_json(),
        "result": view.result.raw if view.result else None,
        "models": [cast("ModelLine", dataclasses.asdict(model)) for model in shown.models],
        "devices": summary_line(shown.devices),
    }


def _checkpoint(checkpoint: CheckpointManifest) -> CheckpointLine:
    return {
        "checkpoint": checkpoint.number,
        "attempt": checkpoint.attempt,
        "time": checkpoint.time,
        "step": checkpoint.step,
        "files": len(checkpoint.files),
        "size_bytes": checkpoint.size_bytes,
    }


class EvidenceLine(TypedDict):
    """A fact that shows a cause."""

    at: str | None
    source: str
    text: str


class DiagnosisDocument(TypedDict):
    """The document of `runner why -o json`; `cause` is None if nothing is wrong."""

    subject: str
    kind: str
    state: str
    cause: str | None
    message: str
    evidence: list[EvidenceLine]
    fix: str
    command: str


def diagnosis_document(found: Diagnosis) -> DiagnosisDocument:
    """Return the answer of `runner why`."""
    return cast("DiagnosisDocument", found.to_json())


class EventLine(TypedDict):
    """An event of `runner events -o json`, by the clock of storage."""

    at: str | None
    source: str
    event: str
    attempt: int | None
    clock_offset_s: float


def event_line(event: TimelineEvent) -> EventLine:
    """Return the document of one event."""
    return cast("EventLine", event.to_json())


class FileLine(TypedDict):
    """A file of `runner files ls -o json`; `kind` is output or log."""

    path: str
    size: str
    size_bytes: int
    sha256: str
    kind: str
    url: str


class CheckpointFileLine(TypedDict):
    """A file of `runner files ls --checkpoints -o json`."""

    checkpoint: int
    attempt: int
    step: int | None
    path: str
    size: str
    size_bytes: int
    sha256: str
    url: str


def file_lines(
    connection: Connection, spec: RunSpec, url_of: Callable[[str], str]
) -> list[FileLine]:
    """Return the exported files and the logs of a run."""
    return [
        cast(
            "FileLine",
            {**_file(file), "kind": "log" if file.is_log else "output", "url": url_of(file.blob)},
        )
        for file in find_files(connection, spec)
    ]


def checkpoint_file_lines(
    connection: Connection, spec: RunSpec, url_of: Callable[[str], str]
) -> list[CheckpointFileLine]:
    """Return the files of all complete checkpoints, the newest checkpoint first."""
    return [
        cast(
            "CheckpointFileLine",
            {
                "checkpoint": checkpoint.number,
                "attempt": checkpoint.attempt,
                "step": checkpoint.step,
                **_file(file),
                "url": url_of(file.blob),
            },
        )
        for checkpoint in list_checkpoints(runs_container(connection), spec.run_id)
        for file in checkpoint.files
    ]


def _file(file: RunFile | CheckpointFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": format_size(file.size_bytes),
        "size_bytes": file.size_bytes,
        "sha256": file.sha256,
    }


class LogDocument(TypedDict):
    """The last lines of a log of a run, as `runner logs` prints them."""

    run_id: str
    stream: str
    lines: list[str]


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Which log: its stream, the number of last lines, and an attempt and a node or all."""

    stream: LogStream = "stdout"
    tail: int = 1000
    attempt: int | None = None
    node: int | None = None


_MOST_LOG_BYTES = 8 << 20


def log_document(connection: Connection, spec: RunSpec, wanted: LogSelection) -> LogDocument:
    """Return the last lines of a log, at most 8 MiB of each node."""
    lines: Iterator[str] | list[str]
    stream, tail, attempt = wanted.stream, wanted.tail, wanted.attempt
    if wanted.node is None and spec.nodes > 1:
        lines = read_merged_log(
            connection, spec, stream, tail=tail, attempt=attempt, most_bytes=_MOST_LOG_BYTES
        )
    else:
        node = wanted.node or 0
        text = read_log(
            connection, spec, stream, tail=tail, attempt=attempt, node=node,
            most_bytes=_MOST_LOG_BYTES,
        )  # fmt: skip
        lines = "".join(text).split("\n")
        if lines and not lines[-1]:
            lines.pop()
    return {"run_id": spec.run_id, "stream": stream, "lines": list(lines)}
