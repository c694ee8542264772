"""Times as the run format writes them."""

from __future__ import annotations

from datetime import datetime, timezone


def now_text() -> str:
    """The time now, UTC, ISO 8601 with microseconds."""
    # datetime.UTC is Python 3.11; the agent runs on 3.10 too.
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017
