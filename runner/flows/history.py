"""All runs, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.core.errors import RunnerError
from runner.core.run_paths import RunPaths
from runner.core.run_record import RunRecord, RunResult, parse_run
from runner.core.states import RunState, RunStatus
from runner.flows.run_cache import RunCache
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


def list_runs(
    connection: Connection, home: Path, *, limit: int | None, experiment: str | None
) -> History:
    """The newest runs, of one experiment if it is named; `limit` None means all."""
    ids = list_run_ids(runs_container(connection))
    cache = RunCache(home, connection)
    cache.prune(ids)
    rows: list[RunRow] = []
    position = 0
    step = limit or len(ids) or 1
    while position < len(ids) and (limit is None or len(rows) < limit):
        for row in _rows(connection, cache, ids[position : position + step]):
            position += 1
            if row is not None and _belongs(row, experiment):
                rows.append(row)
            if limit is not None and len(rows) == limit:
                break
    return History(tuple(rows), len(ids) - position)


def _belongs(row: RunRow, experiment: str | None) -> bool:
    return experiment is None or (row.record is not None and row.record.experiment == experiment)


def _rows(connection: Connection, cache: RunCache, ids: list[str]) -> list[RunRow | None]:
    """One row an id, in order; only what is not kept here is asked for."""
    kept = {run_id: _finished(*found) for run_id in ids if (found := cache.get(run_id))}
    asked = [run_id for run_id in ids if run_id not in kept]
    rows = in_parallel(lambda run_id: _row(connection, run_id), asked)
    cache.add((row.record, row.result) for row in rows if row and row.record and row.result)
    found = {**kept, **dict(zip(asked, rows, strict=True))}
    return [found[run_id] for run_id in ids]


def _finished(record: RunRecord, result: RunResult) -> RunRow:
    status = RunStatus(RunState(result.status), result.message or "")
    return RunRow(record.run_id, record, status, result)


def _row(connection: Connection, run_id: str) -> RunRow | None:
    """One run, or None where it was deleted, or never came into being."""
    container = runs_container(connection)
    content = container.read(RunPaths(run_id).run)
    if content is None:
        lost = container.size(RunPaths(run_id).result) is not None
        problem = "run.json is gone: storage lost it, the outputs are there"
        return RunRow(run_id, None, None, None, problem=problem) if lost else None
    try:
        record = parse_run(content, run_id)
        result = load_result(container, run_id)
        if result is not None:
            return _finished(record, result)
    except RunnerError as err:
        if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT"):
            raise
        return RunRow(run_id, None, None, None, problem=f"{err.what}: {err.why}")
    from runner.flows.run_view import load_view  # noqa: PLC0415  the Batch SDK, only if a run goes on

    view = load_view(connection, record)
    return RunRow(run_id, record, view.status, view.result)
