"""Python's garbage collector, out of the way while a program is declared."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

_YOUNG = 10_000


@contextmanager
def paused() -> Generator[None]:
    """Only young objects are looked at meanwhile, and what is there by then is kept to the end.

    The classes of the SDK and the outputs of a program are some 300,000 objects. Each full
    collection looks at all of them and finds next to nothing; together they are a quarter of the
    program's time (`bench/infra_program.py`). For processes that declare once and end.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, 1_000, 1_000)  # only what is new is looked at
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*before)
