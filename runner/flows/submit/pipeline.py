"""The submission pipeline: validate, connect, prepare, plan, submit.

`train`, `submit`, schedules, repetitions and `--dry-run` all use it:

1. `prepare.check_run` or `group.check_file` validates the request, without side effects.
2. `open_target` starts the local services if needed and connects. `dry_run_target` starts nothing,
   and connects only to services that run.
3. `plan_submission` reads local files with `prepare`, asks the services with `lookups`, downloads
   data, and plans with `core.planning`.
4. `submit_run`, `submit_group` and `create_schedule` execute the plan.

A dry run downloads nothing and lists the questions that no service answered; everything else is the
same code. A plan is never changed. If its job is closed before the submission, the run is planned
again with the same ID.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.azure.auth.credentials import Connection, connect, no_code_container
from runner.azure.batch.jobs import FoundJob, check_pool, find_open_job
from runner.azure.batch.translate import to_task
from runner.contract import StackOutputs
from runner.core.home import runner_home
from runner.core.planning.plan import (
    Placement,
    RunContent,
    RunIdentity,
    RunPlan,
    experiment_name,
    plan_run,
    to_work,
)
from runner.core.planning.pool_choice import (
    PoolChoice,
    choose_common_pool,
    choose_pool,
    is_mixed,
    pools_for,
    pools_for_all,
)
from runner.core.planning.repeat import Repetition, change_params, choose_same_pool, plan_again
from runner.core.pricing.cost import CostCap, SubmissionCost, Work, plan_cost
from runner.core.pricing.prices import load_price_table
from runner.core.progress import OnProgress
from runner.core.recipe.entry import warn_unsupported_packages
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import (
    SecretValues,
    read_secrets,
    recorded_secrets,
    refuse_exposed_secrets,
)
from runner.core.schedules.submit_file import must_succeed
from runner.core.settings import Settings
from runner.flows.local.lifecycle import ensure_running, expected_outputs, is_reachable
from runner.flows.local.state import is_made_on_demand, with_container_pool
from runner.flows.submit.agent_archive import build_agent
from runner.flows.submit.group import CheckedFile, naming_task, new_group, resolve_task_input
from runner.flows.submit.lookups import (
    DependentRun,
    Lookups,
    Predecessors,
    refuse_predecessors,
    resolve_after,
)
from runner.flows.submit.prepare import (
    CheckedRun,
    Memo,
    RunFiles,
    download_data,
    random_suffix,
    read_files,
)
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.paths import MAX_ID, job_id_for, make_run_id
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.flows.submit.consent import Consent

ServiceCheck = tuple[str, Callable[[Connection], object]]
_MAX_JOB_NAME = MAX_ID - len("-9999")  # the name of a job may get a number
_PENDING = "decided when the run is submitted"


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a submission; a dry run may have no connection.

    `runs_code` is False for a dry run that executes no code of the recipe's folder.
    """

    settings: Settings
    outputs: StackOutputs
    connection: Connection | None
    dry_run: bool = False
    runs_code: bool = True


def open_target(settings: Settings, on_progress: OnProgress) -> tuple[Connection, Target]:
    """Connect to the target of a submission; start local services that do not run."""
    if settings.target == "local":
        ensure_running(settings, on_progress)
    connection = connect(settings)
    return connection, Target(settings, connection.outputs, connection)


def open_and_plan(
    submission: CheckedRun | CheckedFile,
    settings: Settings,
    on_progress: OnProgress,
    on_warning: Callable[[str], None],
) -> tuple[Connection, SubmissionPlan]:
    """Connect to the target, plan the submission, and report the warnings of the plan."""
    connection, target = open_target(settings, on_progress)
    plan = plan_submission(submission, target, on_progress)
    for text in plan.warnings:
        on_warning(text)
    return connection, plan


def dry_run_target(settings: Settings, *, runs_code: bool = False) -> Target:
    """Return the target of a dry run, without starting services."""
    outputs = expected_outputs(settings)
    connection = connect(settings) if is_reachable(settings) else None
    return Target(settings, outputs, connection, True, runs_code)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The plan of a run, with its files and its secrets, which are shown only by name."""

    plan: RunPlan
    files: RunFiles
    secrets: SecretValues
    plan_in_job: Callable[[str], RunPlan] = field(
        repr=False, compare=False
    )  # plans again with the same run ID

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return problems that do not prevent the submission."""
        code, dataset = self.files.code, self.files.dataset
        short = ", ".join(self.secrets.short())
        secrets = f"secret values too short to be hidden in logs: {short}" if short else None
        notice = dataset.notice if dataset else None
        found = [notice, secrets, *self.plan.warnings]
        if code is not None:  # of a recipe on this machine
            recipe = self.plan.recipe
            packages = (
                warn_unsupported_packages(recipe) if recipe.requirements_file is None else None
            )
            found = [*code.warnings, packages, *found]
        return tuple(text for text in found if text)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The Batch job of a submission.

    Attributes:
        job_id: Empty for a schedule, whose jobs have no ID yet.
        completes: True if the job is known to end with its last task.
        limit: Maximum duration of a job with a cost cap, and of its tasks.
        wanted: The name for which the job was chosen. If the job is closed before the
            submission, another job with this name replaces it.
    """

    job_id: str
    exists: bool
    pool_id: str
    priority: int = 0
    max_parallel: int | None = None
    completes: bool = False
    limit: timedelta | None = None
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """Everything that a submission writes; `runs` are in a valid order of execution.

    `home` is set if the local pool for containers must be created first. `cost` is None for nodes
    on this machine.
    """

    runs: Mapping[str, PlannedRun]
    job: JobPlan
    group: RunGroup | None = None
    home: Path | None = None
    notes: tuple[str, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()  # (what, why) of unanswered questions in a dry run
    dry_run: bool = False
    cost: SubmissionCost | None = None

    @property
    def run(self) -> PlannedRun:
        """Return the only run."""
        [run] = self.runs.values()
        return run

    @property
    def run_group(self) -> RunGroup:
        """Return the group of a submission that has one. Raise ValueError for a single run."""
        if self.group is None:
            raise ValueError("not the plan of a group")
        return self.group

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the distinct warnings of all runs, and the notes of the lookups."""
        # Trials have the same files, recipe and pool.
        trials = frozenset(islice(self.group.trials, 1, None) if self.group else ())
        runs = (run for name, run in self.runs.items() if name not in trials)
        texts = (text for run in runs for text in run.warnings)
        return (*dict.fromkeys(texts), *self.notes, *(self.cost.warnings if self.cost else ()))

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return run.json of every run; data that is not downloaded yet has only a name."""
        found: dict[str, dict[str, Any]] = {}
        for name, run in self.runs.items():
            document = found[name] = run.plan.to_spec().to_json()
            if document["data"] is None and run.plan.recipe.dataset:
                document["data"] = {"name": run.plan.recipe.dataset, "source": _PENDING}
        return found

    def unanswered_text(self) -> str:
        """Return `pool local, input cats: the local services do not run; …`, or an empty string."""
        by_why: dict[str, list[str]] = {}
        for what, why in self.unanswered:
            by_why.setdefault(why, []).append(what)
        return "; ".join(f"{', '.join(what)}: {why}" for why, what in by_why.items())

    def unanswered_json(self) -> list[dict[str, str]]:
        """Return the unanswered questions for `-o json`."""
        return [{"what": what, "why": why} for what, why in self.unanswered]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A run while it is being planned; the job of `placement` is set last."""

    run: CheckedRun
    identity: RunIdentity
    choice: PoolChoice
    files: RunFiles
    content: RunContent
    placement: Placement


def plan_submission(
    submission: CheckedRun | CheckedFile,
    target: Target,
    on_progress: OnProgress,
    *,
    scheduled: bool = False,
    checks: Sequence[ServiceCheck] = (),
) -> SubmissionPlan:
    """Plan the runs of a recipe or a file.

    With `scheduled`, the plans are templates for a schedule, without a job. `checks` are
    additional questions to the services, as (what, question).

    Raises:
        RunnerError: no pool fits, or the services reject an input, a predecessor or the job.
            Nothing has been downloaded.
    """
    # Local services get the container by themselves.
    if target.outputs.container_code is None and target.settings.target == "azure":
        raise no_code_container(is_local=False)
    memo, lookups = Memo(), Lookups(target.connection, target.dry_run)
    if isinstance(submission, CheckedFile):
        group, drafts = _read_group(submission, target, memo, on_progress, scheduled=scheduled)
        max_parallel = submission.file.job.max_parallel
    else:
        group, max_parallel = None, None
        drafts = {submission.recipe.name: _read_run(submission, target, memo, on_progress)}
    for what, check in checks:
        lookups.ask(what, check, None)
    drafts = _look_up_all(drafts, group, target, lookups)
    cost = _price(tuple(drafts.values()), target, in_group=group is not None, scheduled=scheduled)
    cap = cost.cap if cost else None
    if cost is None and any(
        each.run.recipe.max_cost_micros is not None for each in drafts.values()
    ):
        lookups.notes.append("the cost cap has no effect: nodes on this machine are free")
    if cap is not None:
        drafts = {name: _limited(draft, cap, group is not None) for name, draft in drafts.items()}
    first = next(iter(drafts.values()))
    job = _find_job(first, target, lookups, in_group=group is not None, scheduled=scheduled)
    limit = timedelta(seconds=cap.job_s) if cap else None
    job = replace(job, max_parallel=max_parallel, limit=limit)
    if not target.dry_run:
        drafts = {
            name: _download(draft, target, memo, on_progress) for name, draft in drafts.items()
        }
    runs = {name: _plan(draft, job.job_id, target) for name, draft in drafts.items()}
    if target.dry_run:
        _check_tasks(runs, lookups, in_group=group is not None)
    return SubmissionPlan(
        runs,
        job,
        group,
        target.settings.home if is_made_on_demand(target.settings, first.placement.pool) else None,
        tuple(lookups.notes),
        tuple(dict.fromkeys(lookups.unknown)),
        target.dry_run,
        cost,
    )


def _price(
    drafts: Sequence[_Draft], target: Target, *, in_group: bool, scheduled: bool
) -> SubmissionCost | None:
    """Return the costs of the drafts, with the limits that enforce their cap.

    Returns None for nodes on this machine, which cost nothing.
    """
    caps = [draft.run.recipe.max_cost_micros for draft in drafts]
    capped = [cap for cap in caps if cap is not None]
    if capped and len(capped) < len(caps):
        uncapped = next(draft for draft in drafts if draft.run.recipe.max_cost_micros is None)
        raise RunnerError(
            "R-COST-GROUP",
            "some tasks of the file have a cost cap, others do not",
            why=f"{uncapped.run.recipe.name} has none, but one limit ends the job of all tasks",
            fix="set `max_cost` for the whole file, or use --max-cost",
        )
    if capped and scheduled:
        raise RunnerError(
            "R-COST-SCHEDULE",
            "a schedule cannot have a cost cap",
            why="its limits would be computed with present prices for all later runs",
            fix="remove `max_cost`; set `timeout`, and `spend_cap_usd_per_hour` of the pool",
        )
    pool = drafts[0].placement.pool
    if not pool.is_billed:
        return None
    work = [
        to_work(draft.run.recipe, waits=in_group and bool(draft.placement.depends_on))
        for draft in drafts
    ]
    return plan_cost(
        pool,
        target.outputs.location,
        work,
        load_price_table(target.settings.home),
        cap_micros=sum(capped) if capped else None,
        today=datetime.now(UTC).date(),
    )


def _limited(draft: _Draft, cap: CostCap, in_group: bool) -> _Draft:
    """Return the draft with the limits of its cap, in a separate job."""
    if not in_group:
        refuse_predecessors(draft.placement)
    recipe, placement = draft.run.recipe, draft.placement
    limit_s = min(recipe.timeout_s or cap.script_s, cap.script_s)
    return replace(
        draft,
        run=replace(draft.run, recipe=replace(recipe, timeout_s=limit_s)),
        placement=replace(
            placement,
            job_id=placement.job_id if in_group else draft.identity.run_id,
            job_limit_s=cap.job_s,
        ),
    )


def _read_run(run: CheckedRun, target: Target, memo: Memo, on_progress: OnProgress) -> _Draft:
    recipe, settings = run.recipe, target.settings
    outputs = with_container_pool(recipe.image, settings, target.outputs)
    _refuse_vaults(recipe, outputs)
    choice = _choose_pool(run, settings.pool, outputs)
    created = datetime.now(UTC)
    identity = RunIdentity(make_run_id(recipe.name, created, random_suffix()), created)
    experiment = experiment_name(recipe, run.request.experiment)
    job_id = job_id_for(experiment, choice.pool.id, recipe.priority)
    files, content = read_files(
        run, settings, outputs, memo, on_progress, runs_code=target.runs_code
    )
    return _Draft(run, identity, choice, files, content, Placement(choice.pool, job_id))


def _refuse_vaults(recipe: Recipe, outputs: StackOutputs) -> None:
    """Raise RunnerError for a secret in a key vault if nodes have no identity that reads it."""
    named = [ref.variable for ref in recipe.secrets if ref.keyvault is not None]
    if named and outputs.identity_client_id is None:
        raise RunnerError(
            "R-SECRET-VAULT",
            f"secret {named[0]} is in a key vault, which the nodes cannot read",
            why="they have no managed identity; local nodes never have one",
            fix=f"use a variable of this machine: {named[0]}: {{env: {named[0]}}}",
            exit_code=ExitCode.PREFLIGHT,
        )


def _choose_pool(run: CheckedRun, wanted: str | None, outputs: StackOutputs) -> PoolChoice:
    fitting = pools_for(run.recipe.image, wanted, outputs)
    return choose_pool(wanted, fitting, run.recipe.resources, run.required_resources)


def _read_group(
    submission: CheckedFile, target: Target, memo: Memo, on_progress: OnProgress, *, scheduled: bool
) -> tuple[RunGroup, dict[str, _Draft]]:
    file, runs = submission.file, submission.runs
    settings = replace(target.settings, pool=target.settings.pool or file.pool)
    images = {name: run.recipe.image for name, run in runs.items()}
    # A pool for containers does not help if other tasks have no image.
    image = None if is_mixed(images) else next(filter(None, images.values()), None)
    outputs = with_container_pool(image, settings, target.outputs)
    outputs = pools_for_all(images, settings.pool, outputs)
    resources = {name: run.recipe.resources for name, run in runs.items()}
    pool = choose_common_pool(settings.pool, outputs, resources, submission.trials)
    group = new_group(submission, pool, datetime.now(UTC))
    drafts: dict[str, _Draft] = {}
    read: tuple[PoolChoice, RunFiles, RunContent, Placement] | None = None
    for name, run in runs.items():
        # All trials have the same files, because they differ only in parameters or in their blob.
        if read is None or name not in submission.trials:
            with naming_task(name):
                choice = _choose_pool(run, pool.id, outputs)
                files, content = read_files(
                    run, settings, outputs, memo, on_progress, runs_code=target.runs_code
                )
            inputs = {key: resolve_task_input(one, group) for key, one in content.inputs.items()}
            content = replace(content, inputs=inputs)
            placement = Placement(
                pool,
                group.job_id,
                after=tuple(group.runs[before] for before in must_succeed(name, file)),
                depends_on=tuple(group.runs[before] for before in group.after[name]),
                group=None if scheduled and submission.is_single else group.group_id,
            )
            read = choice, files, content, placement
        choice, files, content, placement = read
        if run.resolved:
            content = replace(content, inputs={**content.inputs, **run.resolved})
        identity = RunIdentity(group.runs[name], group.created)
        drafts[name] = _Draft(run, identity, choice, files, content, placement)
    return group, drafts


def _look_up_all(
    drafts: Mapping[str, _Draft], group: RunGroup | None, target: Target, lookups: Lookups
) -> dict[str, _Draft]:
    """Return the drafts, completed by the services; the answers are the same for all trials."""
    if group is None or not group.trials:
        return {
            name: _look_up(draft, name, group, target, lookups) for name, draft in drafts.items()
        }
    name, first = next(iter(drafts.items()))
    found = _look_up(first, name, group, target, lookups)

    def with_inputs(draft: _Draft) -> _Draft:
        content = found.content
        if draft.run.resolved:
            content = replace(content, inputs={**content.inputs, **draft.run.resolved})
        return replace(draft, content=content, placement=found.placement)

    return {
        name: with_inputs(draft)
        if name in group.trials
        else _look_up(draft, name, group, target, lookups)
        for name, draft in drafts.items()
    }


def _look_up(
    draft: _Draft, name: str, group: RunGroup | None, target: Target, lookups: Lookups
) -> _Draft:
    """Return the draft with inputs and predecessors resolved by the services."""
    recipe, placement = draft.run.recipe, draft.placement
    suffix = f" of {name}" if group else ""
    inputs = {key: lookups.input(key, one, suffix) for key, one in draft.content.inputs.items()}
    if recipe.after:
        run = DependentRun(placement.pool, recipe.priority, recipe.image, target.outputs)
        before = lookups.ask(
            f"after {', '.join(recipe.after)}{suffix}",
            lambda connection: resolve_after(connection, recipe.after, run),
            Predecessors(recipe.after),
        )
        placement = _with_predecessors(placement, before)
    awaited = {*placement.after, *(group.runs.values() if group else ())}
    lookups.note_unfinished(inputs, awaited, suffix, "" if group else ": --after {}")
    return replace(draft, content=replace(draft.content, inputs=inputs), placement=placement)


def _with_predecessors(placement: Placement, before: Predecessors) -> Placement:
    return replace(
        placement,
        job_id=before.job_id or placement.job_id,
        after=before.after,
        depends_on=before.depends_on,
    )


def _find_job(
    draft: _Draft, target: Target, lookups: Lookups, *, in_group: bool, scheduled: bool
) -> JobPlan:
    placement, priority = draft.placement, draft.run.recipe.priority
    pool, job_id = placement.pool, placement.job_id
    absent = JobPlan("" if scheduled else job_id, False, pool.id, priority)
    what = f"pool {pool.id}" if scheduled else f"pool {pool.id}, job {job_id}"

    def ask(connection: Connection) -> JobPlan:
        if scheduled:
            check_pool(connection, pool.id)
            return absent
        return find_job(connection, placement, priority, in_group=in_group)

    try:
        return lookups.ask(what, ask, absent)
    except RunnerError as err:
        if err.code != "R-POOL-MISSING" or not is_made_on_demand(target.settings, pool):
            raise
        lookups.unknown.append((f"pool {pool.id}", "created for the first run that needs it"))
        return absent


def find_job(
    connection: Connection, placement: Placement, priority: int, *, in_group: bool = False
) -> JobPlan:
    """Return the job for a task: an open one, or one to be created."""
    if placement.depends_on and not in_group:  # the job of its predecessors
        return JobPlan(placement.job_id, True, placement.pool.id, priority)
    if in_group and placement.job_id == placement.group:  # a new name
        check_pool(connection, placement.pool.id)
        found = FoundJob(placement.job_id, exists=False)
    else:
        found = find_open_job(connection, placement.job_id, placement.pool.id)
    return JobPlan(
        found.job_id,
        found.exists,
        placement.pool.id,
        priority,
        completes=found.completes,
        wanted=placement.job_id,
    )


def _download(draft: _Draft, target: Target, memo: Memo, on_progress: OnProgress) -> _Draft:
    files, content = download_data(
        draft.run, draft.files, draft.content, target.settings, memo, on_progress
    )
    if files is draft.files and content is draft.content:
        return draft
    return replace(draft, files=files, content=content)


def _plan(draft: _Draft, job_id: str, target: Target) -> PlannedRun:
    def plan_in_job(job_id: str) -> RunPlan:
        return plan_run(
            draft.run.recipe,
            target.settings,
            target.outputs,
            identity=draft.identity,
            request=draft.run.request,
            content=draft.content,
            placement=draft.placement
            if draft.placement.job_id == job_id
            else replace(draft.placement, job_id=job_id),
            warnings=draft.choice.warnings,
        )

    return PlannedRun(plan_in_job(job_id), draft.files, draft.run.secrets, plan_in_job)


def _check_tasks(runs: Mapping[str, PlannedRun], lookups: Lookups, *, in_group: bool) -> None:
    """Check the tasks that a submission would add, and list what only nodes can check."""
    for name, run in runs.items():
        suffix = f" of {name}" if in_group else ""
        if lookups.connection is not None:
            lookups.ask(
                f"task{suffix}",
                lambda connection, run=run: to_task(run.plan, connection, run.secrets),
                None,
            )
        lookups.note_node_checks(run.plan.recipe, run.plan.content.inputs, suffix)


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """An open job with a task, and the agent that is stored for it."""

    job: JobPlan
    agent_sha256: str


@dataclass(frozen=True, slots=True)
class RepeatRequest:
    """The request to repeat a run (`retry`, `resume`, `reproduce`), or to trigger a schedule.

    Attributes:
        spec: The run to repeat, or the template of the schedule.
        asked: The changes of the repetition.
        pool: The pool, or None for the pool of the run.
        schedule_id: The triggered schedule. Its run has the agent of the template, and no origin.
        group: The sweep of a trial, which stays in the job of the sweep, or the next with its name.
        identity: The identity that was claimed for a trial.
        max_parallel: Number of tasks that a new job runs at the same time.
        prepared: Job and agent from the submission of another trial with the same pool, code and
            data.
        is_new: True if nothing of a run with this identity exists.
        consent: The variables that the person agrees to send; None for no others than before.
    """

    spec: RunSpec
    asked: Repetition
    pool: str | None = None
    schedule_id: str | None = None
    group: RunGroup | None = None
    identity: RunIdentity | None = None
    max_parallel: int | None = None
    prepared: PreparedJob | None = None
    is_new: bool = False
    consent: Consent | None = None


def plan_repetition(
    connection: Connection, request: RepeatRequest, checks: Sequence[ServiceCheck] = ()
) -> SubmissionPlan:
    """Plan the repetition of a run from its run.json; its code and data are in storage.

    Raises:
        RunnerError: the pool or a secret is missing, a changed parameter is unknown, or the
            services reject the job or a predecessor.
    """
    spec, asked, outputs = request.spec, request.asked, connection.outputs
    change_params(spec, asked.overrides)
    pool = choose_same_pool(request.pool, spec, outputs, asked.nodes)
    # A schedule's run has the agent that its template names.
    agent_of_record = spec.agent_sha256 if request.schedule_id is not None else None
    if spec.secrets:
        from runner.flows.submit.consent import NOTHING  # noqa: PLC0415  few runs have secrets

        (request.consent or NOTHING).require(connection, spec, agent_of_record)
    secrets = read_secrets(recorded_secrets(spec), os.environ)
    origin, agent = None, None
    agent_sha256 = spec.agent_sha256
    if request.schedule_id is None:
        origin = {"kind": asked.kind, "run_id": spec.run_id}
        if request.prepared is not None:
            agent_sha256 = request.prepared.agent_sha256
        else:
            agent = build_agent()
            agent_sha256 = hashlib.sha256(agent).hexdigest()
    lookups = Lookups(connection)
    for what, check in checks:
        lookups.ask(what, check, None)
    cost = None
    if pool.is_billed:
        cost = plan_cost(
            pool,
            outputs.location,
            [Work(asked.nodes or spec.nodes, spec.retries + 1, None)],
            load_price_table(runner_home(os.environ)),
            cap_micros=spec.max_cost_micros,
            today=datetime.now(UTC).date(),
        )
    placement = Placement(pool, job_id_for(spec.experiment, pool.id, spec.priority))
    if (group := request.group) is not None:
        in_job = group.job_id if len(group.job_id) <= _MAX_JOB_NAME else placement.job_id
        placement = replace(placement, job_id=in_job, group=group.group_id)
    if asked.awaited:
        run = DependentRun(pool, spec.priority, spec.image, outputs)
        placement = _with_predecessors(placement, resolve_after(connection, asked.awaited, run))
    created = datetime.now(UTC)
    name = request.schedule_id or spec.recipe
    identity = request.identity or RunIdentity(make_run_id(name, created, random_suffix()), created)
    if cost is not None and cost.cap is not None:
        refuse_predecessors(placement)
        placement = replace(placement, job_id=identity.run_id, job_limit_s=cost.cap.job_s)
        limit_s = min(spec.timeout_s or cost.cap.script_s, cost.cap.script_s)
        spec = replace(spec, timeout_s=limit_s)
    if request.prepared is not None:
        job = replace(request.prepared.job, wanted=placement.job_id)
    else:
        job = find_job(connection, placement, spec.priority)
    job = replace(job, max_parallel=request.max_parallel)
    if placement.job_limit_s is not None:
        job = replace(job, limit=timedelta(seconds=placement.job_limit_s))

    def plan_in_job(job_id: str) -> RunPlan:
        return plan_again(
            spec,
            asked,
            outputs,
            identity=identity,
            placement=replace(placement, job_id=job_id),
            agent_sha256=agent_sha256,
            origin=origin,
        )

    planned = PlannedRun(plan_in_job(job.job_id), RunFiles(None, agent), secrets, plan_in_job)
    refuse_exposed_secrets(secrets, planned.plan.command)
    return SubmissionPlan({spec.recipe: planned}, job, cost=cost)
