"""What the processes of one training agree on by torch.distributed: where to resume, when to save.

Only rank 0 writes, and all ranks load what it has chosen. A rank that waits for one that does not
come would wait for ever. Therefore every rank asks at the same steps, also one whose hook failed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.timing import DeferredSigterm, SaveInterval

CHECK_EVERY_S = 0.5  # as each check exchanges a message
MAX_STEPS = 1000  # between two checks


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks; each must call this."""
    distributed: Any = importlib.import_module("torch.distributed")
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def rank() -> int:
    """Return the number of this process."""
    return importlib.import_module("torch.distributed").get_rank()


def of_first(adapter: str, choose: Callable[[], Any]) -> Any:
    """Return on all ranks what rank 0 chooses, or None if that fails."""
    chosen = None
    if rank() == 0:
        try:
            chosen = choose()
        except Exception as err:  # noqa: BLE001 - the others wait for an answer
            place.warn(adapter, err)
    return gather(chosen)[0]


class CommonSaves:
    """The steps after which all ranks save: rank 0 has the interval, any may get SIGTERM."""

    def __init__(self, interval: SaveInterval, sigterm: DeferredSigterm) -> None:
        self._interval = interval
        self._sigterm = sigterm
        self._began = time.monotonic()
        self._steps = 0
        self._check_at = 1
        self.has_failed = False
        """One of the ranks cannot save any more, so none does."""

    def is_due(self, *, failed: bool, now: bool = False) -> bool:
        """Return the same on all ranks; to be called by each after each step.

        Args:
            failed: this rank cannot save any more.
            now: all ranks ask at this step.
        """
        self._steps += 1
        if self.has_failed or not (now or self._steps >= self._check_at):
            return False
        took_s = max(time.monotonic() - self._began, 1e-6)
        ahead = max(1, min(MAX_STEPS, int(self._steps / took_s * CHECK_EVERY_S)))
        all_of_them = gather((failed, self._sigterm.requested, self._interval.due, ahead))
        self._check_at = self._steps + all_of_them[0][3]
        self.has_failed = any(one[0] for one in all_of_them)
        is_due = now or all_of_them[0][2] or any(one[1] for one in all_of_them)
        return is_due and not self.has_failed
