"""Fixtures for projects that use the emulator; pytest finds them when it is installed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from batch_emulator.server import Server


@pytest.fixture(scope="session")
def batch_emulator() -> Generator[Server]:
    """An Azure Batch account of this test run: `url`, `account` and `key` are what clients need."""
    from batch_emulator.server import Server  # noqa: PLC0415 - slow, and not every session uses it

    with Server() as server:
        yield server


@pytest.fixture
def new_batch_emulator() -> Generator[Server]:
    """An Azure Batch account like `batch_emulator`, for a single test."""
    from batch_emulator.server import Server  # noqa: PLC0415

    with Server() as server:
        yield server
