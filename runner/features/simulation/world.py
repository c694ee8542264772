"""What the parts of a simulation share: the events that wait, and the nodes."""

from __future__ import annotations

import heapq
from itertools import count

# Kinds of events and states of nodes. Plain numbers, because an enumeration would take a fifth of
# the time. Both classes have `__slots__`, without which access to attributes is a tenth slower.
TASK_ENDS, NODE_STEPS, TRACE, EVICTION, NOTICE_ENDS, RETURN, TIMEOUT, EVALUATION = range(8)
CREATING, STARTING, READY, LEAVING, PREEMPTED = range(5)


class EventQueue:
    """A heap of events, and the present time in milliseconds since the start."""

    __slots__ = ("_next_number", "heap", "now")

    def __init__(self) -> None:
        self.now = 0
        self.heap: list[tuple[int, int, int, int, int]] = []
        self._next_number = count(
            1
        ).__next__  # of two events at the same time, the older one is first

    def schedule(self, time: int, kind: int, one: int, other: int) -> None:
        """Add an event with the arguments of its handler."""
        heapq.heappush(self.heap, (time, self._next_number(), kind, one, other))


class SlotTime:
    """Slot time of one price class, in milliseconds. `ready` includes all but `boot`."""

    __slots__ = ("boot", "lost", "ready", "setup", "useful")

    def __init__(self) -> None:
        self.boot = self.setup = self.useful = self.lost = self.ready = 0

    @property
    def idle(self) -> int:
        """The time in which no task ran."""
        return self.ready - self.setup - self.useful - self.lost


class SimulatedNode:
    """One node.

    Attributes:
        number: Its number among all nodes of the pool.
        spent: The slot time of its price class.
        free: Slots that no task uses.
        machine, life: Unique number of its machine, and the number of machines it has had.
        again: True if it had another machine before.
        since: When its machine was allocated, or -1 without a machine.
        ready: When it took its first task, or -1.
        running: Running tasks and their start times.
    """

    __slots__ = (
        "again", "free", "life", "machine", "noticed", "number", "ready", "running", "since",
        "slots", "spent", "spot", "state",
    )  # fmt: skip

    def __init__(self, number: int, slots: int, spent: SlotTime, *, spot: bool) -> None:
        self.number, self.slots, self.spent, self.spot = number, slots, spent, spot
        self.free = slots
        self.state = CREATING
        self.life = self.machine = self.since = 0
        self.ready = -1
        self.noticed = self.again = False
        self.running: dict[int, int] = {}

    def record_time(self, now: int, *, whole: bool) -> None:
        """Record the time of the machine until now. With `whole`, its time ends."""
        if self.since < 0:
            return
        if self.ready < 0:
            self.spent.boot += (now - self.since) * self.slots
        else:
            self.spent.boot += (self.ready - self.since) * self.slots
            self.spent.ready += (now - self.ready) * self.slots
            self.ready = now
        self.since = -1 if whole else now
