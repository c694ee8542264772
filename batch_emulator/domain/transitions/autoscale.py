"""Autoscale: enable and disable it, sample metrics, evaluate the formula and apply it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from batch_emulator.autoscale.evaluate import Evaluation, Inputs, evaluate
from batch_emulator.autoscale.samples import PERIOD
from batch_emulator.autoscale.values import Timestamp
from batch_emulator.domain.account import Account, SampleRun
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import AllocationState, Job, JobState, Json, NodeState, Pool
from batch_emulator.domain.transitions import pools
from batch_emulator.domain.transitions.states import touch
from batch_emulator.domain.values import parse_duration, time_text

_WORKING = (NodeState.IDLE, NodeState.RUNNING)
# nodes of these states have no agent that reports samples [S]
_SILENT = (
    NodeState.CREATING,
    NodeState.STARTING,
    NodeState.PREEMPTED,
    NodeState.UNUSABLE,
    NodeState.LEAVING_POOL,
)
# a job in these states starts no more tasks, although its tasks stay active
_ENDING = (JobState.TERMINATING, JobState.COMPLETED, JobState.DELETING)


def measure(account: Account, pool: Pool) -> dict[str, float]:
    """Return the metrics by name. Tasks are counted, not their slots (seen on the service).

    `$CPUPercent` is the share of the slots that is taken [S]: processes share this machine, so its
    load would not be that of a real node.
    """
    values = _tasks(account, pool)
    nodes = list(pool.nodes.values())
    working = [node for node in nodes if node.state in _WORKING]
    slots = len(working) * pool.slots_per_node
    busy = sum(node.used_slots for node in working)
    dedicated = sum(node.dedicated for node in nodes)
    values |= {
        "$CPUPercent": account.limits.autoscale.cpu_scale * busy / slots if slots else 0.0,
        "$CurrentDedicatedNodes": dedicated,
        "$CurrentLowPriorityNodes": len(nodes) - dedicated,  # preempted ones included (docs)
        "$PreemptedNodeCount": sum(node.state is NodeState.PREEMPTED for node in nodes),
        "$SampleNodeCount": sum(node.state not in _SILENT for node in nodes),
        "$TaskSlotsPerNode": pool.slots_per_node,
        "$UsableNodeCount": len(working),
    }
    return values


def _tasks(account: Account, pool: Pool) -> dict[str, float]:
    """Return the metrics that count tasks.

    Release tasks do not count, so a pool may shrink before they run (docs).
    """
    active = running = succeeded = failed = 0
    for job in account.jobs.values():
        if job.pool_id.lower() != pool.key:
            continue
        active += 0 if job.state in _ENDING else _ready(job)
        running += job.tasks.running
        succeeded += job.tasks.succeeded
        failed += job.tasks.failed
    return {
        "$ActiveTasks": active,
        "$RunningTasks": running,
        "$PendingTasks": active + running,
        "$SucceededTasks": succeeded,
        "$FailedTasks": failed,
    }


def _ready(job: Job) -> int:
    """Return the number of queued tasks, which wait only for nodes, by instances (docs)."""
    return sum(len(queue) * max(1, -key) for key, queue in job.queues.items())


DEFAULT_INTERVAL = "PT15M"  # docs
PROPERTIES = ("enableAutoScale", "autoScaleFormula", "autoScaleEvaluationInterval")
_TARGETS = ("targetDedicatedNodes", "targetLowPriorityNodes")
_SAMPLE_EVERY = timedelta(seconds=30)
_ENABLE_EVERY = timedelta(seconds=30)  # docs: enableautoscale, per pool
_MAX_NODES = 10_000  # [S], as for other resizes


# -- enable and disable


def interval_of(pool: Pool) -> timedelta:
    """Return the interval between two evaluations."""
    text = pool.spec.get("autoScaleEvaluationInterval") or DEFAULT_INTERVAL
    return parse_duration(text) or timedelta(days=7)


def enable(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Enable autoscale, or change it, with a validated body.

    A new interval begins a new schedule of evaluations (docs); a new formula waits for the next
    evaluation [S].

    Raises:
        Fault: the pool or the formula does not allow it.
    """
    pools.require_active(pool)
    was_on = pools.scales(pool)
    if "autoScaleFormula" not in body and not (was_on and "autoScaleEvaluationInterval" in body):
        raise Fault("MissingRequiredProperty", {"PropertyName": "autoScaleFormula"})
    last = pool.autoscale.enabled
    if last is not None and now < last + _ENABLE_EVERY:
        wait_s = (last + _ENABLE_EVERY - now).total_seconds()
        raise Fault("TooManyEnableAutoScaleRequests", retry_after_s=wait_s)
    if pool.allocation is not AllocationState.STEADY:
        raise Fault("PoolBeingResized")
    new = {name: body[name] for name in PROPERTIES if name in body}
    kept = {name: value for name, value in pool.spec.items() if name not in _TARGETS}
    pool.spec = {**kept, **new, "enableAutoScale": True}
    pool.autoscale.enabled = now
    if not was_on or "autoScaleEvaluationInterval" in body:
        pools.begin_evaluations(account, pool, now)
    touch(account, pool, now)


def disable(account: Account, pool: Pool) -> None:
    """Disable autoscale; the targets stay [S]. It has no effect on a pool without a formula [S].

    The pool's entity tag stays, as recorded with azure-cli 2.12.
    """
    pools.require_active(pool)
    pool.spec = {name: value for name, value in pool.spec.items() if name not in PROPERTIES}
    pool.autoscale.due = None
    pool.autoscale.run = None
    account.save_pool(pool)


# -- samples


def sample(account: Account, pool: Pool, now: datetime) -> None:
    """Take the samples that are due, and set the timer of the next one.

    `sampling` is True while a timer is set. Without one nothing has happened to the pool, so the
    samples due until now equal the last one.
    """
    state = pool.autoscale
    if state.sampling and state.sample_due > now:
        return
    values = measure(account, pool)
    before = state.values or values
    asleep = not state.sampling
    _fill(account, pool, now, before if asleep else values)
    state.values = values
    state.sampling = asleep or values != before
    if state.sampling:
        account.set_timer(state.sample_due, pool)


def resume(account: Account, pool: Pool, kept: Iterable[SampleRun], now: datetime) -> None:
    """Continue after a restart with the stored samples. The caller has overdue formulas evaluated.

    Samples that were due while the emulator was down equal the last one, as in quiet times [S]:
    with gaps, formulas would remove the nodes, and a restart of the service has no such effect.
    """
    state = pool.autoscale
    for known in kept:
        state.history.fill(known.first, known.count, known.values)
        state.sample_due = Timestamp(known.first + known.count * PERIOD).time()
        state.values = known.values
    if state.due is not None and state.due > now:
        account.set_timer(state.due, pool)


def _fill(account: Account, pool: Pool, now: datetime, values: dict[str, float]) -> None:
    """Add one sample for every 30 seconds up to now."""
    state = pool.autoscale
    due = int((now - state.sample_due) / _SAMPLE_EVERY) + 1 if state.sample_due <= now else 0
    first = Timestamp.of(state.sample_due).ticks
    if due:
        state.history.fill(first, due, values)
        account.journal.samples.append(SampleRun(pool.key, first, due, values))
    state.sample_due += due * _SAMPLE_EVERY


# -- evaluations


def preview(account: Account, pool: Pool, text: str, now: datetime) -> Json:
    """Evaluate a formula without effect.

    Raises:
        Fault: the pool does not scale by a formula.
        FormulaSyntaxError: the text is not a formula.
    """
    pools.require_active(pool)
    if not pools.scales(pool):
        reason = "automatic scaling is not enabled on the pool"
        raise Fault("OperationNotValidOnPool", {"Reason": reason})
    _catch_up(account, pool, now)
    return _document(_evaluate(account, pool, text, now), now)


def _catch_up(account: Account, pool: Pool, now: datetime) -> None:
    if not pool.autoscale.sampling:
        sample(account, pool, now)


def run(account: Account, pool: Pool, now: datetime) -> None:
    """Evaluate the formula of the pool, which is due, and resize the pool to its result."""
    _catch_up(account, pool, now)
    due, interval = pool.autoscale.due or now, interval_of(pool)
    pool.autoscale.due = due + interval * (1 + max(0, (now - due) // interval))
    account.set_timer(pool.autoscale.due, pool)
    done = _evaluate(account, pool, pool.spec["autoScaleFormula"], now)
    pool.autoscale.run = _document(done, now)
    why = done.problem.detail if done.problem else "; ".join(done.warnings)
    value = done.problem.code if done.problem else done.results
    account.events.add(now, "pool.autoscale", pool.id, value, why)
    if done.problem is None:
        _apply(account, pool, done, now)
    account.save_pool(pool)


def _evaluate(account: Account, pool: Pool, text: str, now: datetime) -> Evaluation:
    inputs = Inputs(
        pool.autoscale.history,
        now,
        pool.dedicated_target,
        pool.spot_target,
        account.random.random,
        account.limits.autoscale,
    )
    return evaluate(text, inputs)


def _apply(account: Account, pool: Pool, done: Evaluation, now: datetime) -> None:
    """Resize the pool, unless it has these targets and that many nodes already.

    Without a resize the errors of the last one stay (seen on the service). A resize that fell short
    is repeated [S].
    """
    wanted = (min(done.dedicated, _MAX_NODES), min(done.spot, _MAX_NODES))
    dedicated = sum(node.dedicated for node in pool.nodes.values())
    here = (dedicated, len(pool.nodes) - dedicated)
    if wanted != (pool.dedicated_target, pool.spot_target) or wanted != here:
        pool.deallocation = done.option
        targets = {"targetDedicatedNodes": wanted[0], "targetLowPriorityNodes": wanted[1]}
        pools.begin_resize(account, pool, targets, now)


def _document(done: Evaluation, now: datetime) -> Json:
    document: Json = {"timestamp": time_text(now), "results": done.results}
    if done.problem is not None:
        document["error"] = {
            "code": done.problem.code,
            "message": done.problem.message,
            "values": [{"name": "Message", "value": done.problem.detail}],
        }
    return document
