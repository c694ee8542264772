"""The coordination command of a run over several nodes: `python3 runner-agent.pyz join`.

It starts a supervised worker on every node except the primary, and returns, because Batch starts
the command of the primary when all coordination commands have ended. Batch runs the coordination
command only once, so a supervisor replaces a worker that was killed or stopped. Without it, a run
that resumes from its checkpoint would wait for a node that Batch considers healthy.
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

from runner.node.agent.worker import PrimaryConnection, Worker
from runner.node.cluster import Hosts, load_heartbeat_config, load_hosts
from runner.node.context import FAILED_EXIT_CODE, TaskContext
from runner.node.distributed.connection import AgentConnection, PrimaryOrder, WorkerEvent
from runner.node.distributed.node_group import NodeGroupTimeouts
from runner.node.distributed.rendezvous import find_primary
from runner.node.failures import TerminatedError
from runner.node.script.command import dies_with_parent, kill_children, reparent_orphans
from runner.node.script.redaction import Redactor, log_to_stdout
from runner.node.settings import (
    SettingsError,
    load_access,
    load_node_settings,
    load_task_secrets,
    process_variables,
    script_variables,
)
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import RetryBudget
from runner.node.termination import Termination, watch_evictions
from runner.protocol.task import CODE_ARCHIVE, NODES_TOKEN_VARIABLE, WORKER_LOG

logger = logging.getLogger(__name__)

MAX_WORKERS = 5  # after so many killed workers, the supervisor reports the failure
POLL_S = 0.2
KILLED_EXIT_CODE = 137


def supervise(work: Callable[[], int], stopped_s: float) -> int:
    """Run `work` in a child process, and again if the child is killed. Return its exit code.

    Args:
        work: returns the exit code of the child.
        stopped_s: how long the child may be stopped (SIGSTOP) before it is killed.
    """
    supervisor = _Supervisor(stopped_s)
    with reparent_orphans():
        for _ in range(MAX_WORKERS):
            code = supervisor.run(work)
            if code is not None:
                return code
            # The script died with the worker, but its child processes may still use the GPUs.
            kill_children(keep=frozenset())
            logger.warning("the worker was killed; starting another one")
    logger.error("%d workers were killed; giving up", MAX_WORKERS)
    return KILLED_EXIT_CODE


class _Supervisor:
    def __init__(self, stopped_s: float) -> None:
        self._stopped_s = stopped_s
        self._child = 0
        self._stop_requested = False  # Batch wants the task to end
        self._stopped_since: float | None = None  # when the worker was stopped (SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def run(self, work: Callable[[], int]) -> int | None:
        """Run one worker. Return its exit code, or None if it was killed, and not by Batch."""
        bind = dies_with_parent()
        self._stopped_since = None
        self._child = os.fork()
        if not self._child:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            bind()
            os._exit(work())
        if self._stop_requested:  # between two workers
            self._send(signal.SIGTERM)
        status = self._wait()
        self._child = 0
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        return KILLED_EXIT_CODE if self._stop_requested else None

    def _wait(self) -> int:
        """Wait for the worker and return its status."""
        while True:
            flags = os.WUNTRACED | os.WCONTINUED | (os.WNOHANG if self._stopped_since else 0)
            pid, status = os.waitpid(self._child, flags)
            if not pid:
                self._kill_if_stopped()
                time.sleep(POLL_S)
            elif os.WIFSTOPPED(status):
                self._stopped_since = time.monotonic()
            elif os.WIFCONTINUED(status):
                self._stopped_since = None
            else:
                return status

    def _kill_if_stopped(self) -> None:
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


FIND_S = 900.0  # the primary may still be downloading its resource files
# A primary that was frozen or cut off waits as long for this node (see rendezvous.py).
FIND_AGAIN_S = 300.0
RECONNECT_S = 1.0
FINAL_FLUSH_S = 10.0
PARTIAL_S = NodeGroupTimeouts().partial_s


def join() -> int:
    """Start a worker in the background, unless this is the primary. Return the exit code."""
    environment = process_variables()
    hosts = load_hosts(environment)
    if hosts is None or hosts.is_primary:
        return 0
    try:
        work_dir = load_node_settings(environment).work_dir
        heartbeat_config = load_heartbeat_config(environment)
        _copy_code(environment, work_dir)
    except (SettingsError, OSError) as err:
        sys.stderr.write(f"this node cannot join the run: {err}\n")
        return FAILED_EXIT_CODE
    if os.fork():
        return 0
    os.setsid()
    _detach_output(work_dir / WORKER_LOG)
    redactor = Redactor()
    log_to_stdout(redactor)
    return supervise(
        lambda: _work(environment, hosts, redactor), stopped_s=heartbeat_config.timeout_s
    )


def _copy_code(environment: Mapping[str, str], work_dir: Path) -> None:
    """Copy the code from the task's shared folder, where Batch puts common resource files."""
    shared = environment.get("AZ_BATCH_TASK_SHARED_DIR")
    if not shared:
        raise SettingsError("AZ_BATCH_TASK_SHARED_DIR is not set")
    shutil.copyfile(Path(shared) / CODE_ARCHIVE, work_dir / CODE_ARCHIVE)


def _detach_output(log: Path) -> None:
    """Redirect the output to `log`: Batch may wait until the command's output is closed."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)


def _work(environment: Mapping[str, str], hosts: Hosts, redactor: Redactor) -> int:
    """Run attempts until the primary needs no further one. Return the exit code."""
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
    """Run one attempt if the primary is found.

    Returns:
        How many seconds to search for the primary's next attempt; 0 to end the worker.

    Raises:
        TerminatedError: Batch ends the task.
    """
    retry_budget = RetryBudget()
    # A primary that ends the attempt waits PARTIAL_S for the outputs of a failed script.
    termination = Termination(
        on_first=lambda: retry_budget.shorten(
            FINAL_FLUSH_S if termination.is_from_batch else PARTIAL_S
        )
    )
    termination.install()
    token = environment.get(NODES_TOKEN_VARIABLE, "")
    access = load_access(environment, retry_budget, redactor)
    context = TaskContext(
        load_node_settings(environment), access.runs, access,
        load_task_secrets(environment, redactor), retry_budget, termination, redactor, hosts=hosts,
    )  # fmt: skip
    redactor.add(token)
    connection = find_primary(hosts.primary, token, within_s=within_s, check=termination.check)
    if connection is None:
        logger.error("%s did not answer within %g s", hosts.primary, within_s)
        return 0.0
    try:
        return _run_worker(context, hosts, connection, environment, within_s)
    finally:
        connection.close()


def _run_worker(
    context: TaskContext,
    hosts: Hosts,
    connection: AgentConnection,
    environment: Mapping[str, str],
    within_s: float,
) -> float:
    primary = PrimaryConnection(connection, context.termination, load_heartbeat_config(environment))
    primary.start()
    primary.send_event(WorkerEvent.HELLO, node=context.node.node, address=hosts.own)
    if (welcome := _await_welcome(primary)) is None:
        time.sleep(RECONNECT_S)
        return min(_search_s(primary, context.termination), max(within_s - RECONNECT_S, 0.0))
    node = context.node
    notices = watch_evictions(environment, node.node, dedicated=node.dedicated)
    if notices is not None:  # the primary commits the checkpoints
        notices.notify(
            lambda notice: primary.send_event(WorkerEvent.EVICTION, left_s=notice.left_s)
        )
    worker = Worker(context, hosts, primary, int(welcome["rank"]), int(welcome["attempt"]))
    worker.run(script_variables(environment))
    primary.wait()
    return _search_s(primary, context.termination)


def _await_welcome(primary: PrimaryConnection) -> dict[str, Any] | None:
    """Return the welcome message, or None if the primary rejects this node or is lost."""
    try:
        return primary.await_order(PrimaryOrder.WELCOME)
    except TerminatedError:
        if not primary.has_ended:
            raise
        return None


def _search_s(primary: PrimaryConnection, termination: Termination) -> float:
    """Return how many seconds to search for the primary's next attempt."""
    if termination.is_from_batch:
        raise TerminatedError
    if not primary.again:
        return FIND_AGAIN_S if primary.is_lost else 0.0
    logger.info("waiting for the next attempt")
    return FIND_S
