"""Ctrl-C while the engine works: it is told by the terminal itself, and given time to end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_LOOK_S = 0.2


def wait_out(work: Callable[[], _T], on_interrupt: Callable[[], None]) -> _T:
    """The result of `work`, which goes on through one Ctrl-C; what it then fails with is that.

    The engine is of this process group: a terminal's Ctrl-C reaches it, and it ends when what it
    has begun is made, and kept in the state. Whoever does not wait for that presses it again.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    # Events, for a join that is interrupted takes the thread for ended (Python 3.11).
    begin, ended = threading.Event(), threading.Event()

    def run() -> None:
        begin.wait()
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001  raised where it is waited for
            errors.append(err)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    interrupted = False
    while True:
        try:  # all of it, to the last look: a Ctrl-C between two of them is one as well
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
