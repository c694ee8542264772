"""One builder at a time on a node."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.1


@contextmanager
def node_lock(path: Path, while_waiting: Callable[[], None]) -> Generator[None, None, None]:
    """Hold the lock file; `while_waiting` is called about ten times a second and may raise.

    The kernel lets go of it when the holder dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)
