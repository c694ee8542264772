"""Parameters for repeated tests: `make test` uses the first ones, the slow suite all of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def slow_after(count: int, values: Iterable[object]) -> list[object]:
    """Return the values as parameters; all except the first `count` are marked slow."""
    return [
        value if place < count else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
