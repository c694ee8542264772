"""Delete runs with their blobs, tasks and ended jobs.

A mark in blob storage is written first and deleted last. It hides the run from lists, and contains
the data for deleting the rest, so that the same command can complete a killed deletion.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from threading import Lock

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import delete_tasks, has_ended, list_tasks
from runner.azure.batch.schedules import GROUP_TASK_ID
from runner.azure.storage.blobs import RENEWED_AFTER, BlobContainer, in_parallel
from runner.core.progress import OnProgress, Progress
from runner.core.states import RunState, RunStatus, TaskView
from runner.core.units import format_age
from runner.flows.models.versions import Model, list_models
from runner.flows.runs.documents import (
    code_container,
    list_run_folders,
    list_run_ids,
    load_index,
    resolve_run,
    runs_container,
)
from runner.flows.runs.group_documents import group_instead, with_later_runs
from runner.flows.runs.history import RunFilter, list_runs
from runner.flows.runs.rows import RunRow
from runner.flows.runs.waiting import WaitingTrialsCache, forget_waiting, read_run
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import SWEEPS_FOLDER, group_blob, parse_group
from runner.protocol.paths import (
    CODE_FOLDER,
    RunPaths,
    check_reference,
    code_blob,
    deleting_mark,
    submission_time,
)
from runner.protocol.results import index_blob
from runner.protocol.run_spec import RunSpec, parse_run
from runner.protocol.schedules import SCHEDULES_FOLDER
from runner.protocol.waiting_trials import waiting_blob

# Maximum time until a submission has added the task of a run.
_SUBMITTED_WITHIN = timedelta(minutes=15)
# A task ends soon after its run, or within its grace period after a cancellation.
_SETTLE_S = 30.0
_POLL_S = 0.5
_NEWER = (
    "a newer version of runner wrote it",
    "run `pip install --upgrade azure-batch-runner`, then run the command again",
)
_ROUNDS = 3
_UNREADABLE_SPEC = RunSpec(run_id="")


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The runs to delete: by reference, or all runs that match every other field."""

    references: tuple[str, ...] = ()
    experiment: str | None = None
    states: frozenset[RunState] = frozenset()
    older_than: timedelta | None = None

    def accepts(self, row: RunRow, now: datetime) -> bool:
        """Return True if the run matches all fields but `references`."""
        submitted = submission_time(row.run_id)
        if self.older_than is not None and (submitted is None or submitted > now - self.older_than):
            return False
        return RunFilter(self.experiment, self.states).accepts(row)


@dataclass(frozen=True, slots=True)
class RunToDelete:
    """A run to delete with its blobs; `row` is None if its deletion has begun."""

    run_id: str
    spec: RunSpec
    state: str
    row: RunRow | None = None
    blobs: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A selected run that is kept, with the reason and the next step."""

    run_id: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The runs to delete and to keep, and the groups that may have no runs afterwards.

    With `named`, the runs were selected by reference, and either all of them are deleted or none.
    """

    runs: tuple[RunToDelete, ...]
    kept: tuple[KeptRun, ...]
    groups: frozenset[str]
    named: bool = False

    @property
    def blobs(self) -> int:
        """The number of blobs."""
        return sum(run.blobs for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """The size of the blobs."""
        return sum(run.size_bytes for run in self.runs)


@dataclass(frozen=True, slots=True)
class RemovedRuns:
    """The result of a deletion: the executed plan, deleted jobs, and deleted code archives."""

    plan: RemovalPlan
    jobs: tuple[str, ...]
    archives: int
    archive_bytes: int


def plan_removal(
    connection: Connection, selection: RunSelection, now: datetime | None = None
) -> RemovalPlan:
    """Return the plan of deleting the selected runs.

    Raises:
        RunnerError: a run that was selected by its reference does not exist or is in use.
    """
    now = now or datetime.now(UTC)
    container = runs_container(connection)
    begun = _interrupted(container)
    rows = {row.run_id: row for row in list_runs(connection, limit=None).rows}
    known = {**rows, **begun}
    chosen, groups = _resolve_references(connection, container, selection.references, begun)
    if not selection.references:
        chosen = [run_id for run_id, row in known.items() if selection.accepts(row, now)]
    unbegun = [rows[run_id] for run_id in chosen if run_id in rows]
    settle_s = _SETTLE_S if selection.references else 0
    kept = _find_kept(connection, container, unbegun, list(rows.values()), now, settle_s)
    if kept and selection.references:
        raise _in_use(kept[0], len(kept))
    spared = {each.run_id for each in kept}
    selected = [
        replace(_to_delete(each, known.get(each)), row=rows.get(each))
        for each in chosen
        if each not in spared
    ]
    found = in_parallel(lambda run: _measured(container, run), selected)
    groups |= {run.spec.group for run in selected if run.spec.group}
    named = bool(selection.references)
    return RemovalPlan(tuple(found), tuple(kept), frozenset(groups), named)


def _to_delete(run_id: str, row: RunRow | None) -> RunToDelete:
    if row is None or row.spec is None or row.status is None:
        return RunToDelete(run_id, _UNREADABLE_SPEC, "unreadable")
    return RunToDelete(run_id, row.spec, row.status.state.value)


def _measured(container: BlobContainer, run: RunToDelete) -> RunToDelete:
    sizes = [blob.size_bytes for blob in container.list(RunPaths(run.run_id).root)]
    return replace(run, blobs=len(sizes), size_bytes=sum(sizes))


def _interrupted(container: BlobContainer) -> dict[str, RunRow]:
    """Return the runs whose deletion has begun, from their marks."""

    def load(run_id: str) -> RunRow:
        with suppress(RunnerError, *DAMAGED):
            spec = parse_run(container.read(deleting_mark(run_id)) or b"", run_id)
            return RunRow(run_id, spec, RunStatus(RunState(spec.raw["state"])), None)
        return RunRow(run_id, None, None, None)

    ids = sorted(list_run_folders(container)[1])
    return dict(zip(ids, in_parallel(load, ids), strict=True))


def _resolve_references(
    connection: Connection,
    container: BlobContainer,
    references: Sequence[str],
    begun: Collection[str],
) -> tuple[list[str], set[str]]:
    """Return the runs that references name, directly or by group, and the named groups."""
    found: dict[str, None] = {}
    groups: set[str] = set()
    for reference in references:
        text = check_reference(reference)
        halves = [run_id for run_id in begun if run_id.startswith(text)]
        try:
            found[text if text in begun else resolve_run(container, text)] = None
        except RunnerError as err:
            if err.code == "R-RUN-UNKNOWN" and len(halves) == 1:
                found[halves[0]] = None
                continue
            group = group_instead(connection, text, err)
            groups.add(group.group_id)
            there = {*list_run_folders(container)[0], *begun}
            ids = (*group.runs.values(), *(run for runs in group.earlier.values() for run in runs))
            found |= dict.fromkeys(run for run in ids if run in there)
    return list(found), groups


def _in_use(first: KeptRun, count: int) -> RunnerError:
    more = f", and {count - 1} more of these runs" if count > 1 else ""
    return RunnerError(
        "R-RUN-IN-USE",
        f"run {first.run_id} is in use{more}",
        why=f"{first.why}; nothing was deleted",
        fix=first.fix,
    )


def _find_kept(
    connection: Connection,
    container: BlobContainer,
    chosen: Sequence[RunRow],
    rows: Sequence[RunRow],
    now: datetime,
    settle_s: float,
) -> list[KeptRun]:
    """Return the chosen runs that must be kept: they have not ended, or other runs need them."""
    if not chosen:
        return []
    needed = _needed_runs(connection, container, rows, now)
    for row in chosen:
        if not row.is_over:
            needed[row.run_id] = f"it is {row.state}", f"runner cancel {row.run_id}"
        elif row.spec is None and _is_newer(container, row.run_id):
            needed[row.run_id] = _NEWER
    others = [row for row in chosen if row.run_id not in needed]
    tasks = _load_tasks(connection, others, settle_s)
    for row in others:
        task = tasks.get(row.run_id)
        if late := _unfinished_reason(row, task, now):
            needed[row.run_id] = late
    return [KeptRun(row.run_id, *needed[row.run_id]) for row in chosen if row.run_id in needed]


def _load_tasks(
    connection: Connection, rows: Sequence[RunRow], settle_s: float
) -> dict[str, TaskView]:
    """Return tasks by run ID. Wait up to `settle_s` for the tasks of runs with a result."""
    deadline = time.monotonic() + settle_s
    jobs = list({row.spec.job_id for row in rows if row.spec})
    while True:
        listed = in_parallel(lambda job_id: list_tasks(connection, job_id), jobs)
        by_job = dict(zip(jobs, listed, strict=True))
        active = [
            job for job, tasks in by_job.items() if any(t.phase == "active" for t in tasks.values())
        ]
        ended = {job for job in active if has_ended(connection, job)}
        found = {
            row.run_id: task
            for row in rows
            if row.spec and (task := by_job[row.spec.job_id].get(row.spec.task_id))
            # An active task of an ended job never starts.
            if not (task.phase == "active" and row.spec.job_id in ended)
        }
        late = any(row.result and _is_unfinished(found.get(row.run_id)) for row in rows)
        if not late or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


def _is_unfinished(task: TaskView | None) -> bool:
    return task is not None and task.phase != "completed"


def _is_newer(container: BlobContainer, run_id: str) -> bool:
    try:
        parse_run(container.read(RunPaths(run_id).run) or b"", run_id)
    except RunnerError as err:
        return err.code == "R-RUN-FORMAT"
    return False


def _unfinished_reason(row: RunRow, task: TaskView | None, now: datetime) -> tuple[str, str] | None:
    """Return why a run in a final state may still change, with the fix."""
    if _is_unfinished(task):
        return "its task has not ended", "try again in a minute; a task ends soon after its result"
    if row.spec is None or task is not None or not _is_being_submitted(row, now):
        return None
    passed = now - row.spec.created
    why = f"it was submitted {format_age(passed)} ago and may not have a task yet"
    return why, f"try again in {format_age(_SUBMITTED_WITHIN - passed)}"


def _is_being_submitted(row: RunRow, now: datetime) -> bool:
    """Return True if a run without a result may not have its task yet."""
    recent = row.spec is not None and now - row.spec.created < _SUBMITTED_WITHIN
    return recent and row.result is None


def _needed_runs(
    connection: Connection, container: BlobContainer, rows: Sequence[RunRow], now: datetime
) -> dict[str, tuple[str, str]]:
    """Return reason and fix for each run that models, schedules or other runs need."""
    active = [
        row.run_id
        for row in rows
        if (row.status and not row.status.state.final) or _is_being_submitted(row, now)
    ]
    models = list_models(connection)
    found = _possible_origins(models, rows)
    waiting = WaitingTrialsCache(container)
    contents = in_parallel(lambda each: read_run(container, each, waiting), active)
    for run_id, content in zip(active, contents, strict=True):
        with suppress(RunnerError):
            for used in _used_by(parse_run(content or b"", run_id)):
                found[used] = f"run {run_id} needs it and has not ended", f"runner cancel {run_id}"
    for schedule, template in _templates(container):
        for used in _used_by(template or _UNREADABLE_SPEC):
            found[used] = f"schedule {schedule} needs it", f"runner schedule rm {schedule}"
    for version in (version for model in models for version in model.live):
        run_id = str((version.document or {}).get("run_id"))
        found[run_id] = f"it is the origin of model {version}", f"runner models rm {version}"
    return found


def _possible_origins(
    models: Iterable[Model], rows: Iterable[RunRow]
) -> dict[str, tuple[str, str]]:
    """Return every succeeded run if a model version is unreadable: any may be its origin."""
    broken = (version for model in models for version in model.versions if version.problem)
    if (version := next(broken, None)) is None:
        return {}
    why = f"model {version} cannot be read, and may come from this run"
    fix = f"repair the model, see `runner models ls {version.name}`"
    succeeded = (row for row in rows if row.state == RunState.SUCCEEDED)
    return {row.run_id: (why, fix) for row in succeeded}


def _used_by(spec: RunSpec) -> Iterator[str]:
    """Yield the runs that a run reads when it starts."""
    yield from spec.after
    yield from (str(one["run_id"]) for one in spec.inputs.values() if one.get("run_id"))
    if spec.resume_from is not None:
        yield spec.resume_from.run_id


def _templates(container: BlobContainer) -> Iterator[tuple[str, RunSpec | None]]:
    """Yield each template of a run with its schedule's name; None is an unreadable template."""
    names = [blob.name for blob in container.list(SCHEDULES_FOLDER)]
    names = [name for name in names if name.endswith(("/run.json", "/group.json"))]
    for name, content in zip(names, in_parallel(container.read, names), strict=True):
        schedule = name.removeprefix(SCHEDULES_FOLDER).partition("/")[0]
        try:
            raw = parse_json(content or b"")
            runs = [task["run"] for task in raw["tasks"].values()] if "tasks" in raw else [raw]
            specs = [RunSpec.from_json(run) for run in runs]
        except DAMAGED:
            specs = [None]
        yield from ((schedule, spec) for spec in specs)


@dataclass(slots=True)
class _Counter:
    """Reports the number of deleted blobs."""

    total: int
    on_progress: OnProgress
    done: int = 0
    lock: Lock = field(default_factory=Lock)

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            step = Progress("delete", "progress", "", self.done, self.total, "blobs")
            self.on_progress(step)


def remove_runs(
    connection: Connection,
    plan: RemovalPlan,
    on_progress: OnProgress,
    now: datetime | None = None,
) -> RemovedRuns:
    """Delete the runs of a plan, except runs that are needed since the plan was made.

    Runs that were deleted in the meantime are ignored.

    Raises:
        RunnerError: a run that was selected by its reference is in use now.
    """
    container, now = runs_container(connection), now or datetime.now(UTC)
    plan = _marked(connection, container, plan, now)
    on_progress(Progress("delete", "start", f"deleting {plan.blobs} blobs"))
    for group_id in plan.groups:
        forget_waiting(container, group_id, (run.run_id for run in plan.runs))
    in_parallel(lambda run: _hide(container, run), plan.runs)
    _delete_blobs(container, plan, on_progress)
    jobs = _delete_from_batch(connection, [run.spec for run in plan.runs])
    for group_id in plan.groups:
        _forget_group(container, group_id)
    archives = _delete_unused_archives(connection, now)
    in_parallel(lambda run: container.delete(deleting_mark(run.run_id)), plan.runs)
    on_progress(Progress("delete", "end", f"{plan.blobs} blobs"))
    return RemovedRuns(plan, jobs, len(archives), sum(archives))


def remove_expired(
    connection: Connection, retention: timedelta, on_progress: OnProgress
) -> RemovalPlan:
    """Delete the runs that are older than `retention`. Return the executed plan."""
    now = datetime.now(UTC)
    ids = list_run_ids(runs_container(connection))
    if not any((at := submission_time(run_id)) and at < now - retention for run_id in ids):
        return RemovalPlan((), (), frozenset())
    plan = plan_removal(connection, RunSelection(older_than=retention), now)
    return remove_runs(connection, plan, on_progress, now).plan if plan.runs else plan


def _marked(
    connection: Connection, container: BlobContainer, plan: RemovalPlan, now: datetime
) -> RemovalPlan:
    """Mark the runs of a plan, check again whether they are needed, and return the rest.

    The first check may be old, because the user was asked in between. No list shows marked runs.
    """
    new = in_parallel(lambda run: _mark(container, run), plan.runs)
    marked = [run.run_id for run, is_new in zip(plan.runs, new, strict=True) if is_new]
    chosen = [run.row for run in plan.runs if run.row is not None]
    undone: Collection[str] = marked
    try:
        rows = [*list_runs(connection, limit=None).rows, *chosen] if chosen else []
        kept = _find_kept(connection, container, chosen, rows, now, 0)
        if kept and plan.named:
            raise _in_use(kept[0], len(kept))
        spared = {each.run_id for each in kept}
        undone = spared.intersection(marked)
    finally:
        in_parallel(lambda run_id: container.delete(deleting_mark(run_id)), list(undone))
    runs = tuple(run for run in plan.runs if run.run_id not in spared)
    return RemovalPlan(runs, (*plan.kept, *kept), plan.groups, plan.named)


def _mark(container: BlobContainer, run: RunToDelete) -> bool:
    """Hide a run from all lists. Return False if it was marked before."""
    document = run.spec.to_json() if run.spec.run_id else {}
    return container.create(deleting_mark(run.run_id), {**document, "state": run.state})


def _hide(container: BlobContainer, run: RunToDelete) -> None:
    """Delete the documents by which readers find a run."""
    container.delete(index_blob(run.run_id))
    container.delete(RunPaths(run.run_id).run)


def _delete_blobs(container: BlobContainer, plan: RemovalPlan, on_progress: OnProgress) -> None:
    counter = _Counter(plan.blobs, on_progress)

    def names_of(run: RunToDelete) -> list[str]:
        return [blob.name for blob in container.list(RunPaths(run.run_id).root)]

    for _ in range(_ROUNDS):  # a node that seemed to be lost may write blobs meanwhile
        names = list(chain.from_iterable(in_parallel(names_of, plan.runs)))
        if not names:
            return
        container.delete_all(names, counter.add)
    if names := list(chain.from_iterable(in_parallel(names_of, plan.runs))):
        raise RunnerError(
            "R-RUN-WRITTEN",
            f"{names[0]} was written again after it had been deleted",
            why="a node that seemed to be lost is still writing",
            fix="run the same command again in a few minutes",
        )


def _delete_from_batch(connection: Connection, specs: Iterable[RunSpec]) -> tuple[str, ...]:
    """Delete the tasks of runs. Return the jobs that were deleted with them."""
    by_job: dict[str, set[str]] = defaultdict(set)
    for spec in specs:
        if spec.job_id:
            by_job[spec.job_id].add(spec.task_id)
            if spec.schedule:  # the job manager task
                by_job[spec.job_id].add(GROUP_TASK_ID)
    jobs = list(by_job)
    gone = in_parallel(lambda job_id: delete_tasks(connection, job_id, by_job[job_id]), jobs)
    return tuple(job_id for job_id, deleted in zip(jobs, gone, strict=True) if deleted)


def _forget_group(container: BlobContainer, group_id: str) -> None:
    """Delete the documents of a group without runs."""
    content = container.read(group_blob(group_id))
    if content is None:
        return
    with suppress(RunnerError):  # keep a document that cannot be read
        group = with_later_runs(container, parse_group(content, group_id))
        runs = (*group.runs.values(), *(run for runs in group.earlier.values() for run in runs))
        if container.size(waiting_blob(group_id)) is not None:
            return
        if not any(container.size(RunPaths(run_id).run) is not None for run_id in runs):
            for blob in container.list(f"{SWEEPS_FOLDER}{group_id}/") if group.trials else ():
                container.delete(blob.name)
            container.delete(group_blob(group_id))


def _delete_unused_archives(connection: Connection, now: datetime) -> list[int]:
    """Delete code archives that no run and no schedule uses. Return their sizes.

    Those of outputs of version 1 are in the container of runs.
    """
    runs = runs_container(connection)
    places = [runs]
    if connection.outputs.container_code is not None:
        places.append(code_container(connection))
    old = [
        (place, blob)
        for place in places
        for blob in place.list(CODE_FOLDER)
        if blob.modified is not None and now - blob.modified > 2 * RENEWED_AFTER
    ]
    used = _used_archives(runs) if old else None
    if used is None:
        return []
    unused = [(place, blob) for place, blob in old if blob.name not in used]
    # If a submission uses one of them meanwhile, its ETag changes, and it is not deleted.
    gone = in_parallel(lambda one: one[0].delete(one[1].name, one[1].etag), unused)
    return [b.size_bytes for (_, b), deleted in zip(unused, gone, strict=True) if deleted]


def _used_archives(container: BlobContainer) -> frozenset[str] | None:
    """Return the archives of all runs and schedules, or None if a document cannot be read."""
    index = {run_id: entry.spec for run_id, entry in load_index(container).items()}
    ids, _ = list_run_folders(container)
    unknown = [run_id for run_id in ids if run_id not in index or not index[run_id].agent_sha256]
    waiting = WaitingTrialsCache(container)
    contents = in_parallel(lambda run_id: read_run(container, run_id, waiting), unknown)
    try:
        read = [parse_run(c, run_id) for run_id, c in zip(unknown, contents, strict=True) if c]
    except RunnerError:
        return None
    listed = [index[run_id] for run_id in ids if run_id in index]
    specs = [*read, *listed, *(spec for _, spec in _templates(container))]
    if not all(specs):
        return None
    hashes = ((spec.code.sha256, spec.agent_sha256) for spec in specs if spec)
    return frozenset(map(code_blob, chain.from_iterable(hashes)))
