"""Submit a run again from its documents in blob: `retry`, `resume` and `reproduce`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.repeat import Repetition, order_again
from runner.core.progress import OnProgress
from runner.core.states import RunState
from runner.flows.runs.attempts import find_checkpoint, incomplete_checkpoints, list_checkpoints
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.history import RunFilter, RunRow, list_runs
from runner.flows.runs.watch import load_view
from runner.flows.submit.lookups import after_again
from runner.flows.submit.pipeline import RepeatRequest, plan_repetition
from runner.flows.submit.submit_run import submit_run
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.names import blob_name
from runner.protocol.run_spec import ResumeFrom, RunSpec

_TO_RETRY = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_FAILED = frozenset({RunState.FAILED, RunState.LOST})


def retry_run(
    connection: Connection, record: RunSpec, pool: str | None, on_progress: OnProgress
) -> RunSpec:
    """Submit a failed, cancelled or lost run as a new run, which starts from the beginning."""
    view = load_view(connection, record)
    if view.status.state not in _TO_RETRY:
        raise _not_to_retry(record, view.status.state)
    after = after_again(connection, record, began=bool(view.attempts))
    return submit_again(
        connection, RepeatRequest(record, Repetition("retry", after=after), pool), on_progress
    )


def list_to_retry(connection: Connection, experiment: str | None) -> list[RunRow]:
    """Return the failed and lost runs without a repetition, newest first, after predecessors."""
    rows = list_runs(connection, limit=None, only=RunFilter(experiment)).rows
    repeated = {row.record.origin.run_id for row in rows if row.record and row.record.origin}
    found = {
        row.run_id: row
        for row in rows
        if row.status and row.status.state in _FAILED and row.run_id not in repeated
    }
    # A run comes after its predecessors, as it has to wait for their repetitions.
    after = {
        run_id: [before for before in row.record.after if before in found] if row.record else []
        for run_id, row in found.items()
    }
    return [found[run_id] for run_id in order_again(after)]


def retry_each(
    connection: Connection, rows: Iterable[RunRow], pool: str | None, on_progress: OnProgress
) -> Iterator[tuple[RunRow, RunSpec | RunnerError]]:
    """Yield each run with its repetition or the error. Raise if the services cannot be reached."""
    for row in rows:
        try:
            record = find_run(connection, row.run_id)
            after = after_again(connection, record, began=row.attempts > 0)
            asked = Repetition("retry", after=after)
            yield row, submit_again(connection, RepeatRequest(record, asked, pool), on_progress)
        except RunnerError as err:
            if err.code == SERVICES_DOWN:
                raise
            yield row, err


def resume_run(
    connection: Connection,
    record: RunSpec,
    pool: str | None,
    overrides: tuple[str, ...],
    on_progress: OnProgress,
    number: int | None = None,
    *,
    nodes: int | None = None,
) -> RunSpec:
    """Submit a new run that resumes an ended one.

    Args:
        connection: the services.
        record: the ended run.
        pool: the pool, or None for that of the run.
        overrides: parameters, `name=value`.
        on_progress: receives the progress.
        number: the checkpoint, or None for the newest complete one. The newest may be complete and
            still be the reason why the script fails.
        nodes: the number of nodes, or None for that of the run.

    Raises:
        RunnerError: the run has not ended, or has no such checkpoint.
    """
    state = load_view(connection, record).status.state
    if not state.final:
        raise _goes_on(record, state)
    container = runs_container(connection)
    found = find_checkpoint(container, record, number)
    if found is None and number is not None:
        raise _no_such_checkpoint(record, state, number, list_checkpoints(container, record.run_id))
    if found is None:
        problems = incomplete_checkpoints(container, record.run_id)
        wrote_none = "its script saved none in $RUNNER_CHECKPOINT_DIR, or ended before the first"
        raise RunnerError(
            "R-RESUME-NOTHING",
            f"{record.run_id} has no complete checkpoint",
            why="; ".join(problems) or wrote_none,
            fix=f"start from the beginning: {_start_over(record, state)}",
        )
    run_id, checkpoint = found
    before = ResumeFrom(run_id, checkpoint.number)
    asked = Repetition("resume", overrides, resume_from=before, nodes=nodes)
    return submit_again(connection, RepeatRequest(record, asked, pool), on_progress)


def _start_over(record: RunSpec, state: RunState) -> str:
    """Return the command that repeats an ended run; only one that failed can be retried."""
    return f"runner {'retry' if state in _TO_RETRY else 'reproduce'} {record.run_id}"


def _no_such_checkpoint(
    record: RunSpec, state: RunState, number: int, there: Sequence[CheckpointManifest]
) -> RunnerError:
    names = ", ".join(str(each.number) for each in there) or "none"
    return RunnerError(
        "R-RESUME-NOTHING",
        f"{record.run_id} has no complete checkpoint {number}",
        why=f"its checkpoints: {names}; older ones are deleted",
        fix=f"choose one of them, or start from the beginning: {_start_over(record, state)}",
    )


def submit_again(
    connection: Connection, request: RepeatRequest, on_progress: OnProgress
) -> RunSpec:
    """Submit a repetition, with the code and data that are stored in blob."""
    record = request.record
    checks = [(f"code and data of {record.run_id}", partial(check_parts, record=record))]
    with whole_record(record):
        plan = plan_repetition(connection, request, checks)
    return submit_run(connection, plan, on_progress)


@contextmanager
def whole_record(record: RunSpec) -> Generator[None]:
    """Raise RunnerError if `run.json` lacks a value that the block needs."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as err:
        raise RunnerError(
            "R-RUN-BROKEN",
            f"run.json of {record.run_id} is incomplete: the run cannot be repeated",
            why=f"{type(err).__name__}: {err}",
            fix="run `runner train RECIPE` again",
            exit_code=ExitCode.RUN_FAILED,
        ) from err


def check_parts(connection: Connection, record: RunSpec) -> None:
    """Raise RunnerError if code or data of the run is no longer in blob storage."""
    record.check_executable()
    code = record.code
    size = runs_container(connection).renew(code.blob)
    if size is None or size != (code.size_bytes or size):
        raise _gone(record, "code", code.blob, connection.outputs.container_runs)
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    uploaded = [each for each in record.inputs.values() if each.get("kind") in ("path", "dataset")]
    for data in (record.data.to_json() if record.data else None, *uploaded):
        if data and (gone := _missing_file(container, data)):
            raise _gone(record, "data", gone, container.name)


def _missing_file(container: BlobContainer, data: Mapping[str, Any]) -> str | None:
    there = {blob.name: blob.size_bytes for blob in container.list(data["prefix"])}
    files: Sequence[Mapping[str, Any]] = data["files"]
    names = {blob_name(data["prefix"] + file["name"]): file["size_bytes"] for file in files}
    return next((name for name, size in names.items() if there.get(name) != size), None)


def _not_to_retry(record: RunSpec, state: RunState) -> RunnerError:
    if not state.final:
        return _goes_on(record, state)
    return RunnerError(
        "R-RETRY-STATE",
        f"{record.run_id} is {state.value}: there is nothing to retry",
        why="only failed, cancelled and lost runs can be retried",
        fix=f"run `runner reproduce {record.run_id}` to repeat it and compare the results",
    )


def _goes_on(record: RunSpec, state: RunState) -> RunnerError:
    return RunnerError(
        "R-RUN-GOES-ON",
        f"{record.run_id} is {state.value}",
        why="it is still active, and continues by itself after an eviction",
        fix=f"run `runner attach {record.run_id}`, or `runner cancel {record.run_id}` first",
    )


def _gone(record: RunSpec, what: str, blob: str, container: str) -> RunnerError:
    return RunnerError(
        f"R-REPEAT-{what.upper()}",
        f"the {what} of {record.run_id} is no longer in blob storage",
        why=f"{blob} is missing in container {container}, or has a different size",
        fix="run `runner train RECIPE` again, with the recipe and the data on this machine",
        exit_code=ExitCode.PREFLIGHT,
    )
