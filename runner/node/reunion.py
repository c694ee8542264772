"""After the loss of a node: the primary outlives it until it is known what comes of that.

Batch runs a task again whose node is gone, but only while the task lasts. Where Batch keeps the
node, the agent there may come back: it was frozen or cut off, or another took its place
(keeper.py). Then the next attempt begins in the same task.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from runner.node.events import EventLog
from runner.node.hosts import Hosts
from runner.node.link import Link
from runner.node.rendezvous import Door

if TYPE_CHECKING:
    from runner.node.task import Agent

POLL_S = 0.1
# How long Batch may take to notice that a node is gone, and an agent to come back.
WITHIN_S = 300.0
MOST = 5  # in one task: what goes again and again shall not be paid for without end
HELLO_S = 10.0
# Who waits knocks every second (join.py): who has not for so long waits no more.
FRESH_S = 15.0
WHY = "the next attempt begins when all nodes are there"


class Outcome(Enum):
    """What came of the loss of a node."""

    TERMINATED = "Batch ends the task, to run it on other nodes"
    BACK = "all nodes are there again"
    NOTHING = "neither"


class Reunion:
    """Hears who is there, and asks each for patience. A context manager."""

    def __init__(self, hosts: Hosts, token: str) -> None:
        self._others = hosts.addresses[1:]
        self._heard: dict[str, float] = {}
        self._door = Door(hosts.primary, token, self._hear, self._others)

    def __enter__(self) -> Reunion:
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    @property
    def complete(self) -> bool:
        """Whether every other node waits."""
        since = time.monotonic() - FRESH_S
        return all(self._heard.get(address, -1.0) > since for address in self._others)

    def _hear(self, link: Link, peer: str) -> None:
        link.set_timeout(HELLO_S)
        told = str((link.receive() or {}).get("address"))
        self._heard[told if told in self._others else peer] = time.monotonic()
        link.send(order="leave", why=WHY, again=True)
        link.close()


def outlive(agent: Agent, events: EventLog, within_s: float = WITHIN_S) -> Outcome:
    """Wait for what comes of it: a task that ended by itself would not be run again."""
    text = "waiting for Batch to run the task again, or for the node's agent to come back"
    events.aside("notice", "progress", f"a node was lost: {text}")
    until = time.monotonic() + within_s
    if agent.hosts is None or len(agent.losses) > MOST:
        return _await_end(agent, None, until)
    try:
        with Reunion(agent.hosts, agent.nodes_token) as reunion:
            return _await_end(agent, reunion, until)
    except OSError as err:
        events.aside("notice", "failed", f"cannot listen for it: {err}")
        return _await_end(agent, None, until)


def _await_end(agent: Agent, reunion: Reunion | None, until: float) -> Outcome:
    while time.monotonic() < until:
        if agent.termination.requested:
            return Outcome.TERMINATED
        if reunion is not None and reunion.complete:
            return Outcome.BACK
        time.sleep(POLL_S)
    return Outcome.NOTHING
