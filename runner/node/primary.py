"""What a node of a run hears from the primary, and tells it."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from runner.node.link import Link
from runner.node.pulse import Pulse, Rhythm
from runner.node.termination import Termination

logger = logging.getLogger(__name__)

POLL_S = 0.1


class Primary(threading.Thread):
    """Listens until the primary says stop, or says nothing any more: then `termination` begins."""

    def __init__(self, link: Link, termination: Termination, rhythm: Rhythm | None = None) -> None:
        super().__init__(name="primary", daemon=True)
        self._link = link
        self._rhythm = rhythm or Rhythm()
        self._pulse = Pulse(link, self._rhythm, {"is": "here"})
        self._termination = termination
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self.again = False
        self.is_gone = False  # without having sent this node home

    def run(self) -> None:
        """Thread body."""
        self._pulse.start()
        while (message := self._link.receive()) is not None:
            if message.get("order") in ("stop", "leave"):
                self.again = bool(message.get("again"))
                logger.info("the primary says %s", message.get("why") or "that it is over")
                break
            if message.get("order") != "here":
                self._orders.put(message)
        else:
            self.is_gone = True
            silence = f": no word from it for {self._rhythm.silence_s:g} s"
            logger.warning("the primary is gone%s", silence if self._link.is_silent else "")
        self._pulse.stop()
        self._over.set()
        self._termination.request()

    def tell(self, what: str, **more: Any) -> None:
        """What cannot be told any more is found out by `run`."""
        self._link.send(**{"is": what}, **more)

    @property
    def is_over(self) -> bool:
        """Whether it has sent this node home, or is gone."""
        return self._over.is_set()

    def next_order(self, name: str) -> dict[str, Any]:
        """Wait for it. Raises TerminatedError."""
        while True:
            self._termination.check()
            try:
                order = self._orders.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if order.get("order") == name:
                return order

    def wait(self) -> None:
        """Until it is over, or this node is to end."""
        while not self._over.wait(POLL_S) and not self._termination.requested:
            pass
