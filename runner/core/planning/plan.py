"""The plan of a run, and the pure functions that compute it."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from runner.contract import PoolOutput, StackOutputs
from runner.core.pricing.cost import CostCap, Work, expected_seconds
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import ParamValue, Recipe
from runner.core.recipe.secrets import SecretValues
from runner.core.recipe.shell_text import ignored_arguments
from runner.core.settings import Settings, Target
from runner.core.units import format_duration
from runner.protocol.commands import ParameterError, code_words, names_in_braces
from runner.protocol.errors import RunnerError
from runner.protocol.groups import SWEEPS_FOLDER, TRIALS_INPUT, LaterRun, group_blob
from runner.protocol.models import NAME_PATTERN, ModelBlobs
from runner.protocol.paths import STAMP_LENGTH, RunPaths, job_id_for, slug
from runner.protocol.results import index_blobs
from runner.protocol.run_spec import (
    CodeRef,
    DataRef,
    FallbackRule,
    RecipeSpec,
    RunOrigin,
    RunSpec,
)
from runner.protocol.task import SPARE_STARTS

if TYPE_CHECKING:
    from runner.core.planning.fallback import PoolChance
    from runner.core.recipe.read_paths import UnsentPath

_QUEUE_ALLOWANCE = timedelta(days=7)  # time that a task may wait for a node before its SAS expires
_AFTER_ALLOWANCE = timedelta(days=30)  # additional time if the task depends on other tasks
_WALL_CLOCK_MARGIN = timedelta(
    minutes=30
)  # time for environment, data and export, in addition to the command


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A recipe and its options, which fit together: knows the command and the values of secrets.

    Attributes:
        rehearsal: As in RunSpec.
        trial: As in RunSpec.
        resolved: Entries in run.json of inputs that are already resolved, by name.
    """

    recipe: Recipe
    options: RunOptions
    params: Mapping[str, ParamValue]
    command: tuple[str, ...]
    template: tuple[str | None, ...] = ()
    secrets: SecretValues | None = None
    rehearsal: Mapping[str, Any] | None = None
    trial: Mapping[str, Any] | None = None
    resolved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


@dataclass(frozen=True, slots=True)
class RunContent:
    """What the node will read, by hash: code, agent, packages, data and inputs.

    `inputs` are the entries of run.json, by the name of the input. `commits` are as in RunSpec.
    `unsent` are paths that the code reads and that will not exist on the node.
    """

    code: CodeRef
    agent_sha256: str
    requirements_sha256: str | None
    data: DataRef | None
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    commits: Mapping[str, str] = field(default_factory=dict[str, str])
    unsent: tuple[UnsentPath, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of one run: knows its ID, its pool and its job.

    It is a draft until the services have answered: the functions below complete it.

    Attributes:
        job_id: ID of the job; of a draft, its wanted name; empty for the template of a schedule.
        origin: Kind of the repetition, and run ID of the repeated run.
        repeats: The repeated run, with the requested changes.
        after: Runs that must succeed before this one.
        depends_on: Tasks of the same job that Batch waits for; they had not ended when the run was
            submitted.
        fallback: As in RunSpec.
        chances: The pools that the run named, and why it starts in one of them; empty for one pool.
        job_limit_s: Time limit of a job with a cost cap.
        template: As in RunSpec.
        task_trials: How many trials the task of this one runs at most, one after another.
        task_of: The first trial of that task; empty if it is this one.
    """

    run_id: str
    experiment: str
    created: datetime
    target: str
    account: str
    pool: PoolOutput
    job_id: str
    command: tuple[str, ...]
    params: Mapping[str, ParamValue]
    recipe: Recipe
    content: RunContent
    secrets: SecretValues | None = field(default=None, compare=False)
    origin: Mapping[str, str] | None = None
    repeats: RunSpec | None = None
    after: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    group: str | None = None
    warnings: tuple[str, ...] = ()
    rehearsal: Mapping[str, Any] | None = None  # as in RunSpec
    trial: Mapping[str, Any] | None = None  # as in RunSpec
    job_limit_s: int | None = None
    template: tuple[str | None, ...] = ()
    task_trials: int = 1
    task_of: str = ""
    fallback: FallbackRule | None = None
    chances: tuple[PoolChance, ...] = ()

    @property
    def task_id(self) -> str:
        """The task ID, which is a run ID: submitting a plan again finds its task."""
        return self.task_of or self.run_id

    def to_spec(self) -> RunSpec:
        """Return the specification of the run."""
        planned: dict[str, Any] = {
            "run_id": self.run_id,
            "created": self.created,
            "agent_sha256": self.content.agent_sha256,
            "command": self.command,
            "template": self.template,
            "params": self.params,
            "account": self.account,
            "pool": self.pool.id,
            "vm_size": self.pool.vm_size,
            "spot": self.pool.spot,
            "moved_from": (),
            "fallback": self.fallback,
            "job_id": self.job_id,
            "job_limit_s": self.job_limit_s,
            "task_id": self.task_id,
            "task_trials": self.task_trials,
            "origin": RunOrigin(**self.origin) if self.origin else None,
            "group": self.group,
            "rehearsal": self.rehearsal,
        }
        if self.repeats is not None:
            return replace(self.repeats, **planned)
        return RunSpec(
            **self.recipe.recipe_fields(),
            **planned,
            experiment=self.experiment,
            recipe=self.recipe.name,
            description=self.recipe.description,
            source=self.recipe.source,
            code=self.content.code,
            requirements_sha256=self.content.requirements_sha256,
            commits=self.content.commits,
            trial=self.trial,
            data=self.content.data,
            inputs=self.content.inputs,
            after=self.after,
        )

    @property
    def wall_clock(self) -> timedelta | None:
        """Return the time limit for Batch, which applies if the agent fails to enforce `timeout_s`.

        On several nodes, one task may contain two attempts, if an agent was lost and rejoined.
        """
        return _wall_clock(
            self.recipe, self.job_limit_s, self.task_trials, hold_s=self.recipe.keep_node_s or 0
        )

    @property
    def task_retries(self) -> int:
        """Return how often Batch runs the task again if its agent failed.

        The agent of a task with several trials repeats a failed attempt itself. It fails if storage
        does, which ends one attempt of one trial, or if it is killed. The last start is for the
        result of a trial during which it was killed too often.
        """
        retries = self.recipe.retries
        return retries if self.task_trials == 1 else (retries + 1 + SPARE_STARTS) * self.task_trials

    @property
    def access_lifetime(self) -> timedelta:
        """Return how long the task needs storage access: the wait and every attempt."""
        attempts = self.recipe.retries + 1
        waiting = _QUEUE_ALLOWANCE + (_AFTER_ALLOWANCE if self.depends_on else timedelta())
        return waiting + attempts * (self.wall_clock or timedelta(days=7))


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The Batch job of a submission: knows whether it exists, what ends it, and its limits.

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


def _wall_clock(
    recipe: Recipe, job_limit_s: int | None, trials: int = 1, *, hold_s: float = 0
) -> timedelta | None:
    limits: list[timedelta] = []
    if recipe.timeout_s is not None:
        attempts = 1 if recipe.resources.nodes == 1 else 2
        if trials > 1:  # the agent repeats failed attempts
            attempts = trials * (recipe.retries + 1)
        each = timedelta(seconds=recipe.timeout_s) + _WALL_CLOCK_MARGIN
        limits.append(attempts * each + timedelta(seconds=hold_s))
    if job_limit_s is not None:
        limits.append(timedelta(seconds=job_limit_s))
    return min(limits, default=None)


def to_work(run: RunPlan, *, name: str = "", after: Sequence[str] = ()) -> Work:
    """Return the nodes and times of the run's task, which waits for others of its submission."""
    recipe, limit = run.recipe, _wall_clock(run.recipe, None)
    return Work(
        recipe.resources.nodes,
        recipe.retries + 1,
        None if limit is None else int(limit.total_seconds()),
        expected_seconds(recipe.estimate),
        recipe.name,
        recipe.max_cost_micros,
        name,
        tuple(after),
        int(recipe.keep_node_s or 0),
    )


def check_kept_node(
    run: RunPlan, name: str, after: Mapping[str, Sequence[str]], *, scheduled: bool
) -> None:
    """Raise RunnerError R-KEEP-NODE if the run cannot keep its node after a failure.

    Args:
        run: The draft.
        name: Its name in the submission.
        after: The names of the tasks that each task of the submission waits for.
        scheduled: The draft is the template of a schedule.
    """
    if not run.recipe.keep_node_s:
        return
    fix = "remove `keep_node`, or use --keep-node off"
    spec = run.repeats
    waits = next((task for task, names in after.items() if name in names), None)
    if run.trial or (spec is not None and spec.trial):
        what = "a trial of a sweep cannot keep its node"
        why = "each trial that fails would hold a node, and the other trials would wait for it"
    elif run.recipe.resources.nodes > 1:
        what = f"a run on {run.recipe.resources.nodes} nodes cannot keep them"
        why = "the agents of the other nodes end with the run, and every node would be billed"
    elif scheduled:
        what = "a run of a schedule cannot keep its node"
        why = "nobody waits for it, and Batch starts the next run only after this one"
        fix = "remove `keep_node` from what is scheduled"
    elif waits is not None:
        what = f"task {name} cannot keep its node"
        why = f"Batch starts task {waits}, which waits for it, only after it has released the node"
        fix = "set `keep_node` only for tasks that no other task waits for"
    else:
        return
    raise RunnerError(
        "R-KEEP-NODE",
        what,
        why=why,
        fix=fix,
    )


def plan_run(
    run: CheckedRun,
    content: RunContent,
    settings: Settings,
    outputs: StackOutputs,
    pool: PoolOutput,
    *,
    run_id: str,
    created: datetime,
    warnings: tuple[str, ...] = (),
) -> RunPlan:
    """Return the draft of a run in the job of its experiment."""
    recipe, experiment = run.recipe, slug(run.options.experiment or run.recipe.name)
    if run.rehearsal is not None:
        _check_rehearsal(settings.target, pool)
    short = ", ".join(run.secrets.short()) if run.secrets else ""
    hidden = (f"secret values too short to be hidden in logs: {short}",) if short else ()
    return RunPlan(
        run_id=run_id,
        experiment=experiment,
        created=created,
        target=settings.target.name,
        account=outputs.batch_account,
        pool=pool,
        job_id=job_id_for(experiment, pool.id, recipe.priority),
        command=run.command,
        template=run.template,
        params=run.params,
        recipe=_with_ranges(recipe, run, content),
        content=content,
        secrets=run.secrets,
        warnings=(*hidden, *recipe.notes, *warnings, *_option_warnings(run)),
        rehearsal=run.rehearsal,
        trial=run.trial,
    )


def _option_warnings(run: CheckedRun) -> tuple[str, ...]:
    """Return warnings about variables, times, and arguments that the program does not get."""
    found = (*env_warnings(run.recipe.env), *_late_limits(run.recipe), *_unknown_names(run))
    if run.template or not code_words(run.command):
        return found
    ignored = ignored_arguments(run.command, len(run.recipe.command))
    if not ignored:
        return found
    what = f"the code of {run.command[0]} -c ignores the arguments {shlex.join(ignored)}"
    fix = 'write "$@" in it where the program takes them, and a word after the code'
    return (*found, f"{what}: {fix}")


def _late_limits(recipe: Recipe) -> Iterator[str]:
    """Yield a warning for each limit of a silent or idle script that `timeout` precedes."""
    if (most := recipe.timeout_s) is None:
        return
    limits = {"idle_timeout": recipe.idle_timeout_s, "hang_timeout": recipe.hang_timeout_s}
    for key, limit in limits.items():
        if limit is not None and limit >= most:
            yield (
                f"`{key}` of {format_duration(limit)} never applies, because `timeout` ends the "
                f"run after {format_duration(most)}: use a shorter `{key}`, or a longer `timeout`"
            )


def _unknown_names(run: CheckedRun) -> Iterator[str]:
    """Yield a warning for each name in braces that is probably meant for a parameter."""
    swept: Mapping[str, Any] = (run.trial or {}).get("params") or {}
    known = [*run.params, *swept, *(each.name for each in run.recipe.params)]
    words = [word for word in run.template or run.command if word is not None]
    code = code_words(words)
    plain = [word for number, word in enumerate(words) if number not in code]
    for name in sorted(names_in_braces(plain)[0].difference(known)):
        near = difflib.get_close_matches(name, known, 1, 0.7)
        is_word = any(word.rpartition("=")[2] == f"{{{name}}}" for word in plain)
        if near or (is_word and name.isidentifier()):
            fix = f"did you mean {{{near[0]}}}?" if near else f"set it with --set {name}=VALUE"
            yield f"{{{name}}} in the command is not a parameter, so it is passed as it is: {fix}"


def plan_trial(first: RunPlan, run: CheckedRun, run_id: str, task_of: str = "") -> RunPlan:
    """Return the plan of a trial, which differs from the first one in its parameters or blobs.

    `task_of` is the first trial of its task, if the task runs several.
    """
    recipe, content = run.recipe, first.content
    if recipe.timeout_s != first.recipe.timeout_s:  # the limit of a cost cap
        recipe = replace(recipe, timeout_s=first.recipe.timeout_s)
    if run.resolved:
        content = replace(content, inputs={**content.inputs, **run.resolved})
    return replace(
        first,
        run_id=run_id,
        command=run.command,
        template=run.template,
        params=run.params,
        recipe=_with_ranges(recipe, run, content),
        content=content,
        trial=run.trial,
        task_of=task_of,
    )


def with_fallback(
    draft: RunPlan, rule: FallbackRule | None, chances: tuple[PoolChance, ...]
) -> RunPlan:
    """Return the draft with the pools that it named; one that may move has a job of its own."""
    job_id = draft.job_id if rule is None else draft.run_id
    return replace(draft, fallback=rule, chances=chances, job_id=job_id)


def with_content(draft: RunPlan, content: RunContent) -> RunPlan:
    """Return the draft with the content that it has after the download of its data."""
    recipe = draft.recipe
    if draft.repeats is None and content.data is not None and content.data.notice is not None:
        recipe = _without_warnings(recipe)
    return replace(draft, content=content, recipe=recipe)


def with_cap(draft: RunPlan, cap: CostCap, *, is_alone: bool, tasks: int = 1) -> RunPlan:
    """Return the draft with the limits of its cap; one that `is_alone` gets its own job.

    A draft without a cap gets its share of that of all `tasks`.
    """
    limit_s = min(draft.recipe.timeout_s or cap.script_s, cap.script_s)
    share = draft.recipe.max_cost_micros or cap.cap_micros // tasks
    repeats = draft.repeats
    if repeats is not None:
        repeats = replace(repeats, timeout_s=limit_s, max_cost_micros=share)
    return replace(
        draft,
        recipe=replace(draft.recipe, timeout_s=limit_s, max_cost_micros=share),
        repeats=repeats,
        job_id=draft.run_id if is_alone else draft.job_id,
        job_limit_s=cap.job_s,
    )


def in_job(plan: RunPlan, job_id: str) -> RunPlan:
    """Return the same run in a job."""
    return plan if plan.job_id == job_id else replace(plan, job_id=job_id)


def without_waiting(plan: RunPlan) -> RunPlan:
    """Return the same run in the job of its experiment, where it waits for no task."""
    job_id = job_id_for(plan.experiment, plan.pool.id, plan.recipe.priority)
    return replace(plan, depends_on=(), job_id=job_id)


def _with_ranges(recipe: Recipe, run: CheckedRun, content: RunContent) -> Recipe:
    """Return the recipe with the ranges of metrics that apply to the run.

    With other parameters or incomplete data, metrics may be outside of the ranges for good reasons,
    so ranges that only warn do not apply. Ranges that fail the run always apply.
    """
    if not recipe.expect:
        return recipe
    defaults = {param.name: param.default for param in recipe.params if param.default is not None}
    is_unchanged = dict(run.params) == defaults and not run.options.args
    if is_unchanged and (content.data is None or content.data.notice is None):
        return recipe
    return _without_warnings(recipe)


def _without_warnings(recipe: Recipe) -> Recipe:
    return replace(recipe, expect=tuple(each for each in recipe.expect if each.fails))


def _check_rehearsal(target: Target, pool: PoolOutput) -> None:
    """Raise RunnerError if evictions of the pool cannot be rehearsed.

    Batch has no operation that evicts a spot node (REST API 2025-06-01). Removing or rebooting a
    node is not an eviction: it gives no notice and counts as a request of the user.
    """
    if not target.runs_here:
        raise RunnerError(
            "R-EVICT-AZURE",
            "evictions can be rehearsed only on this machine",
            why="Azure Batch has no operation that evicts a spot node",
            fix="--target local",
        )
    if not pool.spot:
        raise RunnerError(
            "R-EVICT-DEDICATED",
            f"pool {pool.id!r} has dedicated nodes, which are never evicted",
            fix="choose a pool of spot nodes: --pool POOL",
        )


def compose_command(
    recipe: Recipe, params: Mapping[str, Any], args: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return the command of a recipe with parameters and arguments, and its template.

    The template, as in RunSpec, is empty unless a word has the name of a parameter in braces.

    Raises:
        RunnerError: R-SET-VALUE, the script cannot read a value; R-SET-MISSING, a word names a
            declared parameter that has no value.
    """
    if not params and not recipe.params:
        return (*recipe.command, *args), ()
    placed, escaped = names_in_braces((*recipe.command, *args))
    for param in recipe.params if placed else ():
        if param.name in placed and param.name not in params:
            raise RunnerError(
                "R-SET-MISSING",
                f"parameter {param.name!r} has no value",
                why=f"the command contains {{{param.name}}}",
                fix=f"--set {param.name}=VALUE",
            )
    if params.keys().isdisjoint(placed | escaped):
        given = script_arguments(recipe, params)
        return (*recipe.command, *recipe.insert_parameters(given, args)), ()
    template = (*recipe.command, *recipe.insert_parameters((None,), args))
    return script_arguments(recipe, params, template), template


def script_arguments(
    recipe: RecipeSpec, params: Mapping[str, Any], template: Sequence[str | None] = ()
) -> tuple[str, ...]:
    """Return the arguments with which the script gets parameters, or a template with them.

    Raises:
        RunnerError: R-SET-VALUE, the script cannot read a value.
    """
    try:
        if template:
            return tuple(recipe.place_parameters(template, params))
        return tuple(recipe.to_arguments(params))
    except ParameterError as err:
        raise RunnerError("R-SET-VALUE", str(err), why=err.why, fix=err.fix) from err


_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:(?!\$\{)[^/\s@]+@")
_SECRET_NAME = re.compile(r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)$")


def env_warnings(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each variable with the name of a secret, or a password in a URL."""
    return tuple(
        f"{name} in env looks like a secret, but run.json and logs show its value; to keep it "
        f"secret, write `secrets: {{{name}: {{env: {name}}}}}`"
        for name, value in env.items()
        if value and (_SECRET_NAME.search(name) or _PASSWORD_IN_URL.search(value))
    )


@dataclass(frozen=True, slots=True)
class StorageScopes:
    """What a task may do in storage: the entries of its scoped SAS, by container.

    An entry is `<rights>~<prefix>` or `<rights>=<blob>`; of several, the longest one decides. The
    rights are r (read), l (list), c (create), a (append), w (write), m (replace metadata) and d
    (delete), and `*` in a name is one digit or lower-case letter. Other names are percent-encoded.

    Attributes:
        code: The entries of a task that adds tasks, whose files they sign. Other tasks have none.
        inputs: The entries of the containers that `blob` inputs are read from, by name.
    """

    runs: tuple[str, ...]
    data: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __add__(self, other: StorageScopes) -> StorageScopes:
        containers = dict.fromkeys((*self.inputs, *other.inputs))
        return StorageScopes(
            _distinct(self.runs, other.runs),
            _distinct(self.data, other.data),
            _distinct(self.models, other.models),
            _distinct(self.code, other.code),
            {name: _distinct(self.inputs.get(name, ()), other.inputs.get(name, ()))
             for name in containers},
        )  # fmt: skip


_ANY_STAMP = "-********-******-****"
_STAMP = "-[0-9]{8}-[0-9]{6}-[0-9a-z]{4}"
_DIGITS = 5  # at most, of the number of a trial
_MAX_NAMED = 40  # runs that a scope names; the head of a request has at most 16 KB


def at_any_time(run_id: str) -> str:
    """Return the run ID with a wildcard for each character of its time and suffix."""
    return run_id[:-STAMP_LENGTH] + _ANY_STAMP


def common_start(names: Sequence[str]) -> str:
    """Return the characters with which all names begin."""
    return os.path.commonprefix(names)  # noqa: RUF071  characters are meant


def storage_scopes(run: Mapping[str, Any]) -> StorageScopes:
    """Return what the task of this run.json may do in storage.

    docs/run-format.md has the list. With a pattern of `at_any_time` as its ID, the scopes are those
    of all runs with such an ID.
    """
    by_name: Mapping[str, Mapping[str, Any]] = run.get("inputs") or {}
    inputs = list(by_name.values())
    uploaded = [one for one in inputs if one.get("kind") in ("path", "dataset")]
    uploaded += [run["data"]] if run.get("data") else []
    blobs: dict[str, tuple[str, ...]] = {}
    for one in inputs:
        if one.get("kind") == "blob":
            single: str | None = one.get("single")
            entry = f"r={quote(one['prefix'] + single)}" if single else f"r~{quote(one['prefix'])}"
            blobs[one["container"]] = _distinct(blobs.get(one["container"], ()), (entry,))
    return StorageScopes(
        runs=(*_own_entries(run), *_trial_entries(run), *_entries_of_others(run, inputs)),
        # A dry run looks for no data set, so its document lacks the prefix.
        data=_distinct(f"r~{quote(one['prefix'])}" for one in uploaded if one.get("prefix")),
        models=tuple(_model_entries(run.get("model") or {})),
        inputs=blobs,
    )


def _own_entries(run: Mapping[str, Any]) -> Iterator[str]:
    run_id: str = run["run_id"]
    paths = RunPaths(run_id)
    trial: Mapping[str, Any] = run.get("trial") or {}
    yield f"rlaw~{paths.root}"
    yield f"rlawd~{paths.checkpoints}"
    yield f"{'rc' if trial.get('decided', True) else 'rcw'}={paths.run}"
    yield f"rc={paths.result}"
    yield from (f"w={blob}" for blob in index_blobs(run_id))


def _trial_entries(run: Mapping[str, Any]) -> Iterator[str]:
    trial, group = run.get("trial"), run.get("group")
    if trial and group:
        folder = f"{SWEEPS_FOLDER}{group}/"
        yield f"r={folder}run.json"
        yield f"rl~{folder}trials/"
        yield f"rw={folder}trials/{quote(str(trial['name']))}"
        if run.get("notify"):  # the last trial to end reads how the others ended
            from runner.protocol.notifying.documents import marks_folder  # noqa: PLC0415  few runs

            yield f"rlw~{marks_folder(run['run_id'], group)}"
            yield f"r={group_blob(group)}"
            yield f"rl~{LaterRun.folder(group)}"
            yield from (f"r={RunPaths(run_id).result}" for run_id in _any_trial(group))


def _any_trial(group: str) -> Iterator[str]:
    """Yield patterns of the run IDs of trials, which have another time if they were resumed."""
    stem = group[:-STAMP_LENGTH]
    yield from (f"{stem}-{'*' * n}{_ANY_STAMP}" for n in range(1, _DIGITS + 1))


def _entries_of_others(
    run: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the entries for reading other runs."""
    resumed: Mapping[str, Any] = run.get("resume_from") or {}
    if resumed:
        yield f"rl~{resumed['run_id']}/"
    before: list[str] = list(run.get("after") or ())
    named = [str(one["run_id"]) for one in inputs if one.get("kind") == "run"]
    for one in inputs:
        if one.get("kind") == TRIALS_INPUT:
            group = str(one["group"])
            yield f"r={group_blob(group)}"
            yield f"rl~{LaterRun.folder(group)}"
            yield from (f"r~{run_id}/" for run_id in _any_trial(group))
            stem = group[:-STAMP_LENGTH]
            of_trial = re.compile(f"{re.escape(stem)}-[0-9]{{1,{_DIGITS}}}{_STAMP}")
            before = [each for each in before if not of_trial.fullmatch(each)]
    if len(before) + len(named) > _MAX_NAMED:
        yield f"r~{common_start([*before, *named])}"
        return
    yield from (f"r={RunPaths(run_id).result}" for run_id in before)
    yield from (f"r~{run_id}/" for run_id in named)


def _model_entries(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the entries for creating versions of the model, whose files never change."""
    name = str(model.get("name") or "")
    if model.get("register", True) and re.fullmatch(NAME_PATTERN, name):
        blobs = ModelBlobs(name)
        yield f"rlc~{blobs.versions}"
        yield f"rcm~{blobs.files}"
        yield f"rw={blobs.aliases}"


def _distinct(*entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for group in entries for each in group))
