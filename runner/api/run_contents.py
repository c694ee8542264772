"""What a run is and what it wrote: metrics, logs, files, attempts and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.core.units import format_duration, format_size

if TYPE_CHECKING:
    from runner.flows.runs.attempts import AttemptRow
    from runner.flows.runs.events import LogStream
    from runner.flows.session import Session
    from runner.protocol.checkpoints import CheckpointManifest
    from runner.protocol.metrics import Goal, MetricPoint
    from runner.protocol.results import OutputFile, RunRecord


@dataclass(frozen=True, slots=True, repr=False)
class Metric:
    """One metric: every value with its step, the last and the best of them."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    last: float
    best: float | None
    best_step: int | None

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best={self.best:g} at step {self.best_step}"
        return f"<Metric {self.name}: last={self.last:g}{best}, {len(self.values)} points>"


def metrics_of(session: Session, record: RunRecord) -> dict[str, Metric]:
    """Every metric by name; a step that a later attempt went over again is that attempt's."""
    from runner.core.export import final_points
    from runner.flows.runs.documents import load_points
    from runner.protocol.metrics import summarize_metrics

    points = load_points(session.connection, record)
    goals: dict[str, Goal] = {}
    if record.primary_metric:
        goals[record.primary_metric] = record.goal
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for point in final_points(points):
        steps.setdefault(point.name, []).append(point.step)
        values.setdefault(point.name, []).append(point.value)
    return {
        found.name: Metric(
            found.name,
            tuple(steps[found.name]),
            tuple(values[found.name]),
            found.last,
            found.best,
            found.best_step,
        )
        for found in summarize_metrics(points, goals)
    }


def attempt_cells(attempt: AttemptRow) -> dict[str, object]:
    """One attempt."""
    return {
        "attempt": attempt.attempt,
        "state": attempt.why,
        "node": attempt.node,
        "spot": attempt.spot,
        "started": attempt.started,
        "took": "" if attempt.took_s is None else format_duration(attempt.took_s),
        "exit code": attempt.exit_code,
    }


def checkpoint_cells(checkpoint: CheckpointManifest) -> dict[str, object]:
    """One checkpoint."""
    return {
        "checkpoint": checkpoint.number,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "time": checkpoint.time,
        "files": len(checkpoint.files),
        "size": format_size(checkpoint.size_bytes),
    }


class RunContents:
    """A run as it lies in blob: its description, logs, metrics, outputs, checkpoints."""

    def __init__(self, session: Session, record: RunRecord, *, partial: bool = False) -> None:
        self.session = session
        self._record = record
        self._partial = partial  # of a list: only some fields of run.json are here

    # -- what it is

    @property
    def id(self) -> str:
        """Its id, which every verb of the command line takes."""
        return self._record.run_id

    @property
    def record(self) -> RunRecord:
        """The whole description, `run.json`."""
        if self._partial:
            from runner.flows.runs.documents import find_run

            self._record = find_run(self.session.connection, self.id)
            self._partial = False
        return self._record

    @property
    def experiment(self) -> str:
        """The group it belongs to."""
        return self._record.experiment

    @property
    def created(self) -> datetime:
        """When it was submitted."""
        return self._record.created

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters."""
        return self._record.params

    # -- what came of it

    @checked
    def logs(
        self,
        stream: LogStream = "stdout",
        *,
        tail: int | None = None,
        attempt: int | None = None,
        node: int = 0,
    ) -> str:
        """What the script printed so far: all of it, its last lines, or those of one attempt.

        Of a run over several nodes `node` says which, from 0.
        """
        from runner.flows.runs.logs import read_log

        connection = self.session.connection
        return "".join(
            read_log(connection, self.record, stream, tail=tail, attempt=attempt, node=node)
        )

    def attempts(self) -> Table[AttemptRow]:
        """Where it ran, for how long (`.took_s`), and `.why` each attempt ended."""
        from runner.flows.runs.attempts import list_attempts
        from runner.flows.runs.view import load_view

        connection = self.session.connection
        return Table(list_attempts(connection, load_view(connection, self.record)), attempt_cells)

    def checkpoints(self) -> Table[CheckpointManifest]:
        """Its complete checkpoints, the one that `resume` goes on from first."""
        from runner.flows.runs.attempts import list_checkpoints
        from runner.flows.runs.documents import runs_container

        container = runs_container(self.session.connection)
        return Table(list_checkpoints(container, self.id), checkpoint_cells)

    def environment(self) -> dict[str, Any] | None:
        """Python, packages, machine and driver that it ran with; None where none was recorded."""
        from runner.flows.submit.reproduce import load_environment

        return load_environment(self.session.connection, self.record)

    def metrics(self) -> dict[str, Metric]:
        """Every metric by name; a step that a later attempt went over again is that attempt's."""
        return metrics_of(self.session, self.record)

    def points(self) -> list[MetricPoint]:
        """Every value as it was written: `pandas.DataFrame(run.points())`."""
        from runner.flows.runs.documents import load_points

        return load_points(self.session.connection, self._record)

    def outputs(self) -> tuple[OutputFile, ...]:
        """The files it exported; before its end, those sent so far."""
        from runner.flows.runs.outputs import list_outputs

        return list_outputs(self.session.connection, self._record)

    @checked
    def download(
        self,
        folder: str | Path | None = None,
        patterns: Iterable[str] = (),
        *,
        on_progress: OnUpdate | None = None,
    ) -> Path:
        """Bring its outputs here; the folder `FOLDER/<run id>` where they lie, checked."""
        from runner.flows.runs.outputs import fetch_outputs

        target = self.session.settings.output_dir if folder is None else Path(folder).expanduser()
        with live(on_progress, self.id) as view:
            fetched = fetch_outputs(
                self.session.connection, self._record, target.absolute(), view.on_progress, patterns
            )
        return fetched.folder
