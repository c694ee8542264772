"""Values in the form of requests and answers: headers, times, durations and entity tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import lru_cache

_DURATION = re.compile(
    r"P(?:(?P<years>\d+)Y)?(?:(?P<months>\d+)M)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<part>\d+))?S)?)?",
    re.ASCII,
)
# a year has 365 days and a month 30, as in .NET, in which the service counts
_TICKS = {
    "years": 365 * 86_400 * 10**7,
    "months": 30 * 86_400 * 10**7,
    "days": 86_400 * 10**7,
    "hours": 3_600 * 10**7,
    "minutes": 60 * 10**7,
    "seconds": 10**7,
}  # of 100 ns
_MOST_TICKS = 2**63 - 1
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"  # the longest duration: no limit
_FOREVER = timedelta(days=36500)  # clients send P10675199DT2H48M5.4775807S for "no limit"


@lru_cache(maxsize=256)  # one request or one turn of the loop has one time
def time_text(when: datetime) -> str:
    """Return an ISO 8601 time with microseconds and `Z`."""
    return when.isoformat(timespec="microseconds")[:26] + "Z"


@lru_cache(maxsize=256)  # tasks that were added together have the same
def time_of(text: str) -> datetime:
    """Parse a time that `time_text` wrote."""
    return datetime.fromisoformat(text)


# The texts that the service accepts as a time: it uses `ConvertStringToDateTime` of OData, which
# adds missing seconds, and `XsdDateTime` of dotnet/runtime (both read 2026-11-23). A time of day
# alone, which the service reads as one of the year 1904, is refused [S].
_TIME = re.compile(
    r"\s*(\d{4}(?:-\d\d)?|\d{4}-\d\d-\d\d(?:T((?!24)\d\d:\d\d)(:\d\d)?(\.\d+)?)?)"
    r"(Z|z|[+-]\d\d:\d\d)?\s*",
    re.ASCII,
)


def parse_time(text: object) -> datetime:
    """Parse a time that a client sent; without an offset it is UTC. Raises ValueError."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not an ISO 8601 time: {text!r}")
    day, clock, seconds, fraction, zone = match.groups("")
    whole = f"{day}-01-01"[:10] + f"T{clock or '00:00'}{seconds or ':00'}{fraction[:7]}"
    try:
        moment = datetime.fromisoformat(whole + zone.upper())
    except ValueError:
        raise ValueError(f"not an ISO 8601 time: {text!r}") from None
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


class _HeaderName(bytes):
    """The name of a header, which uvicorn writes as it is.

    uvicorn (0.34 to 0.54) converts names to lower case before it writes them. Clients of the
    service read `Content-Length` and `ETag` by exactly these names, among them the SDK for Java.
    """

    __slots__ = ()

    def lower(self) -> _HeaderName:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and bytes.lower(self) == bytes.lower(other)

    def __hash__(self) -> int:
        return hash(bytes.lower(self))


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers of an ASGI message, with their names in the case that is given."""
    return [
        (_HeaderName(name.encode("latin-1")), value.encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def parse_duration(text: object) -> timedelta | None:
    """Return an ISO 8601 duration, None if its length means no limit. Raises ValueError."""
    days, ticks = divmod(_ticks(text), _TICKS["days"])
    duration = timedelta(days=days, microseconds=ticks / 10)
    return None if duration > _FOREVER else duration


@lru_cache(maxsize=256)  # tasks that were added together have the same
def canonical_duration(text: object) -> str:
    """Return a duration as the service writes it: `PT10M00S` is PT10M, `P1Y` is P365D.

    Raises:
        ValueError: the text is not an ISO 8601 duration, or longer than the longest of the service.
    """
    ticks = _ticks(text)
    if ticks == 0:
        return "PT0S"
    days, ticks = divmod(ticks, _TICKS["days"])
    hours, ticks = divmod(ticks, _TICKS["hours"])
    minutes, ticks = divmod(ticks, _TICKS["minutes"])
    seconds, ticks = divmod(ticks, _TICKS["seconds"])
    second = f"{seconds}.{ticks:07}".rstrip("0").rstrip(".") if seconds or ticks else "0"
    named = ((hours, f"{hours}H"), (minutes, f"{minutes}M"), (second != "0", f"{second}S"))
    clock = "".join(text for given, text in named if given)
    return f"P{f'{days}D' if days else ''}{f'T{clock}' if clock else ''}"


def _ticks(text: object) -> int:
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or not any(match.groups()) or str(text).endswith("T"):
        raise ValueError(f"not an ISO 8601 duration: {text!r}")
    found = match.groupdict()
    ticks = sum(int(found[name] or 0) * size for name, size in _TICKS.items())
    ticks += int(((found["part"] or "") + "0000000")[:7])
    if ticks > _MOST_TICKS:
        raise ValueError(f"longer than {FOREVER_TEXT}: {text!r}")
    return ticks


def canonical_time(text: object) -> str:
    """Return a time as the service writes it: UTC, without zeros at its end. Raises ValueError."""
    when = time_text(parse_time(text))
    return when[:-1].rstrip("0").rstrip(".") + "Z"
