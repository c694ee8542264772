"""The submission pipeline: validate, connect, draft, complete, submit.

`train`, `submit`, schedules, repetitions and `--dry-run` all use it:

1. `check_and_read.check_run` or `group.check_file` validates the request, without side effects.
2. `open_services` starts the local services if needed and connects. `dry_run_services` starts
   nothing, and connects only to services that run.
3. `plan_submission` and `plan_repetition` draft the runs: from files of this machine with
   `read_files`, or from the record of an earlier run.
4. `_complete` is the same for all drafts: ask the services with `Lookups`, price and cap, choose
   the job, download data.
5. `submit_run`, `submit_group` and `create_schedule` execute the plan.

A dry run downloads nothing and lists the questions that no service answered; everything else is the
same code. A plan is never changed. If its job is closed before the submission, `in_job` returns the
plan of the same run in the next job, and `without_waiting` that of a run whose predecessors, in the
closed job, have succeeded.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.azure.auth.credentials import Connection, connect, load_outputs, no_code_container
from runner.azure.batch.jobs import check_pool, find_open_job
from runner.azure.batch.translate import to_task
from runner.azure.faults import SERVICES_DOWN, SIGN_IN
from runner.contract import PoolOutput, StackOutputs
from runner.core.home import runner_home
from runner.core.planning.plan import (
    CheckedRun,
    JobPlan,
    RunPlan,
    check_kept_node,
    in_job,
    plan_run,
    plan_trial,
    to_work,
    with_cap,
    with_fallback,
)
from runner.core.planning.pool_choice import (
    choose_common_pool,
    choose_pool,
    is_mixed,
    pool_warnings,
    pools_for,
    pools_for_all,
)
from runner.core.planning.repeat import Repetition, choose_same_pool, plan_again
from runner.core.pricing.cost import SubmissionCost, common_cap, join_trials, plan_cost
from runner.core.pricing.prices import load_price_table
from runner.core.progress import OnProgress, ignore_progress
from runner.core.recipe.imports import package_warnings, refuse_conda_here
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import (
    read_secrets,
    recorded_secrets,
    refuse_exposed_secrets,
    secret_name,
)
from runner.core.recipe.submit_file import must_succeed
from runner.core.settings import Settings, target_at
from runner.flows.local.state import (
    all_respond,
    await_room,
    is_made_on_demand,
    is_reachable,
    with_container_pool,
)
from runner.flows.submit.agent_archive import build_agent
from runner.flows.submit.check_and_read import (
    FilesToUpload,
    download_data,
    random_suffix,
    read_files,
)
from runner.flows.submit.group import CheckedFile, naming_task, new_group, resolve_task_input
from runner.flows.submit.lookups import (
    is_on_share,
    is_resolved,
    is_unfinished,
    refuse_predecessors,
    resolve_after,
    resolve_input,
)
from runner.protocol.errors import RunnerError
from runner.protocol.groups import LaterRun, RunGroup
from runner.protocol.paths import MAX_ID, make_run_id
from runner.protocol.run_spec import NOTIFY_VARIABLE, RunSpec

if TYPE_CHECKING:
    from runner.core.pricing.cost import CostCap
    from runner.flows.costs.budgets import BudgetReader, BudgetState
    from runner.flows.submit.consent import Consent

T = TypeVar("T")
ServiceCheck = tuple[str, Callable[[Connection], object]]
_MAX_JOB_NAME = MAX_ID - len("-9999")  # the name of a job may get a number
_UNREACHABLE = frozenset({SERVICES_DOWN, SIGN_IN})
_PENDING = "decided when the run is submitted"


@dataclass(frozen=True, slots=True)
class Services:
    """Where a submission goes: knows the stack, and the connection, which a dry run may lack.

    `runs_code` is False for a dry run that executes no code of the recipe's folder.
    """

    settings: Settings
    outputs: StackOutputs
    connection: Connection | None
    dry_run: bool = False
    runs_code: bool = True


def open_services(settings: Settings, on_progress: OnProgress) -> tuple[Connection, Services]:
    """Connect to the services of a submission; start local services that do not run."""
    _ensure_running(settings, on_progress)
    connection = connect(settings)
    return connection, Services(settings, connection.outputs, connection)


def _ensure_running(settings: Settings, on_progress: OnProgress) -> None:
    """Start the services of the target if they belong to this machine and do not run."""
    if not settings.target.runs_here:
        return
    try:
        await_room(settings)
        if all_respond(settings) and load_outputs(settings).container_code is not None:
            return  # else an older version wrote them
    except RunnerError as err:
        if err.code != "R-STACK-OUTPUTS":
            raise
    from runner.flows.local.lifecycle import up  # noqa: PLC0415  mostly, the services run

    up(settings, on_progress)  # writes new outputs


def open_and_plan(
    submission: CheckedRun | CheckedFile,
    settings: Settings,
    on_progress: OnProgress,
    on_warning: Callable[[str], None],
) -> tuple[Connection, SubmissionPlan]:
    """Connect to the services, plan the submission, and report the warnings of the plan."""
    if settings.target.runs_here:  # before nodes start
        single = isinstance(submission, CheckedRun)
        runs = (submission,) if single else submission.runs.values()
        own = [run.recipe for run in runs if run.recipe.source != "builtin"]
        different = {(r.folder, r.command, r.package_source, r.packages): r for r in own}
        for recipe in different.values():
            refuse_conda_here(recipe)
            package_warnings(recipe)  # for its errors
    connection, services = open_services(settings, on_progress)
    plan = plan_submission(submission, services, on_progress)
    for text in plan.warnings:
        on_warning(text)
    return connection, plan


def dry_run_services(settings: Settings, *, runs_code: bool = False) -> Services:
    """Return the services of a dry run, without starting any."""
    from runner.flows.local.lifecycle import expected_outputs  # noqa: PLC0415  only for a dry run

    outputs = expected_outputs(settings)
    connection = connect(settings) if is_reachable(settings) else None
    return Services(settings, outputs, connection, True, runs_code)


@dataclass(slots=True)
class Lookups:
    """The questions of one submission to the services. Its methods raise their errors.

    With `dry_run`, unanswered questions are listed in `unknown` as (what, why). Once a service has
    not responded, no further questions are asked. `notes` are warnings.
    """

    connection: Connection | None
    outputs: StackOutputs
    home: Path
    dry_run: bool = False
    why: str = "the local services are not running"
    unknown: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    notes: list[str] = field(default_factory=list[str])

    def ask(self, what: str, question: Callable[[Connection], T], otherwise: T) -> T:
        """Return the answer to a question, or `otherwise` if a dry run gets no answer."""
        if self.connection is not None:
            try:
                return question(self.connection)
            except RunnerError as err:
                if not self.dry_run or err.code not in _UNREACHABLE:
                    raise
                self.connection, self.why = None, err.what
        self.unknown.append((what, self.why))
        return otherwise

    def input(self, name: str, document: Mapping[str, Any], suffix: str = "") -> Mapping[str, Any]:
        """Return the entry of an input in run.json, completed by the services."""
        what = f"input {name}{suffix}"
        if self.dry_run and document["kind"] == "share":
            found = self.ask(what, lambda connection: is_on_share(connection, document), True)
            if not found:  # it may appear before the run starts
                path = document["path"]
                self.notes.append(f"{what}: {path} does not exist on the file share yet")
        if is_resolved(document):
            return document
        return self.ask(
            what, lambda connection: resolve_input(connection, name, document), document
        )

    def note_unfinished(
        self,
        named: Mapping[str, Mapping[str, Any]],
        awaited: Collection[str],
        suffix: str,
        fix: str,
    ) -> None:
        """Warn, in a dry run, about inputs from active runs that are not predecessors."""
        for name, document in named.items():
            run_id = str(document.get("run_id") or "")
            if not self.dry_run or document["kind"] != "run" or not run_id or run_id in awaited:
                continue
            what = f"input {name}{suffix}"
            if self.ask(what, lambda connection, run=run_id: is_unfinished(connection, run), False):
                self.notes.append(f"{what}: run {run_id} has not ended{fix.format(run_id)}")

    def note_node_checks(
        self, recipe: Recipe, named: Mapping[str, Mapping[str, Any]], suffix: str
    ) -> None:
        """List the inputs, secrets and image that only a node can check."""
        for name, document in named.items():
            if document["kind"] == "url":
                self.unknown.append((f"input {name}{suffix}", "the node fetches it"))
        for ref in recipe.all_secrets:
            if ref.keyvault is not None:
                self.unknown.append((f"{secret_name(ref)}{suffix}", "the node asks the vault"))
        if recipe.image is not None:
            self.unknown.append((f"image {recipe.image}", "the node pulls it"))


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """Everything that a submission writes: knows the uploads and the costs of all its runs.

    `runs` are in a valid order of execution. `home` is set if the local pool for containers must be
    created first. `cost` is None for nodes on this machine.
    """

    runs: Mapping[str, RunPlan]
    job: JobPlan
    group: RunGroup | None = None
    files: FilesToUpload = field(default_factory=FilesToUpload)
    home: Path | None = None
    notes: tuple[str, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()  # (what, why) of unanswered questions in a dry run
    dry_run: bool = False
    cost: SubmissionCost | None = None

    @property
    def run(self) -> RunPlan:
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
        texts: list[str] = []
        for name, run in self.runs.items():
            if name not in trials:
                data = run.content.data
                texts += [*([data.notice] if data and data.notice else ()), *run.warnings]
        return (*dict.fromkeys(texts), *self.notes, *(self.cost.warnings if self.cost else ()))

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return run.json of every run; data that is not downloaded yet has only a name."""
        found: dict[str, dict[str, Any]] = {}
        for name, run in self.runs.items():
            document = found[name] = run.to_spec().to_json()
            if document["data"] is None and run.recipe.dataset:
                document["data"] = {"name": run.recipe.dataset, "source": _PENDING}
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


def plan_submission(
    submission: CheckedRun | CheckedFile,
    services: Services,
    on_progress: OnProgress,
    *,
    scheduled: bool = False,
    checks: Sequence[ServiceCheck] = (),
    left_micros: int | None = None,
) -> SubmissionPlan:
    """Plan the runs of a recipe or a file.

    With `scheduled`, the plans are templates for a schedule, without a job. `checks` are
    additional questions to the services, as (what, question). With `left_micros`, what is left of
    a cap of the schedule, runs without a cap get one.

    Raises:
        RunnerError: no pool fits, or the services reject an input, a predecessor or the job.
            Nothing has been downloaded.
    """
    target = services.settings.target
    if services.outputs.container_code is None and not target.runs_here:  # else started anew
        raise no_code_container(target)
    lookups = Lookups(
        services.connection, services.outputs, services.settings.home, services.dry_run
    )
    if isinstance(submission, CheckedRun):
        draft = _draft_run(submission, services, on_progress, lookups)
    else:
        draft = _draft_group(submission, services, on_progress, scheduled=scheduled)
    trials = submission.runs if isinstance(submission, CheckedFile) and submission.trials else None
    return _complete(
        draft,
        lookups,
        on_progress,
        checks,
        scheduled=scheduled,
        trials=trials,
        left_micros=left_micros,
    )


def _draft_run(
    run: CheckedRun, services: Services, on_progress: OnProgress, lookups: Lookups
) -> SubmissionPlan:
    recipe, settings, files = run.recipe, services.settings, FilesToUpload()
    outputs = with_container_pool(recipe.image, settings, services.outputs)
    _refuse_vaults(recipe, outputs)
    order = None
    if recipe.pools or recipe.gpu:
        from runner.flows.submit.pool_list import order_pools  # noqa: PLC0415  few runs name several

        order = order_pools(run, settings, outputs, lookups.ask, lookups.notes)
    if order is None:
        fitting = pools_for(recipe.image, settings.pool, outputs)
        pool = choose_pool(settings.pool, fitting, recipe.resources, run.options.resources)
    else:
        pool = order.pool
    created = datetime.now(UTC)
    run_id = make_run_id(recipe.name, created, random_suffix())
    draft = _draft(run, pool, services, files, on_progress, run_id=run_id, created=created)
    if order is not None:
        draft = with_fallback(draft, order.rule, order.chances)
    home = settings.home if is_made_on_demand(settings, pool) else None
    job = JobPlan("", False, pool.id, recipe.priority)
    return SubmissionPlan({recipe.name: draft}, job, None, files, home)


def _draft(
    run: CheckedRun,
    pool: PoolOutput,
    services: Services,
    files: FilesToUpload,
    on_progress: OnProgress,
    *,
    run_id: str,
    created: datetime,
) -> RunPlan:
    settings, outputs = services.settings, services.outputs
    content, warnings = read_files(
        run, settings, outputs, files, on_progress, runs_code=services.runs_code
    )
    warnings += pool_warnings(pool, run.recipe.resources)
    return plan_run(
        run, content, settings, outputs, pool, run_id=run_id, created=created, warnings=warnings
    )


def _refuse_lists(submission: CheckedFile, settings: Settings) -> None:
    """Raise RunnerError if a task of a group names several pools: the tasks share one job."""
    if settings.pool or submission.file.pool:
        return
    named = (name for name, run in submission.runs.items() if run.recipe.pools or run.recipe.gpu)
    first = next(named, None)
    if first is None:
        return
    recipe = submission.runs[first].recipe
    what = "a sweep" if submission.trials else "a file of tasks or a schedule"
    raise RunnerError(
        "R-POOLS-GROUP",
        f"{what} has one pool, but {recipe.name} names several",
        why="only a single run starts in the first of several pools and moves to the next one",
        fix=f"--pool {recipe.pools[0]}" if recipe.pools else "--pool POOL",
    )


def _refuse_vaults(recipe: Recipe, outputs: StackOutputs) -> None:
    """Raise RunnerError for a secret in a key vault if nodes have no identity that reads it."""
    named = [ref for ref in recipe.all_secrets if ref.keyvault is not None]
    if named and outputs.identity_client_id is None:
        name = named[0].variable
        raise RunnerError(
            "R-SECRET-VAULT",
            f"{secret_name(named[0])} is in a key vault, which the nodes cannot read",
            why="they have no managed identity; local nodes never have one",
            fix="use a variable of this machine: --notify NAME"
            if name == NOTIFY_VARIABLE
            else f"use a variable of this machine: {name}: {{env: {name}}}",
        )


def _draft_group(
    submission: CheckedFile, services: Services, on_progress: OnProgress, *, scheduled: bool
) -> SubmissionPlan:
    """Draft the runs of a group; the first trial of a sweep stands for all of them."""
    file, runs, trials, files = submission.file, submission.runs, submission.trials, FilesToUpload()
    _refuse_lists(submission, services.settings)
    settings = replace(services.settings, pool=services.settings.pool or file.pool)
    images = {name: run.recipe.image for name, run in runs.items()}
    # A pool for containers does not help if other tasks have no image.
    image = None if is_mixed(images) else next(filter(None, images.values()), None)
    outputs = with_container_pool(image, settings, services.outputs)
    outputs = pools_for_all(images, settings.pool, outputs, trials)
    resources = {name: run.recipe.resources for name, run in runs.items()}
    pool = choose_common_pool(settings.pool, outputs, resources, trials)
    group = new_group(submission, pool, datetime.now(UTC))
    tasks = group.tasks(submission.trials_per_task)
    others = frozenset(islice(trials, 1, None))
    drafts: dict[str, RunPlan] = {}
    for name, run in runs.items():
        if name in others:
            continue
        # An error of the first trial is one of all trials.
        with nullcontext() if name in trials else naming_task(name):
            fitting = pools_for(run.recipe.image, pool.id, outputs)
            choose_pool(pool.id, fitting, run.recipe.resources, run.options.resources)
            draft = _draft(
                run,
                pool,
                services,
                files,
                on_progress,
                run_id=group.runs[name],
                created=group.created,
            )
        content = draft.content
        inputs = {key: resolve_task_input(one, group) for key, one in content.inputs.items()}
        drafts[name] = replace(
            draft,
            content=replace(content, inputs={**inputs, **run.resolved}),
            job_id=group.job_id,
            after=tuple(group.runs[before] for before in must_succeed(name, file)),
            depends_on=tuple(dict.fromkeys(tasks[before] for before in group.after[name])),
            task_trials=submission.trials_per_task if name in trials else 1,
            group=None if scheduled and submission.is_single else group.group_id,
        )
    first = next(iter(drafts.values()))
    job = JobPlan("", False, pool.id, first.recipe.priority, file.job.max_parallel)
    home = settings.home if is_made_on_demand(settings, pool) else None
    return SubmissionPlan(drafts, job, group, files, home)


def _complete(
    draft: SubmissionPlan,
    lookups: Lookups,
    on_progress: OnProgress,
    checks: Sequence[ServiceCheck],
    *,
    scheduled: bool = False,
    trials: Mapping[str, CheckedRun] | None = None,
    left_micros: int | None = None,
    reader: BudgetReader | None = None,
) -> SubmissionPlan:
    """Return the plan of a draft: look up, price and cap, choose the job, download.

    `trials` are the runs of a sweep, whose draft has the first trial and the merge task only.
    """
    group = draft.group
    for name, run in draft.runs.items():
        check_kept_node(run, name, group.after if group else {}, scheduled=scheduled)
    for what, check in checks:
        lookups.ask(what, check, None)
    runs = {name: _look_up(run, name, group, lookups) for name, run in draft.runs.items()}
    budgets = None if scheduled else _read_budgets(lookups, reader)
    if budgets is not None:
        experiments = {run.experiment for run in runs.values()}
        left_micros = budgets.left(experiments)
        if warning := budgets.warning(experiments):
            lookups.notes.append(warning)
    cost = _price(runs, group, lookups, left_micros, draft.job.max_parallel)
    cap = cost.cap if cost else None
    first = next(iter(runs.values()))
    if group is None and (cap is not None or first.fallback is not None):
        refuse_predecessors(first)
    if cap is not None:
        tasks = len(group.runs) if group else 1
        runs = {
            name: with_cap(run, cap, is_alone=group is None, tasks=tasks)
            for name, run in runs.items()
        }
    job = replace(draft.job, limit=timedelta(seconds=cap.job_s) if cap else None)
    job = _find_job(replace(draft, runs=runs, job=job), lookups, scheduled=scheduled)
    if not lookups.dry_run:
        runs = {
            name: download_data(run, lookups.home, draft.files, on_progress)
            for name, run in runs.items()
        }
    runs = {name: in_job(run, job.job_id) for name, run in runs.items()}
    if budgets is not None and cost is not None and cost.cap is not None:
        _claim(budgets, runs, cost.cap, cost.least_cap_micros, lookups)
    if trials is not None and group is not None:
        first = next(iter(runs.values()))
        tasks = group.tasks(first.task_trials)
        runs = {
            name: runs.get(name) or plan_trial(first, run, group.runs[name], tasks[name])
            for name, run in trials.items()
        }
    if lookups.dry_run:
        _check_tasks(runs, lookups, in_group=group is not None)
    return replace(
        draft,
        runs=runs,
        job=job,
        notes=tuple(lookups.notes),
        unanswered=tuple(dict.fromkeys(lookups.unknown)),
        dry_run=lookups.dry_run,
        cost=cost,
    )


def _read_budgets(lookups: Lookups, reader: BudgetReader | None) -> BudgetState | None:
    """Return the budgets of the stack, or None if it has none, or its nodes cost nothing."""
    if not target_at(lookups.outputs.location).is_billed:
        return None
    from runner.flows.costs.budgets import BudgetReader  # noqa: PLC0415  only if nodes are billed

    read = (reader or BudgetReader()).read
    return lookups.ask("budgets", lambda connection: read(connection, lookups.home), None)


def _claim(
    budgets: BudgetState,
    runs: Mapping[str, RunPlan],
    cap: CostCap,
    least_micros: int | None,
    lookups: Lookups,
) -> None:
    """Claim a cap from the budgets; a dry run only checks it. Raise RunnerError R-BUDGET."""
    from runner.core.pricing.budgets import Claim  # noqa: PLC0415  as in `_read_budgets`

    first = next(iter(runs.values()))
    shares: Counter[str] = Counter()
    for run in runs.values():
        shares[run.experiment] += run.recipe.max_cost_micros or 0
    # The draft of a trial stands for all, and shares are rounded.
    shares[first.experiment] += cap.cap_micros - shares.total()
    claim = Claim(first.job_id, first.created, shares)
    if lookups.connection is None or lookups.dry_run:
        budgets.check(claim, least_micros)
    else:
        budgets.claim(lookups.connection, claim, least_micros)


def _look_up(draft: RunPlan, name: str, group: RunGroup | None, lookups: Lookups) -> RunPlan:
    """Return the draft with inputs and predecessors resolved by the services."""
    suffix, after = f" of {name}" if group else "", draft.recipe.after
    named = draft.content.inputs
    inputs = {key: lookups.input(key, one, suffix) for key, one in named.items()}
    if after:
        draft = lookups.ask(
            f"after {', '.join(after)}{suffix}",
            lambda connection: resolve_after(connection, draft, lookups.outputs),
            replace(draft, after=after, depends_on=()),
        )
    awaited = {*draft.after, *(group.runs.values() if group else ())}
    lookups.note_unfinished(inputs, awaited, suffix, "" if group else ": --after {}")
    return replace(draft, content=replace(draft.content, inputs=inputs))


def _price(
    drafts: Mapping[str, RunPlan],
    group: RunGroup | None,
    lookups: Lookups,
    left_micros: int | None,
    max_parallel: int | None,
) -> SubmissionCost | None:
    """Return the costs of the drafts, with the limits that enforce their cap.

    Returns None for nodes on this machine, which cost nothing.
    """
    is_billed = target_at(lookups.outputs.location).is_billed
    if not is_billed and all(run.recipe.max_cost_micros is None for run in drafts.values()):
        return None
    trials = group.trials if group else ()
    work = [
        to_work(run, name=each, after=group.after.get(each, ()) if group else ())
        for name, run in drafts.items()
        for each in (trials if name in trials else (name,))  # the draft of a trial stands for all
    ]
    first = next(iter(drafts.values()))
    if group is not None:
        work = join_trials(work, group.tasks(first.task_trials))
    cap, location = common_cap(work), lookups.outputs.location
    if not is_billed:
        lookups.notes.append("the cost cap has no effect: nodes on this machine are free")
        return None
    prices, today = load_price_table(lookups.home), datetime.now(UTC).date()

    def price(pool: PoolOutput) -> SubmissionCost:
        return plan_cost(
            pool, location, work, prices, cap_micros=cap, today=today, left_micros=left_micros,
            max_parallel=max_parallel,
        )  # fmt: skip

    cost, others = price(first.pool), first.fallback.pools if first.fallback else ()
    if cost.cap is None or not others:
        return cost
    # A cap holds in every pool that the run may move to: that with the shortest time decides.
    caps = [
        each.cap for pool in lookups.outputs.pools if pool.id in others and (each := price(pool))
    ]
    strictest = min((each for each in (cost.cap, *caps) if each), key=lambda each: each.job_s)
    return replace(cost, cap=strictest)


def _find_job(draft: SubmissionPlan, lookups: Lookups, *, scheduled: bool) -> JobPlan:
    first = next(iter(draft.runs.values()))
    pool_id, job_id = first.pool.id, first.job_id
    if draft.job.exists:  # that of an earlier trial
        return replace(draft.job, wanted=job_id)
    absent = replace(draft.job, job_id="" if scheduled else job_id)
    what = f"pool {pool_id}" if scheduled else f"pool {pool_id}, job {job_id}"

    def ask(connection: Connection) -> JobPlan:
        if scheduled:
            check_pool(connection, pool_id)
            return absent
        return find_job(connection, first, absent, in_group=draft.group is not None)

    try:
        return lookups.ask(what, ask, absent)
    except RunnerError as err:
        if err.code not in ("R-POOL-MISSING", "R-POOL-DELETED") or draft.home is None:
            raise
        lookups.unknown.append((f"pool {pool_id}", "created for the first run that needs it"))
        return absent


def find_job(
    connection: Connection, run: RunPlan, job: JobPlan, *, in_group: bool = False
) -> JobPlan:
    """Return the job of a task: an open one, or one to be created."""
    if run.depends_on and not in_group:  # the job of its predecessors
        return replace(job, job_id=run.job_id, exists=True)
    wanted = replace(job, job_id=run.job_id, wanted=run.job_id)
    if in_group and run.job_id == run.group:  # a new name
        check_pool(connection, job.pool_id)
        return wanted
    return find_next_job(connection, wanted)


def find_next_job(connection: Connection, job: JobPlan) -> JobPlan:
    """Return the open job with the wanted name, or the next one to be created."""
    found = find_open_job(connection, job.wanted, job.pool_id)
    return replace(job, job_id=found.job_id, exists=found.exists, completes=found.completes)


def _check_tasks(runs: Mapping[str, RunPlan], lookups: Lookups, *, in_group: bool) -> None:
    """Check the tasks that a submission would add, and list what only nodes can check."""
    for name, run in runs.items():
        suffix = f" of {name}" if in_group else ""
        if lookups.connection is not None:
            lookups.ask(f"task{suffix}", lambda connection, run=run: to_task(run, connection), None)
        lookups.note_node_checks(run.recipe, run.content.inputs, suffix)


@dataclass(frozen=True, slots=True)
class RepeatRequest:
    """The request to repeat a run (`retry`, `resume`, `reproduce`), or to trigger a schedule.

    Attributes:
        spec: The run to repeat, or the template of the schedule.
        asked: The changes of the repetition.
        pool: The pool, or None for the pool of the run.
        schedule_id: The triggered schedule. Its run has the agent of the template, and no origin.
        group: The sweep of a trial, which stays in the job of the sweep, or the next with its name.
        claim: The ID and the time that were claimed for a trial.
        max_parallel: Number of tasks that a new job runs at the same time.
        prepared: Another trial with the same pool, code and data, which has just been submitted.
        is_new: True if nothing of a run with this ID exists.
        budgets: What the repetitions of a sweep share; None to read the budgets for this one.
        consent: The variables that the person agrees to send; None for no others than before.
    """

    spec: RunSpec
    asked: Repetition
    pool: str | None = None
    schedule_id: str | None = None
    group: RunGroup | None = None
    claim: LaterRun | None = None
    max_parallel: int | None = None
    prepared: RunSpec | None = None
    is_new: bool = False
    budgets: BudgetReader | None = None
    consent: Consent | None = None


def plan_repetition(
    connection: Connection, request: RepeatRequest, checks: Sequence[ServiceCheck] = ()
) -> SubmissionPlan:
    """Plan the repetition of a run from its run.json; its code and data are in storage.

    Raises:
        RunnerError: the pool or a secret is missing, a changed parameter is unknown, or the
            services reject the job or a predecessor.
    """
    home = connection.home or runner_home(os.environ)
    draft = _draft_repetition(connection, request)
    lookups = Lookups(connection, connection.outputs, home)
    return _complete(draft, lookups, ignore_progress, checks, reader=request.budgets)


def _draft_repetition(connection: Connection, request: RepeatRequest) -> SubmissionPlan:
    spec, asked, outputs, before = request.spec, request.asked, connection.outputs, request.prepared
    files, order = FilesToUpload(), None
    if spec.fallback is not None and request.pool is None and request.schedule_id is None:
        from runner.flows.submit.pool_list import order_same_pools  # noqa: PLC0415  as above

        order = order_same_pools(connection, spec, asked.nodes)
    wanted = order.pool.id if order is not None else request.pool
    pool = choose_same_pool(wanted, spec, outputs, asked.nodes)
    # A schedule's run has the agent that its template names.
    agent_sha256 = spec.agent_sha256
    if before is not None:
        agent_sha256 = before.agent_sha256
    elif request.schedule_id is None:
        agent = build_agent()
        agent_sha256 = hashlib.sha256(agent).hexdigest()
        files.archives[agent_sha256] = agent
    created = request.claim.created if request.claim else datetime.now(UTC)
    name = request.schedule_id or spec.recipe
    draft = plan_again(
        spec,
        asked,
        outputs,
        pool,
        run_id=request.claim.run_id
        if request.claim
        else make_run_id(name, created, random_suffix()),
        created=created,
        agent_sha256=agent_sha256,
        origin={"kind": asked.kind, "run_id": spec.run_id} if request.schedule_id is None else None,
    )
    if order is not None:
        draft = with_fallback(draft, order.rule, order.chances)
    again = draft.repeats or spec
    if spec.all_secrets or again.all_secrets:
        from runner.flows.submit.consent import NOTHING  # noqa: PLC0415  few runs have secrets

        (request.consent or NOTHING).require(
            connection,
            spec,
            spec.agent_sha256 if request.schedule_id is not None else None,
            own_notify=asked.notify is not None,
        )
        secrets = read_secrets(recorded_secrets(again), os.environ)
        refuse_exposed_secrets(secrets, draft.command)
        draft = replace(draft, secrets=secrets)
    if (group := request.group) is not None:
        in_group = group.job_id if len(group.job_id) <= _MAX_JOB_NAME else draft.job_id
        draft = replace(draft, job_id=in_group, group=group.group_id)
    job = JobPlan("", False, pool.id, spec.priority, request.max_parallel)
    if before is not None:
        job = replace(job, job_id=before.job_id, exists=True, completes=True)
    return SubmissionPlan({spec.recipe: draft}, job, files=files)
