"""What happened, in order: the log that tests, the admin API and a reader of the log share."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from batch_emulator.domain.values import time_text

log = logging.getLogger(__name__)

KEPT_EVENTS = 20_000  # older ones are forgotten


class Event(NamedTuple):  # a frozen dataclass takes three times as long to make
    """One change of state: of what kind (`node.state`), of which entity, to what."""

    number: int
    time: datetime
    kind: str
    entity: str  # "pool/node", "job" or "job/task", in the spelling of the ids
    value: str
    why: str = ""

    def document(self) -> dict[str, object]:
        """The event as JSON shows it."""
        document: dict[str, object] = {
            "number": self.number,
            "at": time_text(self.time),
            "kind": self.kind,
            "entity": self.entity,
            "value": self.value,
        }
        return document | ({"why": self.why} if self.why else {})


class Events:
    """The newest events of this run of the emulator."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._number = 0

    def add(self, now: datetime, kind: str, entity: str, value: str, why: str = "") -> None:
        """Note one event."""
        self._number += 1
        event = Event(self._number, now, kind, entity, value, why)
        self._kept.append(event)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s %s %s", kind, entity, value, why, extra={LOG_FIELDS: event.document()})

    def after(self, number: int) -> Iterator[Event]:
        """Events with a higher number, oldest first."""
        return (event for event in self._kept if event.number > number)


LOG_FIELDS = "fields"  # log.debug(..., extra={FIELDS: {...}}): what a reader of the JSON may search
