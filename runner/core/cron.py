"""Cron expressions that an Azure Batch job schedule can keep: those that are one even interval.

A job schedule has a recurrence interval and a first time and no calendar (JobScheduleConfiguration,
Batch REST 2025-06-01). So `0 3 * * *` is every 24 hours from 3 o'clock on, and `0 3 1 * *` nothing.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

_DAY = 24 * 60
_WEEK = 7
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d+))?")
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAY_NAMES)}
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
    """`times` are minutes of a day; `weekdays` count from Sunday, 0, and are 7 or 1."""

    times: tuple[int, ...]
    weekdays: frozenset[int]

    @property
    def interval(self) -> timedelta:
        """What lies between two firings."""
        if len(self.weekdays) == 1:
            return timedelta(days=_WEEK)
        return timedelta(minutes=_DAY // len(self.times))

    def first_after(self, moment: datetime, zone: tzinfo) -> datetime:
        """The first firing at or after `moment`."""
        local = moment.astimezone(zone)
        day = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        for number in range(_WEEK + 2):
            date = day + timedelta(days=number)
            if (date.weekday() + 1) % _WEEK not in self.weekdays:
                continue
            for time in self.times:
                found = (date + timedelta(minutes=time)).replace(tzinfo=zone)
                if found >= moment:
                    return found
        raise AssertionError("every week has one of its days")


def parse_cron(text: str) -> Cron:
    """Read five fields. Raises CronError for what is none, never fires, or is not even."""
    fields = _ALIASES.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise CronError(
            f"{text!r} has {len(fields)} fields: minute, hour, day of month, month, weekday",
            'cron: "0 3 * * *"',
        )
    minutes = _values("minute", fields[0], range(60))
    hours = _values("hour", fields[1], range(24))
    days = _values("day of month", fields[2], range(1, 32))
    months = _values("month", fields[3], range(1, 13), _MONTHS)
    weekdays = frozenset(n % _WEEK for n in _values("weekday", fields[4], range(8), _WEEKDAYS))
    at = f"{fields[0]} {fields[1]}"
    _check_calendar(days, months, weekdays, at)
    times = tuple(60 * hour + minute for hour in sorted(hours) for minute in sorted(minutes))
    _check_even(times, weekdays, fields)
    return Cron(times, weekdays)


def _values(
    name: str, text: str, allowed: range, names: Mapping[str, int] | None = None
) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        match = _PART.fullmatch(part)
        if match is None or (match["first"] == "*" and match["last"]):
            raise CronError(f"{name} {text!r} is not a number, a-b, a,b, * or */n")
        first, last, step = match["first"], match["last"], int(match["step"] or 1)
        if first == "*":
            low, high = allowed.start, allowed.stop - 1
        else:
            low = _number(name, first, allowed, names)
            high = _number(name, last, allowed, names) if last else low
            if match["step"] and not last:
                high = allowed.stop - 1
        if low > high or step < 1:
            raise CronError(f"{name} {text!r} has a range or step that holds nothing")
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _number(name: str, text: str, allowed: range, names: Mapping[str, int] | None) -> int:
    number = (names or {}).get(text, int(text) if text.isdecimal() else -1)
    if number not in allowed:
        raise CronError(f"{name} {text!r} is not in {allowed.start} to {allowed.stop - 1}")
    return number


def _check_calendar(
    days: frozenset[int], months: frozenset[int], weekdays: frozenset[int], at: str
) -> None:
    longest = max(29 if month == 2 else calendar.monthrange(2023, month)[1] for month in months)
    any_weekday = len(weekdays) == _WEEK
    if any_weekday and min(days) > longest:
        raise CronError(f"it never fires: no such month has a day {min(days)}", "every: 30d")
    if len(months) < 12:
        raise CronError("months are not an even interval, and Batch has no calendar", "every: 30d")
    if len(days) < 31:
        raise CronError("days of a month are not an even interval", "every: 30d")
    if not any_weekday and len(weekdays) > 1:
        raise CronError(
            f"{len(weekdays)} of 7 weekdays are not an even interval",
            f'cron: "{at} * * *", or a schedule for each weekday',
        )


def _check_even(times: Sequence[int], weekdays: frozenset[int], fields: Sequence[str]) -> None:
    if len(weekdays) == 1:
        if len(times) > 1:
            raise CronError(
                "several times on one weekday are not an even interval",
                f'cron: "{times[0] % 60} {times[0] // 60} * * {fields[4]}"',
            )
        return
    gaps = {b - a for a, b in zip(times, [*times[1:], times[0] + _DAY], strict=True)}
    if len(gaps) > 1:
        shown = " and ".join(f"{gap} min" for gap in sorted(gaps)[:3])
        average = _DAY / len(times)
        even = (gap for gap in range(1, _DAY + 1) if _DAY % gap == 0)
        near = min(even, key=lambda gap: abs(gap - average))
        raise CronError(
            f"its times are {shown} apart, which is not an even interval",
            f"every: {near // 60}h" if near % 60 == 0 else f"every: {near}m",
        )
