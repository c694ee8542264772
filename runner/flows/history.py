"""All runs, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.core.errors import RunnerError
from runner.core.run_paths import RunPaths
from runner.core.run_record import RunRecord, RunResult, parse_run
from runner.core.states import RunState, RunStatus
from runner.flows.run_documents import list_run_ids, load_result, runs_container


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the list; `problem` where its documents cannot be read."""

    run_id: str
    record: RunRecord | None
    status: RunStatus | None
    result: RunResult | None
    problem: str = ""

    @property
    def ended(self) -> datetime | None:
        """When the outcome was committed."""
        return self.result.ended if self.result else None


@dataclass(frozen=True, slots=True)
class History:
    """Rows, and how many older runs were left out."""

    rows: tuple[RunRow, ...]
    older: int


def list_runs(connection: Connection, *, limit: int | None, experiment: str | None) -> History:
    """The newest runs, of one experiment if it is named; `limit` None means all."""
    container = runs_container(connection)
    ids = list_run_ids(container)
    rows: list[RunRow] = []
    position = 0
    step = limit or len(ids) or 1
    while position < len(ids) and (limit is None or len(rows) < limit):
        batch = ids[position : position + step]
        found = in_parallel(lambda run_id: _row(connection, run_id), batch)
        for row in found:
            position += 1
            if row is not None and _belongs(row, experiment):
                rows.append(row)
            if limit is not None and len(rows) == limit:
                break
    return History(tuple(rows), len(ids) - position)


def _belongs(row: RunRow, experiment: str | None) -> bool:
    return experiment is None or (row.record is not None and row.record.experiment == experiment)


def _row(connection: Connection, run_id: str) -> RunRow | None:
    """One run, or None where it was deleted, or never came into being."""
    container = runs_container(connection)
    content = container.read(RunPaths(run_id).run)
    if content is None:
        return None
    try:
        record = parse_run(content, run_id)
        result = load_result(container, run_id)
        if result is not None:
            status = RunStatus(RunState(result.status), result.message or "")
            return RunRow(run_id, record, status, result)
    except RunnerError as err:
        if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT"):
            raise
        return RunRow(run_id, None, None, None, problem=f"{err.what}: {err.why}")
    from runner.flows.run_view import load_view  # noqa: PLC0415  the Batch SDK, only if a run goes on

    view = load_view(connection, record)
    return RunRow(run_id, record, view.status, view.result)
