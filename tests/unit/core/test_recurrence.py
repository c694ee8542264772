"""Cron expressions that Batch can keep, and those it cannot."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from runner.core.recurrence import CronError, ScheduleSpec, parse_cron, plan_recurrence
from runner.protocol.errors import RunnerError

NOW = datetime(2026, 11, 21, 14, 7, 30, tzinfo=UTC)  # a Saturday


def minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


@pytest.mark.parametrize(
    ("text", "interval", "first"),
    [
        ("* * * * *", minutes(1), "2026-11-21T14:08"),
        ("*/15 * * * *", minutes(15), "2026-11-21T14:15"),
        ("7-59/15 * * * *", minutes(15), "2026-11-21T14:22"),
        ("0,30 * * * *", minutes(30), "2026-11-21T14:30"),
        ("5 * * * *", minutes(60), "2026-11-21T15:05"),
        ("0 */6 * * *", minutes(360), "2026-11-21T18:00"),
        ("30 1,13 * * *", minutes(720), "2026-11-22T01:30"),
        ("0 3 * * *", timedelta(days=1), "2026-11-22T03:00"),
        ("0 3 * * 0", timedelta(days=7), "2026-11-22T03:00"),
        ("0 3 * * 7", timedelta(days=7), "2026-11-22T03:00"),
        ("0 3 * * MON", timedelta(days=7), "2026-11-23T03:00"),
        ("0 3 * * sat", timedelta(days=7), "2026-11-28T03:00"),
        ("0 3 1-31 jan-dec 0-6", timedelta(days=1), "2026-11-22T03:00"),
        ("7/15 * * * *", minutes(15), "2026-11-21T14:22"),
        ("59/1 * * * *", minutes(60), "2026-11-21T14:59"),
        ("0 5/6 * * *", minutes(360), "2026-11-21T17:00"),
        ("0 23/1 * * *", timedelta(days=1), "2026-11-21T23:00"),
        ("0 3 1/1 * *", timedelta(days=1), "2026-11-22T03:00"),
        ("0 3 * 1/1 *", timedelta(days=1), "2026-11-22T03:00"),
        ("0 3 * * 1/1", timedelta(days=1), "2026-11-22T03:00"),
        ("0 3 * * 0/7", timedelta(days=7), "2026-11-22T03:00"),
        ("0 3 1-31 * 1", timedelta(days=1), "2026-11-22T03:00"),
        ("@hourly", minutes(60), "2026-11-21T15:00"),
        ("@daily", timedelta(days=1), "2026-11-22T00:00"),
        ("@weekly", timedelta(days=7), "2026-11-22T00:00"),
    ],
)
def test_evenly_spaced_expressions_become_an_interval_and_a_first_time(
    text: str, interval: timedelta, first: str
) -> None:
    found = plan_recurrence(ScheduleSpec(cron=text), NOW)
    assert found.interval == interval
    assert found.first == datetime.fromisoformat(f"{first}:00+00:00")
    assert found.last is None


@pytest.mark.parametrize(
    ("text", "said", "nearest"),
    [
        ("0 3 * * 1-5", "5 of 7 weekdays", '0 3 * * *'),
        ("0 3 1 * *", "days of a month", "every: 30d"),
        ("0 3 * 6 *", "months", "every: 30d"),
        ("@monthly", "days of a month", "every: 30d"),
        ("@yearly", "months", "every: 30d"),
        ("*/7 * * * *", "4 min and 7 min apart", "every: 6m"),
        ("0 */7 * * *", "180 min and 420 min apart", "every: 6h"),
        ("0 9,17 * * *", "480 min and 960 min apart", "every: 12h"),
        ("0 3,15 * * 1", "several times on one weekday", "0 3 * * 1"),
        ("0 0 31 2 *", "it never fires", ""),
        ("0 0 30 feb *", "it never fires", ""),
        ("0 0 31 4,6,9,11 *", "it never fires", ""),
        ("0 3 * *", "got 4", ""),
        ("0 0 3 * * *", "got 6", ""),
        ("", "got 0", ""),
        ("60 * * * *", "minute '60': use 0 to 59", ""),
        ("0 24 * * *", "hour '24'", ""),
        ("0 0 0 * *", "day of month '0'", ""),
        ("0 0 * 13 *", "month '13'", ""),
        ("0 0 * * 8", "weekday '8'", ""),
        ("0 0 * * funday", "weekday 'funday'", ""),
        ("5-1 * * * *", "minute '5-1'", ""),
        ("*/0 * * * *", "minute '*/0'", ""),
        ("a * * * *", "minute 'a'", ""),
        ("*-5 * * * *", "minute '*-5'", ""),
        ("1; * * * *", "minute '1;'", ""),
        ("0 3 L * *", "days of a month", "every: 30d"),
        ("0 3 32 2 *", "day of month '32'", ""),
        ("0 3 * * 5L", "weekdays of a month", "every: 4w"),
        ("0 3 * * MON#2", "weekdays of a month", "every: 4w"),
        ("0 3 1 * 1", "days of a month", "every: 30d"),
        ("0 4/7 * * *", "420 min and 600 min apart", "every: 8h"),
        ("0 3 2/3 * *", "days of a month", ""),
        ("0 3 * 1/2 *", "months", ""),
        ("0 3 * * 1/6", "2 of 7 weekdays", ""),
    ],
)  # fmt: skip
def test_unevenly_spaced_expressions_are_refused_with_similar_intervals(
    text: str, said: str, nearest: str
) -> None:
    with pytest.raises(CronError) as caught:
        parse_cron(text)
    assert said in str(caught.value)
    assert nearest in caught.value.nearest


def test_29_february_is_not_reported_as_never() -> None:
    with pytest.raises(CronError) as caught:
        parse_cron("0 0 29 2 *")
    assert "never" not in str(caught.value)


def test_every_suggested_interval_is_accepted() -> None:
    for text in ("*/7 * * * *", "*/11 * * * *", "1,2,3 * * * *", "0 1,2 * * *", "*/59 */5 * * *"):
        with pytest.raises(CronError) as caught:
            parse_cron(text)
        value, unit = caught.value.nearest.removeprefix("every: ")[:-1], caught.value.nearest[-1]
        assert 1440 % (int(value) * {"m": 1, "h": 60}[unit]) == 0


def test_zone_with_a_clock_change_before_the_end_is_refused() -> None:
    daily = ScheduleSpec(cron="0 3 * * *", timezone="Europe/Berlin")
    with pytest.raises(RunnerError) as caught:
        plan_recurrence(daily, NOW)
    assert caught.value.code == "R-SCHEDULE-CLOCK"
    assert "1 h late" in caught.value.why
    assert "the time zone UTC+01:00" in caught.value.fix
    until = datetime(2027, 3, 1, tzinfo=UTC)
    ends = ScheduleSpec(cron="0 3 * * *", timezone="Europe/Berlin", until=until)
    assert plan_recurrence(ends, NOW).first == datetime(2026, 11, 22, 2, tzinfo=UTC)
    hourly = ScheduleSpec(cron="0 * * * *", timezone="Europe/Berlin")
    assert plan_recurrence(hourly, NOW).interval == minutes(60), "an hour fits into the change"
    fixed = ScheduleSpec(cron="0 3 * * *", timezone="Asia/Kolkata")
    assert plan_recurrence(fixed, NOW).first == datetime(2026, 11, 21, 21, 30, tzinfo=UTC)
    offset = ScheduleSpec(cron="0 3 * * *", timezone="utc+5:30")
    assert plan_recurrence(offset, NOW) == plan_recurrence(fixed, NOW)
    with pytest.raises(RunnerError) as caught:
        plan_recurrence(ScheduleSpec(cron="0 3 * * *", timezone="Mars/Base"), NOW)
    assert caught.value.code == "R-SCHEDULE-ZONE"


def test_first_time_is_computed_in_the_time_zone() -> None:
    zone = ZoneInfo("America/New_York")
    until = datetime(2026, 12, 31, tzinfo=UTC)
    spec = ScheduleSpec(cron="15 9 * * 1", timezone="America/New_York", until=until)
    first = plan_recurrence(spec, NOW).first
    assert first is not None
    assert f"{first.astimezone(zone):%a %H:%M}" == "Mon 09:15"


def test_interval_starts_at_once_or_at_its_start() -> None:
    spec = ScheduleSpec(every=timedelta(hours=5))
    assert plan_recurrence(spec, NOW).first is None
    start = datetime(2026, 11, 22, 6, tzinfo=UTC)
    later = ScheduleSpec(every=timedelta(hours=5), start=start)
    assert plan_recurrence(later, NOW).first == start
    naive = ScheduleSpec(
        every=timedelta(hours=5), start=start.replace(tzinfo=None), timezone="UTC+02:00"
    )
    assert plan_recurrence(naive, NOW).first == start - timedelta(hours=2)


def test_max_runs_sets_an_end_between_two_firings() -> None:
    spec = ScheduleSpec(cron="0 3 * * *", max_runs=3)
    found = plan_recurrence(spec, NOW)
    assert found.first is not None
    assert found.last == found.first + timedelta(days=2, hours=12)
    until = datetime(2026, 11, 23, tzinfo=UTC)
    earlier = ScheduleSpec(cron="0 3 * * *", max_runs=3, until=until)
    assert plan_recurrence(earlier, NOW).last == until


@pytest.mark.parametrize(
    "spec",
    [
        ScheduleSpec(cron="0 3 * * *", until=NOW - timedelta(days=1)),
        ScheduleSpec(cron="0 3 * * *", until=NOW + timedelta(hours=1)),
        ScheduleSpec(every=timedelta(hours=1), until=NOW - timedelta(seconds=1)),
        ScheduleSpec(
            every=timedelta(hours=1), start=NOW + timedelta(days=2), until=NOW + timedelta(days=1)
        ),
        ScheduleSpec(cron="0 0 31 2 *"),
    ],
)
def test_schedule_that_never_fires_is_refused(spec: ScheduleSpec) -> None:
    with pytest.raises(RunnerError) as caught:
        plan_recurrence(spec, NOW)
    assert caught.value.code == "R-SCHEDULE-NEVER"


@given(st.integers(0, 59), st.integers(1, 59), st.integers(0, 23), st.integers(1, 23))
def test_interval_equals_every_gap_between_firings(
    minute: int, minutes: int, hour: int, hours: int
) -> None:
    text = f"{minute}/{minutes} {hour}/{hours} * * *"
    end = NOW + timedelta(days=3)  # an uneven gap may lie at midnight only
    firings = [*itertools.takewhile(lambda at: at < end, CronSim(text, NOW))]
    gaps = {b - a for a, b in itertools.pairwise(firings)}
    try:
        cron = parse_cron(text)
    except CronError:
        assert len(gaps) > 1
    else:
        assert gaps == {cron.interval}
        assert cron.first_after(NOW, UTC) == firings[0]
        assert cron.first_after(firings[0], UTC) == firings[0]
        assert cron.first_after(firings[0] + timedelta(microseconds=1), UTC) == firings[1]
