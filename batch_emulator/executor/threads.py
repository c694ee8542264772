"""Work in a thread that is not left alone there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(work: Callable[[], _T]) -> _T:
    """The result of `work`, done in a thread; who is cancelled meanwhile waits for its end.

    What `asyncio.to_thread` runs goes on when its caller is cancelled: it would write into a
    folder that is being deleted.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise
