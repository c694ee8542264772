"""The agent as a program: run one task of a run, from its code archive to `result.json`.

Reading order: `start` -> `main` -> `run_task` -> `_attempt` -> `_run_attempt` -> `_run_stages` ->
`_run_script`, which calls the stages of `attempt.Attempt`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.node.agent.attempt import LOCK_FILE, Attempt, read_tail
from runner.node.agent.attempt_checkpoints import RESUME_FAILED, AttemptCheckpoints
from runner.node.agent.outcome import (
    AttemptOutcome,
    blocked_by,
    commit_blocked,
    commit_unstarted,
)
from runner.node.agent.records import (
    NO_LOGS,
    FinishedScript,
    claim_attempt,
    find_log_offsets,
    recorded_exit_code,
)
from runner.node.cluster import load_heartbeat_config, load_hosts
from runner.node.context import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, AgentContext
from runner.node.environment.virtual_env import write_environment
from runner.node.failures import (
    EvictedError,
    NodeLostError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.inputs.data_cache import node_lock
from runner.node.script.live_outputs import LiveOutputs
from runner.node.script.outputs import AttemptOutputs
from runner.node.script.redaction import Redactor, log_to_stdout
from runner.node.script.streams import EventLog, Streams, record_attempt, ship_remaining_logs
from runner.node.script.workspace import AttemptDirs, make_dirs
from runner.node.settings import (
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
from runner.protocol.encoding import now_text, parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile
from runner.protocol.run_spec import RunSpec, RunSpecError, parse_run_spec
from runner.protocol.sweeps import SWEEP_FAILED
from runner.protocol.task import (
    JOIN_ARGUMENT,
    NODES_TOKEN_VARIABLE,
    SCHEDULE_TASKS_VARIABLE,
    SCHEDULE_VARIABLE,
    TRIAL_VARIABLE,
)

if TYPE_CHECKING:
    from runner.node.distributed.node_group import NodeGroup


def start() -> None:
    """Run the agent, and end the process with its exit code."""

    if sys.argv[1:] == [JOIN_ARGUMENT]:
        from runner.node.agent import join  # noqa: PLC0415

        exit_now(join.join())
    if SCHEDULE_TASKS_VARIABLE not in os.environ:
        exit_now(main())
    from runner.node.agent import scheduled_group  # noqa: PLC0415

    exit_now(scheduled_group.main())


logger = logging.getLogger(__name__)

NO_ACCESS_EXIT_CODE = 122  # storage denies access, so only this code can tell the client
# Batch sends SIGKILL a few seconds after SIGTERM: all records must be written before.
SHUTDOWN_S = 4.5
OVERDUE_S = 60.0  # an eviction that is this late is considered withdrawn
POLL_S = 0.1


def main() -> int:
    """Read the environment and run the task. Return the exit code."""
    redactor = Redactor()
    log_to_stdout(redactor)
    environment = process_variables()
    retry_budget = RetryBudget()
    termination = Termination(on_first=lambda: retry_budget.shorten(SHUTDOWN_S))
    termination.install()
    try:
        access = load_access(environment, retry_budget, redactor)
        if environment.get(SCHEDULE_VARIABLE):
            from runner.node.agent.scheduled_run import with_run_id  # noqa: PLC0415

            environment = with_run_id(environment, access.runs)
        node = load_node_settings(environment)
        agent = AgentContext(
            node, access.runs, access, RunPaths(node.run_id), retry_budget, termination,
            load_task_secrets(environment, redactor), redactor, watch_evictions(environment, node),
            trial=environment.get(TRIAL_VARIABLE, ""),
        )  # fmt: skip
        if token := environment.get(NODES_TOKEN_VARIABLE):
            agent = _on_several_nodes(agent, environment, token)
        with _only_agent_of(node.work_dir, termination):
            code = run_task(agent, script_variables(environment))
            if code == 0:
                _register_model(agent, environment)
        return code
    except SettingsError as err:
        logger.error("%s", err)
        return FAILED_EXIT_CODE
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


def _on_several_nodes(
    agent: AgentContext, environment: Mapping[str, str], token: str
) -> AgentContext:
    """Return the context with what the nodes of a run need. Raise SettingsError."""
    agent.redactor.add(token)
    return replace(
        agent,
        hosts=load_hosts(environment),
        nodes_token=token,
        heartbeat_config=load_heartbeat_config(environment),
    )


def _register_model(agent: AgentContext, environment: Mapping[str, str]) -> None:
    """Register the model of the run, which succeeded, if its run.json has a `model`."""
    run = agent.own.get(agent.blobs.run)
    if run is not None and not parse_json(run).get("model"):
        return
    from runner.node.agent.model_registration import register_model  # noqa: PLC0415  most need not

    models = load_models(environment, agent.retry_budget)
    register_model(agent.runs, models, agent.blobs, agent.redactor)


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


def run_task(agent: AgentContext, inherited: Mapping[str, str]) -> int:
    """Execute the task. Return the exit code for Batch. Raise StorageError."""
    while (code := _attempt(agent, inherited)) is None:
        logger.info("the next attempt runs here")
    return code


def _attempt(agent: AgentContext, inherited: Mapping[str, str]) -> int | None:
    """Execute an attempt unless the run ended. Return the exit code, or None to run another."""
    agent.own.pop(agent.blobs.run, None)  # the copy of an earlier attempt may be outdated
    body = _write_trial_run(agent) if agent.trial else None
    is_new = body is not None  # nobody has written anything of the run yet, not even its result
    recorded = None if is_new else recorded_exit_code(agent.runs, agent.blobs)
    if recorded is not None:
        logger.info("run %s is over already, exit code %d", agent.node.run_id, recorded)
        return recorded
    body = body or agent.runs.get(agent.blobs.run)
    if body is None:
        logger.error("there is no %s: nothing says what to run", agent.blobs.run)
        return FAILED_EXIT_CODE
    if (why := blocked_by(agent.runs, body)) is not None:
        logger.info("%s", why)
        commit_blocked(agent.runs, agent.node.run_id, why)
        return FAILED_EXIT_CODE
    if _is_trial(body) and (why := _cancelled_by_sweep(agent, body)) is not None:
        logger.info("%s", why)
        commit_unstarted(agent.runs, agent.node.run_id, "cancelled", SWEEP_FAILED, why)
        return FAILED_EXIT_CODE
    if not agent.secrets.in_vaults:  # secrets in vaults are unknown here and cannot be redacted
        ship_remaining_logs(agent.runs, agent.blobs, agent.node.work_dir, agent.redactor)
    started = now_text()
    offsets = dict(NO_LOGS) if is_new else find_log_offsets(agent.runs, agent.blobs)
    number = claim_attempt(agent.runs, agent.blobs, agent.node, offsets, agent.own)
    logger.info("run %s, attempt %d", agent.node.run_id, number)
    try:
        spec = parse_run_spec(body)
    except RunSpecError as err:
        failure = StageFailedError("code", "RunSpecInvalid", str(err))
        return AttemptOutcome(agent, number, started).failed(failure, retries=0)
    return _run_attempt(agent, spec, number, started, inherited, is_new=is_new)


def _write_trial_run(agent: AgentContext) -> bytes | None:
    """Write and return run.json of a trial, or return None if an agent has written it before."""
    from runner.node.agent.sweep_trial import is_decided, write_trial_run  # noqa: PLC0415

    body = write_trial_run(agent.runs, agent.blobs, agent.trial, agent.node.shared_dir)
    if body is not None and is_decided(body):
        agent.own[agent.blobs.run] = body
    return body


def _is_trial(run_body: bytes) -> bool:
    try:
        return bool(parse_json(run_body).get("trial"))
    except ValueError:
        return False  # `parse_run_spec` reports the damage


def _cancelled_by_sweep(agent: AgentContext, run_body: bytes) -> str | None:
    from runner.node.agent.sweep_trial import cancelled_by_sweep  # noqa: PLC0415

    return cancelled_by_sweep(agent.runs, run_body, agent.node.shared_dir)


def _run_attempt(
    agent: AgentContext,
    spec: RunSpec,
    number: int,
    started: str,
    inherited: Mapping[str, str],
    *,
    is_new: bool,
) -> int | None:
    finished = FinishedScript(agent.node.work_dir, spec)
    try:
        dirs = make_dirs(agent.node.work_dir, keep_written=finished.attempt is not None)
        record_attempt(dirs.logs, number)
    except OSError as err:
        failure = disk_full("code", err) if is_disk_full(err) else _folder_error(err)
        logger.error("failed in %s: %s: %s", failure.step, failure.code, failure.message)
        return AttemptOutcome(agent, number, started).failed(failure, spec.retries)
    attempt = _open_attempt(agent, spec, number, dirs, finished, is_new=is_new)
    events = attempt.events
    outcome = AttemptOutcome(agent, number, started, attempt.streams, events, attempt.checkpoints)
    try:
        attempt.node_group = _open_node_group(agent, spec, number, events)
        files = _run_stages(agent, attempt, inherited)
    except TerminatedError:
        _close(attempt, urgent=True)
        return outcome.terminated(events.current, attempt)
    except EvictedError:
        _close(attempt, again=True)
        outcome.terminated(events.current, attempt)
        return _wait_for_eviction(agent, outcome)
    except NodeLostError as err:
        _close(attempt, again=True)
        return _after_loss(agent, outcome, attempt, err, spec.retries)
    except StageFailedError as err:
        return _after_failure(agent, outcome, attempt, err, dirs)
    _close(attempt)
    return outcome.succeeded(attempt, files, spec.expect)


def _after_failure(
    agent: AgentContext,
    outcome: AttemptOutcome,
    attempt: Attempt,
    err: StageFailedError,
    dirs: AttemptDirs,
) -> int | None:
    """Record the failure of an attempt. Return the exit code, or None to run another one here.

    Another attempt follows in addition to the retries if the script could not load its checkpoint.
    """
    load, retries = outcome.find_load_failure(err, attempt), _retries(err, attempt.spec)
    if attempt.node_group is not None:
        if load is not None:
            _close(attempt, again=True)
        else:
            _close(attempt, failed=outcome.is_final(retries))
        _add_node_name(agent.node.node, err)
    _log_failure(err, attempt.finished)
    if err.step == "command" and (tail := read_tail(dirs.stderr)):
        logger.error("the end of the script's stderr:\n%s", tail)
    if load is None:
        return outcome.failed(err, retries, attempt)
    outcome.could_not_load(err, load, attempt)
    outcome.await_writers()
    return None


def _retries(failure: StageFailedError, spec: RunSpec) -> int:
    """Return how many failures are retried. A run that may not start over fails at once."""
    return 0 if failure.code == RESUME_FAILED else spec.retries


def _open_attempt(
    agent: AgentContext,
    spec: RunSpec,
    number: int,
    dirs: AttemptDirs,
    finished: FinishedScript,
    *,
    is_new: bool,
) -> Attempt:
    """Start to ship the logs, and return the attempt."""
    runs, blobs, retry_budget = agent.runs, agent.blobs, agent.retry_budget
    streams = Streams(runs, blobs, number, dirs, spec.metric_patterns, agent.redactor)
    streams.metrics.recall(finished.metrics)
    events = EventLog(streams.events, agent.redactor)
    streams.set_warn(partial(events.add, "metrics", "failed"))
    checkpoints = AttemptCheckpoints(
        runs, blobs, spec, number, folder=dirs.checkpoints, events=events,
        retry_budget=retry_budget, termination=agent.termination,
        step=streams.metrics.last_step, notices=agent.notices,
    )  # fmt: skip
    checkpoints.has_none = is_new
    outputs = AttemptOutputs(
        runs, blobs, spec, number, dirs, events=events, retry_budget=retry_budget,
        check=agent.termination.check, collected=finished.collected,
    )  # fmt: skip
    attempt = Attempt(
        agent.node, spec, number, dirs, events=events, termination=agent.termination,
        checkpoints=checkpoints, outputs=outputs,
    )  # fmt: skip
    attempt.finished, attempt.streams = finished, streams
    if spec.live_outputs:
        attempt.live = LiveOutputs(runs, blobs, number, dirs.output, spec.live_outputs)
    if spec.trial:
        from runner.node.agent.sweep_trial import open_trial  # noqa: PLC0415

        attempt.trial = open_trial(runs, spec, number, agent.node.shared_dir)
        if attempt.trial is not None:
            attempt.trial.start()
            streams.metrics.observe = attempt.trial.observe
    return attempt


def _open_node_group(
    agent: AgentContext, spec: RunSpec, number: int, events: EventLog
) -> NodeGroup | None:
    """Open the node group of a run over several nodes. Raise StageFailedError."""
    if agent.hosts is None and spec.nodes == 1:
        return None
    from runner.node.distributed.node_group import open_node_group  # noqa: PLC0415

    return open_node_group(agent, spec, number, events)


def _close(
    attempt: Attempt, *, again: bool = False, urgent: bool = False, failed: bool = False
) -> None:
    """Close the node group, if there is one."""
    if attempt.node_group is not None:
        own = attempt.outputs.names()
        attempt.node_group.close(again=again, urgent=urgent, failed=failed, own=own)


def _add_node_name(node: str, err: StageFailedError) -> None:
    """Add the name of the primary to the message if its own script failed."""
    if not err.rank and err.step == "command" and err.code != "NodeLost":
        err.message = f"rank 0 on node {node}: {err.message}"


def _after_loss(
    agent: AgentContext, outcome: AttemptOutcome, attempt: Attempt, err: NodeLostError, retries: int
) -> int | None:
    """Record the loss of a node. Return the exit code, or None to run another attempt here.

    The loss fails the run only if the node does not return and Batch does not requeue the task.
    """
    from runner.node.distributed.rendezvous import (  # noqa: PLC0415  of several nodes
        RejoinOutcome,
        wait_for_rejoin,
    )

    outcome.lost(err)
    rejoin = wait_for_rejoin(agent, attempt.events)
    if rejoin is RejoinOutcome.TIMEOUT:
        return outcome.failed(err, retries, attempt)
    code = outcome.end_lost(attempt)
    if rejoin is RejoinOutcome.TERMINATED:
        return code
    outcome.await_writers()
    return None


def _wait_for_eviction(agent: AgentContext, outcome: AttemptOutcome) -> int | None:
    """Wait until the node is evicted: Batch does not requeue a task that ended by itself.

    Returns:
        The exit code, or None if the node stays because the notice was withdrawn or is overdue.
    """
    logger.info("waiting for the eviction of the node")
    while agent.notices is not None and (notice := agent.notices.notice) is not None:
        if agent.termination.requested:
            return TERMINATED_EXIT_CODE
        if notice.left_s < -OVERDUE_S:
            agent.notices.forget()
            break
        time.sleep(POLL_S)
    outcome.await_writers()
    return None


def _folder_error(err: OSError) -> StageFailedError:
    return StageFailedError("code", "AgentFailed", f"cannot make the task's folders: {err}")


def _run_stages(
    agent: AgentContext, attempt: Attempt, inherited: Mapping[str, str]
) -> list[OutputFile]:
    with _convert_errors(agent, attempt.events):
        _run_script(agent, attempt, inherited)
        return attempt.export()


@contextmanager
def _convert_errors(agent: AgentContext, events: EventLog) -> Generator[None]:
    """Convert unexpected errors to StageFailedError, so that the run gets an outcome."""
    try:
        yield
    except (StageFailedError, TerminatedError, EvictedError):
        raise
    except StorageRequestError as err:
        agent.termination.check()  # the short timeout of a termination may be the cause
        left = agent.node.work_dir / "output"
        where = f"; the outputs are still in {left} on node {agent.node.node}"
        text = f"{err}{where if events.current == 'export' else ''}"
        raise StageFailedError(events.current, "StorageFailed", text) from err
    except Exception as err:
        if isinstance(err, OSError) and is_disk_full(err):
            raise disk_full(events.current, err) from err
        logger.exception("the agent failed")
        message = f"the node agent failed: {type(err).__name__}: {err}"
        raise StageFailedError(events.current, "AgentFailed", message) from err


def _run_script(agent: AgentContext, attempt: Attempt, inherited: Mapping[str, str]) -> None:
    """Run all stages up to the command, unless an earlier attempt on this node ran the script."""
    finished = attempt.finished
    if finished is not None and finished.attempt is not None:
        message = (
            f"the command of attempt {finished.attempt} succeeded here: only its export is left"
        )
        attempt.events.add("notice", "progress", message)
        write_environment(agent.runs, agent.blobs, attempt.number, finished.environment)
        return
    secrets = _resolve_secrets(agent, attempt.events)
    prepared = attempt.set_up(agent.inputs, agent.retry_budget)
    prepared |= attempt.resume()
    attempt.decide_params()
    write_environment(agent.runs, agent.blobs, attempt.number, Path(prepared["VIRTUAL_ENV"]))
    cluster = attempt.assemble(inherited)
    attempt.run(inherited, {**secrets, **prepared}, cluster)


def _resolve_secrets(agent: AgentContext, events: EventLog) -> dict[str, str]:
    if not agent.secrets.in_vaults:
        return agent.secrets.resolve(agent.retry_budget)
    with events.stage("secrets", "asking the key vault"):
        return agent.secrets.resolve(agent.retry_budget)


def _log_failure(failure: StageFailedError, finished: FinishedScript | None) -> None:
    """Log the failure to the task's stdout in Batch.

    After a storage error, the next attempt may export the outputs of the finished script. After
    any other error, the script has to run again.
    """
    if failure.code != "StorageFailed" and finished is not None:
        finished.forget()
    logger.error("failed in %s: %s: %s", failure.step, failure.code, failure.message)


def exit_now(code: int) -> None:
    """End the process without waiting for threads, which may block on a dead connection."""
    with suppress(OSError, ValueError):  # a full disk must not change the exit code
        logging.shutdown()
        sys.stdout.flush()
    os._exit(code)
