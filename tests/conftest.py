"""Marks that tests of every kind carry."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "feature(row): the row of docs/features.md that the test shows to work"
    )
