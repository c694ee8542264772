"""Values as the wire has them: times, durations, entity tags, numbers sent as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import lru_cache

_DURATION = re.compile(
    r"^P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?$"
)
_FOREVER = timedelta(days=36500)  # clients send P10675199DT2H48M5.4775807S for "no limit"


@lru_cache(
    maxsize=256
)  # one request or one turn of the loop has one time for everything it touches
def time_text(when: datetime) -> str:
    """Return an ISO 8601 time with microseconds and `Z`."""
    return when.isoformat(timespec="microseconds")[:26] + "Z"


@lru_cache(maxsize=256)  # tasks that were added together share theirs
def time_of(text: str) -> datetime:
    """Parse a time that `time_text` wrote."""
    return datetime.fromisoformat(text)


def parse_time(text: object) -> datetime:
    """Parse a time that a client sent; without an offset it is UTC. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"not an ISO 8601 time: {text!r}")
    # the service sends seven digits behind the point, Python reads six
    short = re.sub(r"(\.\d{6})\d+", r"\1", text.strip().upper())
    moment = datetime.fromisoformat(short)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def optional_time(text: str | None) -> datetime | None:
    """Parse a time that `time_text` wrote, or None."""
    return None if text is None else time_of(text)


def etag_text(etag: int) -> str:
    """Return an entity tag as the service writes it, without quotes."""
    return f"0x{etag:X}"


def http_date(when: datetime) -> str:
    """Return a date in RFC 1123 form, as in Last-Modified."""
    return format_datetime(when, usegmt=True)


def parse_duration(text: object) -> timedelta | None:
    """Parse an ISO 8601 duration; None is one so long that it means no limit. Raises ValueError."""
    match = _DURATION.match(text) if isinstance(text, str) else None
    if match is None or not any(match.groups()):
        raise ValueError(f"not an ISO 8601 duration: {text!r}")
    parts = {name: float(number) for name, number in match.groupdict().items() if number}
    if parts.get("days", 0) > _FOREVER.days:
        return None
    duration = timedelta(**parts)
    return None if duration > _FOREVER else duration
