"""The state as Pulumi reads it, while another engine may be writing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pulumi import automation as auto

HALF_WRITTEN = "failed to load checkpoint"
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
T = TypeVar("T")


def read_whole(read: Callable[[], T]) -> T:
    """What `read` finds in the state.

    A state in a folder is written in place, and what only reads takes no lock: half of one is read
    once more, a few times. Raises CommandError, also when it stays half.
    """
    for pause_s in _PAUSES_S:
        try:
            return read()
        except auto.errors.CommandError as err:
            if HALF_WRITTEN not in str(err):
                raise
        time.sleep(pause_s)
    return read()
