"""What every test of the Pulumi program needs of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True, scope="module")
def event_loop_of_the_thread() -> Generator[None]:
    """Pulumi asks for the thread's loop, which is gone after any asyncio.run of other tests."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(asyncio.new_event_loop())
