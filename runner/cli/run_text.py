"""How times, metrics and stages of runs are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from runner.core.units import format_duration


def local_time(moment: datetime) -> str:
    """Date and time of day in this machine's zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def metric(value: float) -> str:
    """A metric as tables show it."""
    from runner.core.metrics import format_value

    return format_value(value)


def where_time_went(stages_s: Mapping[str, float]) -> str:
    """`environment 2.3 s, command 61 s`: stages of at least a tenth of a second, in order."""
    return ", ".join(f"{name} {format_duration(s)}" for name, s in stages_s.items() if s >= 0.05)
