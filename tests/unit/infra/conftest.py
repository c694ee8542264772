"""Fixtures for all tests of the Pulumi program."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True, scope="module")
def event_loop_of_the_thread() -> Generator[None]:
    """Set the event loop that Pulumi requires, because asyncio.run of other tests removes it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(asyncio.new_event_loop())
