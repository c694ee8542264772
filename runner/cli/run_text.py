"""How durations, sizes, times and states of runs are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from runner.core.size_text import size

__all__ = ["age", "duration", "local_time", "metric", "size", "where_time_went"]


def duration(seconds: float) -> str:
    """`0.4 s`, `61 s`, `12 min 03 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def age(passed: timedelta) -> str:
    """`12 s`, `5 min`, `3 h`, `12 d`: how long ago, in one unit."""
    seconds = max(round(passed.total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def local_time(moment: datetime) -> str:
    """Date and time of day in this machine's zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def metric(value: float) -> str:
    """A metric as tables show it."""
    from runner.core.metrics import format_value

    return format_value(value)


def where_time_went(stages_s: Mapping[str, float]) -> str:
    """`environment 2.3 s, command 61 s`: stages of at least a tenth of a second, in order."""
    return ", ".join(f"{name} {duration(s)}" for name, s in stages_s.items() if s >= 0.05)
