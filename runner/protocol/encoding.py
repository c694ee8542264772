"""Formats that client and agent share: JSON from untrusted sources, UTC timestamps, sizes."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the decoded JSON. Raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def now_text() -> str:
    """Return the time now: UTC, ISO 8601 with microseconds."""
    # `datetime.UTC` requires Python 3.11, and the agent runs on 3.10.
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017


def format_size(size_bytes: float) -> str:
    """Return a size for people, in powers of 1000: `812 B`, `4.1 kB`, `11 MB`, `3.2 TB`."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(size_bytes) >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(size_bytes) >= 9.95 else 1
    return f"{size_bytes:.{digits}f} {units[0]}"
