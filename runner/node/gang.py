"""The primary's view of a run over several nodes: who is there, who is ready, who has ended how.

The order of an attempt: `open`, then the primary prepares while the others do; `assemble` brings
all to the same start; the scripts run; `settle` decides what came of it; `close` sends all home.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runner.node.command import STEP, Ended
from runner.node.distributed import Company, node_environment
from runner.node.events import EventLog, Report
from runner.node.failures import NodeLostError, StageFailedError, TerminatedError
from runner.node.hosts import Hosts, free_port
from runner.node.link import Link
from runner.node.notice import Notice
from runner.node.rendezvous import Door
from runner.node.resume import Restored
from runner.node.run_spec import RunSpec
from runner.node.task import Agent
from runner.node.termination import Termination

STAGE = "nodes"
POLL_S = 0.1
# How long Batch may take to notice that a node is gone.
REQUEUE_S = 300.0


@dataclass(frozen=True)
class Pace:
    """How long the primary waits: for nodes to come, for the cause of a failure to show itself,
    for scripts to end after its own, and for the rest of the others' logs."""

    join_s: float = 600.0
    cause_s: float = 3.0
    finish_s: float = 60.0
    flush_s: float = 15.0
    hurried_flush_s: float = 1.0


@dataclass
class Member:
    """Another node of the run."""

    rank: int
    address: str
    node: str = ""
    link: Link | None = None
    port: int | None = None  # said when it has prepared itself
    ready: bool = False
    failure: StageFailedError | None = None
    ended_at: float | None = None
    flushed: bool = False
    stage: str = ""
    lost: bool = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} on node {self.node or self.address}"


@dataclass
class Gang:
    """All other nodes. `check` raises when the task is to end; `on_notice` hears of evictions."""

    hosts: Hosts
    token: str
    attempt: int
    events: EventLog
    check: Callable[[], None]
    on_notice: Callable[[Notice], None] = lambda _: None
    pace: Pace = Pace()
    members: dict[int, Member] = field(default_factory=dict[int, Member])

    def __post_init__(self) -> None:
        others = list(enumerate(self.hosts.addresses))[1:]
        self.members = {rank: Member(rank, address) for rank, address in others}
        self._news = threading.Condition()
        self._closed = False
        self._door: Door | None = None

    def open(self) -> None:
        """Let the others come. Raises StageFailedError."""
        try:
            known = self.hosts.addresses[1:]
            self._door = Door(self.hosts.primary, self.token, self._welcome, known)
        except OSError as err:
            raise StageFailedError(STAGE, "NodesMissing", f"cannot listen: {err}") from err
        self._door.start()

    def assemble(self, restored: Restored | None) -> dict[str, str]:
        """Wait until every node can start, from the same checkpoint; the script's variables.

        Raises StageFailedError for a node that failed or does not come, NodeLostError.
        """
        count = len(self.members)
        with self.events.stage(STAGE, f"waiting for {count} other node{'s'[: count > 1]}") as say:
            self._await(lambda member: member.port is not None, say, "prepared")
            where = None if restored is None else (restored.run_id, restored.checkpoint.number)
            self._tell(order="restore", where=where)
            self._await(lambda member: member.ready, say, "ready")
            company = self._company()
            self._tell(order="go", company=company.to_json())
            self.events.summarise(f"{count + 1} nodes: {', '.join(company.addresses)}")
        return node_environment(company, 0)

    @property
    def failed(self) -> bool:
        """Whether the primary's script has nothing to go on for."""
        return any(member.lost or member.failure for member in self.members.values())

    def settle(self, ended: Ended) -> None:
        """The primary's script has ended. Raises NodeLostError, StageFailedError naming a rank."""
        if ended.timed_out:
            return
        if ended.exit_code == 0 and not ended.stopped:
            self._finish()
        elif not ended.stopped or self.failed:
            # A node that goes takes its script down first, and other scripts with it.
            self._wait(lambda: self._lost() is not None, self.pace.cause_s)
        if (lost := self._lost()) is not None and (ended.exit_code or ended.stopped):
            raise NodeLostError(STEP, "NodeLost", f"contact with {lost.name} was lost")
        if (first := self._first_failed()) is None or first.failure is None:
            return
        if ended.stopped or not ended.exit_code or (first.ended_at or 0.0) < ended.at:
            raise first.failure

    def close(self, *, again: bool = False, hurry: bool = False) -> None:
        """Send everybody home, with time for the rest of their logs; `again`: to come back."""
        with self._news:
            if self._closed:
                return
            self._closed = True
        if self._door is not None:  # who comes again comes to the next attempt's
            self._door.close()
        self._tell(order="stop", again=again)
        linked = [member for member in self.members.values() if member.link]
        with suppress(TerminatedError):  # Batch is in a hurry
            limit_s = self.pace.hurried_flush_s if hurry else self.pace.flush_s
            self._wait(lambda: all(m.flushed or m.lost for m in linked), limit_s, checked=not hurry)
        for member in linked:
            if member.link is not None:
                member.link.close()

    def _finish(self) -> None:
        """The others may take a little longer; what serves for ever is stopped, and no failure."""
        self._wait(lambda: not self._running() or self._first_failed() is not None,
                   self.pace.finish_s)  # fmt: skip
        for member in [] if self._first_failed() else self._running():
            text = f"{member.name} still ran {self.pace.finish_s:g} s after rank 0: stopped"
            self.events.aside("notice", "progress", text)

    def _running(self) -> list[Member]:
        return [m for m in self.members.values() if m.ended_at is None and not m.lost]

    def _lost(self) -> Member | None:
        return next((m for m in self.members.values() if m.lost), None)

    def _first_failed(self) -> Member | None:
        failed = [member for member in self.members.values() if member.failure]
        return min(failed, key=lambda member: member.ended_at or 0.0, default=None)

    def _company(self) -> Company:
        ports = [free_port(self.hosts.own), *(m.port or 0 for m in self.members.values())]
        own = self.hosts.own
        return Company(self.hosts.addresses, tuple(ports), free_port(own), free_port(own))

    def _await(self, done: Callable[[Member], bool], say: Report, word: str) -> None:
        """Until it is `done` for all of them."""
        began = time.monotonic()
        with self._news:
            while waiting := [m for m in self.members.values() if not done(m)]:
                self._raise_trouble(waiting, time.monotonic() - began)
                self.check()
                names = ", ".join(_doing(member) for member in waiting)
                count = len(self.members)
                say(f"not {word} yet: {names}", count - len(waiting), count, "nodes")
                self._news.wait(POLL_S)

    def _raise_trouble(self, waiting: list[Member], waited_s: float) -> None:
        for member in self.members.values():
            if member.failure is not None:
                raise member.failure
            if member.lost:
                raise NodeLostError(STAGE, "NodeLost", f"contact with {member.name} was lost")
        missing = ", ".join(member.name for member in waiting if member.link is None)
        if missing and waited_s > self.pace.join_s:
            text = f"no word from {missing} within {self.pace.join_s:g} s"
            raise StageFailedError(STAGE, "NodesMissing", text)

    def _wait(self, done: Callable[[], bool], limit_s: float, *, checked: bool = True) -> None:
        until = time.monotonic() + limit_s
        with self._news:
            while not done() and time.monotonic() < until:
                if checked:
                    self.check()
                self._news.wait(POLL_S)

    def _tell(self, **message: Any) -> None:
        for member in self.members.values():
            if member.link is not None and not member.lost:
                member.link.send(**message)

    def _welcome(self, link: Link, peer: str) -> None:
        """One node's thread: who it is, and what it says until it goes."""
        hello = link.receive() or {}
        member, why = self._seat(link, hello, peer)
        if member is None:
            link.send(order="leave", why=why, again=self._closed)
            link.close()
            return
        link.send(order="welcome", attempt=self.attempt, rank=member.rank)
        try:
            while (message := link.receive()) is not None:
                self._hear(member, message)
        except (ValueError, TypeError, KeyError) as err:
            self.events.aside("notice", "failed", f"{member.name} says what it should not: {err}")
        with self._news:
            member.lost = not self._closed
            self._news.notify_all()

    def _seat(self, link: Link, hello: dict[str, Any], peer: str) -> tuple[Member | None, str]:
        """Its place among the nodes, by the address that it says it has, else is seen to have."""
        known = {member.address: member for member in self.members.values()}
        member = known.get(str(hello.get("address"))) or known.get(peer)
        with self._news:
            if member is None or self._closed:
                return None, f"{peer} is none of this attempt's nodes"
            if member.link is not None:
                return None, f"rank {member.rank} is there already"
            member.link, member.node = link, str(hello.get("node") or "")
            self._news.notify_all()
        return member, ""

    def _hear(self, member: Member, message: dict[str, Any]) -> None:
        said = message["is"]
        if said == "notice":
            at = time.monotonic() + float(message["left_s"])
            self.on_notice(Notice(f"of {member.node}", at))
            return
        with self._news:
            if said == "stage":
                member.stage = str(message["text"])
            elif said == "prepared":
                member.port = int(message["port"])
            elif said == "ready":
                member.ready = True
            elif said == "ended":
                member.ended_at = time.monotonic()
            elif said == "failed":
                member.ended_at = time.monotonic()
                member.failure = _failure(member, message)
            elif said == "leaving":
                member.lost = True
            elif said == "flushed":
                member.flushed = True
            self._news.notify_all()


def open_gang(agent: Agent, spec: RunSpec, number: int, events: EventLog) -> Gang | None:
    """The other nodes of the attempt; None for a run on one. Raises StageFailedError."""
    if agent.hosts is None:
        if spec.nodes > 1:
            text = f"the run is for {spec.nodes} nodes, and its task is on one"
            raise StageFailedError(STAGE, "RunSpecInvalid", text)
        return None
    gang = Gang(agent.hosts, agent.nodes_token, number, events, agent.termination.check)
    if agent.notices is not None:
        gang.on_notice = agent.notices.tell
    gang.open()
    return gang


def dismiss(gang: Gang | None, *, again: bool = False, hurry: bool = False) -> None:
    """Close it, if there is one."""
    if gang is not None:
        gang.close(again=again, hurry=hurry)


def name_node(gang: Gang | None, node: str, err: StageFailedError) -> None:
    """Say in the message that it was the primary's own script that failed."""
    if gang is not None and not err.rank and err.step == STEP and err.code != "NodeLost":
        err.message = f"rank 0 on node {node}: {err.message}"


def wait_for_requeue(
    termination: Termination, events: EventLog, within_s: float = REQUEUE_S
) -> bool:
    """Outlive the loss of a node: a task that ended by itself would not be run again.

    Batch ends it and runs it on other nodes. False when nothing comes of that: the node is there,
    and only our part on it is not.
    """
    events.aside("notice", "progress", "a node was lost: waiting for Batch to run the task again")
    until = time.monotonic() + within_s
    while not termination.requested and time.monotonic() < until:
        time.sleep(POLL_S)
    return termination.requested


def _failure(member: Member, message: dict[str, Any]) -> StageFailedError:
    code = message.get("exit_code")
    failure = StageFailedError(
        str(message["step"]),
        str(message["code"]),
        f"{member.name}: {message['message']}",
        None if code is None else int(code),
    )
    failure.rank = member.rank
    return failure


def _doing(member: Member) -> str:
    return f"{member.name} ({member.stage})" if member.stage else member.name
