"""Python's garbage collector, out of the way while a program is declared."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None]:
    """No collection meanwhile, and none later of what is there by then: it is kept to the end.

    The classes of the SDK and the outputs of a program are some 300,000 objects. Each full
    collection looks at all of them and finds next to nothing; together they are a quarter of the
    program's time (`bench/infra_program.py`). For processes that declare once and end.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.freeze()
            gc.enable()
