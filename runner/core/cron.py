"""Cron expressions that an Azure Batch job schedule can keep: those that are one even interval.

A job schedule has a recurrence interval and a first time and no calendar (JobScheduleConfiguration,
Batch REST 2025-06-01). So `0 3 * * *` is every 24 hours from 3 o'clock on, and `0 3 1 * *` nothing.
What an expression means is up to `cronsim`, which does as Debian's cron does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

_DAY = 24 * 60
_FIELDS = {  # cronsim's name of each field, in order; ours, and what it may be
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
    """Not an expression, or none that Batch can keep; `nearest` is one that works, or empty."""

    def __init__(self, problem: str, nearest: str = "") -> None:
        super().__init__(problem)
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that fires at one even `interval`."""

    expression: str
    interval: timedelta

    def first_after(self, moment: datetime, zone: tzinfo) -> datetime:
        """Return the first firing at or after `moment`, by the clocks of `zone`."""
        # CronSim drops what is below a second, and begins with the next one.
        before = (moment - timedelta(microseconds=1)).astimezone(zone)
        return next(CronSim(self.expression, before))


def parse_cron(text: str) -> Cron:
    """Return the expression with its interval.

    Raises:
        CronError: It is not five fields of cron, never fires, or is not even.
    """
    expression = _ALIASES.get(text.strip().lower(), text)
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(
            f"{text!r} has {len(fields)} fields: minute, hour, day of month, month, weekday",
            'cron: "0 3 * * *"',
        )
    try:
        simulation = _simulation(fields)
    except CronSimError as err:
        raise _refused(fields, err) from err
    return Cron(expression, _interval(simulation, fields))


def _simulation(fields: list[str]) -> CronSim:
    return CronSim(" ".join(fields), datetime(2026, 1, 1, tzinfo=UTC))


def _refused(fields: list[str], err: CronSimError) -> CronError:
    place = str(err).removeprefix("Bad ")
    if place == "day-of-month":
        try:
            _simulation([*fields[:3], "*", fields[4]])
        except CronSimError:
            pass
        else:
            return CronError("it never fires: no such month has such a day", "every: 30d")
    name, allowed = _FIELDS[place]
    written = fields[list(_FIELDS).index(place)]
    return CronError(f"{name} {written!r} is not in {allowed}, nor a-b, a,b, *, */n or a/n of them")


def _interval(found: CronSim, fields: list[str]) -> timedelta:
    """Return what lies between two firings. Raises CronError where that differs."""
    if len(found.months) < 12:
        raise CronError("months are not an even interval, and Batch has no calendar", "every: 30d")
    weekdays = {day % 7 if isinstance(day, int) else day for day in found.weekdays}
    every_date, every_weekday = found.days.issuperset(range(1, 32)), weekdays.issuperset(range(7))
    times = [60 * hour + minute for hour in sorted(found.hours) for minute in sorted(found.minutes)]
    # Debian's rule: a day has to match both, unless neither field begins with a star.
    if (every_date and every_weekday) or (not found.day_and and (every_date or every_weekday)):
        return _daily(times)
    if not every_date:
        raise CronError("days of a month are not an even interval", "every: 30d")
    if not all(isinstance(day, int) for day in weekdays):
        raise CronError("weekdays of a month are not an even interval", "every: 4w")
    if len(weekdays) > 1:
        raise CronError(
            f"{len(weekdays)} of 7 weekdays are not an even interval",
            f'cron: "{fields[0]} {fields[1]} * * *", or a schedule for each weekday',
        )
    if len(times) > 1:
        raise CronError(
            "several times on one weekday are not an even interval",
            f'cron: "{times[0] % 60} {times[0] // 60} * * {fields[4]}"',
        )
    return timedelta(weeks=1)


def _daily(times: list[int]) -> timedelta:
    gaps = {b - a for a, b in zip(times, [*times[1:], times[0] + _DAY], strict=True)}
    if len(gaps) == 1:
        return timedelta(minutes=gaps.pop())
    shown = " and ".join(f"{gap} min" for gap in sorted(gaps)[:3])
    average = _DAY / len(times)
    even = (gap for gap in range(1, _DAY + 1) if _DAY % gap == 0)
    near = min(even, key=lambda gap: abs(gap - average))
    raise CronError(
        f"its times are {shown} apart, which is not an even interval",
        f"every: {near // 60}h" if near % 60 == 0 else f"every: {near}m",
    )
