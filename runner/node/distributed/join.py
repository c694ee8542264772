"""The coordination command of a run over several nodes: `python3 runner-agent.pyz join`.

It starts a supervised worker on every node but the primary and returns, as Batch requires:
the primary's own command starts when all coordination commands are done. The command runs
once, so a supervisor replaces a worker that was killed or stopped; otherwise a run that
resumes from its checkpoint would wait for a node that Batch considers healthy.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from runner.node.agent.context import FAILED_EXIT_CODE, WorkerContext
from runner.node.agent.settings import (
    SettingsError,
    load_access,
    load_node_settings,
    load_task_secrets,
    process_environment,
    script_environment,
)
from runner.node.agent.termination import (
    EvictionNotice,
    EvictionWatch,
    Termination,
    watch_evictions,
)
from runner.node.distributed.cluster import Hosts, load_heartbeat_config, load_hosts
from runner.node.distributed.connection import AgentConnection
from runner.node.distributed.rendezvous import find_primary
from runner.node.distributed.worker import PrimaryConnection, Worker
from runner.node.failures import TerminatedError
from runner.node.script.command import dies_with_parent, kill_children, reparent_orphans
from runner.node.script.redaction import Redactor, log_to_stdout
from runner.node.storage.http import StorageRequestError
from runner.node.storage.limits import RetryBudget
from runner.protocol.task import CODE_ARCHIVE, NODES_TOKEN_VARIABLE

logger = logging.getLogger(__name__)

MAX_WORKERS = 5  # workers; what kills one after the other shall come to light
POLL_S = 0.2
KILLED_EXIT_CODE = 137


def supervise(work: Callable[[], int], stopped_s: float) -> int:
    """The exit code of `work`, which runs in a child, and may be stopped for `stopped_s`."""
    supervisor = _Supervisor(stopped_s)
    with reparent_orphans():
        for _ in range(MAX_WORKERS):
            code = supervisor.run(work)
            if code is not None:
                return code
            # Its script died with it; what that had started may still hold the node's GPUs.
            kill_children(but=frozenset())
            logger.warning("the worker was killed: another one takes its place")
    logger.error("%d workers were killed: no other one is tried", MAX_WORKERS)
    return KILLED_EXIT_CODE


class _Supervisor:
    def __init__(self, stopped_s: float) -> None:
        self._stopped_s = stopped_s
        self._child = 0
        self._stop_requested = False  # Batch said so
        self._stopped_since: float | None = None  # when the worker was seen to be stopped
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def run(self, work: Callable[[], int]) -> int | None:
        """One worker; None when something killed it, and nobody wanted it to end."""
        ours, bind = os.getpid(), dies_with_parent()
        self._stopped_since = None
        self._child = os.fork()
        if not self._child:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            bind()
            os._exit(KILLED_EXIT_CODE if os.getppid() != ours else work())
        if self._stop_requested:  # it was said between two workers
            self._send(signal.SIGTERM)
        status = self._await()
        self._child = 0
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        return KILLED_EXIT_CODE if self._stop_requested else None

    def _await(self) -> int:
        """Until it has ended; its status."""
        while True:
            flags = os.WUNTRACED | os.WCONTINUED | (os.WNOHANG if self._stopped_since else 0)
            pid, status = os.waitpid(self._child, flags)
            if not pid:
                self._end_stopped()
                time.sleep(POLL_S)
            elif os.WIFSTOPPED(status):
                self._stopped_since = time.monotonic()
            elif os.WIFCONTINUED(status):
                self._stopped_since = None
            else:
                return status

    def _end_stopped(self) -> None:
        if (
            self._stopped_since is not None
            and time.monotonic() - self._stopped_since > self._stopped_s
        ):
            logger.warning("the worker was stopped for %g s", self._stopped_s)
            self._send(signal.SIGKILL)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._stop_requested = True
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)


LOG_FILE = "runner-worker.txt"  # beside the script's folders, in the task's working directory
FIND_S = 900.0  # other nodes may still be fetching the run's files
# One that was frozen or cut off may come to life, as long as it waits itself (reunion.py).
FIND_AGAIN_S = 300.0
RECONNECT_S = 1.0
LAST_WORDS_S = 10.0


def join() -> int:
    """Leave a worker behind, unless this is the primary; the command's exit code."""
    environment = process_environment()
    hosts = load_hosts(environment)
    if hosts is None or hosts.is_primary:
        return 0
    try:
        work_dir = load_node_settings(environment).work_dir
        heartbeat_config = load_heartbeat_config(environment)
        _copy_code(environment, work_dir)
    except (SettingsError, OSError) as err:
        sys.stderr.write(f"this node cannot take part: {err}\n")
        return FAILED_EXIT_CODE
    if os.fork():
        return 0
    os.setsid()
    _detach_output(work_dir / LOG_FILE)
    redactor = Redactor()
    log_to_stdout(redactor)
    return supervise(
        lambda: _work(environment, hosts, redactor), stopped_s=heartbeat_config.silence_s
    )


def _copy_code(environment: Mapping[str, str], work_dir: Path) -> None:
    """Files for every node lie in the task's shared folder, not where the work is done."""
    shared = environment.get("AZ_BATCH_TASK_SHARED_DIR")
    if not shared:
        raise SettingsError("AZ_BATCH_TASK_SHARED_DIR is not set")
    shutil.copyfile(Path(shared) / CODE_ARCHIVE, work_dir / CODE_ARCHIVE)


def _detach_output(log: Path) -> None:
    """Batch may wait for whoever still holds the command's output."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)


def _work(environment: Mapping[str, str], hosts: Hosts, redactor: Redactor) -> int:
    """Attempt after attempt, until the primary wants no other one."""
    try:
        within_s = FIND_S
        while within_s:
            within_s = _run_attempt(environment, hosts, redactor, within_s)
    except TerminatedError:
        logger.info("terminated by Batch")
    except (SettingsError, StorageRequestError) as err:
        logger.error("%s", err)
        return FAILED_EXIT_CODE
    except Exception:
        logger.exception("the worker failed")
        return FAILED_EXIT_CODE
    return 0


def _run_attempt(
    environment: Mapping[str, str], hosts: Hosts, redactor: Redactor, within_s: float
) -> float:
    """One attempt, if the primary is found; how long to look for it again.

    Raises TerminatedError.
    """
    retry_budget = RetryBudget()
    termination = Termination(on_first=lambda: retry_budget.shorten(LAST_WORDS_S))
    termination.install()
    token = environment.get(NODES_TOKEN_VARIABLE, "")
    context = WorkerContext(
        load_node_settings(environment), hosts, load_access(environment, retry_budget, redactor),
        load_task_secrets(environment, redactor), retry_budget, termination, redactor,
    )  # fmt: skip
    redactor.add(token)
    link = find_primary(hosts.primary, token, within_s=within_s, check=termination.check)
    if link is None:
        logger.error("%s did not answer within %g s", hosts.primary, within_s)
        return 0.0
    try:
        return _serve(context, link, environment, within_s)
    finally:
        link.close()


def _serve(
    context: WorkerContext, link: AgentConnection, environment: Mapping[str, str], within_s: float
) -> float:
    primary = PrimaryConnection(link, context.termination, load_heartbeat_config(environment))
    primary.start()
    primary.send_state("hello", node=context.node.node, address=context.hosts.own)
    if (welcome := _welcome(primary)) is None:
        time.sleep(RECONNECT_S)
        return min(_next(primary, context.termination), max(within_s - RECONNECT_S, 0.0))
    _forward_notices(watch_evictions(environment, context.node), primary)
    worker = Worker(context, primary, int(welcome["rank"]), int(welcome["attempt"]))
    worker.run(script_environment(environment))
    primary.wait()
    return _next(primary, context.termination)


def _welcome(primary: PrimaryConnection) -> dict[str, Any] | None:
    """None from a primary that sends this node away, or is gone at once."""
    try:
        return primary.next_order("welcome")
    except TerminatedError:
        if not primary.is_over:
            raise
        return None


def _next(primary: PrimaryConnection, termination: Termination) -> float:
    """How long to look for the primary's next attempt."""
    if termination.is_from_batch:
        raise TerminatedError
    if not primary.again:
        return FIND_AGAIN_S if primary.is_gone else 0.0
    logger.info("the next attempt runs here too")
    return FIND_S


def _forward_notices(notices: EvictionWatch | None, primary: PrimaryConnection) -> None:
    """The primary has the checkpoints to commit before any of the nodes goes."""
    if notices is None:
        return

    def pass_on(notice: EvictionNotice) -> None:
        primary.send_state("notice", left_s=notice.left_s)

    notices.on_notice = pass_on
    if notices.notice is not None:
        pass_on(notices.notice)
