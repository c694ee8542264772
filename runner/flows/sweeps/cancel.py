"""Cancel several runs: those of a group, a sweep, an experiment or a pool."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import close_when_done, find_job_view, terminate_job
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.core.states import RunState
from runner.flows.runs.cancel import CANCELLED_BY_USER, Cancelled, cancel_queued, cancel_run
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.history import EVERY_RUN, RunFilter, find_unfinished, list_runs
from runner.flows.runs.rows import RunRow
from runner.flows.runs.waiting import WaitingTrialsCache, list_started, read_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup, levels
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import parse_run
from runner.protocol.waiting_trials import WaitingTrials, waiting_blob

_END_POLL_S = 0.2  # a terminated job ends as soon as its running tasks do
_LAST_START_S = 15.0  # maximum time until a terminated job has no tasks


def cancel_group(
    connection: Connection, group: RunGroup, on_progress: OnProgress = ignore_progress
) -> dict[str, Cancelled]:
    """Cancel the runs of a group, dependents first, so that no run starts meanwhile.

    The job of the group is closed, even if a killed `runner submit` left it open.
    """
    if group.trials:
        return _cancel_sweep(connection, group, on_progress)
    container = runs_container(connection)
    done: dict[str, Cancelled] = {}
    unit = f"{group.noun}s"
    on_progress(Progress("cancel", "start"))

    def cancel(name: str) -> None:
        run_id = group.runs[name]
        content = container.read(RunPaths(run_id).run)
        if content is not None:
            done[name] = cancel_run(connection, parse_run(content, run_id))
        on_progress(Progress("cancel", "progress", "", len(done), len(group.runs), unit))

    for level in reversed(levels(group.after)):
        in_parallel(cancel, level)
    close_when_done(connection, group.job_id)
    on_progress(Progress("cancel", "end", "", len(done), len(group.runs), unit))
    return {name: done[name] for name in group.runs if name in done}


def _cancel_sweep(
    connection: Connection, sweep: RunGroup, on_progress: OnProgress
) -> dict[str, Cancelled]:
    """Cancel the trials of a sweep, with two requests for all waiting trials. Return the outcomes.

    A trial that a node starts at the same time ends with the job, and is then cancelled separately.
    """
    container = runs_container(connection)
    on_progress(Progress("cancel", "start"))
    started = list_started(container, sweep.group_id)
    names = {run_id: name for name, run_id in sweep.runs.items()}
    resumed = {sweep.runs[name] for name in sweep.earlier}  # their IDs do not name the sweep
    before = list_runs(connection, limit=None, ids=[*(started | resumed) & names.keys()]).rows
    over = {row.run_id: row for row in before if row.status and row.is_over}
    queued = {
        row.run_id: row.spec
        for row in before
        if row.run_id in resumed - over.keys() and row.spec and not row.attempts
        if row.spec.job_id.startswith(sweep.job_id)  # a trial with a cost cap has its own job
    }
    changed = _cancel_waiting(container, sweep.group_id, started)
    waiting = WaitingTrialsCache(container)
    trials = waiting.sweep(sweep.group_id)
    waits = (run_id for run_id in (trials.trials if trials else ()) if run_id not in started)
    job_ids = {trials.job_of(run_id) for run_id in waits} if trials else set[str]()
    job_ids |= {spec.job_id for spec in queued.values()}
    jobs = sorted(job_ids | {sweep.job_id})  # including those of resumed trials
    for job_id in jobs:
        terminate_job(connection, job_id)
    done = {
        run_id: Cancelled(RunState.CANCELLED, changed=run_id in changed)
        for run_id in names
        if (trials := waiting.unstarted(run_id)) and trials.result(run_id)
    }
    unstarted = frozenset(done)
    done |= {
        run_id: Cancelled(row.status.state, changed=False)
        for run_id, row in over.items()
        if row.status
    }

    def cancel(run_id: str) -> None:
        if run_id in queued and cancel_queued(container, queued[run_id]):
            done[run_id] = Cancelled(RunState.CANCELLED, changed=True)
        elif (content := read_run(container, run_id, waiting)) is not None:
            spec = parse_run(content, run_id)
            done[run_id] = cancel_run(connection, spec, also_terminated=True)
        on_progress(Progress("cancel", "progress", "", len(done), len(names), "trials"))

    in_parallel(cancel, [run_id for run_id in names if run_id not in done])
    # A task that was starting may write run.json after the trials were listed.
    ending = time.monotonic() + _LAST_START_S
    views = [find_job_view(connection, job_id) for job_id in jobs]
    while any(each and each.state != "completed" for each in views) and time.monotonic() < ending:
        time.sleep(_END_POLL_S)
        views = [find_job_view(connection, job_id) for job_id in jobs]
    late = list_started(container, sweep.group_id) - started
    in_parallel(cancel, late & unstarted)
    on_progress(Progress("cancel", "end", "", len(done), len(names), "trials"))
    return {name: done[run_id] for run_id, name in names.items() if run_id in done}


def _cancel_waiting(
    container: BlobContainer, group_id: str, started: Collection[str]
) -> frozenset[str]:
    """Record waiting trials as cancelled. Return those that were not cancelled before."""
    changed: frozenset[str] = frozenset()

    def change(content: bytes) -> bytes:
        nonlocal changed
        found = WaitingTrials.parse(content)
        if found is None:
            return content
        changed = frozenset(found.trials).difference(started, found.cancelled)
        return found.cancel(changed, datetime.now(UTC), CANCELLED_BY_USER).to_bytes()

    container.update(waiting_blob(group_id), change)
    return changed


def cancel_experiment(connection: Connection, experiment: str) -> dict[str, Cancelled]:
    """Cancel all unfinished runs of an experiment, newest first. Return the outcomes by run ID."""
    rows = _unfinished_rows(connection, RunFilter(experiment))
    return {row.run_id: cancel_run(connection, find_run(connection, row.run_id)) for row in rows}


def _unfinished_rows(connection: Connection, only: RunFilter) -> list[RunRow]:
    """Return the runs that have not ended, and those that keep their node after a failure."""
    ids = find_unfinished(connection, datetime.now(UTC), timedelta(0))
    rows = list_runs(connection, limit=None, only=only, ids=ids).rows
    return [row for row in rows if not row.is_over or row.kept is not None]


def cancel_pool(
    connection: Connection, pool_id: str, on_progress: OnProgress = ignore_progress
) -> dict[str, Cancelled]:
    """Cancel all unfinished runs on a pool, also of sweeps and groups. Return outcomes by run ID.

    Runs of a sweep or group on other pools continue.

    Raises:
        RunnerError: R-POOL-TEAM, the runs on the pool are those of another team.
    """
    refuse_pool_of_other_team(pool_id, connection.outputs)
    rows = _unfinished_rows(connection, EVERY_RUN)
    wanted = pool_id.lower()
    here = {r.run_id: r.spec for r in rows if r.spec and r.spec.pool.lower() == wanted}
    elsewhere = {row.spec.group for row in rows if row.spec and row.run_id not in here}
    groups = {spec.group for spec in here.values() if spec.group} - elsewhere
    done: dict[str, Cancelled] = {}
    for group_id in sorted(filter(None, groups)):
        with suppress(RunnerError):  # without its document, the runs are cancelled below
            group = find_group(connection, group_id)
            found = cancel_group(connection, group, on_progress)
            done |= {group.runs[name]: cancelled for name, cancelled in found.items()}
    return {
        run_id: done[run_id]
        if run_id in done
        else cancel_run(connection, find_run(connection, run_id))
        for run_id in here
    }
