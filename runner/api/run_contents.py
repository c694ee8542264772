"""What a run is, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.api.arguments import checked
from runner.api.measured import Metric, metrics_of
from runner.api.progress import OnUpdate, live
from runner.api.run_tables import attempt_cells, checkpoint_cells
from runner.api.table import Table

if TYPE_CHECKING:
    from runner.core.metrics import MetricPoint
    from runner.core.run_record import OutputFile, RunRecord
    from runner.flows.attempts import AttemptRow
    from runner.flows.checkpoints import Checkpoint
    from runner.flows.session import Session
    from runner.flows.watch_events import LogStream


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
            from runner.flows.run_documents import find_run

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
        from runner.flows.logs import read_log

        connection = self.session.connection
        return "".join(
            read_log(connection, self.record, stream, tail=tail, attempt=attempt, node=node)
        )

    def attempts(self) -> Table[AttemptRow]:
        """Where it ran, for how long (`.took_s`), and `.why` each attempt ended."""
        from runner.flows.attempts import list_attempts
        from runner.flows.run_view import load_view

        connection = self.session.connection
        return Table(list_attempts(connection, load_view(connection, self.record)), attempt_cells)

    def checkpoints(self) -> Table[Checkpoint]:
        """Its complete checkpoints, the one that `resume` goes on from first."""
        from runner.flows.checkpoints import list_checkpoints
        from runner.flows.run_documents import runs_container

        container = runs_container(self.session.connection)
        return Table(list_checkpoints(container, self.id), checkpoint_cells)

    def environment(self) -> dict[str, Any] | None:
        """Python, packages, machine and driver that it ran with; None where none was recorded."""
        from runner.flows.reproduce import load_environment

        return load_environment(self.session.connection, self.record)

    def metrics(self) -> dict[str, Metric]:
        """Every metric by name; a step that a later attempt went over again is that attempt's."""
        return metrics_of(self.session, self.record)

    def points(self) -> list[MetricPoint]:
        """Every value as it was written: `pandas.DataFrame(run.points())`."""
        from runner.flows.run_documents import load_points

        return load_points(self.session.connection, self._record)

    def outputs(self) -> tuple[OutputFile, ...]:
        """The files it exported; before its end, those sent so far."""
        from runner.flows.fetch import list_outputs

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
        from runner.flows.fetch import fetch_outputs

        target = self.session.settings.output_dir if folder is None else Path(folder).expanduser()
        with live(on_progress, self.id) as view:
            fetched = fetch_outputs(
                self.session.connection, self._record, target.absolute(), view.on_progress, patterns
            )
        return fetched.folder
