"""The garbage collector while a program is declared, and after it."""

from __future__ import annotations

import gc

import pytest

from infra.collector import paused


def test_only_young_objects_are_looked_at_meanwhile() -> None:
    before = gc.get_threshold()
    try:
        with paused():
            old = gc.get_stats()[2]["collections"]
            rings: list[list[object]] = []
            for _ in range(200_000):
                ring: list[object] = []
                ring.append(ring)
                rings.append(ring)
            assert gc.get_stats()[2]["collections"] == old
        assert gc.get_threshold() == before
    finally:
        gc.unfreeze()


def test_collector_comes_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="declared"), paused():
        raise ValueError("declared")
    assert gc.get_threshold() == before
    gc.unfreeze()
