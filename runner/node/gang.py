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
from runner.node.events import EventLog, Report, on_change
from runner.node.failures import StageFailedError, TerminatedError
from runner.node.hosts import Hosts, free_port
from runner.node.link import Link
from runner.node.members import Member, Pace
from runner.node.notice import Notice
from runner.node.pulse import Pulse, Rhythm
from runner.node.rendezvous import Door
from runner.node.resume import Restored
from runner.node.run_spec import RunSpec
from runner.node.task import Agent

STAGE = "nodes"
POLL_S = 0.1


@dataclass
class Gang:
    """All other nodes. `check` raises when the task is to end; `on_notice` hears of evictions."""

    hosts: Hosts
    token: str
    attempt: int
    events: EventLog
    check: Callable[[], None]
    on_notice: Callable[[Notice], None] = lambda _: None
    pace: Pace = field(default_factory=Pace)
    rhythm: Rhythm = field(default_factory=Rhythm)
    members: dict[int, Member] = field(default_factory=dict[int, Member])

    def __post_init__(self) -> None:
        others = list(enumerate(self.hosts.addresses))[1:]
        self.members = {rank: Member(rank, address) for rank, address in others}
        self._news = threading.Condition()
        self._closed = False
        self._started = False
        self._opened = time.monotonic()
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
        count, began = len(self.members), time.monotonic()
        with self.events.stage(STAGE, f"waiting for {count} other node{'s'[: count > 1]}") as say:
            self._await(lambda member: member.port is not None, say, "prepared", began)
            where = None if restored is None else (restored.run_id, restored.checkpoint.number)
            self._tell(order="restore", where=where)
            self._await(lambda member: member.ready, say, "ready", began)
            company = self._company()
            self._tell(order="go", company=company.to_json())
            self._started = True
            self.events.summarise(f"{count + 1} nodes: {', '.join(company.addresses)}")
        return node_environment(company, 0)

    def check_preparing(self) -> None:
        """Raise what ends the attempt before the scripts run: nobody need prepare on for it.

        StageFailedError, NodeLostError.
        """
        if self._started or self._closed:
            return
        for member in self.members.values():
            if member.failure is not None:
                raise member.failure
            if member.lost:
                raise member.loss(STAGE)
        if time.monotonic() - self._opened > self.pace.prepare_s:
            text = f"not all nodes were prepared within {self.pace.prepare_s:g} s"
            raise StageFailedError(STAGE, "NodesLate", text)

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
            raise lost.loss(STEP)
        if (first := self._first_failed()) is None or first.failure is None:
            return
        if ended.stopped or not ended.exit_code or (first.ended_at or 0.0) < ended.at:
            raise first.failure

    def gather(self, order: Callable[[int], dict[str, Any]], report: Report) -> list[int]:
        """Have those whose scripts have ended send what these wrote; the ranks that did.

        `order` says where to. Raises StageFailedError of a node that could not.
        """
        report = on_change(report)
        asked = [m for m in self.members.values() if m.ended_at is not None and not m.lost]
        for member in asked:
            if member.link is not None:
                member.link.send(order="export", **order(member.rank))
        with self._news:
            while waiting := [m for m in asked if not (m.exported or m.failure or m.lost)]:
                self.check()
                names = ", ".join(member.doing for member in waiting)
                report(f"outputs of other nodes: {names}", len(asked) - len(waiting), len(asked))
                self._news.wait(POLL_S)
        if (failed := next((m.failure for m in asked if m.failure), None)) is not None:
            raise failed
        for member in (m for m in self.members.values() if not m.exported):
            text = f"outputs of {member.name}, if it has any, are not kept"
            self.events.aside("notice", "progress", text)
        return [member.rank for member in asked if member.exported]

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

    def _await(self, done: Callable[[Member], bool], say: Report, word: str, began: float) -> None:
        """Until it is `done` for all of them; the primary itself was at `began`."""
        say = on_change(say)
        with self._news:
            while waiting := [m for m in self.members.values() if not done(m)]:
                self.check()
                self.check_preparing()
                names = ", ".join(member.doing for member in waiting)
                count = len(self.members)
                say(f"not {word} yet: {names}", count - len(waiting), count, "nodes")
                self._raise_late(waiting, word, time.monotonic() - began)
                self._news.wait(POLL_S)

    def _raise_late(self, waiting: list[Member], word: str, waited_s: float) -> None:
        missing = ", ".join(member.name for member in waiting if member.link is None)
        if missing and waited_s > self.pace.join_s:
            text = f"no word from {missing} within {self.pace.join_s:g} s"
            raise StageFailedError(STAGE, "NodesMissing", text)
        if waited_s > self.pace.behind_s:
            names = ", ".join(member.doing for member in waiting)
            text = f"not {word} {self.pace.behind_s:g} s after rank 0 was: {names}"
            raise StageFailedError(STAGE, "NodesLate", text)

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
        """One node's thread: who it is, and what it says until it goes, or says nothing."""
        pulse = Pulse(link, self.rhythm, {"order": "here"})
        hello = link.receive() or {}
        member, refusal = self._seat(link, hello, peer)
        if member is None:
            link.send(order="leave", **refusal)
            link.close()
            return
        link.send(order="welcome", attempt=self.attempt, rank=member.rank)
        pulse.start()
        why = "the connection to its agent ended"
        try:
            while (message := link.receive()) is not None:
                self._hear(member, message)
        except (ValueError, TypeError, KeyError) as err:
            why = f"its agent said what it should not: {err}"
        if link.is_silent:
            why = f"nothing was heard of its agent for {self.rhythm.silence_s:g} s"
        with self._news:
            self._lose(member, why)
        if member.lost:
            link.close()  # should it come to life, it shall know

    def _lose(self, member: Member, why: str) -> None:
        if not self._closed and not member.lost:
            # Said first: others look without the lock, and the attempt may end at once by it.
            self.events.aside("notice", "failed", f"{member.name} was lost: {why}")
            member.lost = why
        self._news.notify_all()

    def _seat(
        self, link: Link, hello: dict[str, Any], peer: str
    ) -> tuple[Member | None, dict[str, Any]]:
        """Its place among the nodes, by the address that it says it has, else is seen to have."""
        known = {member.address: member for member in self.members.values()}
        member = known.get(str(hello.get("address"))) or known.get(peer)
        with self._news:
            if member is None or self._closed:
                why = f"{peer} is none of this attempt's nodes"
                return None, {"why": why, "again": self._closed}
            if member.link is not None:
                # One that comes back may be here before its old connection is known to have ended.
                return None, {"why": f"rank {member.rank} is there already", "again": True}
            member.link, member.node = link, str(hello.get("node") or "")
            self._news.notify_all()
        return member, {}

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
                member.failure = member.fails(message)
            elif said == "exported":
                member.exported = True
            elif said == "aside":
                self.events.aside("notice", "progress", f"{member.name}: {message['text']}")
            elif said == "leaving":
                member.lost = member.lost or "its agent was told to end"  # as all may be
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
    gang = Gang(
        agent.hosts, agent.nodes_token, number, events, agent.termination.check,
        rhythm=agent.rhythm,
    )  # fmt: skip
    agent.termination.also(gang.check_preparing)
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
