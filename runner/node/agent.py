"""Runs one task of a run, from the archive in its folder to result.json.

Reading order: `main` -> `run_task` -> `_run_attempt` -> `attempt.Attempt`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from runner.node.attempt import Attempt, AttemptDirs, make_dirs
from runner.node.attempt_checkpoints import AttemptCheckpoints
from runner.node.attempts import RunBlobs, claim_attempt, find_log_offsets
from runner.node.clock import now_text
from runner.node.conclusion import Conclusion
from runner.node.environment_report import write_environment
from runner.node.events import EventLog
from runner.node.export import OutputFile
from runner.node.failures import (
    EvictedError,
    NodeLostError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.finished import Finished
from runner.node.gang import Gang, dismiss, name_node, open_gang
from runner.node.hosts import TOKEN_VARIABLE, load_hosts
from runner.node.notice import watch_notices
from runner.node.patience import Patience
from runner.node.predecessors import blocked_by, commit_blocked
from runner.node.pulse import load_rhythm
from runner.node.redaction import Redactor, log_to_stdout
from runner.node.registration import settle_model
from runner.node.result import recorded_exit_code
from runner.node.reunion import Outcome, outlive
from runner.node.run_spec import RunSpec, RunSpecError, parse_run_spec
from runner.node.scheduled import with_run_id
from runner.node.settings import (
    SettingsError,
    load_access,
    load_models,
    load_node_settings,
    load_task_secrets,
    process_environment,
    script_environment,
)
from runner.node.streams import Streams
from runner.node.task import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, Agent
from runner.node.termination import Termination
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)

NO_ACCESS_EXIT_CODE = 122  # storage refuses: nothing but this code can tell the client
# Batch follows SIGTERM with SIGKILL after a few seconds: what is to be written, is written by then.
LAST_WORDS_S = 4.5
STDERR_TAIL_BYTES = 4096
OVERDUE_S = 60.0  # an eviction that late is none
POLL_S = 0.1


def main() -> int:
    """The agent as a program: reads the environment, returns the exit code."""
    redactor = Redactor()
    log_to_stdout(redactor)
    environment = process_environment()
    patience = Patience()
    termination = Termination(on_first=lambda: patience.hurry(LAST_WORDS_S))
    termination.install()
    try:
        access = load_access(environment, patience, redactor)
        environment = with_run_id(environment, access.runs)
        node = load_node_settings(environment)
        agent = Agent(
            node, access.runs, access, RunBlobs(node.run_id), patience, termination,
            load_task_secrets(environment, redactor), redactor, watch_notices(environment, node),
            load_hosts(environment), environment.get(TOKEN_VARIABLE, ""),
            load_rhythm(environment),
        )  # fmt: skip
        redactor.add(agent.nodes_token)
        code = run_task(agent, script_environment(environment))
        if code == 0:
            models = load_models(environment, patience)
            settle_model(access.runs, models, agent.blobs, redactor)
        return code
    except SettingsError as err:
        logger.error("%s", err)
        return FAILED_EXIT_CODE
    except StorageError as err:
        logger.error("storage: %s", err)
        if termination.requested:
            return TERMINATED_EXIT_CODE
        return NO_ACCESS_EXIT_CODE if err.status in (401, 403) else FAILED_EXIT_CODE
    except Exception:
        # A bug of ours: the trace goes to the task's stdout; threads must not keep the process.
        logger.exception("the agent failed")
        return FAILED_EXIT_CODE


def run_task(agent: Agent, inherited: Mapping[str, str]) -> int:
    """One task execution; the exit code that Batch shall see. Raises StorageError."""
    while (code := _attempt(agent, inherited)) is None:
        logger.info("the nodes are there after all: the next attempt runs here")
    return code


def _attempt(agent: Agent, inherited: Mapping[str, str]) -> int | None:
    """One attempt, or none if the run is over; None asks for another one."""
    recorded = recorded_exit_code(agent.runs, agent.blobs)
    if recorded is not None:
        logger.info("run %s is over already, exit code %d", agent.node.run_id, recorded)
        return recorded
    body = agent.runs.get(agent.blobs.run)
    if body is None:
        logger.error("there is no %s: nothing says what to run", agent.blobs.run)
        return FAILED_EXIT_CODE
    if (why := blocked_by(agent.runs, body)) is not None:
        logger.info("%s", why)
        commit_blocked(agent.runs, agent.node.run_id, why)
        return FAILED_EXIT_CODE
    started = now_text()
    offsets = find_log_offsets(agent.runs, agent.blobs)
    number = claim_attempt(agent.runs, agent.blobs, agent.node, offsets)
    logger.info("run %s, attempt %d", agent.node.run_id, number)
    try:
        spec = parse_run_spec(body)
    except RunSpecError as err:
        failure = StageFailedError("code", "RunSpecInvalid", str(err))
        return Conclusion(agent, number, started).failed(failure, retries=0)
    return _run_attempt(agent, spec, number, started, inherited)


def _run_attempt(
    agent: Agent, spec: RunSpec, number: int, started: str, inherited: Mapping[str, str]
) -> int | None:
    finished = Finished(agent.node.work_dir, spec)
    try:
        dirs = make_dirs(agent.node.work_dir, keep_output=finished.attempt is not None)
    except OSError as err:
        failure = disk_full("code", err) if is_disk_full(err) else _no_folders(err)
        return Conclusion(agent, number, started).failed(failure, spec.retries)
    streams, events = _streams(agent, spec, number, dirs)
    finished.use(streams.metrics)
    checkpoints = _checkpoints(agent, spec, number, dirs, streams, events)
    conclusion = Conclusion(agent, number, started, streams, events, checkpoints)
    attempt = Attempt(
        agent.node, spec, number, dirs, events=events, patience=agent.patience,
        termination=agent.termination, checkpoints=checkpoints,
    )  # fmt: skip
    attempt.finished = finished
    others: Gang | None = None
    try:
        others = open_gang(agent, spec, number, events)
        outputs = _stages(agent, attempt, inherited, others)
    except TerminatedError:
        dismiss(others, hurry=True)
        return conclusion.terminated(events.current)
    except EvictedError:
        dismiss(others, again=True)
        conclusion.terminated(events.current)
        return _wait_for_eviction(agent)
    except NodeLostError as err:
        dismiss(others, again=True)
        return _after_loss(agent, conclusion, events, err, spec.retries)
    except StageFailedError as err:
        dismiss(others)
        name_node(others, agent.node.node, err)
        _log_failure(err, dirs, finished)
        return conclusion.failed(err, spec.retries)
    dismiss(others)
    return conclusion.succeeded(attempt, outputs)


def _streams(
    agent: Agent, spec: RunSpec, number: int, dirs: AttemptDirs
) -> tuple[Streams, EventLog]:
    streams = Streams(agent.runs, agent.blobs, number, dirs, spec.metric_patterns, agent.redactor)
    events = EventLog(streams.events, agent.redactor)
    streams.warn_by(partial(events.aside, "metrics", "failed"))
    return streams, events


def _checkpoints(
    agent: Agent,
    spec: RunSpec,
    number: int,
    dirs: AttemptDirs,
    streams: Streams,
    events: EventLog,
) -> AttemptCheckpoints:
    return AttemptCheckpoints(
        agent.runs,
        agent.blobs,
        spec,
        number,
        folder=dirs.checkpoints,
        events=events,
        patience=agent.patience,
        termination=agent.termination,
        step=streams.metrics.last_step,
        notices=agent.notices,
    )


def _after_loss(
    agent: Agent, conclusion: Conclusion, events: EventLog, err: NodeLostError, retries: int
) -> int | None:
    """No failure of the run, if the task is run again or the node's agent comes back."""
    conclusion.lost(err)
    came = outlive(agent, events)
    if came is Outcome.NOTHING:
        return conclusion.failed(err, retries)
    code = conclusion.left()
    return code if came is Outcome.TERMINATED else None


def _wait_for_eviction(agent: Agent) -> int | None:
    """Outlive the notice: a task that ended by itself would not be run again elsewhere.

    Returns None when the node stays: the notice was withdrawn, or nothing came of it.
    """
    logger.info("waiting for the node to go")
    while agent.notices is not None and (notice := agent.notices.notice) is not None:
        if agent.termination.requested:
            return TERMINATED_EXIT_CODE
        if notice.left_s < -OVERDUE_S:
            agent.notices.forget()
            break
        time.sleep(POLL_S)
    return None


def _no_folders(err: OSError) -> StageFailedError:
    return StageFailedError("code", "AgentFailed", f"cannot make the task's folders: {err}")


def _stages(
    agent: Agent, attempt: Attempt, inherited: Mapping[str, str], others: Gang | None
) -> list[OutputFile]:
    with _as_failures(agent, attempt.events):
        _run_script(agent, attempt, inherited, others)
        return attempt.export(agent.runs, agent.blobs.output(attempt.number), others)


@contextmanager
def _as_failures(agent: Agent, events: EventLog) -> Generator[None]:
    """Whatever goes wrong, the run must get an outcome: somebody waits for it."""
    try:
        yield
    except (StageFailedError, TerminatedError, EvictedError):
        raise
    except StorageError as err:
        agent.termination.check()  # then it is only the hurry that made it fail
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


def _run_script(
    agent: Agent, attempt: Attempt, inherited: Mapping[str, str], others: Gang | None
) -> None:
    """All stages up to the command, unless an earlier attempt here had only to export."""
    finished = attempt.finished
    if finished is not None and finished.attempt is not None:
        message = (
            f"the command of attempt {finished.attempt} succeeded here: only its export is left"
        )
        attempt.events.aside("notice", "progress", message)
        write_environment(agent.runs, agent.blobs, attempt.number, finished.environment)
        return
    secrets = _secrets(agent, attempt.events)
    prepared = attempt.prepare(agent.inputs)
    prepared |= attempt.resume()
    write_environment(agent.runs, agent.blobs, attempt.number, Path(prepared["VIRTUAL_ENV"]))
    if others is not None:
        prepared |= others.assemble(attempt.restored)
    attempt.run(inherited, {**secrets, **prepared}, others)


def _secrets(agent: Agent, events: EventLog) -> dict[str, str]:
    if not agent.secrets.in_vaults:
        return agent.secrets.resolve(agent.patience)
    with events.stage("secrets", "asking the key vault"):
        return agent.secrets.resolve(agent.patience)


def _log_failure(failure: StageFailedError, dirs: AttemptDirs, finished: Finished) -> None:
    """For whoever reads the task's own stdout in Batch; only storage is worth another export."""
    if failure.code != "StorageFailed":
        finished.forget()
    logger.error("failed in %s: %s: %s", failure.step, failure.code, failure.message)
    if failure.step == "command":
        tail = _tail(dirs.stderr)
        if tail:
            logger.error("the end of the script's stderr:\n%s", tail)


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as source:
        source.seek(max(path.stat().st_size - STDERR_TAIL_BYTES, 0))
        return source.read().decode("utf-8", errors="replace").rstrip()


def exit_now(code: int) -> None:
    """End the process without waiting for threads: one may sit on a dead connection."""
    with suppress(OSError, ValueError):  # the log has no room: that is not the run's outcome
        logging.shutdown()
        sys.stdout.flush()
    os._exit(code)
