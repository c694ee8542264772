"""The node group on the primary: the state of every worker of an attempt.

An attempt calls `open`, prepares the primary while the workers prepare themselves, then `assemble`
to start all scripts at once, `check_results` when its own script has ended, `gather` to export the
outputs of the workers, and `close`. `connection.WorkerEvent` has the states of a worker.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runner.node.checkpoints.restore import RestoredCheckpoint
from runner.node.checkpoints.shards import ShardReport
from runner.node.checkpoints.snapshot import UnsettledError
from runner.node.cluster import ClusterSpec, HeartbeatConfig, Hosts, free_port, listen
from runner.node.context import TaskContext
from runner.node.distributed.connection import AgentConnection, Heartbeat, PrimaryOrder, WorkerEvent
from runner.node.distributed.gate import (
    GATE_S,
    GPU_S,
    GateReport,
    Ring,
    check_gpus,
    check_node,
    find_bad_rank,
    has_gpus,
)
from runner.node.distributed.rendezvous import RendezvousServer
from runner.node.failures import COMMAND_STAGE, NodeLostError, StageFailedError, TerminatedError
from runner.node.script.command import ScriptResult
from runner.node.script.outputs import rank_folder
from runner.node.script.streams import EventLog, Report, throttle_repeats
from runner.node.termination import NodeEviction
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True)
class NodeGroupTimeouts:
    """How long the primary waits, in seconds."""

    join_s: float = 600.0  # for workers to connect, after the primary is prepared
    prepare_s: float = 4 * 3600.0  # for all nodes to be ready, since `open`
    lag_s: float = 3600.0  # for the workers to be ready, after the primary is prepared
    gate_s: float = GATE_S  # for the check of the nodes
    shard_s: float = 600.0  # for the shards of a checkpoint
    cause_s: float = 3.0  # for the cause of a failure on another node
    finish_s: float = 60.0  # for the scripts of the workers, after the primary's succeeded
    dump_s: float = 10.0  # for the stacks of the workers
    flush_s: float = 15.0  # for the logs of the workers
    partial_s: float = 600.0  # for the logs and outputs of the workers of a run that failed
    hurried_flush_s: float = 1.0  # for both when Batch ends the task


@dataclass
class WorkerNode:
    """The state of one worker, as the primary knows it."""

    rank: int
    address: str
    node: str = ""
    connection: AgentConnection | None = None
    port: int | None = None  # set once it is prepared
    processes: int = 1
    check_port: int = 0  # where its agent listens for the check of the nodes; 0 means no check
    report: GateReport | None = None
    progressed_at: float = field(default_factory=time.monotonic)
    idle_s: float = 0.0  # at `idle_at`
    idle_at: float | None = None
    dumped: bool = False
    shard: dict[str, Any] = field(default_factory=dict[str, Any])  # the last message SHARD
    ready: bool = False
    failure: StageFailedError | None = None
    ended_at: float | None = None
    exported: bool = False
    flushed: bool = False
    stage: str = ""
    lost: str = ""  # why it was lost, empty if it was not
    is_gone: bool = False  # the connection ended, for example because the attempt has ended

    @property
    def name(self) -> str:
        """The worker's name in messages."""
        return f"rank {self.rank} on node {self.node or self.address}"

    @property
    def name_and_stage(self) -> str:
        """The worker's name and present stage."""
        return f"{self.name} ({self.stage})" if self.stage else self.name

    def to_lost_error(self, step: str) -> NodeLostError:
        """Return the error that ends the attempt because this worker was lost."""
        text = f"{self.name} was lost: {self.lost}"
        return NodeLostError(step, "NodeLost", text, rank=self.rank)

    def to_failure(self, message: dict[str, Any]) -> StageFailedError:
        """Return the failure that the worker reported in a message FAILED."""
        code = message.get("exit_code")
        name, line = message.get("error") or ("", "")
        return StageFailedError(
            str(message["step"]),
            str(message["code"]),
            f"{self.name}: {message['message']}",
            None if code is None else int(code),
            rank=self.rank,
            error=(str(name), str(line)),
            has_read_checkpoint=bool(message.get("has_read_checkpoint")),
        )


NODES_STAGE = "nodes"
IDLE_REPORT_S = 180.0  # twice the longest time between two measurements, and a minute
POLL_S = 0.1


@dataclass
class NodeGroup:
    """The workers of one attempt.

    `check` raises if the task must end. `on_notice` receives eviction notices of the workers.
    """

    hosts: Hosts
    token: str
    attempt: int
    events: EventLog
    check: Callable[[], None]
    on_notice: Callable[[NodeEviction], None] = lambda _: None
    has_gpus: bool = False
    timeouts: NodeGroupTimeouts = field(default_factory=NodeGroupTimeouts)
    heartbeat_config: HeartbeatConfig = field(default_factory=HeartbeatConfig)
    workers: dict[int, WorkerNode] = field(default_factory=dict[int, WorkerNode])

    def __post_init__(self) -> None:
        others = list(enumerate(self.hosts.addresses))[1:]
        self.workers = {rank: WorkerNode(rank, address) for rank, address in others}
        self._changed = threading.Condition()
        self._closed = False
        self._started = False
        self._opened = time.monotonic()
        self._server: RendezvousServer | None = None
        self._on_launch_end: Callable[[str, int], None] | None = None

    def open(self) -> None:
        """Accept workers from now on. Raise StageFailedError."""
        try:
            known = self.hosts.addresses[1:]
            self._server = RendezvousServer(
                self.hosts.primary, self.token, self._serve_worker, known
            )
        except OSError as err:
            raise StageFailedError(NODES_STAGE, "NodesMissing", f"cannot listen: {err}") from err
        self._server.start()

    def find_stalled(self) -> tuple[float, str]:
        """Return the seconds since any worker progressed, and the name of the first that stopped.

        Without running workers, return infinity and an empty name.
        """
        running = self._running()
        if not running:
            return float("inf"), ""
        first = min(running, key=lambda worker: worker.progressed_at)
        last = max(worker.progressed_at for worker in running)
        return time.monotonic() - last, first.name

    def find_idle_s(self) -> float:
        """Return for how many seconds all running workers have been idle; infinity without any.

        A worker that has not reported for a while counts as busy.
        """
        oldest = time.monotonic() - IDLE_REPORT_S
        return min(
            (
                worker.idle_s if worker.idle_at is not None and worker.idle_at > oldest else 0.0
                for worker in self._running()
            ),
            default=float("inf"),
        )

    def dump_stacks(self, text: str) -> None:
        """Let all workers write the stacks of their scripts to their logs, and wait for it."""
        running = [worker for worker in self._running() if worker.connection is not None]
        self._send_to_all(order=PrimaryOrder.DUMP, text=text)
        until = time.monotonic() + self.timeouts.dump_s
        with self._changed:
            while not all(w.dumped or w.lost for w in running) and time.monotonic() < until:
                self._changed.wait(POLL_S)

    def collect_shards(self, number: int) -> dict[int, ShardReport]:
        """Let all workers upload their checkpoint folders. Raise UnsettledError."""
        self._send_to_all(order=PrimaryOrder.SNAPSHOT, number=number)
        until = time.monotonic() + self.timeouts.shard_s
        workers = list(self.workers.values())
        with self._changed:
            while not all(worker.shard.get("number") == number for worker in workers):
                late = [w.name for w in workers if w.shard.get("number") != number]
                if time.monotonic() > until or self._closed or any(w.lost for w in workers):
                    raise UnsettledError(f"no shard from {', '.join(late)}")
                self._changed.wait(POLL_S)
            messages = {worker.rank: worker.shard for worker in workers}
        for rank, message in messages.items():
            if problem := message.get("problem"):
                raise UnsettledError(f"rank {rank}: {problem}")
        return {r: ShardReport(str(m["blob"]), str(m["generation"])) for r, m in messages.items()}

    def report_launched(self, on_end: Callable[[str, int], None]) -> None:
        """Call `on_end` with the name and the exit code of each command that `launch` started."""
        self._on_launch_end = on_end

    def launch(self, address: str, name: str, command: str) -> bool:
        """Start a command of mpirun on another node. Return False if that node is not connected."""
        worker = next((w for w in self.workers.values() if w.address == address), None)
        if worker is None or worker.lost or worker.connection is None:
            return False
        return worker.connection.send(order=PrimaryOrder.LAUNCH, name=name, command=command)

    def assemble(self, restored: RestoredCheckpoint | None, processes: int = 1) -> ClusterSpec:
        """Wait until every node can start from the same checkpoint, and start the workers.

        Args:
            restored: the checkpoint that the primary restored, or None.
            processes: the number of processes that the launcher starts on the primary.

        Returns:
            The nodes, with ports that are free now.

        Raises:
            StageFailedError: a worker failed, did not connect, or was not ready in time.
            NodeLostError: a worker was lost.
        """
        count, began = len(self.workers), time.monotonic()
        with self.events.stage(
            NODES_STAGE, f"waiting for {count} other node{'s'[: count > 1]}"
        ) as report:
            self._await(lambda worker: worker.port is not None, report, "prepared", began)
            where = None if restored is None else (restored.run_id, restored.checkpoint.number)
            self._send_to_all(order=PrimaryOrder.RESTORE, where=where)
            self._await(lambda worker: worker.ready, report, "ready", began)
            self._check_nodes(report)
            cluster_spec = self._cluster_spec(processes)
            self._send_to_all(order=PrimaryOrder.START, cluster_spec=cluster_spec.to_json())
            self._started = True
            self.events.summarise(f"{count + 1} nodes: {', '.join(cluster_spec.addresses)}")
        return cluster_spec

    def _check_nodes(self, report: Report) -> None:
        """Check the GPUs of all nodes and the network between them.

        Raises:
            StageFailedError: a node is unhealthy, or a worker failed or was lost.
        """
        workers = list(self.workers.values())
        if not all(worker.check_port for worker in workers):
            return
        report("checking the nodes")
        with listen(self.hosts.primary, 0) as listener:
            ports = [int(listener.getsockname()[1]), *(worker.check_port for worker in workers)]
            ring = Ring(0, self.hosts.addresses, ports, secrets.token_hex(16))
            self._send_to_all(order=PrimaryOrder.CHECK, **ring.to_json())
            own = check_node(
                ring, listener, self.timeouts.gate_s, check_gpus if self.has_gpus else None
            )
        self._wait(
            lambda: all(w.report or w.lost for w in workers),
            self.timeouts.gate_s + (GPU_S if own.problem else 0.0),
        )
        self.check_preparing()
        found = find_bad_rank({0: own, **{worker.rank: worker.report for worker in workers}})
        if found is not None:
            rank, why = found
            name = self.workers[rank].name if rank else "rank 0"
            text = f"{name} is unhealthy: {why}"
            raise StageFailedError(NODES_STAGE, "NodeUnhealthy", text, rank=rank)

    def check_preparing(self) -> None:
        """Check the workers before the scripts start. Does nothing afterwards.

        Raises:
            StageFailedError: a worker failed, or the nodes were not ready in time.
            NodeLostError: a worker was lost.
        """
        if self._server is None or self._started or self._closed:
            return
        for worker in self.workers.values():
            if worker.failure is not None:
                raise worker.failure
            if worker.lost:
                raise worker.to_lost_error(NODES_STAGE)
        if time.monotonic() - self._opened > self.timeouts.prepare_s:
            text = f"not all nodes were prepared within {self.timeouts.prepare_s:g} s"
            raise StageFailedError(NODES_STAGE, "NodesLate", text)

    @property
    def failed(self) -> bool:
        """True if a worker failed or was lost. Then the script of the primary has to end."""
        return any(worker.lost or worker.failure for worker in self.workers.values())

    def check_results(self, ended: ScriptResult) -> None:
        """Compare the result of the primary's script with the results of the workers.

        Args:
            ended: the result of the primary's script.

        Raises:
            NodeLostError: a worker was lost before the script succeeded.
            StageFailedError: the script of a worker failed first.
        """
        if ended.timed_out:
            return
        if ended.exit_code == 0 and not ended.stopped:
            self._finish()
        elif not ended.stopped or self.failed:
            # The loss of a node may end the primary's script before the primary detects the loss.
            self._wait(lambda: self._lost() is not None, self.timeouts.cause_s)
        if (lost := self._lost()) is not None and (ended.exit_code or ended.stopped):
            raise lost.to_lost_error(COMMAND_STAGE)
        first = self._first_failed()
        if first is None or first.failure is None or first.ended_at is None:
            return
        if ended.stopped or not ended.exit_code or first.ended_at < ended.at:
            raise first.failure

    def gather(self, order: Callable[[int], dict[str, Any]], report: Report) -> list[int]:
        """Order the workers to export their outputs, and wait for them.

        Args:
            order: returns the further fields of the order for a rank.
            report: receives progress.

        Returns:
            The ranks that exported their outputs; not those that were lost or stopped.

        Raises:
            StageFailedError: a worker could not export.
        """
        report = throttle_repeats(report)
        exporting = [w for w in self.workers.values() if w.ended_at is not None and not w.lost]
        for worker in exporting:
            if worker.connection is not None:
                worker.connection.send(order=PrimaryOrder.EXPORT, **order(worker.rank))
        with self._changed:
            while waiting := [w for w in exporting if not (w.exported or w.failure or w.lost)]:
                self.check()
                names = ", ".join(worker.name_and_stage for worker in waiting)
                report(
                    f"outputs of other nodes: {names}",
                    len(exporting) - len(waiting),
                    len(exporting),
                )
                self._changed.wait(POLL_S)
        if (failed := next((w.failure for w in exporting if w.failure), None)) is not None:
            raise failed
        for worker in (w for w in self.workers.values() if not w.exported):
            text = f"outputs of {worker.name}, if any, are not exported"
            self.events.add("notice", "progress", text)
        return [worker.rank for worker in exporting if worker.exported]

    def close(
        self,
        *,
        again: bool = False,
        urgent: bool = False,
        failed: bool = False,
        own: Iterable[str] = (),
    ) -> None:
        """Stop all workers, and wait until their logs are written.

        Args:
            again: the workers should join the next attempt.
            urgent: Batch ends the task, so wait only for a short time.
            failed: the run failed, so wait until the workers have exported their outputs too.
            own: names of the primary's outputs, which the folders of the workers must not have.
        """
        with self._changed:
            if self._closed or self._server is None:
                return
            self._closed = True
        self._server.close()  # returning workers join the next attempt
        names = list(own)
        for worker in self.workers.values():
            self._send(
                worker,
                order=PrimaryOrder.STOP,
                again=again,
                keep=again or urgent or failed,
                folder=rank_folder(worker.rank, names),
            )
        connected = [worker for worker in self.workers.values() if worker.connection]
        with suppress(TerminatedError):  # Batch ends the task
            times = self.timeouts
            limit_s = times.partial_s if failed else times.flush_s
            limit_s = times.hurried_flush_s if urgent else limit_s
            self._wait(
                lambda: all(w.flushed or w.is_gone for w in connected), limit_s, checked=not urgent
            )
        for worker in connected:
            if worker.connection is not None:
                worker.connection.close()

    def _finish(self) -> None:
        """Wait for the scripts of the workers after the primary's script succeeded.

        A script that still runs after the time limit will be stopped, which is not a failure.
        """
        if self._on_launch_end is not None:
            self._send_to_all(order=PrimaryOrder.FINISH)
        self._wait(lambda: not self._running() or self._first_failed() is not None,
                   self.timeouts.finish_s)  # fmt: skip
        for worker in [] if self._first_failed() else self._running():
            text = f"{worker.name} still ran {self.timeouts.finish_s:g} s after rank 0: stopped"
            self.events.add("notice", "progress", text)

    def _running(self) -> list[WorkerNode]:
        return [w for w in self.workers.values() if w.ended_at is None and not w.lost]

    def _lost(self) -> WorkerNode | None:
        return next((w for w in self.workers.values() if w.lost), None)

    def _first_failed(self) -> WorkerNode | None:
        ends = {
            rank: worker.ended_at
            for rank, worker in self.workers.items()
            if worker.failure is not None and worker.ended_at is not None
        }
        return self.workers[min(ends, key=ends.__getitem__)] if ends else None

    def _cluster_spec(self, processes: int) -> ClusterSpec:
        workers, own = self.workers.values(), self.hosts.own
        return ClusterSpec(
            self.hosts.addresses,
            (free_port(own), *(worker.port or 0 for worker in workers)),
            free_port(own),
            free_port(own),
            (processes, *(worker.processes for worker in workers)),
        )

    def _await(
        self, done: Callable[[WorkerNode], bool], report: Report, state: str, began: float
    ) -> None:
        """Wait until `done` is true for all workers. The primary reached this state at `began`."""
        report = throttle_repeats(report)
        with self._changed:
            while waiting := [w for w in self.workers.values() if not done(w)]:
                self.check()
                self.check_preparing()
                names = ", ".join(worker.name_and_stage for worker in waiting)
                count = len(self.workers)
                report(f"not {state} yet: {names}", count - len(waiting), count, "nodes")
                self._check_late(waiting, state, time.monotonic() - began)
                self._changed.wait(POLL_S)

    def _check_late(self, waiting: list[WorkerNode], state: str, waited_s: float) -> None:
        missing = ", ".join(worker.name for worker in waiting if worker.connection is None)
        if missing and waited_s > self.timeouts.join_s:
            text = f"no connection from {missing} within {self.timeouts.join_s:g} s"
            raise StageFailedError(NODES_STAGE, "NodesMissing", text)
        if waited_s > self.timeouts.lag_s:
            names = ", ".join(worker.name_and_stage for worker in waiting)
            text = f"not {state} {self.timeouts.lag_s:g} s after rank 0 was: {names}"
            raise StageFailedError(NODES_STAGE, "NodesLate", text)

    def _wait(self, done: Callable[[], bool], limit_s: float, *, checked: bool = True) -> None:
        until = time.monotonic() + limit_s
        with self._changed:
            while not done() and time.monotonic() < until:
                if checked:
                    self.check()
                self._changed.wait(POLL_S)

    def _send_to_all(self, **message: Any) -> None:
        for worker in self.workers.values():
            self._send(worker, **message)

    def _send(self, worker: WorkerNode, **message: Any) -> None:
        if worker.connection is not None and not worker.lost:
            worker.connection.send(**message)

    def _serve_worker(self, connection: AgentConnection, peer: str) -> None:
        """Serve the connection of one worker until it ends. Each has its own thread."""
        heartbeat = Heartbeat(connection, self.heartbeat_config, {"order": PrimaryOrder.HEARTBEAT})
        hello = connection.receive() or {}
        worker, refusal = self._assign_rank(connection, hello, peer)
        if worker is None:
            connection.send(order=PrimaryOrder.LEAVE, **refusal)
            connection.close()
            return
        connection.send(order=PrimaryOrder.WELCOME, attempt=self.attempt, rank=worker.rank)
        heartbeat.start()
        why = "the connection to its agent ended"
        try:
            while (message := connection.receive()) is not None:
                self._handle_message(worker, message)
        except (ValueError, TypeError, KeyError) as err:
            why = f"its agent sent an invalid message: {err}"
        if connection.timed_out:
            why = f"no message from its agent for {self.heartbeat_config.timeout_s:g} s"
        with self._changed:
            self._mark_lost(worker, why)
        if worker.lost:
            connection.close()  # so that a frozen worker ends when it wakes up

    def _mark_lost(self, worker: WorkerNode, why: str) -> None:
        if not self._closed and not worker.lost:
            # Write the event before setting `lost`, which other threads read without the lock and
            # which may end the attempt at once.
            self.events.add("notice", "failed", f"{worker.name} was lost: {why}")
            worker.lost = why
        worker.is_gone = True
        self._changed.notify_all()

    def _assign_rank(
        self, connection: AgentConnection, hello: dict[str, Any], peer: str
    ) -> tuple[WorkerNode | None, dict[str, Any]]:
        """Return the worker of this connection, or None and the fields of the refusal.

        The address in its hello message identifies it, or else the address of the connection.
        """
        known = {worker.address: worker for worker in self.workers.values()}
        worker = known.get(str(hello.get("address"))) or known.get(peer)
        with self._changed:
            if worker is None or self._closed:
                why = f"{peer} is not a node of this attempt"
                return None, {"why": why, "again": self._closed}
            if worker.connection is not None:
                # A worker may return before the end of its old connection is detected.
                return None, {"why": f"rank {worker.rank} has already joined", "again": True}
            worker.connection, worker.node = connection, str(hello.get("node") or "")
            self._changed.notify_all()
        return worker, {}

    def _handle_message(self, worker: WorkerNode, message: dict[str, Any]) -> None:
        kind = message["is"]
        if kind == WorkerEvent.EVICTION:
            at = time.monotonic() + float(message["left_s"])
            self.on_notice(NodeEviction(f"of {worker.node}", at))
            return
        with self._changed:
            if kind == WorkerEvent.STAGE:
                worker.stage = str(message["text"])
            elif kind == WorkerEvent.PREPARED:
                worker.processes = int(message.get("processes", 1))
                worker.check_port = int(message.get("check_port", 0))
                worker.port = int(message["port"])
            elif kind == WorkerEvent.READY:
                worker.ready = True
            elif kind == WorkerEvent.ENDED:
                worker.ended_at = time.monotonic()
            elif kind == WorkerEvent.FAILED:
                worker.ended_at = time.monotonic()
                worker.failure = worker.to_failure(message)
            elif kind == WorkerEvent.EXPORTED:
                worker.exported = True
            elif kind == WorkerEvent.LOG:
                self.events.add("notice", "progress", f"{worker.name}: {message['text']}")
            elif kind == WorkerEvent.LEAVING:
                worker.lost = worker.lost or "Batch ended its agent"
            elif kind == WorkerEvent.FLUSHED:
                worker.flushed = True
            else:
                self._handle_running(worker, kind, message)
            self._changed.notify_all()

    def _handle_running(self, worker: WorkerNode, kind: str, message: dict[str, Any]) -> None:
        """Handle the messages that do not change the state of a worker."""
        if kind == WorkerEvent.CHECKED:
            peer = message["peer"]
            worker.report = GateReport(
                str(message["problem"]),
                None if peer is None else int(peer),
                bool(message["is_consequence"]),
            )
        elif kind == WorkerEvent.SHARD:
            worker.shard = message
        elif kind == WorkerEvent.PROGRESS:
            worker.progressed_at = time.monotonic()
        elif kind == WorkerEvent.IDLE:
            worker.idle_s, worker.idle_at = float(message["idle_s"]), time.monotonic()
        elif kind == WorkerEvent.DUMPED:
            worker.dumped = True
        elif kind == WorkerEvent.LAUNCHED and self._on_launch_end is not None:
            self._on_launch_end(str(message["name"]), int(message["code"]))


def make_node_group(task: TaskContext, spec: RunSpec, number: int, events: EventLog) -> NodeGroup:
    """Return the node group of an attempt of a task on several nodes. It is not open yet."""
    if task.hosts is None:
        raise ValueError("the task has one node")
    node_group = NodeGroup(
        task.hosts, task.nodes_token, number, events, task.termination.check,
        task.notices.report_remote if task.notices is not None else lambda _: None,
        heartbeat_config=task.heartbeat_config, has_gpus=has_gpus(spec),
    )  # fmt: skip
    task.termination.set_extra_check(node_group.check_preparing)
    return node_group
