"""Read the state while another engine may be writing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pulumi import automation as auto

HALF_WRITTEN = "failed to load checkpoint"
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
T = TypeVar("T")


def read_whole(read: Callable[[], T]) -> T:
    """Return the result of `read`, retried while the state is half-written.

    The engine writes a state folder in place, and a reader takes no lock.

    Raises:
        CommandError: `read` failed otherwise, or the state stayed half-written.
    """
    for pause_s in _PAUSES_S:
        try:
            return read()
        except auto.errors.CommandError as err:
            if HALF_WRITTEN not in str(err):
                raise
        time.sleep(pause_s)
    return read()
