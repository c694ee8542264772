"""One attempt on a worker node: the same stages and the same script as on the primary.

The worker reports every failure to the primary, which writes the outcome of the run.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

from runner.node.agent.attempt import Attempt, devices_opener
from runner.node.agent.records import RunRecords
from runner.node.checkpoints.committer import SNAPSHOTS_FOLDER, AttemptCheckpoints
from runner.node.checkpoints.shards import ShardWriter
from runner.node.checkpoints.snapshot import TooManyFilesError, UnsettledError
from runner.node.checkpoints.store import CheckpointStore
from runner.node.cluster import ClusterSpec, HeartbeatConfig, Hosts, free_port, listen
from runner.node.context import TaskContext
from runner.node.distributed.connection import AgentConnection, Heartbeat, PrimaryOrder, WorkerEvent
from runner.node.distributed.gate import Ring, check_gpus, check_node, has_gpus
from runner.node.distributed.rank_outputs import CheckpointWatch
from runner.node.distributed.remote_launch import LaunchedCommands
from runner.node.failures import (
    EvictedError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.script.context import AttemptContext
from runner.node.script.hangs import HangWatch
from runner.node.script.outputs import AttemptOutputs, rank_folder, write_list
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog, Streams
from runner.node.script.workspace import AttemptDirs, make_dirs
from runner.node.storage.http import StorageRequestError
from runner.node.termination import Termination
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import (
    CheckpointRule,
    ResumeFrom,
    RunSpec,
    RunSpecError,
    parse_run_spec,
)

logger = logging.getLogger(__name__)

POLL_S = 0.1
FLUSH_S = 10.0
LOST_EXPORT_S = 60.0  # time limit for exporting outputs if another attempt may begin soon


class PrimaryConnection(threading.Thread):
    """Receives the orders of the primary; requests termination when it stops or is lost."""

    def __init__(
        self,
        connection: AgentConnection,
        termination: Termination,
        heartbeat_config: HeartbeatConfig | None = None,
    ) -> None:
        super().__init__(name="primary", daemon=True)
        self._connection = connection
        self._heartbeat_config = heartbeat_config or HeartbeatConfig()
        self._heartbeat = Heartbeat(
            connection, self._heartbeat_config, {"is": WorkerEvent.HEARTBEAT}
        )
        self._termination = termination
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ended = threading.Event()
        # Called with an order of this name when it arrives. `await_order` returns all others.
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.again = False  # the worker should join the next attempt
        self.keeps = True  # the worker exports outputs of an attempt that did not succeed
        self.folder = ""  # where it exports them; empty for the usual folder
        self.is_lost = False  # the connection ended without an order

    def run(self) -> None:
        """Thread body."""
        self._heartbeat.start()
        while (message := self._connection.receive()) is not None:
            if message.get("order") in (PrimaryOrder.STOP, PrimaryOrder.LEAVE):
                self.again, why = bool(message.get("again")), message.get("why")
                self.keeps = bool(message.get("keep", True))
                self.folder = str(message.get("folder") or "")
                logger.info("the primary ends the attempt%s", f": {why}" if why else "")
                break
            if (handler := self.handlers.get(str(message.get("order")))) is not None:
                handler(message)
            elif message.get("order") != PrimaryOrder.HEARTBEAT:
                self._orders.put(message)
        else:
            self.is_lost = True
            silence = f": no message for {self._heartbeat_config.timeout_s:g} s"
            logger.warning("the primary was lost%s", silence if self._connection.timed_out else "")
        self._heartbeat.stop()
        self._ended.set()
        self._termination.request()

    def send_event(self, event: str, **more: Any) -> None:
        """Send a message; `run` detects a lost connection."""
        self._connection.send(**{"is": event}, **more)

    @property
    def has_ended(self) -> bool:
        """True if the primary has ended the attempt or is lost."""
        return self._ended.is_set()

    def await_order(self, name: str) -> dict[str, Any]:
        """Return the next order of this name. Raise TerminatedError."""
        while True:
            self._termination.check()
            try:
                order = self._orders.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if order.get("order") == name:
                return order

    def wait(self) -> None:
        """Wait until the attempt has ended, or this node must end."""
        while not self._ended.wait(POLL_S) and not self._termination.requested:
            pass


class ProgressReport(threading.Thread):
    """Tells the primary whenever the script of this node progresses; nothing without a watch."""

    def __init__(self, watch: HangWatch | None, send_event: Callable[[str], None]) -> None:
        super().__init__(name="progress", daemon=True)
        self._watch = watch
        self._send_event = send_event
        self._stopped = threading.Event()

    def run(self) -> None:
        """Thread body."""
        watch = self._watch
        while watch is not None and not self._stopped.wait(watch.interval_s):
            if watch.idle_s() < watch.interval_s:
                self._send_event(WorkerEvent.PROGRESS)

    def stop(self) -> None:
        """Stop reporting."""
        self._stopped.set()


class Worker:
    """One attempt of a worker; `run` returns when it has ended."""

    def __init__(
        self,
        context: TaskContext,
        hosts: Hosts,
        primary: PrimaryConnection,
        rank: int,
        number: int,
    ) -> None:
        self._context = context
        self._hosts = hosts
        self._primary = primary
        self._rank = rank
        self._number = number
        self._paths = RunPaths(context.node.run_id, rank)
        self._streams: Streams | None = None
        self._unflushed: Streams | None = None  # until the logs of the script are written
        self._stage = "code"
        self._attempt: Attempt | None = None
        self._has_started = False
        self._is_exported = False

    def run(self, inherited: Mapping[str, str]) -> None:
        """Prepare, wait for the other nodes, run the script and report the result."""
        logger.info("rank %d of %s, attempt %d", self._rank, self._paths.run_id, self._number)
        try:
            attempt = self._run_stages(inherited)
            self._primary.send_event(WorkerEvent.ENDED)
            self._flush_script()
            self._export(attempt)
        except StageFailedError as err:
            self._fail(err)
        except (TerminatedError, EvictedError):
            if not self._primary.has_ended:  # Batch ends the task, or evicts the node
                self._primary.send_event(WorkerEvent.LEAVING)
        except Exception as err:  # noqa: BLE001 - the run must get an outcome
            self._fail(self._to_failure(err))
        finally:
            self._export_partial()
            self._flush()
            if self._attempt is not None:
                self._attempt.temp.remove()
            self._primary.send_event(WorkerEvent.FLUSHED)

    def _run_stages(self, inherited: Mapping[str, str]) -> Attempt:
        context = self._context
        spec = self._read_spec()
        RunRecords(context.runs, self._paths).write_node_start(context.node, self._number)
        dirs = make_dirs(context.node.work_dir)
        events = EventLog(LineQueue(), context.redactor, self._report_stage)
        self._streams = self._unflushed = Streams(
            context.runs, self._paths, self._number, dirs, events, context.redactor, patterns={}
        )
        parts = AttemptContext(
            context.runs, self._paths, spec, self._number, dirs, events, context.retry_budget,
            context.termination,
        )  # fmt: skip
        # Only restored: the primary commits the checkpoints.
        restored = replace(parts, spec=replace(spec, checkpoints=None, resume_from=None))
        checkpoints, outputs = AttemptCheckpoints(restored), AttemptOutputs(parts)
        report = self._report_idle if spec.idle_timeout_s else None
        open_devices = devices_opener(parts, context.node.work_dir, report=report)
        attempt = Attempt(context, parts, checkpoints, outputs, open_devices=open_devices)
        self._attempt = attempt
        secrets = context.secrets.resolve(context.retry_budget)
        prepared = attempt.set_up(secrets)
        launched = LaunchedCommands(attempt.launch_folder, self._report_launched)
        self._primary.handlers[PrimaryOrder.LAUNCH] = lambda order: launched.start_command(
            str(order["name"]), str(order["command"])
        )
        self._primary.handlers[PrimaryOrder.FINISH] = lambda _: launched.finish()
        with listen(self._hosts.own or "", 0) as listener:
            prepared |= self._wait_until_ready(attempt, listener, inherited)
            order = self._primary.await_order(PrimaryOrder.START)
            cluster_spec = ClusterSpec.from_json(order["cluster_spec"])
        self._has_started = True
        launched.start()
        progress = ProgressReport(attempt.hang_watch(), self._primary.send_event)
        progress.start()
        self._primary.handlers[PrimaryOrder.DUMP] = lambda order: self._dump(attempt, order)
        watch: AbstractContextManager[object] = nullcontext()
        if spec.checkpoints is not None and spec.checkpoints.sharded:
            self._write_shards(spec.checkpoints, dirs)
        else:
            watch = CheckpointWatch(dirs.checkpoints, lambda text: self._log(events, text))
        try:
            with watch:
                attempt.run(inherited, {**secrets, **prepared}, cluster_spec, rank=self._rank)
        finally:
            launched.stop()
            progress.stop()
        return attempt

    def _wait_until_ready(
        self, attempt: Attempt, listener: socket.socket, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """Restore the checkpoint that the primary restored, and let the primary check this node.

        Args:
            attempt: the prepared attempt.
            listener: the socket that the check of the network connects to.
            inherited: the environment of the agent.

        Returns:
            The variables that the restore adds for the script.
        """
        gpus = check_gpus if has_gpus(attempt.spec) else None
        self._primary.handlers[PrimaryOrder.CHECK] = lambda order: threading.Thread(
            target=self._check,
            args=(Ring.from_json(order, rank=self._rank), listener, gpus),
            daemon=True,
        ).start()
        self._primary.send_event(
            WorkerEvent.PREPARED,
            port=free_port(self._hosts.own),
            processes=attempt.count_processes(inherited),
            check_port=int(listener.getsockname()[1]),
        )
        where = self._primary.await_order(PrimaryOrder.RESTORE)["where"]
        found: dict[str, str] = {}
        if where is not None:
            found = attempt.checkpoints.restore_same(ResumeFrom(str(where[0]), int(where[1])))
        self._primary.send_event(WorkerEvent.READY)
        return found

    def _check(self, ring: Ring, listener: socket.socket, gpus: Callable[[], str] | None) -> None:
        found = check_node(ring, listener, gpus=gpus)
        self._primary.send_event(WorkerEvent.CHECKED, **asdict(found))

    def _write_shards(self, rule: CheckpointRule, dirs: AttemptDirs) -> None:
        """Upload the checkpoint folder whenever the primary asks for it."""
        store = CheckpointStore(self._context.runs, self._paths, self._number, rule.keep)
        writer = ShardWriter(dirs.checkpoints, dirs.checkpoints.with_name(SNAPSHOTS_FOLDER), store)
        asked: queue.SimpleQueue[int] = queue.SimpleQueue()

        def serve() -> None:
            while True:
                number = asked.get()
                try:
                    found = asdict(writer.write(number))
                except (UnsettledError, TooManyFilesError, StorageRequestError, OSError) as err:
                    found = {"problem": str(err) or "its checkpoint folder has too many files"}
                self._primary.send_event(WorkerEvent.SHARD, number=number, **found)

        threading.Thread(target=serve, name="shards", daemon=True).start()
        self._primary.handlers[PrimaryOrder.SNAPSHOT] = lambda order: asked.put(
            int(order["number"])
        )

    def _dump(self, attempt: Attempt, order: dict[str, Any]) -> None:
        attempt.dump_stacks(str(order["text"]))
        self._primary.send_event(WorkerEvent.DUMPED)

    def _report_launched(self, name: str, code: int) -> None:
        self._primary.send_event(WorkerEvent.LAUNCHED, name=name, code=code)

    def _report_idle(self, idle_s: float) -> None:
        self._primary.send_event(WorkerEvent.IDLE, idle_s=round(idle_s, 3))

    def _export(self, attempt: Attempt) -> None:
        """Export the outputs when the primary orders it. Raise TerminatedError."""
        order = self._primary.await_order(PrimaryOrder.EXPORT)
        with attempt.events.stage("export", "exporting the outputs") as report:
            outputs = attempt.outputs.export(str(order["prefix"]), report)
            name = self._paths.attempt_outputs(self._number)
            write_list(self._context.runs, name, outputs)
        self._is_exported = True
        self._primary.send_event(WorkerEvent.EXPORTED)

    def _export_partial(self) -> None:
        """Export the files of the script, unless they are exported or the run succeeded."""
        if self._attempt is None or self._is_exported or not self._has_started:
            return
        self._flush_script()
        self._primary.wait()  # the order that ends the attempt names the folder
        if not self._primary.keeps:
            return  # the run succeeded without these files
        began, is_short = time.monotonic(), self._primary.is_lost or self._primary.again

        def left_s() -> float | None:
            lost_s = LOST_EXPORT_S - (time.monotonic() - began) if is_short else None
            times = (self._context.retry_budget.left_s, lost_s)
            return min((seconds for seconds in times if seconds is not None), default=None)

        folder = self._primary.folder or rank_folder(self._rank)
        try:
            self._attempt.outputs.export_partial(left_s, last=False, folder=folder)
        except Exception as err:  # noqa: BLE001 - the attempt ends as it did
            logger.warning("the outputs of this node are lost: %s", err)

    def _log(self, events: EventLog, text: str) -> None:
        """Write an event of this node, and let the primary write it for the run."""
        events.add("notice", "progress", text)
        self._primary.send_event(WorkerEvent.LOG, text=text)

    def _read_spec(self) -> RunSpec:
        body = self._context.runs.get(self._paths.run)
        try:
            return parse_run_spec(body or b"")
        except RunSpecError as err:
            raise StageFailedError("code", "RunSpecInvalid", str(err)) from err

    def _report_stage(self, stage: str, text: str) -> None:
        self._stage = stage
        self._primary.send_event(WorkerEvent.STAGE, text=text or stage)

    def _fail(self, err: StageFailedError) -> None:
        message = self._context.redactor.text(err.message)
        logger.error("failed in %s: %s: %s", err.step, err.code, message)
        self._primary.send_event(
            WorkerEvent.FAILED,
            step=err.step,
            code=err.code,
            message=message,
            exit_code=err.exit_code,
            error=[self._context.redactor.text(each) for each in err.error],
            has_read_checkpoint=err.has_read_checkpoint,
        )

    def _to_failure(self, err: Exception) -> StageFailedError:
        if isinstance(err, OSError) and is_disk_full(err):
            return disk_full(self._stage, err)
        if isinstance(err, StorageRequestError):
            return StageFailedError(self._stage, "StorageFailed", str(err))
        logger.error("the worker failed", exc_info=err)
        return StageFailedError(self._stage, "AgentFailed", f"{type(err).__name__}: {err}")

    def _flush_script(self) -> None:
        streams, self._unflushed = self._unflushed, None
        if streams is not None:
            _try_finish(streams.finish_script, self._flush_s)
        if self._attempt is not None and self._attempt.devices is not None:
            _try_finish(self._attempt.devices.finish, self._flush_s)

    def _flush(self) -> None:
        self._flush_script()
        if self._streams is not None:
            _try_finish(self._streams.finish_events, self._flush_s)

    @property
    def _flush_s(self) -> float | None:
        """The time limit for writing logs, None before the primary ends the attempt.

        Afterwards the primary and the next attempt wait only for a limited time.
        """
        return FLUSH_S if self._primary.has_ended else None


def _try_finish(finish: Callable[[float | None], None], timeout_s: float | None) -> None:
    try:
        finish(timeout_s)
    except (StorageRequestError, OSError, ValueError) as err:
        logger.warning("logs are incomplete: %s", err)
