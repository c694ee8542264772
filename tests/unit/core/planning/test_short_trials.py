"""Advice for sweeps of short trials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runner.core.planning.short_trials import advise_trials_per_task

START = datetime(2026, 11, 29, 12, tzinfo=UTC)


def spans(
    count: int, took_s: float, between_s: float, slots: int = 1
) -> list[tuple[datetime, datetime]]:
    """Return the times of trials that run one after another in each slot."""
    found: list[tuple[datetime, datetime]] = []
    for number in range(count):
        begin = START + timedelta(seconds=(number // slots) * (took_s + between_s))
        begin += timedelta(milliseconds=number % slots)
        found.append((begin, begin + timedelta(seconds=took_s)))
    return found


@pytest.mark.parametrize(
    ("count", "took_s", "between_s", "slots", "advised"),
    [
        (1000, 0.4, 0.35, 2, 9),
        (1000, 0.05, 0.3, 2, 50),
        (100, 0.4, 0.35, 4, 9),
        (40, 0.1, 0.3, 4, 5),  # otherwise slots would wait for the last task
    ],
)
def test_advice_keeps_the_start_of_tasks_below_a_tenth(
    count: int, took_s: float, between_s: float, slots: int, advised: int
) -> None:
    found = advise_trials_per_task(spans(count, took_s, between_s, slots))
    assert found is not None
    assert (found.took_s, round(found.between_s, 2)) == (took_s, between_s)
    assert found.trials_per_task == advised
    assert f"--trials-per-task {advised}" in found.text


@pytest.mark.parametrize(
    ("count", "took_s", "between_s", "slots"),
    [
        pytest.param(9, 0.4, 0.35, 1, id="few trials"),
        pytest.param(100, 30, 20, 1, id="long trials"),
        pytest.param(100, 3, 0.3, 1, id="little time between"),
        pytest.param(16, 0.1, 0.3, 16, id="as many slots as trials"),
    ],
)
def test_other_sweeps_get_no_advice(
    count: int, took_s: float, between_s: float, slots: int
) -> None:
    assert advise_trials_per_task(spans(count, took_s, between_s, slots)) is None
