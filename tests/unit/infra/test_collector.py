"""The garbage collector while a program is declared, and after it."""

from __future__ import annotations

import gc

import pytest

from infra.collector import paused


@pytest.mark.parametrize("before", [True, False])
def test_collector_rests_meanwhile_and_is_afterwards_as_it_was(before: bool) -> None:
    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with paused():
            assert not gc.isenabled()
        assert gc.isenabled() is before
    finally:
        (gc.enable if was else gc.disable)()
        gc.unfreeze()


def test_collector_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="declared"), paused():
        raise ValueError("declared")
    assert gc.isenabled()
    gc.unfreeze()
