"""Find the cause of a problem of a run, a pool, a node or a job: `runner why`.

The facts come from the documents of the run and from Batch, in a few requests. Causes of pools are
those of `stuck`, causes of failures those of `runner.core.diagnosis`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    JobView,
    find_job_view,
    list_failed_preparations,
    list_tasks,
)
from runner.azure.batch.pools import (
    NodeView,
    PoolView,
    list_pool_nodes,
    list_pools,
    list_supported_images,
    read_node_file,
)
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.diagnosis import (
    Diagnosis,
    Evidence,
    Failure,
    explain_idle_gpus,
    explain_result,
    explain_silence,
    explain_task_end,
)
from runner.core.states import (
    IN_ITS_TASK,
    JOB_DISABLED,
    PAUSED_LABEL,
    RunState,
    TaskView,
    WaitCause,
)
from runner.core.units import format_count, parse_moment
from runner.flows.devices import load_devices
from runner.flows.runs.attempts import list_attempts, list_checkpoints, load_resumes
from runner.flows.runs.cancel import find_kept_nodes
from runner.flows.runs.documents import (
    find_run,
    load_attempt_ends,
    load_points,
    load_result,
    runs_container,
)
from runner.flows.runs.group_documents import group_instead
from runner.flows.runs.history import list_runs
from runner.flows.runs.live import RunView, load_view
from runner.flows.runs.logs import task_output
from runner.flows.runs.stuck import (
    NodeNeed,
    PoolFacts,
    explain_shortage,
    explain_wait,
    find_failing_node,
    find_work,
    load_pool_facts,
    read_start_log,
)
from runner.protocol.checkpoints import ResumeHistory
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.paths import RunPaths, is_run_id
from runner.protocol.results import AttemptStart
from runner.protocol.run_spec import RunSpec
from runner.protocol.sweeps import METRIC_MISSING, SWEEP_FAILED

_TAIL_BYTES = 32_768
# Failures whose cause is in the output of the run (`runner.core.diagnosis.explain_output`), or
# whose next command depends on which output there is.
_CODES_WITH_OUTPUT = (
    "CommandFailed",
    "EnvironmentFailed",
    "PackagesUnreachable",
    "PythonMissing",
    "PreparationFailed",
    "Timeout",
    "Idle",
    METRIC_MISSING,
)
# Failures whose evidence has the use of the devices.
IDLE_CAUSES = ("GpuIdle", "Idle")
_CAUSES_WITH_DEVICES = (*IDLE_CAUSES, "TimeLimit")


def diagnose(connection: Connection, reference: str) -> Diagnosis:
    """Return the problem of a run, a group, a pool, a node or a job, and the next command.

    Args:
        connection: The services.
        reference: A reference to a run, sweep or group, or the ID of a pool, a node or a job.

    Raises:
        RunnerError: nothing has this ID.
    """
    if reference.startswith("@") or is_run_id(reference):
        return _diagnose_id(connection, reference)
    if (facts := _pool_facts(connection, reference)) is not None:
        return diagnose_pool(connection, facts)
    if reference.startswith("tvm"):
        found = _find_node(connection, reference)
        if found is not None:
            return diagnose_node(connection, *found)
    if (job := find_job_view(connection, reference)) is not None:
        return diagnose_job(connection, job)
    return _diagnose_prefix(connection, reference)


def _diagnose_id(connection: Connection, reference: str) -> Diagnosis:
    try:
        return diagnose_run(connection, find_run(connection, reference))
    except RunnerError as err:
        if not is_run_id(reference):
            raise
        with suppress(RunnerError):
            return diagnose_group(connection, group_instead(connection, reference, err))
        # The job of a deleted group has its ID.
        job = find_job_view(connection, reference)
        if job is None:
            raise
        return diagnose_job(connection, job)


def _diagnose_prefix(connection: Connection, reference: str) -> Diagnosis:
    try:
        return diagnose_run(connection, find_run(connection, reference))
    except RunnerError as err:
        if err.code != "R-RUN-UNKNOWN":
            raise
        group = None
        with suppress(RunnerError):
            group = group_instead(connection, reference, err)
        if group is not None:
            return diagnose_group(connection, group)
        what = f"no run, pool, node or job has the ID {reference!r}"
        raise RunnerError(err.code, what, why=err.why, fix=err.fix) from err


def _pool_facts(connection: Connection, pool_id: str) -> PoolFacts | None:
    known = pool_id in {pool.id for pool in connection.outputs.stack_pools}
    facts = load_pool_facts(connection, pool_id)
    return facts if facts.pool or known else None


# -- runs


def diagnose_run(connection: Connection, spec: RunSpec, now: datetime | None = None) -> Diagnosis:
    """Return why a run waits, hangs or failed; without a cause if it only waits, or runs.

    `now` is the present, for tests.
    """
    view, now = load_view(connection, spec), now or datetime.now(UTC)
    found = _explain_state(connection, view, now)
    if view.kept is not None:
        line = Evidence("node", f"kept {view.kept.describe(now)}; {view.kept.advice}")
        found = replace(found, evidence=(*found.evidence, line))
    if view.attempts and (found.cause is None or found.cause in _CAUSES_WITH_DEVICES):
        found = _with_devices(connection, view, found)
    return _with_load_failures(connection, view, found) if len(view.attempts) > 1 else found


def _with_devices(connection: Connection, view: RunView, found: Diagnosis) -> Diagnosis:
    """Return the diagnosis with what the run used, if its GPUs were idle most of the time."""
    used = load_devices(connection, view.spec).summary
    if used is None:
        return found
    hint = explain_idle_gpus(used)
    if hint is None and found.cause not in IDLE_CAUSES:
        return found
    line = Evidence("devices", used.describe())
    found = replace(found, evidence=(*found.evidence, line))
    if hint is None or found.cause is not None:
        return found
    return replace(
        found, message=hint.message, fix=hint.fix,
        command=f"runner metrics {view.spec.run_id} --system",
    )  # fmt: skip


def _with_load_failures(connection: Connection, view: RunView, found: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the checkpoints that the script could not load, if any."""
    container, run_id = runs_container(connection), view.spec.run_id
    ends = load_attempt_ends(container, run_id)
    failures = [(end, end.resume_failed) for end in ends if end.resume_failed is not None]
    if not failures:
        return found
    lines = [
        Evidence(
            f"attempt {failure.attempt}",
            f"could not load {failure.describe(run_id)}: {failure.message}",
            parse_moment(end.ended),
        )
        for end, failure in failures
    ]
    history = ResumeHistory(run_id, tuple(failure for _, failure in failures))
    resumes = load_resumes(container, run_id)
    after = next((each for each in view.attempts if each.attempt > failures[-1][1].attempt), None)
    message = found.message
    if after is not None:
        resumed = resumes.get(after.attempt)
        how = f"resumed from {resumed.text(run_id)}" if resumed else "started from the beginning"
        lines.append(Evidence(f"attempt {after.attempt}", how, parse_moment(after.started)))
        if not message:
            message = f"attempt {after.attempt} {how}, because {history.describe()}"
    return replace(found, message=message, evidence=(*lines, *found.evidence))


def _explain_state(connection: Connection, view: RunView, now: datetime) -> Diagnosis:
    spec, status = view.spec, view.status
    blank = Diagnosis(spec.run_id, "run", status.state.value, message=status.reason)
    if status.state is RunState.QUEUED or status.shown_state == PAUSED_LABEL:
        in_its_task = status.reason == IN_ITS_TASK
        return blank if in_its_task else _queued(connection, view, blank, now)
    if status.state is RunState.FAILED or (
        view.result and view.result.code in ("Blocked", SWEEP_FAILED)
    ):
        return _failed(connection, view, blank)
    if status.state is RunState.LOST:
        found = Evidence("job", f"{spec.job_id} has no task {spec.task_id}")
        return replace(
            blank, cause="TaskMissing", evidence=(found,), fix="submit the run again",
            command=f"runner retry {spec.run_id}",
        )  # fmt: skip
    if status.state is RunState.RUNNING:
        return _running(connection, view, blank, now)
    return blank


def _running(connection: Connection, view: RunView, blank: Diagnosis, now: datetime) -> Diagnosis:
    """Explain a running run without recent output."""
    spec, attempt = view.spec, len(view.attempts)
    points = [each for each in load_points(connection, spec) if each.attempt == attempt]
    times = [moment for each in points if (moment := parse_moment(each.time)) is not None]
    container = runs_container(connection)
    modified = {blob.name: blob.modified for blob in container.list(f"{spec.run_id}/")}
    written: list[datetime | None] = []
    for rank in range(spec.nodes):
        paths = RunPaths(spec.run_id, rank)
        found = (modified.get(each) for each in (paths.metrics, paths.stdout, paths.stderr))
        written.append(max(filter(None, found), default=None))
    failure = explain_silence(times, written, now)
    if failure is None:
        return blank
    found = [
        Evidence(f"rank {rank}" if spec.nodes > 1 else "logs and metrics", "last written", at)
        for rank, at in enumerate(written)
    ]
    last = points[-1]
    found.append(Evidence("metric", f"{last.name}={last.value:g}", parse_moment(last.time)))
    return _with_failure(blank, failure, found, f"runner ssh {spec.run_id}")


def _queued(connection: Connection, view: RunView, blank: Diagnosis, now: datetime) -> Diagnosis:
    spec, cause = view.spec, view.status.cause
    job = find_job_view(connection, spec.job_id)
    if cause is not None and cause.code == JOB_DISABLED:
        found = (Evidence(f"job {spec.job_id}", cause.message, job.since if job else None),)
        return replace(
            blank, state=view.status.shown_state, cause=cause.code, message=cause.message,
            evidence=found, fix=cause.fix, command=cause.fix,
        )  # fmt: skip
    if cause is None and spec.after and not view.attempts:
        return _blocked(connection, spec, blank)
    prepared = _failed_preparation(connection, job)
    if prepared is not None and not (cause and cause.stuck):
        return replace(
            blank, cause="JobPreparationFailed", message=prepared[0].text, evidence=prepared,
            fix="correct the job preparation task, then submit the run again",
            command=f"runner cancel {spec.run_id}",
        )  # fmt: skip
    facts = load_pool_facts(connection, (job and job.pool_id) or spec.pool)
    diagnosis = _with_cause(connection, blank, cause, facts, spec)
    if diagnosis.cause is None and view.attempts:
        diagnosis = _evicted(connection, view, diagnosis)
    return _with_kept_nodes(connection, diagnosis, facts, now)


def _with_kept_nodes(
    connection: Connection, found: Diagnosis, facts: PoolFacts, now: datetime
) -> Diagnosis:
    """Return the diagnosis of a run that waits for a node, with the nodes that failed runs keep."""
    tasks = [(node.id, task) for node in facts.nodes for task in node.recent if not task.ended]
    nodes = {task.task_id: node for node, task in tasks if is_run_id(task.task_id)}
    kept = find_kept_nodes(connection, nodes, now)
    if not kept:
        return found
    lines = [Evidence(f"node {nodes[each.run_id]}", each.explain(now)) for each in kept]
    found = replace(found, evidence=(*found.evidence, *lines))
    if found.cause is not None or found.command:
        return found
    return replace(
        found, fix="release a node that is kept", command=f"runner cancel {kept[0].run_id}"
    )


def _blocked(connection: Connection, spec: RunSpec, blank: Diagnosis) -> Diagnosis:
    """Explain a run that waits for predecessors; only a failed predecessor is a cause."""
    container = runs_container(connection)
    results = in_parallel(lambda run_id: load_result(container, run_id), spec.after)
    for run_id, result in zip(spec.after, results, strict=True):
        if result is not None and result.status != "succeeded":
            found = Evidence(f"run {run_id}", f"{result.status}: {result.message}", result.ended)
            return replace(
                blank, cause="BlockedDependency", evidence=(found,),
                fix="correct the run before it, then retry both", command=f"runner why {run_id}",
            )  # fmt: skip
    return blank


def _evicted(connection: Connection, view: RunView, blank: Diagnosis) -> Diagnosis:
    """Explain a run that waits for another node after its last attempt lost its node."""
    last = view.attempts[-1]
    ends = load_attempt_ends(runs_container(connection), view.spec.run_id)
    end = next((each for each in ends if each.attempt == last.attempt), None)
    if end is not None and end.why == "failed":
        return blank  # it is being retried
    if end is not None and not end.node_ends and view.task is not None and view.task.requeues:
        return blank  # its job was moved or paused
    where = f"attempt {last.attempt} on node {last.node}"
    found = [Evidence(where, "started", parse_moment(last.started))]
    if end is not None:
        found.append(Evidence(where, f"{end.why} in {end.step}", parse_moment(end.ended)))
    if lost := list_attempts(connection, view)[-1].lost_text:
        found.append(Evidence(where, f"lost work: {lost}"))
    since = view.task.since if view.task else None
    found.append(Evidence("task", "requeued, because its node was lost", since))
    return replace(
        blank, cause="Evicted", message=f"its node {last.node} was evicted; it waits for another",
        evidence=tuple(found), fix="nothing to do: the run continues from its newest checkpoint",
        command=f"runner attach {view.spec.run_id}",
    )  # fmt: skip


def _failed(connection: Connection, view: RunView, blank: Diagnosis) -> Diagnosis:
    spec, result = view.spec, view.result
    if result is None:
        task = view.task or TaskView("completed")  # the run failed with its task
        output = task_output(connection, spec, _TAIL_BYTES)
        failure = explain_task_end(task, output, identity=connection.uses_identity)
        found = [Evidence("task", blank.message, task.since)]
        found += [Evidence("output of the task", line) for line in failure.lines]
        return _with_failure(blank, failure, found, _after_failure(connection, failure, spec))
    stderr = stdout = ""
    if result.code is None or result.code in _CODES_WITH_OUTPUT:
        stderr, stdout = _tails(connection, spec, view.attempts, result.rank)
    failure = explain_result(result, stderr, stdout, spec)
    if failure is None:
        return blank
    found = [Evidence("result.json", result.message or result.status, result.ended)]
    where = "stderr" if stderr.strip() else "stdout"
    named = f"{where} of rank {result.rank}" if result.rank else where
    found += [Evidence(named, line) for line in failure.lines]
    command = _after_failure(connection, failure, spec)
    # Most scripts print their metrics to stdout.
    if stdout.strip() and (failure.cause == METRIC_MISSING or not stderr.strip()):
        command = command.replace(" --stderr", "")
    if result.rank and command.startswith("runner logs "):
        command += f" --node {result.rank}"
    return _with_failure(blank, failure, found, command)


def _with_failure(
    blank: Diagnosis, failure: Failure, found: Sequence[Evidence], command: str
) -> Diagnosis:
    return replace(
        blank, cause=failure.cause, message=failure.message, evidence=tuple(found),
        fix=failure.fix, command=command,
    )  # fmt: skip


_CODES_OF_BUILDS = ("EnvironmentFailed", "PackagesUnreachable")
# Next command by cause; the placeholder is the RunSpec.
_COMMANDS_AFTER = {
    **dict.fromkeys(
        ("SasExpired", "CodeMissing", "AgentReplaced", "StorageFailed", "NodeLost"),
        "runner retry {0.run_id}",
    ),
    # `show` names the data and inputs of the run.
    **dict.fromkeys(("DataMissing", "InputMissing"), "runner show {0.run_id}"),
    **dict.fromkeys(("ImageNotPulled", "RegistryDenied"), "runner pool show {0.pool}"),
    "ResumeFailed": "runner resume {0.run_id} --fresh",
    "GpuIdle": "runner metrics {0.run_id} --system",
    "Idle": "runner logs {0.run_id} --tail 50",
    "IdentityWithoutRole": "runner check",
    "MetricOutOfRange": "runner metrics {0.run_id}",
    SWEEP_FAILED: "runner sweep show {0.group}",
}


def _after_failure(connection: Connection, failure: Failure, spec: RunSpec) -> str:
    """Return the command after a failure: retry if that may help, else show the output."""
    run_id, cause = spec.run_id, failure.cause
    if cause == "BlockedDependency" and spec.after:
        return f"runner why {spec.after[0]}"
    if cause == "TimeLimit" and list_checkpoints(runs_container(connection), run_id):
        return f"runner resume {run_id}"
    if cause in _CODES_OF_BUILDS and "` exited with code " in failure.message:
        return f"runner logs {run_id} --build"
    command = _COMMANDS_AFTER.get(cause, "runner logs {0.run_id} --stderr --tail 50")
    return command.format(spec)


def _tails(
    connection: Connection, spec: RunSpec, attempts: Sequence[AttemptStart], rank: int
) -> tuple[str, str]:
    """Return the ends of stderr and stdout of the last attempt."""
    container = runs_container(connection)
    paths = RunPaths(spec.run_id, rank)
    last = attempts[-1] if attempts and not rank else None
    starts = (last.stderr_offset, last.stdout_offset) if last else (0, 0)
    streams = tuple(zip((paths.stderr, paths.stdout), starts, strict=True))
    stderr, stdout = in_parallel(lambda one: _tail(container, *one), streams)
    return stderr, stdout


def _tail(container: BlobContainer, blob: str, start: int) -> str:
    size = container.size(blob) or 0
    begin = max(start, size - _TAIL_BYTES)
    if begin >= size:
        return ""
    return (container.read_range(blob, begin, size - begin) or b"").decode("utf-8", "replace")


# -- pools


def diagnose_pool(connection: Connection, facts: PoolFacts) -> Diagnosis:
    """Return why a pool has no node for a task, or fewer nodes than its targets."""
    pool = facts.pool
    state = "missing" if pool is None else pool.state
    if pool is not None and pool.allocation != "steady":
        state = f"{state}, {pool.allocation}"
    counts = ", ".join(f"{count} {name}" for name, count in sorted(facts.counts.items()))
    blank = Diagnosis(facts.id, "pool", state, message=counts and f"nodes: {counts}")
    # An idle pool has no nodes by design; only a formula that can never give one is a problem.
    need = NodeNeed("", since=None)
    cause = explain_wait(need, facts, datetime.now(UTC))
    if cause is not None and cause.code == "NoNodesWanted":
        return replace(blank, message=cause.message)
    if cause is None or not (cause.stuck or cause.code == "Preempted"):
        cause = explain_shortage(facts) or cause
    found = _with_cause(connection, blank, cause, facts)
    return found if found.cause else _failing(connection, found, facts)


def _failing(connection: Connection, blank: Diagnosis, facts: PoolFacts) -> Diagnosis:
    """Return the diagnosis of a node that quickly fails tasks which succeed on other nodes."""
    failing = find_failing_node(facts.nodes, find_work(connection))
    if failing is None or (blank.kind == "node" and failing[0].id != blank.subject):
        return blank
    node, tasks = failing
    message = (
        f"node {node.id} failed {len(tasks)} tasks in a row within a minute each, while the same "
        "code succeeds on other nodes"
    )
    found = [
        Evidence(f"task {each.task_id} of {each.job_id}", "failed", each.ended) for each in tasks
    ]
    return replace(
        blank, cause="NodeFailing", message=message, evidence=tuple(found),
        command=f"runner pool disable {facts.id} {node.id}",
        fix="disable scheduling on the node",
    )  # fmt: skip


_MAY_BE_END_OF_LIFE = frozenset({"AllocationFailed", "ResizeFailed", "NodesUnusable"})
_SOLVED_BY_NEW_NODES = frozenset(
    {
        *("StartTaskFailed", "MountFailed", "ApplicationPackageFailed", "NodeDiskFull"),
        *("ContainersNotSupported", "NodesUnusable", "ImageEndOfLife"),
    }
)


def _with_cause(
    connection: Connection,
    blank: Diagnosis,
    cause: WaitCause | None,
    facts: PoolFacts,
    spec: RunSpec | None = None,
) -> Diagnosis:
    """Return the diagnosis for a cause of the pool; causes that resolve themselves are omitted."""
    if cause is None:
        return blank
    cause = _at_cap(cause, facts) or cause
    if cause.code in _MAY_BE_END_OF_LIFE:
        cause = _end_of_life(connection, cause, facts) or cause
    if not cause.stuck and cause.code not in ("Preempted", "PoolAtSizeCap"):
        return replace(blank, message=blank.message or cause.message)
    name = "Evicted" if cause.code == "Preempted" else cause.code
    source = f"pool {facts.id}"
    since = cause.since or (facts.pool.since if facts.pool else None)
    dated = [Evidence(source, cause.message, since)]
    dated += [Evidence(source, line.strip()) for line in cause.evidence]
    return replace(
        blank, cause=name, message=cause.message, evidence=tuple(dated), fix=cause.fix,
        command=_pool_command(name, facts, spec),
    )  # fmt: skip


def _at_cap(cause: WaitCause, facts: PoolFacts) -> WaitCause | None:
    """Return the cause if a run waits because the pool has reached its maximum size, or None."""
    pool, most = facts.pool, facts.most_nodes
    if cause.code == "TooFewNodes":
        return replace(cause, code="PoolAtSizeCap")
    if cause.code != "Busy" or pool is None or pool.autoscale is None or most is None:
        return None
    if pool.spot + pool.dedicated < most:
        return None
    message = f"all {most} nodes of pool {pool.id} are busy, and this is its maximum"
    fix = "wait, or raise `max_nodes` of the pool in the stack's file and run `runner up`"
    return WaitCause("PoolAtSizeCap", message, fix, stuck=False)


def _end_of_life(connection: Connection, cause: WaitCause, facts: PoolFacts) -> WaitCause | None:
    """Return the cause if a pool gets no nodes because support of its image has ended, or None."""
    pool = facts.pool
    if pool is None:
        return None
    words = (*pool.image.lower().split(":"), "", "", "")
    if not words[2]:  # a gallery image
        return None
    images = list_supported_images(connection)
    key = (words[0], words[1], words[2], pool.node_agent.lower())
    end = images.get(key)
    if key in images and (end is None or end > datetime.now(UTC).date()):
        return None
    until = f"only until {end}" if end else "no longer"
    message = f"Azure Batch supports the image of pool {pool.id} {until}"
    fix = "set a newer image for the pool in the stack's file, then run `runner up`"
    evidence = (f"image {pool.image}, {pool.node_agent}", cause.message, *cause.evidence)
    return WaitCause("ImageEndOfLife", message, fix, evidence, cause.since)


_SOLVED_BY_OTHER_POOL = frozenset(
    {"SlotsTooMany", "NoInterNode", "PoolMissing", "SpotQuotaReached", "CoreQuotaReached"}
)
_SOLVED_BY_MOVE = _SOLVED_BY_NEW_NODES | _SOLVED_BY_OTHER_POOL | {"NodesOffline"}


def _pool_command(cause: str, facts: PoolFacts, spec: RunSpec | None) -> str:
    """Return the next command for a cause of a pool."""
    pool = facts.pool
    if spec and spec.group and spec.moved_from and cause in _SOLVED_BY_MOVE:
        return f"runner sweep move {spec.group} --to {spec.moved_from[-1].pool}"
    if pool is None or cause in _SOLVED_BY_OTHER_POOL:
        return "runner pool ls"
    if cause in ("FormulaFailed", "FormulaGivesNone"):
        return f"runner pool autoscale lint --pool {pool.id}"
    if pool.autoscale is None and (size := _new_size(cause, pool, spec)) is not None:
        dedicated = f" --dedicated {size[1]}" if pool.dedicated_target else ""
        return f"runner pool resize {pool.id} {size[0]}{dedicated}"
    return f"runner pool {'nodes' if facts.nodes else 'show'} {pool.id}"


def _new_size(cause: str, pool: PoolView, spec: RunSpec | None) -> tuple[int, int] | None:
    """Return the spot and dedicated targets of a resize that solves the problem, or None."""
    if cause in _SOLVED_BY_NEW_NODES:
        return 0, 0
    if cause in ("NoNodesWanted", "PoolAtSizeCap"):
        return (spec.nodes if spec else 1), pool.dedicated_target
    if cause in ("AllocationFailed", "ResizeFailed"):
        return pool.spot_target, pool.dedicated_target
    return None


# -- nodes


def _find_node(connection: Connection, node_id: str) -> tuple[PoolFacts, NodeView] | None:
    pools = list_pools(connection)
    found = in_parallel(lambda pool: list_pool_nodes(connection, pool.id), pools)
    for pool, nodes in zip(pools, found, strict=True):
        for node in nodes:
            if node.id == node_id:
                billed = connection.target.is_billed
                return PoolFacts(pool.id, pool, (node,), is_billed=billed), node
    return None


def diagnose_node(connection: Connection, facts: PoolFacts, node: NodeView) -> Diagnosis:
    """Return why a node takes no tasks."""
    blank = Diagnosis(node.id, "node", node.state, message=f"{node.running_tasks} running tasks")
    if node.may_be_evicted:
        since = Evidence(f"node {node.id}", "unusable, without an error", node.since)
        return replace(
            blank, cause="Evicted", evidence=(since,),
            message=f"the spot node {node.id} has lost contact, as nodes that Azure evicts",
            fix="nothing to do: it becomes preempted, or Batch recovers it",
            command=f"runner pool nodes {facts.id}",
        )  # fmt: skip
    if node.state == "preempted":
        since = Evidence(f"node {node.id}", "evicted", node.since)
        return replace(
            blank, cause="Evicted", message=f"Azure evicted the spot node {node.id}",
            evidence=(since,), fix="nothing to do: the pool gets a node when Azure has capacity",
            command=f"runner pool nodes {facts.id}",
        )  # fmt: skip
    whole = load_pool_facts(connection, facts.id)
    if not node.is_broken and node.state != "offline":
        return _failing(connection, blank, whole)
    alone = replace(whole, nodes=(node,))
    if node.state == "starttaskfailed" and not alone.log:
        alone = replace(alone, log=read_start_log(connection, facts.id, node))
    cause = explain_wait(NodeNeed(""), alone, datetime.now(UTC))
    found = _with_cause(connection, blank, cause, alone)
    if found.cause and node.state == "offline":
        return replace(
            found, message=f"scheduling is disabled on node {node.id}, so it gets no tasks",
            fix="enable scheduling again, or let the pool replace the node",
            command=f"runner pool enable {facts.id} {node.id}",
        )  # fmt: skip
    return replace(found, command=f"runner pool nodes {facts.id}") if found.cause else found


# -- groups and jobs


def diagnose_group(connection: Connection, group: RunGroup) -> Diagnosis:
    """Return the problem of the job of a sweep or group, else of its first failed or lost run."""
    job = find_job_view(connection, group.job_id)
    blank = Diagnosis(group.group_id, "job", "deleted")
    found = blank if job is None else replace(diagnose_job(connection, job), subject=blank.subject)
    if found.cause is not None:
        return found
    rows = list_runs(connection, limit=None, ids=[*group.runs.values()]).rows
    states = {row.run_id: row.status.state for row in rows if row.status}
    counts = Counter(states.values())
    for state in (RunState.FAILED, RunState.LOST):
        run_id = next((each for each in group.runs.values() if states.get(each) is state), None)
        if run_id is None:
            continue
        first = diagnose_run(connection, find_run(connection, run_id))
        count, fix, command = counts[state], first.fix, first.command
        if state is RunState.LOST:
            again = f"sweep resume {group.group_id}" if group.trials else "retry --failed"
            fix, command = "submit the lost runs again", f"runner {again}"
        return replace(
            found, cause=first.cause, evidence=first.evidence, fix=fix, command=command,
            state=", ".join(f"{counts[each]} {each.value}" for each in RunState if counts[each]),
            message=f"{format_count(count, 'run')} {state.value}, the first is {run_id}: "
            f"{first.message}",
        )  # fmt: skip
    return found


def diagnose_job(connection: Connection, job: JobView) -> Diagnosis:
    """Return why the tasks of a job do not start."""
    blank = Diagnosis(job.id, "job", job.state, message=f"on pool {job.pool_id}")
    source = f"job {job.id}"
    if job.problem is not None:
        code, said = job.problem
        quota = "Quota" in code
        message = f"Batch could not create the pool of the job: {said or code}"
        return replace(
            blank, cause="PoolQuotaReached" if quota else "AutoPoolFailed", message=message,
            evidence=(Evidence(source, f"{code}: {said}", job.since),),
            fix="delete an unused pool, or request a higher pool quota"
            if quota
            else "correct the pool of the job",
            command="runner pool ls",
        )  # fmt: skip
    if job.paused:
        enable = connection.with_account_options(f"az batch job enable --job-id {job.id}")
        message = f"job {job.id} is disabled"
        if job.note is not None:
            enable, message = job.note.command, job.note.describe(job.id)
        return replace(
            blank, state=PAUSED_LABEL, cause=JOB_DISABLED, message=message,
            evidence=(Evidence(source, job.state, job.since),), fix=enable, command=enable,
        )  # fmt: skip
    if (prepared := _failed_preparation(connection, job)) is not None:
        return replace(
            blank, cause="JobPreparationFailed", message=prepared[0].text, evidence=prepared,
            fix="correct the job preparation task, then submit the job again",
            command=f"runner pool nodes {job.pool_id}",
        )  # fmt: skip
    tasks = list_tasks(connection, job.id).values() if job.state == "active" else ()
    waiting = next((task for task in tasks if task.phase == "active"), None)
    facts = load_pool_facts(connection, job.pool_id) if job.state == "active" else None
    if facts is None or not (waiting or facts.pool is None):
        return blank
    need = NodeNeed("", slots=waiting.slots if waiting else 1, since=waiting and waiting.since)
    return _with_cause(connection, blank, explain_wait(need, facts, datetime.now(UTC)), facts)


def _failed_preparation(connection: Connection, job: JobView | None) -> tuple[Evidence, ...] | None:
    """Return the failures of a job preparation task with the end of its output, or None."""
    if job is None or not job.prepares:
        return None
    failed = list_failed_preparations(connection, job.id)
    if not failed:
        return None
    last = failed[-1]
    ended = f"exited with {last.exit_code}" if last.exit_code is not None else last.message
    where = f"{len(failed)} nodes" if len(failed) > 1 else "a node"
    text = f"the job preparation task of {job.id} failed on {where}: {ended}"
    found = [Evidence(f"node {last.node}", text, last.ended)]
    for name in ("stderr.txt", "stdout.txt"):
        log = read_node_file(connection, job.pool_id, last.node, f"{last.folder}/{name}")
        if log and log.strip():
            lines = log.decode("utf-8", "replace").rstrip().splitlines()[-8:]
            found += [Evidence(name, line) for line in lines]
            break
    return tuple(found)
