"""Whether the other end of a link is still there: both ends say so all the time.

A connection that stands proves nothing: its kernel answers also for an agent that is frozen.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.node.link import Link
from runner.node.settings import SettingsError

VARIABLE = "RUNNER_NODES_SILENCE"  # seconds; of the task's environment, for tests and trouble
BEATS = 6  # in the longest silence: one that is late or lost means nothing


@dataclass(frozen=True)
class Rhythm:
    """Who says nothing for `silence_s` is lost."""

    silence_s: float = 90.0

    @property
    def every_s(self) -> float:
        """How often each end says that it is there."""
        return self.silence_s / BEATS


def load_rhythm(environment: Mapping[str, str]) -> Rhythm:
    """What the task says, else the usual one. Raises SettingsError."""
    told = environment.get(VARIABLE)
    if told is None:
        return Rhythm()
    try:
        silence_s = float(told)
    except ValueError:
        silence_s = 0.0
    if not 0 < silence_s < threading.TIMEOUT_MAX:
        raise SettingsError(f"{VARIABLE} is {told!r}, which is no number of seconds")
    return Rhythm(silence_s)


class Pulse(threading.Thread):
    """Sends `message` until the link takes no more. What hears it, limits the other's silence."""

    def __init__(self, link: Link, rhythm: Rhythm, message: Mapping[str, Any]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._link = link
        self._every_s = rhythm.every_s
        self._message = message
        self._over = threading.Event()
        link.set_timeout(rhythm.silence_s)

    def run(self) -> None:
        """Thread body."""
        while not self._over.wait(self._every_s) and self._link.send(**self._message):
            pass

    def stop(self) -> None:
        """No more of it."""
        self._over.set()
