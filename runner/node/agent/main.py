"""The agent as a program: run one task of a run, from its code archive to `result.json`.

Reading order: `start` -> `main` -> `load_task`, `run_task` -> `_attempt` -> `_run_attempt` ->
`_run_stages`, which calls the stages of `attempt.Attempt`. Other ends of an attempt follow.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from runner.node.agent.attempt import LOCK_FILE, Attempt, devices_opener, read_tail
from runner.node.agent.records import NO_LOGS, AttemptOutcome, RunRecords
from runner.node.checkpoints.committer import AttemptCheckpoints
from runner.node.checkpoints.load_failures import RESUME_FAILED
from runner.node.cluster import load_heartbeat_config, load_hosts
from runner.node.context import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, TaskContext
from runner.node.environment.virtual_env import write_environment
from runner.node.failures import (
    IDLE_CODES,
    EvictedError,
    NodeLostError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.inputs.data_cache import node_lock
from runner.node.script.context import AttemptContext
from runner.node.script.outputs import AttemptOutputs, FinishedScript
from runner.node.script.redaction import Redactor, log_to_stdout
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog, Streams, record_attempt, ship_remaining_logs
from runner.node.script.workspace import make_dirs, remove_written
from runner.node.settings import (
    NothingDueError,
    SettingsError,
    load_access,
    load_models,
    load_node_settings,
    load_task_secrets,
    process_variables,
    script_variables,
)
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import RetryBudget
from runner.node.termination import Termination, watch_evictions
from runner.protocol.codec import now_text
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile
from runner.protocol.run_spec import RunSpec, RunSpecError
from runner.protocol.task import (
    JOIN_ARGUMENT,
    NODES_TOKEN_VARIABLE,
    SCHEDULE_TASKS_VARIABLE,
    SCHEDULE_VARIABLE,
    TASK_TRIALS_VARIABLE,
    TRIAL_VARIABLE,
)

logger = logging.getLogger(__name__)

NOT_RETRIED = (RESUME_FAILED, *IDLE_CODES)
NO_ACCESS_EXIT_CODE = 122  # storage denies access, so only this code can tell the client
# Batch sends SIGKILL a few seconds after SIGTERM: all records must be written before.
SHUTDOWN_S = 4.5
OVERDUE_S = 60.0  # an eviction that is this late is considered withdrawn
POLL_S = 0.1


def start() -> None:
    """Run the agent, and end the process with its exit code."""

    if sys.argv[1:] == [JOIN_ARGUMENT]:
        from runner.node.agent import join  # noqa: PLC0415

        exit_now(join.join())
    if SCHEDULE_TASKS_VARIABLE not in os.environ:
        exit_now(main())
    from runner.node.agent import scheduled_group  # noqa: PLC0415

    exit_now(scheduled_group.main())


def main() -> int:
    """Read the environment and run the task. Return the exit code."""
    redactor = Redactor()
    log_to_stdout(redactor)
    environment = process_variables()
    retry_budget = RetryBudget()
    termination = Termination(on_first=lambda: retry_budget.shorten(SHUTDOWN_S))
    termination.install()
    try:
        task = load_task(environment, retry_budget, termination, redactor)
        with _only_agent_of(task.node.work_dir, termination):
            return _run_all(task, environment)
    except (NothingDueError, SettingsError) as err:
        is_fine = isinstance(err, NothingDueError)
        logger.log(logging.INFO if is_fine else logging.ERROR, "%s", err)
        return 0 if is_fine else FAILED_EXIT_CODE
    except TerminatedError:  # while this agent waited for another one
        return TERMINATED_EXIT_CODE
    except StorageRequestError as err:
        logger.error("storage: %s", err)
        if termination.requested:
            return TERMINATED_EXIT_CODE
        return NO_ACCESS_EXIT_CODE if err.status in (401, 403) else FAILED_EXIT_CODE
    except Exception:
        # A bug: log the traceback to the task's stdout, and return instead of raising, so that
        # `exit_now` ends the process without waiting for threads.
        logger.exception("the agent failed")
        return FAILED_EXIT_CODE


def _run_all(task: TaskContext, environment: Mapping[str, str]) -> int:
    """Run the run of the task, or its trials one after another. Return the exit code."""
    if environment.get(TASK_TRIALS_VARIABLE) is None:
        return run_task(task, environment)
    from runner.node.agent.task_trials import run_trials  # noqa: PLC0415  few tasks

    return run_trials(task, environment, run_task)


def load_task(
    environment: Mapping[str, str],
    retry_budget: RetryBudget,
    termination: Termination,
    redactor: Redactor,
) -> TaskContext:
    """Return the context of a task from its variables. Raise SettingsError or StorageError."""
    access = load_access(environment, retry_budget, redactor)
    if environment.get(SCHEDULE_VARIABLE):
        from runner.node.agent.scheduled_run import with_run_id  # noqa: PLC0415

        environment = with_run_id(environment, access.runs)
    node = load_node_settings(environment)
    task = TaskContext(
        node, access.runs, access, load_task_secrets(environment, redactor), retry_budget,
        termination, redactor,
        watch_evictions(environment, node.node, dedicated=node.dedicated),
    )  # fmt: skip
    if token := environment.get(NODES_TOKEN_VARIABLE):
        redactor.add(token)
        hosts, heartbeat = load_hosts(environment), load_heartbeat_config(environment)
        task = replace(task, hosts=hosts, nodes_token=token, heartbeat_config=heartbeat)
    return task


def run_task(
    task: TaskContext, environment: Mapping[str, str], records: RunRecords | None = None
) -> int:
    """Execute attempts of a run until one ends it. Return the exit code for Batch.

    Args:
        task: what all runs of this process share.
        environment: the variables of the task, with secrets.
        records: those of the run; by default of the run of the task.

    Raises:
        StorageRequestError: storage refused a request or did not answer.
    """
    if records is None:
        records = RunRecords(task.runs, RunPaths(task.node.run_id))
    while (code := _attempt(task, records, environment)) is None:
        logger.info("the next attempt runs here")
    if task.secrets.notifies:
        from runner.node.agent.notifications import notify_end  # noqa: PLC0415  few runs ask for it

        notify_end(task, records)
    if code == 0:
        _register_model(task, records, environment)
    hold = records.hold
    if hold is not None and hold.result is not None:
        records.end_hold(hold.result, hold.wait(task))
    return code


def _attempt(task: TaskContext, records: RunRecords, environment: Mapping[str, str]) -> int | None:
    """Execute an attempt unless the run ended. Return the exit code, or None to run another."""
    trial = environment.get(TRIAL_VARIABLE)
    body = _write_trial_run(task, records, trial) if trial else None
    is_new = body is not None  # nobody has written anything of the run yet, not even its result
    if not is_new and (recorded := records.exit_code()) is not None:
        run_id = records.paths.run_id
        logger.info("run %s is over already, exit code %d", run_id, recorded)
        return recorded
    body = body or records.read_run()
    if body is None:
        logger.error("there is no %s: nothing says what to run", records.paths.run)
        return FAILED_EXIT_CODE
    spec = _parse(body, records)
    if isinstance(spec, RunSpec) and (spec.after or spec.trial):
        from runner.node.agent.unstarted import end_unstarted  # noqa: PLC0415  most runs may start

        if end_unstarted(task.runs, records, spec, task.node.shared_dir):
            return FAILED_EXIT_CODE
    if not task.secrets.in_vaults:  # secrets in vaults are unknown here and cannot be redacted
        ship_remaining_logs(task.runs, records.paths, task.node.work_dir, task.redactor)
    started = now_text()
    offsets = NO_LOGS if is_new else records.find_log_offsets()
    number = records.claim_attempt(task.node, offsets)
    logger.info("run %s, attempt %d", records.paths.run_id, number)
    if isinstance(spec, StageFailedError):
        return AttemptOutcome(task, records, number, started).failed(spec, retries=0)
    if spec.notify is not None and task.secrets.notifies and number > spec.notify.evictions:
        from runner.node.agent.notifications import notify_evictions  # noqa: PLC0415  evicted often

        notify_evictions(task, records, spec, number)
    finished = FinishedScript(task.node.work_dir, spec)
    try:
        kept = finished.attempt is not None
        dirs = make_dirs(task.node.work_dir, keep_written=kept, is_quiet=task.is_quiet)
        record_attempt(dirs.logs, spec.run_id, number)
    except OSError as err:
        failure = disk_full("code", err)
        if not is_disk_full(err):
            text = f"cannot make the task's folders: {err}"
            failure = StageFailedError("code", "AgentFailed", text)
        logger.error("failed in %s: %s: %s", failure.step, failure.code, failure.message)
        return AttemptOutcome(task, records, number, started).failed(failure, spec.retries)
    events = EventLog(LineQueue(), task.redactor)
    context = AttemptContext(
        task.runs, records.paths, spec, number, dirs, events, task.retry_budget, task.termination,
        task.notices,
    )  # fmt: skip
    attempt = _open_attempt(task, context, finished, is_new=is_new)
    outcome = AttemptOutcome(task, records, number, started, attempt)
    return _run_attempt(task, context, attempt, outcome, script_variables(environment))


def _parse(body: bytes, records: RunRecords) -> RunSpec | StageFailedError:
    try:
        return records.parse_run(body)
    except RunSpecError as err:
        return StageFailedError("code", "RunSpecInvalid", str(err))


def _open_attempt(
    task: TaskContext, context: AttemptContext, finished: FinishedScript, *, is_new: bool
) -> Attempt:
    """Start to ship the logs. Return the attempt with the parts that its run asks for."""
    spec, number = context.spec, context.number
    beside: list[AbstractContextManager[object]] = []
    trial = node_group = None
    if spec.live_outputs:
        from runner.node.script.live_outputs import LiveOutputs  # noqa: PLC0415

        beside.append(LiveOutputs(context))
    if spec.notify is not None and task.secrets.notifies:
        from runner.node.agent.notifications import CapWatch  # noqa: PLC0415  few runs ask for it

        beside.append(CapWatch(task, context))
    if spec.trial:
        from runner.node.agent.sweep_trial import open_trial  # noqa: PLC0415

        trial = open_trial(task.runs, spec, number, task.node.shared_dir)
    if task.hosts is not None:
        from runner.node.distributed.node_group import make_node_group  # noqa: PLC0415

        node_group = make_node_group(task, spec, number, context.events)
    streams = Streams(
        task.runs, context.paths, number, context.dirs, context.events, task.redactor,
        patterns=spec.metric_patterns, observe=trial.observe if trial is not None else None,
    )  # fmt: skip
    streams.metrics.recall(finished.metrics)
    if trial is not None:
        trial.start()
        beside.append(trial)
    others_idle_s = node_group.find_idle_s if node_group is not None else None
    return Attempt(
        task,
        context,
        AttemptCheckpoints(context, step=streams.metrics.last_step, is_new=is_new),
        AttemptOutputs(context, finished.collected),
        streams=streams,
        finished=finished,
        node_group=node_group,
        trial=trial,
        beside=beside,
        open_devices=devices_opener(context, task.node.work_dir, others_idle_s=others_idle_s),
    )


def _run_attempt(
    task: TaskContext,
    context: AttemptContext,
    attempt: Attempt,
    outcome: AttemptOutcome,
    inherited: Mapping[str, str],
) -> int | None:
    """Run the stages and record how they end. Return as `_attempt`."""
    events = context.events
    try:
        files = _run_stages(task, context, attempt, inherited)
    except TerminatedError:
        _close(attempt, urgent=True)
        return outcome.terminated(events.current)
    except EvictedError:
        _close(attempt, again=True)
        outcome.terminated(events.current)
        return _wait_for_eviction(task, outcome)
    except NodeLostError as err:
        _close(attempt, again=True)
        return _after_loss(task, outcome, err)
    except StageFailedError as err:
        return _after_failure(task, context, outcome, err)
    _close(attempt)
    return outcome.succeeded(files)


def _run_stages(
    task: TaskContext, context: AttemptContext, attempt: Attempt, inherited: Mapping[str, str]
) -> list[OutputFile]:
    """Run all stages. Return the exported files.

    An unexpected error becomes a StageFailedError, so that the run gets an outcome.
    """
    events = context.events
    try:
        _open_nodes(attempt)
        _run_script(task, context, attempt, inherited)
        return attempt.export()
    except (StageFailedError, TerminatedError, EvictedError):
        raise
    except StorageRequestError as err:
        task.termination.check()  # the short timeout of a termination may be the cause
        left = task.node.work_dir / "output"
        where = f"; the outputs are still in {left} on node {task.node.node}"
        text = f"{err}{where if events.current == 'export' else ''}"
        raise StageFailedError(events.current, "StorageFailed", text) from err
    except Exception as err:
        if isinstance(err, OSError) and is_disk_full(err):
            raise disk_full(events.current, err) from err
        logger.exception("the agent failed")
        message = f"the node agent failed: {type(err).__name__}: {err}"
        raise StageFailedError(events.current, "AgentFailed", message) from err


def _run_script(
    task: TaskContext, context: AttemptContext, attempt: Attempt, inherited: Mapping[str, str]
) -> None:
    """Run all stages up to the command, unless an earlier attempt on this node ran the script."""
    runs, finished = task.runs, attempt.finished
    if finished is not None and finished.attempt is not None:
        message = (
            f"the command of attempt {finished.attempt} succeeded here: only its export is left"
        )
        attempt.events.add("notice", "progress", message)
        write_environment(runs, context.paths, attempt.number, finished.environment)
        return
    secrets = _resolve_secrets(task, context.events)
    prepared = attempt.set_up(secrets)
    prepared |= attempt.resume()
    attempt.decide_params()
    write_environment(runs, context.paths, attempt.number, Path(prepared["VIRTUAL_ENV"]))
    cluster = attempt.assemble(inherited)
    attempt.run(inherited, {**secrets, **prepared}, cluster)


def _resolve_secrets(task: TaskContext, events: EventLog) -> dict[str, str]:
    if not task.secrets.in_vaults:
        return task.secrets.resolve(task.retry_budget)
    with events.stage("secrets", "asking the key vault"):
        return task.secrets.resolve(task.retry_budget)


def _write_trial_run(task: TaskContext, records: RunRecords, trial: str) -> bytes | None:
    """Write and return run.json of a trial, or return None if an agent has written it before."""
    from runner.node.agent.sweep_trial import is_decided, write_trial_run  # noqa: PLC0415

    body = write_trial_run(task.runs, records.paths, trial, task.node.shared_dir)
    if body is not None and is_decided(body):
        records.keep(records.paths.run, body)
    return body


def _register_model(task: TaskContext, records: RunRecords, environment: Mapping[str, str]) -> None:
    """Register the model of the run, which succeeded, if its run.json has a `model`."""
    if records.spec is not None and records.spec.model is None:
        return
    from runner.node.agent.model_registration import register_model  # noqa: PLC0415  most need not

    models = load_models(environment, task.retry_budget)
    register_model(task.runs, models, records.paths, task.redactor)


@contextmanager
def _only_agent_of(work_dir: Path, termination: Termination) -> Generator[None]:
    """Run the block while no other agent works in the task's folder. Raise TerminatedError.

    Batch may start a task twice on a node. The second agent waits for the end of the first, and
    then finds the run's outcome. The kernel releases the lock when an agent is killed. The script
    does not inherit the lock: the next agent kills remaining processes (`make_dirs`).
    """
    with ExitStack() as stack:
        has_logged = False

        def while_waiting() -> None:
            nonlocal has_logged
            if not has_logged:
                has_logged = True
                logger.info("another agent runs this task in %s: waiting for its end", work_dir)
            termination.check()

        try:
            stack.enter_context(node_lock(work_dir / LOCK_FILE, while_waiting))
        except OSError as err:  # a full disk, or a file system without locks
            logger.warning("the task's folder cannot be locked: %s", err)
        yield


def _after_failure(
    task: TaskContext, context: AttemptContext, outcome: AttemptOutcome, err: StageFailedError
) -> int | None:
    """Record the failure of an attempt. Return the exit code, or None to run another one here.

    Another attempt follows in addition to the retries if the script could not load its checkpoint.
    A run that may not start over, or was idle, fails at once.
    """
    attempt, finished = outcome.attempt, outcome.attempt.finished
    load = outcome.find_load_failure(err)
    retries = 0 if err.code in NOT_RETRIED else context.spec.retries
    if attempt.node_group is not None:
        if load is not None:
            _close(attempt, again=True)
        else:
            _close(attempt, failed=outcome.is_final(retries))
        if not err.rank and err.step == "command" and err.code != "NodeLost":
            err.reword(f"rank 0 on node {task.node.node}: {err.message}")
    # After a storage error, the next attempt may export the outputs of the finished script. After
    # any other error, the script has to run again.
    if err.code != "StorageFailed" and finished is not None:
        finished.forget()
    logger.error("failed in %s: %s: %s", err.step, err.code, err.message)
    if err.step == "command" and (tail := read_tail(context.dirs.stderr)):
        logger.error("the end of the script's stderr:\n%s", tail)
    if load is None:
        code = outcome.failed(err, retries)
        if err.code == "DiskFull":
            outcome.clean_up(partial(remove_written, context.dirs))  # its outputs were kept
        return code
    outcome.could_not_load(err, load)
    outcome.await_writers()
    return None


def _open_nodes(attempt: Attempt) -> None:
    """Accept the other nodes of the run, if it has several. Raise StageFailedError."""
    nodes = attempt.spec.nodes
    if attempt.node_group is not None:
        attempt.node_group.open()
    elif nodes > 1:
        text = f"the run needs {nodes} nodes, but its task has only one"
        raise StageFailedError("nodes", "RunSpecInvalid", text)


def _close(
    attempt: Attempt, *, again: bool = False, urgent: bool = False, failed: bool = False
) -> None:
    """Close the node group, if there is one."""
    if attempt.node_group is not None:
        own = attempt.outputs.names()
        attempt.node_group.close(again=again, urgent=urgent, failed=failed, own=own)


def _after_loss(task: TaskContext, outcome: AttemptOutcome, err: NodeLostError) -> int | None:
    """Record the loss of a node. Return the exit code, or None to run another attempt here.

    The loss fails the run only if the node does not return and Batch does not requeue the task.
    """
    from runner.node.distributed.rendezvous import (  # noqa: PLC0415  of several nodes
        RejoinOutcome,
        wait_for_rejoin,
    )

    losses = outcome.lost(err)
    rejoin = wait_for_rejoin(task, outcome.attempt.events, losses)
    if rejoin is RejoinOutcome.TIMEOUT:
        return outcome.failed(err, outcome.attempt.spec.retries)
    code = outcome.end_lost()
    if rejoin is RejoinOutcome.TERMINATED:
        return code
    outcome.await_writers()
    return None


def _wait_for_eviction(task: TaskContext, outcome: AttemptOutcome) -> int | None:
    """Wait until the node is evicted: Batch does not requeue a task that ended by itself.

    Returns:
        The exit code, or None if the node stays because the notice was withdrawn or is overdue.
    """
    logger.info("waiting for the eviction of the node")
    while task.notices is not None and (notice := task.notices.notice) is not None:
        if task.termination.requested:
            return TERMINATED_EXIT_CODE
        if notice.left_s < -OVERDUE_S:
            task.notices.forget()
            break
        time.sleep(POLL_S)
    outcome.await_writers()
    return None


def exit_now(code: int) -> None:
    """End the process without waiting for threads, which may block on a dead connection."""
    with suppress(OSError, ValueError):  # a full disk must not change the exit code
        logging.shutdown()
        sys.stdout.flush()
    os._exit(code)
