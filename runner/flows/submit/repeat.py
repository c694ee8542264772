"""Submit one run again from its documents in blob: `retry`, `resume` and `reproduce`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import find_job_in_pool, read_max_parallel
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.planning.repeat import Repetition, order_runs
from runner.core.progress import OnProgress
from runner.core.states import RunState
from runner.flows.runs.attempts import (
    find_checkpoint,
    incomplete_checkpoints,
    list_checkpoints,
    load_history,
)
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.group_documents import with_later_runs
from runner.flows.runs.history import RunFilter, list_runs
from runner.flows.runs.live import load_view
from runner.flows.runs.rows import RunRow
from runner.flows.submit.consent import NOTHING, Consent
from runner.flows.submit.group import new_run_ids
from runner.flows.submit.lookups import repeat_predecessors
from runner.flows.submit.pipeline import RepeatRequest, plan_repetition
from runner.flows.submit.submit_run import CodeStore, submit_run
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import (
    LaterRun,
    RunGroup,
    group_blob,
    parse_group,
)
from runner.protocol.paths import RunPaths, blob_name, code_blob
from runner.protocol.run_spec import ResumeFrom, RunSpec
from runner.protocol.sweeps import TrialReport, reports_folder

TO_RETRY = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.LOST})
_FAILED = frozenset({RunState.FAILED, RunState.LOST})


def retry_run(
    connection: Connection,
    spec: RunSpec,
    pool: str | None,
    on_progress: OnProgress,
    consent: Consent = NOTHING,
    *,
    keep_node: str | None = None,
    notify: str | None = None,
) -> RunSpec:
    """Submit a failed, cancelled or lost run as a new run, which starts from the beginning."""
    view = load_view(connection, spec)
    if view.status.state not in TO_RETRY:
        raise _not_to_retry(spec, view.status.state)
    asked = Repetition("retry", keep_node=keep_node, notify=notify)
    request = _to_retry(connection, spec, pool, consent, asked, began=bool(view.attempts))
    return submit_again(connection, request, on_progress)


def _to_retry(
    connection: Connection,
    spec: RunSpec,
    pool: str | None,
    consent: Consent,
    asked: Repetition,
    *,
    began: bool,
) -> RepeatRequest:
    asked = replace(asked, after=repeat_predecessors(connection, spec, began=began))
    return _in_sweep(connection, RepeatRequest(spec, asked, pool, consent=consent))


def list_to_retry(connection: Connection, experiment: str | None) -> list[RunRow]:
    """Return the failed and lost runs without a repetition, newest first after predecessors."""
    rows = list_runs(connection, limit=None, only=RunFilter(experiment)).rows
    repeated = {row.spec.origin.run_id for row in rows if row.spec and row.spec.origin}
    found = {
        row.run_id: row
        for row in rows
        if row.status and row.status.state in _FAILED and row.run_id not in repeated
    }
    # Retry predecessors first, because a run waits for their repetitions.
    after = {
        run_id: [before for before in row.spec.after if before in found] if row.spec else []
        for run_id, row in found.items()
    }
    return [found[run_id] for run_id in order_runs(after)]


def retry_each(
    connection: Connection,
    rows: Iterable[RunRow],
    pool: str | None,
    on_progress: OnProgress,
    consent: Consent = NOTHING,
    *,
    keep_node: str | None = None,
    notify: str | None = None,
) -> Iterator[tuple[RunRow, RunSpec | RunnerError]]:
    """Yield each run with its repetition or the error. Raise if the services cannot be reached."""
    asked = Repetition("retry", keep_node=keep_node, notify=notify)
    for row in rows:
        try:
            spec = find_run(connection, row.run_id)
            request = _to_retry(connection, spec, pool, consent, asked, began=row.attempts > 0)
            yield row, submit_again(connection, request, on_progress)
        except RunnerError as err:
            if err.code == SERVICES_DOWN:
                raise
            yield row, err


def resume_run(  # noqa: PLR0913  one per option
    connection: Connection,
    spec: RunSpec,
    pool: str | None,
    overrides: tuple[str, ...],
    on_progress: OnProgress,
    number: int | None = None,
    *,
    nodes: int | None = None,
    fresh: bool = False,
    consent: Consent = NOTHING,
    keep_node: str | None = None,
    notify: str | None = None,
) -> RunSpec:
    """Submit a new run that resumes an ended one.

    Args:
        connection: the services.
        spec: the ended run.
        pool: the pool, or None for that of the run.
        overrides: parameters, `name=value`.
        on_progress: receives the progress.
        number: the checkpoint, or None for the newest complete one. An earlier one helps if the
            newest makes the script fail.
        nodes: the number of nodes, or None for that of the run.
        fresh: start from the beginning, without a checkpoint.
        consent: the variables of this machine that may be sent.
        keep_node: as --keep-node; None for the time of the run.
        notify: as --notify; None for the rule of the run.

    Raises:
        RunnerError: the run has not ended, or has no such checkpoint.
    """
    if fresh and number is not None:
        raise RunnerError(
            "R-RESUME-WHICH",
            "--fresh and --checkpoint exclude each other",
            why="a fresh start uses no checkpoint",
            fix=f"runner resume {spec.run_id} --fresh",
        )
    state = load_view(connection, spec).status.state
    if not state.final:
        raise _still_active(spec, state)
    before = None if fresh else _choose_checkpoint(connection, spec, state, number)
    asked = Repetition(
        "resume", overrides, resume_from=before, nodes=nodes, keep_node=keep_node, notify=notify
    )
    request = RepeatRequest(spec, asked, pool, consent=consent)
    if state in TO_RETRY and not overrides:
        request = _in_sweep(connection, request)
    return submit_again(connection, request, on_progress)


def _choose_checkpoint(
    connection: Connection, spec: RunSpec, state: RunState, number: int | None
) -> ResumeFrom:
    """Return the checkpoint to resume from. Raise RunnerError without one."""
    container = runs_container(connection)
    found = find_checkpoint(container, spec, number)
    if found is None and number is not None:
        raise _no_such_checkpoint(spec, state, number, list_checkpoints(container, spec.run_id))
    if found is None and (why := load_history(container, spec.run_id).describe()):
        raise RunnerError(
            "R-RESUME-FAILED",
            f"{spec.run_id} has no checkpoint that its script can load",
            why=why,
            fix=f"start from the beginning: runner resume {spec.run_id} --fresh",
        )
    if found is None:
        problems = incomplete_checkpoints(container, spec.run_id)
        wrote_none = (
            "its script saved none in $RUNNER_CHECKPOINT_DIR, or ended before the first one"
        )
        raise RunnerError(
            "R-RESUME-NOTHING",
            f"{spec.run_id} has no complete checkpoint",
            why="; ".join(problems) or wrote_none,
            fix=f"start from the beginning: {_start_over(spec, state)}",
        )
    run_id, checkpoint = found
    return ResumeFrom(run_id, checkpoint.number, exact=number is not None)


def _start_over(spec: RunSpec, state: RunState) -> str:
    """Return the command that repeats an ended run from the beginning."""
    return f"runner {'retry' if state in TO_RETRY else 'reproduce'} {spec.run_id}"


def _no_such_checkpoint(
    spec: RunSpec, state: RunState, number: int, there: Sequence[CheckpointManifest]
) -> RunnerError:
    names = ", ".join(str(each.number) for each in there) or "none"
    return RunnerError(
        "R-RESUME-NOTHING",
        f"{spec.run_id} has no complete checkpoint {number}",
        why=f"checkpoints: {names}; older ones are deleted",
        fix=f"use one of them, or start from the beginning: {_start_over(spec, state)}",
    )


def submit_again(
    connection: Connection, request: RepeatRequest, on_progress: OnProgress
) -> RunSpec:
    """Submit a repetition, with the code and data that are stored in blob."""
    spec = request.spec
    has_old_agent = request.schedule_id is not None
    check = partial(check_parts, spec=spec, has_old_agent=has_old_agent)
    checks = [(f"code and data of {spec.run_id}", check)]
    with require_complete_spec(spec):
        plan = plan_repetition(connection, request, checks if request.prepared is None else ())
    return submit_run(connection, plan, on_progress, is_new=request.is_new)


@contextmanager
def require_complete_spec(spec: RunSpec) -> Generator[None]:
    """Raise RunnerError if `run.json` lacks a value that the block needs."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as err:
        raise RunnerError(
            "R-RUN-BROKEN",
            f"cannot repeat {spec.run_id}: its run.json is incomplete",
            why=f"{type(err).__name__}: {err}",
            fix="run `runner train RECIPE` again",
            exit_code=ExitCode.RUN_FAILED,
        ) from err


def check_parts(connection: Connection, spec: RunSpec, *, has_old_agent: bool = False) -> None:
    """Raise RunnerError if code or data of the run is no longer in blob storage.

    With `has_old_agent`, the repetition has the agent of the run too.
    """
    spec.check_executable()
    store = CodeStore(connection)
    archives = {"code": spec.code.sha256}
    if has_old_agent:
        archives["agent"] = spec.agent_sha256
    for what, sha256 in archives.items():
        if not store.restore(sha256):
            raise _missing_from_storage("R-REPEAT-CODE", spec, what, code_blob(sha256), store.name)
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    uploaded = [each for each in spec.inputs.values() if each.get("kind") in ("path", "dataset")]
    for data in (spec.data.to_json() if spec.data else None, *uploaded):
        if data and (gone := _missing_file(container, data)):
            raise _missing_from_storage("R-REPEAT-DATA", spec, "data", gone, container.name)


def _missing_file(container: BlobContainer, data: Mapping[str, Any]) -> str | None:
    there = {blob.name: blob.size_bytes for blob in container.list(data["prefix"])}
    files: Sequence[Mapping[str, Any]] = data["files"]
    names = {blob_name(data["prefix"] + file["name"]): file["size_bytes"] for file in files}
    return next((name for name, size in names.items() if there.get(name) != size), None)


def _not_to_retry(spec: RunSpec, state: RunState) -> RunnerError:
    if not state.final:
        return _still_active(spec, state)
    return RunnerError(
        "R-RETRY-STATE",
        f"cannot retry {spec.run_id}: its state is {state.value}",
        why="only failed, cancelled and lost runs can be retried",
        fix=f"run `runner reproduce {spec.run_id}` to repeat it and compare the results",
    )


def _still_active(spec: RunSpec, state: RunState) -> RunnerError:
    return RunnerError(
        "R-RUN-GOES-ON",
        f"{spec.run_id} is {state.value}",
        why="the run is still active, and continues by itself after an eviction",
        fix=f"run `runner attach {spec.run_id}`, or `runner cancel {spec.run_id}` first",
    )


def _missing_from_storage(
    error: str, spec: RunSpec, what: str, blob: str, container: str
) -> RunnerError:
    return RunnerError(
        error,
        f"the {what} of {spec.run_id} is no longer in blob storage",
        why=f"{blob} is missing in container {container}, or was replaced by other content",
        fix="run `runner train RECIPE` again, with the recipe and the data on this machine",
        exit_code=ExitCode.PREFLIGHT,
    )


def _in_sweep(connection: Connection, request: RepeatRequest) -> RepeatRequest:
    """Return the request with the next run of the trial, if it repeats the newest one of a sweep.

    The sweep then counts the repetition, and `runner sweep resume` does not start another one.
    """
    spec, container = request.spec, runs_container(connection)
    content = container.read(group_blob(spec.group)) if spec.group else None
    if spec.group is None or content is None:
        return request
    sweep = with_later_runs(container, parse_group(content, spec.group))
    if not sweep.trials:
        return request
    chains = {name: [*sweep.earlier.get(name, ()), run_id] for name, run_id in sweep.runs.items()}
    name = next((name for name, runs in chains.items() if spec.run_id in runs), None)
    if name is None:
        return request
    later = chains[name][chains[name].index(spec.run_id) + 1 :]
    if any(container.size(RunPaths(run_id).run) is not None for run_id in later):
        return request  # the sweep counts a later run of this task
    find_job_in_pool(connection, sweep.job_id, request.pool or spec.pool)  # refused if paused
    number = len(chains[name]) + (not later)
    claim, is_new = claim_run(container, sweep, name, number)
    if claim is None:
        member = f"trial {name}" if name in sweep.trials else "the merge task"
        raise RunnerError(
            "R-RUN-GOES-ON",
            f"another client repeats {spec.run_id} at this moment",
            why=f"{member} of {sweep.group_id} has one active run at a time",
            fix=f"runner sweep show {sweep.group_id}",
        )
    await_reports(container, sweep, frozenset((name,)))
    return replace(
        request,
        group=sweep,
        claim=claim,
        max_parallel=read_max_parallel(connection, sweep.job_id),
        is_new=is_new,
    )


def await_reports(container: BlobContainer, sweep: RunGroup, trials: frozenset[str]) -> None:
    """Reset the reports of failed trials to waiting, so that the failures do not stop the sweep."""
    waiting: list[tuple[str, TrialReport]] = []
    for blob, metadata in container.list_metadata(reports_folder(sweep.group_id)):
        report = TrialReport.parse(blob, metadata)
        if report is not None and report.name in trials and report.state == "failed":
            waiting.append((blob, replace(report, state="waiting")))

    def reset(each: tuple[str, TrialReport]) -> None:
        blob, report = each
        container.put_metadata(blob, report.to_metadata(), overwrite=True)

    in_parallel(reset, waiting)


def claim_run(
    container: BlobContainer, sweep: RunGroup, name: str, number: int
) -> tuple[LaterRun | None, bool]:
    """Claim the next run of a trial, so that only one client submits it.

    Return None if another client has submitted it. If the client of an earlier claim was
    interrupted, there is no run yet: return that claim. The second value is True if the claim is
    new, so nothing of its run exists.
    """
    created = datetime.now(UTC)
    run_id = new_run_ids(sweep.name, [name], created)[name]
    claim = LaterRun(name, number, run_id, created)
    blob = claim.blob(sweep.group_id)
    if container.create(blob, claim.to_json()):
        return claim, True
    other = LaterRun.parse(blob, container.read(blob) or b"")
    if other is None or container.size(RunPaths(other.run_id).run) is not None:
        return None, False
    return other, False
