"""Wait for the engine through a Ctrl-C, which the terminal also sends to the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_LOOK_S = 0.2


def wait_out(work: Callable[[], _T], on_interrupt: Callable[[], None]) -> _T:
    """Return the result of `work`, which continues after the first Ctrl-C.

    The engine is in this process group, so a terminal's Ctrl-C reaches it. It then finishes the
    operations in progress and saves the state. A second Ctrl-C does not wait for that.

    Args:
        work: runs in a thread.
        on_interrupt: called after the first Ctrl-C.

    Raises:
        KeyboardInterrupt: `work` failed after a Ctrl-C, or Ctrl-C was pressed twice.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    # Events, because an interrupted join treats the thread as ended (Python 3.11).
    begin, ended = threading.Event(), threading.Event()

    def run() -> None:
        begin.wait()
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001  raised in the waiting thread
            errors.append(err)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    interrupted = False
    while True:
        try:  # includes the check of the loop: a Ctrl-C can arrive between two waits
            begin.set()
            while not ended.wait(_LOOK_S):
                pass
            break
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            on_interrupt()
    if results:
        return results[0]
    raise KeyboardInterrupt if interrupted else errors[0]
