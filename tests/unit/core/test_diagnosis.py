"""A hung script is distinguished from one with its usual pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runner.core.diagnosis import explain_silence

START = datetime(2026, 11, 24, 12, tzinfo=UTC)


def minutes(*values: float) -> list[datetime]:
    return [START + timedelta(minutes=value) for value in values]


EACH_MINUTE = minutes(1, 2, 3, 4, 5)
EACH_QUARTER = minutes(0, 15, 30, 45, 60)


@pytest.mark.parametrize(
    ("metrics", "written", "now", "is_named"),
    [
        (EACH_MINUTE, 5, 19, False),
        (EACH_MINUTE, 5, 20, True),
        (EACH_MINUTE, 18, 20, False),  # a log still grows
        (EACH_QUARTER, 60, 130, False),  # it is sometimes silent for a long time
        (EACH_QUARTER, 60, 135, True),
        (EACH_MINUTE[:4], 4, 600, False),  # too few metrics to know
        ([], 0, 600, False),
        ([START] * 9, 0, 600, False),
    ],
)
def test_silence_is_named_if_it_is_longer_than_usual(
    metrics: list[datetime], written: float, now: float, is_named: bool
) -> None:
    found = explain_silence(metrics, minutes(written), *minutes(now))
    assert (found is not None and found.cause == "NoProgress") == is_named


def test_rank_that_stopped_first_is_named() -> None:
    found = explain_silence(EACH_MINUTE, [*minutes(5.2, 4.9), None, *minutes(5.1)], *minutes(30))
    assert found is not None
    assert (found.cause, "rank 2 was the first" in found.message) == ("HungRank", True)
    found = explain_silence(EACH_MINUTE, minutes(5.2, 4.9), *minutes(30))
    assert found is not None
    assert found.message.startswith("rank 1 was the first to stop")
    assert explain_silence(EACH_MINUTE, [None, None], *minutes(30)) is None
