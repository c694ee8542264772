"""A lock between processes: held through a file, freed by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import not_writable
from runner.core.units import format_duration

_POLL_S = 0.05


@contextmanager
def file_lock(
    path: Path, *, what: str, timeout_s: float, on_wait: Callable[[], None] | None = None
) -> Generator[None]:
    """Hold `path`; `on_wait` is called once when someone else does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as err:
        raise not_writable(path.parent, err) from err
    with file:
        _acquire(file.fileno(), what, timeout_s, on_wait)
        yield  # closing the file frees the lock


def _acquire(
    descriptor: int, what: str, timeout_s: float, on_wait: Callable[[], None] | None
) -> None:
    deadline = time.monotonic() + timeout_s
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            if time.monotonic() > deadline:
                raise RunnerError(
                    "R-LOCK",
                    f"another runner has been {what} for {format_duration(timeout_s)}",
                    fix="wait for it, or end it, and run the command again",
                    exit_code=ExitCode.PREFLIGHT,
                ) from err
            if not waited and on_wait is not None:
                on_wait()
            waited = True
            time.sleep(_POLL_S)
        else:
            return
