"""Keeps a worker on its node: another one takes the place of one that was killed, or is stopped.

The coordination command runs once, so nobody else would. A run over several nodes then goes on from
its checkpoint, where it would wait for a node that Batch sees no fault in.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from runner.node.orphans import adopting_orphans, dies_with_parent, kill_children

logger = logging.getLogger(__name__)

MOST = 5  # workers; what kills one after the other shall come to light
POLL_S = 0.2
TAKEN_EXIT_CODE = 137


def keep(work: Callable[[], int], stopped_s: float) -> int:
    """The exit code of `work`, which runs in a child, and may be stopped for `stopped_s`."""
    keeper = _Keeper(stopped_s)
    with adopting_orphans():
        for _ in range(MOST):
            code = keeper.run(work)
            if code is not None:
                return code
            # Its script died with it; what that had started may still hold the node's GPUs.
            kill_children(but=frozenset())
            logger.warning("the worker was killed: another one takes its place")
    logger.error("%d workers were killed: no other one is tried", MOST)
    return TAKEN_EXIT_CODE


class _Keeper:
    def __init__(self, stopped_s: float) -> None:
        self._stopped_s = stopped_s
        self._child = 0
        self._over = False  # Batch said so
        self._since: float | None = None  # when the worker was seen to be stopped
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def run(self, work: Callable[[], int]) -> int | None:
        """One worker; None when something killed it, and nobody wanted it to end."""
        ours, bind = os.getpid(), dies_with_parent()
        self._since = None
        self._child = os.fork()
        if not self._child:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            bind()
            os._exit(TAKEN_EXIT_CODE if os.getppid() != ours else work())
        if self._over:  # it was said between two workers
            self._send(signal.SIGTERM)
        status = self._await()
        self._child = 0
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        return TAKEN_EXIT_CODE if self._over else None

    def _await(self) -> int:
        """Until it has ended; its status."""
        while True:
            flags = os.WUNTRACED | os.WCONTINUED | (os.WNOHANG if self._since else 0)
            pid, status = os.waitpid(self._child, flags)
            if not pid:
                self._end_stopped()
                time.sleep(POLL_S)
            elif os.WIFSTOPPED(status):
                self._since = time.monotonic()
            elif os.WIFCONTINUED(status):
                self._since = None
            else:
                return status

    def _end_stopped(self) -> None:
        if self._since is not None and time.monotonic() - self._since > self._stopped_s:
            logger.warning("the worker was stopped for %g s", self._stopped_s)
            self._send(signal.SIGKILL)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._over = True
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)
