"""When storage is asked again: soon at first, then less and less often, until the time is up."""

from __future__ import annotations

import random
import threading
import time
from itertools import islice, pairwise

import pytest

from runner.node.storage import retries
from runner.node.storage.retries import FIRST_DELAY_S, MAX_DELAY_S, RetryBudget


class Clock:
    """Time that passes while the test sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._thread = threading.get_ident()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        if threading.get_ident() == self._thread:
            self.now += seconds
        else:  # the thread for deadlines, which an earlier test has started
            time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retries, "time", made)
    return made


def test_waits_double_up_to_the_maximum(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    times = [clock.now for _ in islice(RetryBudget(600.0).tries(), 1000)]
    waits = [after - before for before, after in pairwise(times)]
    expected = [min(FIRST_DELAY_S * 2**number, MAX_DELAY_S) for number in range(len(waits))]
    assert waits == pytest.approx(expected)
    assert waits[-1] == pytest.approx(MAX_DELAY_S)
    assert times[0] == 1000.0
    assert 600.0 - MAX_DELAY_S <= times[-1] - times[0] <= 600.0


def test_half_of_each_wait_is_random(clock: Clock) -> None:
    times = [[clock.now for _ in RetryBudget(30.0).tries()] for _ in range(2)]
    waits = [[after - before for before, after in pairwise(each)] for each in times]
    assert all(FIRST_DELAY_S / 2 <= first <= FIRST_DELAY_S for first, *_ in waits)
    assert waits[0] != pytest.approx(waits[1])


def test_tries_are_counted_and_one_is_always_made(clock: Clock) -> None:
    assert list(RetryBudget(0.0).tries()) == [0]
    tries = list(RetryBudget(1.0).tries())
    assert tries == list(range(len(tries)))
    assert len(tries) > 1


def test_hurry_ends_current_waits(clock: Clock) -> None:
    budget = RetryBudget(600.0)
    assert budget.left_s is None
    hurried = 0.0
    for number in budget.tries():
        if number == 8:
            budget.shorten(3.0)
            hurried = clock.now
            assert budget.left_s == pytest.approx(3.0)
    assert clock.now - hurried == pytest.approx(3.0)
    assert budget.left_s == 0.0
    assert list(budget.tries()) == [0]


def test_own_limit_ends_earlier_than_the_budget(clock: Clock) -> None:
    budget = RetryBudget(600.0)
    times = [clock.now for _ in budget.tries(90.0)]
    assert 90.0 - MAX_DELAY_S <= times[-1] - times[0] <= 90.0
    budget.shorten(5.0)
    until = clock.now + 5.0
    assert [clock.now for _ in budget.tries(90.0)][-1] <= until
