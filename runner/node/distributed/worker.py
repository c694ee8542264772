"""One attempt on a node that is not the primary: the same stages, and the same script.

Every failure is reported to the primary, which writes the outcome of the run.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from runner.node.agent.attempt import Attempt
from runner.node.agent.attempt_checkpoints import AttemptCheckpoints
from runner.node.agent.context import WorkerContext
from runner.node.agent.records import write_node_start
from runner.node.agent.termination import Termination
from runner.node.distributed.cluster import (
    HeartbeatConfig,
    free_port,
    node_environment,
    parse_cluster_spec,
)
from runner.node.distributed.connection import AgentConnection, Heartbeat
from runner.node.distributed.rank_outputs import CheckpointWatch, describe_unsaved, write_list
from runner.node.failures import (
    EvictedError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.script.outputs import export_outputs
from runner.node.script.streams import EventLog, Streams
from runner.node.script.workspace import AttemptDirs, make_dirs
from runner.node.storage.http import StorageRequestError
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import ResumeFrom, RunSpec, RunSpecError, parse_run_spec

logger = logging.getLogger(__name__)

POLL_S = 0.1


class PrimaryConnection(threading.Thread):
    """Listens until the primary says stop, or says nothing any more: then `termination` begins."""

    def __init__(
        self,
        link: AgentConnection,
        termination: Termination,
        heartbeat_config: HeartbeatConfig | None = None,
    ) -> None:
        super().__init__(name="primary", daemon=True)
        self._link = link
        self._heartbeat_config = heartbeat_config or HeartbeatConfig()
        self._heartbeat = Heartbeat(link, self._heartbeat_config, {"is": "here"})
        self._termination = termination
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self.again = False
        self.is_gone = False  # without having sent this node home

    def run(self) -> None:
        """Thread body."""
        self._heartbeat.start()
        while (message := self._link.receive()) is not None:
            if message.get("order") in ("stop", "leave"):
                self.again = bool(message.get("again"))
                logger.info("the primary says %s", message.get("why") or "that it is over")
                break
            if message.get("order") != "here":
                self._orders.put(message)
        else:
            self.is_gone = True
            silence = f": no word from it for {self._heartbeat_config.silence_s:g} s"
            logger.warning("the primary is gone%s", silence if self._link.is_silent else "")
        self._heartbeat.stop()
        self._over.set()
        self._termination.request()

    def send_state(self, what: str, **more: Any) -> None:
        """What cannot be told any more is found out by `run`."""
        self._link.send(**{"is": what}, **more)

    @property
    def is_over(self) -> bool:
        """Whether it has sent this node home, or is gone."""
        return self._over.is_set()

    def next_order(self, name: str) -> dict[str, Any]:
        """Wait for it. Raises TerminatedError."""
        while True:
            self._termination.check()
            try:
                order = self._orders.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if order.get("order") == name:
                return order

    def wait(self) -> None:
        """Until it is over, or this node is to end."""
        while not self._over.wait(POLL_S) and not self._termination.requested:
            pass


class Worker:
    """`run` ends when the script has, or when it is not to run any more."""

    def __init__(
        self, context: WorkerContext, primary: PrimaryConnection, rank: int, number: int
    ) -> None:
        self._context = context
        self._primary = primary
        self._rank = rank
        self._number = number
        self._blobs = RunPaths(context.node.run_id, rank)
        self._streams: Streams | None = None
        self._script: Streams | None = None  # until its logs are all written
        self._stage = "code"

    def run(self, inherited: Mapping[str, str]) -> None:
        """Prepare, wait for the others, run the script, and tell the primary."""
        logger.info("rank %d of %s, attempt %d", self._rank, self._blobs.run_id, self._number)
        try:
            dirs, events = self._stages(inherited)
            self._primary.send_state("ended")
            self._flush_script()
            self._export(dirs, events)
        except StageFailedError as err:
            self._fail(err)
        except (TerminatedError, EvictedError):
            if not self._primary.is_over:  # Batch wants it: the node goes, or the task ends
                self._primary.send_state("leaving")
        except Exception as err:  # noqa: BLE001 - whatever it is, the run must get an outcome
            self._fail(self._unexpected(err))
        finally:
            self._flush()
            self._primary.send_state("flushed")

    def _stages(self, inherited: Mapping[str, str]) -> tuple[AttemptDirs, EventLog]:
        context = self._context
        spec = self._read_spec()
        write_node_start(context.access.runs, self._blobs, context.node, self._number)
        dirs = make_dirs(context.node.work_dir)
        self._streams = Streams(
            context.access.runs, self._blobs, self._number, dirs, {}, context.redactor
        )
        self._script = self._streams
        events = EventLog(self._streams.events, context.redactor, self._report_stage)
        checkpoints = self._checkpoints(spec, dirs, events)
        attempt = self._attempt(spec, dirs, events, checkpoints)
        secrets = context.secrets.resolve(context.retry_budget)
        prepared = attempt.prepare(context.access)
        self._primary.send_state("prepared", port=free_port(context.hosts.own))
        where = self._primary.next_order("restore")["where"]
        if where is not None:
            prepared |= checkpoints.follow(ResumeFrom(str(where[0]), int(where[1])))
        self._primary.send_state("ready")
        cluster_spec = parse_cluster_spec(self._primary.next_order("go")["company"])
        others = node_environment(cluster_spec, self._rank)
        with CheckpointWatch(dirs.checkpoints, lambda text: self._aside(events, text)):
            attempt.run(inherited, {**secrets, **prepared, **others})
        return dirs, events

    def _export(self, dirs: AttemptDirs, events: EventLog) -> None:
        """Where the primary says, once its own script has succeeded. Raises TerminatedError."""
        runs = self._context.access.runs
        try:
            order = self._primary.next_order("export")
        except TerminatedError:
            why = "the run has not succeeded, or had ended before this node"
            if text := describe_unsaved(dirs.output, "RUNNER_OUTPUT_DIR", why):
                events.aside("notice", "progress", text)
            raise
        with events.stage("export", "exporting the outputs") as report:
            check = self._context.termination.check
            outputs = export_outputs(runs, str(order["prefix"]), dirs.output, report, check)
            write_list(runs, self._blobs.attempt_outputs(self._number), outputs)
        self._primary.send_state("exported")

    def _aside(self, events: EventLog, text: str) -> None:
        """What the run's reader shall see, too."""
        events.aside("notice", "progress", text)
        self._primary.send_state("aside", text=text)

    def _read_spec(self) -> RunSpec:
        body = self._context.access.runs.get(self._blobs.run)
        try:
            spec = parse_run_spec(body or b"")
        except RunSpecError as err:
            raise StageFailedError("code", "RunSpecInvalid", str(err)) from err
        return replace(spec, timeout_s=None)  # the primary looks at the clock

    def _attempt(
        self, spec: RunSpec, dirs: AttemptDirs, events: EventLog, checkpoints: AttemptCheckpoints
    ) -> Attempt:
        return Attempt(
            self._context.node,
            spec,
            self._number,
            dirs,
            events=events,
            retry_budget=self._context.retry_budget,
            termination=self._context.termination,
            checkpoints=checkpoints,
        )

    def _checkpoints(
        self, spec: RunSpec, dirs: AttemptDirs, events: EventLog
    ) -> AttemptCheckpoints:
        """Commits nothing: that is the primary's."""
        return AttemptCheckpoints(
            self._context.access.runs,
            self._blobs,
            replace(spec, checkpoints=None, resume_from=None),
            self._number,
            folder=dirs.checkpoints,
            events=events,
            retry_budget=self._context.retry_budget,
            termination=self._context.termination,
            step=lambda: None,
        )

    def _report_stage(self, stage: str, text: str) -> None:
        self._stage = stage
        self._primary.send_state("stage", text=text or stage)

    def _fail(self, err: StageFailedError) -> None:
        message = self._context.redactor.text(err.message)
        logger.error("failed in %s: %s: %s", err.step, err.code, message)
        self._primary.send_state(
            "failed", step=err.step, code=err.code, message=message, exit_code=err.exit_code
        )

    def _unexpected(self, err: Exception) -> StageFailedError:
        if isinstance(err, OSError) and is_disk_full(err):
            return disk_full(self._stage, err)
        if isinstance(err, StorageRequestError):
            return StageFailedError(self._stage, "StorageFailed", str(err))
        logger.error("the worker failed", exc_info=err)
        return StageFailedError(self._stage, "AgentFailed", f"{type(err).__name__}: {err}")

    def _flush_script(self) -> None:
        streams, self._script = self._script, None
        if streams is not None:
            _try_finish(streams.finish_script)

    def _flush(self) -> None:
        self._flush_script()
        if self._streams is not None:
            _try_finish(self._streams.finish_events)


def _try_finish(finish: Callable[[], None]) -> None:
    try:
        finish()
    except (StorageRequestError, OSError, ValueError) as err:
        logger.warning("not everything was written: %s", err)
