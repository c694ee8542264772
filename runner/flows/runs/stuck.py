"""Explain why a queued run has no node, and whether it is stuck until a user acts.

`explain_queue_reason` returns the cause: its job, other runs, or its pool. For the pool,
`explain_wait` decides from the facts of `load_pool_facts`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from threading import Lock

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import read_job
from runner.azure.batch.jobs import has_ended
from runner.azure.batch.pools import (
    NodeTask,
    NodeView,
    PoolAutoscale,
    PoolView,
    find_pool,
    list_pool_nodes,
    set_scheduling,
    start_task_log,
)
from runner.azure.storage.blobs import in_parallel
from runner.core.job_moves import JobSnapshot, is_falling_back
from runner.core.states import JOB_DISABLED, WAITING, RunState, RunStatus, TaskView, WaitCause
from runner.core.units import format_duration
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.runs.waiting import WaitingTrialsCache, read_run
from runner.protocol.errors import RunnerError
from runner.protocol.paths import is_run_id
from runner.protocol.run_spec import RunSpec, parse_run

_LOCAL_POOL = "local"  # the pool that `runner local up` creates
_WORKING = frozenset({"idle", "running"})
_CLOSED = frozenset({"offline", "deallocating", "deallocated"})
_EARLIEST = datetime.min.replace(tzinfo=UTC)
# Our choice: GPU drivers and preloaded data take up to 15 minutes.
_BOOT_LIMIT = timedelta(minutes=30)
_CHARGED = "Azure charges for {} until they are removed"
_NO_SAMPLES = "InsufficientSampleData"  # a new pool has no samples yet


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool (None if it does not exist) and its nodes.

    Attributes:
        most_nodes: Its maximum size in the stack's outputs, None if it is not in them.
        is_billed: False for nodes on this machine.
        log: The end of the start task's output if no node works.
    """

    id: str
    pool: PoolView | None
    nodes: tuple[NodeView, ...]
    most_nodes: int | None = None
    is_billed: bool = True
    log: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of nodes by state."""
        return Counter(node.state for node in self.nodes)

    @property
    def broken(self) -> tuple[NodeView, ...]:
        """The nodes, if none of them can ever run a task in its present state."""
        staying = tuple(node for node in self.nodes if node.state != "leavingpool")
        dead = all(node.is_broken or node.state in _CLOSED for node in staying)
        return staying if dead else ()

    @property
    def may_run_tasks(self) -> bool:
        """True if a node works or may still start to work."""
        return bool(self.nodes) and not self.broken


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """The requirements of a queued run.

    Attributes:
        run_id: Empty for a question about a pool, independent of a run.
        since: The time since which no other run blocks it.
        group: The sweep or group of the run, or None.
        has_image: False if it runs in no container.
        moved_from: The pool that it was moved from, or empty.
    """

    run_id: str
    nodes: int = 1
    slots: int = 1
    since: datetime | None = None
    group: str | None = None
    has_image: bool = True
    moved_from: str = ""


def load_pool_facts(
    connection: Connection, pool_id: str, before: PoolFacts | None = None, *, log: bool = True
) -> PoolFacts:
    """Read a pool and its nodes; with `log`, also the output of a failed start task.

    The log of `before` is reused if the nodes have not changed.
    """
    pool = find_pool(connection, pool_id)
    nodes = list_pool_nodes(connection, pool_id) if pool else ()
    declared = connection.outputs.stack_pools
    caps = [each.max_nodes for each in declared if each.id == pool_id]
    cap = caps[0] if caps else None
    facts = PoolFacts(pool_id, pool, nodes, cap, connection.target.is_billed)
    if not log or not facts.broken:
        return facts
    known = before is not None and before.nodes == nodes
    return replace(facts, log=before.log if before and known else _read_log(connection, facts))


def _read_log(connection: Connection, facts: PoolFacts) -> tuple[str, ...]:
    shown = _example(facts.broken)
    # Other nodes may not respond, even after long retries.
    is_failed = shown.state == "starttaskfailed"
    return read_start_log(connection, facts.id, shown) if is_failed else ()


def read_start_log(connection: Connection, pool_id: str, node: NodeView) -> tuple[str, ...]:
    """Return the end of the output of a node's start task; empty if it cannot be read."""
    try:
        return start_task_log(connection, pool_id, node)
    except RunnerError:  # the cause is known without the log
        return ()


class PoolReader:
    """Reads each pool once for all runs of a list, without logs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = Lock()
        self._locks: dict[str, Lock] = {}
        self._facts: dict[str, PoolFacts] = {}

    def read(self, pool_id: str) -> PoolFacts:
        """Return the facts of a pool; concurrent threads share one read per pool."""
        with self._lock:
            lock = self._locks.setdefault(pool_id, Lock())
        with lock:
            if pool_id not in self._facts:
                self._facts[pool_id] = load_pool_facts(self._connection, pool_id, log=False)
            return self._facts[pool_id]


ReadPool = Callable[[str], PoolFacts | None]


def explain_queue_reason(
    connection: Connection,
    spec: RunSpec,
    status: RunStatus,
    task: TaskView | None,
    attempts: int,
    read_pool: ReadPool,
    *,
    job: JobSnapshot | None = None,
) -> RunStatus:
    """Return the status of a queued run with its reason: its job, other runs, or its pool.

    Args:
        connection: the services.
        spec: the run.
        status: its status according to its task: queued.
        task: its task.
        attempts: number of started attempts.
        read_pool: returns the facts of a pool, None if they are not known yet; it is called only
            if nothing else explains the wait.
        job: its job, if the caller has read it.
    """
    job = job or read_job(connection, spec.job_id)
    if job is not None and (job.disabled or is_falling_back(job)):
        cause = _explain_disabled(connection, job)
        fix = f": {cause.fix}" if cause.stuck else ""
        return replace(status, reason=f"{cause.message}{fix}", cause=cause)
    if spec.max_cost_micros is not None and has_ended(connection, spec.job_id):
        why = f"its job {spec.job_id} reached the time limit of its cost cap"
        return RunStatus(RunState.FAILED, why, fix=f"use `runner retry {spec.run_id}`")
    since = task.since if task and task.since else spec.created
    if spec.after and not attempts:
        reason, over = _await_others(connection, spec)
        if reason:
            return replace(status, reason=reason)
        since = max(since, over) if over else since
    facts = read_pool(job.pool if job is not None and job.pool else spec.pool)
    need = NodeNeed(
        spec.run_id, spec.nodes, task.slots if task else 1, since, spec.group,
        spec.image is not None, spec.moved_from[-1].pool if spec.moved_from else "",
    )  # fmt: skip
    now = datetime.now(UTC)
    cause = explain_wait(need, facts, now) if facts else None
    when, is_late = _describe_move(spec, task, attempts, now)
    before, moves = status.reason.removesuffix(WAITING), f"; {when}" if when else ""
    if spec.origin is not None and not attempts:
        moves += _describe_kept_node(connection, spec.origin.run_id, now)
    if cause is not None:
        # A run that moves to another pool waits for nobody, unless it should have moved already.
        is_stuck = cause.stuck and (is_late or not when)
        cause = replace(cause, message=cause.message + moves, stuck=is_stuck)
        return replace(status, reason=before + cause.message, fix=cause.fix, cause=cause)
    together = f"{WAITING.replace('a node', f'{spec.nodes} nodes')} at once"
    reason = status.reason if spec.nodes == 1 or attempts else together
    return replace(status, reason=reason + moves)


_TERMINATED = "TaskEnded"  # failure code of a task that ended on request


def explain_terminated(
    connection: Connection, spec: RunSpec, status: RunStatus, task: TaskView | None
) -> RunStatus:
    """Return the status of a run without a result, which is paused if a pause has ended its task.

    Args:
        connection: the services.
        spec: the run.
        status: its status according to its task.
        task: its task.
    """
    if status.state is not RunState.FAILED or task is None or task.failure_code != _TERMINATED:
        return status
    cause = explain_pause(connection, spec.job_id)
    if cause is None:
        return status
    return replace(status, reason=f"{cause.message}: {cause.fix}", cause=cause)


def explain_pause(connection: Connection, job_id: str) -> WaitCause | None:
    """Return why the tasks of a job do not start if it is paused, also if it has ended."""
    job = read_job(connection, job_id)
    if job is None or not job.paused or (job.note is not None and not job.note.pauses):
        return None
    return _explain_disabled(connection, job)


def _describe_kept_node(connection: Connection, repeated: str, now: datetime) -> str:
    """Return that a run which is repeated keeps its node; empty if it does not."""
    from runner.flows.runs.cancel import find_kept_nodes  # noqa: PLC0415  repetitions only

    found = find_kept_nodes(connection, (repeated,), now)
    return "".join(f"; {kept.explain(now)}" for kept in found)


_MOVE_LATE = timedelta(minutes=5)  # a move that is due for so long has nobody who executes it


def _describe_move(
    spec: RunSpec, task: TaskView | None, attempts: int, now: datetime
) -> tuple[str, bool]:
    """Return when a run moves to its next pool, and whether that is overdue.

    The text is empty for a run without another pool, and after as many attempts as evictions would
    move it, because it may move earlier.
    """
    if task is None or spec.fallback is None or attempts >= spec.fallback.evictions:
        return "", False
    from runner.core.planning.fallback import plan_move  # noqa: PLC0415  few runs name pools

    planned = plan_move(spec, task.since, (), now)
    if planned is None:
        return "", False
    return planned.describe(now), planned.is_due(now - _MOVE_LATE)


def _explain_disabled(connection: Connection, job: JobSnapshot) -> WaitCause:
    if job.note is not None and is_falling_back(job):
        message = f"it is being moved to pool {job.note.to}"
        return WaitCause("PoolMove", message, job.note.command, stuck=False)
    if job.note is not None:
        return WaitCause(JOB_DISABLED, job.note.describe(job.id), job.note.command)
    fix = connection.with_account_options(f"az batch job enable --job-id {job.id}")
    return WaitCause(JOB_DISABLED, f"its job {job.id} is disabled", fix)


def _await_others(connection: Connection, spec: RunSpec) -> tuple[str, datetime | None]:
    """Return why predecessors block a run, or an empty text and when the last of them ended."""
    container = runs_container(connection)
    results = in_parallel(lambda run_id: load_result(container, run_id), spec.after)
    for run_id, result in zip(spec.after, results, strict=True):
        if result is not None and result.status != "succeeded":
            how = "failed" if result.status == "failed" else "was cancelled"
            return f"blocked by {run_id}, which {how}", None
    waiting = [run for run, result in zip(spec.after, results, strict=True) if result is None]
    if waiting:
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"after {waiting[0]}{more}", None
    return "", max((r.ended for r in results if r and r.ended), default=None)


def explain_wait(need: NodeNeed, facts: PoolFacts, now: datetime) -> WaitCause | None:
    """Return why the run has no node, or None if a node will start it soon.

    A pool keeps its resize errors until the next resize. They count only if the pool is steady,
    has fewer nodes than its targets, and none of the nodes works.
    """
    pool = facts.pool
    if pool is None or pool.state == "deleting":
        return _explain_no_pool(need, facts)
    if need.slots > pool.slots:
        message = (
            f"its task needs {need.slots} slots, but a node of pool {pool.id} has {pool.slots}"
        )
        return WaitCause("SlotsTooMany", message, _move_advice(need))
    if facts.broken:
        growing = pool.allocation != "steady" and len(facts.nodes) < _target(pool)
        return None if growing else _explain_broken(need, facts, pool)
    explained = (
        _explain_too_few(need, facts, pool),
        _explain_no_nodes(need, facts, pool),
        _explain_nodes(facts, now),
    )
    return next((cause for cause in explained if cause is not None), None)


def _explain_no_pool(need: NodeNeed, facts: PoolFacts) -> WaitCause:
    how = "is being deleted" if facts.pool else "does not exist"
    since = facts.pool.since if facts.pool else None
    is_ours = facts.id == _LOCAL_POOL and not facts.is_billed
    fix = "runner local up" if is_ours else _move_advice(need)
    return WaitCause("PoolMissing", f"pool {facts.id} {how}", fix, since=since)


def _move_advice(need: NodeNeed) -> str:
    """Return the commands that move the run to another pool."""
    if not need.run_id:  # the question is about a pool
        return "use another pool"
    pool = need.moved_from or "POOL"
    if need.group:
        return f"`runner sweep move {need.group} --to {pool}`"
    return f"`runner cancel {need.run_id}`, then `runner retry {need.run_id} --pool {pool}`"


def _target(pool: PoolView) -> int:
    return pool.spot_target + pool.dedicated_target


# -- nodes that cannot run tasks


def _example(nodes: Sequence[NodeView]) -> NodeView:
    """Return a node with a problem, preferably one with a failed start task."""
    return min(nodes, key=lambda node: (node.state != "starttaskfailed", node.state, node.id))


def _explain_broken(need: NodeNeed, facts: PoolFacts, pool: PoolView) -> WaitCause:
    nodes, shown = facts.broken, _example(facts.broken)
    counts = Counter(node.state for node in nodes)
    every = "the only node" if len(nodes) == 1 else f"all {len(nodes)} nodes"
    code, fix = "NodesUnusable", _replace_nodes(need, pool)
    if set(counts) == {"starttaskfailed"}:
        code, message = "StartTaskFailed", f"the start task failed on {every} of pool {pool.id}"
        script = "`start_script` in the stack's file and run `runner up`"
        fix = f"correct {script if facts.is_billed else 'it'}, then replace the nodes: {fix}"
    elif kind := _same_trouble(nodes):
        code, said = _NODE_ERRORS[kind]
        message = f"{said} on {every} of pool {pool.id}"
        is_engine = code == "ContainersNotSupported" and not facts.is_billed
        first = "start Docker or Podman on this machine" if is_engine else "correct the pool"
        fix = f"{first}, then replace the nodes: {fix}"
    elif set(counts) <= _CLOSED:
        takes = "takes" if len(nodes) == 1 else "take"
        code, message = "NodesOffline", f"{every} of pool {pool.id} {takes} no tasks: {shown.state}"
        offline = shown.state == "offline"
        fix = f"enable scheduling again: `runner pool enable {pool.id}`, or " if offline else ""
        fix += f"replace the nodes: {_replace_nodes(need, pool)}"
    else:
        states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        message = f"no node of pool {pool.id} can run tasks: {states}"
        fix = f"replace the nodes: {fix}"
    if code == "ContainersNotSupported" and not need.has_image:
        fix = _move_advice(need)
    elif need.run_id:
        fix += f"; or {_move_advice(need)}"
    exited = shown.state == "starttaskfailed" and shown.exit_code is not None
    problem = f"start task exited with {shown.exit_code}" if exited else shown.problem
    evidence = [f"node {shown.id}: {problem or shown.state}"]
    evidence += [f"  {line}" for line in facts.log]
    if facts.is_billed and any(node.is_broken for node in nodes):
        evidence.append(_CHARGED.format("such nodes"))
    return WaitCause(code, message, fix, tuple(evidence), shown.since)


# Our cause and a message by error code of a node. Sources: REST docs of BatchNodeError, and "Batch
# pool and node errors" (learn.microsoft.com, read 2026-11-23).
_NODE_ERRORS = {
    "MountConfigurationError": ("MountFailed", "a file system could not be mounted"),
    "ApplicationPackageError": (
        "ApplicationPackageFailed",
        "an application package could not be installed",
    ),
    "ContainerPoolNotSupported": ("ContainersNotSupported", "no container can run"),
    "DiskFull": ("NodeDiskFull", "the disk is full"),
}


def _same_trouble(nodes: Sequence[NodeView]) -> str:
    """Return the error code that all nodes have in common, if it is known, else ""."""
    codes = {node.trouble.code if node.trouble else "" for node in nodes}
    code = codes.pop() if len(codes) == 1 else ""
    return code if code in _NODE_ERRORS else ""


def _replace_nodes(need: NodeNeed, pool: PoolView) -> str:
    if pool.autoscale is not None and not need.run_id:
        return "the formula removes nodes without tasks and gets new ones"
    if pool.autoscale is not None:
        return (
            f"`runner cancel {need.run_id}`; the formula removes nodes without tasks, "
            f"and `runner retry {need.run_id}` gets new ones"
        )
    none, same = "0", str(pool.spot_target)
    if pool.dedicated_target:
        none, same = "0 --dedicated 0", f"{same} --dedicated {pool.dedicated_target}"
    resize = f"runner pool resize {pool.id}"
    return f"`{resize} {none}`, then `{resize} {same}`"


# -- too few nodes, or none


def _explain_too_few(need: NodeNeed, facts: PoolFacts, pool: PoolView) -> WaitCause | None:
    if need.nodes == 1:
        return None
    fixed = pool.autoscale is None and pool.allocation == "steady"
    most = _target(pool) if fixed else facts.most_nodes
    if not pool.inter_node:
        message = f"the run needs several nodes, but pool {pool.id} has no inter-node communication"
        return WaitCause("NoInterNode", message, _move_advice(need))
    if most is None or most >= need.nodes:
        return None
    message = f"the run needs {need.nodes} nodes, but pool {pool.id} has at most {most}"
    fix = f"runner pool resize {pool.id} {need.nodes}" if fixed else _move_advice(need)
    return WaitCause("TooFewNodes", message, fix)


def _explain_no_nodes(need: NodeNeed, facts: PoolFacts, pool: PoolView) -> WaitCause | None:
    """Explain a pool with too few nodes after its last resize."""
    here = sum(node.state in _WORKING for node in facts.nodes)
    enough = need.nodes == 1 and facts.may_run_tasks
    if pool.allocation != "steady" or enough or here >= need.nodes:
        return None
    if pool.resize_errors and pool.spot + pool.dedicated < _target(pool):
        return _resize_failed(need, pool)
    if facts.nodes:
        return None
    if pool.autoscale is not None:
        return _explain_formula(need, pool, pool.autoscale)
    if _target(pool) == 0:
        message = f"pool {pool.id} has no nodes, and its target is 0"
        return WaitCause("NoNodesWanted", message, f"runner pool resize {pool.id} {need.nodes}")
    return None


def explain_shortage(facts: PoolFacts) -> WaitCause | None:
    """Return why the last resize of a steady pool did not reach its targets, or None.

    A pool that has reached its targets may still have errors of an earlier resize.
    """
    pool = facts.pool
    if pool is None or pool.allocation != "steady" or not pool.resize_errors:
        return None
    if pool.spot >= pool.spot_target and pool.dedicated >= pool.dedicated_target:
        return None
    return _resize_failed(NodeNeed(""), pool)


def _resize_failed(need: NodeNeed, pool: PoolView) -> WaitCause:
    error = pool.resize_errors[0]
    evidence = tuple(f"{each.code}: {each.message}" for each in pool.resize_errors)
    if "Quota" in error.code:
        spot = "LowPriority" in error.code or "Spot" in error.code
        code = "SpotQuotaReached" if spot else "CoreQuotaReached"
        message = f"a core quota is exhausted: {error.code}"
        fix = (
            f"request more cores for {pool.vm_size} in the Azure portal (Quotas of the Batch "
            f"account), or {_move_advice(need)}"
        )
    elif error.code in ("AllocationFailed", "AllocationTimedout"):
        code = "AllocationFailed"
        message = f"Azure has no capacity for {pool.vm_size} nodes of pool {pool.id}"
        fix = f"{_retry_advice(pool)}; or {_move_advice(need)}"
    else:
        code, message = "ResizeFailed", f"the resize of pool {pool.id} failed: {error.code}"
        fix = _retry_advice(pool)
    return WaitCause(code, message, fix, evidence, pool.since)


def _retry_advice(pool: PoolView) -> str:
    if (scale := pool.autoscale) is not None:
        return f"the formula tries again{_next_evaluation(scale)}"
    dedicated = f" --dedicated {pool.dedicated_target}" if pool.dedicated_target else ""
    return f"try again with `runner pool resize {pool.id} {pool.spot_target}{dedicated}`"


def _next_evaluation(scale: PoolAutoscale) -> str:
    if scale.evaluated is None:
        return f" within {format_duration(scale.interval_s)}"
    due = scale.evaluated + timedelta(seconds=scale.interval_s)
    return f" at {due.astimezone(UTC):%H:%M} UTC"


# -- formulas


def _explain_formula(need: NodeNeed, pool: PoolView, scale: PoolAutoscale) -> WaitCause:
    """Explain a pool without nodes that scales by a formula."""
    evaluated, interval = scale.evaluated, timedelta(seconds=scale.interval_s)
    fix = f"correct the formula of the pool (`runner pool show {pool.id}`), or {_move_advice(need)}"
    # Samples arrive up to a minute late, so the first evaluation may not count the task.
    saw_it = bool(evaluated and need.since and evaluated - need.since >= interval)
    if (error := scale.error) is not None and (saw_it or error.code != _NO_SAMPLES):
        message = f"the formula of pool {pool.id} failed: {error.code}"
        return WaitCause("FormulaFailed", message, fix, (error.message,), evaluated)
    never = gives_no_node(scale.formula, pool.spot_target, pool.dedicated_target)
    if never or (saw_it and _target(pool) == 0):
        message = f"the formula of pool {pool.id} requests no nodes"
        found = "; ".join(f"{name}={value}" for name, value in scale.results.items())
        return WaitCause("FormulaGivesNone", message, fix, (found,) if found else (), evaluated)
    message = f"no nodes yet; the next evaluation of the formula is{_next_evaluation(scale)}"
    return WaitCause("NextEvaluation", message, stuck=False)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*(\$?\w+)\s*=(?!=)\s*(.*?)\s*", re.DOTALL)


def gives_no_node(formula: str, spot: int = 0, dedicated: int = 0) -> bool:
    """Return True if a formula always sets its targets to zero, independently of tasks.

    Only constants, variables with constants, and `min` with one of them are evaluated; any other
    expression may give a node. `spot` and `dedicated` are the current targets.
    """
    if "stop(" in formula:
        return False
    most = {"$TargetLowPriorityNodes": float(spot), "$TargetDedicatedNodes": float(dedicated)}
    targets: dict[str, float | None] = {}
    for statement in _COMMENT.sub("", formula).split(";"):
        match = _ASSIGNMENT.fullmatch(statement)
        if match is None:
            continue
        name, value = match[1], _upper_bound(match[2], most)
        most.pop(name, None)
        if value is not None:
            most[name] = value
        if name.startswith("$Target"):
            targets[name] = value
    return bool(targets) and all(bound is not None and bound < 1 for bound in targets.values())


def _upper_bound(text: str, most: Mapping[str, float]) -> float | None:
    """Return the maximum value of an expression, or None if it is unknown."""
    if text.startswith("min("):
        found = [_upper_bound(part, most) for part in _arguments(text.removeprefix("min("))]
        return min((bound for bound in found if bound is not None), default=None)
    try:
        return float(text)
    except ValueError:
        return most.get(text)


def _arguments(text: str) -> list[str]:
    """Return the arguments in the text after `min(`; empty if text follows the call."""
    parts, depth = [""], 1
    for place, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0:
            return [part.strip() for part in parts] if not text[place + 1 :].strip() else []
        if char == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += char
    return []


# -- a node on which tasks fail

_FAILS = 3  # tasks in a row
_QUICKLY = timedelta(minutes=1)


# Returns what each task runs, in the same order; tasks that run the same have equal values.
FindWork = Callable[[Sequence[NodeTask]], Sequence[object]]


def find_failing_node(
    nodes: Sequence[NodeView], find_work: FindWork, *, certain: bool = False
) -> tuple[NodeView, tuple[NodeTask, ...]] | None:
    """Return a node that quickly fails tasks which succeed elsewhere, with these tasks, or None.

    All of its newest tasks failed within a minute. Only those count whose work, in the same job,
    has since succeeded on another node; otherwise, the script may be the cause.

    `certain` requires one more failure, two successes of this work on other nodes, and no failure
    there, because tasks with bad parameters fail on several nodes.
    """
    fails, successes = (_FAILS + 1, 2) if certain else (_FAILS, 1)
    for node in nodes:
        ended = sorted((t for t in node.recent if t.ended), key=lambda t: t.ended or _EARLIEST)
        quick = tuple(reversed(tuple(takewhile(_failed_quickly, reversed(ended)))))
        if len(quick) < fails:
            continue
        jobs, since = {task.job_id for task in quick}, quick[0].started or _EARLIEST
        others = (t for other in nodes if other.id != node.id for t in other.recent)
        done = [t for t in others if t.job_id in jobs and t.ended and t.ended > since]
        if sum(task.succeeded for task in done) < successes:
            continue  # without reading what they run
        work = find_work([*quick, *done])
        mine, theirs = work[: len(quick)], work[len(quick) :]
        proven = {each for each, task in zip(theirs, done, strict=True) if task.succeeded}
        failed = tuple(task for each, task in zip(mine, quick, strict=True) if each in proven)
        same = [task for each, task in zip(theirs, done, strict=True) if each in mine]
        succeeded = sum(task.succeeded for task in same)
        enough = len(failed) >= fails and succeeded >= successes
        if enough and (succeeded == len(same) or not certain):
            return node, failed
    return None


def find_work(connection: Connection) -> FindWork:
    """Return a function that reads the code and command of runs; a job is the work of its others.

    A deleted run, or one whose run.json is damaged, is like no other.
    """
    container = runs_container(connection)
    waiting = WaitingTrialsCache(container)

    def read(task: NodeTask) -> object:
        if not is_run_id(task.task_id):
            return task.job_id
        content = read_run(container, task.task_id, waiting)
        try:
            spec = parse_run(content or b"", task.task_id)
        except RunnerError:
            return task.task_id
        return (task.job_id, spec.code.sha256, spec.command)

    return lambda tasks: in_parallel(read, tasks)


def _failed_quickly(task: NodeTask) -> bool:
    """Return True if an ended task failed within a minute."""
    if task.succeeded or not (task.started and task.ended):
        return False
    return task.ended - task.started < _QUICKLY


def disable_failing_node(connection: Connection, pool_id: str) -> str | None:
    """Disable scheduling on a node that fails all tasks. Return a message, or None.

    At least half of the working nodes of the pool stay enabled. See `find_failing_node`.
    """
    nodes = list_pool_nodes(connection, pool_id)
    working = [node for node in nodes if node.state in _WORKING]
    found = find_failing_node(working, find_work(connection), certain=True)
    if found is None or 2 * (len(working) - 1) < len(nodes):
        return None
    node, failures = found
    if not set_scheduling(connection, pool_id, node.id, enabled=False):
        return None
    return (
        f"node {node.id} of pool {pool_id} gets no more tasks: {len(failures)} tasks in a row "
        "failed within a minute each, while the same code succeeds on other nodes. To use it "
        f"again: runner pool enable {pool_id} {node.id}"
    )


# -- nodes that may still take the run


def _explain_nodes(facts: PoolFacts, now: datetime) -> WaitCause | None:
    states = set(facts.counts)
    if states & _WORKING:
        busy = any(node.running_tasks for node in facts.nodes)
        message = f"waiting for a free slot on pool {facts.id}"
        return WaitCause("Busy", message, stuck=False) if busy else None
    dead = {"preempted", "leavingpool", *_CLOSED}
    alive = [node for node in facts.nodes if not node.is_broken and node.state not in dead]
    booting = [node for node in alive if not node.may_be_evicted]
    if len(booting) < len(alive) and not booting:
        message = f"the spot nodes of pool {facts.id} have lost contact, as nodes that are evicted"
        return WaitCause("Preempted", message, stuck=False)
    if "preempted" in states and not booting:
        message = f"the spot nodes of pool {facts.id} were evicted, and Azure has no others yet"
        return WaitCause("Preempted", message, stuck=False)
    times = [node.since for node in booting if node.since]
    newest = max(times, default=None)
    if newest is None or now - newest <= _BOOT_LIMIT:
        return None
    limit = format_duration(_BOOT_LIMIT.total_seconds())
    message = f"no node of pool {facts.id} has started in {limit}: {booting[0].state}"
    evidence = (_CHARGED.format("these nodes"),) if facts.is_billed else ()
    return WaitCause("BootTooLong", message, f"runner pool nodes {facts.id}", evidence, newest)
