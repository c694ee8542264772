"""Find submitted groups of runs by reference; read, follow and cancel them.

Modules with the Batch SDK are imported when needed; a sweep that has ended needs none.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.faults import TRANSIENT_CODES
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.core.states import RunState
from runner.flows.runs.documents import newest, runs_container
from runner.flows.runs.history import RunRow, list_runs
from runner.flows.runs.waiting import WaitingTrialsCache, list_started, read_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import (
    GROUPS_FOLDER,
    SUBMITTING_FOLDER,
    LaterRun,
    RunGroup,
    group_blob,
    levels,
    parse_group,
)
from runner.protocol.paths import (
    RunPaths,
    check_reference,
    find_similar_run,
    is_run_id,
    newest_first,
    parse_sweep_id,
)
from runner.protocol.run_spec import parse_run
from runner.protocol.waiting_trials import WaitingTrials, waiting_blob

if TYPE_CHECKING:
    from runner.flows.runs.cancel import Cancelled

_NOT_A_RUN = frozenset({"R-RUN-UNKNOWN", "R-RUN-AMBIGUOUS"})


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group and the present state of its existing runs, by task.

    `taken_out` is a message if scheduling was disabled on a failing node since the last view.
    """

    group: RunGroup
    rows: Mapping[str, RunRow]
    taken_out: str = ""

    @property
    def failed(self) -> int:
        """The number of runs that have failed."""
        states = (row.status.state for row in self.rows.values() if row.status)
        return sum(state is RunState.FAILED for state in states)


def find_group(connection: Connection, reference: str) -> RunGroup:
    """Return the group of an ID, a unique prefix, or `@last`. Raise RunnerError."""
    text = check_reference(reference)
    container = runs_container(connection)
    content = container.read(group_blob(text)) if is_run_id(text) else None
    if content is not None:
        return with_later_runs(container, parse_group(content, text))
    names = [
        blob.name for blob in container.list(f"{GROUPS_FOLDER}{'' if text == '@last' else text}")
    ]
    if text == "@last" and names:
        blobs = {_group_id(name): name for name in names}
        last = newest(
            list(blobs),
            lambda each: container.read(blobs[each]),
            lambda content, each: parse_group(content, each).created,
        )
        names = [blobs[last]]
    if len(names) == 1 and (content := container.read(names[0])) is not None:
        return with_later_runs(container, parse_group(content, names[0]))
    raise _several(text, names) if names else _no_group(container, text)


def with_later_runs(container: BlobContainer, group: RunGroup) -> RunGroup:
    """Return a sweep with the newest run of each trial; other groups are not changed."""
    if not group.trials:
        return group
    names = [blob.name for blob in container.list(LaterRun.folder(group.group_id))]
    contents = in_parallel(container.read, names)
    found = (
        LaterRun.parse(name, content or b"") for name, content in zip(names, contents, strict=True)
    )
    return group.with_later(each for each in found if each is not None)


def _several(text: str, names: Sequence[str]) -> RunnerError:
    shown = ", ".join(_group_id(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")
    return RunnerError(
        "R-GROUP-AMBIGUOUS",
        f"prefix {text!r} matches {len(names)} groups",
        why=shown,
        fix=f"use more characters of the ID, for example {_group_id(names[-1])}",
    )


def _no_group(container: BlobContainer, text: str) -> RunnerError:
    if begun := [note.name for note in container.list(f"{SUBMITTING_FOLDER}{text}")]:
        group_id = begun[0].removeprefix(SUBMITTING_FOLDER).removesuffix(".json")
        return RunnerError(
            "R-GROUP-SUBMITTING",
            f"the submission of {group_id} has not added its tasks",
            why="the submission is in progress, or was killed, in which case nothing of it runs",
            fix="try again in a moment; if it was killed, run `runner submit FILE` again",
        )
    near = find_similar_run(
        text, newest_first([_group_id(blob.name) for blob in container.list(GROUPS_FOLDER)])
    )
    fix = f"did you mean {near}?" if near else "runner submit FILE"
    return RunnerError("R-GROUP-UNKNOWN", f"group {text!r} not found", fix=fix)


def _group_id(blob: str) -> str:
    return blob.removeprefix(GROUPS_FOLDER).removesuffix(".json")


def list_group_ids(connection: Connection, prefix: str = "") -> list[str]:
    """Return the IDs of all groups with a prefix, newest first."""
    blobs = runs_container(connection).list(f"{GROUPS_FOLDER}{prefix}")
    return newest_first([_group_id(blob.name) for blob in blobs])


def group_instead(connection: Connection, reference: str, err: RunnerError) -> RunGroup:
    """Return the group of a reference; `err` is why it names no run.

    Raises:
        RunnerError: it names no group either; `err`, or the error of the group if that says more.
    """
    if err.code not in _NOT_A_RUN:
        raise err
    try:
        return find_group(connection, reference)
    except RunnerError as other:
        no_group = other.code in ("R-GROUP-UNKNOWN", "R-GROUP-AMBIGUOUS")
        if no_group and err.code == "R-RUN-AMBIGUOUS":
            raise err from None
        if other.code == "R-GROUP-UNKNOWN" and "did you mean" not in other.fix:
            raise err from None
        raise


def owner_of(container: BlobContainer, run_id: str) -> str | None:
    """Return the sweep or group of a run, or its own ID without one; None if it is not a run."""
    group_id = parse_sweep_id(run_id)
    if group_id and container.size(group_blob(group_id)) is not None:
        return group_id
    with suppress(RunnerError):
        content = read_run(container, run_id)
        if content is None:
            return None
        group_id = parse_run(content, run_id).group
        if group_id and container.size(group_blob(group_id)) is not None:
            return group_id
    return run_id


def owners_of(container: BlobContainer, tasks: Iterable[tuple[str, str]]) -> list[str]:
    """Return the sweeps, groups and runs that tasks belong to, each once. Other tasks are ignored.

    Args:
        container: the container of runs.
        tasks: IDs of job and task.
    """
    found = in_parallel(lambda each: owner_of(container, each[1]), tasks)
    return [*dict.fromkeys(filter(None, found))]


def load_group_view(
    connection: Connection, group: RunGroup, known: GroupView | None = None
) -> GroupView:
    """Return the present runs of a group; runs that have ended in `known` are not read again.

    The state of runs that are unfinished in `known` is read from their tasks, which takes one
    request for all waiting runs. Their documents are read again if a task was deleted or ended
    without a result, because the run may have moved to another job.
    """
    before: Mapping[str, RunRow] = known.rows if known else {}
    rows = {name: row for name, row in before.items() if row.result}
    ids = {run_id: name for name, run_id in group.runs.items() if name not in rows}
    specs = {
        row.run_id: row.spec
        for row in before.values()
        if row.run_id in ids and row.spec and row.status and not row.status.state.final
    }
    found: dict[str, RunRow] = {}
    if specs:
        from runner.flows.runs.stuck import PoolReader  # noqa: PLC0415
        from runner.flows.runs.watch import live_rows  # noqa: PLC0415

        live = live_rows(connection, list(specs.values()), PoolReader(connection))
        found |= {run_id: row for run_id, row in live.items() if row and _is_certain(row)}
    unknown = [run_id for run_id in ids if run_id not in found]
    if unknown:
        found |= {row.run_id: row for row in list_runs(connection, limit=None, ids=unknown).rows}
    # Keep the order of the group.
    present = {name: row for run_id, name in ids.items() if (row := found.get(run_id))}
    return GroupView(group, rows | present)


def _is_certain(row: RunRow) -> bool:
    return row.status is not None and (row.result is not None or not row.status.state.final)


def cancel_group(
    connection: Connection, group: RunGroup, on_progress: OnProgress = ignore_progress
) -> dict[str, Cancelled]:
    """Cancel the runs of a group, dependents first, so that no run starts meanwhile.

    The job of the group is closed, even if a killed `runner submit` left it open.
    """
    from runner.azure.batch.jobs import close_when_done  # noqa: PLC0415
    from runner.flows.runs.cancel import cancel_run  # noqa: PLC0415

    if group.trials:
        return _cancel_sweep(connection, group, on_progress)
    container = runs_container(connection)
    done: dict[str, Cancelled] = {}
    on_progress(Progress("cancel", "start"))

    def cancel(name: str) -> None:
        run_id = group.runs[name]
        content = container.read(RunPaths(run_id).run)
        if content is not None:
            done[name] = cancel_run(connection, parse_run(content, run_id))
        on_progress(Progress("cancel", "progress", "", len(done), len(group.runs), "tasks"))

    for level in reversed(levels(group.after)):
        in_parallel(cancel, level)
    close_when_done(connection, group.job_id)
    on_progress(Progress("cancel", "end", "", len(done), len(group.runs), "tasks"))
    return {name: done[name] for name in group.runs if name in done}


def _cancel_sweep(
    connection: Connection, sweep: RunGroup, on_progress: OnProgress
) -> dict[str, Cancelled]:
    """Cancel the trials of a sweep, with two requests for all waiting trials. Return the outcomes.

    A trial that a node starts at the same time ends with the job, and is then cancelled separately.
    """
    from runner.azure.batch.jobs import find_job_view, terminate_job  # noqa: PLC0415
    from runner.flows.runs.cancel import Cancelled, cancel_queued, cancel_run  # noqa: PLC0415

    container = runs_container(connection)
    on_progress(Progress("cancel", "start"))
    started = list_started(container, sweep.group_id)
    names = {run_id: name for name, run_id in sweep.runs.items()}
    resumed = {sweep.runs[name] for name in sweep.earlier}  # their IDs do not name the sweep
    before = list_runs(connection, limit=None, ids=[*(started | resumed) & names.keys()]).rows
    over = {row.run_id: row for row in before if row.status and row.status.state.final}
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
    from runner.flows.runs.cancel import CANCELLED_BY_USER  # noqa: PLC0415

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


_POLL_S = 1.0
_LONGEST_POLL_S = 15.0
_POLL_SHARE = 0.1  # maximum part of the time for polls: local services share the cores of the runs
_END_POLL_S = 0.2  # a terminated job ends as soon as its running tasks do
_LAST_START_S = 15.0  # maximum time until a terminated job has no tasks


def group_views(connection: Connection, group: RunGroup) -> Iterator[GroupView | None]:
    """Yield a view each second until all runs have ended; None while services do not respond.

    Views of a large group follow each other more slowly, because they take long to read. Disables
    scheduling on a node that keeps failing runs of the group.

    Raises:
        RunnerError: the services did not respond for `CONTACT_TIMEOUT_S`.
    """
    from runner.flows.runs.stuck import disable_failing_node  # noqa: PLC0415
    from runner.flows.runs.watch import CONTACT_TIMEOUT_S  # noqa: PLC0415

    contact = time.monotonic()
    view = last = None
    failed = 0
    while True:
        began = time.monotonic()
        try:
            view = last = load_group_view(connection, group, last)
            if view.failed > failed:
                failed = view.failed
                pools = {row.spec.pool for row in view.rows.values() if row.spec}
                taken_out = (disable_failing_node(connection, pool) for pool in sorted(pools))
                view = replace(view, taken_out=next(filter(None, taken_out), ""))
            contact = time.monotonic()
        except RunnerError as err:
            if err.code not in TRANSIENT_CODES or time.monotonic() - contact > CONTACT_TIMEOUT_S:
                raise
            view = None
        took = time.monotonic() - began if view else 0.0
        yield view
        if view and all(row.status is None or row.status.state.final for row in view.rows.values()):
            return
        time.sleep(max(_POLL_S, min(took / _POLL_SHARE, _LONGEST_POLL_S)))
