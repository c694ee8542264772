"""What a spot node is told before it is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Notice:
    """The announcement that a spot node will be taken away, as Scheduled Events shows it."""

    event_id: str
    not_before: datetime
    why: str
