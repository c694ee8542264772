"""Let all ranks agree, over torch.distributed, on the state to resume from and on when to save.

Only rank 0 writes, and all ranks load the state that it has chosen. A collective call waits until
all ranks have made it. Therefore every rank calls at the same steps, even if its hook has failed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.timing import DeferredSigterm, SaveInterval

CHECK_EVERY_S = 0.5  # not more often, because each check exchanges a message
MAX_STEPS = 1000  # between two checks


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks. Every rank must call it."""
    distributed: Any = importlib.import_module("torch.distributed")
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def rank() -> int:
    """Return the rank of this process."""
    return importlib.import_module("torch.distributed").get_rank()


def choose_on_first(adapter: str, choose: Callable[[], Any]) -> Any:
    """Call `choose` on rank 0. Return its result on all ranks, or None if it fails."""
    chosen = None
    if rank() == 0:
        try:
            chosen = choose()
        except Exception as err:  # noqa: BLE001 - the other ranks wait for an answer
            place.warn(adapter, err)
    return gather(chosen)[0]


class CommonSaves:
    """Chooses the steps after which all ranks save.

    They save at the interval of rank 0, and when any rank has got SIGTERM.
    """

    def __init__(self, interval: SaveInterval, sigterm: DeferredSigterm) -> None:
        self._interval = interval
        self._sigterm = sigterm
        self._began = time.monotonic()
        self._steps = 0
        self._check_at = 1
        self.has_failed = False
        """One of the ranks cannot save any more, so none does."""

    def is_due(self, *, failed: bool, now: bool = False) -> bool:
        """Return True if all ranks have to save now. Every rank must call this after each step.

        Args:
            failed: True if this rank cannot save any more.
            now: save now regardless of the interval. It must be the same on all ranks.
        """
        self._steps += 1
        if self.has_failed or not (now or self._steps >= self._check_at):
            return False
        took_s = max(time.monotonic() - self._began, 1e-6)
        ahead = max(1, min(MAX_STEPS, int(self._steps / took_s * CHECK_EVERY_S)))
        votes = gather((failed, self._sigterm.requested, self._interval.due, ahead))
        self._check_at = self._steps + votes[0][3]
        self.has_failed = any(vote[0] for vote in votes)
        is_due = now or votes[0][2] or any(vote[1] for vote in votes)
        return is_due and not self.has_failed
