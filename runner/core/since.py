"""How long ago, as people type it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from runner.core.errors import RunnerError

_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_AGO = re.compile(r"(\d{1,6})\s*([mhdw])")


def parse_since(text: str, now: datetime) -> datetime:
    """`7d`, `12h`, `30m`, `2w` before now, or a date or time; without a zone it is local."""
    ago = _AGO.fullmatch(text.strip().lower())
    try:
        if ago:
            return now - int(ago[1]) * _UNITS[ago[2]]
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as err:
        raise RunnerError(
            "R-SINCE",
            f"{text!r} is no time",
            why="it is so many m, h, d or w ago, or a date",
            fix="--since 7d, or --since 2026-11-21",
        ) from err
