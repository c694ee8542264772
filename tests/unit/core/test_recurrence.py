"""Cron expressions, and the Batch job schedules that start their runs."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from runner.core.recurrence import (
    MAX_PARTS,
    CronError,
    ScheduleSpec,
    next_runs,
    parse_cron,
    parse_zone,
    plan_recurrence,
)
from runner.protocol.errors import RunnerError
from runner.protocol.schedules import FiringTimes

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
    ("text", "said", "fix"),
    [
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
        ("0 0 * * mno-fri", "weekday 'mno-fri'", "did you mean 'mon'"),
        ("0 0 * * wendesday", "weekday 'wendesday'", "did you mean 'wed'"),
        ("0 0 1 fbe *", "month 'fbe'", "did you mean 'feb'"),
        ("@dayly", "unknown name", "did you mean '@daily'"),
        ("@montly", "unknown name", "did you mean '@monthly'"),
        ("5-1 * * * *", "minute '5-1'", ""),
        ("*/0 * * * *", "minute '*/0'", ""),
        ("a * * * *", "minute 'a'", ""),
        ("*-5 * * * *", "minute '*-5'", ""),
        ("1; * * * *", "minute '1;'", ""),
        ("0 3 32 2 *", "day of month '32'", ""),
    ],
)
def test_invalid_expression_is_refused_with_the_nearest_words(
    text: str, said: str, fix: str
) -> None:
    with pytest.raises(CronError) as caught:
        parse_cron(text)
    assert said in str(caught.value)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("europe/pariss", "Europe/Paris"),
        ("Mars/Base", "UTC+01:00"),
    ],
)
def test_unknown_zone_is_refused_with_the_nearest_name(name: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        plan_recurrence(ScheduleSpec(cron="0 3 * * *", timezone=name), NOW)
    assert caught.value.code == "R-SCHEDULE-ZONE"
    assert fix in caught.value.fix


def test_weekdays_are_weekly_job_schedules_without_an_end() -> None:
    found = plan_recurrence(ScheduleSpec(cron="0 3 * * 1-5"), NOW)
    assert (found.interval, found.last, found.skipped) == (timedelta(weeks=1), None, 0)
    assert [(part.first, part.last, part.chosen) for part in found.parts] == [
        (datetime(2026, 11, day, 3, tzinfo=UTC), None, None) for day in (23, 24, 25, 26, 27)
    ]
    assert round(found.runs_per_month, 1) == 21.8
    named = plan_recurrence(ScheduleSpec(cron="0 3 * * Monday-fri"), NOW)
    assert named.parts == found.parts


def test_zone_with_clock_changes_keeps_its_local_time() -> None:
    found = plan_recurrence(ScheduleSpec(cron="0 3 * * *", timezone="Europe/Berlin"), NOW)
    assert [part.first for part in found.parts] == [
        datetime(2026, 11, 22, 2, tzinfo=UTC),
        datetime(2027, 3, 28, 1, tzinfo=UTC),  # from the change on
    ]
    hourly = ScheduleSpec(cron="0 * * * *", timezone="Europe/Berlin")
    assert plan_recurrence(hourly, NOW).interval == minutes(60), "an hour fits into the change"
    until = datetime(2027, 3, 1, tzinfo=UTC)
    ends = ScheduleSpec(cron="0 3 * * *", timezone="Europe/Berlin", until=until)
    assert len(plan_recurrence(ends, NOW).parts) == 1, "it ends before the change"
    fixed = ScheduleSpec(cron="0 3 * * *", timezone="Asia/Kolkata")
    assert plan_recurrence(fixed, NOW).first == datetime(2026, 11, 21, 21, 30, tzinfo=UTC)
    offset = ScheduleSpec(cron="0 3 * * *", timezone="utc+5:30")
    assert plan_recurrence(offset, NOW) == plan_recurrence(fixed, NOW)


# Written for this product: calendars that people use, in zones with and without clock changes.
CALENDARS = [
    ("0 3 * * 1-5", "UTC"),
    ("0 3 * * 1-5", "Europe/Berlin"),
    ("30 2 * * *", "Europe/Berlin"),  # does not exist on one day, and twice on another
    ("0 0 1 * *", "America/New_York"),
    ("0 9,17 * * mon,thu", "Europe/London"),
    ("15 6 1,15 * *", "UTC"),
    ("0 12 L * *", "UTC"),
    ("0 12 * * MON#2", "Asia/Tokyo"),
    ("0 12 13 * fri", "UTC"),  # either, as in Debian's cron
    ("0 3 * 6-8 *", "Europe/Berlin"),
    ("*/7 * * * *", "UTC"),
    ("*/10 9-17 * * 1-5", "Europe/Berlin"),
    ("0 8 29 2 *", "UTC"),
    ("45 1 * * sun", "Australia/Lord_Howe"),  # by half an hour
    ("@monthly", "Africa/Casablanca"),
    ("@yearly", "UTC"),
]


@pytest.mark.feature(30)
@pytest.mark.parametrize(("cron", "zone"), CALENDARS)
def test_job_schedules_start_exactly_the_runs_of_the_calendar(cron: str, zone: str) -> None:
    """Fires every job schedule for two years, and lets its task decide."""
    found = plan_recurrence(ScheduleSpec(cron=cron, timezone=zone), NOW)
    assert 1 <= len(found.parts) <= MAX_PARTS
    end = min(NOW + timedelta(days=730), found.last or NOW + timedelta(days=730))
    started: list[datetime] = []
    for part in found.parts:
        assert part.first is not None
        moment = part.first
        chosen = FiringTimes.parse(part.chosen.to_text()) if part.chosen else None
        while moment <= min(end, part.last or end):
            late = moment + timedelta(seconds=20)  # the node's clock, some time after
            if chosen is None or chosen.starts_run(late):
                started.append(moment)
            moment += found.interval
    assert sorted(started) == _local_times(cron, zone, end)
    assert len(started) == len(set(started))


def _naive(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC).replace(tzinfo=None)


def _local_times(cron: str, zone: str, end: datetime) -> list[datetime]:
    """Return the times by going through all days of the calendar, minute by minute of each hour."""
    expression = _ALIAS.get(cron, cron)
    days = CronSim(f"0 0 {' '.join(expression.split()[2:])}", _naive(2026, 11, 19))
    minute, hour = expression.split()[:2]
    clock = CronSim(f"{minute} {hour} * * *", _naive(2026, 1, 1) - timedelta(seconds=1))
    times = [*itertools.takewhile(lambda at: at < _naive(2026, 1, 2), clock)]
    wanted: set[datetime] = set()
    for day in itertools.takewhile(lambda at: at <= end.replace(tzinfo=None), days):
        for at in times:
            local = datetime.combine(day.date(), at.time(), ZoneInfo(zone))
            wanted.add(local.astimezone(UTC))
    return sorted(at for at in wanted if NOW <= at <= end)


_ALIAS = {"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *"}


def test_next_runs_are_in_the_zone_with_its_offset() -> None:
    spec = ScheduleSpec(cron="0 3 * * 1-5", timezone="Europe/Berlin")
    begin = datetime(2027, 3, 25, 12, tzinfo=UTC)
    found = [f"{at:%a %d %H:%M %z}" for at in next_runs(spec, begin, None, 3)]
    assert found == ["Fri 26 03:00 +0100", "Mon 29 03:00 +0200", "Tue 30 03:00 +0200"]
    assert next_runs(spec, begin, begin, 3) == []


def test_calendar_ends_after_its_runs() -> None:
    spec = ScheduleSpec(cron="0 3 * * 1-5", timezone="Europe/Berlin", max_runs=3)
    found = plan_recurrence(spec, NOW)
    assert (found.runs, found.skipped, len(found.parts)) == (3, 0, 3)
    assert all(part.last and part.first and part.last > part.first for part in found.parts)
    monthly = plan_recurrence(ScheduleSpec(cron="0 3 1 * *", max_runs=2), NOW)
    assert (monthly.runs, monthly.skipped, len(monthly.parts)) == (2, 0, 2)
    always = plan_recurrence(ScheduleSpec(cron="0 3 1 * *"), NOW)
    assert (always.runs, always.skipped, len(always.parts)) == (12, 353, 1)


@pytest.mark.parametrize(
    ("cron", "zone", "max_runs"),
    [
        ("*/6 * * 4-10 *", "UTC", None),  # nothing in November
        ("*/6 0-23/2 * * *", "Europe/Berlin", None),  # other hours in UTC from October on
        ("*/7 * * * *", "UTC", 30_000),
    ],
)
def test_calendar_ends_where_its_times_are_no_longer_known(
    cron: str, zone: str, max_runs: int | None
) -> None:
    spec = ScheduleSpec(cron=cron, timezone=zone, max_runs=max_runs)
    found = plan_recurrence(spec, datetime(2026, 4, 1, tzinfo=UTC))
    assert found.runs == 20_000
    assert found.last is not None
    assert all(each.last is not None and each.last <= found.last for each in found.parts)


def test_month_of_a_dense_calendar_has_all_runs() -> None:
    found = plan_recurrence(ScheduleSpec(cron="*/7 * * * *"), NOW)
    assert found.last is None
    assert found.runs_per_month == pytest.approx(9 * 24 * 365 / 12, rel=1e-3)


def test_late_firings_and_wrong_clocks_belong_to_the_newest_time() -> None:
    times = FiringTimes.of([NOW, NOW + timedelta(days=2)], timedelta(days=1))
    assert [times.starts_run(NOW + timedelta(hours=hour)) for hour in (0, 12, 23, 24, 36, 48)] == [
        True, True, True, False, False, True,
    ]  # fmt: skip
    assert times.starts_run(NOW - timedelta(minutes=2)), "the clock of the node is late"
    assert times.skipped == 1


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
    cron = parse_cron(text)
    assert (gaps == {cron.interval}) if cron.interval else len(gaps) > 1
    assert next(cron.times(NOW, UTC)) == firings[0]
    assert next(cron.times(firings[0], UTC)) == firings[0]
    assert next(cron.times(firings[0] + timedelta(microseconds=1), UTC)) == firings[1]


@pytest.mark.parametrize("name", ["+01:99", "UTC+5:60", "+24:00"])
def test_offset_with_too_many_minutes_or_hours_is_refused(name: str) -> None:
    with pytest.raises(RunnerError) as caught:
        parse_zone(name)
    assert caught.value.code == "R-SCHEDULE-ZONE"
