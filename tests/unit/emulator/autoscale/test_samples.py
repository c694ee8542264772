"""Samples as formulas see them."""

from __future__ import annotations

import math
import random
import statistics
from datetime import timedelta

import pytest

from batch_emulator.autoscale.dialect import DEFAULT, LENIENT, STRICT
from batch_emulator.autoscale.samples import KEPT, PERIOD, SampleHistory
from batch_emulator.autoscale.values import Timestamp
from tests.unit.emulator.autoscale.formulas import NOW, history, run, value

FOUR = history(60, ActiveTasks=[3, 5, 10, 2])


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$ActiveTasks.GetSample(1)", "[2]"),
        ("$ActiveTasks.GetSample(3)", "[5,10,2]"),
        ("$ActiveTasks.GetSample(0)", "[]"),
        ("len($ActiveTasks.GetSample(1000))", "59"),
        # the newest is 30 s old; a window includes its start and excludes its end
        ("$ActiveTasks.GetSample(TimeInterval_Minute * 2)", "[3,5,10,2]"),
        ("$ActiveTasks.GetSample(TimeInterval_Second * 90, 10)", "[5,10,2]"),
        ("$ActiveTasks.GetSample(TimeInterval_Second * 59)", "[2]"),
        ("len($ActiveTasks.GetSample(TimeInterval_Minute, 6 * TimeInterval_Minute))", "10"),
        ("len($ActiveTasks.GetSample(6 * TimeInterval_Minute, TimeInterval_Minute))", "10"),
        ("len($ActiveTasks.GetSample(time() + -6 * TimeInterval_Minute, time()))", "12"),
        ("$ActiveTasks.GetSamplePercent(180 * TimeInterval_Second)", "100"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute * 15)", "100"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute, 6 * TimeInterval_Minute)", "100"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute * 0, TimeInterval_Minute)", "100"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Hour)", "49.1667"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Zero)", "0"),
        ("$ActiveTasks.Count()", "59"),
        ("$ActiveTasks.GetSamplePeriod()", "PT30S"),
        ("$ActiveTasks.HistoryBeginTime()", "2026-01-05T09:00:30.000Z"),
        ("$ActiveTasks.HistoryBeginTime().hour", "9"),
        ("avg($ActiveTasks.GetSample(4))", "5"),
        ("$ActiveTasks * 2", "4"),
    ],
)
def test_sample_functions_return_the_documented_values(text: str, result: str) -> None:
    assert value(text, FOUR) == result


# The first is that of Azure/batch-shipyard#138, the third of the REST reference; the second is in
# the tests of the .NET SDK (all read 2026-11-22).
@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            "\n" * 8 + "samplevecavg = avg($PendingTasks.GetSample(TimeInterval_Minute * 15));",
            (
                "Line 9, Col 43: Insufficient data from data set: $PendingTasks wanted 70%,"
                " received 0%"
            ),
        ),
        (
            "$RunningTasks.GetSample(TimeInterval_Hour, 100)",
            (
                "Line 1, Col 24: Insufficient data from data set: $RunningTasks wanted 100%,"
                " received 0%"
            ),
        ),
        (
            "totalNodes=min($CPUPercent.GetSample(TimeInterval_Minute * 10, 10));",
            "Line 1, Col 37: Insufficient data from data set: $CPUPercent wanted 10%, received 0%",
        ),
    ],
)
def test_published_errors_of_pools_without_samples_are_reproduced(text: str, detail: str) -> None:
    done = run(text)
    assert done.problem is not None
    assert done.problem.code == "InsufficientSampleData"
    assert done.problem.message == "Autoscale evaluation failed due to insufficient sample data"
    assert done.problem.detail == detail


def test_published_percentages_hold_at_every_moment_between_two_samples() -> None:
    """Azure/Batch#120 shows 100 for 3 minutes, doAzureParallel#215 100 for 15 (read 2026-11-22)."""
    found: set[tuple[str, str]] = set()
    for age_s in range(30):
        done = run(
            "a = $PendingTasks.GetSamplePercent(180 * TimeInterval_Second);"
            "b = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 15);",
            history(60),
            now=NOW + timedelta(seconds=age_s),
        )
        short, long = done.results.split(";")[3:]
        found.add((short, long))
    assert found == {("a=100", "b=100"), ("a=83.3333", "b=96.6667")}


def test_guarded_formulas_work_on_a_new_pool_without_samples() -> None:
    assert value("max(0, $ActiveTasks.GetSample(1))") == "0"
    assert value("$ActiveTasks.GetSamplePercent(TimeInterval_Minute)") == "0"
    assert value("$ActiveTasks.HistoryBeginTime()") == "2026-01-05T09:30:00.000Z"
    window = "$CPUPercent.GetSample(TimeInterval_Minute * 10)"
    for dialect in (DEFAULT, STRICT):
        assert "wanted 70%, received 0%" in value(f"avg({window})", dialect=dialect)
    assert value(window, dialect=LENIENT) == "[]"


def test_missing_samples_lower_the_percentage() -> None:
    gap = SampleHistory()
    newest = Timestamp.of(NOW).ticks
    for age in range(40, 0, -1):
        if not 10 <= age < 20:
            gap.fill(newest - age * PERIOD, 1, {"$ActiveTasks": 1})
    window = "TimeInterval_Minute, 16 * TimeInterval_Minute"
    assert value(f"$ActiveTasks.GetSamplePercent({window})", gap) == "66.6667"
    assert "wanted 70%, received 66.6667%" in value(f"$ActiveTasks.GetSample({window}, 70)", gap)


def test_samples_are_kept_for_a_day() -> None:
    long = history(KEPT + 500, ActiveTasks=1)
    assert KEPT <= len(long.times) < KEPT + 64
    assert value("len($ActiveTasks.GetSample(TimeInterval_Day))", long) == str(KEPT)


def test_window_sums_and_extremes_equal_those_of_their_samples() -> None:
    rng = random.Random(7)
    given = [rng.randrange(1000) for _ in range(500)]
    samples = history(501, ActiveTasks=given, CPUPercent=[n / 1000 for n in given])
    for _ in range(200):
        count = rng.randrange(2, 500)
        last = given[-count:]
        get = f"$ActiveTasks.GetSample({count})"
        done = run(f"a=sum({get});b=min({get});c=max({get});d=std({get});e=norm({get})", samples)
        wanted = (
            sum(last), min(last), max(last), statistics.stdev(last), math.hypot(*last)
        )  # fmt: skip
        expected = [f"{name}={n:.6g}" for name, n in zip("abcde", wanted, strict=True)]
        assert done.results.split(";")[3:] == expected
        cpu = f"avg($CPUPercent.GetSample({count}))"
        assert value(cpu, samples) == f"{sum(last) / count / 1000:.6g}"


def test_steady_day_equals_a_day_of_single_samples() -> None:
    now, day = Timestamp.of(NOW).ticks, {"$ActiveTasks": 3, "$CPUPercent": 0.25}
    taken, steady = SampleHistory(), SampleHistory.steady(now, day)
    for age in range(KEPT - 1, -1, -1):
        taken.fill(now - age * PERIOD, 1, day)
    for _ in range(200):  # the oldest blocks are dropped
        now += PERIOD
        for each in (taken, steady):
            each.fill(now, 1, {"$ActiveTasks": 7})
    assert steady.times == taken.times
    for name, series in taken.series.items():
        same = steady.series[name]
        assert (same.data, same.sums) == (series.data, series.sums), name
        assert (same.least, same.greatest) == (series.least, series.greatest), name
