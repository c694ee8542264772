"""What a node of a run hears from the primary, and tells it."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from runner.node.link import Link
from runner.node.termination import Termination

logger = logging.getLogger(__name__)

POLL_S = 0.1


class Primary(threading.Thread):
    """Listens until the primary says stop, or says nothing any more: then `termination` begins."""

    def __init__(self, link: Link, termination: Termination) -> None:
        super().__init__(name="primary", daemon=True)
        self._link = link
        self._termination = termination
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self.again = False

    def run(self) -> None:
        """Thread body."""
        while (message := self._link.receive()) is not None:
            if message.get("order") in ("stop", "leave"):
                self.again = bool(message.get("again"))
                logger.info("the primary says %s", message.get("why") or "that it is over")
                break
            self._orders.put(message)
        else:
            logger.warning("the primary is gone")
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
