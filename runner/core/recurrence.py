"""When a schedule fires, as Batch keeps it: a first time, an interval, and an end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from runner.core.cron import CronError, parse_cron
from runner.core.errors import RunnerError
from runner.core.units import format_duration

_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_AHEAD = timedelta(days=2 * 366)  # so far ahead clocks are looked at


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """What was written or typed; `every` instead of `cron`. Naive times are of `timezone`."""

    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    until: datetime | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """`first` None means at once; after `last` none begins. Times are UTC."""

    interval: timedelta
    first: datetime | None
    last: datetime | None


def plan_recurrence(spec: ScheduleSpec, now: datetime) -> Recurrence:
    """What Batch is told. Raises RunnerError for what it cannot keep, and what never fires."""
    zone = _zone(spec.timezone)
    start = _aware(spec.start, zone)
    until = _aware(spec.until, zone)
    if spec.every is not None:
        interval, first = spec.every, start if start is not None and start > now else None
    elif spec.cron is not None:
        interval, first = _of_cron(spec.cron, zone, max(now, start or now), until)
    else:
        raise RunnerError("R-SCHEDULE", "a schedule needs cron or every", fix='--cron "0 3 * * *"')
    begins = first or now
    if until is not None and until < begins:
        raise RunnerError(
            "R-SCHEDULE-NEVER",
            "the schedule would never fire",
            why=f"it ends {until.isoformat()}, and its first run is {begins.isoformat()}",
            fix="a later `until`, or none",
        )
    if spec.max_runs is not None:
        # Batch counts no jobs: half an interval after the last one there is none left to come.
        enough = begins + (spec.max_runs - 1) * interval + interval / 2
        until = min(until, enough) if until is not None else enough
    return Recurrence(interval, _utc(first), _utc(until))


def _of_cron(
    text: str, zone: tzinfo, begin: datetime, until: datetime | None
) -> tuple[timedelta, datetime]:
    try:
        cron = parse_cron(text)
    except CronError as err:
        never = "never fires" in str(err)
        raise RunnerError(
            "R-SCHEDULE-NEVER" if never else "R-SCHEDULE-CRON",
            f"cron {text!r}: {err}",
            why="a Batch job schedule has one interval between runs, and no calendar",
            fix=err.nearest or 'write five fields: "0 3 * * *"',
        ) from err
    first = cron.first_after(begin, zone)
    _check_clock(zone, cron.interval, first, until)
    return cron.interval, first


def _check_clock(
    zone: tzinfo, interval: timedelta, first: datetime, until: datetime | None
) -> None:
    """An even interval does not follow a clock that is put forward and back."""
    offset = first.utcoffset() or timedelta()
    end = min(first + _AHEAD, until or first + _AHEAD)
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
                f"the clocks of {zone} change before {local:%Y-%m-%d}",
                why="Batch keeps one interval: from then on it would fire "
                f"{format_duration(abs(moved))} {'late' if moved > timedelta() else 'early'}",
                fix=f"--timezone {fixed}, or --until a day before",
            )
        moment += timedelta(days=1)


def _zone(name: str) -> tzinfo:
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
            f"there is no time zone {name!r}",
            fix="UTC, UTC+01:00, or a name such as Europe/Berlin",
        ) from err


def _aware(moment: datetime | None, zone: tzinfo) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=zone)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
