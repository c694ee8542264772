"""Submit the unsuccessful tasks of a sweep again: `sweep resume`, and its merge task alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    add_tasks,
    close_when_done,
    create_job,
    find_job_in_pool,
    has_ended,
    list_tasks,
    read_max_parallel,
)
from runner.azure.batch.translate import to_trial_tasks
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.planning.repeat import Repetition
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.core.states import RunState
from runner.flows.runs.attempts import find_checkpoint
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.group_documents import with_later_runs
from runner.flows.runs.history import RunRow, list_runs
from runner.flows.runs.waiting import WaitingTrialsCache, read_run
from runner.flows.submit.consent import NOTHING, Consent, remember_documents
from runner.flows.submit.pipeline import RepeatRequest, plan_repetition
from runner.flows.submit.repeat import (
    TO_RETRY,
    await_reports,
    check_parts,
    claim_run,
    require_complete_spec,
    submit_again,
)
from runner.flows.submit.submit_run import upload_files
from runner.protocol.errors import RunnerError
from runner.protocol.groups import MERGE_TASK, SUBMITTING_FOLDER, LaterRun, RunGroup
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import ResumeFrom, RunSpec, parse_run
from runner.protocol.waiting_trials import WaitingTrials, template_blob, waiting_blob

if TYPE_CHECKING:
    from runner.flows.costs.budgets import BudgetReader

ResumedTrial = RunSpec | RunnerError | None


def resume_trials(
    connection: Connection,
    sweep: RunGroup,
    pool: str | None,
    on_progress: OnProgress,
    *,
    from_start: bool = False,
    consent: Consent = NOTHING,
) -> dict[str, ResumedTrial]:
    """Submit the unsuccessful trials of a sweep again.

    Each continues from its newest checkpoint, if it has one. A trial that another client resumes at
    the same time is submitted once.

    Args:
        connection: the services.
        sweep: the sweep, with the newest run of each trial.
        pool: the pool, or None for that of each run.
        on_progress: receives the progress.
        from_start: ignore the checkpoints.
        consent: the variables of this machine that may be sent.

    Returns:
        By trial: its new run, the error that prevented one, or None if another client submitted it.

    Raises:
        RunnerError: R-JOB-DISABLED, the sweep is paused; the services cannot be reached.
    """
    from runner.flows.costs.budgets import BudgetReader  # noqa: PLC0415  few sweeps are resumed

    again = SweepAgain(connection, sweep, pool, consent, budgets=BudgetReader())
    again.waiting.sweep(sweep.group_id)  # before the states: a change after them is noticed
    listed = list_runs(connection, limit=None, ids=[*sweep.runs.values()]).rows
    rows = {row.run_id: row for row in listed}
    ended = [
        name
        for name, run_id in sweep.trial_runs.items()
        if (row := rows.get(run_id)) is None or (row.status and row.status.state in TO_RETRY)
    ]
    if ended:  # before any of them is claimed
        find_job_in_pool(connection, sweep.job_id, pool or sweep.pool)
    on_progress(Progress("resume", "start"))
    await_reports(runs_container(connection), sweep, frozenset(ended))
    again.max_parallel = read_max_parallel(connection, sweep.job_id)
    # A trial that was resumed before has its own run.json, and is not a waiting trial.
    first = [name for name in ended if name not in sweep.earlier]
    unstarted = [name for name in first if again.waiting.unstarted(sweep.runs[name])]
    done: dict[str, ResumedTrial] = dict.fromkeys(again.list_taken(set(first) - set(unstarted)))
    if unstarted and _are_capped(connection, listed):
        unstarted = []  # each trial has a separate job
    # A task that failed before its agent started cannot be added to its job again.
    present = again.list_present_tasks(sweep.runs[name] for name in unstarted)
    unstarted = [name for name in unstarted if sweep.runs[name] not in present]

    def resume(name: str) -> None:
        try:
            done[name] = (
                again.merge()
                if name == MERGE_TASK
                else again.resume(
                    name, from_start=from_start, is_missing=rows.get(sweep.runs[name]) is None
                )
            )
        except RunnerError as err:
            if err.code == SERVICES_DOWN:
                raise
            done[name] = err
        on_progress(Progress("resume", "progress", "", len(done), len(ended), "trials"))

    later = {*unstarted, *done}
    in_parallel(resume, [name for name in ended if name not in later])  # submit these first
    if unstarted:
        done |= again.requeue(unstarted)
    if MERGE_TASK in sweep.runs and _needs_merge(rows.get(sweep.runs[MERGE_TASK]), done):
        ended.append(MERGE_TASK)
        resume(MERGE_TASK)
    ran = "runs" if MERGE_TASK in ended else "trials"
    on_progress(Progress("resume", "end", "", len(done), len(ended), ran))
    return {name: done[name] for name in ended}


def merge_partially(
    connection: Connection, sweep: RunGroup, pool: str | None, consent: Consent = NOTHING
) -> RunSpec | None:
    """Submit the merge task of a sweep, with the results of the trials that succeeded.

    Return None if another client submitted it.

    Raises:
        RunnerError: R-MERGE-PARTIAL, there is no merge task, it need not run again, or trials have
            not ended; R-JOB-DISABLED, the sweep is paused.
    """
    merge_id = sweep.runs.get(MERGE_TASK, "")
    rows = list_runs(connection, limit=None, ids=[*sweep.runs.values()]).rows
    states = {row.run_id: row.status.state for row in rows if row.status}
    active = [run_id for run_id in sweep.trial_runs.values() if not _has_ended(states.get(run_id))]
    if not merge_id:
        raise RunnerError(
            "R-MERGE-PARTIAL",
            f"{sweep.group_id} has no merge task",
            fix=f"runner files get {sweep.group_id}",
        )
    if active:
        raise RunnerError(
            "R-MERGE-PARTIAL",
            f"{len(active)} of {len(sweep.trials)} trials have not ended",
            why="the merge task would not read their results",
            fix=f"runner attach {sweep.group_id}",
        )
    if (state := states.get(merge_id)) is not None and state not in TO_RETRY:
        raise RunnerError(
            "R-MERGE-PARTIAL",
            f"cannot start the merge task again: its state is {state.value}",
            why="only a failed, cancelled or lost one is started again",
            fix=f"runner show {merge_id}",
        )
    find_job_in_pool(connection, sweep.job_id, pool or sweep.pool)
    return SweepAgain(connection, sweep, pool, consent).merge(partial=True)


def _has_ended(state: RunState | None) -> bool:
    return state is None or state.final


def _needs_merge(row: RunRow | None, trials: Mapping[str, ResumedTrial]) -> bool:
    """Return True if the merge task of a sweep must run again, because trials have changed."""
    if row is None or row.status is None:
        return row is None
    resumed = any(isinstance(each, RunSpec) for each in trials.values())
    return row.status.state in TO_RETRY or (row.status.state is RunState.SUCCEEDED and resumed)


def _are_capped(connection: Connection, rows: Iterable[RunRow]) -> bool:
    """Return True if the trials have a cost cap, or would get one from a budget."""
    from runner.flows.costs.budgets import is_budgeted  # noqa: PLC0415  few sweeps are resumed

    specs = [row.spec for row in rows if row.spec is not None]
    if any(spec.max_cost_micros for spec in specs):
        return True
    return is_budgeted(connection, {spec.experiment for spec in specs})


@dataclass(slots=True)
class SweepAgain:
    """Submits tasks of a sweep again: the same pool and the same consent for all of them.

    Job, agent, code and data are only checked for the first trial. If the job is closed in the
    meantime, another job replaces it when a task is added.
    """

    connection: Connection
    sweep: RunGroup
    pool: str | None = None
    consent: Consent = NOTHING
    max_parallel: int | None = None
    container: BlobContainer = field(init=False)
    waiting: WaitingTrialsCache = field(init=False)
    budgets: BudgetReader | None = None
    _lock: Lock = field(default_factory=Lock)
    _prepared: dict[str, RunSpec] = field(default_factory=dict[str, RunSpec])

    def __post_init__(self) -> None:
        self.container = runs_container(self.connection)
        self.waiting = WaitingTrialsCache(self.container)

    def _request(
        self, spec: RunSpec, asked: Repetition, claim: LaterRun, *, is_new: bool = False
    ) -> RepeatRequest:
        return RepeatRequest(
            spec,
            asked,
            self.pool,
            group=self.sweep,
            claim=claim,
            max_parallel=self.max_parallel,
            is_new=is_new,
            budgets=self.budgets,
            consent=self.consent,
        )

    def resume(self, name: str, *, from_start: bool, is_missing: bool = False) -> RunSpec | None:
        """Submit a trial again. Return None if another client does.

        Args:
            name: the trial.
            from_start: ignore the checkpoints.
            is_missing: True if its newest run had no record when the states were read.
        """
        sweep, container = self.sweep, self.container
        runs = [*sweep.earlier.get(name, ()), sweep.runs[name]]
        found = ((run, read_run(container, run, self.waiting)) for run in reversed(runs))
        last, content = next(((run, one) for run, one in found if one is not None), ("", b""))
        if not content:
            raise RunnerError(
                "R-SWEEP-TRIAL-GONE",
                f"trial {name}: its runs were deleted",
                fix="start another sweep with these parameters",
            )
        if is_missing and last == runs[-1]:  # another client has written it in the meantime
            return None
        spec = parse_run(content, last)
        number = len(runs) + (last == runs[-1])
        claim, is_new = claim_run(container, sweep, name, number)
        if claim is None:
            return None
        checkpoint = None if from_start else find_checkpoint(container, spec)
        before = ResumeFrom(checkpoint[0], checkpoint[1].number) if checkpoint else None
        asked = Repetition("resume" if before else "retry", resume_from=before)
        return self.submit(self._request(spec, asked, claim, is_new=is_new))

    def submit(self, request: RepeatRequest) -> RunSpec:
        """Submit a trial to the job of an earlier one with the same pool, code and data."""
        spec = request.spec
        if spec.max_cost_micros is not None:  # it has a separate job
            return submit_again(self.connection, request, ignore_progress)
        key = repr((spec.pool, spec.priority, spec.code, spec.data, spec.inputs))
        with self._lock:
            prepared = self._prepared.get(key)
            if prepared is None:
                return self._submit(request, key)
        return self._submit(replace(request, prepared=prepared), key)

    def _submit(self, request: RepeatRequest, key: str) -> RunSpec:
        run = submit_again(self.connection, request, ignore_progress)
        if run.max_cost_micros is None:  # a budget may have given it a cap, and a separate job
            self._prepared[key] = run
        return run

    def merge(self, *, partial: bool = False) -> RunSpec | None:
        """Submit the merge task after the newest run of each trial; `partial` waits for none.

        Return None if another client submits it.
        """
        sweep = with_later_runs(self.container, self.sweep)
        number = len(sweep.earlier.get(MERGE_TASK, ())) + 2
        spec = find_run(self.connection, sweep.runs[MERGE_TASK])
        trials = list_runs(self.connection, limit=None, ids=[*sweep.trial_runs.values()]).rows
        active = [row.run_id for row in trials if row.status and not row.status.state.final]
        awaited = () if partial else sweep.trial_runs.values() if spec.after else active
        claim, _ = claim_run(self.container, sweep, MERGE_TASK, number)
        if claim is None:
            return None
        asked = Repetition("retry", after={run_id: run_id for run_id in awaited})
        request = replace(self._request(spec, asked, claim), max_parallel=None)
        return submit_again(self.connection, request, ignore_progress)

    def list_taken(self, names: Collection[str]) -> list[str]:
        """Return those of these started trials that another client has added to a new job.

        It added them after this client had read the document of waiting trials, so the states that
        this client has read may be out of date.
        """
        known, runs = self.waiting.sweep(self.sweep.group_id), self.sweep.runs
        waited = [name for name in names if known is not None and runs[name] in known.trials]
        if known is None or not waited:
            return []
        now = WaitingTrialsCache(self.container).sweep(self.sweep.group_id)

        def is_taken(run_id: str) -> bool:
            if now is not None and run_id in now.trials:
                return not now.is_same(known, run_id)
            # The document is deleted when all trials have started.
            content = self.container.read(RunPaths(run_id).run)
            return content is None or parse_run(content, run_id).job_id != known.job_of(run_id)

        return [name for name in waited if is_taken(runs[name])]

    def list_present_tasks(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Return those of the trials with a task in their job, which is still open."""
        trials, by_job = self.waiting.sweep(self.sweep.group_id), dict[str, list[str]]()
        if trials is None:
            return frozenset()
        for run_id in run_ids:
            by_job.setdefault(trials.job_of(run_id), []).append(run_id)
        tasks = {
            job_id: list_tasks(self.connection, job_id)
            for job_id in by_job
            if not has_ended(self.connection, job_id)
        }
        return frozenset(
            run_id
            for job_id in tasks
            for run_id in by_job[job_id]
            if trials.task_of(run_id) in tasks[job_id]
        )

    def requeue(self, names: Iterable[str]) -> dict[str, ResumedTrial]:
        """Add the tasks of trials that have not started to a new job.

        They keep their run IDs: one update of the sweep's document sets the job of all of them. A
        trial whose entry another client changes at the same time is left to that client.
        """
        connection, container, sweep = self.connection, self.container, self.sweep
        trials = self.waiting.sweep(sweep.group_id)
        own = {sweep.runs[name]: name for name in names}
        if trials is None:
            return {}
        first = _to_spec(trials, next(iter(own)))
        claim = LaterRun(own[first.run_id], 1, first.run_id, first.created)
        # The values go to the tasks of all trials, so each record must be known or agreed to.
        request = self._request(first, Repetition("retry"), claim)
        checks = [(f"code and data of {sweep.group_id}", partial(check_parts, spec=first))]
        with require_complete_spec(first):
            plan = plan_repetition(connection, request, checks)
            for run_id in own if plan.run.secrets else ():
                self.consent.require(connection, _to_spec(trials, run_id))
        upload_files(connection, plan, ignore_progress)
        job, run = plan.job, replace(plan.run, task_trials=first.task_trials)
        if not job.exists:
            create_job(connection, job.job_id, job.pool_id, job.priority, job.max_parallel)
        document = run.to_spec().to_json()
        place = {key: value for key, value in document["batch"].items() if key != "task_id"}
        changes = {"batch": place, "agent": document["agent"]}
        queued, changed = trials, list[str]()

        def change(content: bytes) -> bytes:
            nonlocal queued, changed
            now = WaitingTrials.parse(content)
            if now is None:
                return content
            changed = [run_id for run_id in own if now.is_same(trials, run_id)]
            queued = now.requeue(changed, changes)
            return queued.to_bytes()

        # The agents derive run.json from this blob, and it may have changed since the submission.
        common = json.dumps(trials.common).encode()
        if container.read(template_blob(sweep.group_id)) != common:
            container.update(template_blob(sweep.group_id), lambda _: common)
        container.update(waiting_blob(sweep.group_id), change)
        mine = replace(queued, trials={run_id: queued.trials[run_id] for run_id in changed})
        if run.secrets:
            remember_documents(connection, (mine.document(run_id) for run_id in mine.trials))
        tasks = to_trial_tasks(run, connection, mine)
        add_tasks(connection.batch_client(), job.job_id, tasks)
        close_when_done(connection, job.job_id)
        # This completes a submission that was interrupted, so nothing needs to be cancelled later.
        container.delete(f"{SUBMITTING_FOLDER}{sweep.group_id}.json")
        return {
            name: _to_spec(mine, run_id) if run_id in mine.trials else None
            for run_id, name in own.items()
        }


def _to_spec(trials: WaitingTrials, run_id: str) -> RunSpec:
    return parse_run(json.dumps(trials.document(run_id)).encode(), run_id)
