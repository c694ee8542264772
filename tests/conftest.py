"""Marks that tests of every kind carry, and what they may count on."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Hypothesis gives an example 200 ms, and a busy machine needs a second for the next one.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "feature(row): the row of docs/features.md that the test shows to work"
    )
