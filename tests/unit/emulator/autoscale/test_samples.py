"""What formulas see of the samples."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from batch_emulator.autoscale.dialect import DEFAULT, STRICT
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
        ("len($ActiveTasks.GetSample(1000))", "58"),
        # the newest is 60 s old; a window has its beginning and not its end
        ("$ActiveTasks.GetSample(TimeInterval_Minute * 2)", "[5,10,2]"),
        ("$ActiveTasks.GetSample(TimeInterval_Second * 90, 10)", "[10,2]"),
        ("$ActiveTasks.GetSample(TimeInterval_Second * 59)", "[]"),
        ("len($ActiveTasks.GetSample(TimeInterval_Minute, 6 * TimeInterval_Minute))", "10"),
        ("len($ActiveTasks.GetSample(6 * TimeInterval_Minute, TimeInterval_Minute))", "10"),
        ("len($ActiveTasks.GetSample(time() + -6 * TimeInterval_Minute, time()))", "11"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute * 15)", "96.6667"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute, 6 * TimeInterval_Minute)", "100"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Minute * 0, TimeInterval_Minute)", "50"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Hour)", "48.3333"),
        ("$ActiveTasks.GetSamplePercent(TimeInterval_Zero)", "0"),
        ("$ActiveTasks.Count()", "58"),
        ("$ActiveTasks.GetSamplePeriod()", "PT30S"),
        ("$ActiveTasks.HistoryBeginTime()", "2026-01-05T09:00:30.000Z"),
        ("$ActiveTasks.HistoryBeginTime().hour", "9"),
        ("avg($ActiveTasks.GetSample(4))", "5"),
        ("$ActiveTasks * 2", "4"),
    ],
)
def test_samples_of_a_metric(text: str, result: str) -> None:
    assert value(text, FOUR) == result


def test_too_few_samples_are_an_error_with_the_words_of_the_service() -> None:
    done = run(f"{chr(10) * 14}{' ' * 43}$RunningTasks.GetSample(TimeInterval_Hour, 70)", FOUR)
    assert done.problem is not None
    assert done.problem.code == "InsufficientSampleData"
    assert done.problem.message == "Autoscale evaluation failed due to insufficient sample data"
    assert done.problem.detail == (
        "Line 15, Col 44: Insufficient data from data set: $RunningTasks wanted 70%,"
        " received 48.3333%"
    )


def test_a_young_pool_has_no_samples_and_formulas_go_on() -> None:
    assert value("max(0, $ActiveTasks.GetSample(1))") == "0"
    assert value("$ActiveTasks.GetSamplePercent(TimeInterval_Minute)") == "0"
    assert value("$ActiveTasks.HistoryBeginTime()") == "2026-01-05T09:30:00.000Z"
    done = run("x = $CPUPercent.GetSample(TimeInterval_Minute * 10)", dialect=STRICT)
    assert done.problem is not None
    assert done.problem.detail == (
        "Line 1, Col 5: Insufficient data from data set: $CPUPercent wanted 10%, received 0%"
    )
    assert DEFAULT.minimum_percent == 0


def test_missing_samples_lower_the_percentage() -> None:
    gap = SampleHistory()
    newest = Timestamp.of(NOW).ticks
    for age in range(40, 0, -1):
        if not 10 <= age < 20:
            gap.take(newest - age * PERIOD, {"$ActiveTasks": 1})
    window = "TimeInterval_Minute, 16 * TimeInterval_Minute"
    assert value(f"$ActiveTasks.GetSamplePercent({window})", gap) == "66.6667"
    assert "wanted 70%, received 66.6667%" in value(f"$ActiveTasks.GetSample({window}, 70)", gap)


def test_a_day_is_kept() -> None:
    long = history(KEPT + 500, ActiveTasks=1)
    assert KEPT <= len(long.times) < KEPT + 64
    assert value("len($ActiveTasks.GetSample(TimeInterval_Day))", long) == str(KEPT - 1)


def test_sums_and_extremes_of_windows_are_those_of_their_samples() -> None:
    rng = random.Random(7)
    given = [rng.randrange(1000) for _ in range(500)]
    samples = history(502, ActiveTasks=given, CPUPercent=[n / 1000 for n in given])
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


def test_steady_day_is_as_if_each_sample_had_been_taken() -> None:
    now, day = Timestamp.of(NOW).ticks, {"$ActiveTasks": 3, "$CPUPercent": 0.25}
    taken, steady = SampleHistory(), SampleHistory.steady(now, day)
    for age in range(KEPT - 1, -1, -1):
        taken.take(now - age * PERIOD, day)
    for _ in range(200):  # the oldest blocks go
        now += PERIOD
        for each in (taken, steady):
            each.take(now, {"$ActiveTasks": 7})
    assert steady.times == taken.times
    for name, series in taken.series.items():
        same = steady.series[name]
        assert (same.data, same.sums) == (series.data, series.sums), name
        assert (same.least, same.greatest) == (series.least, series.greatest), name
