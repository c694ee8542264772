"""Fixtures for the tests of others; pytest finds them when the emulator is installed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from batch_emulator.server import Server


@pytest.fixture(scope="session")
def batch_emulator() -> Generator[Server]:
    """An Azure Batch account of this test run: `url`, `account` and `key` are what clients need."""
    from batch_emulator.server import Server  # noqa: PLC0415 - only who uses it pays for it

    with Server() as server:
        yield server


@pytest.fixture
def new_batch_emulator() -> Generator[Server]:
    """The same for one test alone."""
    from batch_emulator.server import Server  # noqa: PLC0415

    with Server() as server:
        yield server
