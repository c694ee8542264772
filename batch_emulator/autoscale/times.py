"""Times as formulas spell them: W3C-DTF and RFC 1123, UTC where no zone is given."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from batch_emulator.autoscale.values import LAST_TICK, Timestamp

_W3C = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    r"(Z|[+-]\d\d:\d\d)?)?)?)?",
    re.ASCII,
)
_RFC = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", re.ASCII)


def parse_time(text: str, fraction_digits: int) -> Timestamp:
    """The time in a text. Raises ValueError."""
    if _RFC.fullmatch(text):
        return Timestamp.of(parsedate_to_datetime(text).astimezone(UTC))
    match = _W3C.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if len(fraction or "") > fraction_digits:
        raise ValueError(text)
    whole = datetime(
        int(year), int(month or 1), int(day or 1),
        int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC,
    )  # fmt: skip
    ticks = Timestamp.of(whole).ticks + int((fraction or "").ljust(7, "0")[:7])
    ticks -= _offset(zone or "Z") // timedelta(microseconds=1) * 10
    if not 0 <= ticks <= LAST_TICK:
        raise ValueError(text)
    return Timestamp(ticks)


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    return ahead if zone[0] == "+" else -ahead
