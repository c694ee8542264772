"""Keep the node of a run that failed, so that a person can look at it with `runner ssh`.

The outcome is committed before. The task stays, so Batch neither removes the node nor starts
another task in its slots, and it ends by itself, without any client. An eviction ends it before the
node is gone: Batch would otherwise requeue the task for a run that is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from runner.node.context import TaskContext
from runner.protocol.results import RunResult

logger = logging.getLogger(__name__)

POLL_S = 0.2


@dataclass
class NodeHold:
    """The node of a failed run, from the outcome on.

    Attributes:
        seconds: how long it is kept.
        result: the outcome, once there is one.
        cleanups: what the attempt would have removed from the node; called at the end.
    """

    seconds: float
    result: RunResult | None = None
    cleanups: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    _until: float | None = None

    def start(self, result: RunResult) -> RunResult:
        """Return the outcome, which ends now, with the time until which the node is kept."""
        self._until = time.monotonic() + self.seconds
        ended = result.ended
        until = None if ended is None else ended + timedelta(seconds=self.seconds)
        self.result = replace(result, kept_until=until)
        return self.result

    def wait(self, task: TaskContext) -> str:
        """Wait for the end of the hold. Return why it ended, as in `HoldEnd`."""
        logger.info("keeping node %s for at most %g s", task.node.node, self.seconds)
        why = "time"
        while self._until is not None and time.monotonic() < self._until:
            if task.termination.requested:
                why = "stopped"
                break
            if task.notices is not None and task.notices.notice is not None:
                why = "evicted"
                break
            time.sleep(POLL_S)
        logger.info("released the node: %s", why)
        self.clean_up()
        return why

    def clean_up(self) -> None:
        """Remove from the node what the attempt would have removed."""
        for cleanup in self.cleanups:
            cleanup()
