"""Delete runs with their blobs, tasks and ended jobs.

A mark in blob storage is written first and deleted last. It hides the run from lists, and contains
the data for deleting the rest, so that the same command can complete a killed deletion.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from posixpath import commonprefix
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
    resolve_run,
    runs_container,
)
from runner.flows.runs.group_documents import group_instead, with_later_runs
from runner.flows.runs.history import RunFilter, find_unfinished, iterate_runs, list_runs
from runner.flows.runs.rows import RunRow
from runner.flows.runs.time_index import TimeIndex
from runner.flows.runs.waiting import WaitingTrialsCache, forget_waiting, read_run
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import SWEEPS_FOLDER, group_blob, parse_group
from runner.protocol.paths import (
    CODE_FOLDER,
    DELETING_FOLDER,
    RunPaths,
    check_reference,
    code_blob,
    deleting_mark,
    deleting_note,
    is_run_id,
    task_trial_ids,
)
from runner.protocol.results import (
    BY_TIME_FOLDER,
    BY_TIME_MARK,
    INDEX_FOLDER,
    by_time_blob,
    index_blobs,
    index_metadata,
)
from runner.protocol.run_spec import RunSpec, parse_run
from runner.protocol.schedules import SCHEDULES_FOLDER
from runner.protocol.waiting_trials import waiting_blob

# Maximum time until a submission has added the task of a run.
_SUBMITTED_WITHIN = timedelta(minutes=15)
# A task ends soon after its run, or within its grace period after a cancellation.
SETTLE_S = 30.0
_POLL_S = 0.5
_NEWER = (
    "a newer version of runner wrote it",
    "run `pip install --upgrade azure-batch-runner`, then run the command again",
)
_ROUNDS = 3
_LISTED_ALONE = 200  # maximum number of runs that are listed one by one
_FEW_RUNS = 1000  # maximum number whose code is collected after the deletion of named runs
_UNREADABLE_SPEC = RunSpec(run_id="")


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The runs to delete: by reference, or all runs that match every other field."""

    references: tuple[str, ...] = ()
    experiment: str | None = None
    states: frozenset[RunState] = frozenset()
    older_than: timedelta | None = None

    def filter(self, now: datetime) -> RunFilter:
        """Return the filter of all fields but `references`."""
        before = None if self.older_than is None else now - self.older_than
        return RunFilter(self.experiment, self.states, before=before)


@dataclass(frozen=True, slots=True)
class RunToDelete:
    """A run to delete with its blobs; `row` is None if its deletion has begun."""

    run_id: str
    spec: RunSpec
    state: str
    row: RunRow | None = None
    names: tuple[str, ...] = field(default=(), repr=False)
    size_bytes: int = 0

    @property
    def blobs(self) -> int:
        """The number of blobs."""
        return len(self.names)

    @property
    def may_be_written(self) -> bool:
        """True if a node that seemed to be lost may still write blobs of the run."""
        return self.row is None or self.row.result is None


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A selected run that is kept, with the reason and the next step.

    `is_needed` is True if a model, a schedule or another run needs it, False if it may change.
    """

    run_id: str
    why: str
    fix: str
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The runs to delete and to keep, and the groups that may have no runs afterwards.

    With `named`, the runs were selected by reference, and either all of them are deleted or none.
    Only those of a sweep or group, which are in `members`, are kept if something needs them.
    """

    runs: tuple[RunToDelete, ...]
    kept: tuple[KeptRun, ...]
    groups: frozenset[str]
    named: bool = False
    members: frozenset[str] = frozenset()

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

    Without references, it also has the runs whose deletion was interrupted after their documents
    were deleted.

    Raises:
        RunnerError: a run that was selected by its reference does not exist or is in use.
    """
    now = now or datetime.now(UTC)
    container = runs_container(connection)
    named = bool(selection.references)
    if named:
        references = _resolve_references(connection, container, selection.references)
        chosen, groups, begun, members = references
        rows = {row.run_id: row for row in list_runs(connection, limit=None, ids=chosen).rows}
        rows = {key: row for key, row in rows.items() if row.spec or key not in begun}
    else:
        groups, only, members = set[str](), selection.filter(now), frozenset[str]()
        rows = {row.run_id: row for row in iterate_runs(connection, only)}
        begun = _begun(container)
        others = [run_id for run_id in begun if run_id not in rows]
        hidden = _hidden(container, others)
        chosen = [*rows, *(each for each in others if each in hidden or only.accepts(begun[each]))]
    unbegun = [rows[run_id] for run_id in chosen if run_id in rows]
    kept = _find_kept(connection, container, unbegun, now, SETTLE_S if named else 0)
    if named:
        _refuse_used(kept, members)
    spared = {each.run_id for each in kept}
    selected = [
        replace(_to_delete(each, rows.get(each) or begun.get(each)), row=rows.get(each))
        for each in chosen
        if each not in spared
    ]
    found = _measured(container, selected)
    groups |= {run.spec.group for run in selected if run.spec.group}
    return RemovalPlan(tuple(found), tuple(kept), frozenset(groups), named, members)


def _to_delete(run_id: str, row: RunRow | None) -> RunToDelete:
    if row is None or row.spec is None or row.status is None:
        return RunToDelete(run_id, _UNREADABLE_SPEC, "unreadable")
    return RunToDelete(run_id, row.spec, row.status.state.value)


def _measured(container: BlobContainer, runs: Sequence[RunToDelete]) -> list[RunToDelete]:
    """Return the runs with their blobs: from a listing of each, or of everything for many runs."""
    names: dict[str, list[str]] = {run.run_id: [] for run in runs}
    sizes = dict.fromkeys(names, 0)

    def add(found: Iterable[tuple[str, int]]) -> None:
        for name, size in found:
            run_id, slash, _ = name.partition("/")
            if slash and run_id in names:
                names[run_id].append(name)
                sizes[run_id] += size

    if len(runs) <= _LISTED_ALONE:
        in_parallel(lambda run: add(container.sizes(RunPaths(run.run_id).root)), runs)
    else:
        add(container.sizes())
    return [
        replace(run, names=tuple(names[run.run_id]), size_bytes=sizes[run.run_id]) for run in runs
    ]


def _begun(container: BlobContainer) -> dict[str, RunRow]:
    """Return the runs whose deletion has begun, from the notes of their deletion.

    If the index by time is not complete, also those of an older client.
    """
    found: dict[str, RunRow] = {}
    for name, metadata in container.list_metadata(DELETING_FOLDER):
        run_id = name.removeprefix(DELETING_FOLDER)
        known = "run" in metadata  # unless it was too long
        content = metadata.get("run", "").encode()
        found[run_id] = (
            _begun_row(run_id, content, metadata.get("state"))
            if known
            else _marked_row(container, run_id)
        )
    if container.size(BY_TIME_MARK) is None:
        older = sorted(list_run_folders(container)[1] - found.keys())
        found |= zip(older, in_parallel(partial(_marked_row, container), older), strict=True)
    return found


def _noted(container: BlobContainer, prefix: str) -> list[str]:
    notes = container.names(f"{DELETING_FOLDER}{prefix}")
    return [name.removeprefix(DELETING_FOLDER) for name in notes]


def _marked_row(container: BlobContainer, run_id: str) -> RunRow:
    return _begun_row(run_id, container.read(deleting_mark(run_id)) or b"")


def _begun_row(run_id: str, content: bytes, state: str | None = None) -> RunRow:
    with suppress(RunnerError, *DAMAGED):
        spec = parse_run(content, run_id)
        return RunRow(run_id, spec, RunStatus(RunState(state or spec.raw["state"])), None)
    return RunRow(run_id, None, None, None)


def _hidden(container: BlobContainer, run_ids: Sequence[str]) -> frozenset[str]:
    """Return the runs that no list shows any more, because their documents were deleted."""
    if len(run_ids) > _LISTED_ALONE:
        listed = frozenset(container.names(BY_TIME_FOLDER))
        return frozenset(each for each in run_ids if by_time_blob(each) not in listed)
    sizes = in_parallel(lambda run_id: container.size(RunPaths(run_id).run), run_ids)
    return frozenset(i for i, size in zip(run_ids, sizes, strict=True) if size is None)


def _resolve_references(
    connection: Connection, container: BlobContainer, references: Sequence[str]
) -> tuple[list[str], set[str], dict[str, RunRow], frozenset[str]]:
    """Return the runs that references name, directly or by group, and the named groups.

    The third value has the runs among them whose deletion has begun, the fourth those that only
    their group names.
    """
    found: dict[str, None] = {}
    groups: set[str] = set()
    named: set[str] = set()
    members: set[str] = set()
    begun: set[str] = set()
    for reference in references:
        text = check_reference(reference)
        if is_run_id(text) and container.size(RunPaths(text).run) is not None:
            found[text] = None
            named.add(text)
            begun |= {text} if container.size(deleting_mark(text)) is not None else set()
            continue
        halves = [] if text == "@last" else sorted(list_run_folders(container, text)[1])
        begun |= {*halves}
        try:
            run_id = text if text in halves else resolve_run(container, text)
            found[run_id] = None
            named.add(run_id)
        except RunnerError as err:
            if err.code == "R-RUN-UNKNOWN":
                halves = halves or _noted(container, text)
            if len(halves) == 1:
                found[halves[0]] = None
                named |= {*halves}
                begun |= {*halves}
                continue
            group = group_instead(connection, text, err)
            groups.add(group.group_id)
            ids = (*group.runs.values(), *(run for runs in group.earlier.values() for run in runs))
            prefix = commonprefix([*ids]) if ids else text
            listed, deleting = list_run_folders(container, prefix)
            begun |= deleting.intersection(ids)
            there = {*listed, *deleting}
            members |= there.intersection(ids)
            found |= dict.fromkeys(run for run in ids if run in there)
    rows = in_parallel(partial(_marked_row, container), begun & found.keys())
    return list(found), groups, {row.run_id: row for row in rows}, frozenset(members - named)


def _refuse_used(kept: Sequence[KeptRun], members: frozenset[str]) -> None:
    """Raise RunnerError for runs in use, except runs of a named group that something needs."""
    used = [each for each in kept if not (each.is_needed and each.run_id in members)]
    if not used:
        return
    first, count = used[0], len(used)
    more = f", and {count - 1} more of these runs" if count > 1 else ""
    raise RunnerError(
        "R-RUN-IN-USE",
        f"run {first.run_id} is in use{more}",
        why=f"{first.why}; nothing was deleted",
        fix=first.fix,
    )


def _find_kept(
    connection: Connection,
    container: BlobContainer,
    chosen: Sequence[RunRow],
    now: datetime,
    settle_s: float,
) -> list[KeptRun]:
    """Return the chosen runs that must be kept: they have not ended, or other runs need them."""
    if not chosen:
        return []
    needed = _needed_runs(connection, container, chosen, now)
    by_others = frozenset(needed)
    for row in chosen:
        if not row.is_over:
            needed[row.run_id] = f"it is {row.state}", f"runner cancel {row.run_id}"
        elif row.kept is not None:
            needed[row.run_id] = "it has failed and keeps its node", f"runner cancel {row.run_id}"
        elif row.spec is None and _is_newer(container, row.run_id):
            needed[row.run_id] = _NEWER
    others = [row for row in chosen if row.run_id not in needed]
    tasks = _load_tasks(connection, others, settle_s)
    for row in others:
        task = tasks.get(row.run_id)
        if late := _unfinished_reason(row, task, now):
            needed[row.run_id] = late
    return [
        KeptRun(row.run_id, *needed[row.run_id], row.run_id in by_others and row.is_over)
        for row in chosen
        if row.run_id in needed
    ]


def _load_tasks(
    connection: Connection, rows: Sequence[RunRow], settle_s: float
) -> dict[str, TaskView]:
    """Return tasks by run ID. Wait up to `settle_s` for the tasks of runs with a result.

    The task of a trial that runs other trials after it may take hours, so nobody waits for it.
    """
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
        late = any(
            row.result and row.spec and not _runs_others(row.spec, rows)
            and _is_unfinished(found.get(row.run_id))
            for row in rows
        )  # fmt: skip
        if not late or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


def _runs_others(spec: RunSpec, chosen: Sequence[RunRow]) -> bool:
    """Return True if the task of a trial may still run trials that are not chosen."""
    if spec.task_trials == 1:
        return False
    others = {*task_trial_ids(spec.task_id, spec.task_trials)}
    return not others <= {row.run_id for row in chosen if row.result}


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
        if row.spec is not None and row.spec.task_trials > 1:
            why = "its task runs other trials of the sweep, and would repeat a deleted one"
            return why, f"runner attach {row.spec.group}"
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
    connection: Connection, container: BlobContainer, chosen: Sequence[RunRow], now: datetime
) -> dict[str, tuple[str, str]]:
    """Return reason and fix for each run that models, schedules or other runs need."""
    active = find_unfinished(connection, now, _SUBMITTED_WITHIN)
    models = list_models(connection)
    found = _possible_origins(models, chosen)
    waiting = WaitingTrialsCache(container)
    contents = in_parallel(lambda each: read_run(container, each, waiting), active)
    for run_id, content in zip(active, contents, strict=True):
        with suppress(RunnerError):
            for used in _used_by(parse_run(content or b"", run_id)):
                found[used] = f"run {run_id} needs it and has not ended", f"runner cancel {run_id}"
    for schedule, template in _templates(container):
        for used in _used_by(template or _UNREADABLE_SPEC):
            found[used] = f"schedule {schedule} needs it", f"runner schedule rm {schedule}"
    versions: dict[str, list[str]] = defaultdict(list)
    for version in (version for model in models for version in model.live):
        versions[str((version.document or {}).get("run_id"))].append(str(version))
    for run_id, names in versions.items():
        why = f"it is the origin of model {', '.join(names)}"
        found[run_id] = why, f"runner models rm {names[0]}"
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

    Runs that were deleted in the meantime are ignored. If it is interrupted, the same command
    deletes the rest.

    Raises:
        RunnerError: a run that was selected by its reference is in use now.
    """
    container, now = runs_container(connection), now or datetime.now(UTC)
    plan = _marked(connection, container, plan, now)
    on_progress(Progress("delete", "start", f"deleting {plan.blobs} blobs"))
    for group_id in plan.groups:
        forget_waiting(container, group_id, (run.run_id for run in plan.runs))
    _hide(container, plan.runs)
    _delete_blobs(container, plan, on_progress)
    jobs = _delete_from_batch(connection, [run.spec for run in plan.runs])
    for group_id in plan.groups:
        _forget_group(container, group_id)
    archives = _delete_unused_archives(connection, now, is_quick=plan.named)
    _forget_marks(container, [run.run_id for run in plan.runs])
    if not plan.named:
        _forget_stale_marks(container, plan, now)
    on_progress(Progress("delete", "end", f"{plan.blobs} blobs"))
    return RemovedRuns(plan, jobs, len(archives), sum(archives))


def remove_expired(
    connection: Connection, retention: timedelta, on_progress: OnProgress
) -> RemovalPlan:
    """Delete the runs that are older than `retention`. Return the executed plan."""
    now = datetime.now(UTC)
    plan = plan_removal(connection, RunSelection(older_than=retention), now)
    return remove_runs(connection, plan, on_progress, now).plan if plan.runs else plan


def _marked(
    connection: Connection, container: BlobContainer, removal: RemovalPlan, now: datetime
) -> RemovalPlan:
    """Mark the runs of a plan, check again whether they are needed, and return the rest.

    The first check may be old, because the user was asked in between. After an interrupt, marks
    remain: a later deletion of many runs forgets them.
    """
    new = in_parallel(lambda run: _mark(container, run), removal.runs)
    marked = [run.run_id for run, is_new in zip(removal.runs, new, strict=True) if is_new]
    chosen = [run.row for run in removal.runs if run.row is not None]
    try:
        kept = _find_kept(connection, container, chosen, now, 0)
        if removal.named:
            _refuse_used(kept, removal.members)
    except RunnerError:
        _forget_marks(container, marked)
        raise
    spared = {each.run_id for each in kept}
    _forget_marks(container, list(spared.intersection(marked)))
    runs = tuple(run for run in removal.runs if run.run_id not in spared)
    return replace(removal, runs=runs, kept=(*removal.kept, *kept))


def _mark(container: BlobContainer, run: RunToDelete) -> bool:
    """Write that a run is being deleted. Return False if it was marked before."""
    document = run.spec.to_json() if run.spec.run_id else {}
    document["state"] = run.state
    is_new = container.create(deleting_mark(run.run_id), document)
    if is_new or run.row is not None:
        metadata = {**index_metadata(document, None), "state": run.state}
        container.put_metadata(deleting_note(run.run_id), metadata, overwrite=False)
    return is_new


def _forget_marks(container: BlobContainer, run_ids: Iterable[str]) -> None:
    """Delete marks; the notes last, by which later deletions find them."""
    ids = [*run_ids]
    container.delete_all(map(deleting_mark, ids), lambda _: None)
    container.delete_all(map(deleting_note, ids), lambda _: None)


def _forget_stale_marks(container: BlobContainer, plan: RemovalPlan, now: datetime) -> None:
    """Delete the marks of runs whose deletion ended before anything of them was deleted."""
    done = {run.run_id for run in plan.runs}
    rest = [run_id for run_id in _begun(container) if run_id not in done]
    stale = [run_id for run_id in rest if _is_stale(container, run_id, now)]
    _forget_marks(container, stale)


def _is_stale(container: BlobContainer, run_id: str, now: datetime) -> bool:
    found = container.stat(deleting_mark(run_id))
    is_old = found is None or found.modified is None or now - found.modified > _SUBMITTED_WITHIN
    if not is_old:  # another client may be about to delete the run
        return False
    return all(
        container.size(name) is not None for name in (RunPaths(run_id).run, by_time_blob(run_id))
    )


def _hide(container: BlobContainer, runs: Sequence[RunToDelete]) -> None:
    """Delete the documents by which readers find runs."""
    entries = [blob for run in runs for blob in reversed(index_blobs(run.run_id))]
    container.delete_all(entries, lambda _: None)
    container.delete_all((RunPaths(run.run_id).run for run in runs), lambda _: None)


def _delete_blobs(container: BlobContainer, plan: RemovalPlan, on_progress: OnProgress) -> None:
    """Delete the blobs of the plan, and those that were written since.

    Nothing writes blobs of a run with a result, so many such runs are not listed again.
    """
    counter = _Counter(plan.blobs, on_progress)
    names = [name for run in plan.runs for name in run.names]
    again = [run for run in plan.runs if run.may_be_written or len(plan.runs) <= _LISTED_ALONE]
    for _ in range(_ROUNDS):  # a node that seemed to be lost may write blobs meanwhile
        container.delete_all(names, counter.add)
        names = [name for run in _measured(container, again) for name in run.names]
        if not names:
            return
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


def _delete_unused_archives(connection: Connection, now: datetime, *, is_quick: bool) -> list[int]:
    """Delete code archives that no run and no schedule uses. Return their sizes.

    Those of outputs of version 1 are in the container of runs. With `is_quick`, nothing is deleted
    if there are many runs.
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
    used = _used_archives(runs, _FEW_RUNS if is_quick else 0) if old else None
    if used is None:
        return []
    unused = [(place, blob) for place, blob in old if blob.name not in used]
    # If a submission uses one of them meanwhile, its ETag changes, and it is not deleted.
    gone = in_parallel(lambda one: one[0].delete(one[1].name, one[1].etag), unused)
    return [b.size_bytes for (_, b), deleted in zip(unused, gone, strict=True) if deleted]


def _used_archives(container: BlobContainer, most: int) -> frozenset[str] | None:
    """Return the archives of all runs and schedules, or None if a document cannot be read.

    With `most` above 0, return None if there are more runs.
    """
    index = TimeIndex.open(container, most)
    if index is None:
        return _archives_of(container, list_run_folders(container)[0])
    ids: dict[str, None] = {}
    for second in index.seconds():
        ids |= dict.fromkeys(each.run_id for each in second)
        if most and len(ids) > most:
            return None
    return _archives_of(container, [*ids])


def _archives_of(container: BlobContainer, ids: Sequence[str]) -> frozenset[str] | None:
    found: dict[str, tuple[str, str]] = {}
    for name, metadata in container.list_metadata(INDEX_FOLDER):  # also those of older clients
        with suppress(*DAMAGED):
            run = parse_json(metadata["run"])
            found[name.removeprefix(INDEX_FOLDER)] = run["code"]["sha256"], run["agent"]["sha256"]
    unknown = [run_id for run_id in ids if not all(found.get(run_id, ("",)))]
    waiting = WaitingTrialsCache(container)
    contents = in_parallel(lambda run_id: read_run(container, run_id, waiting), unknown)
    try:
        read = [parse_run(c, run_id) for run_id, c in zip(unknown, contents, strict=True) if c]
    except RunnerError:
        return None
    templates = [spec for _, spec in _templates(container)]
    if not all(templates):
        return None
    specs = [*read, *(spec for spec in templates if spec)]
    hashes = (*found.values(), *((spec.code.sha256, spec.agent_sha256) for spec in specs))
    return frozenset(code_blob(str(each)) for each in chain.from_iterable(hashes))
