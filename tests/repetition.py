"""Parameters of which `make test` tries the first, and the slow suite the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def slow_after(count: int, values: Iterable[object]) -> list[object]:
    """Mark all but the first values slow, where they repeat one behaviour."""
    return [
        value if place < count else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
