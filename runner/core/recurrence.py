"""When a schedule fires: convert a cron expression or an interval for a Batch job schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from runner.core.units import format_duration
from runner.protocol.errors import RunnerError

_DAY_MINUTES = 24 * 60
_FIELDS = {  # by the field's name in cronsim, in order: our name, and the allowed values
    "minute": ("minute", "0 to 59"),
    "hour": ("hour", "0 to 23"),
    "day-of-month": ("day of month", "1 to 31"),
    "month": ("month", "1 to 12, or jan to dec"),
    "day-of-week": ("weekday", "0 to 7, or sun to sat"),
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
    """The expression is invalid or has no constant interval.

    `nearest` is a similar schedule that is valid, for the fix; empty if there is none.
    """

    def __init__(self, problem: str, nearest: str = "") -> None:
        super().__init__(problem)
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that fires at a constant `interval`."""

    expression: str
    interval: timedelta

    def first_after(self, moment: datetime, zone: tzinfo) -> datetime:
        """Return the first firing at or after `moment`, in the time zone `zone`."""
        # CronSim ignores fractions of a second and starts with the next second.
        before = (moment - timedelta(microseconds=1)).astimezone(zone)
        return next(CronSim(self.expression, before))


def parse_cron(text: str) -> Cron:
    """Return the expression with its interval.

    Raises:
        CronError: the text is not a cron expression, never fires, or has no constant interval.
    """
    expression = _ALIASES.get(text.strip().lower(), text)
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(
            f"expected 5 fields (minute, hour, day of month, month, weekday), got {len(fields)}",
            'cron: "0 3 * * *"',
        )
    try:
        simulation = _simulation(fields)
    except CronSimError as err:
        raise _invalid_field(fields, err) from err
    return Cron(expression, _interval(simulation, fields))


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
            return CronError("it never fires, because the month has no such day", "every: 30d")
    name, allowed = _FIELDS[place]
    written = fields[list(_FIELDS).index(place)]
    return CronError(f"invalid {name} {written!r}: use {allowed}, or a-b, a,b, *, */n or a/n")


def _interval(found: CronSim, fields: list[str]) -> timedelta:
    """Return the time between two firings. Raise CronError if it is not constant."""
    if len(found.months) < 12:
        raise CronError("months have no constant length", "every: 30d")
    weekdays = {day % 7 if isinstance(day, int) else day for day in found.weekdays}
    every_date, every_weekday = found.days.issuperset(range(1, 32)), weekdays.issuperset(range(7))
    times = [60 * hour + minute for hour in sorted(found.hours) for minute in sorted(found.minutes)]
    # As in Debian's cron: a day must match both fields, unless neither begins with a star.
    if (every_date and every_weekday) or (not found.day_and and (every_date or every_weekday)):
        return _daily_interval(times)
    if not every_date:
        raise CronError("days of a month have no constant interval", "every: 30d")
    if not all(isinstance(day, int) for day in weekdays):
        raise CronError("weekdays of a month have no constant interval", "every: 4w")
    if len(weekdays) > 1:
        raise CronError(
            f"{len(weekdays)} of 7 weekdays have no constant interval",
            f'cron: "{fields[0]} {fields[1]} * * *", or a schedule for each weekday',
        )
    if len(times) > 1:
        raise CronError(
            "several times on one weekday have no constant interval",
            f'cron: "{times[0] % 60} {times[0] // 60} * * {fields[4]}"',
        )
    return timedelta(weeks=1)


def _daily_interval(times: list[int]) -> timedelta:
    gaps = {b - a for a, b in zip(times, [*times[1:], times[0] + _DAY_MINUTES], strict=True)}
    if len(gaps) == 1:
        return timedelta(minutes=gaps.pop())
    shown = " and ".join(f"{gap} min" for gap in sorted(gaps)[:3])
    average = _DAY_MINUTES / len(times)
    even = (gap for gap in range(1, _DAY_MINUTES + 1) if _DAY_MINUTES % gap == 0)
    near = min(even, key=lambda gap: abs(gap - average))
    raise CronError(
        f"its times are {shown} apart, which is not a constant interval",
        f"every: {near // 60}h" if near % 60 == 0 else f"every: {near}m",
    )


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
class Recurrence:
    """The times of a schedule, in UTC.

    Attributes:
        interval: Time between two runs.
        first: Time of the first run; None starts it at once.
        last: Time after which no run starts; None if there is none.
    """

    interval: timedelta
    first: datetime | None
    last: datetime | None


def plan_recurrence(spec: ScheduleSpec, now: datetime) -> Recurrence:
    """Return the recurrence for Batch.

    Raises:
        RunnerError: Batch does not support the schedule, or it never fires.
    """
    zone = _parse_zone(spec.timezone)
    start = _to_aware(spec.start, zone)
    until = _to_aware(spec.until, zone)
    if spec.every is not None:
        interval, first = spec.every, start if start is not None and start > now else None
    elif spec.cron is not None:
        interval, first = _plan_cron(spec.cron, zone, max(now, start or now), until)
    else:
        raise RunnerError(
            "R-SCHEDULE", "a schedule requires cron or every", fix='--cron "0 3 * * *"'
        )
    begins = first or now
    if until is not None and until < begins:
        raise RunnerError(
            "R-SCHEDULE-NEVER",
            "the schedule would never fire",
            why=f"it ends {until.isoformat()}, and its first run is {begins.isoformat()}",
            fix="use a later `until`, or remove it",
        )
    if spec.max_runs is not None:
        # Batch does not count jobs, so end the schedule half an interval after the last one.
        enough = begins + (spec.max_runs - 1) * interval + interval / 2
        until = min(until, enough) if until is not None else enough
    return Recurrence(interval, _to_utc(first), _to_utc(until))


def _plan_cron(
    text: str, zone: tzinfo, begin: datetime, until: datetime | None
) -> tuple[timedelta, datetime]:
    try:
        cron = parse_cron(text)
    except CronError as err:
        never = "never fires" in str(err)
        raise RunnerError(
            "R-SCHEDULE-NEVER" if never else "R-SCHEDULE-CRON",
            f"cron {text!r}: {err}",
            why="a Batch job schedule has a constant interval between runs",
            fix=err.nearest or 'use five fields, such as "0 3 * * *"',
        ) from err
    first = cron.first_after(begin, zone)
    _check_utc_offset(zone, cron.interval, first, until)
    return cron.interval, first


def _check_utc_offset(
    zone: tzinfo, interval: timedelta, first: datetime, until: datetime | None
) -> None:
    """Raise RunnerError if the UTC offset changes, because Batch keeps the interval constant."""
    offset = first.utcoffset() or timedelta()
    end = min(first + _CHECKED_PERIOD, until or first + _CHECKED_PERIOD)
    moment = first
    while moment <= end:
        local = moment.astimezone(UTC).astimezone(zone)
        moved = (local.utcoffset() or timedelta()) - offset
        if moved % interval:
            hours = offset.total_seconds() / 3600
            sign = "+" if hours >= 0 else "-"
            fixed = f"UTC{sign}{int(abs(hours)):02d}:{round(abs(hours) * 60) % 60:02d}"
            raise RunnerError(
                "R-SCHEDULE-CLOCK",
                f"the UTC offset of {zone} changes on {local:%Y-%m-%d}",
                why="Batch uses a fixed interval, so the schedule would then fire "
                f"{format_duration(abs(moved))} {'late' if moved > timedelta() else 'early'}",
                fix=f"use the time zone {fixed}, or an earlier end (`until`)",
            )
        moment += timedelta(days=1)


def _parse_zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if match := _OFFSET.fullmatch(name.upper()):
        size = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if size < timedelta(hours=24):
            return timezone(size if match[1] == "+" else -size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise RunnerError(
            "R-SCHEDULE-ZONE",
            f"unknown time zone {name!r}",
            fix="use UTC, UTC+01:00, or a name such as Europe/Berlin",
        ) from err


def _to_aware(moment: datetime | None, zone: tzinfo) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=zone)


def _to_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
