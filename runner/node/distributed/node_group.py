"""The primary's view of a run over several nodes: which nodes joined, are ready, and how each
ended.

The order of an attempt: `open`; the primary prepares while the others do; `assemble` brings
all to the same start; the scripts run; `settle` decides the outcome; `close` sends the
workers home.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runner.node.agent.context import AgentContext
from runner.node.agent.termination import EvictionNotice
from runner.node.checkpoints.restore import RestoredCheckpoint
from runner.node.distributed.cluster import (
    ClusterSpec,
    HeartbeatConfig,
    Hosts,
    free_port,
    node_environment,
)
from runner.node.distributed.connection import AgentConnection, Heartbeat
from runner.node.distributed.rendezvous import RendezvousServer
from runner.node.failures import NodeLostError, StageFailedError, TerminatedError
from runner.node.script.command import COMMAND_STAGE, ScriptResult
from runner.node.script.streams import EventLog, Report, throttle_repeats
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True)
class NodeGroupTimeouts:
    """How long the primary waits: for nodes to come, for all of them to be ready (`prepare_s`, and
    `behind_s` after it was itself), for the cause of a failure to show itself, for scripts to end
    after its own, and for the rest of the others' logs."""

    join_s: float = 600.0
    prepare_s: float = 4 * 3600.0
    behind_s: float = 3600.0
    cause_s: float = 3.0
    finish_s: float = 60.0
    flush_s: float = 15.0
    hurried_flush_s: float = 1.0


@dataclass
class WorkerNode:
    """Another node of the run."""

    rank: int
    address: str
    node: str = ""
    link: AgentConnection | None = None
    port: int | None = None  # said when it has prepared itself
    ready: bool = False
    failure: StageFailedError | None = None
    ended_at: float | None = None
    exported: bool = False  # what its script has written is in storage
    flushed: bool = False
    stage: str = ""
    lost: str = ""  # why

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} on node {self.node or self.address}"

    @property
    def doing(self) -> str:
        """Its name, and what it is busy with."""
        return f"{self.name} ({self.stage})" if self.stage else self.name

    def to_lost_error(self, step: str) -> NodeLostError:
        """What its loss makes of the attempt."""
        err = NodeLostError(step, "NodeLost", f"{self.name} was lost: {self.lost}")
        err.rank = self.rank
        return err

    def to_failure(self, message: dict[str, Any]) -> StageFailedError:
        """What it says of how it failed."""
        code = message.get("exit_code")
        failure = StageFailedError(
            str(message["step"]),
            str(message["code"]),
            f"{self.name}: {message['message']}",
            None if code is None else int(code),
        )
        failure.rank = self.rank
        return failure


NODES_STAGE = "nodes"
POLL_S = 0.1


@dataclass
class NodeGroup:
    """All other nodes. `check` raises when the task is to end; `on_notice` hears of evictions."""

    hosts: Hosts
    token: str
    attempt: int
    events: EventLog
    check: Callable[[], None]
    on_notice: Callable[[EvictionNotice], None] = lambda _: None
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

    def open(self) -> None:
        """Let the others come. Raises StageFailedError."""
        try:
            known = self.hosts.addresses[1:]
            self._server = RendezvousServer(self.hosts.primary, self.token, self._welcome, known)
        except OSError as err:
            raise StageFailedError(NODES_STAGE, "NodesMissing", f"cannot listen: {err}") from err
        self._server.start()

    def assemble(self, restored: RestoredCheckpoint | None) -> dict[str, str]:
        """Wait until every node can start, from the same checkpoint; the script's variables.

        Raises StageFailedError for a node that failed or does not come, NodeLostError.
        """
        count, began = len(self.workers), time.monotonic()
        with self.events.stage(
            NODES_STAGE, f"waiting for {count} other node{'s'[: count > 1]}"
        ) as report:
            self._await(lambda worker: worker.port is not None, report, "prepared", began)
            where = None if restored is None else (restored.run_id, restored.checkpoint.number)
            self._send_to_all(order="restore", where=where)
            self._await(lambda worker: worker.ready, report, "ready", began)
            company = self._cluster_spec()
            self._send_to_all(order="go", company=company.to_json())
            self._started = True
            self.events.summarise(f"{count + 1} nodes: {', '.join(company.addresses)}")
        return node_environment(company, 0)

    def check_preparing(self) -> None:
        """Raise what ends the attempt before the scripts run: nobody need prepare on for it.

        StageFailedError, NodeLostError.
        """
        if self._started or self._closed:
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
        """Whether the primary's script has nothing to go on for."""
        return any(worker.lost or worker.failure for worker in self.workers.values())

    def settle(self, ended: ScriptResult) -> None:
        """The primary's script has ended. Raises NodeLostError, StageFailedError naming a rank."""
        if ended.timed_out:
            return
        if ended.exit_code == 0 and not ended.stopped:
            self._finish()
        elif not ended.stopped or self.failed:
            # A node that goes takes its script down first, and other scripts with it.
            self._wait(lambda: self._lost() is not None, self.timeouts.cause_s)
        if (lost := self._lost()) is not None and (ended.exit_code or ended.stopped):
            raise lost.to_lost_error(COMMAND_STAGE)
        if (first := self._first_failed()) is None or first.failure is None:
            return
        if ended.stopped or not ended.exit_code or (first.ended_at or 0.0) < ended.at:
            raise first.failure

    def gather(self, order: Callable[[int], dict[str, Any]], report: Report) -> list[int]:
        """Have those whose scripts have ended send what these wrote; the ranks that did.

        `order` says where to. Raises StageFailedError of a node that could not.
        """
        report = throttle_repeats(report)
        asked = [m for m in self.workers.values() if m.ended_at is not None and not m.lost]
        for worker in asked:
            if worker.link is not None:
                worker.link.send(order="export", **order(worker.rank))
        with self._changed:
            while waiting := [m for m in asked if not (m.exported or m.failure or m.lost)]:
                self.check()
                names = ", ".join(worker.doing for worker in waiting)
                report(f"outputs of other nodes: {names}", len(asked) - len(waiting), len(asked))
                self._changed.wait(POLL_S)
        if (failed := next((m.failure for m in asked if m.failure), None)) is not None:
            raise failed
        for worker in (m for m in self.workers.values() if not m.exported):
            text = f"outputs of {worker.name}, if it has any, are not kept"
            self.events.aside("notice", "progress", text)
        return [worker.rank for worker in asked if worker.exported]

    def close(self, *, again: bool = False, hurry: bool = False) -> None:
        """Send everybody home, with time for the rest of their logs; `again`: to come back."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        if self._server is not None:  # who comes again comes to the next attempt's
            self._server.close()
        self._send_to_all(order="stop", again=again)
        linked = [worker for worker in self.workers.values() if worker.link]
        with suppress(TerminatedError):  # Batch is in a hurry
            limit_s = self.timeouts.hurried_flush_s if hurry else self.timeouts.flush_s
            self._wait(lambda: all(m.flushed or m.lost for m in linked), limit_s, checked=not hurry)
        for worker in linked:
            if worker.link is not None:
                worker.link.close()

    def _finish(self) -> None:
        """The others may take a little longer; what serves for ever is stopped, and no failure."""
        self._wait(lambda: not self._running() or self._first_failed() is not None,
                   self.timeouts.finish_s)  # fmt: skip
        for worker in [] if self._first_failed() else self._running():
            text = f"{worker.name} still ran {self.timeouts.finish_s:g} s after rank 0: stopped"
            self.events.aside("notice", "progress", text)

    def _running(self) -> list[WorkerNode]:
        return [m for m in self.workers.values() if m.ended_at is None and not m.lost]

    def _lost(self) -> WorkerNode | None:
        return next((m for m in self.workers.values() if m.lost), None)

    def _first_failed(self) -> WorkerNode | None:
        failed = [worker for worker in self.workers.values() if worker.failure]
        return min(failed, key=lambda worker: worker.ended_at or 0.0, default=None)

    def _cluster_spec(self) -> ClusterSpec:
        ports = [free_port(self.hosts.own), *(m.port or 0 for m in self.workers.values())]
        own = self.hosts.own
        return ClusterSpec(self.hosts.addresses, tuple(ports), free_port(own), free_port(own))

    def _await(
        self, done: Callable[[WorkerNode], bool], report: Report, word: str, began: float
    ) -> None:
        """Until it is `done` for all of them; the primary itself was at `began`."""
        report = throttle_repeats(report)
        with self._changed:
            while waiting := [m for m in self.workers.values() if not done(m)]:
                self.check()
                self.check_preparing()
                names = ", ".join(worker.doing for worker in waiting)
                count = len(self.workers)
                report(f"not {word} yet: {names}", count - len(waiting), count, "nodes")
                self._raise_late(waiting, word, time.monotonic() - began)
                self._changed.wait(POLL_S)

    def _raise_late(self, waiting: list[WorkerNode], word: str, waited_s: float) -> None:
        missing = ", ".join(worker.name for worker in waiting if worker.link is None)
        if missing and waited_s > self.timeouts.join_s:
            text = f"no word from {missing} within {self.timeouts.join_s:g} s"
            raise StageFailedError(NODES_STAGE, "NodesMissing", text)
        if waited_s > self.timeouts.behind_s:
            names = ", ".join(worker.doing for worker in waiting)
            text = f"not {word} {self.timeouts.behind_s:g} s after rank 0 was: {names}"
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
            if worker.link is not None and not worker.lost:
                worker.link.send(**message)

    def _welcome(self, link: AgentConnection, peer: str) -> None:
        """One node's thread: who it is, and what it says until it goes, or says nothing."""
        heartbeat = Heartbeat(link, self.heartbeat_config, {"order": "here"})
        hello = link.receive() or {}
        worker, refusal = self._assign_rank(link, hello, peer)
        if worker is None:
            link.send(order="leave", **refusal)
            link.close()
            return
        link.send(order="welcome", attempt=self.attempt, rank=worker.rank)
        heartbeat.start()
        why = "the connection to its agent ended"
        try:
            while (message := link.receive()) is not None:
                self._handle_message(worker, message)
        except (ValueError, TypeError, KeyError) as err:
            why = f"its agent said what it should not: {err}"
        if link.is_silent:
            why = f"nothing was heard of its agent for {self.heartbeat_config.silence_s:g} s"
        with self._changed:
            self._mark_lost(worker, why)
        if worker.lost:
            link.close()  # should it come to life, it shall know

    def _mark_lost(self, worker: WorkerNode, why: str) -> None:
        if not self._closed and not worker.lost:
            # Said first: others look without the lock, and the attempt may end at once by it.
            self.events.aside("notice", "failed", f"{worker.name} was lost: {why}")
            worker.lost = why
        self._changed.notify_all()

    def _assign_rank(
        self, link: AgentConnection, hello: dict[str, Any], peer: str
    ) -> tuple[WorkerNode | None, dict[str, Any]]:
        """Its place among the nodes, by the address that it says it has, else is seen to have."""
        known = {worker.address: worker for worker in self.workers.values()}
        worker = known.get(str(hello.get("address"))) or known.get(peer)
        with self._changed:
            if worker is None or self._closed:
                why = f"{peer} is none of this attempt's nodes"
                return None, {"why": why, "again": self._closed}
            if worker.link is not None:
                # One that comes back may be here before its old connection is known to have ended.
                return None, {"why": f"rank {worker.rank} is there already", "again": True}
            worker.link, worker.node = link, str(hello.get("node") or "")
            self._changed.notify_all()
        return worker, {}

    def _handle_message(self, worker: WorkerNode, message: dict[str, Any]) -> None:
        kind = message["is"]
        if kind == "notice":
            at = time.monotonic() + float(message["left_s"])
            self.on_notice(EvictionNotice(f"of {worker.node}", at))
            return
        with self._changed:
            if kind == "stage":
                worker.stage = str(message["text"])
            elif kind == "prepared":
                worker.port = int(message["port"])
            elif kind == "ready":
                worker.ready = True
            elif kind == "ended":
                worker.ended_at = time.monotonic()
            elif kind == "failed":
                worker.ended_at = time.monotonic()
                worker.failure = worker.to_failure(message)
            elif kind == "exported":
                worker.exported = True
            elif kind == "aside":
                self.events.aside("notice", "progress", f"{worker.name}: {message['text']}")
            elif kind == "leaving":
                worker.lost = worker.lost or "its agent was told to end"  # as all may be
            elif kind == "flushed":
                worker.flushed = True
            self._changed.notify_all()


def open_node_group(
    agent: AgentContext, spec: RunSpec, number: int, events: EventLog
) -> NodeGroup | None:
    """The other nodes of the attempt; None for a run on one. Raises StageFailedError."""
    if agent.hosts is None:
        if spec.nodes > 1:
            text = f"the run is for {spec.nodes} nodes, and its task is on one"
            raise StageFailedError(NODES_STAGE, "RunSpecInvalid", text)
        return None
    node_group = NodeGroup(
        agent.hosts, agent.nodes_token, number, events, agent.termination.check,
        heartbeat_config=agent.heartbeat_config,
    )  # fmt: skip
    agent.termination.also(node_group.check_preparing)
    if agent.notices is not None:
        node_group.on_notice = agent.notices.report_remote
    node_group.open()
    return node_group


def close_node_group(
    node_group: NodeGroup | None, *, again: bool = False, hurry: bool = False
) -> None:
    """Close it, if there is one."""
    if node_group is not None:
        node_group.close(again=again, hurry=hurry)


def add_node_name(node_group: NodeGroup | None, node: str, err: StageFailedError) -> None:
    """Say in the message that it was the primary's own script that failed."""
    if (
        node_group is not None
        and not err.rank
        and err.step == COMMAND_STAGE
        and err.code != "NodeLost"
    ):
        err.message = f"rank 0 on node {node}: {err.message}"
