"""A lock between processes, which the kernel releases when its holder ends."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from runner.core.home import make_private, not_writable
from runner.core.units import format_duration
from runner.protocol.errors import RunnerError


@contextmanager
def file_lock(
    path: Path, *, what: str, timeout_s: float, on_wait: Callable[[], None] | None = None
) -> Generator[None]:
    """Hold the lock of a file during the block. Create its folder if necessary.

    Args:
        path: The file.
        what: Describes the locked work in errors.
        timeout_s: Maximum time to wait for the lock.
        on_wait: Called once if another process holds the lock.

    Raises:
        RunnerError: R-LOCK, the lock was not released in time; or the file cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  25 ms, which not every command pays

    lock = FileLock(path, mode=0o600)
    try:
        make_private(path.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if on_wait is not None:
                on_wait()
            lock.acquire(timeout=timeout_s)
    except Timeout as err:
        raise RunnerError(
            "R-LOCK",
            f"another runner process has been {what} for {format_duration(timeout_s)}",
            fix="wait for that process or stop it, then run the command again",
        ) from err
    except OSError as err:
        raise not_writable(path.parent, err) from err
    try:
        yield
    finally:
        lock.release()
