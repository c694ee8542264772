"""When a schedule fires: the times of a cron expression, and the Batch job schedules for them.

A Batch job schedule has a first time and a constant interval. A cron expression whose times have
none becomes several job schedules, and where even those have more times than the expression, the
task of a firing decides whether it is one of them
(docs/decisions/0037-calendars-from-constant-intervals.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from runner.core.yaml_files import did_you_mean
from runner.protocol.errors import RunnerError
from runner.protocol.schedules import FiringTimes

_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_STEPS = [step for step in range(1, _WEEK_MINUTES + 1) if _WEEK_MINUTES % step == 0]
MAX_PARTS = 10  # job schedules of one schedule; an account has about 100
_HORIZON = timedelta(days=10 * 366)  # until which the times are computed
_MAX_TIMES = 20_000  # that are computed
_MAX_RANGES = 1_000  # of a job schedule: its task gets them in a variable
_YEAR = timedelta(days=365)
_MONTHS = 12
_FIELDS = {  # by the field's name in cronsim, in order: our name, and the allowed values
    "minute": ("minute", "0 to 59"),
    "hour": ("hour", "0 to 23"),
    "day-of-month": ("day of month", "1 to 31"),
    "month": ("month", "1 to 12, or jan to dec"),
    "day-of-week": ("weekday", "0 to 7, or sun to sat"),
}
_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day-of-week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_FULL_NAMES = {
    name[:3]: name
    for name in (
        *("january", "february", "march", "april", "june", "july", "august", "september"),
        *("october", "november", "december"),
        *("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    )
}
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class CronError(Exception):
    """The expression is invalid or never fires.

    `fix` is what to write instead; empty if nothing is similar.
    """

    def __init__(self, problem: str, fix: str = "", *, never: bool = False) -> None:
        super().__init__(problem)
        self.fix = fix
        self.never = never


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression of five fields. `interval` is None if its times have no constant one."""

    expression: str
    interval: timedelta | None

    def times(self, begin: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Yield the times at or after `begin` in UTC, which the expression names in a zone.

        A local time that a change of the UTC offset skips counts with the offset before the
        change, and of one that occurs twice only the first counts.
        """
        # CronSim ignores fractions of a second and starts with the next second.
        before = (begin - timedelta(microseconds=1)).astimezone(zone).replace(tzinfo=None)
        # The last hours again, because the local time may have been turned back.
        before, newest = before - timedelta(hours=3), begin - timedelta(microseconds=1)
        for local in CronSim(self.expression, before):
            moment = local.replace(tzinfo=zone).astimezone(UTC)
            if moment > newest:
                newest = moment
                yield moment


def parse_cron(text: str) -> Cron:
    """Return the expression with its interval.

    Raises:
        CronError: the text is not a cron expression, or never fires.
    """
    written = text.strip().lower()
    if written.startswith("@") and written not in _ALIASES:
        known = did_you_mean(written, _ALIASES)
        raise CronError(f"unknown name; known: {', '.join(_ALIASES)}", known)
    expression = _ALIASES.get(written, text)
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(
            f"expected 5 fields (minute, hour, day of month, month, weekday), got {len(fields)}"
        )
    fields = [_short_names(field) for field in fields]
    try:
        simulation = _simulation(fields)
    except CronSimError as err:
        raise _invalid_field(fields, err) from err
    return Cron(" ".join(fields), _interval(simulation))


def _short_names(field: str) -> str:
    """Return a field with the first three letters of each English month and weekday."""
    return re.sub(
        r"[A-Za-z]{4,}",
        lambda word: (
            word[0][:3] if _FULL_NAMES.get(word[0][:3].lower()) == word[0].lower() else word[0]
        ),
        field,
    )


def _simulation(fields: list[str]) -> CronSim:
    return CronSim(" ".join(fields), datetime(2026, 1, 1, tzinfo=UTC))


def _invalid_field(fields: list[str], err: CronSimError) -> CronError:
    place = str(err).removeprefix("Bad ")
    if place == "day-of-month":
        try:
            _simulation([*fields[:3], "*", fields[4]])
        except CronSimError:
            pass
        else:
            return CronError("it never fires, because the month has no such day", never=True)
    name, allowed = _FIELDS[place]
    written = fields[list(_FIELDS).index(place)]
    words = re.findall(r"[A-Za-z]{2,}", written)
    near = [did_you_mean(word.lower(), _NAMES[place], 0.5) for word in words if place in _NAMES]
    return CronError(
        f"invalid {name} {written!r}: use {allowed}, or a-b, a,b, *, */n or a/n",
        next(filter(None, near), ""),
    )


def _interval(found: CronSim) -> timedelta | None:
    """Return the time between two firings, or None if it is not constant."""
    weekdays = {day % 7 if isinstance(day, int) else day for day in found.weekdays}
    every_date, every_weekday = found.days.issuperset(range(1, 32)), weekdays.issuperset(range(7))
    if len(found.months) < 12:
        return None
    times = [60 * hour + minute for hour in sorted(found.hours) for minute in sorted(found.minutes)]
    # As in Debian's cron: a day must match both fields, unless neither begins with a star.
    if (every_date and every_weekday) or (not found.day_and and (every_date or every_weekday)):
        gaps = {b - a for a, b in zip(times, [*times[1:], times[0] + _DAY_MINUTES], strict=True)}
        return timedelta(minutes=gaps.pop()) if len(gaps) == 1 else None
    is_weekly = every_date and len(weekdays) == 1 and isinstance(next(iter(weekdays)), int)
    return timedelta(weeks=1) if is_weekly and len(times) == 1 else None


_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_CHECKED_PERIOD = timedelta(days=2 * 366)  # the period that is checked for clock changes


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A schedule as requested, with `cron` or `every`. Naive times are in `timezone`."""

    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    until: datetime | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times of one Batch job schedule, in UTC.

    Attributes:
        first: Time of the first firing; None starts it at once.
        last: Time after which it does not fire; None if there is none.
        chosen: The firings that start a run; None if all do.
    """

    first: datetime | None
    last: datetime | None
    chosen: FiringTimes | None = None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The times of a schedule, in UTC.

    Attributes:
        interval: Time between two firings of a Batch job schedule.
        first: Time of the first run; None starts it at once.
        last: Time after which no run starts; None if there is none.
        parts: The Batch job schedules.
        runs: Number of runs of the first year, or until `last`.
        skipped: Number of firings in this time that start no run.
    """

    interval: timedelta
    first: datetime | None
    last: datetime | None
    parts: tuple[BatchTimes, ...]
    runs: int
    skipped: int = 0
    months: float = _MONTHS

    @property
    def runs_per_month(self) -> float:
        """The runs of a month: a twelfth of those of a year, or all if it ends before a month."""
        return self.runs / self.months

    @property
    def skipped_per_month(self) -> float:
        """The firings of a month that start a node, but no run."""
        return self.skipped / self.months


def plan_recurrence(spec: ScheduleSpec, now: datetime) -> Recurrence:
    """Return the recurrence for Batch.

    Raises:
        RunnerError: The expression or the zone is invalid, or the schedule never fires.
    """
    zone = parse_zone(spec.timezone)
    start, until = _to_aware(spec.start, zone), _to_aware(spec.until, zone)
    begin = max(now, start or now)
    if spec.every is not None:
        first = start if start is not None and start > now else None
        return _constant(spec.every, first, now, until, spec.max_runs)
    if spec.cron is None:
        raise RunnerError(
            "R-SCHEDULE", "a schedule requires cron or every", fix='--cron "0 3 * * *"'
        )
    cron = _checked_cron(spec.cron)
    first = next(cron.times(begin, zone))
    end = min(first + _CHECKED_PERIOD, until or first + _CHECKED_PERIOD)
    if cron.interval is not None and _keeps_time(zone, cron.interval, first, end):
        return _constant(cron.interval, first, now, until, spec.max_runs)
    return _calendar(cron, zone, first, until, spec.max_runs)


def next_runs(
    spec: ScheduleSpec, begin: datetime, until: datetime | None, count: int
) -> list[datetime]:
    """Return the next times at or after `begin` of a schedule with `cron`, in its time zone."""
    zone = parse_zone(spec.timezone)
    if spec.cron is None:
        raise ValueError("a schedule without cron")
    found = islice(parse_cron(spec.cron).times(begin, zone), count)
    return [at.astimezone(zone) for at in found if until is None or at <= until]


def _checked_cron(text: str) -> Cron:
    try:
        return parse_cron(text)
    except CronError as err:
        raise RunnerError(
            "R-SCHEDULE-NEVER" if err.never else "R-SCHEDULE-CRON",
            f"cron {text!r}: {err}",
            fix=err.fix or 'use five fields, such as "0 3 * * 1-5"',
        ) from err


def _constant(
    interval: timedelta,
    first: datetime | None,
    now: datetime,
    until: datetime | None,
    max_runs: int | None,
) -> Recurrence:
    begins = first or now
    _check_end(begins, until)
    if max_runs is not None:
        # Batch does not count jobs, so end the schedule half an interval after the last one.
        enough = begins + (max_runs - 1) * interval + interval / 2
        until = min(until, enough) if until is not None else enough
    begin, last = _to_utc(first), _to_utc(until)
    end = min(until or begins + _YEAR, begins + _YEAR - interval / 2)
    runs = (end - begins) // interval + 1
    parts = (BatchTimes(begin, last),)
    return Recurrence(interval, begin, last, parts, runs, 0, _months(begins, until))


def _calendar(
    cron: Cron, zone: tzinfo, first: datetime, until: datetime | None, max_runs: int | None
) -> Recurrence:
    """Return the recurrence of an expression without a constant interval."""
    _check_end(first, until)
    end = min(until or first + _HORIZON, first + _HORIZON)
    most = min(max_runs or _MAX_TIMES, _MAX_TIMES)
    all_times = takewhile(lambda at: at <= end, cron.times(first, zone))
    times = list(islice(all_times, most + 1))
    is_cut = len(times) > most
    times = times[:most]
    step, starts = _steps({_minute_of_week(at) for at in times})
    interval = timedelta(minutes=step)
    is_weekly = cron.expression.split()[2:4] == ["*", "*"] and _keeps_time(
        zone, interval, first, first + _CHECKED_PERIOD
    )
    # The times after the last one that was computed are known only if all weeks are the same.
    ends = until is not None or (is_cut and (max_runs is not None or not is_weekly))
    by_part = [[at for at in times if _minute_of_week(at) % step == each] for each in starts]
    by_part.sort()  # the first one has the first time
    chosen = [FiringTimes.of(part, interval) for part in by_part]
    if any(each.skipped or each.last + interval <= times[-1] for each in chosen):
        ends = True
        ends_at = min(each.end_of_range(_MAX_RANGES) or times[-1] for each in chosen)
        times = [at for at in times if at <= ends_at]
        by_part = [[at for at in part if at <= ends_at] for part in by_part]
        chosen = [FiringTimes.of(part, interval) for part in by_part if part]
    last = min(times[-1] + interval / 2, until or times[-1] + interval / 2) if ends else None
    parts = [
        BatchTimes(
            each.first,
            _part_end(each.last, interval, until) if ends else None,
            each if each.skipped else None,
        )
        for each in chosen
    ]
    year = times[0] + _YEAR
    runs = sum(at < year for at in times)
    fired = sum(
        (min(each.last, year - timedelta(minutes=1)) - each.first) // interval + 1
        for each in chosen
        if each.first < year
    )
    months = _months(first, times[-1] if is_cut else last)
    return Recurrence(interval, times[0], _to_utc(last), tuple(parts), runs, fired - runs, months)


def _part_end(last: datetime, interval: timedelta, until: datetime | None) -> datetime:
    """Return when a job schedule ends: half an interval after its last firing."""
    enough = last + interval / 2
    return enough if until is None else min(enough, until.astimezone(UTC))


def _steps(minutes: set[int]) -> tuple[int, Sequence[int]]:
    """Return the interval in minutes, and the first minutes of job schedules that have all these.

    Of the intervals that divide a week, this is one with the fewest firings, as each starts a node,
    and of these one with the fewest job schedules.
    """
    found: list[tuple[int, int, int, list[int]]] = []
    for step in _STEPS:
        starts = {minute % step for minute in minutes}
        if len(starts) <= MAX_PARTS:
            firings = len(starts) * _WEEK_MINUTES // step
            found.append((firings, len(starts), step, sorted(starts)))
    _, _, step, starts = min(found)
    return step, starts


def _minute_of_week(moment: datetime) -> int:
    return int(moment.timestamp()) // 60 % _WEEK_MINUTES


def _months(begin: datetime, last: datetime | None) -> float:
    """Return the number of months in the first year of a schedule, at least one."""
    span = _YEAR if last is None else min(last - begin, _YEAR)
    return max(span / _YEAR * _MONTHS, 1.0)


def _check_end(begins: datetime, until: datetime | None) -> None:
    if until is not None and until < begins:
        raise RunnerError(
            "R-SCHEDULE-NEVER",
            "the schedule would never fire",
            why=f"it ends {until.isoformat()}, and its first run is {begins.isoformat()}",
            fix="use a later `until`, or remove it",
        )


def _keeps_time(zone: tzinfo, interval: timedelta, first: datetime, end: datetime) -> bool:
    """Return True if a constant interval keeps the local times although the UTC offset changes."""
    offset = first.astimezone(zone).utcoffset() or timedelta()
    moment = first
    while moment <= end:
        if ((moment.astimezone(zone).utcoffset() or timedelta()) - offset) % interval:
            return False
        moment += timedelta(days=1)
    return True


def parse_zone(name: str) -> tzinfo:
    """Return a time zone by its name or offset. Raise RunnerError R-SCHEDULE-ZONE."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if match := _OFFSET.fullmatch(name.upper()):
        size = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if size < timedelta(hours=24) and int(match[3] or 0) < 60:
            return timezone(size if match[1] == "+" else -size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise RunnerError(
            "R-SCHEDULE-ZONE",
            f"unknown time zone {name!r}",
            fix=_similar_zones(name) or "use UTC, UTC+01:00, or a name such as Europe/Berlin",
        ) from err


def _similar_zones(name: str) -> str:
    """Return the zones whose name, or whose city, is similar."""
    wanted = name.strip().lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in sorted(available_timezones(), reverse=True)}
    cities = {zone.rpartition("/")[2]: whole for zone, whole in zones.items() if "/" in zone}
    near = did_you_mean(wanted.rpartition("/")[2], cities, 0.75) or did_you_mean(wanted, zones, 0.8)
    return re.sub(r"'([^']+)'", lambda word: repr((zones | cities)[word[1]]), near)


def _to_aware(moment: datetime | None, zone: tzinfo) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=zone)


def _to_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
