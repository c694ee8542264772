"""Encodings that all documents share: JSON from untrusted sources, and UTC timestamps."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """As json.loads, but nesting that Python's reader gives up on is no RecursionError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def now_text() -> str:
    """The time now, UTC, ISO 8601 with microseconds."""
    # datetime.UTC is Python 3.11; the agent runs on 3.10 too.
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017
