"""`retry`, `resume` and what `reproduce` submits: a run once more, from what blob holds of it."""

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
from runner.protocol.run_spec import ResumeFrom, RunSpec

_TO_RETRY = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_FAILED = frozenset({RunState.FAILED, RunState.LOST})


def retry_run(
    connection: Connection, record: RunSpec, pool: str | None, on_progress: OnProgress
) -> RunSpec:
    """A run that failed, was cancelled or lost, again from its beginning, as a new run."""
    view = load_view(connection, record)
    if view.status.state not in _TO_RETRY:
        raise _not_to_retry(record, view.status.state)
    after = after_again(connection, record, began=bool(view.attempts))
    return submit_again(
        connection, RepeatRequest(record, Repetition("retry", after=after), pool), on_progress
    )


def list_to_retry(connection: Connection, experiment: str | None) -> list[RunRow]:
    """Failed and lost runs that no later run repeats: newest first, behind those they wait for."""
    rows = list_runs(connection, limit=None, only=RunFilter(experiment)).rows
    repeated = {row.record.origin.run_id for row in rows if row.record and row.record.origin}
    found = {
        row.run_id: row
        for row in rows
        if row.status and row.status.state in _FAILED and row.run_id not in repeated
    }
    # Whoever waits is repeated after what it waits for: it waits for that one's repetition.
    after = {
        run_id: [before for before in row.record.after if before in found] if row.record else []
        for run_id, row in found.items()
    }
    return [found[run_id] for run_id in order_again(after)]


def retry_each(
    connection: Connection, rows: Iterable[RunRow], pool: str | None, on_progress: OnProgress
) -> Iterator[tuple[RunRow, RunSpec | RunnerError]]:
    """Each of them as a new run, or why it is none; the services being away ends it."""
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
    """A run that ended, continued as a new run from its newest complete checkpoint.

    Or from checkpoint `number`: the newest may be whole, and still what the script fails on.
    `nodes` is on how many, where it is another number than before.
    """
    state = load_view(connection, record).status.state
    if not state.final:
        raise _goes_on(record, state)
    container = runs_container(connection)
    found = find_checkpoint(container, record, number)
    if found is None and number is not None:
        raise _no_such_checkpoint(record, number, list_checkpoints(container, record.run_id))
    if found is None:
        problems = incomplete_checkpoints(container, record.run_id)
        wrote_none = "its script wrote none to $RUNNER_CHECKPOINT_DIR, or it ended before the first"
        raise RunnerError(
            "R-RESUME-NOTHING",
            f"{record.run_id} has no complete checkpoint",
            why="; ".join(problems) or wrote_none,
            fix=f"runner retry {record.run_id} starts it from the beginning",
        )
    run_id, checkpoint = found
    before = ResumeFrom(run_id, checkpoint.number)
    asked = Repetition("resume", overrides, resume_from=before, nodes=nodes)
    return submit_again(connection, RepeatRequest(record, asked, pool), on_progress)


def _no_such_checkpoint(
    record: RunSpec, number: int, there: Sequence[CheckpointManifest]
) -> RunnerError:
    names = ", ".join(str(each.number) for each in there) or "none"
    return RunnerError(
        "R-RESUME-NOTHING",
        f"{record.run_id} has no complete checkpoint {number}",
        why=f"it has {names}; older ones were deleted when newer ones came",
        fix=f"choose one of those, or start over with runner retry {record.run_id}",
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
    """`run.json` can be read, and yet lack what running it again needs."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as err:
        raise RunnerError(
            "R-RUN-BROKEN",
            f"run.json of {record.run_id} does not say all that running it again needs",
            why=f"{type(err).__name__}: {err}",
            fix="runner train again from the recipe",
            exit_code=ExitCode.RUN_FAILED,
        ) from err


def check_parts(connection: Connection, record: RunSpec) -> None:
    """Raise RunnerError where the run's code or data is gone from blob."""
    record.check_executable()
    code = record.code
    size = runs_container(connection).size(code.blob)
    if size is None or size != (code.size_bytes or size):
        raise _gone(record, "code", code.blob, connection.outputs.container_runs)
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    uploaded = [each for each in record.inputs.values() if each.get("kind") in ("path", "dataset")]
    for data in (record.data.to_json() if record.data else None, *uploaded):
        if data and (gone := _missing_file(container, data)):
            raise _gone(record, "data", gone, container.name)


def _missing_file(container: BlobContainer, data: Mapping[str, Any]) -> str | None:
    there = {blob.name: blob.size_bytes for blob in container.list(data["prefix"])}
    names = {data["prefix"] + file["name"]: file["size_bytes"] for file in data["files"]}
    return next((name for name, size in names.items() if there.get(name) != size), None)


def _not_to_retry(record: RunSpec, state: RunState) -> RunnerError:
    if not state.final:
        return _goes_on(record, state)
    return RunnerError(
        "R-RETRY-STATE",
        f"{record.run_id} is {state.value}: there is nothing to retry",
        why="retry repeats what failed, was cancelled or was lost",
        fix=f"runner reproduce {record.run_id} runs it again and compares",
    )


def _goes_on(record: RunSpec, state: RunState) -> RunnerError:
    return RunnerError(
        "R-RUN-GOES-ON",
        f"{record.run_id} is {state.value}",
        why="it is still active, and continues by itself after an eviction",
        fix=f"runner attach {record.run_id}, or runner cancel {record.run_id} first",
    )


def _gone(record: RunSpec, what: str, blob: str, container: str) -> RunnerError:
    return RunnerError(
        f"R-REPEAT-{what.upper()}",
        f"the {what} of {record.run_id} is not in blob any more",
        why=f"{blob} is missing in container {container}, or has another size",
        fix=f"runner train again from the {'recipe' if what == 'code' else 'data'} on your machine",
        exit_code=ExitCode.PREFLIGHT,
    )
